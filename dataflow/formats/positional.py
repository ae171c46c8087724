"""File for positional reads from any thread, without a shared position."""

from __future__ import annotations

import os
import threading
from typing import IO, Any

import numpy as np

from dataflow.descriptors import Descriptor
from dataflow.errors import DataFlowTerminated, FileDamaged
from dataflow.formats.checksums import file_damaged

__all__ = ["PositionalFile"]


class PositionalFile:
    """An open file.

    Reads copy from the system's cache into fresh memory: memory use stays flat, and a file that is cut off
    while it is open gives an error.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = Descriptor(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))
        self._lock = threading.Lock()  # used if a read needs a position (Windows)
        status = os.fstat(self._file.fd)
        self.size = status.st_size
        self.identity = [status.st_size, status.st_mtime_ns]
        """The state of the file: its size in bytes, and its time of change in nanoseconds."""

    def read(self, offset: int, size: int, place: str = "") -> Any:
        """Return `size` bytes from `offset` on, in memory of their own: an array uint8 (size,).

        Raises:
            FileDamaged: The file ends before; `place` names in the message what was being read.
        """
        self._check(offset, size, place)  # before memory is allocated for it
        data = np.empty(size, np.uint8)
        self.read_into(data, offset, place)
        return data

    def read_into(self, buffer: Any, offset: int, place: str = "") -> None:
        """Fill a writable buffer with the bytes from `offset` on. Raises as `read` does."""
        view, done = memoryview(buffer).cast("B"), 0
        self._check(offset, len(view), place)
        while done < len(view):
            count = self._read_at(self._fd(), view[done:], offset + done)
            if not count:
                raise self._too_short(place, len(view) - done, offset + done)
            done += count

    def _check(self, offset: int, size: int, place: str) -> None:
        """Check that these bytes exist. A damaged file may claim any; the system's error would be about an argument."""
        if offset < 0:
            raise file_damaged(self.path, place, f"it would begin {-offset} bytes before the file does")
        if size < 0:
            raise file_damaged(self.path, place, f"it would have {size} bytes", offset)
        if offset + size > self.size:
            raise self._too_short(place, offset + size - max(offset, self.size), max(offset, self.size))

    def _too_short(self, place: str, num_missing: int, offset: int) -> FileDamaged:
        return file_damaged(self.path, place, f"the file ends, {num_missing} bytes too early,", offset)

    def stream(self) -> IO[bytes]:
        """Return the same open file as an object with a position; the caller closes it."""
        return open(os.dup(self._fd()), "rb")

    def _fd(self) -> int:
        fd = self._file.fd
        if fd < 0:
            raise DataFlowTerminated(f"{self.path} was closed while it was being read")
        return fd

    def _read_at(self, fd: int, view: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(fd, [view], offset)
        with self._lock:
            os.lseek(fd, offset, os.SEEK_SET)
            data = os.read(fd, len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close it. Idempotent."""
        self._file.close()
