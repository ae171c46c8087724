"""What comes of the datapoints that workers send, between the engine, which hears them, and the consumer's loop.

A runner hands them out as they come; a map has asked for each of them, and knows which are still owed.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

__all__ = ["Schedule", "MixedSchedule"]


class Schedule(Protocol):
    """The engine's books of datapoints. All is called under the engine's lock."""

    def open(self) -> None:
        """The workers were started."""

    def heard(self, worker: int, datapoints: list[Any], error: BaseException | None, nbytes: int = 0) -> int:
        """Datapoints of `nbytes` have come; after them, `error` instead of one that could not be read. How many."""

    def ready(self) -> list[Any] | BaseException | None:
        """What comes next, if it is there: datapoints, or what is to be raised. Asked when all before is handed out."""

    def handed_out(self) -> None:
        """What `ready` gave last has been handed out."""

    def lost(self, worker: int, error: BaseException) -> bool:
        """A worker has ended, and nobody takes its place. True if `ready` will give `error` in its turn."""

    def replaced(self, worker: int) -> None:
        """A worker has ended, and another takes its place under the same number."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more can come, and all is well."""

    def stop(self) -> None:
        """Tell workers that wait for something of ours to end."""

    def close(self) -> None:
        """Let go of everything. Idempotent."""


class MixedSchedule:
    """Of a runner: datapoints are handed out in the order in which they come."""

    exhausted = False  # a runner's workers say so themselves

    def __init__(self) -> None:
        self._ready: deque[list[Any] | BaseException] = deque()

    def open(self) -> None:
        """Nothing goes to the workers."""

    def heard(self, worker: int, datapoints: list[Any], error: BaseException | None, nbytes: int = 0) -> int:
        if datapoints:
            self._ready.append(datapoints)
        if error is not None:
            self._ready.append(error)
        return len(datapoints)

    def ready(self) -> list[Any] | BaseException | None:
        return self._ready.popleft() if self._ready else None

    def handed_out(self) -> None:
        """Nobody counts them."""

    def lost(self, worker: int, error: BaseException) -> bool:
        return False

    def replaced(self, worker: int) -> None:
        """What it had sent is handed out; the other makes its own."""

    def stop(self) -> None:
        """Nobody waits for us."""

    def close(self) -> None:
        self._ready.clear()
