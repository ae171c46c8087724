"""Task queue between processes: tasks in an arena that the consumer fills, tokens in a pipe that all workers read.

Guarantees:

- A token is 16 bytes, written and read at once; pipes keep writes of this size atomic, so a token is never torn, and
  never read by two workers.
- A worker copies its task out and then checks its mark again: if the consumer has discarded the task in the meantime,
  and the memory may hold another, the copy is thrown away.
- A token may be read long after its task was discarded. What the memory holds by then is not taken for the task, even
  if it is an array that has the task's number there: a task begins with its number plus a random one of the queue.
- A worker never writes into the arena: it records in `TaskOwnership` which task it has taken.
- Nothing blocks: tasks for which the arena or the pipe has no room stay with the consumer until there is room. A
  datapoint that exceeds its share of the memory gets room when it is alone in the queue.
- `TaskOwnership` records which worker has taken which task, in shared memory that is used for nothing else. Each word
  includes the number of its task: a claim that comes late, when the task was discarded and its memory holds another, is
  recognized as void and destroys nothing.
- There is no lock. If two workers claim a task at the same time, both execute it.
- A part that is asked for again comes before all tasks that wait: a worker that has read a token looks for such parts
  first, and keeps the token meanwhile. If it dies then, the token is written again, as that of any unclaimed task.
"""

from __future__ import annotations

import os
import secrets
import select
import struct
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.system.descriptors import Descriptor, pipe
from dataflow.transport.arena import (
    WORD_BYTES,
    Arena,
    ArenaFile,
    ArenaMemory,
    ArenaWriter,
    Block,
    BlockReader,
    MemoryLimit,
    SharedWords,
)
from dataflow.transport.array_codec import ArrayDecoder, ArrayEncoder
from dataflow.transport.message_layout import NO_ROOM
from dataflow.transport.nested_arrays import Direction, ToWorkers
from dataflow.transport.task_queue import WHOLE, PlainEncoder, Task, decode_task

__all__ = ["SharedTaskQueue", "TaskOwnership"]


# -- Task ownership ----------------------------------------------------------------------------------------------------


_NUM: Final = 4096  # tasks whose owner is recorded; of more, some count as free, and may be executed twice
_HOLDERS: Final = 1 << 16  # a word is ``number * _HOLDERS + holder``; worker k is k + 1, and 0 means free
_NUM_TAKING: Final = _NUM  # index of the word after these: how many workers take tasks
_IS_FULL: Final = _NUM + 1  # index of the next: whether there are no further tasks until results are taken
_NUM_ASKED: Final = _NUM + 2  # index of the next: how many parts were asked for; then the tokens of the last of them
_ASKED: Final = _NUM + 3
_MAX_ASKED: Final = 8
_LAST: Final = _ASKED + 2 * _MAX_ASKED  # index of the first of `_NUM` words, by worker: the number after that of the
_NUM_WORDS: Final = _LAST + _NUM  # task that it has taken last; of more workers, some share a word


class TaskOwnership(SharedWords):
    """The recorded owner of each task, and which workers take tasks."""

    def __init__(self) -> None:
        super().__init__("dataflow-claims", _NUM_WORDS)
        self.set_num_taking(_HOLDERS)

    def holder(self, number: int) -> int | None:
        """The worker that has taken the task; None if it is free."""
        # One read, so that number and holder belong together: a worker may claim the task at any time.
        claimed, holder = divmod(self.words[number % _NUM], _HOLDERS)
        return holder - 1 if holder and claimed == number else None

    def claim(self, number: int, worker: int) -> None:
        """Record that `worker` has taken the task."""
        # First the word of the worker: one that is killed between the two has ended in no task.
        self.words[_LAST + worker % _NUM] = number + 1
        self.words[number % _NUM] = number * _HOLDERS + worker + 1

    def free(self, number: int) -> None:
        """Mark the task as free."""
        self.words[number % _NUM] = number * _HOLDERS

    def last_claimed(self, worker: int) -> int | None:
        """The number of the task that `worker` has taken last; None if it has taken none."""
        # A word that is set never becomes 0 again, so two reads do no harm.
        return self.words[_LAST + worker % _NUM] - 1 if self.words[_LAST + worker % _NUM] else None

    def num_taking(self) -> int:
        """How many workers, the first ones, take tasks."""
        return self.words[_NUM_TAKING]

    def set_num_taking(self, num: int) -> None:
        """Set how many workers take tasks."""
        self.words[_NUM_TAKING] = num

    def asked(self) -> list[tuple[int, int]]:
        """The parts that were asked for last, by number and place; they may be done, or gone, or half overwritten."""
        if not self.words[_NUM_ASKED]:
            return []
        # Without a lock: a number with the place of another part finds another mark there, and is not taken.
        words = self.words[_ASKED:_LAST].tolist()
        # No task is at 0, where an arena has its status bytes: nothing was written there yet.
        return [(number, place) for number, place in zip(words[::2], words[1::2], strict=True) if place]

    def add_asked(self, number: int, place: int) -> None:
        """Record that a part is asked for."""
        at = _ASKED + 2 * (self.words[_NUM_ASKED] % _MAX_ASKED)
        self.words[at], self.words[at + 1] = number, place
        # Last, so that the first part is whole when the workers begin to look for parts.
        self.words[_NUM_ASKED] += 1

    def is_full(self) -> bool:
        """Whether there are no further tasks until results are taken."""
        return bool(self.words[_IS_FULL])

    def set_full(self, is_full: bool) -> None:
        """Set whether there are no further tasks until results are taken."""
        self.words[_IS_FULL] = is_full

    def close(self) -> None:
        """Close the descriptor, and release the memory: nothing is recorded any more. Idempotent."""
        super().close()
        self.words = memoryview(bytearray(_NUM_WORDS * WORD_BYTES)).cast("Q")


