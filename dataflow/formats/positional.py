"""A file that is read at places, by any thread, without a position of its own."""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any

import numpy as np

from dataflow.descriptors import Descriptor
from dataflow.errors import DataFlowTerminated
from dataflow.formats.damage import file_damaged

__all__ = ["PositionalFile"]


class PositionalFile:
    """An open file.

    What is read is copied from the system's cache into fresh memory: memory stays flat, and a file that is cut off
    while it is open gives an error. What is mapped is not copied, and such a file may give a SIGBUS.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = Descriptor(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))
        self._lock = threading.Lock()  # where a read needs a position (Windows)
        status = os.fstat(self._file.fd)
        self.size = status.st_size
        self.identity = [status.st_size, status.st_mtime_ns]
        """What changes when the file does: its size in bytes, and its time in nanoseconds."""
        self.inode = status.st_dev, status.st_ino
        """What stays when its name does not."""

    def read(self, offset: int, size: int, place: str = "") -> Any:
        """`size` bytes from `offset` on, in memory of their own: an array uint8 (size,).

        Raises:
            FileDamaged: The file ends before; `place` says in the message what was to be read.
        """
        data = np.empty(size, np.uint8)
        self.read_into(data, offset, place)
        return data

    def read_into(self, buffer: Any, offset: int, place: str = "") -> None:
        """Fill a writable buffer with the bytes from `offset` on. Raises as `read` does."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view):
            count = self._read_at(self._fd(), view[done:], offset + done)
            if not count:
                missing = len(view) - done
                raise file_damaged(self.path, place, f"the file ends, {missing} bytes too early,", offset + done)
            done += count

    def mapped(self, offset: int, size: int) -> mmap.mmap:
        """A private mapping: it can be written to, which only whoever has it sees."""
        return mmap.mmap(self._fd(), size, access=mmap.ACCESS_COPY, offset=offset)

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
