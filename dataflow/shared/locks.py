"""Lock between threads and processes that the kernel releases if its holder is killed."""

from __future__ import annotations

import os
import threading
import time
import weakref
from multiprocessing import reduction
from typing import Any, Final

from dataflow.descriptors import shared_memory_file

__all__ = ["SharedLock", "own_descriptor"]

_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05


def own_descriptor(owner: Any, fd: int) -> int:
    """Return `fd`, which is closed when `owner` is collected."""
    weakref.finalize(owner, os.close, fd).atexit = False
    return fd


class SharedLock:
    """A reentrant lock between threads and between processes.

    Guarantees:

    - The kernel releases it when its holder dies: it is a record lock on a file without a name.
    - A forked child of the holder does not hold it.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            file = shared_memory_file("dataflow-lock", 1)
            fd = os.dup(file.fd)
            file.close()
        # This file must not be opened and closed elsewhere here: closing any descriptor of it would release the lock.
        self._fd = own_descriptor(self, fd)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._threads = threading.RLock()
        self._depth = 0  # how often the holding thread has acquired it

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock; return whether that succeeded, within `timeout` seconds if given."""
        if self._pid != os.getpid():
            self._begin()
        deadline = None if timeout is None else time.monotonic() + max(0.0, timeout)
        if not self._threads.acquire(block, -1 if timeout is None or not block else max(0.0, timeout)):
            return False
        try:
            taken = self._depth > 0 or self._take(block, deadline)
        except BaseException:
            self._threads.release()
            raise
        if not taken:
            self._threads.release()
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        """Release the lock once."""
        if self._pid != os.getpid() or not self._depth:
            raise RuntimeError("this lock is not held here: release() needs an acquire() before it")
        if self._depth == 1:
            import fcntl

            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        self._depth -= 1
        self._threads.release()

    def _take(self, block: bool, deadline: float | None) -> bool:
        import fcntl  # does not exist on Windows, where the package can still be imported

        if block and deadline is None:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)  # released if the holder dies
            return True
        pause = _FIRST_PAUSE
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:
                if not block or deadline is None or time.monotonic() >= deadline:
                    return False
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._fd),)


def _received(duplicate: Any) -> SharedLock:
    return SharedLock(duplicate.detach())
