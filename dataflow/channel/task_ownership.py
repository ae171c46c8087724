"""Who has taken which task: words in shared memory that nothing else uses.

Guarantees:

- A word says of which task it tells: so a claim that comes late, when the task was discarded and its memory holds
  another, is seen to be void, and destroys nothing.
- There is no lock. Of two that claim a task at once both do it.
"""

from __future__ import annotations

from typing import Any, Final

from dataflow.descriptors import Descriptor, shared_mapping, shared_memory_file

__all__ = ["TaskOwnership"]

_NUM: Final = 4096  # tasks of which it is known; of more, some count as free, and may be done twice
_HOLDERS: Final = 1 << 16  # a word is ``number * _HOLDERS + holder``; worker k is k + 1, and 0 is nobody
_BYTES: Final = _NUM * 8


class TaskOwnership:
    """The words. Picklable while a process is started; each side maps them for itself."""

    def __init__(self) -> None:
        self._file = shared_memory_file("dataflow-claims", _BYTES)
        self._map()

    def _map(self) -> None:
        self._words = memoryview(shared_mapping(self._file, _BYTES)).cast("Q")

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""
        return (self._file,)

    def holder(self, number: int) -> int | None:
        """The worker that has taken the task; None if nobody has."""
        claimed, holder = divmod(self._words[number % _NUM], _HOLDERS)
        return holder - 1 if holder and claimed == number else None

    def claim(self, number: int, worker: int) -> None:
        """`worker` has taken the task."""
        self._words[number % _NUM] = number * _HOLDERS + worker + 1

    def free(self, number: int) -> None:
        """Nobody has taken it."""
        self._words[number % _NUM] = number * _HOLDERS

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()
