"""The consumer's books of a map: what was read, and what of it was given to the workers.

Guarantees, besides those of `TaskSchedule`:

- At most `buffer_size` datapoints are read and not yet handed out, those that wait for a slower one included.
- What the tray has no room for is tried again when results have come; it has room for whatever is alone in it.

What comes of the datapoints that workers send, between the engine, which hears them, and the consumer's loop.

A runner hands them out as they come; a map has asked for each of them, and knows which are still owed.

Tasks that workers were asked for: which are not done, what came of those that are, and what is handed out next.

Guarantees:

- Every datapoint that was asked for is handed out once, unless it was dropped: a result for a task that is done, or
  that belongs to a pass broken off, is ignored.
- With `ordered`, in the order in which they were asked for; an exception comes in its place, after all before it.
- Nothing here waits.

The consumer's books of a strict runner: which indexes its workers were asked for, or which pass.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.channel.task_queue import Slot, TaskQueue
from dataflow.codec.message_layout import NO_ROOM
from dataflow.datapoint import present
from dataflow.engine.task_headers import END, Failed, Mark

__all__ = ["IndexRanges", "MapTasks", "MixedSchedule", "OnePass", "Schedule", "TaskSchedule"]


# -- What comes of the datapoints that workers send, between the engine, which hears them, and the … -------------------


class Schedule(Protocol):
    """The engine's books of datapoints. All is called under the engine's lock."""

    def open(self) -> None:
        """The workers were started."""

    def heard(self, worker: int, datapoints: list[Any], error: BaseException | None, nbytes: int = 0) -> int:
        """Datapoints of `nbytes` have come; after them, `error` instead of one that could not be read. How many."""

    def ready(self) -> list[Any] | BaseException | None:
        """What comes next, if it is there: datapoints, or what is to be raised. Asked when all before is handed out."""

    def handed_out(self) -> None:
        """What `ready` gave last has been handed out."""

    def lost(self, worker: int, error: BaseException) -> bool:
        """A worker has ended, and nobody takes its place. True if `ready` will give `error` in its turn."""

    def replaced(self, worker: int) -> None:
        """A worker has ended, and another takes its place under the same number."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more can come, and all is well."""

    def stop(self) -> None:
        """Tell workers that wait for something of ours to end."""

    def close(self) -> None:
        """Let go of everything. Idempotent."""


class MixedSchedule:
    """Of a runner: datapoints are handed out in the order in which they come."""

    exhausted = False  # a runner's workers say so themselves

    def __init__(self) -> None:
        self._ready: deque[list[Any] | BaseException] = deque()

    def open(self) -> None:
        """Nothing goes to the workers."""

    def heard(self, worker: int, datapoints: list[Any], error: BaseException | None, nbytes: int = 0) -> int:
        if datapoints:
            self._ready.append(datapoints)
        if error is not None:
            self._ready.append(error)
        return len(datapoints)

    def ready(self) -> list[Any] | BaseException | None:
        return self._ready.popleft() if self._ready else None

    def handed_out(self) -> None:
        """Nobody counts them."""

    def lost(self, worker: int, error: BaseException) -> bool:
        return False

    def replaced(self, worker: int) -> None:
        """What it had sent is handed out; the other makes its own."""

    def stop(self) -> None:
        """Nobody waits for us."""

    def close(self) -> None:
        self._ready.clear()


# -- Tasks that workers were asked for: which are not done, what came of those that are, and what is handed … ----------


_FADING: Final = 0.9  # how much of the size of datapoints still counts at the next message


@dataclass(slots=True)
class _Asked:
    """A task that is not done."""

    slot: Slot
    first: int  # index of its first datapoint
    count: int


@dataclass(slots=True)
class _Done:
    """What came of a task."""

    results: list[Any] | None  # None: handed out, and the error is left
    error: BaseException | None
    count: int  # datapoints that were asked for


