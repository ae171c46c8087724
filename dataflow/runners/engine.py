"""Engine: events of the supervisor in, datapoints out, for the consumer's loop.

A `Plan` holds the parts of one runner or map, before it is started. The supervisor gives messages and deaths, the codec
decodes, and the schedule knows what is handed out next. `WaitTimer` decides when the consumer has waited too long.

Guarantees:

- Messages before errors: what a worker had sent before it died or failed is handed out before its end is reported; so
  is, before a `TimeoutError`, what has come of the task that is late.
- What comes from a worker after it was killed for a datapoint that takes too long is dropped: its task is done again.
- A datapoint in which a worker has ended twice is not tried again, and gives the restarts back that it has cost. It is
  left out, within the budget of failures; otherwise an error comes in its place, as an exception of the flow would.
- A pass in which a worker died never ends normally: before its end is reported, the workers are checked, and a death
  that was found is raised.
- No message is lost silently: any interruption of the engine (an exception, Ctrl-C) between taking a message and
  entering it in the schedule ends the run. An interrupt while it waits is harmless.
- The later of two iterations wins. The earlier raises `NotReentrant` at its next step, and no datapoint is lost or
  given out twice: a chunk is a list iterator, stepped under the interpreter's lock, and the later iteration empties the
  earlier one's.
- After `close`, nothing of the run is left, as the supervisor guarantees.

Threads: everything except the first lines of `take_over` runs under one lock, held for at most `_POLL` seconds at a
time while waiting.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeVar, final

from dataflow.errors import TooManyFailures, WorkerDied, WorkerTraceback
from dataflow.observe.observer import RunnerMetrics
from dataflow.protocol.failures import Failure, Tolerance
from dataflow.protocol.seeding import Stream
from dataflow.runners.backends import Links
from dataflow.runners.schedules import NOT_WANTED, EndedItem, ItemEnd, Schedule
from dataflow.runners.supervisor import Death, Supervisor
from dataflow.runners.worker_main import WorkerSpec
from dataflow.system.cleanup import close_at_exit
from dataflow.system.interrupts import signals_deferred
from dataflow.system.machine import processor_times
from dataflow.system.session import Session
from dataflow.system.worker_errors import (
    LostWorker,
    ended_twice,
    ends_of_item,
    how_it_ended,
    late,
    late_in,
    unreadable,
)
from dataflow.system.worker_pool import Worker
from dataflow.transport.codec import Undecodable
from dataflow.transport.messages import DATA_KINDS, RESULT_KINDS, Kind, Message, Port
from dataflow.transport.worker_counters import WorkerActivity

if TYPE_CHECKING:
    from dataflow.runners.item_watch import LateWorkers
    from dataflow.runners.scaling import Scaling, WorkerCount

__all__ = ["Engine", "Plan", "WaitTimer"]

S = TypeVar("S", bound=Schedule)


# -- Plan --------------------------------------------------------------------------------------------------------------


@dataclass
class Plan(Generic[S]):
    """The parts of an engine, made and not yet started.

    Attributes:
        owner: Name of the runner's class, for messages.
        stream: The place in the chain of nodes.
        links: What lies between the consumer and its workers.
        specs: The worker spec of each worker.
        start: Creates one worker.
        schedule: Holds datapoints until they are handed out.
        max_restarts: How many workers that died are replaced.
        tolerance: Failure budget for the single items that workers report as failed.
        worker_count: Decides how many workers get work; None if all do.
        num_reserved: How many workers, the last ones, are started only when they get work.
        item_timeout: Seconds that a worker may spend on one datapoint; None for no limit.
    """

    owner: str
    stream: Stream
    links: Links
    specs: list[WorkerSpec]
    start: Callable[[WorkerSpec], Worker]
    schedule: S
    max_restarts: int = 0
    tolerance: Tolerance = field(default_factory=lambda: Tolerance("", None))
    worker_count: WorkerCount | None = None
    num_reserved: int = 0
    item_timeout: float | None = None

    def successor(self, worker: int, port: Port) -> Callable[[], Worker]:
        """Return the function that creates a worker which is started later, or the successor of one that has died.

        The dead worker has sent everything that it will send. The new one gets new memory: what the dead one left half
        done there is gone with the old. Its counters continue with the last values received from the dead worker.
        """
        codec = self.links.codec
        codec.renew(worker)
        self.specs[worker] = replace(self.specs[worker], port=port, encoder=codec.port(worker))
        return partial(self.start, self.specs[worker])

    def stop(self) -> None:
        """Request the workers to stop."""
        self.links.credit.stop()
        self.schedule.stop()

    def close(self) -> None:
        """Release everything that the consumer holds. Idempotent."""
        links = self.links
        with ExitStack() as last:  # closes all, even if one of them raises
            # `ExitStack` calls them in reverse, `credit` last. The schedule goes before the codec: results that were
            # not handed out are dropped before the memory that they are in.
            for end in (links.credit, links.codec, self.schedule, links.channel, links.stacks):
                if end is not None:
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


# -- Engine ------------------------------------------------------------------------------------------------------------


_LOG: Final = logging.getLogger(__name__)
_POLL: Final = 0.1  # maximum seconds of one wait, and so how long `close` in another thread may wait for the lock
_NO_THREAD: Final = "can't start new thread"  # the text by which Python says so, in a RuntimeError


@final
class Engine(Generic[S]):
    """The running workers of one runner or map, and what has come from them.

    What ends, and what is kept then:

    | | called by | chunk | issued work | workers |
    |---|---|---|---|---|
    | `release_chunk` | a map, before it reads on | its memory, if all was taken | goes on | go on |
    | `end_pass` | a mixture, after its last datapoint | kept for the next pass | goes on | go on; deaths raise |
    | `abandon` | an iteration that was left | dropped | discarded | go on |
    | `close` | the user, or a failure | dropped | discarded | stopped |

    Attributes:
        schedule: Its schedule. Its methods are called under `lock`.
        stream: The place in the chain of nodes for which the workers were started.
        tolerance: The failure budget of its workers.
        session: Which process and which iteration may use the engine.
        metrics: Where the time goes.
        jobserver: Says which workers work, if they take turns.
        lock: Held for every step.
        is_free: Whether no pass is under way.
    """

    # Engines inherited through a fork; kept alive, because ZeroMQ's objects in them must not be finalised here.
    _inherited: ClassVar[list[Engine[Any]]] = []

    def __init__(self, plan: Plan[S]) -> None:
        links = plan.links
        self._plan = plan
        self._credit = links.credit
        self.jobserver = links.credit.jobserver
        self.schedule = plan.schedule
        self.stream = plan.stream
        self.tolerance = plan.tolerance
        self.session = Session(plan.owner)
        first = plan.specs[: len(plan.specs) - plan.num_reserved]
        self.metrics = RunnerMetrics(links.credit.counters_of, len(first), links.codec.bytes_in_use)
        self.metrics.take_turns = self.jobserver is not None
        # Reentrant: `_fail` closes the engine under it, and a handler of a signal may call `close` during a step.
        self.lock = threading.RLock()
        self.is_free = True
        self._generation: object = None  # of the iteration that took over last; that of the session may wait to do so
        self._chunk: Iterator[Any] = iter(())  # datapoints received and not yet handed out
        # Pairs (worker, number of datapoints): received, and possibly still being handed out.
        self._outstanding: list[tuple[int, int]] = []
        self._wait_timer = WaitTimer()
        self._pending_error: BaseException | None = None  # to be raised when the chunk has been handed out
        self._death_in_schedule: BaseException | None = None  # that the schedule will raise in its turn
        with signals_deferred(), ExitStack() as undo:
            # Undone in reverse: workers that stop still write to the memory, so they end before it is closed.
            undo.callback(plan.close)
            self._supervisor = Supervisor(
                plan.owner,
                links.channel,
                [partial(plan.start, spec) for spec in first],
                request_stop=plan.stop,
                successor=plan.successor,
                max_restarts=plan.max_restarts,
                died=links.died,
                num_reserved=plan.num_reserved,
            )
            undo.callback(self._supervisor.stop)
            self._late: LateWorkers | None = None
            if plan.item_timeout is not None:
                from dataflow.runners.item_watch import LateWorkers

                self._late = LateWorkers(plan.item_timeout, self._supervisor, links.credit, links.stacks)
            plan.schedule.open()
            self._scaling: Scaling | None = None  # None if all workers get work
            if plan.worker_count is not None:
                from dataflow.runners.scaling import Scaling

                self._scaling = Scaling(plan.worker_count, self.metrics, self._processor_times)
                self._set_workers(plan.worker_count.num)
            links.credit.started()  # now that the workers know which of them get work
            self._decoder = links.codec.open_decoder()
            close_at_exit(self)
            _engines.add(self)
            undo.pop_all()

    @property
    def workers(self) -> Any:
        """The workers that run, or have ended."""
        return self._supervisor.workers

    # -- iterations ----------------------------------------------------------------------------------------------------

    def take_over(self, begin: Callable[[], object] | None = None) -> object:
        """Begin an iteration that continues with what has come, and return its generation, for `chunk`.

        The previous iteration raises at its next step. `begin` is called under the lock.
        """
        # Before the lock: in a forked child, a thread that exists in the parent only may hold it for ever.
        self.session.check_process()
        # Before the lock: the previous iteration holds it while it waits, then looks at the generation, and gives way.
        generation = self.session.supersede()
        with self.lock:
            self._take_over(generation, begin)
        return generation

    def begin_pass(self, begin: Callable[[], object]) -> object:
        """Begin an iteration that is one complete pass, and return its generation, for `chunk`.

        Outstanding work of an abandoned pass is discarded; then `begin` tells the schedule which pass it is.
        """
        return self.take_over(partial(self._discard_and_begin, begin))

    def begin_pass_if_free(self, begin: Callable[[], object]) -> object | None:
        """As `begin_pass`, unless a pass is under way or another thread begins one: return None, and disturb nobody."""
        self.session.check_process()
        # Who waits for datapoints holds the lock nearly all the time, so this does not wait for it.
        if not self.lock.acquire(blocking=False):
            return None
        try:
            # A thread in `take_over` that waits for the lock has changed the generation of the session.
            generation = self.session.supersede_if(self._generation) if self.is_free else None
            if generation is not None:
                self._take_over(generation, partial(self._discard_and_begin, begin))
            return generation
        finally:
            self.lock.release()

    def abandon(self, generation: object) -> None:
        """End the pass with this generation, and discard its outstanding work."""
        # A forked child, which must not wait for the lock: a thread of the parent may have held it.
        if not self.session.is_own:
            return
        with self.lock:
            # The generator of an earlier pass may be dropped late, and must not discard the work of the current one.
            if self.session.generation is generation and not self.session.closed:
                self.metrics.end_iteration()
                self._discard_work()
                self.is_free = True

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
        self.session.check_process()
        try:
            return self._next_chunk(generation, timeout, wait)
        finally:
            self.metrics.leave()

    def _next_chunk(self, generation: object, timeout: float | None, wait: bool) -> Iterator[Any] | None:
        supervisor, metrics = self._supervisor, self.metrics
        silent = False
        while True:
            now = time.monotonic()
            with self.lock:
                self.session.check(generation)
                self._wait_timer.advance(now)
                # A chunk that was left half-way goes on. For the iterator of a list, the hint is exact.
                if operator.length_hint(self._chunk):
                    return self._check_chunk(now)
                metrics.enter()
                began = time.monotonic()  # of this step; what was before it counts as the consumer's own time
                self._finish_chunk()
                if self._scaling is not None and now >= self._scaling.due:
                    self._scale(self._scaling, now)
                ready = self._take_result()
                over = ready is None and (supervisor.states.exhausted or self.schedule.exhausted)
                # Otherwise a worker has died, or its last message is under way: it is judged before the pass ends.
                if over and not supervisor.num_unreported_ends:
                    metrics.end_iteration()
                    return None
                progressed = not ready and self._step(now, silent or over)
                if progressed and ready is None:
                    ready = self._take_result()
                if ready:
                    return self._check_chunk(now)
                silent = silent and not progressed
                # Not while a worker whose end was seen has to be judged: its death is the better reason.
                if self._wait_timer.is_over(timeout, silent=silent) and not supervisor.states.is_settling:
                    if self._take_result(unfinished=True):
                        return self._check_chunk(now)
                    self._wait_timer.reset()  # the next step waits as long again
                    raise late(self._plan.owner, timeout, supervisor.descriptions())
                if ready is not None or not (progressed or wait):  # everything was dropped: there is room for more
                    return self._chunk
                if not progressed:
                    # Before the wait, and without a lock: a worker that sends at this moment yields the processor in
                    # vain, or not at all.
                    self._credit.idle()
                    silent = not supervisor.wait(min(_POLL, timeout or _POLL))
                    if silent and self.jobserver is not None:
                        self.jobserver.lend()  # the worker with the token may be stopped
                    metrics.waiting += time.monotonic() - began

    def release_chunk(self) -> None:
        """Report the last chunk as used up, if it is: its memory may be needed for the next. Under the lock."""
        if not operator.length_hint(self._chunk):
            self._finish_chunk()

    def end_pass(self, generation: object) -> None:
        """End a complete pass of a mixture, after its last datapoint: a death that no restart covers is raised.

        `chunk` does so itself before it returns None. No-op if a later iteration took over, or the flow was closed.

        Raises:
            WorkerDied: A worker ended without an exception.
        """
        supervisor = self._supervisor
        while self.session.is_own:
            with self.lock:
                if self.session.generation is not generation or self.session.closed:
                    return
                if supervisor.num_unreported_ends <= supervisor.restarts_left:
                    self.metrics.end_iteration()
                    return  # what follows belongs to the next pass, exceptions included
                # The rest of the chunk belongs to the next pass: it must not delay the error about the dead worker.
                rest, self._chunk = self._chunk, iter(())  # under the lock, so no other iteration sees the empty one
                try:
                    progressed = self._step(time.monotonic(), silent=True)
                    if isinstance(self._pending_error, WorkerDied):
                        self._fail(self._pending_error)
                    if not progressed:
                        supervisor.wait(_POLL)
                finally:
                    if not self.session.closed:
                        self._chunk = rest

    def close(self) -> None:
        """Stop the workers and close everything. Idempotent; no-op in a forked child."""
        if not self.session.is_own:
            self._inherited.append(self)
            return
        # Before the lock: a thread that waits for datapoints holds it for one step at a time, and then finds this.
        was_closed, self.session.closed = self.session.closed, True
        with signals_deferred(), self.lock, ExitStack() as last:  # closes all, even if one of them raises
            last.callback(self._plan.close)  # the last of the three: workers that stop still write to its memory
            last.callback(self.metrics.freeze)  # reads the counters, so after the workers and before they are unmapped
            last.callback(self._supervisor.stop)
            last.callback(self.metrics.end_iteration)  # the first: to wait for the workers is not the consumer's work
            list(self._chunk)  # an iteration in the middle of the chunk finds it empty, and asks for the next
        if not was_closed:
            _log_end(self._plan.owner, self.metrics)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _take_over(self, generation: object, begin: Callable[[], object] | None) -> None:
        self.session.check(generation)  # of two that take over at the same time, the later wins
        self._generation = generation
        self.metrics.end_iteration()
        self._wait_timer.reset()
        # The previous iteration may be in the middle of a chunk, which it steps without the lock. `list` empties that
        # iterator in one step of the interpreter: each datapoint goes to one of the two.
        with signals_deferred():  # between the two steps, what is left of the chunk is nowhere else
            self._chunk = iter(list(self._chunk))
        if begin is not None:
            begin()

    def _discard_and_begin(self, begin: Callable[[], object]) -> None:
        self._discard_work()
        begin()
        self.is_free = False

    def _discard_work(self) -> None:
        list(self._chunk)  # in one step of the interpreter: the previous iteration may step it at the same time
        self._finish_chunk()
        self.schedule.discard()
        # The schedule has forgotten a death that it was about to raise. With no worker left for that work, the next
        # pass would wait for ever.
        self._raise_later(self._death_in_schedule)

    def _take_result(self, *, unfinished: bool = False) -> list[Any] | None:
        """Issue tasks for which there is room, then take the next result as the current chunk, or raise it."""
        try:
            self.schedule.issue_tasks()
            ready = self.schedule.take_unfinished() if unfinished else self.schedule.take()
            # Only when nothing is left to hand out: messages before errors.
            ready = self._pending_error if ready is None else ready
            if not isinstance(ready, BaseException):
                self._chunk = iter(ready or ())  # until it is stored here, the schedule has given it up
        except BaseException as error:  # of a signal's handler: the schedule may be inconsistent, and results lost
            self._fail_here(error)
        if isinstance(ready, BaseException):
            self._fail(ready)
        return ready

    def _step(self, now: float, silent: bool) -> bool:
        """Process one message, if there is one, and check the workers, if it is time.

        Returns True if something has changed.
        """
        try:
            # Whatever is raised until the message is in the schedule ends the run: the message may be lost.
            message = self._supervisor.receive_nowait(now)
            if message is not None:
                self._receive(message)
            if silent or self._supervisor.is_check_due(now):
                self._check_workers(now)
        except BaseException as error:
            self._fail_here(error)
        return message is not None or self._pending_error is not None

    def _receive(self, message: Message) -> None:
        body = message.body
        if message.worker in self._supervisor.ending:
            if message.kind in DATA_KINDS:
                with suppress(Undecodable):  # it is dropped in any case
                    self._decoder.decode(message.worker, body)  # frees its blocks
        elif message.kind in RESULT_KINDS:
            self._receive_results(message)
        elif message.kind is Kind.ERROR:
            self._raise_later(self.tolerance.complete(self._decoder.decode_failure(body)))
        elif message.kind is Kind.REPORT:
            self._credit.report_received(message.worker)
            self._raise_later(self.tolerance.process_report(self._decoder.decode_report(body)))
        elif message.kind is Kind.LATE:
            assert self._late is not None, "a worker watches itself only with item_timeout"
            position, reason, stack = body
            # Of a pass that was abandoned it has a task that nobody waits for.
            position = position if self.schedule.has_issued(message.task) else NOT_WANTED
            self._late.kill(message.worker, position, reason, stack, time.monotonic())
        elif message.kind is Kind.LEFT:
            self._handle_death(self._supervisor.left(message))

    def _raise_later(self, error: BaseException | None) -> None:
        """Raise the error when the chunk has been handed out, unless there was one before: that is its reason."""
        self._pending_error = self._pending_error or error

    def _receive_results(self, message: Message) -> None:
        """Decode the results, and enter them in the schedule."""
        worker = message.worker
        datapoints: list[Any] = []
        error: BaseException | None = None
        if message.count:
            self.metrics.datapoints += message.count
            self.metrics.nbytes += message.nbytes
            try:
                datapoints = self._decoder.decode(worker, message.body)
            except Undecodable as broken:
                datapoints = broken.before
                # `received` counts this message already.
                position = self._supervisor.states.received[worker] - message.count + len(datapoints)
                error = unreadable(self._plan.owner, worker, len(self._plan.specs), position, broken)
            # Credit is granted as a chunk begins: the worker continues while the consumer takes the chunk.
            self._credit.grant(worker, message.count, message.nbytes, message.queued)
            self._outstanding.append((worker, message.count))
        elif message.kind is Kind.TASK_FAILED:
            error = self._decoder.decode_failure(message.body)
        self.schedule.receive(message, datapoints, error)

    def _finish_chunk(self) -> None:
        """Report the last chunk as used up: its worker may know that the consumer keeps what it still has of it.

        The same holds for datapoints that have come and cannot be handed out yet: a worker whose task has to come first
        may need the memory.
        """
        next(self._chunk, None)  # an exhausted list iterator releases its list, and so the arrays in it
        while self._outstanding:
            self._credit.done(*self._outstanding.pop())
        self.schedule.handed_out()

    def _check_workers(self, now: float) -> None:
        # Judged later: what a dead worker has sent is handed out before its death is raised.
        in_use = {worker for worker, _ in self._outstanding} if operator.length_hint(self._chunk) else ()
        if self._late is not None:
            self._late.check(now)
        for death in self._supervisor.check(now, in_use):
            self._handle_death(death)

    def _handle_death(self, death: Death) -> None:
        worker, error = death.worker, death.error
        cause = None if death.last is None else self._decoder.decode_failure(death.last.body)
        error.__cause__ = cause  # shows where
        position, end = (None, None) if self._late is None else self._late.end_of(worker)
        self._credit.died(worker)  # clears the word that says what it was making, so not before `end_of`
        item: EndedItem | None = None
        if end is None and isinstance(cause, LostWorker):
            # It may be unreachable, or its node is down, whatever it was making.
            end = ItemEnd("died") if cause.has_died else None
        elif end is None and error.exitcode is not None:
            end = ItemEnd(how_it_ended(error.exitcode))
        if end is not None:
            item = self.schedule.ended(worker, end, position, sent_all=isinstance(cause, SystemExit))
        if end is not None and end.is_late:
            error = late_in(self._plan.owner, error, end.reason, item, end.stack)
        elif item is not None:
            error.add_note(f"it was making {item}")
        if item is not None:
            self._supervisor.give_back(item.explained)
            if len(item.ends) > 1:
                self._leave_out(item, worker)
        if self._supervisor.restarts_left:
            self.schedule.replaced(worker)  # before its successor, under the same index, takes tasks
            self._supervisor.restart(worker, error)
            self.metrics.restarts += 1
            if self.jobserver is not None:
                self.jobserver.replace()
            return
        if self._scaling is not None:  # all that are left may have to do the work
            self._scaling = None
            self._set_workers(len(self.workers))
        if self.schedule.lost(worker, error):
            self._death_in_schedule = error
        else:
            self._raise_later(error)

    def _leave_out(self, item: EndedItem, worker: int) -> None:
        """Leave out a datapoint in which a worker has ended twice; if that is not tolerated, put an error in its place.

        In both cases its restarts are given back: another worker does the work before it, which may have gone with this
        one.
        """
        plan, ends = self._plan, item.ends
        what = ends_of_item([end.reason for end in ends])
        error = ended_twice(plan.owner, item, what, can_be_left_out=item.number >= 0)
        stack = next((end.stack for end in reversed(ends) if end.stack), "")
        error.__cause__ = WorkerTraceback(stack) if stack else None
        if item.number < 0 or not self.tolerance.inherited:
            self.schedule.leave_out(item, error)
        else:
            path, kind = plan.specs[worker].info.path, "dataflow.errors.WorkerDied"
            failure = Failure(plan.owner, item.position, item.in_pass, kind, what, stack, path)
            try:
                self.tolerance.skip(failure, error)
            except TooManyFailures as too_many:
                self.schedule.leave_out(item, too_many)
            else:
                self.schedule.leave_out(item)
        self._supervisor.give_back(len(ends))

    def _scale(self, scaling: Scaling, now: float) -> None:
        """Give work to more or fewer workers, if that pays; start those that were not started before."""
        supervisor, count = self._supervisor, scaling.count
        before = count.num
        num = scaling.next(now, ready=all(map(supervisor.states.connected, range(before))))
        if num == before:
            return
        try:
            while len(supervisor.workers) < num:
                supervisor.add()
                self.metrics.add_worker()
        except (OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and _NO_THREAD not in str(error):
                self._fail_here(error)
            count.limit(len(supervisor.workers))
            # As text: a handler that keeps the record would keep the frames of the error.
            _LOG.info("%s starts no more than %d workers: %s", self._plan.owner, count.most, str(error) or "no memory")
        except BaseException as error:  # Ctrl-C, at an unknown step of the start: the next loop starts new workers
            self._fail_here(error)
        self._set_workers(count.num)
        _LOG.info(
            "%s gives work to %d worker%s (at most %d; before %d): %s",
            self._plan.owner,
            count.num,
            "" if count.num == 1 else "s",
            count.most,
            before,
            count.reason,
        )

    def _set_workers(self, num: int) -> None:
        self.schedule.set_workers(num, len(self.workers))
        self.metrics.num_with_work = num

    def _processor_times(self, worker: int) -> tuple[float, float] | None:
        task = self.workers[worker].task() if worker < len(self.workers) else None
        return None if task is None else processor_times(task)

    def _check_chunk(self, now: float) -> Iterator[Any]:
        """Return the current chunk, to be handed out.

        A slow consumer may take long over a chunk, so the workers are checked here too: a death is raised without
        waiting for the end of the chunk. What other workers have sent is given up then; what the dead worker has sent
        is handed out first, as always.
        """
        self._wait_timer.reset()
        if self._supervisor.is_check_due(now):
            try:
                self._check_workers(now)
            except BaseException as error:  # it may have taken a message
                self._fail_here(error)
            if self._pending_error is not None:
                self._fail(self._pending_error)
        return self._chunk

    def _fail(self, error: BaseException, *, interrupted: bool = False) -> NoReturn:
        if isinstance(error, StopIteration):  # which would look like the end of the pass
            stopped, error = error, RuntimeError(f"a worker of {self._plan.owner} raised StopIteration: {error}")
            error.__cause__ = stopped
            del stopped  # as below
        self.session.fail(error, interrupted=interrupted)  # before `close`, so that other threads get this reason
        self.close()
        try:
            raise error
        finally:
            del error  # its traceback has this frame: they would keep each other, and datapoints with them

    def _fail_here(self, error: BaseException) -> NoReturn:
        """Fail with an exception that was raised in the consumer itself: an interrupt, unless it is an `Exception`."""
        try:
            self._fail(error, interrupted=not isinstance(error, Exception))
        finally:
            del error  # as above


def _log_end(owner: str, metrics: RunnerMetrics) -> None:
    if not _LOG.isEnabledFor(logging.INFO):
        return
    figures, workers = metrics.statistics()
    datapoints, seconds = figures.datapoints, figures.seconds
    _LOG.info("%s has stopped its workers, after %d datapoints in %.1f seconds", owner, datapoints, seconds)
    for k, worker in enumerate(workers):
        _LOG.debug(
            "worker %d of %s: %d datapoints in %d messages of %.0f bytes on average; %s",
            k,
            owner,
            worker.datapoints,
            worker.messages,
            worker.nbytes / max(1, worker.messages),
            ", ".join(f"{state.name.lower()} {worker.seconds[state]:.2f} s" for state in list(WorkerActivity)[1:]),
        )


_engines: Final[weakref.WeakSet[Engine[Any]]] = weakref.WeakSet()


def _drop_chunks() -> None:
    """Drop the current chunks, in a child forked from this process: these datapoints belong to the parent alone."""
    for engine in list(_engines):
        list(engine._chunk)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_chunks)
