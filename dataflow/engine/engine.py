"""Engine: the event loop in which every runner and map waits for the datapoints of its workers.

A `Plan` holds the parts of one runner or map, before it is started. `WaitTimer` decides when the consumer has waited
too long, `Restarts` replaces workers that died, and `PassEngine` is an engine whose passes begin and end.

Guarantees:

- Every wait has a limit: the engine checks its workers whenever no message arrives, and every half second while
  messages do.
- Messages before errors: what a worker had sent before it died or failed is handed out before its end is reported.
- A pass in which a worker died never ends normally: before its end is reported, the workers are checked, and a death
  that was found is raised.
- No message is lost silently: any interruption of the engine (an exception, Ctrl-C) between taking a message and
  entering it in the schedule ends the run. An interrupt while it waits is harmless.
- The later of two iterations wins. The earlier raises `NotReentrant` at its next step, and no datapoint is lost or
  given out twice: a chunk is a list iterator, stepped under the interpreter's lock, and the later iteration empties the
  earlier one's.
- After `close`, no worker, descriptor or socket file of the run is left. A signal that arrives during the start or
  `close` does not change that: it is raised when that is complete, or undone.

Threads: everything except the first line of `take_over` runs under one lock, held for at most `_POLL` seconds at a time
while waiting.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, NoReturn

from dataflow.channel.flow_control import Credit
from dataflow.channel.messages import RESULT_KINDS, Kind, Message
from dataflow.channel.protocols import Channel, Receiver
from dataflow.codec.protocols import Codec, Undecodable
from dataflow.engine.schedules import MixedSchedule, Schedule, TaskSchedule
from dataflow.engine.worker_errors import died, failed_before, forked, late, superseded, unreadable
from dataflow.engine.worker_main import WorkerSpec
from dataflow.engine.worker_states import WorkerStates
from dataflow.errors import WorkerDied
from dataflow.failures import Tolerance
from dataflow.interrupts import signals_deferred
from dataflow.seeding import Stream
from dataflow.state import terminated
from dataflow.workers.cleanup import close_at_exit
from dataflow.workers.pool import Worker, WorkerPool

__all__ = ["NodeEngine", "Engine", "PassEngine", "Plan", "Restarts", "WaitTimer"]


# -- Plan --------------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The parts of an engine, made and not yet started.

    Attributes:
        owner: Name of the runner's class, for messages.
        channel: How messages move.
        codec: How the consumer decodes them.
        credit: Flow control of the workers.
        specs: The worker spec of each worker.
        start: Starts one worker.
        schedule: Holds datapoints until they are handed out.
        max_restarts: How many workers that died are replaced.
        tolerance: Failure budget for the single items that workers report as failed.
        died: Makes the error for a worker that ended without an exception.
    """

    owner: str
    channel: Channel
    codec: Codec
    credit: Credit
    specs: list[WorkerSpec]
    start: Callable[[WorkerSpec], Worker]
    schedule: Schedule = field(default_factory=MixedSchedule)
    max_restarts: int = 0
    tolerance: Tolerance = field(default_factory=lambda: Tolerance("", None))
    died: Callable[[str, int, int, int | None, int | None, int | None], WorkerDied] = died

    def stop(self) -> None:
        """Request the workers to stop."""
        self.credit.stop()
        self.schedule.stop()

    def close(self) -> None:
        """Release everything that the consumer holds. Idempotent."""
        with ExitStack() as last:  # closes all, even if one of them raises
            for end in (self.credit, self.schedule, self.codec, self.channel):
                last.callback(end.close)


# -- Wait timer --------------------------------------------------------------------------------------------------------


# Maximum seconds counted per call: time spent reading a slow source, or in a debugger, is not waiting for workers.
_MAX_AT_ONCE: Final = 0.1
_DRAIN_SECONDS: Final = 0.1  # seconds after which all earlier messages have been received, even if new ones keep coming


