"""The datapoints of one batch, taken from a source that may use the memory of one datapoint for the next.

Guarantees:

- In each process, the datapoints of the first batch are copied as they arrive, and compared at its end with what the
  source has made of them since. A source that has written into any of them, in one buffer or in several by turns, has
  each copied from then on: its batches are right.
- A source that begins later raises, because a datapoint has changed at the end of its batch. Compared is the one before
  the last: if the source has one buffer, the first batch that would be wrong raises, except an incomplete one at the
  end of a pass. In every fourth batch another one is compared, too, so what several buffers do is found out, perhaps
  after some batches.
- Where no code of the user makes or changes datapoints (`GroupedData._df_copies`), nothing is looked at.
- Other sources pay for a copy of one datapoint per batch, or two, not of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import ne
from typing import Any, Final

import numpy as np

__all__ = ["NextGroup", "ReusedMemory", "copy_datapoint"]

_SEQUENCES: Final = frozenset({list, tuple})
_UNCHANGEABLE: Final = frozenset({int, float, complex, bool, str, bytes, type(None)}).union(
    kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"
)
_BATCHES_PER_TURN: Final = 4


class ReusedMemory:
    """Whether the input writes datapoints into the memory of earlier ones of a batch."""

    is_reused: bool | None = None  # None before the first batch
    watched = 0  # the number of batches of which some datapoints were compared


class NextGroup:
    """The datapoints of the next batch, taken from `datapoints`: what was taken before a timeout is kept.

    Args:
        datapoints: The datapoints of the source.
        memory: What is known of the memory of the datapoints; None if the source does not use it for later ones.
    """

    def __init__(self, datapoints: Iterator[Any], memory: ReusedMemory | None) -> None:
        self._datapoints = datapoints
        self._memory = memory
        self._taken: list[Any] = []
        self._originals: list[Any] = []  # of what was copied, to be compared
        self._contents: list[Any] = []  # of the datapoints that are compared

    def take(self, num: int) -> list[Any]:
        """The next `num` datapoints, or those that are left.

        Raises:
            ValueError: A datapoint has changed meanwhile.
        """
        taken, memory = self._taken, self._memory
        if memory is None or num == 1:
            taken.extend(islice(self._datapoints, num - len(taken)))
        elif memory.is_reused is None:
            self._take_and_compare(num, memory)
        elif memory.is_reused:
            taken.extend(map(copy_datapoint, islice(self._datapoints, num - len(taken))))
        else:
            self._take_and_watch(num, memory)
        self._taken = []
        return taken

    def _take_and_compare(self, num: int, memory: ReusedMemory) -> None:
        taken, originals = self._taken, self._originals
        for dp in islice(self._datapoints, num - len(taken)):
            originals.append(dp)
            taken.append(copy_datapoint(dp))
        if len(taken) > 1:
            memory.is_reused = any(map(ne, map(_content, originals), map(_content, taken)))
        originals.clear()

    def _take_and_watch(self, num: int, memory: ReusedMemory) -> None:
        taken, contents = self._taken, self._contents
        turn, is_left = divmod(memory.watched, _BATCHES_PER_TURN)
        watched = (num - 2,) if is_left or turn % (num - 1) == num - 2 else (turn % (num - 1), num - 2)
        for k in watched[len(contents) :]:
            taken.extend(islice(self._datapoints, k + 1 - len(taken)))
            if len(taken) <= k:
                break
            contents.append(_content(taken[k]))
        taken.extend(islice(self._datapoints, num - len(taken)))
        self._contents = []
        memory.watched += 1
        for k, content in zip(watched, contents, strict=False):
            if _content(taken[k]) == content:
                continue
            memory.is_reused = True
            raise ValueError(
                f"datapoint {k} of a batch has changed while the batch was made: its source has begun to write "
                "later datapoints into the same memory, so this batch, and perhaps those before, would be wrong. Yield "
                "copies (array.copy())"
            )


def copy_datapoint(value: Any) -> Any:
    """A copy of a datapoint that is kept while its source makes others."""
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if kind is np.ndarray:
        return value.copy()
    if kind is list:
        return value[:] if _UNCHANGEABLE.issuperset(map(type, value)) else [*map(copy_datapoint, value)]
    if kind is tuple:
        return tuple(map(copy_datapoint, value))
    if kind is dict:
        return {key: copy_datapoint(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _content(value: Any) -> Any:
    """What a datapoint holds now, to be compared with what it holds later.

    Arrays count by their bytes, all else by identity: a list that is used again may hold an equal number by chance.
    """
    kind = type(value)
    if kind in _SEQUENCES:
        return [*map(_content, value)]
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if kind is dict:
        return {key: _content(item) for key, item in value.items()}
    return id(value), value  # the value is there so that no other object gets its id
