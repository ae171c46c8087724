"""Large arrays read in place: pieces of a file that are mapped, each part of which is given out once.

A mapping is private: arrays in it can be written to, and what is written stays in this process, on pages of its own.
Nothing is copied that nobody writes to, and a piece is unmapped when the last array in it is gone.

Guarantees:

- No byte of a mapping is given out twice: what somebody has written is seen by nobody else.
- The file is the one that was open at the beginning, also if another one has taken its name.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

from dataflow.descriptors import Descriptor

__all__ = ["Windows", "address_of", "file_offset"]

_WINDOW = 1 << 24  # bytes that are mapped at a time


class Windows:
    """The pieces that one reading of a file goes through.

    Args:
        file: The file, which the caller closes.
        size: Its size in bytes.
    """

    def __init__(self, file: Descriptor, size: int) -> None:
        self._file = file
        self._size = size
        self._window = memoryview(b"")
        self._begin = 0  # of the window, in the file
        self._given = 0  # where in the file ends what was given out of the window

    def piece(self, offset: int, size: int) -> memoryview:
        """The bytes of the file from `offset` on, in memory that can be written to and is the caller's alone."""
        if offset < self._given or offset + size > self._begin + len(self._window):
            begin = offset - offset % mmap.ALLOCATIONGRANULARITY
            length = min(max(_WINDOW, offset + size - begin), self._size - begin)
            mapped = mmap.mmap(self._file.fd, length, access=mmap.ACCESS_COPY, offset=begin)
            self._window, self._begin = memoryview(mapped), begin
        self._given = offset + size
        return self._window[offset - self._begin : offset - self._begin + size]


def file_offset(value: Any) -> tuple[int, int] | None:
    """Where the mapping in which `value` lies begins in this process, and of which place in its file that is.

    None where the system does not say.
    """
    if not sys.platform.startswith("linux") or not len(value):
        return None
    place = address_of(value)
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end = (int(text, 16) for text in line.split(maxsplit=1)[0].split("-"))
            if begin <= place < end:
                return begin, int(line.split(maxsplit=3)[2], 16)
    return None


def address_of(value: Any) -> int:
    """Where the first byte lies."""
    address: int = np.frombuffer(value, np.uint8, 1).__array_interface__["data"][0]
    return address
