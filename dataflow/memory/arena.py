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

Whether anybody can still reach an array that the flow has filled in a block: by its reference counts.

A draft is passed on without a copy only if nobody else can reach it any more: if the reference counts of datapoint,
array and base are the lowest that the path of encoding can show. Which these are, is learnt in each worker.

How much memory all arenas of one runner may hold together, and who holds how much of it.

Guarantees:

- The sum of what the workers hold never exceeds the limit: a worker adds to its own counter under a lock of the
  kernel's, which is released if its holder is killed.
- Memory goes to who needs it. A worker that finds none left raises the pressure; every other one gives back its idle
  pages as soon as it looks.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.descriptors import Descriptor, shared_mapping, shared_memory_file
from dataflow.memory.blocks import LARGE_BYTES, PAGE, Block, class_of, divided
from dataflow.memory.leases import GIVE_BACK, ArenaReader, Base, Lease

__all__ = ["Arena", "ArenaWriter", "Budget", "OutputBufferCounts"]


# -- Whether anybody can still reach an array that the flow has filled in a block: by its reference counts -------------


Draft = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]


class OutputBufferCounts:
    """The lowest reference counts of a draft, by the type of the datapoint that it is a component of."""

    def __init__(self) -> None:
        self._lowest: dict[type, tuple[int, ...]] = {}
        self._seen: tuple[int, ...] = ()  # the counts of the last draft

    def unreachable(self, kind: type, counts: tuple[int, ...]) -> bool:
        """Whether a draft with these counts can be reached by nobody but the encoder."""
        self._seen = counts
        return counts == self._lowest.get(kind)

    def calibrate(self, run: Callable[[Iterator[Any]], Any], draft: Draft, give_back: Callable[[], None]) -> None:
        """Learn what is lowest.

        Args:
            run: Encodes datapoints exactly as those of a flow. Two are given: one made by an expression, and one that
                the generator keeps in a variable. Where the second does not show one reference more in the datapoint
                and none elsewhere, this Python counts otherwise, and drafts are always copied.
            draft: Makes one.
            give_back: Frees what was encoded: other workers may have left little memory.
        """
        for kind in (list, tuple, dict):
            counts = []
            for keep in (False, True):
                self._seen = ()  # and so it stays where there is no room for a draft
                run(_sample(kind, draft, keep=keep))
                give_back()
                counts.append(self._seen)
            lowest, kept = counts
            if lowest and kept == (lowest[0] + 1, *lowest[1:]):
                self._lowest[kind] = lowest


def _sample(kind: type, draft: Draft, *, keep: bool) -> Iterator[Any]:
    if keep:
        kept = _datapoint(kind, draft)
        yield kept
    else:
        yield _datapoint(kind, draft)


def _datapoint(kind: type, draft: Draft) -> Any:
    if kind is dict:
        return {0: draft((LARGE_BYTES,), np.dtype(np.uint8))}
    return kind([draft((LARGE_BYTES,), np.dtype(np.uint8))])


# -- How much memory all arenas of one runner may hold together, and who holds how much of it --------------------------


_WORD_BYTES: Final = 8
_PRESSURE: Final = 0  # word 0; word 1 + k is what worker k holds


class Budget:
    """Counters in shared memory. Picklable while a process is started."""

    def __init__(self, limit: int, num_workers: int) -> None:
        self.limit = limit
        self._size = (1 + num_workers) * _WORD_BYTES
        self._file = shared_memory_file("dataflow-budget", self._size)
        self._map()

    def _map(self) -> None:
        self._words = memoryview(shared_mapping(self._file, self._size)).cast("Q")

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""
        return (self._file,)

    def reserve(self, worker: int, nbytes: int) -> bool:
        """Let `worker` hold `nbytes` more, if the limit allows."""
        with self._locked():
            if sum(self._words[1:]) + nbytes > self.limit:
                self._words[_PRESSURE] += 1
                return False
            self._words[1 + worker] += nbytes
            return True

    def give_back(self, worker: int, nbytes: int) -> None:
        """`worker` holds `nbytes` less."""
        with self._locked():
            self._words[1 + worker] -= nbytes

    def held(self) -> list[int]:
        """What each worker holds."""
        return self._words[1:].tolist()

    @property
    def pressure(self) -> int:
        """Rises whenever a worker found no memory left."""
        return self._words[_PRESSURE]

    def close(self) -> None:
        """Give the descriptors back, that of the mapping too."""
        self._words = memoryview(b"").cast("Q")
        self._file.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A record lock belongs to a process: in the main process nobody reserves, and in a worker only its arena does,
        # which has a lock of its own for its threads.
        import fcntl  # does not exist on Windows, where the package can still be imported

        fcntl.lockf(self._file.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file.fd, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, object]:
        return {"limit": self.limit, "_size": self._size, "_file": self._file}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._map()


