"""The one loop: everything that has workers waits for its datapoints here.

Guarantees:

- Nothing waits without a limit: the consumer looks at its workers whenever nothing comes, and every half second while
  others deliver.
- Drain before you judge: what a worker had sent before it died or failed is handed out before its end is reported.
- No pass ends as if nothing had happened after a worker died in it: before its end is reported, the workers are looked
  at, and a death that was found is raised.
- No message is lost unnoticed: whatever interrupts the engine between taking a message and entering it in the books
  (an exception, Ctrl-C) ends the run. An interrupt while it waits does no harm.
- The later of two iterations wins. The earlier raises `NotReentrant` at its next step, and no datapoint is lost or
  given twice: a chunk is a list iterator, stepped under the interpreter's lock, and the later empties the earlier's.
- After `close` no worker, descriptor or socket file of the run is left. A signal that arrives within the start or
  `close` does not change that: it is raised when that is done, or undone.

Threads: all but `take_over`'s first line runs under one lock, held for at most `_POLL` seconds at a time while waiting.

What an engine runs: the choices of one runner or map, made and not yet started.

How long the consumer has waited for a datapoint. Pure: no clock.

A worker in the place of one that has died.

An engine whose passes begin and end: what is under way for one that was broken off is wanted no more.
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
from dataflow.channel.messages import Kind, Message
from dataflow.channel.protocols import Channel, Receiver
from dataflow.codec.protocols import Codec, Undecodable
from dataflow.engine.schedules import MixedSchedule, Schedule, TaskSchedule
from dataflow.engine.task_headers import Mark
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

__all__ = ["Placed", "Engine", "PassEngine", "Plan", "Restarts", "WaitTimer"]


# -- What an engine runs: the choices of one runner or map, made and not yet started -----------------------------------


@dataclass
class Plan:
    """What an engine runs.

    Attributes:
        owner: Name of the runner's class, for messages.
        channel: How messages move.
        codec: How the consumer reads them.
        credit: What bounds the workers.
        specs: What each worker runs.
        start: Starts one worker.
        schedule: Where datapoints wait to be handed out.
        max_restarts: How many workers that died are replaced.
        tolerance: Bears the failures of single items that workers report, and judges them.
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
        """Tell the workers that nothing more is wanted."""
        self.credit.stop()
        self.schedule.stop()

    def close(self) -> None:
        """Let go of all that the consumer holds. Idempotent."""
        with ExitStack() as last:  # all of it, whatever one of them raises
            for end in (self.credit, self.schedule, self.codec, self.channel):
                last.callback(end.close)


# -- How long the consumer has waited for a datapoint. Pure: no clock --------------------------------------------------


_MAX_AT_ONCE: Final = 0.1  # seconds: a source that takes longer to read, or a debugger, is not what is waited for
_DRAINED: Final = 0.1  # seconds in which all that had come before is heard, also where there is always something new


class WaitTimer:
    """Judges whether a consumer that asks again and again has waited too long.

    Guarantees:

    - What counts is that a datapoint is handed out: neither a report of one that failed, nor results that were all
      dropped.
    - What has come is heard before it is judged.
    """

    def __init__(self) -> None:
        self._waited: float | None = None  # seconds since a datapoint was handed out; None until it is asked for more
        self._now = 0.0  # up to here it is counted
        self._over_since: float | None = None  # when it was first seen that it is too long

    def satisfied(self) -> None:
        """A datapoint is handed out; or somebody else begins to wait."""
        self._waited = self._over_since = None

    def asked(self, now: float) -> None:
        """The consumer has asked, or goes on waiting."""
        self._waited = 0.0 if self._waited is None else self._waited + min(now - self._now, _MAX_AT_ONCE)
        self._now = now

    def is_over(self, timeout: float | None, *, silent: bool) -> bool:
        """Whether it has waited for `timeout` seconds; `silent` if nothing was there to be heard."""
        if timeout is None or self._waited is None or self._waited < timeout:
            return False
        if self._over_since is None:
            self._over_since = self._now
        return silent or self._now - self._over_since >= _DRAINED


