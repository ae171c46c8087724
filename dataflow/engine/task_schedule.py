"""Tasks that workers were asked for: which are not done, what came of those that are, and what is handed out next.

Guarantees:

- Every datapoint that was asked for is handed out once, unless it was dropped: a result for a task that is done, or
  that belongs to a pass broken off, is ignored.
- With `ordered`, in the order in which they were asked for; an exception comes in its place, after all before it.
- Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dataflow.channel.task_queue import Slot, TaskQueue
from dataflow.datapoint import present
from dataflow.engine.task_headers import Failed, Mark

__all__ = ["TaskSchedule"]

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
