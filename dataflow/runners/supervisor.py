"""Supervisor: starts the workers, receives their messages, notices their deaths, and replaces and stops them.

Everything that has workers waits here: runners, maps, Ray actors, `BackgroundProc` and `SharedQ`. Nothing else decides
that a worker has died; the decision is in `liveness`.

Guarantees:

- Every wait has a limit, and ends when a worker ends, through a descriptor.
- Drain before you judge: what a worker had sent before it died is given out before its end.
- A worker is replaced only after all its messages were received, so that none of them can be mistaken for its
  successor's.
- A worker that its owner ends (`end`) is killed; nothing that comes from it afterwards says anything about it. One that
  has not ended `_KILL_SECONDS` later, because the kernel does not let it, is left behind and named: it runs no more of
  its code, so it neither sends nor takes anything. The memory that it has mapped stays.
- After `stop` no worker or descriptor is left. A signal that arrives during the start or `stop` does not
  change that: it is raised when that is complete, or undone.

It does not know datapoints, their order, or passes. One thread at a time: its owner has a lock.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from dataflow.errors import WorkerDied
from dataflow.runners.liveness import WorkerStates, has_died
from dataflow.system.interrupts import signals_deferred
from dataflow.system.worker_errors import died
from dataflow.system.worker_pool import Worker, WorkerPool
from dataflow.transport.messages import RESULT_KINDS, Channel, Kind, Message, Port

__all__ = ["Death", "DiedError", "Supervisor"]

_LOG = logging.getLogger(__name__)
_CHECK_SECONDS: Final = 0.5  # between checks of the workers while messages arrive
_SOON_SECONDS: Final = 0.1  # until the next check, if a worker has ended and was not judged
_KILL_SECONDS: Final = 5.0  # until a worker that was killed, and does not end, is left behind
_EXITCODE_SECONDS: Final = 0.5  # until the fork server reports the exit code of a process that has ended


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that has died, or whose code called ``sys.exit``.

    Attributes:
        worker: Index of the worker.
        error: What is raised, if nothing replaces it.
        last: Its last message, if it sent one.
    """

    worker: int
    error: WorkerDied
    last: Message | None = None


DiedError = Callable[[str, int, int, int | None, int | None, int | None], WorkerDied]
"""Makes the error for a worker that ended; the arguments are those of `worker_errors.died`."""