# -- A worker in the place of one that has died ------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)


class Restarts:
    """How many deaths are still made good; and how it is done.

    Guarantees:

    - All that the dead worker had sent was heard before: so nothing of it can be taken for its successor's.
    - The successor has an arena, and a way to the consumer, that nobody used before it: what the dead one left half
      done in memory or in a pipe is gone with it. Its counters go on where the dead one was heard.

    Args:
        plan: What is run; `specs` holds what each worker runs at present.
        num_left: How many deaths are made good.

    Attributes:
        num_left: How many still are.
    """

    def __init__(self, plan: Plan, num_left: int) -> None:
        self._plan = plan
        self.num_left = num_left
        self._num_made = 0

    def made_good(self, worker: int, death: WorkerDied, pool: WorkerPool, receiver: Receiver) -> bool:
        """Start another in the place of `worker`; False if there were too many deaths."""
        if not self.num_left:
            return False
        self.num_left -= 1
        self._num_made += 1
        plan = self._plan
        plan.codec.renew(worker)
        port = receiver.readmit(worker)
        spec = replace(plan.specs[worker], port=port, encoder=plan.codec.port(worker))
        try:
            pool.replace(worker, partial(plan.start, spec))
        except BaseException:
            port.hand_over()  # to nobody
            raise
        plan.specs[worker] = spec
        _LOG.warning(
            "%s. Another was started in its place: restart %d, of at most %d",
            death,
            self._num_made,
            self._num_made + self.num_left,
        )
        return True


# -- The one loop: everything that has workers waits for its datapoints here -------------------------------------------


_POLL: Final = 0.1  # seconds that one wait may last
_LOOK: Final = 0.5  # seconds after which the workers are looked at, even while datapoints come
_SETTLE: Final = 0.1  # seconds without a message after which all that a killed worker had sent has arrived here
_SETTLE_EXITED: Final = 0.5  # the same for one that exited: nearly all of these have sent last words


