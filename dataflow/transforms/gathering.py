"""The datapoints of one batch, taken from a source that may use the memory of one datapoint for the next.

Guarantees:

- A source that yields one buffer again and again, with other values, gives right batches: the first two datapoints of a
  batch share memory, so each is copied as it arrives.
- A source that takes turns with several buffers is found out, because the first datapoint of a batch has changed at its
  end, and raises. So is one that begins to reuse a buffer after a batch in which what was shared did not change.
- Where no code of the user makes or changes datapoints (`GroupedData._df_copies`), nothing is looked at.
- Other sources pay for a copy of one datapoint per batch, not of all. Those whose datapoints share what does not change
  pay for one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import is_
from typing import Any, Final

import numpy as np

__all__ = ["NextGroup", "owned"]

_SEQUENCES: Final = (list, tuple)
_END: Final = object()
_UNCHANGEABLE: Final = frozenset({int, float, complex, bool, str, bytes, type(None)}).union(
    kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"
)


class NextGroup:
    """The datapoints of the next batch, taken from `datapoints`: what was taken before a timeout is kept.

    Args:
        datapoints: The datapoints of the source.
        copies: Whether the source may use the memory of a datapoint for later ones of the group.
    """

    def __init__(self, datapoints: Iterator[Any], *, copies: bool) -> None:
        self._datapoints = datapoints
        self._copies = copies
        self._taken: list[Any] = []
        self._first: Any = None  # a copy of the first datapoint
        self._is_plain = False  # it is a list of what cannot change
        self._original: Any = None  # the first datapoint, if all are copied
        self._is_harmless = False  # in a whole batch, nothing has changed what the datapoints share
        self._copied: Callable[[Any], Any] | None = None  # copies each datapoint; None if they do not share memory

    def take(self, num: int) -> list[Any]:
        """The next `num` datapoints, or those that are left.

        Raises:
            ValueError: The first datapoint has changed meanwhile.
        """
        taken = self._taken
        if not self._copies or num == 1:
            taken.extend(islice(self._datapoints, num - len(taken)))
            self._taken = []
            return taken
        if len(taken) < 2:
            self._take_two(taken)
        rest = islice(self._datapoints, num - len(taken))
        copied = self._copied
        taken.extend(rest if copied is None else map(copied, rest))
        self._taken, self._copied = [], None
        if taken:
            is_same = self._is_unchanged(taken[0] if copied is None else self._original)
            self._first = self._original = None
            if copied is not None:
                self._is_harmless = is_same
            elif not is_same:
                raise ValueError(
                    "a datapoint has changed while a batch was made of it: its source writes later datapoints into the "
                    "same memory, in several buffers by turns. Yield copies (array.copy()), or use one buffer only"
                )
        return taken

    def _take_two(self, taken: list[Any]) -> None:
        """Take the first two datapoints, and find out whether they share memory."""
        if not taken:
            first: Any = next(self._datapoints, _END)
            if first is _END:
                return
            self._is_plain = type(first) is list and _UNCHANGEABLE.issuperset(map(type, first))
            self._first = first[:] if self._is_plain else owned(first)
            taken.append(first)
        second = next(self._datapoints, _END)
        if second is _END:
            return
        taken.append(second)
        shares = taken[0] is second or (not self._is_plain and _share_memory(taken[0], second))
        if shares and not (self._is_harmless and self._is_unchanged(taken[0])):
            self._original = taken[0]
            self._copied = owned
            taken[:] = self._first, owned(second)

    def _is_unchanged(self, first: Any) -> bool:
        return all(map(is_, first, self._first)) if self._is_plain else _is_same(first, self._first)


def owned(value: Any) -> Any:
    """A copy of a datapoint that is kept while its source makes others."""
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if kind is np.ndarray:
        return value.copy()
    if kind is list:
        return value[:] if _UNCHANGEABLE.issuperset(map(type, value)) else [*map(owned, value)]
    if kind is tuple:
        return tuple(map(owned, value))
    if kind is dict:
        return {key: owned(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _share_memory(one: Any, other: Any) -> bool:
    """Whether a change of one datapoint would change the other."""
    if type(one) in _UNCHANGEABLE:
        return False
    if one is other:
        return True
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.base is not None or other.base is not None) and np.may_share_memory(one, other)
    if type(one) is dict and type(other) is dict:
        return any(_share_memory(value, other[key]) for key, value in one.items() if key in other)
    if type(one) in _SEQUENCES and type(other) in _SEQUENCES:
        return any(map(_share_memory, one, other))
    return False


def _is_same(now: Any, before: Any) -> bool:
    """Whether a datapoint is still what it was when it was copied."""
    if now is before:
        return True
    if isinstance(now, np.ndarray):
        return bool(now.dtype.hasobject or (now.shape == before.shape and now.tobytes() == before.tobytes()))
    if type(now) is dict:
        return now.keys() == before.keys() and all(_is_same(value, before[key]) for key, value in now.items())
    if type(now) in _SEQUENCES:
        return len(now) == len(before) and all(map(_is_same, now, before))
    return False
