"""Large records read in place: pieces of a file that are mapped, each part of which is given out once.

A mapping is private: arrays in it can be written to, and what is written stays in this process, on pages of its own.
Nothing is copied that nobody writes to, and a piece is unmapped when the last array in it is gone. To write costs more
than to copy all of it before, page by page: where somebody does, what follows is copied.

Guarantees:

- No byte of a mapping is given out twice: what somebody has written is seen by nobody else.
- The file is the one that was open at the beginning, also if another one has taken its name.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.formats.positional import PositionalFile

__all__ = ["Places", "Windows", "address_of", "file_offset"]

_WINDOW = 1 << 24  # bytes that are mapped at a time
_LARGE = 1 << 16  # bytes of a record, from which on it is read where it lies
_ENTRY = 8  # bytes that the system tells of each page
_PRESENT, _OF_A_FILE = np.uint64(1 << 63), np.uint64(1 << 61)


class Places:
    """Where in a file its large records lie, as far as that is known.

    Args:
        num: How many records there are. What is kept of them takes memory once there is a large one.
    """

    def __init__(self, num: int) -> None:
        self._num = num
        self._known: NDArray[np.uint64] | None = None  # begin and size; zeros where nothing is known

    def note(self, k: int, size: int, begin: Callable[[], int]) -> None:
        """Remember where record `k` lies, if it is large; 0 says that this is not known."""
        if size >= _LARGE:
            if self._known is None:
                self._known = np.zeros((self._num, 2), np.uint64)
            self._known[k] = begin(), size

    def known(self, first: int, end: int) -> list[tuple[int, int]]:
        """Begin and size of these records, zeros where nothing is known; an empty list where nothing is of any."""
        if self._known is None:
            return []
        places = self._known[first:end]
        return [(begin, size) for begin, size in places.tolist()] if places[:, 0].any() else []


class Windows:
    """The pieces that one reading of a file goes through.

    Args:
        file: The file, which the caller closes.
        lock: Held while the file is used: it is not closed meanwhile.
    """

    def __init__(self, file: PositionalFile, lock: AbstractContextManager[Any]) -> None:
        self._file = file
        self._lock = lock
        self._window = memoryview(b"")
        self._begin = 0  # of the window, in the file
        self._end = 0
        self._first = memoryview(b"")  # what was given out of it first
        self._given = 0  # where in the file ends what was given out of it
        self._copies = False  # somebody writes to what is given out

    def piece(self, offset: int, size: int) -> Any:
        """The bytes of the file from `offset` on, in memory that can be written to and is the caller's alone."""
        end = offset + size
        if offset < self._given or end > self._end:
            if not self._copies and _is_written(self._first):
                self._copies, self._end = True, 0
                self._window = self._first = memoryview(b"")
            if self._copies:
                with self._lock:
                    return self._file.read(offset, size)
            self._move(offset, end)
        self._given = end
        return self._window[offset - self._begin : end - self._begin]

    def _move(self, offset: int, end: int) -> None:
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY
        length = min(max(_WINDOW, end - begin), self._file.size - begin)
        with self._lock:
            self._window = memoryview(self._file.mapped(begin, length))
        self._begin, self._end = begin, begin + length
        self._first = self._window[offset - begin : end - begin]


def _is_written(piece: memoryview) -> bool:
    """Whether a piece of a private mapping has pages of its own; false where the system does not say."""
    if not len(piece):
        return False
    first, end = address_of(piece) // mmap.PAGESIZE, (address_of(piece) + len(piece)) // mmap.PAGESIZE
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(first * _ENTRY)
            pages = np.frombuffer(file.read((end - first) * _ENTRY), np.uint64)
    except OSError:
        return False
    return bool((pages & (_PRESENT | _OF_A_FILE) == _PRESENT).any())


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
