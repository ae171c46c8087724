"""The tray between processes: tasks in an arena that the consumer fills, tokens in a pipe that all workers read.

Guarantees:

- A token is 16 bytes, written and read at once, as pipes do with so few: it is never torn, nor read by two.
- A worker copies its task out and looks at the number again: where the consumer has discarded the task meanwhile, and
  the memory may hold another, the copy is thrown away.
- A worker never writes into the arena: it says in `Claims` which task it has taken.
- Nothing waits: what the arena or the pipe has no room for stays with the consumer until there is. A datapoint for
  which the share of the memory is too small gets its room when it is alone in the tray.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from dataflow.descriptors import Descriptor, pipe
from dataflow.transport.arena import Arena, ArenaWriter
from dataflow.transport.blocks import Block
from dataflow.transport.budget import Budget
from dataflow.transport.claims import Claims
from dataflow.transport.decoding import ArrayDecoder
from dataflow.transport.encoding import ArrayEncoder
from dataflow.transport.leases import ArenaReader
from dataflow.transport.parcels import NO_ROOM
from dataflow.transport.trays import PlainEncoder, Task

__all__ = ["SharedTray"]

_TOKEN: Final = struct.Struct("<QQ")  # number of a task, and where it stands
_WORD: Final = np.dtype(np.uint64)
_NUMBER, _FIRST, _FRAMES = 0, 1, 2  # words at the beginning of a task
_WORDS: Final = 3  # the lengths of its frames come after them
_NO_TASK: Final = 2**64 - 1
_LARGEST: Final = 1 << 32  # bytes: what one datapoint may have at all. It costs addresses, not memory


class _Share(Budget):
    """The arena is laid out for the largest datapoint; what may be held at a time is less, unless one is alone."""

    def __init__(self, share: int, largest: int) -> None:
        super().__init__(max(largest, share), 1)
        self._share = share
        self.alone = False

    def reserve(self, worker: int, nbytes: int) -> bool:
        if not self.alone and self.held()[0] + nbytes > self._share:
            return False
        return super().reserve(worker, nbytes)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_share": self._share, "alone": False}


class SharedTray:
    """Tasks for processes of one machine.

    Args:
        max_bytes: What all tasks may hold together.
        largest: How many bytes one datapoint may have at all: more than `max_bytes`, if it is alone.
    """

    def __init__(self, max_bytes: int, largest: int = _LARGEST) -> None:
        self._budget = _Share(max_bytes, largest)
        self._arena = Arena(0, self._budget)
        self.claims = Claims()
        self._read, self._write = pipe()
        self._writer: _Recorder | None = None  # None while the tray is not open
        self._tokens: deque[bytes] = deque()  # for which the pipe had no room yet

    def port(self, worker: int) -> _SharedPort:
        return _SharedPort(worker, self._arena, self.claims, self._read)

    def open(self) -> None:
        self._writer = _Recorder(self._arena.open_writer())
        self._encoder = ArrayEncoder(cast(ArenaWriter, self._writer))
        os.set_blocking(self._write.fd, False)

    def encode(self, dp: Any, *, alone: bool) -> Any:
        self._budget.alone = alone
        item = self._encoder.encode(dp)
        if item is NO_ROOM and alone:
            raise MemoryError(f"a datapoint for a worker has more than {self._budget.limit >> 30} GiB; make it smaller")
        return item

    def plain_encoder(self) -> PlainEncoder | None:
        return self._encoder.encode_plain if self._encoder.plain else None

    def put(self, number: int, first: int, encoded: Sequence[Any], *, alone: bool) -> _SharedSlot | None:
        writer = self._writer
        assert writer is not None, "tasks are put after the tray was opened"
        self._budget.alone = alone
        before = len(writer.taken)
        frames, _ = self._encoder.join(encoded)
        lengths = [len(frame) for frame in frames]
        words = np.array([number, first, len(frames), *lengths], _WORD)
        block = writer.write(b"".join([words.tobytes(), *frames]))
        if block is None:
            for unused in writer.taken[before:]:
                writer.give_back(unused)
            return None
        taken, writer.taken = writer.taken, []
        slot = _SharedSlot(self, number, block, taken, writer.view(block, (1,), _WORD))
        slot.put_back()
        return slot

    def drop(self) -> None:
        if self._writer is not None:
            self.free(self._writer.taken)
            self._writer.taken = []

    def free(self, blocks: Sequence[Block]) -> None:
        """Nobody reads these blocks any more; after a close there is nothing to be freed."""
        if self._writer is not None:
            for block in list(blocks):
                self._writer.give_back(block)

    def post(self, token: bytes) -> None:
        """Write a token into the pipe, as soon as there is room for it."""
        self._tokens.append(token)
        self.pump()

    def pump(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # full; or all workers have ended, which will be noticed
            while self._tokens:
                os.write(self._write.fd, self._tokens[0])
                self._tokens.popleft()
        if self._writer is not None:
            self._writer.tidy()

    def stop(self) -> None:
        self._tokens.clear()
        self._write.close()

    def close(self) -> None:
        self.stop()
        self._read.close()
        if self._writer is not None:
            self._writer = None
            del self._encoder
        self.claims.close()
        self._arena.close()
        self._budget.close()


class _Recorder:
    """An arena's writer that remembers which blocks the encoder has taken."""

    def __init__(self, writer: ArenaWriter) -> None:
        self._writer = writer
        self.taken: list[Block] = []

    def take(self, nbytes: int) -> Block | None:
        return self._noted(self._writer.take(nbytes))

    def copy(self, array: NDArray[Any], like: Any) -> Block | None:
        return self._noted(self._writer.copy(array, like))

    def write(self, data: bytes) -> Block | None:
        return self._noted(self._writer.write(data))

    def _noted(self, block: Block | None) -> Block | None:
        if block is not None:
            self.taken.append(block)
        return block

    def give_back(self, block: Block) -> None:
        if block in self.taken:
            self.taken.remove(block)
        self._writer.give_back(block)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class _SharedSlot:
    def __init__(
        self, tray: SharedTray, number: int, block: Block, blocks: Sequence[Block], words: NDArray[np.uint64]
    ) -> None:
        self._tray = tray
        self._number = number
        self._token = _TOKEN.pack(number, block.start)
        self._blocks = blocks
        self._words = words

    @property
    def taken_by(self) -> int | None:
        return self._tray.claims.holder(self._number)

    def put_back(self) -> None:
        self._tray.claims.free(self._number)
        self._tray.post(self._token)

    def discard(self) -> None:
        self._words[_NUMBER] = _NO_TASK  # before the memory is given to another
        self._tray.free(self._blocks)
        self._blocks = ()


