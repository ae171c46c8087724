"""How far a worker may run ahead: counters in shared memory, written by the consumer, read by the workers.

Guarantees:

- Every counter has one writer, and is one aligned word of 8 bytes: no lock, so nothing that a killed process could
  leave taken.
- A worker waits while what it made and the consumer has not yet handed out fills its window; it looks at the stop
  flag while it waits. At least one datapoint may always be under way.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from typing import Final

from dataflow.descriptors import Descriptor, shared_memory_file

__all__ = ["Allowance", "Credit", "Window"]

_WORDS: Final = 8  # per worker: a cache line of its own
_COUNT, _BYTES, _STOP = 0, 1, 2
_WORD_BYTES: Final = 8
_NAP: Final = 20e-6
_LONGEST_NAP: Final = 2e-3
_MOST_IN_A_CHUNK: Final = 4096
_FULL_CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Window:
    """How much may be under way for one worker: while either is not used up, it goes on."""

    count: int
    nbytes: int = 0


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

    def grant(self, worker: int, count: int, nbytes: int) -> None:
        """The consumer has handed out `count` datapoints of `worker`."""
        self._words[worker * _WORDS + _COUNT] += count
        self._words[worker * _WORDS + _BYTES] += nbytes

    def stop(self) -> None:
        """Tell every worker to stop at its next step."""
        for start in range(0, len(self._words), _WORDS):
            self._words[start + _STOP] = 1

    def allowance(self, worker: int, window: Window) -> Allowance:
        """The worker's side."""
        start = worker * _WORDS
        return Allowance(self._words[start : start + _WORDS], window)

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

    def __init__(self, words: memoryview, window: Window) -> None:
        self._words = words
        self._window = window
        self._made = 0
        self._made_bytes = 0

    @property
    def stopped(self) -> bool:
        """Whether the consumer has told the workers to stop."""
        return self._words[_STOP] != 0

    @property
    def chunk_count(self) -> int:
        """Datapoints that may travel in one message: a third of the window, so that the worker need not pause."""
        return _MOST_IN_A_CHUNK if self._window.nbytes else max(1, self._window.count // 3)

    @property
    def chunk_bytes(self) -> int:
        """Bytes after which a message is full."""
        return self._window.nbytes // 3 or _FULL_CHUNK_BYTES

    def spend(self, count: int, nbytes: int) -> None:
        """`count` datapoints are on their way."""
        self._made += count
        self._made_bytes += nbytes

    @property
    def used_up(self) -> bool:
        """Whether the window is full."""
        if self._made - self._words[_COUNT] < self._window.count:
            return False
        return self._made_bytes - self._words[_BYTES] >= self._window.nbytes

    def wait_for_credit(self) -> bool:
        """Wait until something more may be made; False if the worker is to stop."""
        nap = _NAP
        while not self.stopped:
            if not self.used_up:
                return True
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        return False
