"""`SharedMem`: arrays in shared memory, and the picklable handles with which processes share them."""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataflow.compat.layout import fixed_dtype, fixed_shape, store_one
from dataflow.errors import NotPicklable, ShapeMismatch
from dataflow.system.descriptors import shared_memory_file

__all__ = ["Handle", "SharedLock", "SharedMem", "refusing_handles"]

_refused: ContextVar[bool] = ContextVar("handles_refused", default=False)


class Handle:
    """A flat array in shared memory, picklable while a process of any start method is started; both share the memory.

    One without a lock may also be sent to a process that runs, through a queue or a pipe.

    Guarantees:

    - The memory is freed when the last handle and the last array on it are gone, in all processes.
    - A process that dies at any moment leaves the memory of the others intact.

    Attributes:
        dtype: The dtype of its elements.
        size: Number of elements.
    """

    def __init__(self, fd: int, start: int, dtype: np.dtype[Any], size: int, lock: SharedLock | None = None) -> None:
        self.dtype = dtype
        self.size = size
        self._start = start  # offset of the first element in the file
        self._lock = lock
        self._memory: mmap.mmap | None = None  # None until `view` is called
        # A plain descriptor: a forked child keeps it, and may pass the memory on.
        self._fd = _own_descriptor(self, fd)

    def get_lock(self) -> SharedLock:
        """Return the lock that was made with ``lock=True``, for ``with handle.get_lock():``."""
        if self._lock is None:
            raise ValueError("this handle has no lock: make it with lock=True")
        return self._lock

    def get_obj(self) -> Handle:
        """Return the handle itself, for code that was written for ``multiprocessing.Array(..., lock=True)``."""
        return self

    def view(self) -> NDArray[Any]:
        """Return the memory as a flat array."""
        if self._memory is None:
            # Two threads that meet here map it twice, and both see the same memory.
            self._memory = mmap.mmap(self._fd, max(1, self._start + self.size * self.dtype.itemsize))
        return np.ndarray((self.size,), self.dtype, self._memory, self._start)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<handle of {self.size} shared {self.dtype}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if _refused.get():
            raise NotPicklable("a handle of shared memory can be sent only while a process is being started")
        if self._lock is not None:
            _check_start()  # here: pickling the memory has effects of its own
        return _received_handle, (reduction.DupFd(self._fd), self._start, self.dtype, self.size, self._lock)


def _received_handle(duplicate: Any, start: int, dtype: np.dtype[Any], size: int, lock: SharedLock | None) -> Handle:
    return Handle(duplicate.detach(), start, dtype, size, lock)


@contextmanager
def refusing_handles() -> Iterator[None]:
    """Context manager: in this thread, pickling a handle raises an error."""
    token = _refused.set(True)
    try:
        yield
    finally:
        _refused.reset(token)


class SharedMem:
    """Share numpy arrays between processes.

    Every dtype of a fixed size can be shared: bool, integers, floats, complex numbers, times, texts of a fixed length,
    structures, in either byte order.

    Example:
        >>> handle = SharedMem.ndarray2shm(np.arange(6).reshape(2, 3))
        >>> array = SharedMem.shm2ndarray(handle, (2, 3))
        >>> array[1, 2] = 50
        >>> SharedMem.shm2ndarray(handle).tolist()
        [0, 1, 2, 3, 4, 50]
        >>> del handle, array  # and the memory with them

    Source:
        ELEKTRONN and ELEKTRONN2, whose class of this name it replaces.
    """

    @staticmethod
    def shm2ndarray(mp_array: Any, shape: Any = None) -> NDArray[Any]:
        """Return a live view of shared memory: a write in any process is visible in all of them.

        Args:
            mp_array: A handle, or a ``multiprocessing.Array`` or ``RawArray``.
            shape: Shape of the array, in C order; flat without it.

        Raises:
            ShapeMismatch: The handle has another number of elements; the message gives both numbers.
            TypeError: `mp_array` is not a handle.
        """
        if isinstance(mp_array, Handle):
            flat = mp_array.view()
        else:
            raw = mp_array.get_obj() if hasattr(mp_array, "get_obj") else mp_array
            if not hasattr(raw, "_length_"):
                raise TypeError(f"a handle or a multiprocessing.Array is expected, got {type(mp_array).__name__}")
            flat = np.ctypeslib.as_array(raw)
        if shape is None:
            return flat
        try:
            return flat.reshape(shape)
        except ValueError as error:
            raise ShapeMismatch(f"a handle of {flat.size} elements cannot have the shape {shape}") from error

    @staticmethod
    def ndarray2shm(np_array: Any, lock: bool = False) -> Handle:
        """Copy an array into new shared memory. Any memory order is accepted; the copy is flat, in C order.

        Args:
            np_array: The array.
            lock: Make a lock with it: see `Handle.get_lock`.
        """
        array = np.asarray(np_array)
        return SharedMem.puthandle(array.dtype, array.shape, array, lock)

    @staticmethod
    def puthandle(dtype: DTypeLike, shape: Any, data: Any = None, lock: bool = False) -> Handle:
        """Allocate shared memory and return its handle.

        Args:
            dtype: Any dtype of a fixed size.
            shape: Shape of the array that will lie there.
            data: Initial values, of the same shape, or flat in C order; without it, zeros.
            lock: Make a lock with it: see `Handle.get_lock`.

        Raises:
            ShapeMismatch: `data` has another shape; the message gives both.
            TypeError: The dtype has no fixed size, or the conversion of `data` would change its kind.
            OverflowError: A value does not fit into the dtype.
        """
        dtype, shape = fixed_dtype(dtype), fixed_shape(shape)
        size = math.prod(shape)
        file = shared_memory_file("dataflow-array", max(1, size * dtype.itemsize))
        handle = Handle(os.dup(file.fd), 0, dtype, size, SharedLock() if lock else None)
        file.close()
        if data is not None:
            array = np.asarray(data)
            view = handle.view() if array.ndim == 1 else handle.view().reshape(shape)
            store_one(view, data, "data", array)
        return handle