class WaitTimer:
    """Decides whether a consumer that asks repeatedly has waited too long. Pure: no clock.

    Guarantees:

    - Only a datapoint that is handed out ends the wait; a report of a failed item, or results that were all dropped, do
      not.
    - Messages that have arrived are received before the timer is over.
    """

    def __init__(self) -> None:
        # Seconds since a datapoint was handed out; None until the consumer asks for more.
        self._waited: float | None = None
        self._now = 0.0  # time up to which `_waited` is counted
        self._over_since: float | None = None  # when the wait was first found to be too long

    def reset(self) -> None:
        """Reset the timer: a datapoint is handed out, or another iteration begins to wait."""
        self._waited = self._over_since = None

    def advance(self, now: float) -> None:
        """Count the time since the last call: the consumer asks, or continues to wait."""
        self._waited = 0.0 if self._waited is None else self._waited + min(now - self._now, _MAX_AT_ONCE)
        self._now = now

    def is_over(self, timeout: float | None, *, silent: bool) -> bool:
        """Return True if it has waited for `timeout` seconds; `silent` if no message was there to be received."""
        if timeout is None or self._waited is None or self._waited < timeout:
            return False
        if self._over_since is None:
            self._over_since = self._now
        return silent or self._now - self._over_since >= _DRAIN_SECONDS


# -- Restarts ----------------------------------------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)


class Restarts:
    """Replaces workers that died, up to a number of times.

    Guarantees:

    - All messages of the dead worker were received before, so none of them can be mistaken for its successor's.
    - The successor gets a new arena and a new connection to the consumer: whatever the dead worker left half done in
      memory or in a pipe is gone with the old ones. Its counters continue with the last values received from the dead
      worker.

    Args:
        plan: Parts of the engine; `specs` holds the current spec of each worker.
        num_left: How many deaths are tolerated.

    Attributes:
        num_left: How many further deaths are tolerated.
    """

    def __init__(self, plan: Plan, num_left: int) -> None:
        self._plan = plan
        self.num_left = num_left
        self._num_made = 0

    def try_restart(self, worker: int, death: WorkerDied, pool: WorkerPool, receiver: Receiver) -> bool:
        """Start a replacement for `worker`. Return False if no further death is tolerated."""
        if not self.num_left:
            return False
        self.num_left -= 1
        self._num_made += 1
        plan = self._plan
        plan.codec.renew(worker)
        port = receiver.port_of_successor(worker)
        spec = replace(plan.specs[worker], port=port, encoder=plan.codec.port(worker))
        try:
            pool.replace(worker, partial(plan.start, spec))
        except BaseException:
            port.close_in_parent()  # close our copy: no worker was started with it
            raise
        plan.specs[worker] = spec
        _LOG.warning(
            "%s. Another was started in its place: restart %d, of at most %d",
            death,
            self._num_made,
            self._num_made + self.num_left,
        )
        return True


# -- Engine ------------------------------------------------------------------------------------------------------------


_POLL: Final = 0.1  # maximum seconds of one wait
_CHECK_SECONDS: Final = 0.5  # seconds between checks of the workers while datapoints arrive
_SETTLE_SECONDS: Final = 0.1  # seconds without a message after which all messages of a killed worker have arrived
_SETTLE_SECONDS_EXITED: Final = 0.5  # the same for a worker that exited: nearly all of these have sent a last message


