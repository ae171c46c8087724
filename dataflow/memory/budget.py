"""How much memory all arenas of one runner may hold together, and who holds how much of it.

Guarantees:

- The sum of what the workers hold never exceeds the limit: a worker adds to its own counter under a lock of the
  kernel's, which is released if its holder is killed.
- Memory goes to who needs it. A worker that finds none left raises the pressure; every other one gives back its idle
  pages as soon as it looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dataflow.descriptors import Descriptor, shared_mapping, shared_memory_file

__all__ = ["Budget"]

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
