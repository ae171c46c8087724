"""Worker thread: one thread, from its start to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dataflow.system.interrupts import signals_deferred
from dataflow.system.worker_info import WorkerInfo, entering

__all__ = ["ThreadWorker"]


class ThreadWorker:
    """A worker that is a thread. It is created first and started later. It cannot be killed: see `kill`."""

    pid: int | None = None
    sentinel: int | None = None

    def __init__(self, info: WorkerInfo, body: Callable[[], None]) -> None:
        self.info = info
        self._thread = threading.Thread(
            target=_main, args=(info, body), name=f"dataflow-worker-{info.index}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        with signals_deferred():
            self._thread.start()

    def has_ended(self) -> bool:
        """Whether it is no longer running, or was never started."""
        return not self._thread.is_alive()

    def exitcode(self) -> int | None:
        """None: a thread has no exit code."""
        return None

    def state(self) -> str:
        """What the thread is doing, for a message."""
        return f"thread {self._thread.name}, {'alive' if self._thread.is_alive() else 'ended'}"

    def task(self) -> str | None:
        """Its place below ``/proc``; None if it has not begun."""
        return None if self._thread.native_id is None else f"self/task/{self._thread.native_id}"

    def join(self, timeout: float) -> bool:
        """Wait for its end, at most `timeout` seconds; return whether it has ended."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self.has_ended()

    def kill(self) -> bool:
        """Return False: a thread that does not return is abandoned; it ends with the interpreter."""
        return False

    def begin_kill(self) -> None:
        """No-op, as `kill`."""

    def leave_behind(self) -> None:
        """No-op: a thread ends with the interpreter."""

    def release(self) -> None:
        """No-op: a thread has no resources to release."""


def _main(info: WorkerInfo, body: Callable[[], None]) -> None:
    with entering(info):
        body()
