"""Shared-memory arena: workers write arrays into blocks, and the consumer reads them in place.

Each worker has one arena: a region of a sparse memfd that the parent creates before it starts the workers, and that
outlives them. The successor of a worker gets another region. An arena is divided into blocks of power-of-two sizes; a
block uses only the pages that were touched. One status byte per block says which side owns it. Both sides map an arena
piece by piece, as blocks are used: it has room for blocks of any size, some thirty times its limit, and address space
may be limited (`ulimit -v`).

Guarantees:

- The worker takes a block whose byte is 0 and sets it to 1; the consumer sets it back to 0 when the last view of the
  array is garbage-collected. The two sides alternate on every byte, so there is no lock that a killed process could
  leave taken.
- The lowest free block is taken first: memory that was touched before is reused and stays in the caches.
- The worker reserves pages in the `MemoryLimit` before it touches them. Idle pages return to the system, and
  their bytes to the limit, after one second, or at once when another worker finds no memory left.
- An array that the consumer holds stays readable and writable as long as the consumer keeps it, also after the worker
  has exited and the runner was closed; it then keeps only its own pages. A forked child of the consumer that drops its
  copy frees nothing.
- The memory held by all workers of a runner never exceeds the `MemoryLimit`: a worker adds to its own counter under a
  kernel lock, which is released if its holder is killed.
- Memory moves to the workers that need it. A worker that finds none left raises the pressure; every other worker
  returns its idle pages the next time it checks.
- An output buffer (an array in a block that the flow itself fills) is sent without a copy only if its reference counts
  prove that nothing but the encoder can reach it: the counts of datapoint, array and base are the lowest that the
  encoding path can show. Each worker learns these counts by calibration (`OutputBufferCounts`).
"""

from __future__ import annotations

import bisect
import errno
import math
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from operator import methodcaller
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.system.descriptors import Descriptor, discard, shared_mapping, shared_memory_file
from dataflow.system.machine import max_address_space

__all__ = [
    "LARGE_BYTES",
    "LOCATION",
    "PAGE",
    "WORD_BYTES",
    "Arena",
    "ArenaFile",
    "ArenaMemory",
    "ArenaReader",
    "ArenaWriter",
    "Base",
    "Block",
    "BlockReaders",
    "BlockWriter",
    "MemoryLimit",
    "OutputBufferCounts",
    "SharedWords",
    "divide_memory",
]


# -- Blocks ------------------------------------------------------------------------------------------------------------


LARGE_BYTES: Final = 16 << 10
"""Arrays of at least this size get their own block."""

PAGE: Final = mmap.PAGESIZE
LOCATION: Final = struct.Struct("qq")
"""Status byte and start of a block, as written in a message."""

# log2 of the smallest block, which is a whole number of pages.
_SMALLEST_CLASS: Final = (max(LARGE_BYTES, PAGE) - 1).bit_length()
_MAX_BLOCKS: Final = 1 << 16  # per class

# What is mapped at a time: a piece of this size of a class, or a block that is larger. Each class begins with a piece.
_PIECE_BITS: Final = 25
_PIECE: Final = 1 << _PIECE_BITS
_IN_PIECE: Final = _PIECE - 1


@dataclass(frozen=True, slots=True)
class BlockClass:
    """The blocks of one size."""

    size: int  # bytes per block
    status: int  # offset of the first status byte
    num_blocks: int
    start: int  # offset of the first block


@dataclass(slots=True)
class Block:
    """One block of an arena."""

    status: int  # offset of its status byte
    start: int  # offset of its first byte
    size: int
    location: bytes = field(init=False, repr=False, compare=False)  # status and start, as written in messages
    memory: mmap.mmap = field(init=False, repr=False, compare=False)  # set by the writer: what holds the block,
    at: int = field(init=False, repr=False, compare=False)  # and where in it

    def __post_init__(self) -> None:
        self.location = LOCATION.pack(self.status, self.start)