class Engine:
    """The running workers of one runner, and the consumer's end of their channel."""

    # Engines inherited through a fork; kept alive, because ZeroMQ's objects in them must not be finalised here.
    _inherited: ClassVar[list[Engine]] = []

    def __init__(self, plan: Plan) -> None:
        self.pid = os.getpid()
        self._plan = plan
        self.lock = threading.RLock()
        self.closing = False  # close() was called; set before the lock is taken, so that a waiting consumer yields
        self._failure: BaseException | None = None  # the error raised to the consumer; the engine is closed then
        # Whether there was one. No property: it is read as a generator is dropped, where an interrupt of a call is
        # lost.
        self.failed = False
        self.generation: object = None  # identifies the iteration that may step
        self.current_chunk: Iterator[Any] = iter(())  # datapoints received and not yet handed out
        # Pairs (worker, number of datapoints): received, and possibly still being handed out.
        self._outstanding: list[tuple[int, int]] = []
        self._worker_states = WorkerStates(len(plan.specs))
        self._restarts = Restarts(plan, plan.max_restarts)
        self._checked_at = time.monotonic()
        self._wait_timer = WaitTimer()
        # Workers that ended without a last message: since when nothing has arrived from them.
        self._quiet_since: dict[int, float] = {}
        self._watched: tuple[int, ...] | None = None  # descriptors of the workers whose end is yet unknown, if computed
        self._backlog: deque[Message] = deque()  # taken from the receiver, not yet processed
        self._pending_error: BaseException | None = None  # to be raised when the chunk has been handed out
        # A signal that arrives in this block is delivered between the starts of two workers, and undoes the others.
        with signals_deferred(), ExitStack() as undo:
            undo.callback(plan.close)
            # Workers first, then our end: a forked child inherits no open socket, and no I/O thread is lost in a fork.
            self._pool = WorkerPool([partial(plan.start, spec) for spec in plan.specs], plan.stop)
            undo.callback(self._pool.stop)
            undo.callback(plan.stop)
            self._receiver = plan.channel.open_receiver()
            undo.callback(self._receiver.close)
            plan.schedule.open()
            self._decoder = plan.codec.open_decoder()
            close_at_exit(self)
            _engines.add(self)
            undo.pop_all()

    def take_over(self) -> object:
        """Take over, and return the generation for `chunk`. The previous iteration raises at its next step."""
        self.check_process()
        generation = self.generation = object()
        with self.lock:
            self.check(generation)
            self._wait_timer.reset()
            # The previous iteration may be in the middle of a chunk: take the rest away from it.
            self.current_chunk = iter(list(self.current_chunk))
        return generation

    def chunk(self, generation: object, timeout: float | None, *, wait: bool = True) -> Iterator[Any] | None:
        """Wait for datapoints. Return an iterator over at least one, which may be left half-way; None after the last.

        The iterator is empty if everything that came next was dropped; and, without `wait`, if nothing has come.

        Raises:
            TimeoutError: No datapoint was handed out for `timeout` seconds.
            WorkerDied: A worker ended without an exception.
            DataFlowTerminated: The flow was closed, or has failed before.
            NotReentrant: A later iteration took over.
            Exception: A worker raised it.
        """
        self.check_process()
        silent = False
        while True:
            now = time.monotonic()
            with self.lock:
                self.check(generation)
                self._wait_timer.advance(now)
                if operator.length_hint(self.current_chunk):
                    return self._checked_chunk(now)
                self.finish_chunk()
                ready = self._ready()
                over = ready is None and (self._worker_states.exhausted or self._plan.schedule.exhausted)
                if over and not self._num_unreported_ends():
                    return None
                progressed = not ready and self._step(now, silent or over)
                if progressed and ready is None:
                    ready = self._ready()
                if ready:
                    return self._checked_chunk(now)
                silent = silent and not progressed
                if self._wait_timer.is_over(timeout, silent=silent) and not self._quiet_since:
                    raise late(self._plan.owner, timeout, [worker.state() for worker in self._pool.workers])
                if ready is not None or not (progressed or wait):  # everything was dropped: there is room for more
                    return self.current_chunk
                if not progressed:
                    self._plan.credit.idle()
                    silent = not self._receiver.wait(min(_POLL, timeout or _POLL), self._watched or self._sentinels())

    def end_pass(self, generation: object) -> None:
        """Check the workers at the end of a complete pass: a death that no restart covers is raised.

        `chunk` does so itself before it returns None. No-op if a later iteration took over, or the flow was closed.

        Raises:
            WorkerDied: A worker ended without an exception.
        """
        while os.getpid() == self.pid:
            with self.lock:
                if self.generation is not generation or self.closing:
                    return
                if self._num_unreported_ends() <= self._restarts.num_left:
                    return  # what follows belongs to the next pass, exceptions included
                # The rest of the chunk belongs to the next pass: it must not delay the error about the dead worker.
                rest, self.current_chunk = self.current_chunk, iter(())
                try:
                    progressed = self._step(time.monotonic(), silent=True)
                    if isinstance(self._pending_error, WorkerDied):
                        self._fail(self._pending_error)
                    if not progressed:
                        self._receiver.wait(_POLL, self._sentinels())
                finally:
                    self.current_chunk = rest

    def close(self) -> None:
        """Stop the workers and close everything. Idempotent; no-op in a forked child."""
        if os.getpid() != self.pid:
            self._inherited.append(self)
            return
        self.closing = True
        with signals_deferred(), self.lock, ExitStack() as last:  # closes all, even if one of them raises
            last.callback(self._plan.close)
            last.callback(self._receiver.close)
            last.callback(self._pool.stop)
            list(self.current_chunk)  # an iteration in the middle of the chunk finds it empty, and asks for the next
            self._plan.stop()
            self._receiver.stop()

    def drop_chunk(self) -> None:
        """Drop the current chunk, in a child forked from this process: these datapoints belong to the parent alone."""
        list(self.current_chunk)

    def check_process(self) -> None:
        """Raise in a forked child. Called before the lock is taken, because a thread of the parent may have held it."""
        if os.getpid() != self.pid:
            raise forked(self._plan.owner, self.pid)

    # -- Called with the lock held -------------------------------------------------------------------------------------

    def check(self, generation: object) -> None:
        owner = self._plan.owner
        if self._failure is not None:
            raise failed_before(owner, self._failure) from self._failure
        if self.closing:
            raise terminated(owner)
        if self.generation is not generation:
            raise superseded(owner)

    def _ready(self) -> list[Any] | None:
        """Take the next result of the schedule as the current chunk, or raise it."""
        try:
            ready = self._plan.schedule.ready()
        except KeyboardInterrupt as error:  # the schedule may be inconsistent
            self._fail(error)
        ready = self._pending_error if ready is None else ready
        if isinstance(ready, BaseException):
            self._fail(ready)
        self.current_chunk = iter(ready or ())
        return ready

    def _step(self, now: float, silent: bool) -> bool:
        """Process one message, if there is one, and check the workers, if it is time.

        Returns True if something has changed.
        """
        try:
            message = self._backlog.popleft() if self._backlog else self._receiver.receive_nowait()
            if message is not None:
                self._receive(message, now)
            if silent or now - self._checked_at > _CHECK_SECONDS:
                self._check_workers(now)
        except BaseException as error:
            self._fail(error)
        return message is not None or self._pending_error is not None

    def _receive(self, message: Message, now: float) -> None:
        worker = message.worker
        if worker in self._quiet_since:
            self._quiet_since[worker] = now
        if message.kind in RESULT_KINDS:
            self._worker_states.record_message(worker, message.kind, self._receive_results(message))
            return
        self._worker_states.record_message(worker, message.kind)
        self._watched = None
        if message.kind is Kind.HELLO and self._worker_states.all_connected:
            self._receiver.stop_accepting()
        elif message.kind is Kind.ERROR:
            self._pending_error = self._plan.tolerance.complete(self._decoder.decode_failure(message.body))
        elif message.kind is Kind.REPORT:
            self._plan.credit.report_received(worker)
            self._pending_error = self._plan.tolerance.process_report(self._decoder.decode_report(message.body))
        elif message.kind is Kind.LEFT:
            death = self._death(worker, message.count)
            death.__cause__ = self._decoder.decode_failure(message.body)  # shows where
            self._handle_exit(worker, death)

    def _receive_results(self, message: Message) -> int:
        """Enter the results in the schedule. Return the number of datapoints that could be decoded."""
        worker = message.worker
        datapoints: list[Any] = []
        error: BaseException | None = None
        if message.kind is Kind.TASK_FAILED:
            error = self._decoder.decode_failure(message.body)
        elif message.count:
            try:
                datapoints = self._decoder.decode(worker, message.body)
            except Undecodable as broken:
                datapoints = broken.before
                position = self._worker_states.received[worker] + len(datapoints)
                error = unreadable(self._plan.owner, worker, len(self._plan.specs), position, broken)
            # Credit is granted as a chunk begins: the worker continues while the consumer takes the chunk.
            self._plan.credit.grant(worker, message.count, message.nbytes, message.queued)
            self._outstanding.append((worker, message.count))
        self._plan.schedule.receive(message, datapoints, error)
        return len(datapoints)

    def finish_chunk(self) -> None:
        """Report the last chunk as used up: its worker may know that the consumer keeps what it still has of it.

        The same holds for datapoints that have come and cannot be handed out yet: a worker whose task has to come first
        may need the memory.
        """
        next(self.current_chunk, None)  # an exhausted list iterator releases its list, and so the arrays in it
        while self._outstanding:
            self._plan.credit.done(*self._outstanding.pop())
        self._plan.schedule.handed_out()

    def _sentinels(self) -> tuple[int, ...]:
        """Descriptors of the workers whose end is yet unknown."""
        self._watched = self._pool.sentinels(but=self._worker_states.over | self._quiet_since.keys())
        return self._watched

    def _check_workers(self, now: float) -> None:
        """Check the workers, and declare one dead that ended without a last message and has no message under way."""
        self._checked_at = now
        self._watched = None
        for k in self._pool.ended():
            if not self._worker_states.awaits_last_message(k):
                continue
            exitcode = self._pool.workers[k].exitcode()
            killed = exitcode is not None and exitcode < 0
            if now - self._quiet_since.setdefault(k, now) < (_SETTLE_SECONDS if killed else _SETTLE_SECONDS_EXITED):
                self._checked_at = (
                    now - _CHECK_SECONDS + _SETTLE_SECONDS
                )  # check again soon, also while other workers deliver
            elif not self._is_under_way(k):
                death = self._death(k, exitcode)  # first: it depends on whether the worker had connected
                self._worker_states.record_death(k)
                self._handle_exit(k, death)

    def _num_unreported_ends(self) -> int:
        """Number of workers that have ended without a last message so far: they died, or the message is under way."""
        return sum(map(self._worker_states.awaits_last_message, self._pool.ended()))

    def _handle_exit(self, worker: int, death: WorkerDied) -> None:
        """Replace a worker that has ended, after all its messages were received; otherwise record the error."""
        if self._restarts.try_restart(worker, death, self._pool, self._receiver):
            self._quiet_since.pop(worker, None)
            self._outstanding = [(whose, count) for whose, count in self._outstanding if whose != worker]
            self._worker_states.record_replacement(worker)
            self._plan.schedule.replaced(worker)
        elif not self._plan.schedule.lost(worker, death):
            self._pending_error = self._pending_error or death

    def _checked_chunk(self, now: float) -> Iterator[Any]:
        """Return the current chunk, to be handed out.

        A slow consumer may take long over a chunk, so the workers are checked here too: a death is raised without
        waiting for the end of the chunk. What other workers have sent is given up then; what the dead worker has sent
        is handed out first, as always.
        """
        self._wait_timer.reset()
        if now - self._checked_at > _CHECK_SECONDS:
            try:
                self._check_workers(now)
            except BaseException as error:  # it may have taken a message
                self._fail(error)
            if self._pending_error is not None:
                self._fail(self._pending_error)
        return self.current_chunk

    def _is_under_way(self, worker: int) -> bool:
        """Return True if a message of `worker` was not processed yet.

        Takes all messages that have come. These are few, because no credit is granted in the meantime.
        """
        while (message := self._receiver.receive_nowait()) is not None or self._receiver.wait(0):
            if message is not None:
                self._backlog.append(message)
        is_current = operator.length_hint(self.current_chunk) and any(whose == worker for whose, _ in self._outstanding)
        return bool(is_current) or any(message.worker == worker for message in self._backlog)

    def _death(self, worker: int, exitcode: int | None) -> WorkerDied:
        plan, pid = self._plan, self._pool.workers[worker].pid
        received = self._worker_states.received[worker] if self._worker_states.connected(worker) else None
        return plan.died(plan.owner, worker, len(plan.specs), pid, exitcode, received)

    def _fail(self, error: BaseException) -> NoReturn:
        self._failure, self.failed = error, True
        self.close()
        raise error