# -- Worker's end, and memory layout of a task -------------------------------------------------------------------------


_LARGEST_BYTES: Final = 1 << 32  # of one datapoint; it reserves addresses, not memory
_TOKEN: Final = struct.Struct("<QQ")  # number of a task, and its start in the arena
# Words of a task in the arena: its mark, which is its number plus the base of the queue, the index of its first
# datapoint, the part that is asked for, and the number of frames. The lengths of the frames come after these words, and
# then the frames.
_MARK, _FIRST, _START, _STOP, _FRAMES, _WORDS = range(6)
_BASE_BITS: Final = 62  # so many that no data look like a mark, and that the sum fits into a word
_MAX_FRAMES: Final = 64


def _words_at(memory: ArenaMemory, start: int) -> tuple[memoryview, int]:
    """The memory around a task in words, and the index of the task's first word."""
    piece, at = memory.at(start)
    return memoryview(piece).cast("Q"), at // WORD_BYTES


_LOOK_MS: Final = 200  # between two looks of a worker that takes no tasks


@dataclass
class _SharedPort:
    """Description of a worker's end."""

    worker: int
    arena: Arena
    ownership: TaskOwnership
    end: Descriptor  # the read end of the pipe
    base: int

    def descriptors(self) -> tuple[Descriptor, ...]:
        return (self.end, *self.ownership.descriptors(), *self.arena.descriptors())

    def open(self) -> _SharedTaskReader:
        return _SharedTaskReader(self)


class _SharedTaskReader:
    def __init__(self, port: _SharedPort) -> None:
        arena = port.arena.open_writer()
        self._ownership = port.ownership
        self._worker = port.worker
        self._end = port.end
        self._base = port.base
        self._memory = arena.memory
        # The last task taken: its mark, and where it is. There is none yet.
        self._taken = -1, memoryview(array("Q", [0])), 0
        self._kept = b""  # a token that was read, while another task is done first
        self._decoder = ArrayDecoder((_Copies(arena),))

    def may_take(self) -> bool:
        return bool(self._kept) or self._worker < self._ownership.num_taking()  # nobody else has the token

    def wait_until_may_take(self) -> bool:
        # A token wakes none of those that wait here: they watch the pipe only for its end.
        end = select.poll()
        # Without any event: poll reports the end of the file, a hang-up, all the same.
        end.register(self._end.fd, 0)
        while not self.may_take():
            if end.poll(_LOOK_MS):
                return False
        return True

    def is_full(self) -> bool:
        return self._ownership.is_full()

    def receive(self) -> Task | None:
        # The kernel wakes one of several readers that block in `read`, but all of those that wait in `poll`. The read
        # returns no bytes when the consumer has closed the pipe; the lifeline ends it when the consumer is gone.
        while token := self._kept or os.read(self._end.fd, _TOKEN.size):
            self._kept = token
            task = next(filter(None, starmap(self._take, self._ownership.asked())), None)
            if task is None:
                self._kept = b""
                task = self._take(*_TOKEN.unpack(token))
            if task is not None:
                return task
        return None

    def _take(self, number: int, place: int) -> Task | None:
        """Take the task with this number, if it is at this place, and no other worker has taken it."""
        ownership, mark = self._ownership, self._base + number
        words, at = _words_at(self._memory, place)
        if words[at + _MARK] != mark or ownership.holder(number) is not None:
            return None  # discarded, or taken by another worker under an earlier token
        # Race: two workers may both see the task as free. Then both execute it; the consumer takes the first result,
        # and drops the other.
        # Before the copy: if the worker is killed in it, the task is known to have been with it.
        ownership.claim(number, self._worker)
        frames = self._frames(words, at)
        if words[at + _MARK] != mark:
            return None
        # The frames are those of this task, so they can be decoded. Large arrays are only copied here, so the mark is
        # compared once more afterwards.
        datapoints = decode_task(self._decoder, frames, words[at + _FIRST])
        first, start, stop = words[at + _FIRST], words[at + _START], words[at + _STOP]
        # Race: if another part was asked for meanwhile, these words may be of either; but then the mark differs.
        if words[at + _MARK] != mark:
            return None
        self._taken = mark, words, at
        return Task(number, first, datapoints, start, stop)

    def is_wanted(self) -> bool:
        mark, words, at = self._taken
        return words[at + _MARK] == mark

    @staticmethod
    def _frames(words: memoryview, at: int) -> list[memoryview]:
        # If the task was discarded, these words may belong to another task and have any value.
        count = min(words[at + _FRAMES], _MAX_FRAMES)
        lengths = words[at + _WORDS : at + _WORDS + count].tolist()
        begin, nbytes = (at + _WORDS + count) * WORD_BYTES, sum(lengths)
        if nbytes > _LARGEST_BYTES:
            return []
        # A copy, made before the caller looks at the mark again: it cannot change any more.
        data = memoryview(bytes(words.cast("B")[begin : begin + nbytes]))
        frames, offset = [], 0
        for length in lengths:
            frames.append(data[offset : offset + length])
            offset += length
        return frames


