"""Shared memory in which workers leave arrays and the consumer reads them in place.

One arena for each worker: a sparse memfd, made by the parent before the start, that outlives the worker. It is divided
into blocks of power-of-two sizes; a block costs only the pages that were touched. A status byte for each block says who
owns it. Guarantees:

- The worker takes a block whose byte is 0 and sets it to 1; the consumer sets it back to 0 when the last view of the
  array has died. The two take turns at every byte, so there is no lock, and none to be left taken.
- The lowest free block is taken first: what was touched before is touched again, and stays in the caches.
- What the worker touches is reserved in the `Budget` before; idle pages are given back to the system and to the budget
  after a second, or at once when another worker finds none left.
- An array that the consumer holds stays readable and writable as long as it lives, also after the worker has died and
  the runner was closed; it keeps its own pages then, and no others. A forked child of the consumer that drops its copy
  frees nothing.
"""

from __future__ import annotations

import bisect
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.descriptors import Descriptor, shared_memory_file
from dataflow.transport.budget import Budget

__all__ = ["LARGE_BYTES", "Arena", "ArenaReader", "ArenaWriter", "Block"]

LARGE_BYTES: Final = 16 << 10
"""From this size on, an array has a block of its own."""

_PAGE: Final = mmap.PAGESIZE
_GIVE_BACK: Final = getattr(mmap, "MADV_REMOVE", getattr(mmap, "MADV_DONTNEED", 0))  # the second is only a hint
_SMALLEST_CLASS: Final = (max(LARGE_BYTES, _PAGE) - 1).bit_length()  # blocks of 2 to this, and so on; whole pages
_MOST_BLOCKS: Final = 1 << 16  # of one class
_IDLE_SECONDS: Final = 1.0
_FREE: Final = b"\0"
_MOST_DRAFTS: Final = 16


@dataclass(frozen=True, slots=True)
class _Class:
    """The blocks of one size."""

    size: int  # bytes per block
    status: int  # offset of the first status byte
    num_blocks: int
    start: int  # offset of the first block


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an arena."""

    status: int  # offset of its status byte
    start: int  # offset of its first byte
    size: int


def _layout(max_bytes: int) -> tuple[list[_Class], int]:
    """The classes of an arena, and its size in bytes, nearly all of which is never touched."""
    sizes = [1 << k for k in range(_SMALLEST_CLASS, max(_SMALLEST_CLASS, (max_bytes - 1).bit_length()) + 1)]
    counts = [min(_MOST_BLOCKS, max(1, max_bytes // (size // 2 + 1))) for size in sizes]
    statuses = np.cumsum([0, *counts]).tolist()
    start = -(-statuses[-1] // _PAGE) * _PAGE
    classes = []
    for size, count, status in zip(sizes, counts, statuses, strict=False):
        classes.append(_Class(size, status, count, start))
        start += size * count
    return classes, start


class Arena:
    """One worker's shared memory, as a description. Picklable while a process is started.

    Args:
        worker: Whose it is.
        budget: What bounds the touched pages of all arenas of the runner.
    """

    def __init__(self, worker: int, budget: Budget) -> None:
        self._worker = worker
        self._budget = budget
        _, size = _layout(budget.limit)
        self._file = shared_memory_file("dataflow-arena", size)

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""
        return (self._file, *self._budget.descriptors())

    def open_writer(self) -> ArenaWriter:
        """The worker's end."""
        return ArenaWriter(self._memory(), self._budget, self._worker)

    def open_reader(self) -> ArenaReader:
        """The consumer's end."""
        return ArenaReader(self._memory(), _layout(self._budget.limit)[0])

    def _memory(self) -> mmap.mmap:
        return mmap.mmap(self._file.fd, _layout(self._budget.limit)[1])

    def close(self) -> None:
        """Give the descriptor back; the mappings live as long as somebody reads them."""
        self._file.close()


class _Base(np.ndarray[Any, Any]):
    """The base of an array in a block: numpy keeps it alive for every view, as it does not look through subclasses."""

    block: Block | None = None  # of a draft; None where the consumer reads


class _Lease(weakref.ref[_Base]):
    """Notices that the last view of a block has died."""

    __slots__ = ("status",)
    status: int


