"""Schedules: which tasks the workers were given, what has come back, and what is handed out next.

A schedule sits between the engine, which receives datapoints, and the consumer's loop. `MixedSchedule` (of a runner)
hands datapoints out as they arrive. A `TaskSchedule` has issued a task for each datapoint, and knows which are
outstanding: `IndexRanges` and `OnePass` are those of a strict runner, `MapTasks` that of a map.

Guarantees of `TaskSchedule`:

- Every datapoint that was asked for is handed out once, unless it was dropped: a result for a task that is done, or
  that belongs to an abandoned pass, is ignored.
- With `ordered`, datapoints are handed out in the order in which they were asked for; an exception comes in its place,
  after all datapoints before it.
- No method blocks.

Guarantees of `MapTasks`, in addition:

- At most `buffer_size` datapoints are read and not yet handed out, including those that wait for a slower one.
- A task for which the task queue has no room is tried again when results have come; the queue has room for any task
  that is alone in it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import NotReproducible
from dataflow.protocol.datapoint import HOLE, present
from dataflow.protocol.kept import report
from dataflow.protocol.kept_in_workers import KeptInWorker
from dataflow.runners.jobs import PassTask
from dataflow.runners.rebatching import WorkerBatch, pieces
from dataflow.transport.message_layout import NO_ROOM
from dataflow.transport.messages import Kind, Message
from dataflow.transport.task_queue import PAIRED, WHOLE, QueuedTask, TaskQueue

__all__ = [
    "NOT_WANTED",
    "EndedItem",
    "IndexRanges",
    "ItemEnd",
    "MapTasks",
    "MixedSchedule",
    "OnePass",
    "Schedule",
    "TaskSchedule",
]


# -- Interface, and the schedule of a runner ---------------------------------------------------------------------------


NOT_WANTED: Final = -1
"""The position of a datapoint in a task that was not issued, or that is discarded."""


class Schedule:
    """The engine's record of datapoints. All methods are called under the engine's lock.

    What a schedule does not override does nothing: that suits workers that get no tasks, and passes that continue one
    another.
    """

    def open(self) -> None:
        """Begin, after the workers were started."""

    def receive(self, message: Message, datapoints: list[Any], error: BaseException | None) -> None:
        """Add the results of a message, of one of the `RESULT_KINDS`.

        Args:
            message: Its header says to which task they belong.
            datapoints: Those of the message.
            error: The exception after them: the one that has ended the task, or that of a datapoint that could not be
                decoded.
        """
        raise NotImplementedError

    def discard(self) -> None:
        """Discard outstanding work: it belongs to an abandoned pass."""

    def issue_tasks(self) -> None:
        """Issue the tasks for which there is room now. Called whenever something has changed, before `take`."""

    def take(self) -> list[Any] | BaseException | None:
        """Take out the next datapoints, or an exception to raise; None if neither is there yet.

        Called when everything returned before is handed out.
        """
        raise NotImplementedError

    def take_unfinished(self) -> list[Any]:
        """Take out what has come of tasks that are not done: the consumer has waited too long. Called after `take`."""
        return []

    def handed_out(self) -> None:
        """Record that the last result of `take` has been handed out."""

    def set_workers(self, num_taking: int, num_started: int) -> None:
        """Give work only to the first `num_taking` workers, of the `num_started` that were started so far."""

    def lost(self, worker: int, error: BaseException) -> bool:
        """Record that a worker has ended without a replacement.

        Returns True if `take` will return `error` in its turn.
        """
        return False

    def replaced(self, worker: int) -> None:
        """Record that a worker has ended, and another replaces it under the same index."""

    def has_issued(self, task: int) -> bool:
        """Whether the results of the task, or part of one, with this number are waited for."""
        return False

    def ended(self, worker: int, end: ItemEnd, position: int | None, *, sent_all: bool) -> EndedItem | None:
        """Record how a worker has ended, before `lost` or `replaced`; see `TaskSchedule.ended`."""
        return None

    def leave_out(self, item: EndedItem, error: BaseException | None = None) -> None:
        """Do not ask for this datapoint again: it counts as dropped, or `take` returns `error` in its place.

        Called before `replaced`.
        """
        raise NotImplementedError

    @property
    def exhausted(self) -> bool:
        """Whether the work is complete: no more datapoints will come."""
        return False

    def stop(self) -> None:
        """Request workers that wait for tasks to end."""

    def close(self) -> None:
        """Release everything. Idempotent."""


class MixedSchedule(Schedule):
    """Schedule of a runner: datapoints are handed out in the order in which they arrive.

    The workers report their end themselves. Datapoints of one that is replaced are handed out, too, and the new one
    begins with its first pass.
    """

    def __init__(self) -> None:
        self._ready: deque[list[Any] | BaseException] = deque()

    def receive(self, message: Message, datapoints: list[Any], error: BaseException | None) -> None:
        if datapoints:
            self._ready.append(datapoints)
        if error is not None:
            self._ready.append(error)

    def take(self) -> list[Any] | BaseException | None:
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        self._ready.clear()


# -- Base class of the schedules with tasks ----------------------------------------------------------------------------


_TASKS_EACH: Final = 2  # issued for each worker, to keep it busy
_DECAY: Final = 0.9  # weight of the previous size of datapoints at the next message


@dataclass(slots=True)
class _IssuedTask:
    """A task that is not done. At first all of it is asked for."""

    queued: QueuedTask
    order: int  # its place among the tasks of the pass
    first: int  # index of its first datapoint
    count: int
    rest: _Rest | None = None  # what is left of it, after a worker has ended in it
    num_taken: int = 0  # results that were taken out before it was done


@dataclass(slots=True)
class _Rest:
    """What is left of a task in which a worker has ended.

    Positions are those in the task.
    """

    stop: int  # the position after the part that is asked for, which begins after the results
    results: list[Any] = field(default_factory=list)
    alone: set[int] = field(default_factory=set)  # those that a worker may have ended in: parts of their own
    left_out: dict[int, BaseException | None] = field(default_factory=dict)  # and what is raised there, if anything
    suspects: list[ItemEnd] = field(default_factory=list)  # ends in one of `alone`, or in another task with this end


@dataclass(frozen=True, slots=True)
class ItemEnd:
    """How a worker has ended while it made a datapoint.

    Attributes:
        reason: What happened, as the end of a sentence about the worker.
        stack: The stacks of its threads, as text; empty if there are none.
        is_late: Whether it was killed because it took too long.
    """

    reason: str
    stack: str = ""
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class EndedItem:
    """A datapoint in which a worker has ended.

    Attributes:
        in_pass: Number of its pass, from 0.
        position: Its position in the pass.
        ends: How workers have ended in it, one after the other; only those of which it is certain.
        explained: How many ends before, of which it was not known in which datapoint, are now held against it.
        number: Number of the task; -1 if it cannot be left out.
        offset: Its position in the task.
    """

    in_pass: int
    position: int
    ends: tuple[ItemEnd, ...]
    explained: int = 0
    number: int = -1
    offset: int = 0

    def __str__(self) -> str:
        return f"datapoint {self.position} of pass {self.in_pass}"


@dataclass(slots=True)
class _TaskResults:
    """The results of a task."""

    parts: list[list[Any] | BaseException]  # not handed out so far: its datapoints, and an error after them
    count: int  # datapoints that were asked for


class TaskSchedule(Schedule):
    """Base class of the schedules with tasks: tracks issued tasks and their results. Subclasses define the tasks.

    The life of a task:

        issue         a worker takes it         all results, or an error          in its turn
        ─────► QUEUED ────────────────► TAKEN ───────────────────────────► DONE ─────────────► handed out
                  ▲                       │                                 ▲
                  └──── replaced() ───────┴── lost(): ends with the death ──┘

        discard(): QUEUED, TAKEN and DONE are forgotten; results that come later are ignored

    A task in which a worker has ended is asked for again in parts: what a worker may have ended in is tried alone, so
    that the next end tells which datapoint it is. Each part is asked for under a number of its own, one after the
    other, and what was received is kept. The datapoint in which a worker ends for the second time is known, unless both
    ends have another reason than the datapoint: of two kills from outside in the same few milliseconds of work, the
    first is held against the datapoint of the second.

    Args:
        task_queue: From which the workers take tasks.
        num_workers: Number of workers.
        max_per_task: Maximum number of datapoints in a task.
        ordered: Whether results are handed out in the order in which they were asked for.

    Attributes:
        num_taking: How many workers take tasks: `set_workers` lets only the first of them.
        length: Datapoints in a pass, from which the position of an index in its pass follows; None if passes never end.
    """

    short_task = 5e-3  # seconds; tasks that are done faster may be longer, because the round trip would dominate
    long_task = 20e-3
    max_bytes_per_task = 6 << 20  # of results: the fewer are in use at a time, the more of them stay in the caches

    def __init__(
        self, task_queue: TaskQueue, num_workers: int, max_per_task: int, *, ordered: bool, length: int | None = None
    ) -> None:
        self.task_queue = task_queue
        self.length = length
        self.per_task = 1  # datapoints, at present
        self.min_per_task = 1
        self.index = 0  # of the first datapoint that is not in a task
        self._said_full = False  # what the workers were told last of `is_full`
        self.under_way = 0  # datapoints asked for, or about to be, and not handed out
        self.keeps_holes = False  # whether `HOLE` is handed out for dropped datapoints
        self.has_dropped = False  # whether any was left out
        self._ordered = ordered
        self.bytes_each = 0.0  # bytes per result, at present
        self.num_taking = num_workers
        self._num_started = self._num_alive = num_workers
        self._max_per_task = max_per_task
        self.issued: dict[int, _IssuedTask] = {}  # by number
        self._done: dict[int, _TaskResults] = {}  # by order, in the order of completion
        self._ends: dict[int, tuple[ItemEnd, ...]] = {}  # by index: how workers have ended there
        self._left_out: dict[int, BaseException | None] = {}  # indexes at which too many have; what is raised there
        self._next = 0  # number of the next task, or part of one
        self._num_issued = 0  # tasks
        self._due = 0  # which of them is handed out next, if ordered
        self._being_handed_out = 0  # the part of `under_way` that `take` returned last
        self._sending: dict[int, tuple[int, list[Any]]] = {}  # by worker: number of a task, and its results so far

    # -- Issuing tasks -------------------------------------------------------------------------------------------------

    def begin(self, index: int = 0) -> None:
        """Begin a pass at this index; tasks under way belong to an abandoned pass and are discarded."""
        for task in self.issued.values():
            task.queued.discard()
        self.task_queue.drop()
        self.issued, self._done = {}, {}
        self._due = self._num_issued
        self.under_way = self._being_handed_out = 0
        self.index = index

    @property
    def _is_in_order(self) -> bool:
        """Whether this pass is handed out in order: with holes, because indexes are paired with results."""
        return self._ordered or self.keeps_holes

    def discard(self) -> None:
        self.begin()

    def issue(self, encoded: Sequence[Any], count: int) -> bool:
        """Put a task of `count` datapoints into the task queue. Return False if there is no room at present."""
        hold = bool(self._left_out)  # until it is known which part is to be made
        queued = self.task_queue.put(self._next, self.index, encoded, is_only_task=not self.issued, hold=hold)
        if queued is None:
            return False
        task = self.issued[self._next] = _IssuedTask(queued, self._num_issued, self.index, count)
        self._next += 1
        self._num_issued += 1
        self.index += count
        if hold:
            indexes = self._indexes_of(task)
            left_out = {k: self._left_out[indexes[k]] for k in range(count) if indexes[k] in self._left_out}
            if left_out:
                task.rest = _Rest(count, left_out=left_out)
                self._ask_again(self._next - 1)
            else:
                queued.put_back()
        return True

    def _indexes_of(self, task: _IssuedTask) -> Sequence[int]:
        """The indexes of the datapoints of a task."""
        return range(task.first, task.first + task.count)

    @property
    def is_idle(self) -> bool:
        """Whether no task is outstanding."""
        return not self.issued

    @property
    def has_enough(self) -> bool:
        """Whether there are enough tasks for all workers that take them."""
        return len(self.issued) >= _TASKS_EACH * self.num_taking

    def issue_tasks(self) -> None:
        self.refill()
        is_full = self.is_full
        if is_full is not self._said_full:
            self._said_full = is_full
            self.task_queue.set_full(is_full)

    def refill(self) -> None:
        """Put more tasks into the task queue, as far as there is room."""
        raise NotImplementedError

    @property
    def all_issued(self) -> bool:
        """Whether the whole pass was asked for."""
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """Whether `refill` issues nothing before results are taken, although the pass continues."""
        return not self.all_issued

    # -- Receiving results ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.task_queue.open()

    def receive(self, message: Message, datapoints: list[Any], error: BaseException | None) -> None:
        worker, number = message.worker, message.task
        if datapoints:  # the size of one large datapoint among small ones fades slowly
            self.bytes_each = max(message.nbytes / len(datapoints), _DECAY * self.bytes_each)
        if message.pace:
            self.adapt(message.pace)
        sending = self._sending.get(worker)
        if sending is None or sending[0] != number:
            sending = self._sending[worker] = number, []  # replaces what it had sent of another
        task = self.issued.get(number)
        if task is None:
            return  # done before, or of an abandoned pass
        results = sending[1]
        if message.kind is Kind.BATCH and error is None:
            if not task.num_taken:
                self._finish(number, [WorkerBatch(datapoints)], None)
                return
            datapoints = pieces(datapoints[0], task.count)  # a worker before has sent single ones
        results += datapoints
        before, stop = (0, task.count) if task.rest is None else (len(task.rest.results), task.rest.stop)
        if error is not None and message.kind is not Kind.TASK_FAILED and task.first < PAIRED:
            error.add_note(f"it was made of the datapoint at index {task.first + before + len(results)} of the input")
        if error is None and before + len(results) < stop:
            return
        del self._sending[worker]
        if task.rest is None or error is not None:
            self._finish(number, [*task.rest.results, *results] if task.rest else results, error)
        else:
            task.rest.results += results
            self._ask_again(number)

    def take(self) -> list[Any] | BaseException | None:
        order = self._due if self._is_in_order or not self._done else next(iter(self._done))
        done = self._done.get(order)
        if done is None:
            return None
        part = done.parts.pop(0)
        if not done.parts:
            self._being_handed_out = self._done.pop(order).count
            self._due = order + 1
        return part

    def take_unfinished(self) -> list[Any]:
        """Take out what has come of tasks that are not done; with `ordered`, of the one whose turn it is."""
        found: list[Any] = []
        for number, task in self.issued.items():
            if not self._is_in_order or task.order == self._due:
                partial = [results for at, results in self._sending.values() if at == number]
                before = [] if task.rest is None else task.rest.results
                results = [*before, *max(partial, key=len, default=[])]  # two workers may do it
                found += self._kept(results[task.num_taken :])
                task.num_taken = max(task.num_taken, len(results))
        return found

    def _kept(self, results: Sequence[Any]) -> list[Any]:
        """Those of `results` that are handed out."""
        kept = list(results if self.keeps_holes else present(results))
        if len(kept) < len(results):
            self.has_dropped = True
        return kept

    def handed_out(self) -> None:
        self.under_way -= self._being_handed_out
        self._being_handed_out = 0

    @property
    def exhausted(self) -> bool:
        return self.all_issued and not self.issued and not self._done

    def _finish(self, number: int, results: Sequence[Any], error: BaseException | None) -> None:
        task = self.issued.pop(number)
        task.queued.discard()
        left = self._kept(results[task.num_taken :] if task.num_taken else results)
        self._done[task.order] = _TaskResults([left] if error is None else [left, error], task.count)

    def adapt(self, pace: float) -> None:
        took = pace * self.per_task
        max_per_task = self._longest()
        if self.per_task > max_per_task:
            self.per_task = max_per_task
        elif 0 < took < self.short_task:
            self.per_task = min(2 * self.per_task, max_per_task)
        elif took > self.long_task:
            self.per_task = max(self.min_per_task, min(int(self.long_task / pace), self.per_task))

    def _longest(self) -> int:
        """How many datapoints a task may have at present."""
        max_per_task = min(self._max_per_task, int(self.max_bytes_per_task / (self.bytes_each or 1)))
        return max(self.min_per_task, max_per_task)

    # -- Workers that begin and end ------------------------------------------------------------------------------------

    def set_workers(self, num_taking: int, num_started: int) -> None:
        self._num_alive += num_started - self._num_started
        self._num_started = num_started
        self.num_taking = num_taking
        self.task_queue.let_take(num_taking)

    def lost(self, worker: int, error: BaseException) -> bool:
        self._num_alive -= 1
        taken = self._taken_by(worker)
        if not taken:
            return False
        # The worker died in the last one. Its results of the others may not have been sent: these tasks are repeated,
        # if a worker is left to do them.
        number = taken[-1] if self._num_alive else min(taken, key=lambda k: self.issued[k].order)
        partial = self._take_unfinished_of(worker, number)
        task = self.issued[number]
        self._finish(number, [*task.rest.results, *partial] if task.rest else partial, error)
        self.replaced(worker)
        # If the schedule is ordered and no worker is left for the tasks before this one, they would be waited for in
        # vain.
        return (
            not self._is_in_order or self._num_alive > 0 or all(k in self._done for k in range(self._due, task.order))
        )

    def _take_unfinished_of(self, worker: int, number: int) -> list[Any]:
        """Take out what a worker has sent of the task with this number, which it has not finished."""
        at, results = self._sending.get(worker, (None, []))
        if at == number:
            del self._sending[worker]
            return results
        return []

    def _taken_by(self, worker: int) -> list[int]:
        """The tasks that a worker has taken and not finished. The one that it has taken last comes last."""
        taken = [number for number, task in self.issued.items() if task.queued.taken_by == worker]
        last = self.task_queue.last_taken(worker)
        return sorted(taken, key=lambda number: number == last)

    def _rest_of(self, number: int, worker: int) -> _Rest:
        """What is left of a task in which a worker has ended, now that what it had sent was received."""
        task = self.issued[number]
        rest = task.rest = task.rest or _Rest(task.count)
        rest.results += self._take_unfinished_of(worker, number)
        return rest

    def replaced(self, worker: int) -> None:
        self._sending.pop(worker, None)
        # Tasks that are not taken are put back too: their token may have gone with the worker. A worker that reads a
        # second token drops it.
        for number, task in list(self.issued.items()):  # a copy: `_ask_again` gives tasks other numbers
            taken_by = task.queued.taken_by  # read once: another worker may take it at any time
            if task.rest is not None and (taken_by == worker or task.queued.may_have_begun(worker)):
                self._ask_again(number)
            elif taken_by in {worker, None}:
                task.queued.put_back(worker)

    # -- Workers that end in a datapoint -------------------------------------------------------------------------------

    def has_issued(self, task: int) -> bool:
        return task in self.issued

    def ended(self, worker: int, end: ItemEnd, position: int | None, *, sent_all: bool) -> EndedItem | None:
        """Record that a worker has ended, all of whose messages were received; before `lost` or `replaced`.

        Args:
            worker: The worker.
            end: How it has ended.
            position: Of the datapoint that it was making, in the part that it was asked for; None if unknown, or
                `NOT_WANTED`.
            sent_all: Whether it has sent everything that it had made.

        Returns:
            The datapoint that it was making; None if that is unknown, or if it was making none.
        """
        taken = self._taken_by(worker)
        # It was making nothing that is waited for: the task that it has taken last is done, or of an abandoned pass, or
        # another worker has taken it, too.
        if not taken or taken[-1] != self.task_queue.last_taken(worker):
            return None
        task = self.issued[taken[-1]]
        begin = 0 if task.rest is None else len(task.rest.results)
        rest = self._rest_of(taken[-1], worker)
        start = len(rest.results)  # what it was making comes from here on
        if position is None and not sent_all:
            # One on another machine may have begun a later task, and the results before that have gone with it.
            later = [number for number, other in self.issued.items() if other.queued.may_have_begun(worker)]
            if later or start + 1 < rest.stop:
                for suspect in (rest, *(self._rest_of(number, worker) for number in later)):
                    suspect.alone |= set(range(len(suspect.results), suspect.stop))
                    suspect.suspects.append(end)
                return None
        offset = start if position is None else begin + position
        if not start <= offset < rest.stop:  # it had made this one, and was making nothing
            return None
        index = self._indexes_of(task)[offset]
        explained = rest.suspects
        # An end that is explained only now does not count: another worker may just have been killed from outside, while
        # it happened to be at one of the many that were suspected.
        ends = self._ends[index] = (*self._ends.get(index, ()), end)
        rest.alone.add(offset)
        for other in self.issued.values():
            if other.rest is not None:
                # By identity: two deaths in the same way are equal.
                other.rest.suspects = [one for one in other.rest.suspects if not any(one is e for e in explained)]
        in_pass, position = divmod(index, self.length) if self.length else (0, index)
        return EndedItem(in_pass, position, ends, len(explained), taken[-1], offset)

    def leave_out(self, item: EndedItem, error: BaseException | None = None) -> None:
        task = self.issued[item.number]
        assert task.rest is not None, "a worker has ended in it"
        task.rest.left_out[item.offset] = error
        self._left_out[self._indexes_of(task)[item.offset]] = error

    def _ask_again(self, number: int) -> None:
        """Ask for the next part of a task; if nothing is left of it, it is done."""
        task = self.issued[number]
        assert task.rest is not None, "a worker has ended in it"
        results, alone, left_out = task.rest.results, task.rest.alone, task.rest.left_out
        while len(results) in left_out:
            if (error := left_out[len(results)]) is not None:
                self._finish(number, results, error)
                return
            results.append(HOLE)
        start = len(results)
        if start == task.count:
            self._finish(number, results, None)
            return
        limits = [k for k in (*alone, *left_out) if k > start]
        task.rest.stop = start + 1 if start in alone else min(limits, default=task.count)
        # Under another number: what is still on its way under the old one is ignored.
        del self.issued[number]
        task.queued.ask(self._next, start, task.rest.stop)
        self.issued[self._next] = task
        self._next += 1

    def stop(self) -> None:
        self.task_queue.stop()

    def close(self) -> None:
        self.issued, self._done, self._sending = {}, {}, {}
        self.task_queue.close()


# -- Schedules of a strict runner --------------------------------------------------------------------------------------


_MOST_FOR_A_NODE: Final = 4096  # indexes in a task, where a node asks for many
_MIN_AHEAD: Final = 50  # default number of datapoints ahead, per worker
_TASKS_AHEAD: Final = 3  # or this many tasks, if that is more


class IndexRanges(TaskSchedule):
    """Schedule of a strict runner over a flow with random access: a task is a range of indexes.

    Args:
        task_queue: From which the workers take tasks.
        num_workers: Number of workers.
        ahead: How many datapoints may be under way for each worker; None for as many as keep it busy.
        longest: How many indexes a task may have, if `ahead` is None and no node asks for more.
        grain: The number of indexes in a task should be a multiple of this.
        least: The number of indexes in a task should be at least this, except at the end of a pass, which is for all
            workers.
        ordered: Whether datapoints are handed out in the order of their indexes.
        bytes_per_worker: How many bytes may be under way for each worker, at least one datapoint; None for any number.
        length: Datapoints in a pass; None if passes never end.
    """

    def __init__(
        self,
        task_queue: TaskQueue,
        num_workers: int,
        ahead: int | None,
        *,
        longest: int,
        grain: int,
        ordered: bool,
        least: int = 1,
        bytes_per_worker: int | None = None,
        length: int | None = None,
    ) -> None:
        max_per_task = max(longest, min(least, _MOST_FOR_A_NODE)) if ahead is None else max(1, ahead // 2)
        super().__init__(task_queue, num_workers, max_per_task, ordered=ordered, length=length)
        self._bytes_per_worker = bytes_per_worker
        self._ahead = ahead
        self._grain = grain
        self.per_task = self.min_per_task = min(least, max_per_task)
        self._stop = 0  # the index after the last of the pass
        self._picked: NDArray[np.int64] | None = None  # the indexes themselves, if they are not consecutive

    def begin_pass(
        self, first: int, count: int | None, picked: NDArray[np.int64] | None = None, *, holes: bool = False
    ) -> None:
        """Begin a pass: `count` indexes from `first`, or endlessly many; positions in `picked`, if given.

        With `holes`, `HOLE` is handed out for datapoints that were dropped, and all in the order of the indexes.
        """
        self.begin(first)
        self.keeps_holes = holes
        self._picked = picked
        self._stop = sys.maxsize if count is None else first + count

    def begin(self, index: int = 0) -> None:
        self._stop = 0  # no tasks until `begin_pass` sets the end
        super().begin(index)

    def refill(self) -> None:
        self.task_queue.pump()
        ahead = self.ahead()
        while not self.all_issued:
            room = ahead * self.num_taking - self.under_way
            wanted = min(self._up_to_grain(self._size_of_next()), self._stop - self.index)
            # A range that is short for want of room is issued only if a worker may be idle.
            if room < 1 or (room < wanted and self.has_enough):
                return
            count = min(wanted, room)
            task_range = count if self._picked is None else self._picked[self.index : self.index + count]
            item = self.task_queue.encode(task_range, is_only_task=self.is_idle)
            if item is NO_ROOM or not self.issue([item], count):
                self.task_queue.drop()
                return
            self.under_way += count

    def ahead(self) -> int:
        """How many datapoints may be under way for each worker.

        A worker cannot be paused in the middle of a range: that could be the one for which all others wait. So with a
        limit in bytes, only as much is issued as may be under way if datapoints are as large as the most recent ones.
        """
        ahead = self._ahead or max(_MIN_AHEAD, _TASKS_AHEAD * self.per_task)
        if self._bytes_per_worker is None:
            return ahead
        if not self.bytes_each:
            return 1  # no datapoint has come whose size is known
        return max(1, min(ahead, int(self._bytes_per_worker / self.bytes_each)))

    def _size_of_next(self) -> int:
        if self.min_per_task == 1:
            return self.per_task
        share = -(-(self._stop - self.index) // self.num_taking)
        return min(self.per_task, max(share, -(-self.min_per_task // 4)))

    def _up_to_grain(self, count: int) -> int:
        """Round `count` up so that the next range begins at a multiple of the grain."""
        return count + -(self.index + count) % self._grain

    @property
    def all_issued(self) -> bool:
        return self.index >= self._stop

    def _indexes_of(self, task: _IssuedTask) -> Sequence[int]:
        if self._picked is None:
            return super()._indexes_of(task)
        picked: list[int] = self._picked[task.first : task.first + task.count].tolist()
        return picked


class OnePass(TaskSchedule):
    """Schedule of a strict runner over a flow without random access: its one worker makes whole passes.

    Datapoints are handed out as they arrive. If the worker dies, its successor repeats the pass, and the datapoints
    that were already received are skipped:

        begin_pass             PASS_ENDED
        ──────────► RECEIVING ────────────► exhausted
                     │      ▲
          replaced() │      │ as many datapoints as were received
                     ▼      │
                    SKIPPING

    A datapoint in which workers have ended twice cannot be left out: the pass is repeated up to it, and ends with an
    error.

    Args:
        task_queue: From which the worker takes its task.
        numbers: Numbers of the passes; they go on after those of the last schedule, if its worker was interrupted.
    """

    all_issued = True

    def __init__(self, task_queue: TaskQueue, numbers: Iterator[int] | None = None) -> None:
        super().__init__(task_queue, 1, 1, ordered=True)
        self._numbers = itertools.count() if numbers is None else numbers
        self._num_received = 0  # datapoints received of this pass
        self._to_skip = 0  # datapoints that a successor makes again
        self._stop = WHOLE  # position after the last datapoint that is asked for
        self._error: BaseException | None = None  # what is raised there
        self._parts: list[Any] = []  # lists of datapoints, and exceptions to raise
        self._nodes: Sequence[KeptInWorker] = ()  # what users' nodes keep

    def begin_pass(
        self,
        p: int,
        standalone: str = "",
        nodes: Sequence[KeptInWorker] = (),
        *,
        has_left: bool = False,
        repeated: bool = False,
    ) -> None:
        """Begin pass `p`.

        Args:
            p: Its number.
            standalone: That of its stream.
            nodes: What is known of users' nodes; at its end it is what they keep then.
            has_left: The pass before was left early.
            repeated: As that of its stream.
        """
        self.begin(p)
        self._nodes = nodes
        kept = [None if part.has_itself and not part.is_due else part.reported for part in nodes]
        is_due = any(part.is_due for part in nodes)
        task = PassTask(next(self._numbers), standalone, kept, is_due, has_left, repeated)
        is_issued = self.issue([self.task_queue.encode(task, is_only_task=True)], 1)
        assert is_issued, "an empty task queue has room"

    def begin(self, index: int = 0) -> None:
        self._num_received = self._to_skip = 0
        self._stop, self._error = WHOLE, None
        self._parts = []
        self._ends = {}
        super().begin(index)

    def issue_tasks(self) -> None:
        self.task_queue.pump()  # `begin_pass` has issued the only one

    def receive(self, message: Message, datapoints: list[Any], error: BaseException | None) -> None:
        if message.task not in self.issued:
            return
        count = len(datapoints)
        skipped = min(self._to_skip, count)
        self._to_skip -= skipped  # made again by a successor, and handed out before
        self._num_received += count - skipped
        if count > skipped:
            self._parts.append(list(present(datapoints[skipped:])))
        if error is not None:
            self._parts.append(error)
        if message.kind is Kind.PASS_ENDED:
            kept = json.loads(bytes(message.body[0])) if message.body else [{} for _ in self._nodes]
            try:
                report(self._nodes, kept)
            except NotReproducible as refused:
                self._parts.append(refused)
        if message.kind is Kind.PASS_ENDED or self._num_received == self._stop:
            self._end_pass()

    def _end_pass(self) -> None:
        for task in self.issued.values():
            task.queued.discard()
        self.issued = {}
        if self._error is not None:
            self._parts.append(self._error)

    def take(self) -> list[Any] | BaseException | None:
        return self._parts.pop(0) if self._parts else None

    @property
    def exhausted(self) -> bool:
        return not self.issued and not self._parts

    def lost(self, worker: int, error: BaseException) -> bool:
        return False

    def replaced(self, worker: int) -> None:
        self._to_skip = self._num_received
        for number in list(self.issued):
            task = self.issued.pop(number)
            task.queued.ask(self._next, 0, self._stop)
            self.issued[self._next] = task
            self._next += 1

    def ended(self, worker: int, end: ItemEnd, position: int | None, *, sent_all: bool) -> EndedItem | None:
        if position is None and sent_all:
            position = self._num_received
        # Before `_num_received`, a successor only repeats what has come, or the worker had sent this one and was making
        # nothing. From `_stop` on, nothing is asked for.
        if not self._taken_by(worker) or position is None or not self._num_received <= position < self._stop:
            return None
        ends = self._ends[position] = (*self._ends.get(position, ()), end)
        return EndedItem(self.index - 1, position, ends)

    def leave_out(self, item: EndedItem, error: BaseException | None = None) -> None:
        assert error is not None, "it cannot be left out"
        self._stop, self._error = item.position, error
        if self._num_received == self._stop:
            self._end_pass()


# -- Schedule of a map -------------------------------------------------------------------------------------------------


_NOTHING: Final = object()


class MapTasks(TaskSchedule):
    """Schedule of a map: which datapoints were read, and which of them were given to the workers.

    What is read becomes tasks:

        add()                      send(): enough for a task, or workers are short of them
        ─────► encoded, collected ────────────────────────────────────────────────────────► QUEUED, as above
          │            ▲
          ▼            │ results have come
         no room for its bytes: nothing more is read

    Args:
        task_queue: From which the workers take tasks.
        num_workers: Number of workers.
        buffer_size: How many datapoints may be under way.
        ordered: Whether results are handed out in the order in which their datapoints were read.
        continues: Whether a pass continues with what the last one has left.
        per_task: Number of datapoints in every task except the last of a pass; None to adapt it to the workers' speed.
        length: Datapoints in a pass, as far as indexes are concerned; None if passes never end.
    """

    def __init__(
        self,
        task_queue: TaskQueue,
        num_workers: int,
        buffer_size: int,
        *,
        ordered: bool,
        continues: bool,
        per_task: int | None = None,
        length: int | None = None,
    ) -> None:
        super().__init__(task_queue, num_workers, per_task or 1, ordered=ordered, length=length)
        self._is_fixed = per_task is not None
        self._buffer_size = buffer_size
        self._set_max_per_task()
        if per_task is not None:
            self.per_task = self.min_per_task = per_task
        self.continues = continues
        self._unencoded: Any = _NOTHING  # read, but not encoded for want of room
        self._collected: list[Any] = []  # encoded, for the next task
        self._ended = False  # the source is exhausted

    def set_workers(self, num_taking: int, num_started: int) -> None:
        super().set_workers(num_taking, num_started)
        self._set_max_per_task()

    def _set_max_per_task(self) -> None:
        if not self._is_fixed:
            self._max_per_task = max(1, self._buffer_size // (_TASKS_EACH * self.num_taking))
            self.per_task = min(self.per_task, self._max_per_task)

    def _longest(self) -> int:
        # As many tasks as are needed to fill the buffer, of about one size: each that is handed out then leaves room
        # for just another one, which is read in one piece.
        longest = super()._longest()
        if self._is_fixed:
            return longest
        num_tasks = -(-self._buffer_size // longest)
        return -(-self._buffer_size // num_tasks)

    def begin(self, index: int = 0) -> None:
        self._unencoded, self._collected, self._ended = _NOTHING, [], False
        super().begin(index)

    def begin_pass(self, index: int, *, holes: bool = False) -> None:
        """Begin a pass whose first datapoint has this index; `holes` as for `IndexRanges`."""
        self.begin(index)
        self.keeps_holes = holes

    def resume(self) -> None:
        """Begin a pass that continues with the work under way."""
        self._ended = False

    def has_room(self) -> bool:
        """Whether one more datapoint may be read."""
        return self.under_way < self._buffer_size and self._unencoded is _NOTHING

    def room_in_task(self) -> int:
        """How many datapoints may be read before a task is issued."""
        return max(1, min(self._buffer_size - self.under_way, self.per_task - len(self._collected)))

    def add_encoded(self, items: list[Any]) -> None:
        """Add datapoints that were read and encoded by the `plain_encoder` of the task queue."""
        self.under_way += len(items)
        self._collected += items
        if len(self._collected) >= self.per_task:
            self.send()

    def add(self, dp: Any) -> None:
        """Add a datapoint that was read."""
        self.under_way += 1
        self._unencoded = dp
        self._encode()

    @property
    def is_idle(self) -> bool:
        """Whether no result will come before more is read."""
        return self.under_way == self._num_in_no_task

    @property
    def _num_in_no_task(self) -> int:
        """How many datapoints were read, and are not in a task yet."""
        return len(self._collected) + (self._unencoded is not _NOTHING)

    def pause(self) -> None:
        """Pause reading: issue the collected datapoints as a task, if the workers are short of tasks."""
        if not (self.has_enough or self._is_fixed or self._have_long_tasks):
            self.send()

    @property
    def _have_long_tasks(self) -> bool:
        """Whether there is a task for each worker, and they are as long as tasks may be.

        Then a shorter one waits for more datapoints. Otherwise it would stay short for ever: where tasks fill the
        buffer, only the room of its own results is there when they have been handed out.
        """
        if len(self.issued) < self.num_taking:
            return False
        num_done = self._being_handed_out + sum(done.count for done in self._done.values())
        return self.under_way - self._num_in_no_task - num_done >= self.per_task * self.num_taking

    def send(self) -> None:
        """Issue the collected datapoints as a task, if there is room."""
        if self._collected and self.issue(self._collected, len(self._collected)):
            self._collected = []

    def end(self) -> None:
        """Record that the source is exhausted."""
        self._ended = True

    def _encode(self) -> None:
        try:
            item = self.task_queue.encode(self._unencoded, is_only_task=False)
            if item is NO_ROOM:
                self.send()
                if self._collected or not self.is_idle:
                    return  # their memory will be freed
                item = self.task_queue.encode(self._unencoded, is_only_task=True)
        except Exception as error:
            # Before `_unencoded` is cleared: where datapoints are paired with indexes, it holds the index.
            index = self.index + len(self._collected) if self.index < PAIRED else self._unencoded[0]
            self._unencoded = _NOTHING
            self.under_way -= 1
            error.add_note(
                f"the datapoint at index {index} of the input cannot be sent to a worker. "
                "Give out arrays, numbers, text and containers of them, or use MultiThreadMapData, which sends nothing"
            )
            raise
        self._unencoded = _NOTHING
        self._collected.append(item)
        if len(self._collected) >= self.per_task:
            self.send()

    def refill(self) -> None:
        self.task_queue.pump()
        if self._unencoded is not _NOTHING:
            self._encode()
        if len(self._collected) >= self.per_task or self._ended:
            self.send()
        else:
            self.pause()

    @property
    def all_issued(self) -> bool:
        return self._ended and not self._collected and self._unencoded is _NOTHING

    @property
    def is_full(self) -> bool:
        return not self._ended and not self.has_room()

    def _indexes_of(self, task: _IssuedTask) -> Sequence[int]:
        if task.first < PAIRED:
            return super()._indexes_of(task)
        return [index for index, _ in task.queued.datapoints()]

    def close(self) -> None:
        self._unencoded, self._collected = _NOTHING, []
        super().close()
