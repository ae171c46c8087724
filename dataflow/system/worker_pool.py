"""Worker pool: several workers that are started together, watched, and stopped.

Guarantees:

- After `stop` no process of the pool is left. A thread that does not return within the grace period is left behind as a
  daemon, and named once in the log.
- A worker belongs to its pool before it is started: whatever interrupts the start, `stop` knows the worker.
- A signal that arrives in here is delivered between the starts of two workers, or when `stop` ends; `stop` then waits
  for no worker any longer.
- Only the process that started a pool stops it; a forked child that holds a copy does nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from dataflow.system.cleanup import program_ending
from dataflow.system.interrupts import deliver_signals, signal_arrived, signals_deferred
from dataflow.system.worker_info import WorkerInfo, worker_info

__all__ = ["WorkerPool", "Worker", "grace"]

_LOG = logging.getLogger(__name__)
_GRACE: Final = 1.0
_UNDO_PART: Final = 0.25  # part of the grace period for workers that have just been started
_SLICE: Final = 0.05  # seconds between two checks for signals that have arrived


class Worker(Protocol):
    """A process, a thread or an actor. A subclass leaves out what is nothing for its workers."""

    info: WorkerInfo
    pid: int | None = None
    sentinel: int | None = None

    def start(self) -> None:
        """Start the worker. After a failure it counts as ended, and nothing of it is left."""
        return

    def has_ended(self) -> bool:
        """Whether it is no longer running, or was never started."""

    def exitcode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs, or if unknown."""
        return None

    def state(self) -> str:
        """What the worker is doing, for a message."""

    def task(self) -> str | int | None:
        """Its place below ``/proc``, for `machine.processor_times`; None if it is not on this machine."""
        return None

    def join(self, timeout: float) -> bool:
        """Wait for its end; return whether it has ended."""

    def kill(self) -> bool:
        """End it, whatever it is doing; False if that is impossible."""

    def begin_kill(self) -> None:
        """Begin to end it, whatever it is doing, without waiting."""
        return

    def leave_behind(self) -> None:
        """Forget it although it has not ended: this process will not wait for it at its own end."""
        return

    def release(self) -> None:
        """Release its resources."""
        return


def grace() -> float:
    """Seconds that a worker gets to end by itself: less for inner pools, because their outer worker waits for them."""
    here = worker_info()
    return _GRACE * 0.5 ** (0 if here is None else len(here.path))


def _start(worker: Worker) -> None:
    try:
        worker.start()
    except RuntimeError as error:  # from Python 3.12 on: a program that is ending can neither fork nor start threads
        if "at interpreter shutdown" in str(error):
            raise program_ending() from error
        raise


class WorkerPool:
    """The workers of one runner, in the process that started them.

    Args:
        factories: One function per worker, which creates it; the pool starts it.
        request_stop: Called to stop the started workers if others could not be started.
    """

    def __init__(
        self, factories: Sequence[Callable[[], Worker]], request_stop: Callable[[], None] = lambda: None
    ) -> None:
        self._pid = os.getpid()
        self.workers: list[Worker] = []
        with signals_deferred():
            try:
                for make in factories:
                    deliver_signals()
                    self.add(make)
                deliver_signals()
            except BaseException:
                with ExitStack() as last:
                    # Called at the end of the block, also if `request_stop` raises.
                    last.callback(self.stop, _UNDO_PART * grace())
                    request_stop()
                raise

    def add(self, make: Callable[[], Worker]) -> None:
        """Start one more worker, under the next index; if it cannot be started, nothing has changed."""
        with signals_deferred():
            worker = make()
            self.workers.append(worker)  # before it is started: see the guarantees
            try:
                _start(worker)
            except BaseException:
                self.workers.pop().release()
                raise

    def ended(self) -> list[int]:
        """Indexes of the workers that have ended."""
        return [k for k, worker in enumerate(self.workers) if worker.has_ended()]

    def sentinels(self, but: Container[int]) -> tuple[int, ...]:
        """Descriptors that become readable when a worker ends, except those of `but`; a thread has none."""
        others = (worker.sentinel for k, worker in enumerate(self.workers) if k not in but)
        return tuple(sentinel for sentinel in others if sentinel is not None)

    def replace(self, worker: int, make: Callable[[], Worker]) -> None:
        """Start another worker in place of one that has ended, or is about to: it gets the grace period for that."""
        old = self.workers[worker]
        if not old.join(grace()):
            old.kill()
        with signals_deferred():
            # If `make` raises, the old one keeps its place, and what it holds is released by `stop`.
            new = self.workers[worker] = make()
            old.release()
            _start(new)

    def leave_behind(self, worker: int) -> None:
        """Forget a worker that does not end although it was killed; `replace` may start another in its place."""
        old = self.workers[worker]
        old.leave_behind()
        self.workers[worker] = _Ended(old.info, old.pid)

    def stop(self, timeout: float | None = None) -> None:
        """Wait for all workers, then kill the remaining ones. Idempotent.

        Args:
            timeout: Seconds; None for `grace()`. The workers were asked to stop before.
        """
        if os.getpid() != self._pid:  # a forked child: the workers are those of the parent
            return
        with signals_deferred():
            try:
                self._end(grace() if timeout is None else timeout)
            except BaseException:
                self._end(0)  # wait no longer, and leave no worker behind
                raise

    def _end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for worker in list(self.workers):
            # A worker that cannot be killed gets all of the time.
            if not (
                _ends_before(deadline, worker) or worker.kill() or worker.join(max(0.0, deadline - time.monotonic()))
            ):
                _LOG.warning(
                    "worker %d of %d (%s) did not return within the grace and is left behind, because it cannot be "
                    "killed; a thread ends with the interpreter",
                    worker.info.index,
                    worker.info.count,
                    worker.state(),
                )
            # First: if `release` raises, the second round of `stop` must not come back to this one.
            self.workers.remove(worker)
            worker.release()


class _Ended(Worker):
    """Stands for a worker that was left behind. What that one holds stays."""

    def __init__(self, info: WorkerInfo, pid: int | None) -> None:
        self.info = info
        self.pid = pid

    def has_ended(self) -> bool:
        return True

    def state(self) -> str:
        return f"pid {self.pid}, killed and left behind"

    def join(self, timeout: float) -> bool:
        return True

    def kill(self) -> bool:
        return True


def _ends_before(deadline: float, worker: Worker) -> bool:
    """Wait for the end of a worker, until `deadline`, or until a signal is waiting for delivery."""
    while True:
        left = deadline - time.monotonic()
        if worker.join(max(0.0, min(left, _SLICE))):
            return True
        if left <= _SLICE or signal_arrived():
            return False
