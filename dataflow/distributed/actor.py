"""`WorkerActor`: the Ray actor; it hosts one worker and buffers its input and output.

The worker is the same as in a thread or a process: a `WorkerSpec`, which writes to a batching sender and reads tasks
from a task reader. Here the sender writes to a reply buffer, from which the consumer requests replies. Guarantees:

- A reply is everything made since the last one, in that order; nothing is left out and nothing comes twice.
- A reply waits no longer than it needs: it leaves when it is full, when `seconds` have passed since its first
  datapoint was added, and at once when the worker itself has to wait, has finished a task, or has ended.
- The worker runs ahead of the replies by its window.

Calls come on three threads: `work` for as long as the worker runs, `reply` one after the other, and the rest, which
return at once. This module does not depend on Ray.
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
from dataflow.workers.info import entering

__all__ = ["Chunking", "ActorTaskReader", "ReplyBuffer", "WorkerActor"]

_PATIENCE: Final = 10.0  # seconds after which an empty reply is sent


@dataclass(frozen=True, slots=True)
class Chunking:
    """Bounds at which a reply is full.

    Attributes:
        items: Datapoints.
        nbytes: Bytes.
        seconds: Seconds since its first datapoint was added; None for no such bound.
    """

    items: int
    nbytes: int
    seconds: float | None


class ReplyBuffer:
    """Buffer of the worker's output until the consumer requests it; the worker's output port and `Sender` in one."""

    def __init__(self, chunking: Chunking) -> None:
        self._chunking = chunking
        self._messages: deque[Message] = deque()
        self._items = self._bytes = 0  # of the messages in the buffer
        self._is_whole = False  # the reply should leave at once
        self._is_closed = False
        self._changed = threading.Condition()

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def close_in_parent(self) -> None:
        """No-op."""

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
        """Mark the reply as complete: it should leave at once."""
        with self._changed:
            self._is_whole = bool(self._messages)
            self._changed.notify()

    def close(self, flush: float = 0) -> None:
        with self._changed:
            self._is_whole = self._is_closed = True
            self._changed.notify()

    def receive(self, patience: float) -> list[Message]:
        """Return the next reply; empty after `patience` seconds without output."""
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
    """Tasks that the consumer has pushed to this worker; the worker's input port and task reader in one."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[int, int, Sequence[Any]]] = deque()
        self._taken = -1  # number of the task that was taken last
        self._wanted_from = 0  # number of the first task that is still needed
        self._is_stopped = False
        self._changed = threading.Condition()
        self._decoder = ObjectStoreDecoder(copy=True)
        self.replies: ReplyBuffer | None = None  # marked complete when a task is finished

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open(self) -> ActorTaskReader:
        return self

    def give(self, number: int, first: int, body: Sequence[Any]) -> None:
        """Add a task."""
        with self._changed:
            self._tasks.append((number, first, body))
            self._changed.notify()

    def forget(self, before: int) -> None:
        """Drop the tasks with lower numbers."""
        with self._changed:
            self._wanted_from = before

    def stop(self) -> None:
        """Drop all tasks; no more will come."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def receive(self) -> Task | None:
        if self.replies is not None:
            self.replies.make_whole()
        with self._changed:
            while True:
                # Without a time limit: the process ends with its actor in any case.
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
        """No-op."""


class WorkerActor:
    """The actor's class: its methods are the calls of the consumer."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._spec: Any = None
        self._credit = Credit(1, shared=False)  # granted by replies

    def where(self) -> tuple[int, str]:
        """Return the process id and the node."""
        return os.getpid(), socket.gethostname()

    def work(self, packed: bytes) -> None:
        """Run the worker; return when it has ended."""
        spec = replace(self.prepare(loads(packed)), credit=self._credit.port(0))
        self._spec = spec
        if spec.task_queue is not None:
            self._spec.task_queue.replies = spec.port
        self._arrived.set()
        with entering(spec.info):
            spec()

    def prepare(self, spec: WorkerSpec) -> WorkerSpec:
        """Adapt the spec to this kind of worker, once."""
        return spec

    def reply(self) -> list[Message]:
        """Return the output since the last reply; empty if there was none for some time."""
        if not self._arrived.wait(_PATIENCE):
            return []
        messages: list[Message] = self._spec.port.receive(_PATIENCE)
        for message in messages:
            if message.kind is Kind.DATA:
                self._credit.grant(0, message.count, message.nbytes, message.queued)
                self._credit.done(0, message.count)
            elif message.kind is Kind.REPORT:
                self._credit.report_received(0)
        return messages

    def give(self, number: int, first: int, body: Sequence[Any]) -> None:
        """Add a task for this worker. The consumer sends none before the worker's first message."""
        self._spec.task_queue.give(number, first, body)

    def forget(self, before: int) -> None:
        """Drop the tasks with lower numbers."""
        self._spec.task_queue.forget(before)

    def stop(self) -> None:
        """The consumer stops: end the worker."""
        if self._arrived.wait(_PATIENCE):
            self._credit.stop()
            if self._spec.task_queue is not None:
                self._spec.task_queue.stop()