@cache
def divide_memory(max_bytes: int) -> tuple[tuple[BlockClass, ...], int]:
    """Return the classes of an arena and its size in bytes, most of which is never mapped."""
    sizes = [1 << k for k in range(_SMALLEST_CLASS, max(_SMALLEST_CLASS, (max_bytes - 1).bit_length()) + 1)]
    counts = [min(_MAX_BLOCKS, max(1, max_bytes // (size // 2 + 1))) for size in sizes]
    statuses = np.cumsum([0, *counts]).tolist()
    start = _PIECE
    classes = []
    for size, count, status in zip(sizes, counts, statuses, strict=False):
        classes.append(BlockClass(size, status, count, start))
        start += -(-size * count // _PIECE) * _PIECE
    return tuple(classes), start


class ArenaMemory(dict[int, mmap.mmap]):
    """The memory of an arena as one side sees it: the piece with each number, mapped when it is first asked for.

    The block at `start` is in piece ``start >> PIECE_BITS``, at ``start & IN_PIECE``.

    Args:
        file: The memory of all arenas of a runner.
        start: Where this one begins in it.
        limit: The limit by which it is divided.
        own: Whether forked children get copies.

    Attributes:
        classes: The classes of its blocks.
        statuses: The status bytes.
    """

    def __init__(self, file: Descriptor, start: int, limit: int, *, own: bool) -> None:
        self._file = file
        self._start = start
        self._limit = limit
        self._own = own
        self.classes, self._size = divide_memory(limit)
        last = self.classes[-1]
        self.statuses = self._mapped(0, -(-(last.status + last.num_blocks) // PAGE) * PAGE)

    def __missing__(self, number: int) -> mmap.mmap:
        start = number << _PIECE_BITS
        block_class = self.classes[bisect.bisect(self.classes, start, key=lambda block_class: block_class.start) - 1]
        end = block_class.start + block_class.num_blocks * block_class.size
        self[number] = self._mapped(start, min(max(_PIECE, block_class.size), end - start))
        return self[number]

    def at(self, start: int) -> tuple[mmap.mmap, int]:
        """The mapping that holds the block at `start`, and where it begins there."""
        return self[start >> _PIECE_BITS], start & _IN_PIECE

    def byte_range(self, status: int) -> tuple[int, int]:
        """Begin and end of the block with that status byte."""
        classes = self.classes
        block_class = classes[bisect.bisect(classes, status, key=lambda block_class: block_class.status) - 1]
        start = block_class.start + (status - block_class.status) * block_class.size
        return start, start + block_class.size

    def discard(self, start: int, end: int | None = None) -> None:
        """Return the pages between two blocks, or to the end, to the system."""
        discard(self._file, self._start + start, (self._size if end is None else end) - start)

    def _mapped(self, start: int, size: int) -> mmap.mmap:
        try:
            return shared_mapping(self._file, size, offset=self._start + start, own=self._own)
        except OSError as error:
            most = max_address_space()
            if error.errno != errno.ENOMEM or most is None:
                raise
            raise OSError(
                errno.ENOMEM,
                f"{os.strerror(errno.ENOMEM)}: this process needs {size:,} more bytes of address space for shared "
                f"memory, and its limit is {most >> 10} KiB (ulimit -v). Raise that limit, or pass a smaller "
                f"max_bytes: {self._limit:,} bytes of it are for arrays",
            ) from error


class BlockWriter(Protocol):
    """The arena interface that an encoder uses."""

    def copy(self, array: NDArray[Any], order: Any) -> Block | None:
        """Return a block with a copy of `array`, or None if there is no room."""

    def write(self, data: bytes) -> Block | None:
        """Return a block with `data`, or None if there is no room."""

    def output_buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an output buffer for the flow to fill, in a block if there is room."""

    def is_output_buffer(self, base: Any) -> bool:
        """Return True if `base` is the base of an array returned by `output_buffer`."""

    def release(self, base: Any) -> Block:
        """Return the block of an output buffer; the message owns it from now on."""

    def give_back(self, block: Block) -> None:
        """Free a block that will not be sent."""

    def give_back_all(self) -> None:
        """Free all blocks; none was sent."""

    def tidy(self) -> None:
        """Release idle memory. Called periodically."""
        return


class BlockReader(Protocol):
    """The arena interface that a decoder uses."""

    def leases(
        self, blocks: Sequence[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        """Return the arrays in blocks given as (status byte, start), all of one shape and dtype."""

    def read(self, status: int, start: int, nbytes: int) -> Any:
        """Return the bytes of a block, valid until `free`."""

    def free(self, status: int) -> None:
        """Free a block that was read; nothing refers to its bytes any more."""
        return


class BlockReaders(Protocol):
    """The reader of each worker, by its index."""

    def __getitem__(self, worker: int, /) -> BlockReader: ...


# -- Reader: leases on blocks ------------------------------------------------------------------------------------------


# The `madvise` advice that returns pages to the system; the second is only a hint.
_GIVE_BACK: Final = getattr(mmap, "MADV_REMOVE", getattr(mmap, "MADV_DONTNEED", 0))


class Base(np.ndarray[Any, Any]):
    """The base of an array in a block.

    numpy keeps it alive for every view, because it does not look through subclasses.
    """

    block: Block | None = None  # set for an output buffer; None where the consumer reads


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
    # `int` is a class, so it is not bound to the reference: it is called without arguments, and returns 0.
    __index__ = int


class _OrphanedBlockLease(weakref.ref[Base]):
    """Weak reference that releases the pages of a block when its last view is gone after the worker has ended.

    Its callback runs no Python code either.
    """

    __slots__ = ("madvise",)
    madvise: Callable[..., None]


def _do_nothing(*_: object) -> None:
    pass


class _KnownBlocks(dict[int, tuple[mmap.mmap, int, Callable[[_BlockLease], None]]]):
    """By status byte: the mapping that holds a block, where it begins there, and the function that frees it."""

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory

    def __missing__(self, status: int) -> tuple[mmap.mmap, int, Callable[[_BlockLease], None]]:
        start, _ = self._memory.byte_range(status)
        # Only functions written in C: an interrupt cannot be raised between two of their steps.
        free: Any = partial(self._memory.statuses.__setitem__, status)
        self[status] = *self._memory.at(start), free
        return self[status]


_readers: Final[weakref.WeakSet[ArenaReader]] = weakref.WeakSet()

# By the base: what releases its pages, and what removes this entry. Neither the reader nor the base could keep them:
# the views may outlive the runner, and a base loses its attributes before the callbacks of its weak references run.
_orphaned: Final[dict[int, tuple[_OrphanedBlockLease, weakref.ref[Base]]]] = {}


class ArenaReader:
    """The consumer's end: returns arrays that read and write a block in place."""

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._pid = os.getpid()
        self._known = _KnownBlocks(memory)
        # By status byte; includes dead references, until the block is read again.
        self._leases: dict[int, _BlockLease] = {}
        self._last: list[_OrphanedBlockLease] = []  # blocks still in use after the worker has ended
        _readers.add(self)

    def leases(
        self, blocks: Iterable[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        """Return the arrays in blocks given as (status byte, start), all of one shape and dtype.

        A block becomes free when the last view of its array is gone.
        """
        arrays: list[NDArray[Any]] = []
        leases, known = self._leases, self._known
        for status, _ in blocks:
            memory, at, free = known[status]
            base = Base(shape, dtype, memory, at, None, order)  # keyword arguments would double the time
            # The reference that it replaces is dead: the worker fills a block again only after its last view is gone.
            leases[status] = _BlockLease(base, free)
            arrays.append(base.view(np.ndarray))
        return arrays

    def read(self, status: int, start: int, nbytes: int) -> memoryview:
        """The bytes that `ArenaWriter.write` left in a block, valid until `free`."""
        memory, at = self._memory.at(start)
        return memoryview(memory)[at : at + nbytes]

    def free(self, status: int) -> None:
        """Free a block that was read; nothing refers to its bytes any more."""
        self._memory.statuses[status] = 0

    def worker_ended(self) -> None:
        """Release the pages of a worker that has ended: idle pages now, others with their last view."""
        # A forked child has copies of the arrays; the pages are those of its parent.
        if os.getpid() != self._pid:
            return
        ranges = []
        for status, lease in sorted(self._leases.items()):
            # A strong reference, so that the array cannot die before `_orphaned` knows it.
            base = lease()
            if base is not None:
                start, end = self._memory.byte_range(status)
                memory, at = self._memory.at(start)
                last = _OrphanedBlockLease(base, methodcaller("madvise", _GIVE_BACK, at, end - start))
                # An attribute, which `_forked` replaces in a child: the parent still reads these pages.
                last.madvise = memory.madvise
                # `pop` is called with the dead reference as its default, so it does not raise if the entry is gone.
                _orphaned[id(base)] = last, weakref.ref(base, partial(_orphaned.pop, id(base)))
                self._last.append(last)
                ranges.append((start, end))
            del base  # if this was the last reference, `last` returns its pages now
        # A reference that is dropped while its array lives is not called back: no status byte is written from here on.
        self._leases.clear()
        start = 0  # the status bytes, too: from here on nothing reads them
        for begin, end in sorted(ranges):
            if begin > start:
                self._memory.discard(start, begin)
            start = end
        self._memory.discard(start)

    def forget(self) -> None:
        """In a forked child, which drops only copies: free nothing, because the parent still reads these blocks."""
        # A weak reference that is gone before its object is not called back.
        self._leases.clear()

    def num_leases(self) -> int:
        """Number of blocks in use."""
        return sum(lease() is not None for lease in [*self._leases.values(), *self._last])


def _forked() -> None:
    for reader in list(_readers):
        reader.forget()
    for last, _ in list(_orphaned.values()):
        last.madvise = _do_nothing


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# -- Reference counts of output buffers --------------------------------------------------------------------------------


MakeBuffer = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]


class OutputBufferCounts:
    """The lowest reference counts of an output buffer, by the type of the datapoint that contains it."""

    def __init__(self) -> None:
        self._lowest: dict[type, tuple[int, ...]] = {}
        self._seen: tuple[int, ...] = ()  # the counts of the last output buffer

    def unreachable(self, kind: type, counts: tuple[int, ...]) -> bool:
        """Return True if an output buffer with these counts is reachable from the encoder only."""
        self._seen = counts
        return counts == self._lowest.get(kind)

    def calibrate(
        self, run: Callable[[Iterator[Any]], Any], output_buffer: MakeBuffer, give_back: Callable[[], None]
    ) -> None:
        """Measure the lowest reference counts.

        Args:
            run: Encodes datapoints exactly as those of a flow. It is given two: one made by an expression, and one that
                the generator keeps in a variable. Unless the second shows exactly one more reference to the datapoint
                and the same counts elsewhere, this Python counts references differently, and output buffers are always
                copied.
            output_buffer: Makes an output buffer.
            give_back: Frees what was encoded; other workers may have left little memory.
        """
        for kind in (list, tuple, dict):
            counts = []
            for keep in (False, True):
                self._seen = ()  # stays empty if there is no room for an output buffer
                run(_sample(kind, output_buffer, keep=keep))
                give_back()
                counts.append(self._seen)
            lowest, kept = counts
            if lowest and kept == (lowest[0] + 1, *lowest[1:]):
                self._lowest[kind] = lowest


def _sample(kind: type, output_buffer: MakeBuffer, *, keep: bool) -> Iterator[Any]:
    if keep:
        kept = _datapoint(kind, output_buffer)
        yield kept
    else:
        yield _datapoint(kind, output_buffer)


def _datapoint(kind: type, output_buffer: MakeBuffer) -> Any:
    if kind is dict:
        return {0: output_buffer((LARGE_BYTES,), np.dtype(np.uint8))}
    return kind([output_buffer((LARGE_BYTES,), np.dtype(np.uint8))])


# -- Words in shared memory --------------------------------------------------------------------------------------------


WORD_BYTES: Final = 8


class SharedWords:
    """Words of shared memory, all 0 at first. Picklable while a process is started; each side maps the memory itself.

    Args:
        name: Name of the memory, for the system.
        num_words: Number of words.
        shared: Whether other processes get them; otherwise threads of this one do, and nothing is mapped.

    Attributes:
        words: The words; none after `close`.
    """

    def __init__(self, name: str, num_words: int, *, shared: bool = True) -> None:
        self._num_words = num_words
        self._file = shared_memory_file(name, num_words * WORD_BYTES) if shared else None
        self._map()

    def _map(self) -> None:
        size = self._num_words * WORD_BYTES
        memory = bytearray(size) if self._file is None else shared_mapping(self._file, size)
        # A word of 8 bytes, aligned, is read and written at once. `+=` is a read and a write: it needs a single writer.
        self.words = memoryview(memory).cast("Q")

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return () if self._file is None else (self._file,)

    def close(self) -> None:
        """Close the descriptors; the mapping, which holds one too, stays valid as long as it is read. Idempotent."""
        self.words = memoryview(b"").cast("Q")
        if self._file is not None:
            self._file.close()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "words"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._map()


# -- Memory limit ------------------------------------------------------------------------------------------------------


_PRESSURE: Final = 0  # word 0; word 1 + k is the bytes held by worker k


class MemoryLimit(SharedWords):
    """Memory limit shared by the arenas of one runner: counters in shared memory."""

    def __init__(self, limit: int, num_workers: int) -> None:
        super().__init__("dataflow-limit", 1 + num_workers)
        self.limit = limit

    def reserve(self, worker: int, nbytes: int) -> bool:
        """Reserve `nbytes` for `worker`; return False and raise the pressure if the limit does not allow it."""
        with self._locked():
            # The lock is for the sum. Each counter has one writer, but two workers could both find the last bytes free.
            if sum(self.words[1:]) + nbytes > self.limit:
                self.words[_PRESSURE] += 1
                return False
            self.words[1 + worker] += nbytes
            return True

    def give_back(self, worker: int, nbytes: int) -> None:
        """Release `nbytes` that `worker` had reserved."""
        with self._locked():
            self.words[1 + worker] -= nbytes

    def held(self) -> list[int]:
        """Bytes held by each worker."""
        return self.words[1:].tolist()

    @property
    def pressure(self) -> int:
        """Counter that rises whenever a worker finds no memory left."""
        # Without the lock: an old value delays `tidy` until its next call.
        return self.words[_PRESSURE]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A record lock keeps processes apart, not threads: of this process, one thread at a time gets here, with the
        # lock of the arena or of the engine. The kernel releases a record lock when the process dies, or closes any
        # descriptor of the file.
        import fcntl  # does not exist on Windows, where the package can still be imported

        (file,) = self.descriptors()
        fcntl.lockf(file.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(file.fd, fcntl.LOCK_UN)


# -- Arena -------------------------------------------------------------------------------------------------------------


_IDLE_SECONDS: Final = 1.0
_FREE: Final = b"\0"
_MAX_OUTPUT_BUFFERS: Final = 16
# Bytes that are copied with the interpreter's lock held; longer copies must not stop the worker's other threads.
_SHORT: Final = 1 << 18


class ArenaFile:
    """The memory of all arenas of a runner.

    Args:
        memory_limit: Limits the touched pages of all arenas.
    """

    def __init__(self, memory_limit: MemoryLimit) -> None:
        self._memory_limit = memory_limit
        self._nbytes = 0  # of the arenas made so far
        self._file = shared_memory_file("dataflow-arena", self._nbytes)

    def new_arena(self, worker: int) -> Arena:
        """Make an arena for the worker with this index. The memory of an earlier one is used no more."""
        start = self._nbytes
        _, size = divide_memory(self._memory_limit.limit)
        nbytes = start + size
        try:
            # The file grows, and has no pages where nothing was written: earlier arenas stay where they are.
            os.ftruncate(self._file.fd, nbytes)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise OSError(
                errno.EFBIG,
                f"{os.strerror(errno.EFBIG)}: shared memory is a file of {nbytes:,} bytes, few of which are used, and "
                "the size of files is limited (ulimit -f). Lift that limit, or pass a smaller max_bytes: "
                f"{self._memory_limit.limit:,} bytes of it are for arrays",
            ) from error
        self._nbytes = nbytes
        return Arena(worker, self._memory_limit, self._file, start)

    def close(self) -> None:
        """Close the descriptor; the mappings stay valid as long as they are used."""
        self._file.close()


class Arena:
    """Description of one worker's shared memory. Picklable while a process is started.

    Args:
        worker: Index of the worker.
        memory_limit: Limits the touched pages of all arenas of the runner.
        file: The memory of all of them.
        start: Where this one begins in it.
    """

    def __init__(self, worker: int, memory_limit: MemoryLimit, file: Descriptor, start: int) -> None:
        self._worker = worker
        self._memory_limit = memory_limit
        self._file = file
        self._start = start

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return (self._file, *self._memory_limit.descriptors())

    def open_writer(self) -> ArenaWriter:
        """Open the worker's end."""
        return ArenaWriter(self)

    def open_reader(self) -> ArenaReader:
        """Open the consumer's end. Workers that are forked later get copies of its arrays."""
        return ArenaReader(self.open_memory(own=True))

    def open_memory(self, *, own: bool = False) -> ArenaMemory:
        """Open the memory itself."""
        return ArenaMemory(self._file, self._start, self._memory_limit.limit, own=own)


class ArenaWriter:
    """The worker's end: takes blocks, fills them and returns idle pages. Thread-safe within the worker."""

    def __init__(self, arena: Arena) -> None:
        self.memory = arena.open_memory()
        self._statuses = self.memory.statuses
        self._memory_limit = arena._memory_limit
        self._worker = arena._worker
        self._pid = os.getpid()
        self._limit = self._memory_limit.limit
        classes = self.memory.classes
        by_size = [classes[max(0, bits - _SMALLEST_CLASS)] for bits in range((self._limit - 1).bit_length() + 1)]
        # Begin and end of the status bytes of each class, by the logarithm of the bytes to be held.
        self._status_ranges = [
            (block_class.status, block_class.status + block_class.num_blocks, block_class) for block_class in by_size
        ]
        self._touched: dict[int, tuple[Block, int]] = {}  # by status byte: blocks that have pages, and the pages' bytes
        # Guards `_touched` and the search for a free block: the flusher takes blocks too, for small arrays, and tidies.
        self._lock = threading.Lock()
        # Changed without the lock, by single operations on a dict of integers, which the interpreter's lock covers.
        self._output_buffers: dict[int, Lease] = {}  # by status byte: blocks that the flow fills
        self._pressure = self._memory_limit.pressure
        self._used = True  # since the last `tidy`
        self._idle_since = 0.0

    def take(self, nbytes: int) -> Block | None:
        """Return a block for `nbytes`, or None if there is no free one now, or none of this size."""
        if nbytes > self._limit:
            return None
        first, end, block_class = self._status_ranges[(nbytes - 1).bit_length()]
        statuses = self._statuses
        with self._lock:
            # Race: the consumer may free a lower block behind the search. It is found the next time.
            status = statuses.find(_FREE, first, end)
            if status < 0:
                return None
            block, touched = self._touched.get(status, (None, 0))
            if block is None:
                block = Block(status, block_class.start + (status - first) * block_class.size, block_class.size)
                block.memory, block.at = self.memory.at(block.start)
            # Before the first write into the block: pages are reserved before they are touched.
            if touched < nbytes and not self._touch(block, nbytes):
                return None
            # Last: no failure above leaves a block taken.
            statuses[status] = 1
            self._used = True
        return block

    def copy(self, array: NDArray[Any], order: Any) -> Block | None:
        """Return a block with a copy of `array`, or None as `take` does.

        Args:
            array: Contiguous or not.
            order: Memory order of the copy.
        """
        nbytes = array.nbytes
        block = self.take(nbytes)
        if block is None:
            return None
        # The status byte is set, so from here on this caller alone uses the block.
        if nbytes <= _SHORT:
            at = block.at
            try:
                block.memory[at : at + nbytes] = array  # type: ignore[call-overload]
            except ValueError:  # not C-contiguous
                pass
            else:
                return block
        self.view(block, array.shape, array.dtype, order)[...] = array
        return block

    def write(self, data: bytes) -> Block | None:
        """Return a block that begins with `data`, or None as `take` does."""
        block = self.take(len(data))
        if block is not None:
            block.memory[block.at : block.at + len(data)] = data
        return block

    def give_back(self, block: Block) -> None:
        """Free a block that was taken and not sent."""
        # Without the lock: whoever owns a block is the only one to write its byte.
        self._statuses[block.status] = 0

    def give_back_all(self) -> None:
        """Free every block and its pages. Only valid while nothing was sent and no output buffer is in use."""
        with self._lock:
            for block, _ in self._touched.values():
                self.give_back(block)
            self._give_back_idle()

    def view(self, block: Block, shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C") -> NDArray[Any]:
        """The block as an array."""
        memory, at = self.memory.at(block.start)
        return np.ndarray(shape, dtype, memory, at, order=order)

    def output_buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an output buffer for the flow to fill: in a block, if it is large and there is room."""
        nbytes = math.prod(shape) * dtype.itemsize
        # A flow that keeps its output buffers must not use up the arena, and a child that it forks has no arena.
        fitting = nbytes >= LARGE_BYTES and not dtype.hasobject and len(self._output_buffers) < _MAX_OUTPUT_BUFFERS
        fitting = fitting and os.getpid() == self._pid
        block = self.take(nbytes) if fitting else None
        if block is None:
            return np.empty(shape, dtype)
        base = Base(shape, dtype, block.memory, block.at)
        base.block = block
        lease = Lease(base, self._drop_output_buffer)  # a plain reference with a `partial` takes 10 % longer
        lease.status = block.status
        # The dict keeps the reference: one that is gone before its array is not called back.
        self._output_buffers[block.status] = lease
        return base.view(np.ndarray)

    def is_output_buffer(self, base: Any) -> bool:
        """Return True if `base` is the base of an output buffer of this arena."""
        return type(base) is Base and base.block is not None and base.block.status in self._output_buffers

    def release(self, base: Any) -> Block:
        """Return the block of an output buffer that will be sent; from now on the consumer frees it."""
        block: Block = base.block
        # With its reference the callback goes, so the byte stays 1 when the worker drops the array.
        del self._output_buffers[block.status]
        return block

    # Runs wherever the last view goes, also in a thread that holds `_lock`: it must not take that lock.
    def _drop_output_buffer(self, lease: Lease) -> None:
        if os.getpid() == self._pid:  # a forked child drops only a copy
            # Before the byte is 0: from then on another thread may take the block and put its own lease here.
            del self._output_buffers[lease.status]
            self._statuses[lease.status] = 0

    def tidy(self) -> None:
        """Release idle pages if other workers need them, or if no block was taken for `_IDLE_SECONDS`."""
        now = time.monotonic()
        # Race: a block that is taken between the two steps may not be noticed, but it is as recent as `now`.
        if self._used:
            self._used, self._idle_since = False, now
        pressed = self._memory_limit.pressure != self._pressure
        if self._touched and (pressed or now - self._idle_since > _IDLE_SECONDS):
            with self._lock:
                # Read before the pages go: a worker that finds no memory meanwhile is noticed at the next call.
                self._pressure = self._memory_limit.pressure
                self._give_back_idle()

    # -- Called with the lock held -------------------------------------------------------------------------------------

    def _touch(self, block: Block, nbytes: int) -> bool:
        """Reserve the pages that writing `nbytes` into the block will touch and that it does not have yet.

        Returns False if the memory limit does not allow it.
        """
        needed = -(-nbytes // PAGE) * PAGE
        _, touched = self._touched.get(block.status, (block, 0))
        if not self._memory_limit.reserve(self._worker, needed - touched):
            self._give_back_idle()  # including the pages of this block, which is free
            if not self._memory_limit.reserve(self._worker, needed):
                return False
        self._touched[block.status] = block, needed
        return True

    def _give_back_idle(self) -> None:
        # With the lock held no block is taken, and the consumer only frees: what is idle stays idle.
        idle = [(block, nbytes) for block, nbytes in self._touched.values() if not self._statuses[block.status]]
        for block, nbytes in idle:
            # The pages go before their bytes are given back; otherwise another worker could use these while the pages
            # are still there.
            block.memory.madvise(_GIVE_BACK, block.at, nbytes)
            del self._touched[block.status]
        if idle:
            self._memory_limit.give_back(self._worker, sum(nbytes for _, nbytes in idle))