class _Copies(BlockReader):
    """Block reader for tasks: copies an array out of its block, which the consumer frees when the task is done."""

    def __init__(self, arena: ArenaWriter) -> None:
        self._arena = arena

    def leases(
        self, blocks: Sequence[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        view = self._arena.view
        return [view(Block(status, start, 0), shape, dtype, order).copy(order) for status, start in blocks]

    def read(self, status: int, start: int, nbytes: int) -> memoryview:
        return memoryview(self._arena.view(Block(status, start, 0), (nbytes,), np.dtype(np.uint8)).tobytes())


# -- Consumer's end ----------------------------------------------------------------------------------------------------


_NO_TASK: Final = 2**64 - 1  # in place of a mark


class _TaskMemoryLimit(MemoryLimit):
    """MemoryLimit of a task arena, limited to its share unless one datapoint is alone.

    The arena itself is laid out for the largest datapoint.
    """

    def __init__(self, share: int, largest: int) -> None:
        super().__init__(max(largest, share), 1)
        self._share = share
        self.is_only_task = False

    def reserve(self, worker: int, nbytes: int) -> bool:
        if not self.is_only_task and self.held()[0] + nbytes > self._share:
            return False
        return super().reserve(worker, nbytes)


class SharedTaskQueue:
    """Task queue for processes of one machine.

    Args:
        max_bytes: Limit for all tasks together.
        largest: Maximum bytes of one datapoint; it may exceed `max_bytes` if it is alone.
        direction: How everything but arrays is pickled.

    Attributes:
        ownership: Which worker has taken which task.
        base: What is added to the number of a task in its mark.
        writer: The consumer's end of the arena; None while the queue is not open.
    """

    def __init__(self, max_bytes: int, largest: int = _LARGEST_BYTES, *, direction: Direction | None = None) -> None:
        self._direction = direction or ToWorkers(forked=True, main=None)
        self._memory_limit = _TaskMemoryLimit(max_bytes, largest)
        self._file = ArenaFile(self._memory_limit)
        self._arena = self._file.new_arena(0)
        self.ownership = TaskOwnership()
        self.base = secrets.randbits(_BASE_BITS)
        self._read, self._write = pipe()
        self.writer: _RecordingWriter | None = None
        self._tokens: deque[bytes] = deque()  # for which the pipe had no room yet

    def port(self, worker: int) -> _SharedPort:
        return _SharedPort(worker, self._arena, self.ownership, self._read, self.base)

    def open(self) -> None:
        self.writer = _RecordingWriter(self._arena)
        self._encoder = ArrayEncoder(self.writer, self._direction)
        # The read end is another open file, in which the workers go on to block.
        os.set_blocking(self._write.fd, False)

    def let_take(self, num_workers: int) -> None:
        self.ownership.set_num_taking(num_workers)

    def set_full(self, is_full: bool) -> None:
        self.ownership.set_full(is_full)

    def last_taken(self, worker: int) -> int | None:
        return self.ownership.last_claimed(worker)

    def encode(self, dp: Any, *, is_only_task: bool) -> Any:
        self._memory_limit.is_only_task = is_only_task
        item = self._encoder.encode(dp)
        if item is NO_ROOM and is_only_task:
            raise MemoryError(
                f"a datapoint for a worker has more than {self._memory_limit.limit >> 30} GiB; make it smaller"
            )
        return item

    def plain_encoder(self) -> PlainEncoder | None:
        return self._encoder.encode_plain if self._encoder.plain else None

    def put(
        self, number: int, first: int, encoded: Sequence[Any], *, is_only_task: bool, hold: bool = False
    ) -> _SharedQueuedTask | None:
        writer = self.writer
        assert writer is not None, "tasks are put after the task queue was opened"
        self._memory_limit.is_only_task = is_only_task
        before = len(writer.taken)
        frames, _ = self._encoder.join(encoded)
        words = array("Q", [self.base + number, first, 0, WHOLE, len(frames), *map(len, frames)])
        block = writer.write(b"".join([words, *frames]))
        if block is None:
            # Only what `join` has taken: the encoded datapoints keep their blocks for the next attempt.
            for unused in writer.taken[before:]:
                writer.give_back(unused)
            return None
        taken, writer.taken = writer.taken, []
        queued = _SharedQueuedTask(self, number, block.start, taken)
        if not hold:
            queued.put_back()
        return queued

    def drop(self) -> None:
        if self.writer is not None:
            for block in list(self.writer.taken):
                self.writer.give_back(block)

    def post(self, token: bytes) -> None:
        """Write a token into the pipe, as soon as there is room for it."""
        self._tokens.append(token)
        self._write_tokens()

    def pump(self) -> None:
        self._write_tokens()
        if self.writer is not None:
            self.writer.tidy()

    def _write_tokens(self) -> None:
        try:
            while self._tokens:
                # The kernel writes at most PIPE_BUF bytes as a whole or not at all: no token is cut in two.
                os.write(self._write.fd, self._tokens[0])
                # After the write. An interrupt between the two repeats the token, and a worker drops the second one.
                self._tokens.popleft()
        except (BlockingIOError, BrokenPipeError):  # full; or all workers have ended, which the engine notices
            pass

    def stop(self) -> None:
        self._tokens.clear()
        self._write.close()  # workers that wait for a token read the end of the file

    def close(self) -> None:
        self.stop()
        self._read.close()
        if self.writer is not None:
            self.writer = None
            # It refers to the writer, and so to the memory.
            del self._encoder
        self.ownership.close()
        self._file.close()
        self._memory_limit.close()


class _RecordingWriter(ArenaWriter):
    """Arena writer that records which blocks the encoder has taken."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.taken: list[Block] = []

    def take(self, nbytes: int) -> Block | None:
        block = super().take(nbytes)
        if block is not None:
            self.taken.append(block)
        return block

    def give_back(self, block: Block) -> None:
        if block in self.taken:
            self.taken.remove(block)
        super().give_back(block)


class _SharedQueuedTask:
    def __init__(self, task_queue: SharedTaskQueue, number: int, start: int, blocks: Sequence[Block]) -> None:
        self._task_queue = task_queue
        self._number = number
        self._start = start
        self._token = _TOKEN.pack(number, start)
        self._blocks = blocks

    @property
    def taken_by(self) -> int | None:
        return self._task_queue.ownership.holder(self._number)

    def may_have_begun(self, worker: int) -> bool:
        return False

    def put_back(self, dead: int | None = None) -> None:
        if dead is None or self.taken_by == dead:
            # Race: a worker that found the task free before the dead one claimed it may claim it just now, and this
            # line erases that. Then the task is executed twice, and the first result counts.
            self._task_queue.ownership.free(self._number)
        # After the task was freed: a worker that reads the token drops a task that is still claimed.
        self._task_queue.post(self._token)

    def datapoints(self) -> Sequence[Any]:
        writer = self._task_queue.writer
        assert writer is not None, "the queue is open"
        frames = _SharedTaskReader._frames(*_words_at(writer.memory, self._start))
        return ArrayDecoder((_Copies(writer),)).decode(0, frames)

    def ask(self, number: int, start: int, stop: int) -> None:
        task_queue = self._task_queue
        if task_queue.writer is None:  # it was closed
            return
        self._number, self._token = number, _TOKEN.pack(number, self._start)
        task_queue.ownership.free(number)
        words, at = _words_at(task_queue.writer.memory, self._start)
        words[at + _MARK] = _NO_TASK  # a worker that reads it meanwhile skips it
        words[at + _START], words[at + _STOP] = start, stop
        words[at + _MARK] = task_queue.base + number  # after the part: a worker that reads this mark reads its part
        task_queue.ownership.add_asked(number, self._start)
        # With a token: idle workers block in `read`, and look for parts only once they have read one.
        self.put_back()

    def discard(self) -> None:
        writer = self._task_queue.writer
        if writer is None:  # it was closed
            return
        words, at = _words_at(writer.memory, self._start)
        words[at + _MARK] = _NO_TASK  # before the memory is reused
        for block in self._blocks:
            writer.give_back(block)
        self._blocks = ()
