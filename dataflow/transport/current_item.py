"""Current item: a word in shared memory that says which datapoint a worker makes, and since when.

It is written only if somebody watches it, once before each datapoint: in the credit counters of the worker, which stay
readable when the worker hangs or was killed.

    0                                     none: it waits for a task, for credit or memory, or for its start
    1 bit: 1 | 27 bits: position | 36 bits: milliseconds of ``time.monotonic()``

Guarantees:

- Position and begin are in one word of 8 bytes, so no reader sees the begin of one datapoint with the position of
  another.
- Two words are equal only if they are about the same datapoint of the same try: the begin tells the tries apart. (It
  repeats after two years, and positions after 134 million: a reader compares with a word that it has just seen.)
- A datapoint begins before the flow takes its step, and is over when the sender has encoded it and is about to send.
  While the sender waits, for the consumer or for memory, there is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

__all__ = ["CurrentItem", "position_in", "unknown_item"]

_TIME_BITS: Final = 36
_POSITION_BITS: Final = 27
_ANY: Final = 1 << 63
_UNKNOWN: Final = (1 << _POSITION_BITS) - 1  # a position
_now: Final = time.monotonic


def position_in(word: int) -> int | None:
    """The position of the datapoint that `word` is about; None if it is about none, or unknown."""
    position = (word >> _TIME_BITS) & _UNKNOWN
    return position if word and position != _UNKNOWN else None


def unknown_item(sign: int) -> int:
    """The word of a worker that makes a datapoint, unknown which; `sign` changes with each sign of life."""
    return _ANY | _UNKNOWN << _TIME_BITS | sign & ((1 << _TIME_BITS) - 1)


class CurrentItem:
    """The worker's end.

    Args:
        words: The words of the worker.
        index: Which of them it is.
    """

    __slots__ = ("_index", "_position", "_words")

    def __init__(self, words: memoryview, index: int) -> None:
        self._words = words
        self._index = index
        self._position = 0

    def begin(self, position: int) -> None:
        """Record that the datapoint at `position` of the task begins."""
        self._position = position
        # Never `_UNKNOWN` itself, which stands for a position that is not known.
        low = position % _UNKNOWN
        begun = int(_now() * 1000) & ((1 << _TIME_BITS) - 1)
        # One word, stored at once: the consumer never reads the position of one datapoint with the time of another.
        self._words[self._index] = _ANY | low << _TIME_BITS | begun

    def end(self) -> bool:
        """Record that it is over. Return whether there was one."""
        before, self._words[self._index] = self._words[self._index], 0
        return before != 0

    def recorded(self, steps: Iterable[Any]) -> Iterator[Any]:
        """The steps of a task, each of which begins a datapoint."""
        return _Recorded(steps, self)

    def resume(self) -> None:
        """Record that it goes on, after a wait that does not count: its time begins anew."""
        self.begin(self._position)


class _Recorded(Iterator[Any]):
    """The steps of a task, each of which begins a datapoint. No generator: it would hold the datapoint meanwhile."""

    __slots__ = ("_item", "_position", "_steps")

    def __init__(self, steps: Iterable[Any], item: CurrentItem) -> None:
        self._steps = iter(steps)
        self._item = item
        self._position = 0

    def __next__(self) -> Any:
        self._item.begin(self._position)
        self._position += 1
        return next(self._steps)
