"""`PushedTaskQueue`: the task queue of actors; the consumer pushes tasks, a few ahead, to the least loaded worker.

There is no task queue that machines could share. Guarantees:

- Tasks are pushed in the order of their numbers; a task that is put back comes before all others, and a part of one
  that is asked for again before those.
- A worker has at most `ahead` unfinished tasks: so a slow one delays few others.
- A worker gets no task before it has opened its flow: so no task waits for an actor that cannot start, and one that has
  tasks is at work.
- A part of a task is the only task of its worker: so a worker that dies has died in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from dataflow.ray.actor import ActorTaskReader
from dataflow.ray.cluster import ActorWorker
from dataflow.ray.object_store_codec import ObjectStoreDecoder, ObjectStoreEncoder
from dataflow.transport.message_layout import NO_ROOM
from dataflow.transport.task_queue import WHOLE, PlainEncoder, TaskQueue

__all__ = ["PushedTaskQueue"]


class PushedTaskQueue(TaskQueue):
    """The task queue of actors. All get tasks, and `PullCredit` stops them.

    Args:
        actors: The actor of each worker at present.
        ahead: Maximum number of tasks of one worker.
        max_bytes: Size of all unfinished tasks above which there is no room for others.
    """

    def __init__(self, actors: Mapping[int, ActorWorker], ahead: int, max_bytes: int) -> None:
        self._actors = actors
        self._ahead = ahead
        self._max_bytes = max_bytes
        self._encoder = ObjectStoreEncoder()
        self._nbytes = 0  # of unfinished tasks, and of datapoints encoded for the next one
        self._encoded = 0  # of the datapoints encoded for the next task
        self._waiting: list[_PushedTask] = []  # a heap: by number
        self._next = 0  # larger than the numbers of all tasks so far
        self._discarded = 0  # workers know that tasks below this number are not needed

    def port(self, worker: int) -> ActorTaskReader:
        return ActorTaskReader()

    def encode(self, dp: Any, *, is_only_task: bool) -> Any:
        if self._nbytes >= self._max_bytes and not is_only_task:
            return NO_ROOM
        item = self._encoder.encode(dp)
        self._encoded += self._encoder.nbytes
        self._nbytes += self._encoder.nbytes
        return item

    def plain_encoder(self) -> PlainEncoder | None:
        return self._encoder.encode_plain if self._encoder.plain else None

    def put(
        self, number: int, first: int, encoded: Sequence[Any], *, is_only_task: bool, hold: bool = False
    ) -> _PushedTask:
        body, _ = self._encoder.join(encoded)
        task = _PushedTask(self, number, first, body, self._encoded)
        self._encoded = 0
        self._next = number + 1
        task.is_held = hold
        if not hold:
            self.queue(task)
        return task

    def drop(self) -> None:
        self._nbytes -= self._encoded
        self._encoded = 0
        # No task is needed any more: workers need not finish those that they have.
        if self._discarded < self._next:
            self._discarded = self._next
            for actor in self._actors.values():
                if actor.takes_tasks:
                    actor.call("discard_tasks", self._next)

    def last_taken(self, worker: int) -> int | None:
        return next((task.number for task in self.tasks_of(worker)), None)

    def pump(self) -> None:
        while self._waiting:
            task = self._waiting[0]
            if task.body is not None:  # a discarded one stays in the heap until it is the first
                ready = [k for k, actor in self._actors.items() if actor.takes_tasks]
                free = [k for k in ready if not any(pushed.is_part for pushed in self.tasks_of(k))]
                worker = min(free, key=lambda k: len(self.tasks_of(k)), default=None)
                if worker is None or len(self.tasks_of(worker)) >= (1 if task.is_part else self._ahead):
                    return
                # Before the call, which may find the actor lost: the task counts as its own, and is put back with the
                # others.
                self.tasks_of(worker).append(task)
                task.worker = worker
                self._actors[worker].call("add_task", task.number, task.first, task.body, task.start, task.stop)
            heapq.heappop(self._waiting)

    def queue(self, task: _PushedTask) -> None:
        """Queue `task` to be pushed, for the first time or again."""
        heapq.heappush(self._waiting, task)
        self.pump()

    def tasks_of(self, worker: int) -> list[_PushedTask]:
        """Return the unfinished tasks of a worker; it is running the first, as far as is known here."""
        actor = self._actors.get(worker)
        return [] if actor is None else actor.tasks

    def withdraw(self, task: _PushedTask) -> None:
        """Remove `task` from its worker."""
        if task in self.tasks_of(task.worker):
            self.tasks_of(task.worker).remove(task)

    def release(self, task: _PushedTask) -> None:
        """Remove `task`, which is done or discarded."""
        self._nbytes -= task.nbytes
        self.withdraw(task)

    def close(self) -> None:
        self._waiting.clear()


class _PushedTask:
    """One task in the queue."""

    def __init__(self, task_queue: PushedTaskQueue, number: int, first: int, body: Sequence[Any], nbytes: int) -> None:
        self._task_queue = task_queue
        self.number = number
        self.first = first
        self.body: Sequence[Any] | None = body  # None when it is done or discarded
        self.nbytes = nbytes
        self.start, self.stop = 0, WHOLE  # of the part that is asked for
        self.is_held = False  # nowhere yet
        self.worker = -1  # worker that it was pushed to; -1 for none

    @property
    def taken_by(self) -> int | None:
        return self.worker if self._task_queue.tasks_of(self.worker)[:1] == [self] else None

    def may_have_begun(self, worker: int) -> bool:
        return self in self._task_queue.tasks_of(worker)[1:]

    @property
    def is_part(self) -> bool:
        """Whether only a part of it is asked for."""
        return self.stop != WHOLE

    def put_back(self, dead: int | None = None) -> None:
        if self.is_held:
            self.is_held = False
            self._task_queue.queue(self)
        elif self.worker == dead:
            # Otherwise it stays queued, here or there: another worker may have died in it, and is not judged so far.
            self._task_queue.withdraw(self)
            self.worker = -1
            self._task_queue.queue(self)

    def datapoints(self) -> Sequence[Any]:
        return () if self.body is None else ObjectStoreDecoder(copy=True).decode(0, self.body)

    def ask(self, number: int, start: int, stop: int) -> None:
        self._task_queue.withdraw(self)
        self.number, self.start, self.stop, self.worker = number, start, stop, -1
        self.is_held = False
        self._task_queue.queue(self)

    def discard(self) -> None:
        if self.body is not None:
            self.body = None
            self._task_queue.release(self)

    def __lt__(self, other: _PushedTask) -> bool:
        return (not self.is_part, self.number) < (not other.is_part, other.number)  # parts first
