"""Worker states: the state of every worker, derived from its messages. Pure: no process, socket or clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from dataflow.channel.messages import RESULT_KINDS, Kind

__all__ = ["WorkerStates", "WorkerState"]


class WorkerState(enum.Enum):
    """The state of one worker."""

    STARTED = "has not connected yet"
    CONNECTED = "works"
    ENDED = "has nothing more to send"  # a pass of its flow was empty
    FAILED = "raised an exception"
    LEFT = "called sys.exit"
    DEAD = "has died"  # without a last message


_AFTER = {
    Kind.HELLO: WorkerState.CONNECTED,
    **dict.fromkeys(RESULT_KINDS, WorkerState.CONNECTED),
    Kind.REPORT: WorkerState.CONNECTED,
    Kind.ENDED: WorkerState.ENDED,
    Kind.ERROR: WorkerState.FAILED,
    Kind.LEFT: WorkerState.LEFT,
}
_LAST_MESSAGES = (WorkerState.ENDED, WorkerState.FAILED, WorkerState.LEFT)
_FINAL = (*_LAST_MESSAGES, WorkerState.DEAD)


@dataclass
class WorkerStates:
    """The worker states of one run.

    Attributes:
        num_workers: How many workers were started.
        states: The state of each.
        received: Datapoints received from each.
    """

    num_workers: int
    states: list[WorkerState] = field(init=False)
    received: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.states = [WorkerState.STARTED] * self.num_workers
        self.received = [0] * self.num_workers

    def record_message(self, worker: int, kind: Kind, count: int = 0) -> None:
        """Record a message of `worker`."""
        assert self.states[worker] not in _LAST_MESSAGES, "a worker sends nothing after its last message"
        if kind in RESULT_KINDS:
            self.received[worker] += count
        if self.states[worker] is not WorkerState.DEAD:
            self.states[worker] = _AFTER[kind]

    def record_death(self, worker: int) -> None:
        """Record that `worker` has died, after all its messages were received."""
        self.states[worker] = WorkerState.DEAD

    def record_replacement(self, worker: int) -> None:
        """Record that `worker` was replaced."""
        self.states[worker] = WorkerState.STARTED
        self.received[worker] = 0

    def connected(self, worker: int) -> bool:
        """Whether a message of `worker` was received."""
        return self.states[worker] is not WorkerState.STARTED

    @property
    def all_connected(self) -> bool:
        """Whether a message of every worker was received."""
        return WorkerState.STARTED not in self.states

    @property
    def exhausted(self) -> bool:
        """Whether all workers have ended normally: no more datapoints will come."""
        return self.states.count(WorkerState.ENDED) == self.num_workers

    def awaits_last_message(self, worker: int) -> bool:
        """Whether the last message of `worker` is still outstanding; if it ends now, it has died."""
        return self.states[worker] not in _FINAL

    @property
    def over(self) -> set[int]:
        """The workers whose end is already known."""
        return {worker for worker in range(self.num_workers) if not self.awaits_last_message(worker)}
