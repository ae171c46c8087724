"""A worker's end of the tray between processes, and how a task stands in it."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.channel.task_ownership import TaskOwnership
from dataflow.channel.task_queue import Task
from dataflow.codec.decoder import ArrayDecoder
from dataflow.descriptors import Descriptor
from dataflow.memory.arena import Arena, ArenaWriter
from dataflow.memory.blocks import Block, divided

__all__ = ["LARGEST_BYTES", "NUMBER", "TOKEN", "WORD_BYTES", "SharedPort", "words_of"]

LARGEST_BYTES: Final = 1 << 32
"""What one datapoint may have at all. It costs addresses, not memory."""

TOKEN: Final = struct.Struct("<QQ")
"""Number of a task, and where it stands."""

WORD_BYTES: Final = 8

NUMBER: Final = 0
"""Which word of a task is its number; `_FIRST`, the number of its frames and their lengths follow, and then these."""

_FIRST, _FRAMES = 1, 2
_WORDS: Final = 3  # the lengths of the frames come after them
_MAX_FRAMES: Final = 64


def words_of(arena: ArenaWriter, limit: int) -> memoryview:
    """The whole memory of an arena of `limit` bytes, in words."""
    _, size = divided(limit)
    return memoryview(arena.view(Block(0, 0, 0), (size // WORD_BYTES,), np.dtype(np.uint64)))  # type: ignore[arg-type]


class SharedPort:
    """The description of a worker's end."""

    def __init__(self, worker: int, arena: Arena, limit: int, ownership: TaskOwnership, end: Descriptor) -> None:
        self._worker = worker
        self._arena = arena
        self._limit = limit
        self._ownership = ownership
        self._end = end

    def descriptors(self) -> tuple[Descriptor, ...]:
        return (self._end, *self._ownership.descriptors(), *self._arena.descriptors())

    def open(self) -> _SharedInbox:
        return _SharedInbox(self._worker, self._arena.open_writer(), self._limit, self._ownership, self._end)


class _SharedInbox:
    def __init__(self, worker: int, arena: ArenaWriter, limit: int, ownership: TaskOwnership, end: Descriptor) -> None:
        self._ownership = ownership
        self._worker = worker
        self._end = end
        self._words = words_of(arena, limit)
        self._bytes = self._words.cast("B")
        self._taken = -1, 0  # the task that was taken last, and where its number stands
        self._decoder = ArrayDecoder((_Copies(arena),))

    def take(self) -> Task | None:
        words, ownership = self._words, self._ownership
        # The kernel wakes one of those that sleep in a read, and all of those that would sleep beside a poll. The read
        # is empty when the consumer has closed the pipe; the lifeline ends it when the consumer is gone.
        while token := os.read(self._end.fd, TOKEN.size):
            number, start = TOKEN.unpack(token)
            at = start // WORD_BYTES
            if words[at + NUMBER] != number or ownership.holder(number) is not None:
                continue  # discarded, or taken by another under an earlier token
            # Of two that see it free at once both do it. The consumer takes the first result, and drops the other.
            ownership.claim(number, self._worker)
            frames = self._frames(at)
            if words[at + NUMBER] != number:
                continue
            datapoints = self._decoder.decode(0, frames)
            first = words[at + _FIRST]
            if words[at + NUMBER] == number:
                self._taken = number, at
                return Task(number, first, datapoints)
        return None

    def is_wanted(self) -> bool:
        number, at = self._taken
        return self._words[at + NUMBER] == number

    def _frames(self, at: int) -> list[memoryview]:
        # Of another task, if this one was discarded: then it may be anything.
        count = min(self._words[at + _FRAMES], _MAX_FRAMES)
        lengths = self._words[at + _WORDS : at + _WORDS + count].tolist()
        begin, nbytes = (at + _WORDS + count) * WORD_BYTES, sum(lengths)
        if nbytes > LARGEST_BYTES:
            return []
        data = memoryview(bytes(self._bytes[begin : begin + nbytes]))
        frames, offset = [], 0
        for length in lengths:
            frames.append(data[offset : offset + length])
            offset += length
        return frames

    def close(self) -> None:
        self._end.close()


class _Copies:
    """Where an encoded datapoint says that an array stands in a block: a copy of it."""

    def __init__(self, arena: ArenaWriter) -> None:
        self._arena = arena

    def leases(
        self, blocks: Sequence[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        view = self._arena.view
        return [view(Block(status, start, 0), shape, dtype, order).copy(order) for status, start in blocks]

    def read(self, status: int, start: int, nbytes: int) -> memoryview:
        return memoryview(self._arena.view(Block(status, start, 0), (nbytes,), np.dtype(np.uint8)).tobytes())

    def free(self, status: int) -> None:
        """The consumer does it, when the task is done."""
