"""A crew: several workers, started together, watched, and stopped.

Guarantees:

- After `stop` no process of the crew is left. A thread that does not return within the grace is left behind as a
  daemon, and named once in the log.
- A worker belongs to its crew before it is started: whatever interrupts the start, `stop` knows it.
- A signal that arrives in here is delivered between the starts of two workers, or as `stop` ends, which waits for
  nobody any longer then.
- Only the process that started a crew stops it; a forked child that holds a copy does nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from dataflow.interrupts import deliver_signals, signal_arrived, signals_deferred
from dataflow.workers.place import WorkerInfo, worker_info

__all__ = ["WorkerPool", "Worker", "grace"]

_LOG = logging.getLogger(__name__)
_GRACE: Final = 1.0
_UNDO_PART: Final = 0.25  # part of the grace for workers that have just been started
_SLICE: Final = 0.05  # seconds after which signals that have arrived are looked at


class Worker(Protocol):
    """A process or a thread."""

    place: WorkerInfo
    pid: int | None
    sentinel: int | None

    def start(self) -> None:
        """Start it. After a failure it counts as ended, and nothing of it is left."""

    def has_ended(self) -> bool:
        """Whether it runs no more, or was never started."""

    def exitcode(self) -> int | None:
        """Negative for a signal; None while it runs, or if nobody knows."""

    def state(self) -> str:
        """What it is doing, for a message."""

    def join(self, timeout: float) -> bool:
        """Wait for its end; whether it has ended."""

    def kill(self) -> bool:
        """End it whatever it is doing; False where that is impossible."""

    def release(self) -> None:
        """Give back what is kept of it."""


def grace() -> float:
    """Seconds that a worker gets to end by itself: less for inner crews, which their outer worker waits for."""
    here = worker_info()
    return _GRACE * 0.5 ** (0 if here is None else len(here.path))


class WorkerPool:
    """The workers of one runner, in the process that started them.

    Args:
        makes: One function for each worker, which makes it; it is started here.
        tell: Tells workers to stop, if others could not be started.
    """

    def __init__(self, makes: Sequence[Callable[[], Worker]], tell: Callable[[], None] = lambda: None) -> None:
        self._pid = os.getpid()
        self.workers: list[Worker] = []
        with signals_deferred():
            try:
                for make in makes:
                    deliver_signals()
                    worker = make()
                    self.workers.append(worker)
                    worker.start()
                deliver_signals()
            except BaseException:
                with ExitStack() as last:
                    last.callback(self.stop, _UNDO_PART * grace())
                    tell()
                raise

    def ended(self) -> list[int]:
        """The indexes of the workers that have ended."""
        return [k for k, worker in enumerate(self.workers) if worker.has_ended()]

    def sentinels(self, but: Container[int]) -> tuple[int, ...]:
        """Descriptors that become readable when a worker ends, of all but these; a thread has none."""
        others = (worker.sentinel for k, worker in enumerate(self.workers) if k not in but)
        return tuple(sentinel for sentinel in others if sentinel is not None)

    def replace(self, worker: int, make: Callable[[], Worker]) -> None:
        """Start another in the place of a worker that has ended, or is about to: it gets the grace for that."""
        old = self.workers[worker]
        if not old.join(grace()):
            old.kill()
        with signals_deferred():
            new = self.workers[worker] = make()
            old.release()
            new.start()

    def stop(self, timeout: float | None = None) -> None:
        """Wait for all workers, then end those that are left. Idempotent.

        Args:
            timeout: Seconds; None for `grace()`. The workers have been told to stop before.
        """
        if os.getpid() != self._pid:
            return
        with signals_deferred():
            try:
                self._end(grace() if timeout is None else timeout)
            except BaseException:
                self._end(0)  # nobody waits any longer, and nobody is left behind
                raise

    def _end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for worker in list(self.workers):
            # One that cannot be killed gets all of the time.
            if not (
                _ends_before(deadline, worker) or worker.kill() or worker.join(max(0.0, deadline - time.monotonic()))
            ):
                _LOG.warning(
                    "worker %d of %d (%s) did not return within the grace and is left behind, because it cannot be "
                    "killed; a thread ends with the interpreter",
                    worker.place.index,
                    worker.place.count,
                    worker.state(),
                )
            self.workers.remove(worker)
            worker.release()


def _ends_before(deadline: float, worker: Worker) -> bool:
    """Wait for the end of a worker, until `deadline`; not any longer once a signal waits for us."""
    while True:
        left = deadline - time.monotonic()
        if worker.join(max(0.0, min(left, _SLICE))):
            return True
        if left <= _SLICE or signal_arrived():
            return False