class Engine:
    """The workers of one runner at work, and the consumer's end of what they send."""

    _inherited: ClassVar[list[Engine]] = []  # through a fork: kept, lest ZeroMQ's objects in them are finalised here

    def __init__(self, plan: Plan) -> None:
        self.pid = os.getpid()
        self._plan = plan
        self.lock = threading.RLock()
        self.closing = False  # close() was called; set before the lock is taken, so that a waiting consumer yields
        self._failure: BaseException | None = None  # what the consumer was told; the engine is closed then
        self.generation: object = None  # of the iteration that may step
        self.take_chunk: Iterator[Any] = iter(())  # datapoints received and not yet handed out
        self._undone: list[tuple[int, int]] = []  # what was heard, and may be in hand: of whom, how many datapoints
        self._worker_states = WorkerStates(len(plan.specs))
        self._restarts = Restarts(plan, plan.max_restarts)
        self._looked = time.monotonic()
        self._wait_timer = WaitTimer()
        self._untimely: dict[int, float] = {}  # workers that died owing something: when that was seen, or last heard
        self._watched: tuple[int, ...] | None = None  # descriptors of the workers whose end would be news, if known
        self._backlog: deque[Message] = deque()  # taken from the receiver, not yet heard
        self._verdict: BaseException | None = None  # to be reported when the chunk has been handed out
        # A signal that arrives meanwhile is delivered between the starts of two workers, and undoes the others.
        with signals_deferred(), ExitStack() as undo:
            undo.callback(plan.close)
            # Workers first, then our end: a forked child inherits no open socket, and no I/O thread is forked away.
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

    @property
    def failed(self) -> bool:
        """Whether a failure was reported; everything is closed then."""
        return self._failure is not None

    def take_over(self) -> object:
        """Take over: the ticket for `chunk`. The iteration that had the last one raises at its next step."""
        self.check_process()
        generation = self.generation = object()
        with self.lock:
            self.check(generation)
            self._wait_timer.satisfied()
            # The earlier iteration may stand in the middle of a chunk: take the rest away from it.
            self.take_chunk = iter(list(self.take_chunk))
        return generation

    def chunk(self, generation: object, timeout: float | None, *, wait: bool = True) -> Iterator[Any] | None:
        """Wait for datapoints: an iterator over at least one, which may be left half-way. None after the last.

        It is empty where all that came next was dropped; and, without `wait`, where nothing has come.

        Raises:
            TimeoutError: No datapoint was handed out for `timeout` seconds.
            WorkerDied: A worker ended without an exception.
            DataFlowTerminated: The flow was closed, or has failed before.
            NotReentrant: A later iteration took over.
            Exception: Whatever a worker raised.
        """
        self.check_process()
        silent = False
        while True:
            now = time.monotonic()
            with self.lock:
                self.check(generation)
                self._wait_timer.asked(now)
                if operator.length_hint(self.take_chunk):
                    return self._in_hand(now)
                self.hand_out_ended()
                ready = self._ready()
                over = ready is None and (self._worker_states.exhausted or self._plan.schedule.exhausted)
                if over and not self._num_unreported_ends():
                    return None
                news = not ready and self._step(now, silent or over)
                if news and ready is None:
                    ready = self._ready()
                if ready:
                    return self._in_hand(now)
                silent = silent and not news
                if self._wait_timer.is_over(timeout, silent=silent) and not self._untimely:
                    raise late(self._plan.owner, timeout, [worker.state() for worker in self._pool.workers])
                if ready is not None or not (news or wait):  # all was dropped: there is room for more
                    return self.take_chunk
                if not news:
                    self._plan.credit.idle()
                    silent = not self._receiver.wait(min(_POLL, timeout or _POLL), self._watched or self._sentinels())

    def end_pass(self, generation: object) -> None:
        """Look at the workers at the end of a pass that is complete: a death that no restart covers is raised.

        `chunk` does so itself before it returns None. No-op if a later iteration took over, or the flow was closed.

        Raises:
            WorkerDied: A worker ended without an exception.
        """
        while os.getpid() == self.pid:
            with self.lock:
                if self.generation is not generation or self.closing:
                    return
                if self._num_unreported_ends() <= self._restarts.num_left:
                    return  # what follows is for the next pass, exceptions too
                # What is left of the chunk belongs to the next pass: it must not make the dead worker wait its turn.
                rest, self.take_chunk = self.take_chunk, iter(())
                try:
                    news = self._step(time.monotonic(), silent=True)
                    if isinstance(self._verdict, WorkerDied):
                        self._fail(self._verdict)
                    if not news:
                        self._receiver.wait(_POLL, self._sentinels())
                finally:
                    self.take_chunk = rest

    def close(self) -> None:
        """Stop the workers and close everything. Idempotent; in a forked child it does nothing."""
        if os.getpid() != self.pid:
            self._inherited.append(self)
            return
        self.closing = True
        with signals_deferred(), self.lock, ExitStack() as last:  # all of it, whatever one of them raises
            last.callback(self._plan.close)
            last.callback(self._receiver.close)
            last.callback(self._pool.stop)
            list(self.take_chunk)  # an iteration in the middle of it finds it empty, and asks for the next
            self._plan.stop()
            self._receiver.stop()

    def leave(self) -> None:
        """In a child forked from this process: what was not handed out yet is for its parent alone."""
        list(self.take_chunk)

    def check_process(self) -> None:
        """Before the lock is taken, which a thread of the parent may have held at the fork."""
        if os.getpid() != self.pid:
            raise forked(self._plan.owner, self.pid)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def check(self, generation: object) -> None:
        owner = self._plan.owner
        if self._failure is not None:
            raise failed_before(owner, self._failure) from self._failure
        if self.closing:
            raise terminated(owner)
        if self.generation is not generation:
            raise superseded(owner)

    def _ready(self) -> list[Any] | None:
        """What comes next, taken in hand; or raised."""
        try:
            ready = self._plan.schedule.ready()
        except KeyboardInterrupt as error:  # its books may be wrong
            self._fail(error)
        ready = self._verdict if ready is None else ready
        if isinstance(ready, BaseException):
            self._fail(ready)
        self.take_chunk = iter(ready or ())
        return ready

    def _step(self, now: float, silent: bool) -> bool:
        """Hear one message, if one is there, and look at the workers, if it is time; whether there is news."""
        try:
            message = self._backlog.popleft() if self._backlog else self._receiver.take()
            if message is not None:
                self._hear(message, now)
            if silent or now - self._looked > _LOOK:
                self._look(now)
        except BaseException as error:
            self._fail(error)
        return message is not None or self._verdict is not None

    def _hear(self, message: Message, now: float) -> None:
        worker = message.worker
        if worker in self._untimely:
            self._untimely[worker] = now
        if message.kind is Kind.DATA:
            self._worker_states.heard(worker, Kind.DATA, self._hear_datapoints(message))
            return
        self._worker_states.heard(worker, message.kind)
        self._watched = None
        if message.kind is Kind.HELLO and self._worker_states.all_connected:
            self._receiver.everyone_connected()
        elif message.kind is Kind.ERROR:
            self._verdict = self._plan.tolerance.complete(self._decoder.decode_failure(message.body))
        elif message.kind is Kind.REPORT:
            self._plan.credit.heard(worker)
            self._verdict = self._plan.tolerance.heard(self._decoder.decode_report(message.body))
        elif message.kind is Kind.LEFT:
            death = self._death(worker, message.count)
            death.__cause__ = self._decoder.decode_failure(message.body)  # tells where
            self._bury(worker, death)

    def _hear_datapoints(self, message: Message) -> int:
        worker, error = message.worker, None
        try:
            datapoints = self._decoder.decode(worker, message.body)
        except Undecodable as broken:
            position = self._worker_states.received[worker] + sum(type(dp) is not Mark for dp in broken.before)
            error = unreadable(self._plan.owner, worker, len(self._plan.specs), position, broken)
            datapoints = broken.before
        # Credit is given as a chunk is begun: the worker goes on while the consumer takes it.
        self._plan.credit.grant(worker, message.count, message.nbytes, message.queued)
        self._undone.append((worker, message.count))
        return self._plan.schedule.heard(worker, datapoints, error, message.nbytes)

    def hand_out_ended(self) -> None:
        """The last chunk is used up: its worker may know that the consumer keeps what it still has of it.

        So does what has come and cannot be handed out yet: whoever waits for its turn may need the memory.
        """
        next(self.take_chunk, None)  # a list iterator that has ended lets go of its list, and so of the arrays in it
        while self._undone:
            self._plan.credit.done(*self._undone.pop())
        self._plan.schedule.handed_out()

    def _sentinels(self) -> tuple[int, ...]:
        """Descriptors of the workers whose end would be news."""
        self._watched = self._pool.sentinels(but=self._worker_states.over | self._untimely.keys())
        return self._watched

    def _look(self, now: float) -> None:
        """Look at the workers; condemn one that died and has nothing more under way."""
        self._looked = now
        self._watched = None
        for k in self._pool.ended():
            if not self._worker_states.missed(k):
                continue
            exitcode = self._pool.workers[k].exitcode()
            killed = exitcode is not None and exitcode < 0
            if now - self._untimely.setdefault(k, now) < (_SETTLE if killed else _SETTLE_EXITED):
                self._looked = now - _LOOK + _SETTLE  # look again soon, also while others deliver
            elif not self._is_under_way(k):
                death = self._death(k, exitcode)  # before: it asks whether the worker had connected
                self._worker_states.dead(k)
                self._bury(k, death)

    def _num_unreported_ends(self) -> int:
        """How many workers have ended and not said why, as far as was received: they died, or their last words come."""
        return sum(map(self._worker_states.missed, self._pool.ended()))

    def _bury(self, worker: int, death: WorkerDied) -> None:
        """A worker has ended, and all that it had sent was heard."""
        if self._restarts.made_good(worker, death, self._pool, self._receiver):
            self._untimely.pop(worker, None)
            self._undone = [(whose, count) for whose, count in self._undone if whose != worker]
            self._worker_states.replaced(worker)
            self._plan.schedule.replaced(worker)
        elif not self._plan.schedule.lost(worker, death):
            self._verdict = self._verdict or death

    def _in_hand(self, now: float) -> Iterator[Any]:
        """The chunk, on its way to the consumer.

        A slow one may take long over it: a death is not kept from it till the end of that. What others have sent is
        given up then; what the dead worker has sent is handed out first, as always.
        """
        self._wait_timer.satisfied()
        if now - self._looked > _LOOK:
            try:
                self._look(now)
            except BaseException as error:  # it may have taken a message
                self._fail(error)
            if self._verdict is not None:
                self._fail(self._verdict)
        return self.take_chunk

    def _is_under_way(self, worker: int) -> bool:
        """Whether there is a message of `worker` that was not heard yet.

        Takes all that has come. That is not much: nobody is given credit meanwhile.
        """
        while (message := self._receiver.take()) is not None or self._receiver.wait(0):
            if message is not None:
                self._backlog.append(message)
        in_hand = operator.length_hint(self.take_chunk) and any(whose == worker for whose, _ in self._undone)
        return bool(in_hand) or any(message.worker == worker for message in self._backlog)

    def _death(self, worker: int, exitcode: int | None) -> WorkerDied:
        plan, pid = self._plan, self._pool.workers[worker].pid
        received = self._worker_states.received[worker] if self._worker_states.connected(worker) else None
        return plan.died(plan.owner, worker, len(plan.specs), pid, exitcode, received)

    def _fail(self, error: BaseException) -> NoReturn:
        self._failure = error
        self.close()
        raise error


