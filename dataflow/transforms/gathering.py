"""The datapoints of one batch, taken from a source that may use the memory of one datapoint for the next.

Guarantees:

- A source that yields one buffer again and again, with other values, gives right batches: each datapoint is copied as
  it arrives.
- A source that takes turns with several buffers is found out, because the first datapoint of a batch has changed at its
  end, and raises.
- Other sources pay for a copy of one datapoint per batch, not of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import numpy as np

__all__ = ["NextGroup", "owned"]

_SEQUENCES: Final = (list, tuple)
_UNCHANGEABLE: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})


class NextGroup:
    """The datapoints of the next batch, taken from `datapoints`: what was taken before a timeout is kept.

    Args:
        datapoints: The datapoints of the source.
        copies: Whether the source may use the memory of a datapoint for later ones of the group.
    """

    def __init__(self, datapoints: Iterator[Any], *, copies: bool) -> None:
        self._datapoints = datapoints
        self._copies = copies
        self._begin()

    def _begin(self) -> None:
        self._taken: list[Any] = []
        self._first: Any = None  # a copy of the first datapoint
        self._copied: Callable[[Any], Any] | None = None  # copies each datapoint; None if they do not share memory

    def take(self, num: int) -> list[Any]:
        """The next `num` datapoints, or those that are left.

        Raises:
            ValueError: The first datapoint has changed meanwhile.
        """
        taken = self._taken
        compares = self._copies and num > 1
        if compares and len(taken) < 2:
            self._take_two(taken)
        rest = islice(self._datapoints, num - len(taken))
        taken.extend(rest if self._copied is None else map(self._copied, rest))
        first, copied = self._first, self._copied
        self._begin()
        if compares and taken and copied is None and not _is_same(taken[0], first):
            raise ValueError(
                "a datapoint has changed while a batch was made of it: its source writes later datapoints into the "
                "same memory, in several buffers by turns. Yield copies (array.copy()), or use one buffer only"
            )
        return taken

    def _take_two(self, taken: list[Any]) -> None:
        """Take the first two datapoints, and find out whether they share memory."""
        if not taken:
            taken.extend(islice(self._datapoints, 1))
            self._first = owned(taken[0]) if taken else None
        if taken:
            taken.extend(islice(self._datapoints, 1))
        if len(taken) == 2 and _share_memory(*taken):
            self._copied = list if _is_plain_list(self._first) else owned
            taken[:] = self._first, self._copied(taken[1])


def owned(value: Any) -> Any:
    """A copy of a datapoint that is kept while its source makes others."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(owned, value))
    if kind is dict:
        return {key: owned(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _is_plain_list(value: Any) -> bool:
    return type(value) is list and _UNCHANGEABLE.issuperset(map(type, value))


def _share_memory(one: Any, other: Any) -> bool:
    """Whether a change of one datapoint would change the other."""
    if one is other:
        return type(one) not in _UNCHANGEABLE
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    if type(one) is dict and type(other) is dict:
        return any(_share_memory(value, other[key]) for key, value in one.items() if key in other)
    if type(one) in _SEQUENCES and type(other) in _SEQUENCES:
        return any(map(_share_memory, one, other))
    return False


def _is_same(now: Any, before: Any) -> bool:
    """Whether a datapoint is still what it was when it was copied."""
    if isinstance(now, np.ndarray):
        return bool(now.dtype.hasobject or (now.shape == before.shape and now.tobytes() == before.tobytes()))
    if type(now) is dict:
        return now.keys() == before.keys() and all(_is_same(value, before[key]) for key, value in now.items())
    if type(now) in _SEQUENCES:
        return len(now) == len(before) and all(map(_is_same, now, before))
    return now is before
