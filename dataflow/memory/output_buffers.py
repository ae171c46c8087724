"""Whether anybody can still reach an array that the flow has filled in a block: by its reference counts.

A draft is passed on without a copy only if nobody else can reach it any more: if the reference counts of datapoint,
array and base are the lowest that the path of encoding can show. Which these are, is learnt in each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.memory.blocks import LARGE_BYTES

__all__ = ["OutputBufferCounts"]

Draft = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]


class OutputBufferCounts:
    """The lowest reference counts of a draft, by the type of the datapoint that it is a component of."""

    def __init__(self) -> None:
        self._lowest: dict[type, tuple[int, ...]] = {}
        self._seen: tuple[int, ...] = ()  # the counts of the last draft

    def unreachable(self, kind: type, counts: tuple[int, ...]) -> bool:
        """Whether a draft with these counts can be reached by nobody but the encoder."""
        self._seen = counts
        return counts == self._lowest.get(kind)

    def calibrate(self, run: Callable[[Iterator[Any]], Any], draft: Draft, give_back: Callable[[], None]) -> None:
        """Learn what is lowest.

        Args:
            run: Encodes datapoints exactly as those of a flow. Two are given: one made by an expression, and one that
                the generator keeps in a variable. Where the second does not show one reference more in the datapoint
                and none elsewhere, this Python counts otherwise, and drafts are always copied.
            draft: Makes one.
            give_back: Frees what was encoded: other workers may have left little memory.
        """
        for kind in (list, tuple, dict):
            counts = []
            for keep in (False, True):
                self._seen = ()  # and so it stays where there is no room for a draft
                run(_sample(kind, draft, keep=keep))
                give_back()
                counts.append(self._seen)
            lowest, kept = counts
            if lowest and kept == (lowest[0] + 1, *lowest[1:]):
                self._lowest[kind] = lowest


def _sample(kind: type, draft: Draft, *, keep: bool) -> Iterator[Any]:
    if keep:
        kept = _datapoint(kind, draft)
        yield kept
    else:
        yield _datapoint(kind, draft)


def _datapoint(kind: type, draft: Draft) -> Any:
    if kind is dict:
        return {0: draft((LARGE_BYTES,), np.dtype(np.uint8))}
    return kind([draft((LARGE_BYTES,), np.dtype(np.uint8))])
