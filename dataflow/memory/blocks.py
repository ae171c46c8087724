"""How an arena is divided: into blocks of power-of-two sizes, each with a status byte."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGE_BYTES",
    "PAGE",
    "PLACE",
    "Block",
    "BlockClass",
    "BlockReader",
    "BlockReaders",
    "BlockWriter",
    "class_of",
    "divided",
]

LARGE_BYTES: Final = 16 << 10
"""From this size on, an array has a block of its own."""

PAGE: Final = mmap.PAGESIZE
PLACE: Final = struct.Struct("qq")
"""Status byte and start of a block, in a message."""

_SMALLEST_CLASS: Final = (max(LARGE_BYTES, PAGE) - 1).bit_length()  # blocks of 2 to this, and so on; whole pages
_MAX_BLOCKS: Final = 1 << 16  # of one class


@dataclass(frozen=True, slots=True)
class BlockClass:
    """The blocks of one size."""

    size: int  # bytes per block
    status: int  # offset of the first status byte
    num_blocks: int
    start: int  # offset of the first block


@dataclass(slots=True)
class Block:
    """A piece of an arena."""

    status: int  # offset of its status byte
    start: int  # offset of its first byte
    size: int
    place: bytes = field(init=False, repr=False, compare=False)  # status and start, as messages say it

    def __post_init__(self) -> None:
        self.place = PLACE.pack(self.status, self.start)


def class_of(nbytes: int) -> int:
    """Which class a block for `nbytes` belongs to."""
    return max(0, (nbytes - 1).bit_length() - _SMALLEST_CLASS)


def divided(max_bytes: int) -> tuple[list[BlockClass], int]:
    """The classes of an arena, and its size in bytes, nearly all of which is never touched."""
    sizes = [1 << k for k in range(_SMALLEST_CLASS, max(_SMALLEST_CLASS, (max_bytes - 1).bit_length()) + 1)]
    counts = [min(_MAX_BLOCKS, max(1, max_bytes // (size // 2 + 1))) for size in sizes]
    statuses = np.cumsum([0, *counts]).tolist()
    start = -(-statuses[-1] // PAGE) * PAGE
    classes = []
    for size, count, status in zip(sizes, counts, statuses, strict=False):
        classes.append(BlockClass(size, status, count, start))
        start += size * count
    return classes, start


class BlockWriter(Protocol):
    """What an encoder needs of an arena, or of what stands in its place."""

    def copy(self, array: NDArray[Any], order: Any) -> Block | None:
        """A block with a copy of `array`; None if there is no room."""

    def write(self, data: bytes) -> Block | None:
        """A block with `data`; None if there is no room."""

    def draft(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for the flow to fill, in a block if there is room."""

    def is_draft(self, base: Any) -> bool:
        """Whether `base` is the base of an array that `draft` has given."""

    def release(self, base: Any) -> Block:
        """The block of a draft, which now belongs to the message."""

    def give_back(self, block: Block) -> None:
        """Free a block that is not sent after all."""

    def give_back_all(self) -> None:
        """Free all blocks: none was sent."""

    def tidy(self) -> None:
        """Give idle memory back, now and then."""


class BlockReader(Protocol):
    """What a decoder needs of an arena, or of what stands in its place."""

    def leases(
        self, blocks: Sequence[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        """The arrays in blocks, given as status byte and start, that are all alike."""

    def read(self, status: int, start: int, nbytes: int) -> Any:
        """The bytes of a block, until `free`."""

    def free(self, status: int) -> None:
        """Nothing refers to what was read any more."""


class BlockReaders(Protocol):
    """The reader of each worker, by its number."""

    def __getitem__(self, worker: int, /) -> BlockReader: ...
