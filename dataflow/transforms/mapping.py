"""One datapoint in, one out, or none: functions applied to datapoints and to components."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from dataflow.base import Blocks, DataFlow, ProxyDataFlow
from dataflow.datapoint import HOLE, component, present, replaced
from dataflow.seeding import Stream

__all__ = ["MapData", "MapDataComponent"]


class MapData(ProxyDataFlow):
    """Apply a function to every datapoint.

    The function gets a shallow copy: it may assign components, but an array that it changes in place is changed in the
    source, too. ``len`` stays the length of the input, also if the function drops datapoints.

    Args:
        ds: The input.
        func: Takes a datapoint and returns one; returns None to drop it.

    Raises:
        TypeError: `func` cannot be called.

    Example:
        >>> df = MapData(DataFromList([[1], [2], [3]], shuffle=False), lambda dp: [dp[0] * 10] if dp[0] != 2 else None)
        >>> list(df), df[2]
        ([[10], [30]], [30])
        >>> df[1]
        Traceback (most recent call last):
        dataflow.errors.Dropped: the datapoint at index 1 of MapData was dropped: a map returned None
    """

    def __init__(self, ds: DataFlow, func: Callable[[Any], Any]) -> None:
        super().__init__(ds)
        if not callable(func):
            raise TypeError(f"{type(self).__name__} expects a function, got {type(func).__name__}")
        self.func = func

    def run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return present(map(self._map, self.ds.run_pass(p, stream)))

    def at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return map(self._map, self.ds.at(blocks, stream))

    def _map(self, dp: Any) -> Any:
        if dp is HOLE:
            return HOLE
        try:
            out = self.func(dp[:] if type(dp) is list else copy(dp))
        except Exception as error:
            self._note(error)
            raise
        return HOLE if out is None else out

    def _note(self, error: Exception) -> None:
        name = getattr(self.func, "__qualname__", None) or repr(self.func)
        error.add_note(f"raised by the function of {type(self).__name__}: {name}")
        if isinstance(error, StopIteration):
            # It would look like the end of the pass, and cut it short without a word.
            raise RuntimeError(f"the function of {type(self).__name__}, {name}, raised StopIteration") from error


class MapDataComponent(MapData):
    """Apply a function to one component of every datapoint.

    The component itself is handed over, not a copy. A list or tuple becomes a list, a dict stays a dict.

    Args:
        ds: The input.
        func: Takes the component and returns a new one; returns None to drop the datapoint.
        index: Position of the component, or its key in a dict.

    Example:
        >>> list(MapDataComponent(DataFromList([[1, "a"], [2, "b"]], shuffle=False), lambda k: k * k))
        [[1, 'a'], [4, 'b']]
    """

    def __init__(self, ds: DataFlow, func: Callable[[Any], Any], index: Any = 0) -> None:
        super().__init__(ds, func)
        self.index = index

    def _map(self, dp: Any) -> Any:
        if dp is HOLE:
            return HOLE
        old = component(dp, self.index)
        try:
            new = self.func(old)
        except Exception as error:
            self._note(error)
            raise
        return HOLE if new is None else replaced(dp, self.index, new)
