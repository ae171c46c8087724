"""Session: who may use something that runs, and until when.

The workers of a runner or map, a `BackgroundProc`, a `SharedQ` and a receiving socket each have one. It ends when it is
closed, or when an error was raised to its consumer; what follows is a new session.

Guarantees:

- Only the process that began a session uses it. A forked child finds a clear error, before it takes any lock: a thread
  of the parent may have held that lock at the fork.
- `closed` is set before the closing thread waits for the lock, so that a thread that waits for datapoints gives way.
- Of two iterations the later wins; the earlier one raises `NotReentrant` at its next step.
"""

from __future__ import annotations

import os
import traceback
from contextlib import suppress
from copy import copy

from dataflow.errors import DataFlowTerminated, NotReentrant

__all__ = ["Session", "forked_off", "terminated"]


class Session:
    """The time from a start until the end.

    Args:
        owner: Name of the class that the user has called, for messages.
        begun: What a forked child has inherited, for messages.
        restart: How the owner is started again, as a sentence without a full stop.
        fork_cure: What a forked child should do instead.
        closed_text: What happened to an owner that was closed; None for a flow.

    Attributes:
        pid: The process that began the session.
        closed: Whether it was closed.
        failed: Whether an error was raised to the consumer.
        failure: That error; None before.
        interrupted: Whether that error is an interrupt of the consumer, such as Ctrl-C, and nobody's failure.
        generation: Identifies the iteration that may step.
        iterating: The thread of the iteration of a flow that was begun last, by its ident, in a tuple of its own; None
            between two iterations, and where the metrics of workers have it.
    """

    # Slots: iterators read `closed` at every step, and a slot is read faster than an attribute.
    __slots__ = (
        "_begun",
        "_closed_text",
        "_fork_cure",
        "_restart",
        "closed",
        "failed",
        "failure",
        "generation",
        "interrupted",
        "iterating",
        "owner",
        "pid",
    )

    def __init__(
        self,
        owner: str = "",
        *,
        begun: str = "this iteration of",
        restart: str = "Call reset_state() to restart it",
        fork_cure: str = "iterate the flow again, which starts workers of its own",
        closed_text: str | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.owner = owner
        self.closed = False
        self.failure: BaseException | None = None
        # An attribute of its own, and no property: it is read as a generator is dropped, where an interrupt of a call
        # is lost.
        self.failed = False
        self.interrupted = False
        self.generation: object = None
        self.iterating: tuple[int] | None = None
        self._begun = begun
        self._restart = restart
        self._fork_cure = fork_cure
        self._closed_text = closed_text

    @property
    def is_own(self) -> bool:
        """Whether this process began the session."""
        return os.getpid() == self.pid

    def check_process(self) -> None:
        """Raise in a forked child. Called before any lock is taken."""
        if os.getpid() != self.pid:
            raise DataFlowTerminated(
                f"{self._begun} {self.owner} belongs to process {self.pid}, from which this process was forked; "
                f"{self._fork_cure}"
            )

    def supersede(self) -> object:
        """Begin an iteration, and return its generation: the previous iteration raises at its next step."""
        self.generation = object()
        return self.generation

    def supersede_if(self, latest: object) -> object | None:
        """Begin an iteration if `latest` is the generation of the latest one, and return its generation; else None."""
        generation = object()
        if self.generation is not latest:
            return None
        self.generation = generation  # no call since the comparison: CPython lets no other thread run in between
        return generation

    def begins_elsewhere(self) -> None:
        """Let `check` say that another place of the chain has taken the owner away, which is about to be closed."""
        self._closed_text = "stands at two places, and its workers serve one at a time: make one node for each place"

    def check(self, generation: object = None) -> None:
        """Raise unless the session is open, and `generation`, if there is one, is that of the latest iteration.

        Raises:
            DataFlowTerminated: The session was closed, or has failed.
            NotReentrant: A later iteration took over.
        """
        # Before `closed`: what has failed may be closed as well, and the failure says more.
        if self.failure is not None:
            before = traceback.format_exception_only(self.failure)[0].strip()
            raise DataFlowTerminated(
                f"{self.owner} has failed before, with {before}. {self._restart}"
            ) from self.failure
        if self.closed:
            raise terminated(self.owner) if self._closed_text is None else self.was_closed()
        if generation is not None and self.generation is not generation:
            raise NotReentrant(
                f"a later iteration of {self.owner} took over; it can serve one at a time, because it has one pool of "
                "workers. Make one node for each loop"
            )

    def was_closed(self) -> DataFlowTerminated:
        """The error of an owner that was closed."""
        return DataFlowTerminated(f"{self.owner} {self._closed_text}")

    def fail(self, error: BaseException, *, interrupted: bool = False) -> None:
        """Record the error that is about to be raised to the consumer."""
        if interrupted:
            with suppress(Exception):
                error = copy(error)  # without the traceback, whose frames hold datapoints
        self.failure, self.failed, self.interrupted = error, True, interrupted


def terminated(name: str) -> DataFlowTerminated:
    """The error of an iterator whose flow was closed."""
    return DataFlowTerminated(f"{name} was closed while it was being iterated; iterate it again to restart it")


def forked_off(pid: int) -> DataFlowTerminated:
    """The error for a child that code in a flow has forked off process `pid`, and that continues to use the flow."""
    return DataFlowTerminated(
        f"this process was forked by code that runs in a dataflow, and only its parent (pid {pid}) may continue "
        "with the flow. End the child with os._exit when its own work is done, or start it by subprocess or "
        "multiprocessing"
    )