_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05


def _own_descriptor(owner: Any, fd: int) -> int:
    """Return `fd`, which is closed when `owner` is collected."""
    # At exit the system closes it, when nothing uses the memory any more.
    weakref.finalize(owner, os.close, fd).atexit = False
    return fd


class _Holder:
    """How one process holds a `SharedLock`."""

    def __init__(self) -> None:
        self.threads = threading.RLock()
        self.thread: int | None = None  # the identifier of the thread that holds it
        self.depth = 0  # how often this thread has acquired it


class SharedLock:
    """A reentrant lock between threads and between processes.

    Guarantees:

    - The kernel releases it when its holder dies: it is a record lock on a file without a name.
    - A forked child of the holder does not hold it.
    - Sending it releases nothing: it can be pickled only for a process that is being started. Otherwise a process would
      have two descriptors of its file, and closing one releases what is held through the other.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            file = shared_memory_file("dataflow-lock", 1)
            fd = os.dup(file.fd)
            file.close()
        self._fd = _own_descriptor(self, fd)
        self._holders: dict[int, _Holder] = {}  # by process: a forked one begins anew

    def _holder(self) -> _Holder:
        pid = os.getpid()
        # setdefault: of two threads that meet here, both continue with the same one.
        return self._holders.get(pid) or self._holders.setdefault(pid, _Holder())

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock; return whether that succeeded, within `timeout` seconds if given."""
        holder = self._holder()
        deadline = None if timeout is None else time.monotonic() + max(0.0, timeout)
        # Threads first: a record lock belongs to the process, and does not exclude another thread of it.
        if not holder.threads.acquire(block, -1 if timeout is None or not block else max(0.0, timeout)):
            return False
        try:
            if not holder.depth and not self._lock_file(block, deadline):
                return False
            holder.depth, holder.thread = holder.depth + 1, threading.get_ident()
            return True
        finally:
            if not holder.depth:
                self._unlock(holder)  # the file too: an interrupt may have come when it was just locked

    def release(self) -> None:
        """Release the lock once.

        Raises:
            RuntimeError: This thread does not hold it.
        """
        holder = self._holder()
        # Looked at before anything is changed: the thread that holds it keeps it.
        if holder.thread != threading.get_ident():
            raise RuntimeError(
                "this thread has not acquired the lock: only the thread that called acquire() may release it"
            )
        holder.depth -= 1
        if holder.depth:
            holder.threads.release()
        else:
            holder.thread = None
            self._unlock(holder)

    def _unlock(self, holder: _Holder) -> None:
        import fcntl

        try:
            # Before the lock of the threads: otherwise this would unlock the file of the thread that acquires it next.
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        finally:
            holder.threads.release()

    def _lock_file(self, block: bool, deadline: float | None) -> bool:
        import fcntl  # does not exist on Windows, where the package can still be imported

        if block and deadline is None:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)  # released if the holder dies
            return True
        # The kernel's wait for a record lock has no time limit, so it is tried again and again.
        pause = _FIRST_PAUSE
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:  # another process holds it
                if not block or deadline is None or time.monotonic() >= deadline:
                    return False
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        _check_start()
        return _received_lock, (reduction.DupFd(self._fd),)


def _check_start() -> None:
    """Check that a lock is pickled for a process that is being started."""
    if get_spawning_popen() is None:  # `DupFd` would duplicate the descriptor here, and close the duplicate
        raise NotPicklable(
            "a lock of shared memory, or a handle with one, can be sent only while a process is being started: pass it "
            "as an argument of the process"
        )


def _received_lock(duplicate: Any) -> SharedLock:
    return SharedLock(duplicate.detach())
