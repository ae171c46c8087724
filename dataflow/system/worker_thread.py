"""Worker thread: one thread, from its start to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dataflow.system.interrupts import signals_deferred
from dataflow.system.worker_info import WorkerInfo, entering
from dataflow.system.worker_pool import Worker

__all__ = ["ThreadWorker"]


class ThreadWorker(Worker):
    """A worker that is a thread. It is created first and started later, and holds no resources.

    It cannot be killed: one that does not return is abandoned, and ends with the interpreter.
    """

    def __init__(self, info: WorkerInfo, body: Callable[[], None]) -> None:
        self.info = info
        self._thread = threading.Thread(
            target=_main, args=(info, body), name=f"dataflow-worker-{info.index}", daemon=True
        )

    def start(self) -> None:
        # `start` waits until the thread runs. An interrupt there would leave a thread that the pool takes for never
        # started.
        with signals_deferred():
            self._thread.start()

    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def state(self) -> str:
        return f"thread {self._thread.name}, {'alive' if self._thread.is_alive() else 'ended'}"

    def task(self) -> str | None:
        return None if self._thread.native_id is None else f"self/task/{self._thread.native_id}"

    def join(self, timeout: float) -> bool:
        if self._thread is threading.current_thread():
            return True  # the garbage collector closes a dropped flow in any thread, and none can wait for itself
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self.has_ended()

    def kill(self) -> bool:
        return False


def _main(info: WorkerInfo, body: Callable[[], None]) -> None:
    with entering(info):
        body()
