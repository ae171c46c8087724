"""Which components a datapoint has: some of them, or each on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from dataflow.base import Blocks, DataFlow, ProxyDataFlow
from dataflow.datapoint import HOLE, selected
from dataflow.errors import LengthUnknown
from dataflow.seeding import Stream

__all__ = ["FlattenData", "SelectComponent"]


class SelectComponent(ProxyDataFlow):
    """Choose components, in the order given. A dict stays a dict; a list or tuple becomes a list.

    Args:
        ds: The input.
        idxs: Positions of the components, or their keys.

    Raises:
        IndexError, KeyError: A datapoint has no such component; the message lists what there is.

    Example:
        >>> list(SelectComponent(DataFromList([["a", 1, 2.5]]), [2, 0]))
        [[2.5, 'a']]
        >>> list(SelectComponent(DataFromList([{"image": 1, "label": 2}]), ["label"]))
        [{'label': 2}]
    """

    def __init__(self, ds: DataFlow, idxs: Sequence[Any]) -> None:
        super().__init__(ds)
        if isinstance(idxs, str | bytes) or not hasattr(idxs, "__iter__"):
            raise TypeError(f"SelectComponent expects a list of positions or keys, got {idxs!r}: write [{idxs!r}]")
        self.idxs = list(idxs)

    def run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return map(self._select, self.ds.run_pass(p, stream))

    def at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return map(self._select, self.ds.at(blocks, stream))

    def _select(self, dp: Any) -> Any:
        return HOLE if dp is HOLE else selected(dp, self.idxs)


class FlattenData(ProxyDataFlow):
    """Give every component on its own: the list ``[a, b]`` becomes ``[a]`` and ``[b]``, a tuple ``(a,)`` and ``(b,)``.

    How many come out of a pass is not known beforehand.

    Args:
        ds: Lists or tuples.

    Raises:
        TypeError: A datapoint is neither; a dict has no order of components to rely on.

    Example:
        >>> list(FlattenData(DataFromList([[1, 2], (3,)], shuffle=False)))
        [[1], [2], (3,)]
    """

    @property
    def indexed(self) -> bool:
        return False

    def __len__(self) -> int:
        raise LengthUnknown("a pass of FlattenData has no known length: it depends on the components of each datapoint")

    def at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return DataFlow.at(self, blocks, stream)

    def run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return chain.from_iterable(map(_single, self.ds.run_pass(p, stream)))


def _single(dp: Any) -> list[Any]:
    if isinstance(dp, list):
        return [[value] for value in dp]
    if isinstance(dp, tuple):
        return [(value,) for value in dp]
    raise TypeError(
        f"FlattenData flattens lists and tuples, got a {type(dp).__name__}: choose components with SelectComponent, or "
        "list them with MapData"
    )
