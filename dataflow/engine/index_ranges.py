"""The consumer's books of a strict runner: which indexes its workers were asked for, or which pass."""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.channel.task_queue import TaskQueue
from dataflow.codec.message_layout import NO_ROOM
from dataflow.datapoint import present
from dataflow.engine.task_headers import END, Failed, Mark
from dataflow.engine.task_schedule import TaskSchedule

__all__ = ["OnePass", "IndexRanges"]

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