class ArenaWriter:
    """The worker's end: takes blocks, fills them, gives idle pages back. Safe between the threads of the worker."""

    def __init__(self, memory: mmap.mmap, budget: Budget, worker: int) -> None:
        self._memory = memory
        self._budget = budget
        self._worker = worker
        self._pid = os.getpid()
        self._classes, _ = _layout(budget.limit)
        self._touched: dict[int, tuple[Block, int]] = {}  # by offset: blocks with pages, and the bytes of those
        self._lock = threading.Lock()
        self._drafts: dict[int, _Lease] = {}  # by status byte: blocks that the flow fills
        self._pressure = budget.pressure
        self._used = time.monotonic()

    def take(self, nbytes: int) -> Block | None:
        """A block for `nbytes`; None if there is none now, or can be none: `fits` tells."""
        if not self.fits(nbytes):
            return None
        kind = self._classes[max(0, (nbytes - 1).bit_length() - _SMALLEST_CLASS)]
        with self._lock:
            status = self._memory.find(_FREE, kind.status, kind.status + kind.num_blocks)
            if status < 0:
                return None
            block = Block(status, kind.start + (status - kind.status) * kind.size, kind.size)
            if not self._touch(block, nbytes):
                return None
            self._memory[status] = 1
            self._used = time.monotonic()
        return block

    def fits(self, nbytes: int) -> bool:
        """Whether there could ever be a block for `nbytes`."""
        return nbytes <= self._budget.limit

    def give_back(self, block: Block) -> None:
        """Free a block that was taken and never sent."""
        self._memory[block.status] = 0

    def give_back_all(self) -> None:
        """Free every block, with its pages: nothing was sent so far, and no draft lives."""
        with self._lock:
            for block, _ in self._touched.values():
                self.give_back(block)
            self._give_back_idle()

    def view(self, block: Block, shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C") -> NDArray[Any]:
        """The block as an array."""
        return np.ndarray(shape, dtype, self._memory, block.start, order=order)

    def draft(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for the flow to fill: in a block, if it is large and there is room."""
        nbytes = math.prod(shape) * dtype.itemsize
        # A flow that keeps what it fills must not use up the arena, and a child that it forks has none.
        fitting = nbytes >= LARGE_BYTES and not dtype.hasobject and len(self._drafts) < _MOST_DRAFTS
        fitting = fitting and os.getpid() == self._pid
        block = self.take(nbytes) if fitting else None
        if block is None:
            return np.empty(shape, dtype)
        base = _Base(shape, dtype, self._memory, block.start)
        base.block = block
        lease = _Lease(base, self._drop_draft)
        lease.status = block.status
        self._drafts[block.status] = lease
        return base.view(np.ndarray)

    def is_draft(self, base: Any) -> bool:
        """Whether `base` is the base of a draft of this arena."""
        return type(base) is _Base and base.block is not None and base.block.status in self._drafts

    def release(self, base: Any) -> Block:
        """The block of a draft that will be sent: nobody in this process frees it any more."""
        block: Block = base.block
        del self._drafts[block.status]
        return block

    def _drop_draft(self, lease: _Lease) -> None:
        if os.getpid() == self._pid:  # a forked child drops a copy
            del self._drafts[lease.status]
            self._memory[lease.status] = 0

    def tidy(self) -> None:
        """Give idle pages back, if others need them or if nothing was taken for a while."""
        pressed = self._budget.pressure != self._pressure
        if self._touched and (pressed or time.monotonic() - self._used > _IDLE_SECONDS):
            with self._lock:
                self._pressure = self._budget.pressure
                self._give_back_idle()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _touch(self, block: Block, nbytes: int) -> bool:
        """Reserve the pages that writing `nbytes` into the block will touch and that it does not have yet."""
        _, touched = self._touched.get(block.start, (block, 0))
        more = -(-nbytes // _PAGE) * _PAGE - touched
        if more > 0:
            if not self._budget.reserve(self._worker, more):
                self._give_back_idle()
                # The pages of this very block may have gone with the others.
                _, touched = self._touched.get(block.start, (block, 0))
                more = -(-nbytes // _PAGE) * _PAGE - touched
                if not self._budget.reserve(self._worker, more):
                    return False
            self._touched[block.start] = block, touched + more
        return True

    def _give_back_idle(self) -> None:
        idle = [(block, nbytes) for block, nbytes in self._touched.values() if not self._memory[block.status]]
        for block, nbytes in idle:
            self._memory.madvise(_GIVE_BACK, block.start, nbytes)
            del self._touched[block.start]
        if idle:
            self._budget.give_back(self._worker, sum(nbytes for _, nbytes in idle))


class ArenaReader:
    """The consumer's end: gives out arrays that read, and may write, a block in place."""

    def __init__(self, memory: mmap.mmap, classes: Sequence[_Class]) -> None:
        self._memory = memory
        self._classes = classes
        self._pid = os.getpid()
        self._leases: dict[int, _Lease] = {}  # by status byte
        self._last: dict[int, tuple[int, int]] = {}  # by status byte: what is still read after the worker has ended
        # Leases may die when the interpreter has already emptied the modules.
        self._madvise = partial(memory.madvise, _GIVE_BACK)

    def lease(self, block: Block, shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C") -> NDArray[Any]:
        """The array in `block`. The block is free again when the last view of it has died."""
        base = _Base(shape, dtype, self._memory, block.start, order=order)
        lease = _Lease(base, self._free)
        lease.status = block.status
        self._leases[block.status] = lease
        return base.view(np.ndarray)

    def _free(self, lease: _Lease) -> None:
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
