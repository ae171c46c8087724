"""A backend whose workers do what the test says, and nothing else: for races of supervisor, engine and schedules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dataflow.runners.backends import Links, Tasks
from dataflow.runners.options import WorkerOptions
from dataflow.transport.codec import ObjectCodec
from dataflow.transport.flow_control import Credit
from dataflow.transport.local_channel import ThreadChannel
from dataflow.transport.messages import Kind, Message
from dataflow.transport.task_queue import Task, ThreadTaskQueue
from tests.support.fakes import FakeWorker


class HandChannel(ThreadChannel):  # calls the test instead of waiting
    while_waiting: Callable[[], object]

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        if timeout and not self._messages:
            self.while_waiting()
        return bool(self._messages)


class Waiting(deque[Any]):  # tasks: taking one never blocks
    def put(self, queued: Any) -> None:
        if queued is not None:
            self.append(queued)

    def get(self) -> Any:
        return self.popleft() if self else None


class HandWorker(FakeWorker):
    """A worker whose every step is a call of the test."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec.info.index, spec.info.count)
        self.sender = spec.port.open()
        self.reader = None if spec.task_queue is None else spec.task_queue.open()
        self.credit = spec.credit
        self.task: Task | None = None

    def join(self, timeout: float) -> bool:
        self.code = 0 if self.code is None else self.code  # it is asked to stop before
        return True

    def say(self, kind: Kind, *datapoints: Any) -> None:
        """Send a message: results of its task."""
        task = -1 if self.task is None else self.task.number
        self.sender.send(Message(kind, self.info.index, len(datapoints), 0, datapoints, task, pace=1e-6))

    def take(self) -> Task | None:
        """Take the next task, if there is one."""
        assert self.reader is not None
        self.task = self.reader.receive()
        return self.task


class HandStepped:
    """The backend. `while_waiting` is called with it when the consumer has nothing to do; it has to step a worker."""

    name, own_process, adds_workers = "thread", False, False

    def __init__(self, while_waiting: Callable[[HandStepped], object]) -> None:
        self.while_waiting = while_waiting
        self.workers: dict[int, HandWorker] = {}  # by index: the one that was started last

    def is_forked(self, options: WorkerOptions) -> bool:
        return True

    def describe(self, options: WorkerOptions) -> tuple[str, str]:
        return "worker", " stepped by hand"

    def parameters(self, options: WorkerOptions) -> dict[str, Any]:
        return {}

    def memory(self, options: WorkerOptions) -> None:
        return None

    def thread_limit(self, options: WorkerOptions) -> None:
        return None

    def num_descriptors(self, options: WorkerOptions) -> int:
        return 1

    def links(self, options: WorkerOptions, tasks: Tasks) -> Links:
        queue = ThreadTaskQueue()
        queue.waiting = Waiting()  # type: ignore[assignment]
        channel = HandChannel()
        channel.while_waiting = lambda: self.while_waiting(self)
        return Links(
            channel, ObjectCodec(), Credit(options.num_workers, shared=False), None if tasks is Tasks.NONE else queue
        )

    def starter(self, options: WorkerOptions) -> Callable[[Any], HandWorker]:
        return self._start

    def _start(self, spec: Any) -> HandWorker:
        self.workers[spec.info.index] = HandWorker(spec)
        return self.workers[spec.info.index]