class Supervisor:
    """The running workers, and the consumer's end of their channel.

    Args:
        owner: Name of the class that the user has called, for messages.
        channel: How messages move.
        factories: One function per worker that is started here, which creates it.
        request_stop: Asks all workers to stop.
        successor: Makes the function that creates a worker later, or its successor, which sends through the given
            port; None if no worker is ever replaced or added.
        max_restarts: How many workers that have died are replaced.
        died: Makes the error for a worker that has died.
        num_reserved: How many further workers `add` may start.

    Attributes:
        states: The state of each worker.
        restarts_left: How many further deaths are covered by a replacement.
        ending: The workers that were killed by `end`, and whose death was not reported so far.
    """

    def __init__(
        self,
        owner: str,
        channel: Channel,
        factories: Sequence[Callable[[], Worker]],
        *,
        request_stop: Callable[[], None],
        successor: Callable[[int, Port], Callable[[], Worker]] | None = None,
        max_restarts: int = 0,
        died: DiedError = died,
        num_reserved: int = 0,
    ) -> None:
        self._owner = owner
        self._request_stop = request_stop
        self._successor = successor
        self._died = died
        self._num_restarts = 0
        self.restarts_left = max_restarts
        self.states = WorkerStates(len(factories) + num_reserved, num_reserved)
        self._checked_at = time.monotonic()
        self._watched: tuple[int, ...] | None = None  # descriptors of the workers whose end is unknown, if computed
        self._backlog: deque[Message] = deque()  # taken from the receiver, not yet given out
        self.ending: dict[int, float] = {}  # by worker that was told to end and has not: since when
        # A signal that arrives in this block is delivered between the starts of two workers, and undoes the others.
        with signals_deferred(), ExitStack() as undo:
            # Workers first, then our end: a forked child inherits no open socket, and no I/O thread is lost in a fork.
            self._pool = WorkerPool(factories, request_stop)
            # Undone in reverse: the workers are asked to stop, then waited for.
            undo.callback(self._pool.stop)
            undo.callback(request_stop)
            self._receiver = channel.open_receiver()
            undo.pop_all()

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers that run, or have ended."""
        return self._pool.workers

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive_nowait(self, now: float) -> Message | None:
        """Return the next message that has arrived, or None. An interrupt in here may lose a message."""
        message = self._backlog.popleft() if self._backlog else self._receiver.receive_nowait()
        if message is not None and message.worker in self.ending:
            self.states.record_ignored(message.worker, now)
        elif message is not None:
            self.states.record_message(message.worker, message.kind, message.count, now)
            if message.kind in RESULT_KINDS:  # says nothing about which workers run
                return message
            if message.kind is Kind.HELLO or not self.states.awaits_last_message(message.worker):
                self._watched = None
        return message

    def wait(self, timeout: float) -> bool:
        """Wait for a message or the end of a worker; return whether there is a message. An interrupt is harmless."""
        if self._watched is None:
            self._watched = self._pool.sentinels(but=self.states.unwatched)
        return self._receiver.wait(timeout, self._watched)

    # -- deaths --------------------------------------------------------------------------------------------------------

    def is_check_due(self, now: float) -> bool:
        """Whether the workers should be checked, although messages arrive."""
        return now - self._checked_at > _CHECK_SECONDS

    def check_soon(self, now: float) -> None:
        """Check the workers again before long, although messages arrive."""
        self._checked_at = min(self._checked_at, now - _CHECK_SECONDS + _SOON_SECONDS)

    def is_running(self, worker: int) -> bool:
        """Whether `worker` runs, as far as is known, and is to go on."""
        return self.states.awaits_last_message(worker) and worker not in self.ending

    @property
    def num_unreported_ends(self) -> int:
        """Number of workers that have ended without a last message so far: they died, or the message is under way."""
        return sum(map(self.states.awaits_last_message, self._pool.ended()))

    def check(self, now: float, in_use: Collection[int] = ()) -> list[Death]:
        """Check the workers, and return those that have died; `restart` replaces them.

        Args:
            now: The time.
            in_use: Workers whose datapoints are being handed out: they are judged afterwards.
        """
        self._checked_at = now
        self._watched = None
        deaths = []
        for k in self._pool.ended():
            if not self.states.awaits_last_message(k):
                continue
            exitcode = self._exitcode(k)
            quiet_seconds = self.states.quiet_seconds(k, now)  # from now on, if its end was not seen before
            self._drain()  # after its end was seen: now everything that it has sent through a pipe is there
            if has_died(
                exitcode=exitcode,
                quiet_seconds=quiet_seconds,
                may_arrive_late=self._receiver.may_arrive_late,
                has_unread=k in in_use or any(message.worker == k for message in self._backlog),
            ):
                deaths.append(self._dead(k, exitcode))
            else:
                self.check_soon(now)
        for k, since in list(self.ending.items()):
            if now - since > _KILL_SECONDS and not self._pool.workers[k].has_ended() and not self.has_unread(k):
                _LOG.warning(
                    "worker %d of %d of %s (%s) was killed %g seconds ago and has not ended: the kernel waits, most "
                    "likely for a device or a network file system. It is left behind, with its memory",
                    k,
                    self.states.num_workers,
                    self._owner,
                    self._pool.workers[k].state(),
                    _KILL_SECONDS,
                )
                deaths.append(self._dead(k, -signal.SIGKILL))
                self._pool.leave_behind(k)
        return deaths

    def _dead(self, worker: int, exitcode: int | None) -> Death:
        error = self._death(worker, exitcode)  # first: it depends on whether the worker had connected
        self.states.record_death(worker)
        self.ending.pop(worker, None)
        return Death(worker, error)

    def has_unread(self, worker: int) -> bool:
        """Whether a message of `worker` has come that was not given out."""
        self._drain()
        return any(message.worker == worker for message in self._backlog)

    def end(self, worker: int, now: float) -> None:
        """Kill a worker, whose death `check` will report. What comes from it until then is to be ignored."""
        self.ending[worker] = now
        self._watched = None
        self.check_soon(now)
        self._pool.workers[worker].begin_kill()

    def left(self, message: Message) -> Death:
        """The end of a worker whose code called ``sys.exit``, by its last message: all others were received before."""
        return Death(message.worker, self._death(message.worker, message.count), message)

    def restart(self, worker: int, error: WorkerDied) -> None:
        """Start another worker in place of one that has died; a restart is left."""
        assert self.restarts_left > 0, "the caller has looked"
        self.restarts_left -= 1
        self._num_restarts += 1
        self._start(worker, partial(self._pool.replace, worker))
        _LOG.warning(
            "%s. Another was started in its place: restart %d, of at most %d",
            str(error),  # not the exception: a handler that keeps records would keep the frames of its cause
            self._num_restarts,
            self._num_restarts + self.restarts_left,
        )

    def give_back(self, num: int) -> None:
        """Give back restarts: it is known what they were needed for, and it will not happen again."""
        self.restarts_left += num
        self._num_restarts -= num

    def _exitcode(self, worker: int) -> int | None:
        ended = self._pool.workers[worker]
        exitcode = ended.exitcode()
        # A process that was reaped elsewhere (`SIGCHLD` ignored) never reports one: hence the limit.
        if exitcode is None and ended.sentinel is not None:  # the fork server is about to report it
            ended.join(_EXITCODE_SECONDS)
            exitcode = ended.exitcode()
        return exitcode

    def _drain(self) -> None:
        """Take all messages that have come. These are few, because no credit is granted in the meantime."""
        # None may also mean that a part of a long message was read from a pipe; `wait` says whether there is more.
        # After the part of a message that a killed worker has left, there is not.
        while (message := self._receiver.receive_nowait()) is not None or self._receiver.wait(0):
            if message is not None:
                self._backlog.append(message)

    def _death(self, worker: int, exitcode: int | None) -> WorkerDied:
        states = self.states
        received = states.received[worker] if states.connected(worker) else None
        return self._died(self._owner, worker, states.num_workers, self._pool.workers[worker].pid, exitcode, received)

    # -- more workers --------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Start one more worker, of those that are reserved.

        Raises:
            OSError: There are too few descriptors or processes, or there is too little memory.
            MemoryError: There is too little memory.
            RuntimeError: No more threads can be started; the text is that of Python.
        """
        self._start(len(self.workers), self._pool.add)

    def _start(self, worker: int, start: Callable[[Callable[[], Worker]], None]) -> None:
        """Start a worker with a connection of its own: what a dead one left half done in a pipe goes with the old."""
        assert self._successor is not None, "workers can be started later"
        port = self._receiver.port_of_successor(worker)  # closes the pipe of the dead worker, and what is left in it
        try:
            start(self._successor(worker, port))
        except BaseException:
            port.close_in_parent()  # close our copy: no worker was started with it
            raise
        self.states.record_start(worker)
        self._watched = None

    # -- end -----------------------------------------------------------------------------------------------------------

    def descriptions(self) -> list[str]:
        """What each worker is doing, for a message."""
        return [worker.state() for worker in self._pool.workers]

    def stop(self, timeout: float | None = None) -> None:
        """Stop all workers, and close the consumer's end of the channel. Idempotent.

        Args:
            timeout: Seconds that workers get to end by themselves; None for the usual grace period.
        """
        with signals_deferred(), ExitStack() as last:  # every step, even if one of them raises
            # Called in reverse: `receiver.stop` lets workers go on that are blocked in a full pipe, which would not end
            # within the grace period.
            last.callback(self._receiver.close)
            last.callback(self._pool.stop, timeout)
            last.callback(self._receiver.stop)
            last.callback(self._request_stop)
