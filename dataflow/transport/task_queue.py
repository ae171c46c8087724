"""Task queue from the consumer to its workers: each idle worker takes the next task.

Guarantees:

- Workers pull tasks: a slow task delays only its own worker. An idle worker sleeps in the kernel.
- There is no lock that a killed worker could leave taken. Between processes, a task is in shared memory, and a token of
  16 bytes in a pipe that all workers read: the kernel gives each token to one reader, whole.
- Tasks run at least once. A worker claims the task that it has taken, and after its death all its claimed tasks are put
  back. A worker that was killed between reading a token and claiming the task takes the token with it, so the tokens of
  unclaimed tasks are written once more; a worker that reads such a token drops it if the task was taken in the
  meantime.
- A worker gets its own copy, which it may change and keep. The task itself stays unchanged, so that it can be repeated,
  whole or in parts. A part that is asked for has a number of its own: results under an earlier one are not of it.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from dataflow.protocol.failures import add_note
from dataflow.system.descriptors import Descriptor
from dataflow.transport.array_codec import ArrayDecoder, Undecodable
from dataflow.transport.message_layout import NO_ROOM

__all__ = [
    "PAIRED",
    "PlainEncoder",
    "QueuedTask",
    "Task",
    "TaskQueue",
    "TaskQueuePort",
    "TaskReader",
    "ThreadTaskQueue",
    "WHOLE",
    "decode_task",
]


PlainEncoder = Callable[[Iterator[Any], MutableSequence[Any]], Any]

WHOLE: Final = 1 << 62
"""The `stop` of a task that is not a part: more than the datapoints of any."""


PAIRED: Final = 1 << 62
"""`Task.first` of a pass whose datapoints are pairs (index, datapoint)."""


@dataclass(slots=True)
class Task:
    """A task as taken by a worker: a numbered chunk of datapoints.

    Attributes:
        number: Number of the task.
        first: Index of its first datapoint; the others follow. From `PAIRED` on, each datapoint is a pair with its
            index, in any order.
        datapoints: The datapoints.
        start: Position of the first that is asked for.
        stop: Position after the last; a large number for all.
    """

    number: int
    first: int
    datapoints: Sequence[Any]
    start: int = 0
    stop: int = WHOLE


def decode_task(decoder: ArrayDecoder, body: Sequence[Any], first: int) -> list[Any]:
    """Decode the datapoints of a task, whose first one has the index `first`, in the worker.

    Raises:
        Exception: Unpickling a datapoint has raised it; a note says which one.
    """
    try:
        return decoder.decode(0, body)
    except Undecodable as broken:
        error = broken.__cause__ or broken
        which = "a datapoint" if first >= PAIRED else f"the datapoint at index {first + len(broken.before)}"
    add_note(
        error,
        f"{which} of the input was sent to a worker, but cannot be unpickled there. Let the input yield arrays, "
        "numbers, text and containers of them",
    )
    raise error


class TaskReader(Protocol):
    """The worker's end."""

    def may_take(self) -> bool:
        """Whether this worker is one of those that take tasks."""

    def wait_until_may_take(self) -> bool:
        """Wait until this worker is one of those that take tasks. Return False if the consumer has no more."""

    def is_full(self) -> bool:
        """Whether the consumer gives out no further tasks before it has taken results."""

    def receive(self) -> Task | None:
        """Wait for the next task. Return None when the consumer has no more."""

    def is_wanted(self) -> bool:
        """Return True while the consumer still wants the result of the last task taken."""


class TaskQueuePort(Protocol):
    """Description of a worker's end; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return ()

    def open(self) -> TaskReader:
        """Open the end, in the worker."""


class QueuedTask(Protocol):
    """A queued task, as the consumer sees it."""

    @property
    def taken_by(self) -> int | None:
        """The worker that has taken the task; None while it is waiting."""

    def may_have_begun(self, worker: int) -> bool:
        """Whether `worker`, although it is not known to have taken the task, may have done so."""

    def put_back(self, dead: int | None = None) -> None:
        """Make the task available: for the first time, or again.

        Args:
            dead: A worker that has died. If it has taken the task, it is free; a worker that has taken it just now
                keeps it, and others drop the second token.
        """

    def datapoints(self) -> Sequence[Any]:
        """Read the datapoints of the task."""

    def ask(self, number: int, start: int, stop: int) -> None:
        """Make a part of the task available, under another number, before all that wait; nothing else of it is wanted.

        So a datapoint in which workers end does so twice before others can.
        """

    def discard(self) -> None:
        """Free the memory of a task that is done or no longer wanted. A worker about to take it will skip it."""


class TaskQueue(Protocol):
    """The consumer's end. One thread at a time."""

    def port(self, worker: int) -> TaskQueuePort:
        """The description for one worker."""

    def open(self) -> None:
        """Open the consumer's end. Called after the workers were started."""
        return

    def let_take(self, num_workers: int) -> None:
        """Let only the first `num_workers` workers take tasks; at first all may. Others finish what they have taken."""
        return

    def set_full(self, is_full: bool) -> None:
        """Tell the workers whether there are no further tasks until results are taken: why they wait, in statistics."""
        return

    def encode(self, dp: Any, *, is_only_task: bool) -> Any:
        """Encode a snapshot of one datapoint. Return `NO_ROOM` if there is no room at present.

        A datapoint that is alone always has room.
        """

    def plain_encoder(self) -> PlainEncoder | None:
        """Return a function that encodes many datapoints in a row, as `Encoder.encode_plain` does.

        None if it should not be tried.
        """

    def put(
        self, number: int, first: int, encoded: Sequence[Any], *, is_only_task: bool, hold: bool = False
    ) -> QueuedTask | None:
        """Queue a task of everything encoded since the last one. Return None if there is no room at present.

        With `hold`, no worker can take it before `put_back` or `ask` is called.
        """

    def drop(self) -> None:
        """Discard what was encoded since the last task."""
        return

    def last_taken(self, worker: int) -> int | None:
        """The number of the task that `worker` has taken last; None if it has taken none.

        It may be one that another worker has taken, too.
        """

    def pump(self) -> None:
        """Continue operations that were postponed to avoid blocking."""
        return

    def stop(self) -> None:
        """Signal to the workers that there are no more tasks."""
        return

    def close(self) -> None:
        """Close what this process holds. Idempotent."""
        return