# -- Shared memory in which workers leave arrays and the consumer reads them in place ----------------------------------


_IDLE_SECONDS: Final = 1.0
_FREE: Final = b"\0"
_MAX_DRAFTS: Final = 16
_SHORT: Final = 1 << 18  # bytes that are copied at once; what takes longer must not stop the worker's other threads


class Arena:
    """One worker's shared memory, as a description. Picklable while a process is started.

    Args:
        worker: Whose it is.
        budget: What bounds the touched pages of all arenas of the runner.
    """

    def __init__(self, worker: int, budget: Budget) -> None:
        self._worker = worker
        self._budget = budget
        _, size = divided(budget.limit)
        self._file = shared_memory_file("dataflow-arena", size)

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""
        return (self._file, *self._budget.descriptors())

    def open_writer(self) -> ArenaWriter:
        """The worker's end."""
        return ArenaWriter(self._memory(), self._budget, self._worker)

    def open_reader(self) -> ArenaReader:
        """The consumer's end."""
        return ArenaReader(self._memory(), divided(self._budget.limit)[0])

    def _memory(self) -> mmap.mmap:
        return shared_mapping(self._file, divided(self._budget.limit)[1])

    def close(self) -> None:
        """Give the descriptor back; the mappings live as long as somebody reads them."""
        self._file.close()


@dataclass(slots=True, eq=False)
class _Touched:
    """A block that has pages."""

    block: Block
    nbytes: int  # of its pages