_engines: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()


def _leave_all() -> None:
    for engine in list(_engines):
        engine.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


# -- An engine whose passes begin and end: what is under way for one that was broken off is wanted no more -------------


class Placed(Engine):
    """An engine that knows for which place in the chain it was started."""

    def __init__(self, plan: Plan, stream: Stream) -> None:
        self.stream = stream
        super().__init__(plan)


class PassEngine(Placed):
    """An engine of which each iteration is a pass of its own."""

    def __init__(self, plan: Plan, stream: Stream) -> None:
        assert isinstance(plan.schedule, TaskSchedule)
        self.schedule: Any = plan.schedule  # which kind, knows who made it
        self._served: object = None  # the ticket of the iteration that is not over
        super().__init__(plan, stream)

    @property
    def is_free(self) -> bool:
        """Whether no iteration is under way."""
        return self._served is None

    def begin_pass(self, *what: Any, holes: bool = False) -> object:
        """Take over, for the pass that the desk is told: the ticket for this iteration.

        Args:
            what: Which pass, in the words of the desk.
            holes: Whether `HOLE` is given for what was dropped.
        """
        generation = self.take_over()
        with self.lock:
            self.check(generation)
            self._forget()
            self.schedule.begin_pass(*what)
            self.schedule.keeps_holes = holes
            self._served = generation
        return generation

    def abandon(self, generation: object) -> None:
        """The iteration with this ticket is over, and what is under way for it is wanted no more."""
        if os.getpid() != self.pid:
            return
        with self.lock:
            if self.generation is generation and not self.closing:
                self._forget()
                self._served = None

    def _forget(self) -> None:
        list(self.take_chunk)
        self.hand_out_ended()
        self.schedule.begin()
