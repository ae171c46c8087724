"""A crew: several workers, started together, watched, and stopped.

Guarantees:

- After `stop` no process of the crew is left. A thread that does not return within the grace is left behind as a
  daemon, and named once in the log.
- Only the process that started a crew stops it; a forked child that holds a copy does nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Sequence
from typing import Final, Protocol

from dataflow.workers.place import WorkerInfo, worker_info

__all__ = ["Crew", "Worker", "grace"]

_LOG = logging.getLogger(__name__)
_GRACE: Final = 1.0


class Worker(Protocol):
    """A process or a thread."""

    place: WorkerInfo
    pid: int | None
    sentinel: int | None

    def has_ended(self) -> bool:
        """Whether it runs no more."""

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


class Crew:
    """The workers of one runner, in the process that started them.

    Args:
        starts: One function for each worker, which starts it.
    """

    def __init__(self, starts: Sequence[Callable[[], Worker]]) -> None:
        self._pid = os.getpid()
        self.workers: list[Worker] = []
        try:
            for start in starts:
                self.workers.append(start())
        except BaseException:
            self.stop(0)
            raise

    def ended(self) -> list[int]:
        """The indexes of the workers that have ended."""
        return [k for k, worker in enumerate(self.workers) if worker.has_ended()]

    def sentinels(self, but: Container[int]) -> tuple[int, ...]:
        """Descriptors that become readable when a worker ends, of all but these; a thread has none."""
        others = (worker.sentinel for k, worker in enumerate(self.workers) if k not in but)
        return tuple(sentinel for sentinel in others if sentinel is not None)

    def replace(self, worker: int, start: Callable[[], Worker]) -> None:
        """Start another in the place of a worker that has ended, or is about to: it gets the grace for that."""
        old = self.workers[worker]
        if not old.join(grace()):
            old.kill()
        self.workers[worker] = start()
        old.release()

    def stop(self, patience: float | None = None) -> None:
        """Wait for all workers, then end those that are left. Idempotent.

        Args:
            patience: Seconds; None for `grace()`. The workers have been told to stop before.
        """
        if os.getpid() != self._pid:
            return
        try:
            self._end(grace() if patience is None else patience)
        except BaseException:
            self._end(0)  # the user interrupts: nobody waits any longer, and nobody is left behind
            raise

    def _end(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        for worker in list(self.workers):
            if not worker.join(max(0.0, deadline - time.monotonic())) and not worker.kill():
                _LOG.warning(
                    "worker %d of %d (%s) did not return within the grace and is left behind, because it cannot be "
                    "killed; a thread ends with the interpreter",
                    worker.place.index,
                    worker.place.count,
                    worker.state(),
                )
            self.workers.remove(worker)
            worker.release()
