"""How an arena is divided: into blocks of power-of-two sizes, each with a status byte."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np

__all__ = ["LARGE_BYTES", "PAGE", "PLACE", "Block", "BlockClass", "class_of", "divided"]

LARGE_BYTES: Final = 16 << 10
"""From this size on, an array has a block of its own."""

PAGE: Final = mmap.PAGESIZE
PLACE: Final = struct.Struct("qq")
"""Status byte and start of a block, in a message."""

_SMALLEST_CLASS: Final = (max(LARGE_BYTES, PAGE) - 1).bit_length()  # blocks of 2 to this, and so on; whole pages
_MOST_BLOCKS: Final = 1 << 16  # of one class


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
    counts = [min(_MOST_BLOCKS, max(1, max_bytes // (size // 2 + 1))) for size in sizes]
    statuses = np.cumsum([0, *counts]).tolist()
    start = -(-statuses[-1] // PAGE) * PAGE
    classes = []
    for size, count, status in zip(sizes, counts, statuses, strict=False):
        classes.append(BlockClass(size, status, count, start))
        start += size * count
    return classes, start
