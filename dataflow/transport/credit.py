"""How far a worker may run ahead: counters in shared memory, written by the consumer, read by the workers.

Guarantees:

- Every counter has one writer, and is one aligned word of 8 bytes: no lock, so nothing that a killed process could
  leave taken.
- A worker waits while what it made and the consumer has not yet handed out fills its window; it looks at the stop
  flag while it waits. At least one datapoint may always be under way.
"""

from __future__ import annotations

import mmap
import sys
import time
from dataclasses import dataclass
from typing import Final

from dataflow.descriptors import Descriptor, shared_memory_file
from dataflow.transport.vigil import Vigil

__all__ = ["Allowance", "Credit", "Room", "Window"]

_WORDS: Final = 8  # per worker: a cache line of its own
_COUNT, _BYTES, _FRAMES, _DONE, _STOP = 0, 1, 2, 3, 5  # written by the consumer
_MADE: Final = 4  # written by the worker
_HEARD: Final = 6  # written by the consumer
_WORD_BYTES: Final = 8
_NAP: Final = 20e-6
_LONGEST_NAP: Final = 2e-3
_MOST_AT_ONCE: Final = 8 << 20  # bytes: the fewer blocks are in use at a time, the more of them stay in the caches


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be under way for one worker: while either `count` or `nbytes` is not used up, it goes on.

    Attributes:
        count: Datapoints.
        nbytes: Bytes, arrays included.
        most_queued: Bytes in messages, without what is in shared memory, after which it waits in any case; 0 for no
            such bound.
    """

    count: int
    nbytes: int = 0
    most_queued: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """What may be made next: while either `count` or `nbytes` is not used up, and `most_bytes` in any case is not."""

    count: int
    nbytes: int
    most_bytes: int


class Credit:
    """The consumer's side: one line of counters for each worker. Picklable while a process is started."""

    def __init__(self, num_workers: int, *, shared: bool) -> None:
        size = num_workers * _WORDS * _WORD_BYTES
        self._size = size
        self._file: Descriptor | None = shared_memory_file("dataflow-credit", size) if shared else None
        self._map()

    def _map(self) -> None:
        memory = bytearray(self._size) if self._file is None else mmap.mmap(self._file.fd, self._size)
        self._words = memoryview(memory).cast("Q")

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""
        return () if self._file is None else (self._file,)

    def grant(self, worker: int, count: int, nbytes: int, queued: int) -> None:
        """The consumer begins to hand out `count` datapoints of `worker`; `queued` bytes of messages are used up."""
        self._words[worker * _WORDS + _FRAMES] += queued
        self._words[worker * _WORDS + _COUNT] += count
        self._words[worker * _WORDS + _BYTES] += nbytes

    def done(self, worker: int, count: int) -> None:
        """The consumer has handed them all out, and asks for more."""
        self._words[worker * _WORDS + _DONE] += count

    def heard(self, worker: int) -> None:
        """The consumer has heard one report of `worker`."""
        self._words[worker * _WORDS + _HEARD] += 1

    def stop(self) -> None:
        """Tell every worker to stop at its next step."""
        for start in range(0, len(self._words), _WORDS):
            self._words[start + _STOP] = 1

    def allowance(self, worker: int, window: Window) -> Allowance:
        """The worker's side."""
        start = worker * _WORDS
        return Allowance(self._words, start, window)

    def close(self) -> None:
        """Give the descriptors back; the mapping, which holds one too, lives as long as a worker's side reads it."""
        self._words = memoryview(b"").cast("Q")
        if self._file is not None:
            self._file.close()

    def __getstate__(self) -> dict[str, object]:
        return {"_size": self._size, "_file": self._file}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._map()


class Allowance:
    """The worker's side of one line of `Credit`."""

    def __init__(self, words: memoryview, start: int, window: Window) -> None:
        self._all_words = words
        self._words = words[start : start + _WORDS]
        self._window = window
        self._vigil = Vigil()
        # All are 0, unless this worker replaces another: then it goes on where that one was heard.
        self._made = words[start + _COUNT]
        self._made_bytes = words[start + _BYTES]
        self._sent_bytes = words[start + _FRAMES]
        self._reported = words[start + _HEARD]
        words[start + _MADE] = self._made

    @property
    def stopped(self) -> bool:
        """Whether the consumer has told the workers to stop."""
        return self._words[_STOP] != 0

    def spend(self, count: int, nbytes: int) -> None:
        """`count` datapoints are on their way."""
        self._made += count
        self._made_bytes += nbytes
        self._words[_MADE] = self._made

    def queue(self, nbytes: int) -> None:
        """A message of `nbytes` was sent. Called by one thread at a time."""
        self._sent_bytes += nbytes

    def without_end(self) -> Allowance:
        """One that nobody reads and nothing bounds: all is done with at once."""
        words = memoryview(bytearray(_WORDS * _WORD_BYTES)).cast("Q")
        words[_DONE] = sys.maxsize
        return Allowance(words, 0, Window(sys.maxsize))

    def wait_for_room(self) -> Room | None:
        """Wait until something may be made, and say how much; None if the worker is to stop."""
        while not self.stopped:
            room = self._room()
            if room is not None:
                return room
            self._vigil.wait(self._may_go_on, self._nap)
        return None

    def _may_go_on(self) -> bool:
        return self.stopped or self._room() is not None

    def _nap(self) -> bool:
        nap = _NAP
        while not self._may_go_on():
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        return True

    def wait_for_hearing(self, most: int) -> bool:
        """Wait until fewer than `most` reports are unheard, and count one more; False if the worker is to stop."""
        nap = _NAP
        while not self.stopped:
            if self._reported - self._words[_HEARD] < most:
                self._reported += 1
                return True
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        return False

    def _room(self) -> Room | None:
        """What is left of the window, but at most half of it at once, so that the worker need not pause."""
        window = self._window
        count = window.count - (self._made - self._words[_COUNT])
        nbytes = window.nbytes - (self._made_bytes - self._words[_BYTES])
        most_bytes = (window.most_queued or sys.maxsize) - (self._sent_bytes - self._words[_FRAMES])
        if (count <= 0 and nbytes <= 0) or most_bytes <= 0:
            return None
        most_bytes = min(most_bytes, _MOST_AT_ONCE)
        return Room(max(0, min(count, window.count // 2 or 1)), max(0, min(nbytes, window.nbytes // 2)), most_bytes)

    def nothing_left(self) -> bool:
        """Whether the consumer is done with everything that any worker has made.

        Another worker's datapoints may be done with before it has counted them: the flusher sends what stands in an
        unfinished message.
        """
        words = self._all_words
        return all(words[k + _MADE] <= words[k + _DONE] for k in range(0, len(words), _WORDS))
