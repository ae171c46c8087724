"""What runs in an actor: one worker, with the ends of its ways from and to the consumer.

The worker is the same as in a thread or a process: a `WorkerSpec`, which puts what it makes into an outbox, and takes
tasks from an inbox. Here the outbox sends to a shelf, and the consumer asks for what stands there. Guarantees:

- A reply is what was made since the last one, in that order; nothing is left out and nothing comes twice.
- A reply waits for no more than it needs: it leaves when it is full, when `seconds` have passed since the first of it
  was there, and at once when the worker itself has to wait, has finished a task, or has ended.
- The worker runs ahead of the replies by its window.

Calls come on three threads: `work` for as long as the worker lives, `reply` one after the other, and the rest, which
returns at once. Nothing in here knows Ray.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dataflow.channel.flow_control import Credit
from dataflow.channel.messages import Kind, Message
from dataflow.channel.task_queue import Task
from dataflow.descriptors import Descriptor
from dataflow.distributed.object_store_codec import ObjectStoreDecoder
from dataflow.engine.worker_main import WorkerSpec
from dataflow.pickling import loads
from dataflow.workers.place import entering

__all__ = ["Chunking", "ActorTaskReader", "ReplyBuffer", "WorkerActor"]

_PATIENCE: Final = 10.0  # seconds after which a reply says that there is nothing


@dataclass(frozen=True, slots=True)
class Chunking:
    """When a reply is full.

    Attributes:
        items: Datapoints.
        nbytes: Bytes.
        seconds: Seconds since the first of it was made; None for no such bound.
    """

    items: int
    nbytes: int
    seconds: float | None


class ReplyBuffer:
    """What the worker has made, until the consumer asks for it. Its port and its sender in one."""

    def __init__(self, chunking: Chunking) -> None:
        self._chunking = chunking
        self._messages: deque[Message] = deque()
        self._items = self._bytes = 0  # of these
        self._is_whole = False  # the worker has reached a point where nothing should wait for more
        self._is_closed = False
        self._changed = threading.Condition()

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def hand_over(self) -> None:
        """Nothing is held."""

    def open(self) -> ReplyBuffer:
        return self

    def send(self, message: Message) -> None:
        with self._changed:
            self._messages.append(message)
            self._items += message.count if message.kind is Kind.DATA else 0
            self._bytes += message.queued
            self._is_whole = self._is_whole or message.kind not in {Kind.DATA, Kind.REPORT}
            self._changed.notify()

    def make_whole(self) -> None:
        """What stands here need not wait for more."""
        with self._changed:
            self._is_whole = bool(self._messages)
            self._changed.notify()

    def close(self, flush: float = 0) -> None:
        with self._changed:
            self._is_whole = self._is_closed = True
            self._changed.notify()

    def take(self, patience: float) -> list[Message]:
        """The next reply; empty after `patience` seconds with nothing."""
        chunking = self._chunking
        with self._changed:
            if self._changed.wait_for(lambda: self._messages or self._is_closed, patience):
                self._changed.wait_for(self._is_full, chunking.seconds)
            taken: list[Message] = []
            items = nbytes = 0
            while self._messages and items < chunking.items and nbytes < chunking.nbytes:
                message = self._messages.popleft()
                items += message.count if message.kind is Kind.DATA else 0
                nbytes += message.queued
                taken.append(message)
            self._items -= items
            self._bytes -= nbytes
            self._is_whole = self._is_closed or (self._is_whole and bool(self._messages))
            return taken

    def _is_full(self) -> bool:
        return self._is_whole or self._items >= self._chunking.items or self._bytes >= self._chunking.nbytes


class ActorTaskReader:
    """Tasks that the consumer has given to this worker. Port and inbox in one."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[int, int, Sequence[Any]]] = deque()
        self._taken = -1  # number of the task that was taken last
        self._wanted_from = 0  # number of the first task that is still wanted
        self._is_stopped = False
        self._changed = threading.Condition()
        self._decoder = ObjectStoreDecoder(copy=True)
        self.replies: ReplyBuffer | None = None  # which is told that a task is finished

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open(self) -> ActorTaskReader:
        return self

    def give(self, number: int, first: int, body: Sequence[Any]) -> None:
        """A task."""
        with self._changed:
            self._tasks.append((number, first, body))
            self._changed.notify()

    def forget(self, before: int) -> None:
        """No task with a lower number is wanted any more."""
        with self._changed:
            self._wanted_from = before

    def stop(self) -> None:
        """No task is wanted any more, and none will come."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def take(self) -> Task | None:
        if self.replies is not None:
            self.replies.make_whole()
        with self._changed:
            while True:
                # Without a limit: the process ends with its actor, whatever it waits for.
                self._changed.wait_for(lambda: self._is_stopped or self._tasks)
                if self._is_stopped:
                    return None
                number, first, body = self._tasks.popleft()
                if number >= self._wanted_from:
                    break
            self._taken = number
        return Task(number, first, self._decoder.decode(0, body))

    def is_wanted(self) -> bool:
        return not self._is_stopped and self._taken >= self._wanted_from

    def close(self) -> None:
        """Nothing is held."""


class WorkerActor:
    """What an actor is: its calls."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._spec: Any = None
        self._credit = Credit(1, shared=False)  # given by replies

    def where(self) -> tuple[int, str]:
        """Which process of which machine this is."""
        return os.getpid(), socket.gethostname()

    def work(self, packed: bytes) -> None:
        """Do all the work of a worker; returns at its end."""
        spec = replace(self.prepare(loads(packed)), credit=self._credit.line(0))
        self._spec = spec
        if spec.task_queue is not None:
            self._spec.task_queue.replies = spec.port
        self._arrived.set()
        with entering(spec.place):
            spec()

    def prepare(self, spec: WorkerSpec) -> WorkerSpec:
        """What is done once for a worker in this kind of place."""
        return spec

    def reply(self) -> list[Message]:
        """What was made since the last reply. Empty if nothing was for some time."""
        if not self._arrived.wait(_PATIENCE):
            return []
        messages: list[Message] = self._spec.port.take(_PATIENCE)
        for message in messages:
            if message.kind is Kind.DATA:
                self._credit.grant(0, message.count, message.nbytes, message.queued)
                self._credit.done(0, message.count)
            elif message.kind is Kind.REPORT:
                self._credit.heard(0)
        return messages

    def give(self, number: int, first: int, body: Sequence[Any]) -> None:
        """A task for this worker. The consumer gives none before it has heard of it."""
        self._spec.task_queue.give(number, first, body)

    def forget(self, before: int) -> None:
        """No task with a lower number is wanted any more."""
        self._spec.task_queue.forget(before)

    def stop(self) -> None:
        """The consumer wants nothing more."""
        if self._arrived.wait(_PATIENCE):
            self._credit.stop()
            if self._spec.task_queue is not None:
                self._spec.task_queue.stop()