class ArenaWriter:
    """The worker's end: takes blocks, fills them, gives idle pages back. Safe between the threads of the worker."""

    def __init__(self, memory: mmap.mmap, budget: Budget, worker: int) -> None:
        self._memory = memory
        self._budget = budget
        self._worker = worker
        self._pid = os.getpid()
        self._limit = budget.limit
        classes, _ = divided(budget.limit)
        kinds = [classes[class_of(1 << bits)] for bits in range((budget.limit - 1).bit_length() + 1)]
        # Where the status bytes of one class begin and end, by the logarithm of what is to be held.
        self._spans = [(kind.status, kind.status + kind.num_blocks, kind) for kind in kinds]
        self._touched: dict[int, _Touched] = {}  # by status byte
        self._lock = threading.Lock()
        self._drafts: dict[int, Lease] = {}  # by status byte: blocks that the flow fills
        self._pressure = budget.pressure
        self._used = True  # since `tidy` looked last
        self._idle_since = 0.0

    def take(self, nbytes: int) -> Block | None:
        """A block for `nbytes`; None if there is none now, or can be none: `fits` tells."""
        touched = self._take(nbytes)
        return None if touched is None else touched.block

    def copy(self, array: NDArray[Any], order: Any) -> Block | None:
        """A block that holds what `array` holds now; None as in `take`.

        Args:
            array: C- or F-contiguous, or none of both.
            order: Of the copy.
        """
        nbytes = array.nbytes
        touched = self._take(nbytes)
        if touched is None:
            return None
        # From here on the block is this caller's alone: its byte is set.
        block = touched.block
        if nbytes <= _SHORT:
            try:
                self._memory[block.start : block.start + nbytes] = array  # type: ignore[call-overload]
            except ValueError:  # it is not C-contiguous
                pass
            else:
                return block
        self.view(block, array.shape, array.dtype, order)[...] = array
        return block

    def write(self, data: bytes) -> Block | None:
        """A block that begins with `data`; None as in `take`."""
        touched = self._take(len(data))
        if touched is None:
            return None
        start = touched.block.start
        self._memory[start : start + len(data)] = data
        return touched.block

    def _take(self, nbytes: int) -> _Touched | None:
        if not self.fits(nbytes):
            return None
        first, end, kind = self._spans[(nbytes - 1).bit_length()]
        memory = self._memory
        with self._lock:
            status = memory.find(_FREE, first, end)
            if status < 0:
                return None
            touched = self._touched.get(status)
            if touched is None or touched.nbytes < nbytes:
                touched = self._touch(Block(status, kind.start + (status - first) * kind.size, kind.size), nbytes)
                if touched is None:
                    return None
            memory[status] = 1
            self._used = True
        return touched

    def fits(self, nbytes: int) -> bool:
        """Whether there could ever be a block for `nbytes`."""
        return nbytes <= self._limit

    def give_back(self, block: Block) -> None:
        """Free a block that was taken and never sent."""
        self._memory[block.status] = 0

    def give_back_all(self) -> None:
        """Free every block, with its pages: nothing was sent so far, and no draft lives."""
        with self._lock:
            for touched in self._touched.values():
                self.give_back(touched.block)
            self._give_back_idle()

    def view(self, block: Block, shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C") -> NDArray[Any]:
        """The block as an array."""
        return np.ndarray(shape, dtype, self._memory, block.start, order=order)

    def draft(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for the flow to fill: in a block, if it is large and there is room."""
        nbytes = math.prod(shape) * dtype.itemsize
        # A flow that keeps what it fills must not use up the arena, and a child that it forks has none.
        fitting = nbytes >= LARGE_BYTES and not dtype.hasobject and len(self._drafts) < _MAX_DRAFTS
        fitting = fitting and os.getpid() == self._pid
        block = self.take(nbytes) if fitting else None
        if block is None:
            return np.empty(shape, dtype)
        base = Base(shape, dtype, self._memory, block.start)
        base.block = block
        lease = Lease(base, self._drop_draft)
        lease.status = block.status
        self._drafts[block.status] = lease
        return base.view(np.ndarray)

    def is_draft(self, base: Any) -> bool:
        """Whether `base` is the base of a draft of this arena."""
        return type(base) is Base and base.block is not None and base.block.status in self._drafts

    def release(self, base: Any) -> Block:
        """The block of a draft that will be sent: nobody in this process frees it any more."""
        block: Block = base.block
        del self._drafts[block.status]
        return block

    def _drop_draft(self, lease: Lease) -> None:
        if os.getpid() == self._pid:  # a forked child drops a copy
            del self._drafts[lease.status]
            self._memory[lease.status] = 0

    def tidy(self) -> None:
        """Give idle pages back, if others need them or if nothing was taken for a while."""
        now = time.monotonic()
        if self._used:
            self._used, self._idle_since = False, now
        pressed = self._budget.pressure != self._pressure
        if self._touched and (pressed or now - self._idle_since > _IDLE_SECONDS):
            with self._lock:
                self._pressure = self._budget.pressure
                self._give_back_idle()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _touch(self, block: Block, nbytes: int) -> _Touched | None:
        """Reserve the pages that writing `nbytes` into the block will touch and that it does not have yet."""
        needed = -(-nbytes // PAGE) * PAGE
        known = self._touched.get(block.status)
        if not self._budget.reserve(self._worker, needed - (known.nbytes if known else 0)):
            self._give_back_idle()  # and with the others the pages of this very block, which is free
            known = None
            if not self._budget.reserve(self._worker, needed):
                return None
        if known is None:
            known = self._touched[block.status] = _Touched(block, 0)
        known.nbytes = needed
        return known

    def _give_back_idle(self) -> None:
        idle = [touched for touched in self._touched.values() if not self._memory[touched.block.status]]
        for touched in idle:
            self._memory.madvise(GIVE_BACK, touched.block.start, touched.nbytes)
            del self._touched[touched.block.status]
        if idle:
            self._budget.give_back(self._worker, sum(touched.nbytes for touched in idle))
