"""Component selection: nodes that choose components, or yield each as a datapoint of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from dataflow.errors import LengthUnknown, ShapeMismatch
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.datapoint import HOLE, selected
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.pauses import flatten
from dataflow.protocol.seeding import Stream
from dataflow.transforms.indexing import Indexes, pass_in_order

__all__ = ["FlattenData", "SelectComponent"]


class SelectComponent(ProxyDataFlow[T_co]):
    """Choose components, in the order given. A dict stays a dict; a list or tuple becomes a list.

    Args:
        ds: The input.
        idxs: Positions of the components, or their keys.

    Raises:
        TypeError: `idxs` is a mask of booleans, or no sequence.
        IndexError, KeyError: A datapoint has no such component; the message lists the available ones.

    Example:
        >>> list(SelectComponent(DataFromList([["a", 1, 2.5]]), [2, 0]))
        [[2.5, 'a']]
        >>> list(SelectComponent(DataFromList([{"image": 1, "label": 2}]), ["label"]))
        [{'label': 2}]
    """

    _df_takes = 1

    def __init__(self, ds: DataFlow, idxs: Sequence[Any]) -> None:
        super().__init__(ds)
        if isinstance(idxs, str | bytes) or not hasattr(idxs, "__iter__"):
            raise TypeError(f"SelectComponent expects a list of positions or keys, got {idxs!r}: write [{idxs!r}]")
        self.idxs = list(idxs)
        if any(isinstance(idx, bool | np.bool_) for idx in self.idxs):
            raise TypeError(
                "SelectComponent expects positions or keys, got True or False, which Python takes for 1 and 0. For a "
                "mask, write numpy.flatnonzero(mask)"
            )

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return map(self._select, self.ds._df_run_pass(p, stream))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return map(self._select, self.ds._df_at(blocks, stream))

    def _select(self, dp: Any) -> Any:
        return HOLE if dp is HOLE else selected(dp, self.idxs)


class FlattenData(ProxyDataFlow[T_co]):
    """Yield every component as a datapoint: ``[a, b]`` becomes ``[a]`` and ``[b]``, a tuple ``(a,)`` and ``(b,)``.

    The number of datapoints in a pass is not known in advance, unless `num` is given.

    Args:
        ds: Lists or tuples.
        num: Number of components of every datapoint. If given, the flow has a length and can be addressed.

    Raises:
        TypeError: A datapoint is neither a list nor a tuple; the components of a dict have no defined order.
        ShapeMismatch: A datapoint does not have `num` components.

    Example:
        >>> list(FlattenData(DataFromList([[1, 2], (3,)], shuffle=False)))
        [[1], [2], (3,)]
        >>> df = FlattenData(DataFromList([[1, 2], [3, 4]], shuffle=False), num=2)
        >>> len(df), df[2]
        (4, [3])
    """

    def __init__(self, ds: DataFlow, *, num: int | None = None) -> None:
        super().__init__(ds)
        self.num = None if num is None else whole_number(self, "num", num, 1)

    @property
    def _df_indexed(self) -> bool:
        return self.num is not None

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain * (self.num or 1)

    @property
    def _df_least_task(self) -> int:
        return self.ds._df_least_task * (self.num or 1)

    def __len__(self) -> int:
        if self.num is None:
            raise LengthUnknown(
                "a pass of FlattenData has no known length: it depends on the components of each datapoint. If all "
                "have the same number, pass num"
            )
        return len(self.ds) * self.num

    @property
    def _df_continues(self) -> bool:
        return self._df_endless

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return pass_in_order(self, stream, partial(self._in_order, p, stream))

    def _in_order(self, p: int, stream: Stream) -> Iterator[Any]:
        return flatten(map(self._split, self.ds._df_run_pass(p, stream)), self._df_waits)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if self.num is None:
            return DataFlow._df_at(self, blocks, stream)
        return chain.from_iterable(map(partial(self._read, stream, self.num), blocks))

    def _read(self, stream: Stream, num: int, indexes: Indexes) -> Iterator[Any]:
        # Adjacent components of one datapoint request it once.
        below, components = np.divmod(indexes, num)
        first = np.flatnonzero(np.diff(below, prepend=-1))
        wanted = np.split(components, first[1:])
        return flatten(map(self._pick, self.ds._df_at([below[first]], stream), wanted), self._df_waits)

    def _pick(self, dp: Any, wanted: Indexes) -> list[Any]:
        if dp is HOLE:
            return [HOLE] * len(wanted)
        singles = self._split(dp)
        return [singles[k] for k in wanted.tolist()]

    def _split(self, dp: Any) -> list[Any]:
        singles = _singles(dp)
        if self.num is not None and len(singles) != self.num:
            raise ShapeMismatch(
                f"FlattenData: num={self.num}, but a datapoint has {len(singles)} components: leave out num, or bring "
                "the datapoints to one form with MapData"
            )
        return singles


def _singles(dp: Any) -> list[Any]:
    if isinstance(dp, list):
        return [[value] for value in dp]
    if isinstance(dp, tuple):
        return [(value,) for value in dp]
    raise TypeError(
        f"FlattenData flattens lists and tuples, got a {type(dp).__name__}: choose components with SelectComponent, or "
        "list them with MapData"
    )