_engines: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()


def _drop_chunks() -> None:
    for engine in list(_engines):
        engine.drop_chunk()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_chunks)


# -- Engines with passes -----------------------------------------------------------------------------------------------


class NodeEngine(Engine):
    """The engine of one node, at one position in a chain of nodes."""

    def __init__(self, plan: Plan, stream: Stream) -> None:
        self.stream = stream
        super().__init__(plan)


class PassEngine(NodeEngine):
    """Engine in which every iteration is one complete pass; outstanding work of an abandoned pass is discarded."""

    def __init__(self, plan: Plan, stream: Stream) -> None:
        assert isinstance(plan.schedule, TaskSchedule)
        self.schedule: Any = plan.schedule  # its class is known to the subclasses and owners
        self._active_generation: object = None  # the generation of the iteration that is not over
        super().__init__(plan, stream)

    @property
    def is_free(self) -> bool:
        """Whether no iteration is under way."""
        return self._active_generation is None

    def begin_pass(self, *what: Any, holes: bool = False) -> object:
        """Take over for a new pass. Return the generation of this iteration.

        Args:
            what: Which pass; the arguments of the schedule's `begin_pass`.
            holes: Whether `HOLE` is handed out in place of a dropped datapoint.
        """
        generation = self.take_over()
        with self.lock:
            self.check(generation)
            self._discard_work()
            self.schedule.begin_pass(*what)
            self.schedule.keeps_holes = holes
            self._active_generation = generation
        return generation

    def abandon(self, generation: object) -> None:
        """End the iteration with this generation, and discard its outstanding work."""
        if os.getpid() != self.pid:
            return
        with self.lock:
            if self.generation is generation and not self.closing:
                self._discard_work()
                self._active_generation = None

    def _discard_work(self) -> None:
        list(self.current_chunk)
        self.finish_chunk()
        self.schedule.begin()
