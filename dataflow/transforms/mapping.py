"""Maps: nodes that apply a function to datapoints or to single components."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from dataflow.base import Blocks, DataFlow, ProxyDataFlow
from dataflow.datapoint import present
from dataflow.failures import Budget
from dataflow.parameters import count_or_fraction, function, hinting
from dataflow.passes import known_length
from dataflow.seeding import Stream
from dataflow.transforms.applying import Applied, AppliedToComponent, Place, RequestedBlocks, ToleratesFailures
from dataflow.transforms.indexing import order_by_index

__all__ = ["MapData", "MapDataComponent"]


class MapData(ToleratesFailures, ProxyDataFlow):
    """Apply a function to every datapoint.

    The function gets a shallow copy: it may assign components, but changing an array in place changes the source as
    well. ``len`` stays the length of the input, even if the function drops datapoints.

    If the function raises, the pass ends with that exception, with a note that names the datapoint; or, with
    `max_failures`, the datapoint is dropped, logged, and listed in `failures`.

    Args:
        ds: The input.
        func: Takes a datapoint and returns one; returns None to drop it.
        max_failures: How many datapoints of one pass may fail; or, as a number between 0 and 1, the fraction of all
            datapoints seen, judged once there are 100. In a runner each worker counts for itself. None means the budget
            of the runner above, or 0 without one.

    Raises:
        TypeError: `func` cannot be called.
        TooManyFailures: The budget `max_failures` is used up, if there is one; the last error is the cause.

    Example:
        >>> df = MapData(DataFromList([[1], [2], [3]], shuffle=False), lambda dp: [dp[0] * 10] if dp[0] != 2 else None)
        >>> list(df), df[2]
        ([[10], [30]], [30])
        >>> df[1]
        Traceback (most recent call last):
        dataflow.errors.Dropped: the datapoint at index 1 of MapData was dropped: a map returned None

        >>> df = MapData(DataFromList([[1], [0], [5]], shuffle=False), lambda dp: [10 // dp[0]], max_failures=1)
        >>> list(df), [str(failure) for failure in df.failures]
        ([[10], [2]], ['MapData(<lambda>): datapoint 1 of pass 0: ZeroDivisionError: ...'])
    """

    _df_calls = True

    @hinting
    def __init__(self, ds: DataFlow, func: Callable[[Any], Any], *, max_failures: Budget | None = None) -> None:
        super().__init__(ds)
        self.func = function(self, "func", func, "takes the datapoint or component, and returns a new one")
        self.max_failures = count_or_fraction(self, "max_failures", max_failures)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.ds._df_addressable and self.ds._df_endless:
            return order_by_index(self, p, stream)
        applied = self._df_kernel(stream, lambda k: (p, k))
        applied.on_drop, applied.caller, applied.is_counted = self._df_note_drop, (self, stream), True
        return present(applied.over(self.ds._df_run_pass(p, stream)))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        requested = RequestedBlocks(blocks, partial(known_length, self.ds))
        # Separate from the budget of a pass: if a map below drops datapoints, positions in a pass differ from indexes.
        applied = self._df_kernel((stream, RequestedBlocks), requested.place)
        applied.on_drop, applied.caller = self._df_note_drop, (self, stream)
        return applied.over(self.ds._df_at(requested.recorded(applied), stream))

    def _df_kernel(self, scope: Hashable, place: Place) -> Applied:
        """The function, for one pass or for one sequence of indexes."""
        return Applied(type(self).__name__, self.func, place, self._df_tolerance(), scope)


class MapDataComponent(MapData):
    """Apply a function to one component of every datapoint.

    The function gets the component itself, not a copy. A list or tuple becomes a list, a dict stays a dict.

    Args:
        ds: The input.
        func: Takes the component and returns a new one; returns None to drop the datapoint.
        index: Position of the component, or its key in a dict.
        max_failures: How many datapoints may fail, as for `MapData`.

    Example:
        >>> list(MapDataComponent(DataFromList([[1, "a"], [2, "b"]], shuffle=False), lambda k: k * k))
        [[1, 'a'], [4, 'b']]
    """

    @hinting
    def __init__(
        self, ds: DataFlow, func: Callable[[Any], Any], index: Any = 0, *, max_failures: Budget | None = None
    ) -> None:
        super().__init__(ds, func, max_failures=max_failures)
        self.index = index

    def _df_kernel(self, scope: Hashable, place: Place) -> Applied:
        return AppliedToComponent(type(self).__name__, self.func, place, self._df_tolerance(), scope, index=self.index)
