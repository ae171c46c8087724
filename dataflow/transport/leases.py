"""What the consumer reads of an arena: arrays in blocks, which are free again when the last view of them has died."""

from __future__ import annotations

import bisect
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.blocks import Block, BlockClass

__all__ = ["GIVE_BACK", "ArenaReader", "Base", "Lease", "is_base"]

GIVE_BACK: Final = getattr(mmap, "MADV_REMOVE", getattr(mmap, "MADV_DONTNEED", 0))
"""What returns pages to the system; the second is only a hint."""


class Base(np.ndarray[Any, Any]):
    """The base of an array in a block: numpy keeps it alive for every view, as it does not look through subclasses."""

    block: Block | None = None  # of a draft; None where the consumer reads


def is_base(array: object) -> bool:
    """Whether `array` is the base of an array in a block."""
    return type(array) is Base


class Lease(weakref.ref[Base]):
    """Notices that the last view of a block has died."""

    __slots__ = ("status",)
    status: int


class ArenaReader:
    """The consumer's end: gives out arrays that read, and may write, a block in place."""

    def __init__(self, memory: mmap.mmap, classes: Sequence[BlockClass]) -> None:
        self._memory = memory
        self._classes = classes
        self._pid = os.getpid()
        self._leases: dict[int, Lease] = {}  # by status byte
        self._last: dict[int, tuple[int, int]] = {}  # by status byte: what is still read after the worker has ended
        # Leases may die when the interpreter has already emptied the modules.
        self._madvise = partial(memory.madvise, GIVE_BACK)

    def leases(
        self, blocks: Iterable[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        """The arrays in blocks, given as status byte and start, that are all alike.

        A block is free again when the last view of its array has died.
        """
        arrays: list[NDArray[Any]] = []
        memory, leases, free = self._memory, self._leases, self._free
        for status, start in blocks:
            base = Base(shape, dtype, memory, start, None, order)  # keywords would take as long again
            lease = leases[status] = Lease(base, free)
            lease.status = status
            arrays.append(base.view(np.ndarray))
        return arrays

    def read(self, status: int, start: int, nbytes: int) -> memoryview:
        """What `ArenaWriter.write` has left in a block, until `free`."""
        return memoryview(self._memory)[start : start + nbytes]

    def free(self, status: int) -> None:
        """Nothing refers to what was read any more."""
        self._memory[status] = 0

    def _free(self, lease: Lease) -> None:
        if os.getpid() == self._pid:
            del self._leases[lease.status]
            self._memory[lease.status] = 0
            if lease.status in self._last:
                self._forget(self._last[lease.status])

    def worker_ended(self) -> None:
        """Nobody gives idle pages back any more: do it here, now, and as the last leases die."""
        if os.getpid() != self._pid:
            return
        self._last = {status: self._span(status) for status in list(self._leases)}
        start = self._classes[0].start
        for begin, end in (*sorted(self._last.values()), (len(self._memory), 0)):
            if begin > start:
                self._forget((start, begin))
            start = end
        for status, span in self._last.items():
            if status not in self._leases:  # it died in another thread, before this began
                self._forget(span)

    def _span(self, status: int) -> tuple[int, int]:
        """Where the block with that status byte begins and ends."""
        kind = self._classes[bisect.bisect(self._classes, status, key=lambda kind: kind.status) - 1]
        start = kind.start + (status - kind.status) * kind.size
        return start, start + kind.size

    def _forget(self, span: tuple[int, int]) -> None:
        self._madvise(span[0], span[1] - span[0])

    def num_leases(self) -> int:
        """How many blocks are read at present."""
        return len(self._leases)
