"""What the consumer reads of an arena: arrays in blocks, which are free again when the last view of them has died."""

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
"""What returns pages to the system; the second is only a hint."""


class Base(np.ndarray[Any, Any]):
    """The base of an array in a block: numpy keeps it alive for every view, as it does not look through subclasses."""

    block: Block | None = None  # of a draft; None where the consumer reads
    last: _ReadAfter | None = None  # once the worker has ended; the reader may be gone before the views


def is_base(array: object) -> bool:
    """Whether `array` is the base of an array in a block."""
    return type(array) is Base


class Lease(weakref.ref[Base]):
    """Notices that the last view of a block has died."""

    __slots__ = ("status",)
    status: int


class _Read(weakref.ref[Base]):
    """Frees a block whose last view has died.

    Not one line of Python runs then: Ctrl-C would be raised in it, and what is raised in the callback of a weak
    reference is lost. The callback writes this reference itself into the status byte, as a number: 0.
    """

    __slots__ = ()
    __index__ = int


class _ReadAfter(weakref.ref[Base]):
    """Gives the pages of a block back, when its last view has died after its worker has: again without any Python."""

    __slots__ = ("madvise", "reader")
    madvise: Callable[..., None]
    reader: ArenaReader  # kept, so that a forked child finds this through it


def _do_nothing(*_: object) -> None:
    pass


class _Freeing(dict[int, Callable[[_Read], None]]):
    """By status byte: what frees the block."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __missing__(self, status: int) -> Callable[[_Read], None]:
        free: Any = partial(self._memory.__setitem__, status)
        self[status] = free
        return self[status]


_readers: Final[weakref.WeakSet[ArenaReader]] = weakref.WeakSet()


class ArenaReader:
    """The consumer's end: gives out arrays that read, and may write, a block in place."""

    def __init__(self, memory: mmap.mmap, classes: Sequence[BlockClass]) -> None:
        self._memory = memory
        self._classes = classes
        self._pid = os.getpid()
        self._freeing = _Freeing(memory)
        self._leases: dict[int, _Read] = {}  # by status byte; of dead ones, too, until the block is read again
        self._last: list[_ReadAfter] = []  # what is still read after the worker has ended
        _readers.add(self)

    def leases(
        self, blocks: Iterable[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        """The arrays in blocks, given as status byte and start, that are all alike.

        A block is free again when the last view of its array has died.
        """
        arrays: list[NDArray[Any]] = []
        memory, leases, freeing = self._memory, self._leases, self._freeing
        for status, start in blocks:
            base = Base(shape, dtype, memory, start, None, order)  # keywords would take as long again
            leases[status] = _Read(base, freeing[status])
            arrays.append(base.view(np.ndarray))
        return arrays

    def read(self, status: int, start: int, nbytes: int) -> memoryview:
        """What `ArenaWriter.write` has left in a block, until `free`."""
        return memoryview(self._memory)[start : start + nbytes]

    def free(self, status: int) -> None:
        """Nothing refers to what was read any more."""
        self._memory[status] = 0

    def worker_ended(self) -> None:
        """Nobody gives idle pages back any more: do it here, now, and as the last leases die."""
        if os.getpid() != self._pid:
            return
        spans = []
        for status, lease in sorted(self._leases.items()):
            base = lease()
            if base is not None:
                start, end = self._span(status)
                last = _ReadAfter(base, methodcaller("madvise", GIVE_BACK, start, end - start))
                last.madvise = self._memory.madvise
                last.reader = self
                base.last = last
                self._last.append(last)
                spans.append((start, end))
            del base  # whose pages go now, if it was the last that held it
        self._leases.clear()
        start = self._classes[0].start
        for begin, end in (*sorted(spans), (len(self._memory), 0)):
            if begin > start:
                self._memory.madvise(GIVE_BACK, start, begin - start)
            start = end

    def forget(self) -> None:
        """In a forked child: it drops copies, and what it drops is still read by its parent."""
        self._leases.clear()
        for last in self._last:
            last.madvise = _do_nothing

    def _span(self, status: int) -> tuple[int, int]:
        """Where the block with that status byte begins and ends."""
        kind = self._classes[bisect.bisect(self._classes, status, key=lambda kind: kind.status) - 1]
        start = kind.start + (status - kind.status) * kind.size
        return start, start + kind.size

    def num_leases(self) -> int:
        """How many blocks are read at present."""
        return sum(lease() is not None for lease in [*self._leases.values(), *self._last])


def _forked() -> None:
    for reader in list(_readers):
        reader.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
