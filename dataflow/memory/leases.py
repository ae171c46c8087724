"""Leases on arena blocks: arrays that the consumer reads in place, whose blocks become free with their last view."""

from __future__ import annotations

import bisect
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.memory.blocks import Block, BlockClass

__all__ = ["GIVE_BACK", "ArenaReader", "Base", "Lease", "is_base"]

GIVE_BACK: Final = getattr(mmap, "MADV_REMOVE", getattr(mmap, "MADV_DONTNEED", 0))
"""The `madvise` advice that returns pages to the system; the second is only a hint."""


class Base(np.ndarray[Any, Any]):
    """The base of an array in a block.

    numpy keeps it alive for every view, because it does not look through subclasses.
    """

    block: Block | None = None  # set for an output buffer; None where the consumer reads
    last: _OrphanedBlockLease | None = None  # set once the worker has ended; the views may outlive the reader


def is_base(array: object) -> bool:
    """Return True if `array` is the base of an array in a block."""
    return type(array) is Base


class Lease(weakref.ref[Base]):
    """Weak reference whose callback runs when the last view of a block is gone."""

    __slots__ = ("status",)
    status: int


class _BlockLease(weakref.ref[Base]):
    """Weak reference that frees its block when the last view is gone.

    The callback runs no Python code: Ctrl-C could be raised in it, and an exception in the callback of a weak reference
    is lost. Instead, the callback writes this reference itself into the status byte, as a number: 0.
    """

    __slots__ = ()
    __index__ = int


class _OrphanedBlockLease(weakref.ref[Base]):
    """Weak reference that releases the pages of a block when its last view is gone after the worker has ended.

    Its callback runs no Python code either.
    """

    __slots__ = ("madvise", "reader")
    madvise: Callable[..., None]
    reader: ArenaReader  # kept, so that a forked child finds this reference through it


def _do_nothing(*_: object) -> None:
    pass


class _Freeing(dict[int, Callable[[_BlockLease], None]]):
    """Maps a status byte to the function that frees its block."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __missing__(self, status: int) -> Callable[[_BlockLease], None]:
        free: Any = partial(self._memory.__setitem__, status)
        self[status] = free
        return self[status]


_readers: Final[weakref.WeakSet[ArenaReader]] = weakref.WeakSet()


class ArenaReader:
    """The consumer's end: returns arrays that read and write a block in place."""

    def __init__(self, memory: mmap.mmap, classes: Sequence[BlockClass]) -> None:
        self._memory = memory
        self._classes = classes
        self._pid = os.getpid()
        self._freeing = _Freeing(memory)
        self._leases: dict[
            int, _BlockLease
        ] = {}  # by status byte; includes dead references, until the block is read again
        self._last: list[_OrphanedBlockLease] = []  # blocks still in use after the worker has ended
        _readers.add(self)

    def leases(
        self, blocks: Iterable[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        """Return the arrays in blocks given as (status byte, start), all of one shape and dtype.

        A block becomes free when the last view of its array is gone.
        """
        arrays: list[NDArray[Any]] = []
        memory, leases, freeing = self._memory, self._leases, self._freeing
        for status, start in blocks:
            base = Base(shape, dtype, memory, start, None, order)  # keyword arguments would double the time
            leases[status] = _BlockLease(base, freeing[status])
            arrays.append(base.view(np.ndarray))
        return arrays

    def read(self, status: int, start: int, nbytes: int) -> memoryview:
        """The bytes that `ArenaWriter.write` left in a block, valid until `free`."""
        return memoryview(self._memory)[start : start + nbytes]

    def free(self, status: int) -> None:
        """Free a block that was read; nothing refers to its bytes any more."""
        self._memory[status] = 0

    def worker_ended(self) -> None:
        """Release the pages of a worker that has ended: idle pages now, others with their last view."""
        if os.getpid() != self._pid:
            return
        ranges = []
        for status, lease in sorted(self._leases.items()):
            base = lease()
            if base is not None:
                start, end = self._byte_range(status)
                last = _OrphanedBlockLease(base, methodcaller("madvise", GIVE_BACK, start, end - start))
                last.madvise = self._memory.madvise
                last.reader = self
                base.last = last
                self._last.append(last)
                ranges.append((start, end))
            del base  # if this was the last reference, its pages are returned below
        self._leases.clear()
        start = self._classes[0].start
        for begin, end in (*sorted(ranges), (len(self._memory), 0)):
            if begin > start:
                self._memory.madvise(GIVE_BACK, start, begin - start)
            start = end

    def forget(self) -> None:
        """In a forked child, which drops only copies: free nothing, because the parent still reads these blocks."""
        self._leases.clear()
        for last in self._last:
            last.madvise = _do_nothing

    def _byte_range(self, status: int) -> tuple[int, int]:
        """Begin and end of the block with that status byte."""
        block_class = self._classes[
            bisect.bisect(self._classes, status, key=lambda block_class: block_class.status) - 1
        ]
        start = block_class.start + (status - block_class.status) * block_class.size
        return start, start + block_class.size

    def num_leases(self) -> int:
        """Number of blocks in use."""
        return sum(lease() is not None for lease in [*self._leases.values(), *self._last])


def _forked() -> None:
    for reader in list(_readers):
        reader.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