def _append_all(datapoints: Iterator[Any], encoded: MutableSequence[Any]) -> Any:
    encoded.extend(datapoints)
    return NO_ROOM


class ThreadTaskQueue(TaskQueue):
    """Task queue between threads, which holds the datapoints themselves. Nothing is copied or postponed.

    Attributes:
        waiting: Tasks that no thread has taken; None for each thread that is to end.
        asked: Those of them that come first: of each, a part was asked for.
        num_taking: How many of the threads take tasks.
        is_full: Whether there are no further tasks until results are taken.
        is_stopped: Whether there are no more tasks.
        changed: Notified when `num_taking` or `is_stopped` changes.
        claims: Held to take a task.
        last: By worker: the number of the task that it has taken last.
    """

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[_ThreadQueuedTask | None] = queue.SimpleQueue()
        self.asked: deque[_ThreadQueuedTask] = deque()
        self.num_taking = sys.maxsize
        self.is_full = False
        self.is_stopped = False
        self.changed = threading.Condition()
        self.claims = threading.Lock()
        self.last: dict[int, int] = {}

    def port(self, worker: int) -> _ThreadTaskReader:
        return _ThreadTaskReader(self, worker)

    def let_take(self, num_workers: int) -> None:
        with self.changed:
            self.num_taking = num_workers
            self.changed.notify_all()

    def set_full(self, is_full: bool) -> None:
        self.is_full = is_full

    def encode(self, dp: Any, *, is_only_task: bool) -> Any:
        return dp

    def plain_encoder(self) -> PlainEncoder:
        return _append_all

    def put(
        self, number: int, first: int, encoded: Sequence[Any], *, is_only_task: bool, hold: bool = False
    ) -> _ThreadQueuedTask:
        queued = _ThreadQueuedTask(self, Task(number, first, tuple(encoded)))
        if not hold:
            queued.put_back()
        return queued

    def last_taken(self, worker: int) -> int | None:
        return self.last.get(worker)

    def stop(self) -> None:
        self.waiting.put(None)
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()


class _ThreadQueuedTask:
    def __init__(self, task_queue: ThreadTaskQueue, task: Task) -> None:
        self._task_queue = task_queue
        self.task: Task | None = task
        self.taken_by: int | None = None

    def may_have_begun(self, worker: int) -> bool:
        return False

    def put_back(self, dead: int | None = None) -> None:
        with self._task_queue.claims:
            # Under the lock of `receive`: a thread that has just taken the task keeps it.
            if dead is None or self.taken_by == dead:
                self.taken_by = None
        self._task_queue.waiting.put(self)

    def datapoints(self) -> Sequence[Any]:
        return () if self.task is None else self.task.datapoints

    def ask(self, number: int, start: int, stop: int) -> None:
        assert self.task is not None, "it was not discarded"
        with self._task_queue.claims:
            self.task = replace(self.task, number=number, start=start, stop=stop)
            self.taken_by = None
        # Into both: `waiting` wakes a thread that waits, and `asked` lets the part come first. The entry that is left
        # over is skipped: the task is taken or done by then.
        self._task_queue.asked.append(self)
        self._task_queue.waiting.put(self)

    def discard(self) -> None:
        self.task = None


class _ThreadTaskReader(TaskQueuePort, TaskReader):
    def __init__(self, task_queue: ThreadTaskQueue, worker: int) -> None:
        self._task_queue = task_queue
        self._worker = worker
        self._queued: _ThreadQueuedTask | None = None  # of the last task taken
        self._task: Task | None = None  # this task

    def open(self) -> _ThreadTaskReader:
        return self

    def may_take(self) -> bool:
        return self._worker < self._task_queue.num_taking

    def wait_until_may_take(self) -> bool:
        with self._task_queue.changed:
            self._task_queue.changed.wait_for(lambda: self._task_queue.is_stopped or self.may_take())
        return self.may_take()

    def is_full(self) -> bool:
        return self._task_queue.is_full

    def receive(self) -> Task | None:
        while (queued := self._task_queue.waiting.get()) is not None:
            # Looked at first: to raise and suppress an exception for each task would take longer than the look.
            if self._task_queue.asked:
                with suppress(IndexError):  # another thread has taken it
                    asked = self._task_queue.asked.popleft()
                    # This thread takes the part instead; the other task goes behind those that wait.
                    self._task_queue.waiting.put(queued)
                    queued = asked
            # Under the lock: of two threads with the same task one takes it, and none takes a part that is no longer
            # asked for in place of the one that is.
            with self._task_queue.claims:
                task = queued.task
                if task is None or queued.taken_by is not None:
                    continue
                queued.taken_by = self._worker
                self._task_queue.last[self._worker] = task.number
            self._queued, self._task = queued, task
            return task
        self._task_queue.waiting.put(None)  # for the next thread
        return None

    def is_wanted(self) -> bool:
        return self._queued is not None and self._queued.task is self._task
