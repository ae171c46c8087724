"""Block layout of an arena: power-of-two size classes, with one status byte per block."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGE_BYTES",
    "PAGE",
    "LOCATION",
    "Block",
    "BlockClass",
    "BlockReader",
    "BlockReaders",
    "BlockWriter",
    "class_of",
    "divided",
]

LARGE_BYTES: Final = 16 << 10
"""Arrays of at least this size get their own block."""

PAGE: Final = mmap.PAGESIZE
LOCATION: Final = struct.Struct("qq")
"""Status byte and start of a block, as written in a message."""

# log2 of the smallest block, which is a whole number of pages.
_SMALLEST_CLASS: Final = (max(LARGE_BYTES, PAGE) - 1).bit_length()
_MAX_BLOCKS: Final = 1 << 16  # per class


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

    def __post_init__(self) -> None:
        self.location = LOCATION.pack(self.status, self.start)


def class_of(nbytes: int) -> int:
    """Index of the class of a block for `nbytes`."""
    return max(0, (nbytes - 1).bit_length() - _SMALLEST_CLASS)


@cache
def divided(max_bytes: int) -> tuple[tuple[BlockClass, ...], int]:
    """Return the classes of an arena and its size in bytes, most of which is never touched."""
    sizes = [1 << k for k in range(_SMALLEST_CLASS, max(_SMALLEST_CLASS, (max_bytes - 1).bit_length()) + 1)]
    counts = [min(_MAX_BLOCKS, max(1, max_bytes // (size // 2 + 1))) for size in sizes]
    statuses = np.cumsum([0, *counts]).tolist()
    start = -(-statuses[-1] // PAGE) * PAGE
    classes = []
    for size, count, status in zip(sizes, counts, statuses, strict=False):
        classes.append(BlockClass(size, status, count, start))
        start += size * count
    return tuple(classes), start


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


class BlockReaders(Protocol):
    """The reader of each worker, by its index."""

    def __getitem__(self, worker: int, /) -> BlockReader: ...
