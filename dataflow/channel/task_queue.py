"""From the consumer to its workers: a tray of tasks, from which whoever is idle takes the next.

Guarantees:

- Work is taken, not dealt: a slow task holds up nobody but its own worker. An idle worker sleeps in the kernel.
- There is no lock that a killed worker could leave taken. Between processes a task stands in shared memory, and a token
  of 16 bytes in a pipe that all workers read: the kernel gives each token to one reader, whole.
- A worker claims the task that it has taken. After its death whatever it had claimed is put back; a
  token that it may have taken with it, before it wrote, is written once more, and found by a worker that drops it if
  the task was taken meanwhile. So a task may be done twice, and never not at all.
- What a worker gets is its own: it may change it, and keep it. The task stays as it was, to be done again.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dataflow.codec.message_layout import NO_ROOM
from dataflow.descriptors import Descriptor

__all__ = ["TaskReader", "PlainEncoder", "Slot", "Task", "ThreadTaskQueue", "TaskQueue", "TaskQueuePort"]


PlainEncoder = Callable[[Iterator[Any], Callable[[Any], object]], Any]


@dataclass(slots=True)
class Task:
    """What a worker has taken: a chunk of datapoints, under a number.

    Attributes:
        number: Of the task.
        first: Index of its first datapoint; the others follow.
        datapoints: The datapoints.
    """

    number: int
    first: int
    datapoints: Sequence[Any]


class TaskReader(Protocol):
    """A worker's end."""

    def take(self) -> Task | None:
        """The next task; waits for one. None when the consumer wants no more."""

    def is_wanted(self) -> bool:
        """Whether the consumer still wants the task that was taken last."""

    def close(self) -> None:
        """Close the end."""


class TaskQueuePort(Protocol):
    """A worker's end, as a description; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""

    def open(self) -> TaskReader:
        """Open the end, in the worker."""


class Slot(Protocol):
    """A task in the tray, as the consumer sees it."""

    @property
    def taken_by(self) -> int | None:
        """The worker that has taken it; None while it waits."""

    def put_back(self) -> None:
        """Let somebody take it: for the first time, or again."""

    def discard(self) -> None:
        """It is done, or wanted no more: free its memory. Whoever is about to take it does not."""


class TaskQueue(Protocol):
    """The consumer's end. One thread at a time."""

    def port(self, worker: int) -> TaskQueuePort:
        """The description for one worker."""

    def open(self) -> None:
        """Open the consumer's end; to be called after the workers were started."""

    def encode(self, dp: Any, *, alone: bool) -> Any:
        """One datapoint, as it is now; `NO_ROOM` if there is none for it at present, which cannot be if it is alone."""

    def plain_encoder(self) -> PlainEncoder | None:
        """What encodes many datapoints in a row, as `Encoder.encode_plain` does; None where that is not to be tried."""

    def put(self, number: int, first: int, encoded: Sequence[Any], *, alone: bool) -> Slot | None:
        """Make a task of all that was encoded since the last one. None where there is no room at present."""

    def drop(self) -> None:
        """Forget what was encoded since the last task."""

    def pump(self) -> None:
        """Go on with what could not be done without waiting."""

    def stop(self) -> None:
        """Tell the workers that there is nothing more to take."""

    def close(self) -> None:
        """Close what this process holds. Idempotent."""


def _as_they_are(datapoints: Iterator[Any], append: Callable[[Any], object]) -> Any:
    for dp in datapoints:
        append(dp)
    return NO_ROOM


class ThreadTaskQueue:
    """Between threads: the datapoints themselves, in a queue."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_ThreadSlot | None] = queue.SimpleQueue()

    def port(self, worker: int) -> _ThreadInbox:
        return _ThreadInbox(self._waiting, worker)

    def open(self) -> None:
        """Nothing is held by one side alone."""

    def encode(self, dp: Any, *, alone: bool) -> Any:
        return dp

    def plain_encoder(self) -> PlainEncoder:
        return _as_they_are

    def put(self, number: int, first: int, encoded: Sequence[Any], *, alone: bool) -> _ThreadSlot:
        slot = _ThreadSlot(self._waiting, Task(number, first, tuple(encoded)))
        slot.put_back()
        return slot

    def drop(self) -> None:
        """Nothing was copied."""

    def pump(self) -> None:
        """Nothing is ever in the way."""

    def stop(self) -> None:
        self._waiting.put(None)

    def close(self) -> None:
        """Nothing is held."""


class _ThreadSlot:
    def __init__(self, waiting: queue.SimpleQueue[_ThreadSlot | None], task: Task) -> None:
        self._waiting = waiting
        self.task: Task | None = task
        self.taken_by: int | None = None

    def put_back(self) -> None:
        self.taken_by = None
        self._waiting.put(self)

    def discard(self) -> None:
        self.task = None


class _ThreadInbox:
    def __init__(self, waiting: queue.SimpleQueue[_ThreadSlot | None], worker: int) -> None:
        self._waiting = waiting
        self._worker = worker
        self._slot: _ThreadSlot | None = None  # of the task that was taken last

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open(self) -> _ThreadInbox:
        return self

    def take(self) -> Task | None:
        while (slot := self._waiting.get()) is not None:
            task = slot.task  # read once: the consumer may discard it at any time
            if task is not None and slot.taken_by is None:
                slot.taken_by = self._worker
                self._slot = slot
                return task
        self._waiting.put(None)  # for the next thread
        return None

    def is_wanted(self) -> bool:
        return self._slot is not None and self._slot.task is not None

    def close(self) -> None:
        """Nothing is held."""
