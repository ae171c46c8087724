"""Liveness: the state of every worker, and whether it has died. Pure: no process, socket or clock.

A worker ends with a last message: it has nothing more to send, its code raised an exception, or it called
``sys.exit``. One that ends without a last message has died. That message may still be under way when the end is seen,
so a worker is judged only when nothing has come from it for a while, and nothing of it is unread:

    STARTED ──first message──► CONNECTED ──last message──► ENDED, FAILED or LEFT
       │                           │
       └────── its end is seen ────┴──► (settling) ──silence──► DEAD
                                            │
                                            └──last message──► ENDED, FAILED or LEFT

A worker that was replaced is STARTED again. One that may be started later is RESERVED until then.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from dataflow.transport.messages import RESULT_KINDS, Kind

__all__ = ["WorkerState", "WorkerStates", "has_died"]


class WorkerState(enum.Enum):
    """The state of one worker."""

    RESERVED = "is not started yet"
    STARTED = "has not connected yet"
    CONNECTED = "works"
    ENDED = "has nothing more to send"  # a pass of its flow was empty
    FAILED = "raised an exception"
    LEFT = "called sys.exit"
    DEAD = "has died"  # without a last message


_AFTER: Final = {
    Kind.HELLO: WorkerState.CONNECTED,
    **dict.fromkeys(RESULT_KINDS, WorkerState.CONNECTED),
    **dict.fromkeys((Kind.REPORT, Kind.LATE), WorkerState.CONNECTED),
    Kind.ENDED: WorkerState.ENDED,
    Kind.ERROR: WorkerState.FAILED,
    Kind.LEFT: WorkerState.LEFT,
}
_LAST_MESSAGES: Final = (WorkerState.ENDED, WorkerState.FAILED, WorkerState.LEFT)
_SILENT: Final = (WorkerState.RESERVED, WorkerState.STARTED)
_RUNNING: Final = (WorkerState.STARTED, WorkerState.CONNECTED)

_SETTLE_SECONDS: Final = 0.1  # without a message, until all messages of a killed worker have arrived
_SETTLE_SECONDS_EXITED: Final = 0.5  # of a worker that exited: nearly all of these have sent a last message


def has_died(*, exitcode: int | None, quiet_seconds: float, may_arrive_late: bool, has_unread: bool) -> bool:
    """Whether a worker has died that has ended, and whose last message was not received; if not, it is settling.

    Args:
        exitcode: Its exit code, negative for a signal; None if unknown.
        quiet_seconds: Seconds since its end was first seen, or since its last message after that.
        may_arrive_late: Whether messages can arrive after the end of their worker was seen, as those of a socket can.
        has_unread: Whether a message of it was received and not processed, or is still being handed out.
    """
    was_killed = exitcode is not None and exitcode < 0
    if may_arrive_late and quiet_seconds < (_SETTLE_SECONDS if was_killed else _SETTLE_SECONDS_EXITED):
        return False
    return not has_unread


@dataclass
class WorkerStates:
    """The worker states of one run.

    Attributes:
        num_workers: How many workers there are.
        num_reserved: How many of them, the last ones, are not started at first.
        states: The state of each.
        received: Datapoints received from each.
        quiet_since: By worker whose end was seen before its last message: since when nothing has come from it.
    """

    num_workers: int
    num_reserved: int = 0
    states: list[WorkerState] = field(init=False)
    received: list[int] = field(init=False)
    quiet_since: dict[int, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        started = self.num_workers - self.num_reserved
        self.states = [WorkerState.STARTED] * started + [WorkerState.RESERVED] * self.num_reserved
        self.received = [0] * self.num_workers

    def record_message(self, worker: int, kind: Kind, count: int = 0, now: float = 0.0) -> None:
        """Record a message of `worker` that arrived at the time `now`."""
        assert self.states[worker] not in _LAST_MESSAGES, "a worker sends nothing after its last message"
        self.record_ignored(worker, now)
        if kind in RESULT_KINDS:
            self.received[worker] += count
        # One that comes over a socket after the verdict does not bring the worker back to life.
        if self.states[worker] is not WorkerState.DEAD:
            self.states[worker] = _AFTER[kind]

    def record_ignored(self, worker: int, now: float) -> None:
        """Record that a message of `worker` has arrived that says nothing about it any more."""
        if worker in self.quiet_since:
            self.quiet_since[worker] = now

    def quiet_seconds(self, worker: int, now: float) -> float:
        """Seconds since the end of `worker` was first seen, which may be now, or since its last message after that."""
        return now - self.quiet_since.setdefault(worker, now)

    def record_death(self, worker: int) -> None:
        """Record that `worker` has died, after all its messages were received."""
        self.states[worker] = WorkerState.DEAD

    def record_start(self, worker: int) -> None:
        """Record that `worker` was started after the others, or was replaced."""
        self.states[worker] = WorkerState.STARTED
        self.received[worker] = 0
        self.quiet_since.pop(worker, None)

    def connected(self, worker: int) -> bool:
        """Whether a message of `worker` was received."""
        return self.states[worker] not in _SILENT

    @property
    def exhausted(self) -> bool:
        """Whether all workers have ended normally: no more datapoints will come."""
        return self.states.count(WorkerState.ENDED) == self.num_workers

    def awaits_last_message(self, worker: int) -> bool:
        """Whether the last message of `worker` is still outstanding; if it ends now, it has died."""
        return self.states[worker] in _RUNNING

    @property
    def is_settling(self) -> bool:
        """Whether the end of a worker was seen, and it has neither sent a last message nor been judged."""
        return any(map(self.awaits_last_message, self.quiet_since))

    @property
    def unwatched(self) -> set[int]:
        """The workers whose end was seen, or announced by a last message."""
        over = {worker for worker in range(self.num_workers) if not self.awaits_last_message(worker)}
        # The sentinel of a process that has ended stays readable: each wait on it would return at once.
        return over | self.quiet_since.keys()
