"""`WorkerActor`: the Ray actor; it hosts one worker and buffers its input and output.

The worker is the same as in a thread or a process: a `WorkerSpec`, which writes to a batching sender and reads tasks
from a task reader. Here the sender writes to a reply buffer, from which the consumer requests replies. Guarantees:

- A reply is everything made since the last one, in that order; nothing is left out and nothing comes twice.
- A reply leaves when it is full, when `seconds` have passed since its first datapoint was added, and at once when the
  worker has finished a task or has ended.
- The worker runs ahead of the replies by its window.
- A reply also has the worker's counters, as of the moment it left.
- A worker that has a limit for each datapoint watches itself, on a thread of its own: it reports that it is late, after
  all that it had made, and goes on until it is killed. One whose threads cannot run, because it is stopped or calls C
  code that holds the interpreter's lock, gives no replies; an idle one gives empty ones now and then.

Calls come on three threads: `work` for as long as the worker runs, `reply` one after the other, and the rest, which
return at once. This module does not depend on Ray.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from dataflow.ray.object_store_codec import ObjectStoreDecoder
from dataflow.runners.item_watch import ItemWatch
from dataflow.runners.worker_main import WorkerSpec
from dataflow.system.pickling import loads
from dataflow.system.thread_frames import stack_of
from dataflow.system.worker_info import entering
from dataflow.system.worker_process import keep_freed_memory, seed_globals
from dataflow.transport.current_item import position_in
from dataflow.transport.flow_control import Credit
from dataflow.transport.messages import DATA_KINDS, RESULT_KINDS, Kind, Message, Port, Sender
from dataflow.transport.task_queue import Task, TaskQueuePort, TaskReader, decode_task
from dataflow.transport.worker_counters import settle_counters

__all__ = ["ActorTaskReader", "Chunking", "Reply", "ReplyBuffer", "WorkerActor", "max_wait"]

_MAY_WAIT: Final = (*RESULT_KINDS, Kind.REPORT)  # messages that may wait for others in the same reply
_MAX_WAIT: Final = 10.0  # seconds after which an empty reply is sent
_LOOKS: Final = 8  # at a worker that watches itself, in the time that it has for one datapoint


def max_wait(item_timeout: float | None) -> float:
    """Seconds after which a worker sends an empty reply: a sign of life of one that has a limit for each datapoint."""
    return _MAX_WAIT if item_timeout is None else min(_MAX_WAIT, item_timeout)


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


class Reply(NamedTuple):
    """What an actor returns.

    Attributes:
        messages: The output since the last reply.
        counters: What the worker has done until now: its settled words (`worker_counters`), 8 bytes each.
        is_ready: Whether the worker has opened its flow, and takes tasks.
    """

    messages: list[Message]
    counters: bytes = b""
    is_ready: bool = False


class ReplyBuffer(Port, Sender):
    """Buffer of the worker's output until the consumer requests it; the worker's output port and `Sender` in one."""

    def __init__(self, chunking: Chunking) -> None:
        self.chunking = chunking
        self._messages: deque[Message] = deque()
        self._items = self._bytes = 0  # of the messages in the buffer
        self._is_due = False  # the next reply should leave at once
        self._is_closed = False
        self.is_ready = False  # the worker takes tasks
        self._changed = threading.Condition()

    def open(self) -> ReplyBuffer:
        return self

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        # `begun` stays empty: signal handlers run in no thread of a worker.
        with self._changed:
            self._messages.append(message)
            self._items += message.count if message.kind in DATA_KINDS else 0
            self._bytes += message.queued
            self._is_due = self._is_due or message.kind not in _MAY_WAIT
            self._changed.notify()

    def make_complete(self) -> None:
        """Record that the worker waits for a task: the reply, even if it only says so for the first time, leaves."""
        with self._changed:
            self._is_due = self._is_due or bool(self._messages) or not self.is_ready
            self.is_ready = True
            self._changed.notify()

    def close(self, flush: float = 0) -> None:
        with self._changed:
            self._is_due = self._is_closed = True
            self._changed.notify()

    def receive(self, timeout: float) -> list[Message]:
        """Return the next reply; empty after `timeout` seconds without output."""
        chunking = self.chunking
        with self._changed:
            # First for anything at all; then, from its first datapoint on, for a full reply.
            if self._changed.wait_for(lambda: self._messages or self._is_due, timeout):
                self._changed.wait_for(self._is_full, chunking.seconds)
            reply: list[Message] = []
            items = nbytes = 0
            while self._messages and items < chunking.items and nbytes < chunking.nbytes:
                message = self._messages.popleft()
                items += message.count if message.kind in DATA_KINDS else 0
                nbytes += message.queued
                reply.append(message)
            self._items -= items
            self._bytes -= nbytes
            # What a bound has kept out of this reply leaves at once with the next one.
            self._is_due = self._is_closed or (self._is_due and bool(self._messages))
            return reply

    def _is_full(self) -> bool:
        return self._is_due or self._items >= self.chunking.items or self._bytes >= self.chunking.nbytes


class ActorTaskReader(TaskQueuePort, TaskReader):
    """Tasks that the consumer has pushed to this worker; the worker's input port and task reader in one."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[int, int, Sequence[Any], int, int]] = deque()
        self.taken = -1  # number of the task that was taken last
        self._wanted_from = 0  # number of the first task that is still needed
        self._is_stopped = False
        self._changed = threading.Condition()
        self._decoder = ObjectStoreDecoder(copy=True)
        self.replies: ReplyBuffer | None = None  # marked complete when a task is finished

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorTaskReader, ()  # on its way to the worker it has no tasks

    def open(self) -> ActorTaskReader:
        return self

    def add(self, number: int, first: int, body: Sequence[Any], start: int, stop: int) -> None:
        """Add a task."""
        with self._changed:
            self._tasks.append((number, first, body, start, stop))
            self._changed.notify()

    def discard(self, before: int) -> None:
        """Drop the tasks with lower numbers."""
        # Without the lock, and waking nothing: `receive` compares each task that it takes, `is_wanted` the one that
        # runs.
        self._wanted_from = before

    def stop(self) -> None:
        """Drop all tasks; no more will come."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def may_take(self) -> bool:
        return True

    def wait_until_may_take(self) -> bool:
        """Does not wait: tasks come only to those that should take them."""
        return True

    def is_full(self) -> bool:
        return False  # not known here

    def receive(self) -> Task | None:
        # Before the wait: the consumer sends tasks only to a worker whose reply says that it is ready. Outside of the
        # lock, because it takes that of the replies.
        if self.replies is not None:
            self.replies.make_complete()
        with self._changed:
            while True:
                # Without a time limit: the process ends with its actor in any case.
                self._changed.wait_for(lambda: self._is_stopped or self._tasks)
                if self._is_stopped:
                    return None
                number, first, body, start, stop = self._tasks.popleft()
                if number >= self._wanted_from:
                    break
            self.taken = number
        return Task(number, first, decode_task(self._decoder, body, first), start, stop)

    def is_wanted(self) -> bool:
        return not self._is_stopped and self.taken >= self._wanted_from


class WorkerActor:
    """The actor's class: its methods are the calls of the consumer."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._is_stopped = False
        self._spec: Any = None
        self._credit = Credit(1, shared=False)  # granted by replies
        self._ended = threading.Event()

    def where(self) -> tuple[int, str]:
        """Return the process id and the node."""
        return os.getpid(), socket.gethostname()

    def work(self, packed: bytes) -> None:
        """Run the worker; return when it has ended."""
        self._spec = spec = replace(self.prepare(loads(packed)), credit=self._credit.port(0))
        if self._spec.task_queue is not None:
            self._spec.task_queue.replies = spec.port
        # When all of `_spec` is there: the calls on other threads use it from here on.
        self._ready.set()
        if self._is_stopped:  # either this is seen here, or `stop` sees that it is ready
            return
        if spec.item_timeout is not None:
            args = spec.item_timeout, threading.get_ident()
            threading.Thread(target=self._watch, args=args, name="dataflow-item-watch", daemon=True).start()
        try:
            with entering(spec.info):
                spec()
        finally:
            self._ended.set()

    def _watch(self, timeout: float, worker_thread: int) -> None:
        """Report once that the worker spends too long on a datapoint."""
        spec, watch = self._spec, ItemWatch(timeout)
        while not self._ended.wait(timeout / _LOOKS):
            word = self._credit.item_of(0)
            if watch.overdue([word], time.monotonic()):
                _, reason = self._credit.late_after(timeout)
                # Before the second look: if that finds the same datapoint, the stacks are of it.
                body = position_in(word), reason, _stacks(worker_thread)
                if self._credit.item_of(0) == word:  # otherwise it has just made it
                    spec.port.send(Message(Kind.LATE, spec.worker, body=body, task=spec.task_queue.taken))
                    return

    def prepare(self, spec: WorkerSpec) -> WorkerSpec:
        """Prepare the process for a worker; return the spec."""
        keep_freed_memory()
        seed_globals(spec.seed)
        return spec

    def reply(self) -> Reply:
        """Return the output since the last reply, without messages if there was none for some time."""
        if not self._ready.wait(_MAX_WAIT):
            return Reply([])
        port = self._spec.port
        messages: list[Message] = port.receive(max_wait(self._spec.item_timeout))
        for message in messages:
            # As a reply leaves, and not as it is consumed: the replies that are requested bound what lies between.
            if message.kind in DATA_KINDS:
                self._credit.grant(0, message.count, message.nbytes, message.queued)
                self._credit.done(0, message.count)
            elif message.kind is Kind.REPORT:
                self._credit.report_received(0)
        counters = array("Q", settle_counters(self._credit.counters_of(0), time.perf_counter())).tobytes()
        return Reply(messages, counters, port.is_ready)

    def add_task(self, number: int, first: int, body: Sequence[Any], start: int, stop: int) -> None:
        """Add a task for this worker. The consumer sends none before the worker's first message."""
        self._spec.task_queue.add(number, first, body, start, stop)

    def discard_tasks(self, before: int) -> None:
        """Drop the tasks with lower numbers."""
        self._spec.task_queue.discard(before)

    def stop(self) -> None:
        """End the worker, also one whose work has not begun."""
        self._is_stopped = True
        if self._ready.wait(_MAX_WAIT):
            self._credit.stop()
            if self._spec.task_queue is not None:
                self._spec.task_queue.stop()


def _stacks(worker_thread: int) -> str:
    """The stacks of the worker's thread, and of those that have Python code to run beside it, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}
    others = [ident for ident in names if ident not in {worker_thread, threading.get_ident()}]
    parts = []
    for ident in (worker_thread, *others):
        frames = reversed(stack_of(ident))
        stack = "".join(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames).format())
        if stack:
            parts.append(f"Thread {names.get(ident, ident)} (most recent call last):\n{stack}")
    return "\n".join(parts)