class TaskSchedule:
    """The desk of whatever gives tasks to its workers. What the tasks are is left to those that derive from it.

    Args:
        task_queue: From which the workers take.
        num_workers: How many they are.
        max_per_task: How many datapoints a task may have.
        ordered: Whether results are handed out in the order in which they were asked for.
    """

    short_task = 5e-3  # seconds; tasks that are done faster may be longer: their way there and back would count
    long_task = 20e-3
    max_bytes_per_task = 6 << 20  # of results: the fewer are in use at a time, the more of them stay in the caches

    def __init__(self, task_queue: TaskQueue, num_workers: int, max_per_task: int, *, ordered: bool) -> None:
        self.task_queue = task_queue
        self.per_task = 1  # datapoints, at present
        self.min_per_task = 1
        self.index = 0  # of the first datapoint that is not in a task
        self.under_way = 0  # datapoints asked for, or about to be, and not handed out
        self.keeps_holes = False  # whether they are handed out
        self._ordered = ordered
        self.bytes_each = 0.0  # of results, at present
        self._num_alive = num_workers
        self._enough = 2 * num_workers  # tasks that keep all of them busy
        self._max_per_task = max_per_task
        self.asked: dict[int, _Asked] = {}  # by number, in the order of the numbers
        self._done: dict[int, _Done] = {}  # by number, in the order in which they were done
        self._next = 0  # number of the next task
        self._due = 0  # number of the task that is handed out next, if ordered
        self._in_hand = 0  # of what is under way: what `ready` gave last
        self.current: dict[int, int] = {}  # by worker: of which task it has sent results
        self._partial: dict[int, list[Any]] = {}  # by worker: these results

    # -- what is asked for ---------------------------------------------------------------------------------------------

    def begin(self, index: int = 0) -> None:
        """A pass begins, with this index: what is under way belongs to one that was broken off."""
        for asked in self.asked.values():
            asked.slot.discard()
        self.task_queue.drop()
        self.asked, self._done = {}, {}
        self._due = self._next
        self.under_way = self._in_hand = 0
        self.index = index

    def ask(self, encoded: Sequence[Any], count: int) -> bool:
        """Put the next task into the tray: `count` datapoints. False where there is no room for it at present."""
        slot = self.task_queue.put(self._next, self.index, encoded, alone=not self.asked)
        if slot is None:
            return False
        self.asked[self._next] = _Asked(slot, self.index, count)
        self._next += 1
        self.index += count
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no task is left to be done."""
        return not self.asked

    @property
    def has_enough(self) -> bool:
        """Whether there are tasks for everybody."""
        return len(self.asked) >= self._enough

    def refill(self) -> None:
        """Ask for more, as far as there is room."""
        raise NotImplementedError

    @property
    def read_all(self) -> bool:
        """Whether all of the pass was asked for."""
        raise NotImplementedError

    # -- what has come back --------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.task_queue.open()

    def heard(self, worker: int, datapoints: list[Any], error: BaseException | None, nbytes: int = 0) -> int:
        mark = datapoints.pop(0) if datapoints and type(datapoints[0]) is Mark else None
        if datapoints:  # one large datapoint among small ones is not forgotten at once
            self.bytes_each = max(nbytes / len(datapoints), _FADING * self.bytes_each)
        if mark is not None:
            self.current[worker], self._partial[worker] = mark.number, []
            self.adapt(mark.pace)
        number = self.current.get(worker, -1)
        asked = self.asked.get(number)
        if asked is None:
            return len(datapoints)  # done before, or of a pass broken off
        partial = self._partial[worker]
        partial += datapoints
        placed = False
        if partial and type(partial[-1]) is Failed:
            failed = partial.pop()
            error, placed = failed.unpacked(), failed.placed
        if error is not None and not placed:
            error.add_note(f"it was made of the datapoint at index {asked.first + len(partial)} of the input")
        if error is not None or len(partial) == asked.count:
            self._finish(number, self._partial.pop(worker), error)
        return len(datapoints)

    def ready(self) -> list[Any] | BaseException | None:
        self.refill()
        number = self._due if self._ordered else next(iter(self._done), -1)
        done = self._done.get(number)
        if done is None:
            return None
        if done.results is not None:
            results, done.results = done.results, None
            if done.error is None:
                self._handing_out(number)
            return results
        self._handing_out(number)
        return done.error

    def _handing_out(self, number: int) -> None:
        self._in_hand += self._done.pop(number).count
        self._due = number + 1

    def handed_out(self) -> None:
        self.under_way -= self._in_hand
        self._in_hand = 0

    @property
    def exhausted(self) -> bool:
        return self.read_all and not self.asked and not self._done

    def _finish(self, number: int, results: Sequence[Any], error: BaseException | None) -> None:
        asked = self.asked.pop(number)
        asked.slot.discard()
        self._done[number] = _Done(list(results if self.keeps_holes else present(results)), error, asked.count)

    def adapt(self, pace: float) -> None:
        took = pace * self.per_task
        most = min(self._max_per_task, int(self.max_bytes_per_task / (self.bytes_each or 1)))
        most = max(self.min_per_task, most)
        if self.per_task > most:
            self.per_task = most
        elif 0 < took < self.short_task:
            self.per_task = min(2 * self.per_task, most)
        elif took > self.long_task:
            self.per_task = max(self.min_per_task, min(int(self.long_task / pace), self.per_task))

    # -- workers that end ----------------------------------------------------------------------------------------------

    def lost(self, worker: int, error: BaseException) -> bool:
        self._num_alive -= 1
        taken = [number for number, asked in self.asked.items() if asked.slot.taken_by == worker]
        if not taken:
            return False
        # It took them in their order, and died of the last. What it had sent of the others may not have left it: they
        # are done again, if anybody is left to do them.
        number = taken[-1 if self._num_alive else 0]
        partial = self._partial.pop(worker, []) if self.current.get(worker) == number else []
        self._finish(number, partial, error)
        self.replaced(worker)
        # If it is ordered, and nobody is left to do what comes before, it would be waited for in vain.
        return not self._ordered or self._num_alive > 0 or all(k in self._done for k in range(self._due, number))

    def replaced(self, worker: int) -> None:
        self.current.pop(worker, None)
        self._partial.pop(worker, None)
        # What nobody has taken, too: the token may have gone with the worker. Whoever finds two drops one.
        for asked in self.asked.values():
            if asked.slot.taken_by in {worker, None}:
                asked.slot.put_back()

    def stop(self) -> None:
        self.task_queue.stop()

    def close(self) -> None:
        self.asked, self._done, self._partial = {}, {}, {}
        self.task_queue.close()


# -- The consumer's books of a strict runner: which indexes its workers were asked for, or which pass ------------------


_MIN_AHEAD: Final = 50  # datapoints for each worker, where nobody says how many
_TASKS_AHEAD: Final = 3  # or so many tasks, if that is more


class IndexRanges(TaskSchedule):
    """The desk of a strict runner over a flow that can be addressed: a task is a span of indexes.

    Args:
        task_queue: From which the workers take.
        num_workers: How many they are.
        ahead: How many datapoints may be under way for each; None for as many as keep it busy.
        grain: Of how many indexes a span should be a multiple.
        ordered: Whether datapoints are handed out in the order of their indexes.
    """

    max_per_task: ClassVar[int] = 4096

    def __init__(
        self, task_queue: TaskQueue, num_workers: int, ahead: int | None, *, grain: int, ordered: bool
    ) -> None:
        most = self.max_per_task if ahead is None else max(1, ahead // 2)
        super().__init__(task_queue, num_workers, most, ordered=ordered)
        self._num_workers = num_workers
        self._ahead = ahead
        self._grain = grain
        self._stop = 0  # the index after the last of the pass
        self._picked: NDArray[np.int64] | None = None  # the indexes themselves, where they do not follow one another

    def begin_pass(self, first: int, count: int | None, picked: NDArray[np.int64] | None = None) -> None:
        """A pass begins: `count` indexes from `first`, or endlessly many; of those `picked`, if they are given."""
        self.begin(first)
        self._picked = picked
        self._stop = sys.maxsize if count is None else first + count

    def begin(self, index: int = 0) -> None:
        self._stop = 0  # nothing is wanted
        super().begin(index)

    def refill(self) -> None:
        self.task_queue.pump()
        ahead = self.ahead()
        while not self.read_all:
            room = ahead * self._num_workers - self.under_way
            wanted = min(self._whole(self.per_task), self._stop - self.index)
            # A short span, for want of room, is asked for only if somebody may have nothing to do.
            if room < 1 or (room < wanted and self.has_enough):
                return
            count = min(wanted, room)
            span = count if self._picked is None else self._picked[self.index : self.index + count]
            item = self.task_queue.encode(span, alone=self.is_idle)
            if item is NO_ROOM or not self.ask([item], count):
                self.task_queue.drop()
                return
            self.under_way += count

    def ahead(self) -> int:
        """How many datapoints may be under way for each worker."""
        return self._ahead or max(_MIN_AHEAD, _TASKS_AHEAD * self.per_task)

    def _whole(self, count: int) -> int:
        """`count`, or a little more, so that the next span begins with a whole grain."""
        return count + -(self.index + count) % self._grain

    @property
    def read_all(self) -> bool:
        return self.index >= self._stop


class OnePass(TaskSchedule):
    """The desk of a strict runner over a flow that cannot be addressed: its one worker makes whole passes.

    Datapoints are handed out as they come. If the worker dies, its successor makes the pass anew, and what was handed
    out of it is left out.
    """

    read_all = True

    def __init__(self, task_queue: TaskQueue) -> None:
        super().__init__(task_queue, 1, 1, ordered=True)
        self._come = 0  # datapoints of this pass
        self._to_skip = 0  # those that a successor makes again
        self._parts: list[Any] = []  # lists of datapoints, and what is to be raised

    def begin_pass(self, p: int) -> None:
        """Pass `p` begins."""
        self.begin(p)
        asked = self.ask([self.task_queue.encode(1, alone=True)], 1)
        assert asked, "an empty tray has room"

    def begin(self, index: int = 0) -> None:
        self._come = self._to_skip = 0
        self._parts = []
        super().begin(index)

    def refill(self) -> None:
        self.task_queue.pump()

    def heard(self, worker: int, datapoints: list[Any], error: BaseException | None, nbytes: int = 0) -> int:
        if datapoints and type(datapoints[0]) is Mark:
            self.current[worker] = datapoints[0].number
            del datapoints[0]
        number = self.current.get(worker, -1)
        if number not in self.asked:
            return len(datapoints)
        over = False
        if datapoints and datapoints[-1] is END:
            datapoints.pop()
            over = True
        elif datapoints and type(datapoints[-1]) is Failed:
            error = datapoints.pop().unpacked()
        count = len(datapoints)
        skipped = min(self._to_skip, count)
        self._to_skip -= skipped
        self._come += count - skipped
        if count > skipped:
            self._parts.append(list(present(datapoints[skipped:])))
        if error is not None:
            self._parts.append(error)
        if over:
            self.asked.pop(number).slot.discard()
        return count

    def ready(self) -> list[Any] | BaseException | None:
        self.refill()
        return self._parts.pop(0) if self._parts else None

    @property
    def exhausted(self) -> bool:
        return not self.asked and not self._parts

    def lost(self, worker: int, error: BaseException) -> bool:
        return False

    def replaced(self, worker: int) -> None:
        self._to_skip = self._come
        super().replaced(worker)


# -- The consumer's books of a map: what was read, and what of it was given to the workers -----------------------------


_NOTHING: Final = object()


class MapTasks(TaskSchedule):
    """The desk of a map.

    Args:
        task_queue: From which the workers take.
        num_workers: How many they are.
        buffer_size: How many datapoints may be under way.
        ordered: Whether results are handed out in the order in which their datapoints were read.
        continues: Whether one pass goes on with what the last one has left.
        per_task: How many datapoints every task has, but for the last of a pass; None for what pays.
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
    ) -> None:
        super().__init__(task_queue, num_workers, per_task or max(1, buffer_size // (2 * num_workers)), ordered=ordered)
        self._is_fixed = per_task is not None
        if per_task is not None:
            self.per_task = self.min_per_task = per_task
        self.continues = continues
        self._buffer_size = buffer_size
        self._held: Any = _NOTHING  # read, and not encoded, as there was no room
        self._collected: list[Any] = []  # encoded, for the next task
        self._ended = False  # the source has no more

    def begin(self, index: int = 0) -> None:
        self._held, self._collected, self._ended = _NOTHING, [], False
        super().begin(index)

    def begin_pass(self, index: int) -> None:
        """A pass begins, of which the first datapoint has this index."""
        self.begin(index)

    def resume(self) -> None:
        """A pass begins, and goes on with what is under way."""
        self._ended = False

    def has_room(self) -> bool:
        """Whether one more datapoint may be read."""
        return self.under_way < self._buffer_size and self._held is _NOTHING

    def room_in_task(self) -> int:
        """How many datapoints may be read before a task is given."""
        return max(1, min(self._buffer_size - self.under_way, self.per_task - len(self._collected)))

    def plain_encoder(self) -> Any:
        """What encodes many datapoints at once, while they come as the last one was; else None."""
        return self.task_queue.plain_encoder()

    def give_encoded(self, items: list[Any]) -> None:
        """These were read and encoded so."""
        self.under_way += len(items)
        self._collected += items
        if len(self._collected) >= self.per_task:
            self.send()

    def give(self, dp: Any) -> None:
        """A datapoint was read."""
        self.under_way += 1
        self._held = dp
        self._encode()

    def pause(self) -> None:
        """Nothing more is read for now: what is collected does not wait for more, if the workers want it."""
        if not self.has_enough and not self._is_fixed:
            self.send()

    def send(self) -> None:
        """Give the workers what is collected, if there is room for it."""
        if self._collected and self.ask(self._collected, len(self._collected)):
            self._collected = []

    def end(self) -> None:
        """The source has no more."""
        self._ended = True

    def _encode(self) -> None:
        try:
            item = self.task_queue.encode(self._held, alone=False)
            if item is NO_ROOM:
                self.send()
                if self._collected or not self.is_idle:
                    return  # whose memory will be free
                item = self.task_queue.encode(self._held, alone=True)
        except Exception as error:
            self._held = _NOTHING
            self.under_way -= 1
            error.add_note(
                f"the datapoint at index {self.index + len(self._collected)} of the input cannot be sent to a worker. "
                "Give out arrays, numbers, text and containers of them, or use MultiThreadMapData, which sends nothing"
            )
            raise
        self._held = _NOTHING
        self._collected.append(item)
        if len(self._collected) >= self.per_task:
            self.send()

    def refill(self) -> None:
        self.task_queue.pump()
        if self._held is not _NOTHING:
            self._encode()
        if len(self._collected) >= self.per_task or self._held is not _NOTHING or self._ended:
            self.send()
        else:
            self.pause()

    @property
    def read_all(self) -> bool:
        return self._ended and not self._collected and self._held is _NOTHING

    def close(self) -> None:
        self._held, self._collected = _NOTHING, []
        super().close()