class _SharedPort:
    def __init__(self, worker: int, arena: Arena, claims: Claims, end: Descriptor) -> None:
        self._worker = worker
        self._arena = arena
        self._claims = claims
        self._end = end

    def descriptors(self) -> tuple[Descriptor, ...]:
        return (self._end, *self._claims.descriptors(), *self._arena.descriptors())

    def open(self) -> _SharedInbox:
        return _SharedInbox(self._worker, self._arena.open_writer(), self._claims, self._end)


class _SharedInbox:
    def __init__(self, worker: int, arena: ArenaWriter, claims: Claims, end: Descriptor) -> None:
        self._claims = claims
        self._worker = worker
        self._arena = arena
        self._end = end
        self._taken = 0, np.empty(1, _WORD)  # the task that was taken last, and where it stands
        self._decoder = ArrayDecoder(cast(Sequence[ArenaReader], (_Copies(arena),)))

    def take(self) -> Task | None:
        while len(token := os.read(self._end.fd, _TOKEN.size)) == _TOKEN.size:
            number, start = _TOKEN.unpack(token)
            words = self._words(start, _WORDS)
            if words[_NUMBER] != number or self._claims.holder(number) is not None:
                continue  # discarded, or taken by another under an earlier token
            # Of two that see it free at once both do it. The consumer takes the first result, and drops the other.
            self._claims.claim(number, self._worker)
            frames = self._frames(start, words)
            if words[_NUMBER] != number:
                continue
            datapoints = self._decoder.decode(0, frames)
            first = int(words[_FIRST])
            if words[_NUMBER] == number:
                self._taken = number, words
                return Task(number, first, datapoints)
        return None

    def is_wanted(self) -> bool:
        number, words = self._taken
        return bool(words[_NUMBER] == number)

    def _frames(self, start: int, words: NDArray[np.uint64]) -> list[memoryview]:
        count = min(int(words[_FRAMES]), 64)  # of another task if this one was discarded: anything may stand here
        lengths = self._words(start, _WORDS + count)[_WORDS:].tolist()
        begin = (_WORDS + count) * _WORD.itemsize
        if sum(lengths) > _LARGEST:
            return []
        data = self._arena.view(Block(0, start + begin, 0), (sum(lengths),), np.dtype(np.uint8)).tobytes()
        frames, offset = [], 0
        for length in lengths:
            frames.append(memoryview(data)[offset : offset + length])
            offset += length
        return frames

    def _words(self, start: int, count: int) -> NDArray[np.uint64]:
        return self._arena.view(Block(0, start, 0), (count,), _WORD)

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
