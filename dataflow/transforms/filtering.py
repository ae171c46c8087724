"""Filter: a node that keeps the datapoints for which a predicate is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dataflow.errors import LengthUnknown
from dataflow.protocol.base import DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.first_calls import CheckedCalls
from dataflow.protocol.parameters import function
from dataflow.protocol.passes import RunningPass, calls_code
from dataflow.protocol.seeding import Rng, Stream
from dataflow.protocol.state import FirstCalls, state_of
from dataflow.transforms.applying import explain, shared_rng

__all__ = ["FilterData"]


class FilterData(ProxyDataFlow[T_co]):
    """Keep the datapoints for which a function returns a true value.

    The number of datapoints in a pass is unknown, so it has no length and cannot be addressed. If you need either,
    filter the list before `DataFromList`, or return None from the function of `MapData`, which drops a datapoint and
    keeps the positions of all others.

    Args:
        ds: The input.
        predicate: Takes the datapoint itself, not a copy.

    Raises:
        TypeError: `predicate` cannot be called.

    Example:
        >>> list(FilterData(DataFromList([[k] for k in range(5)], shuffle=False), lambda dp: dp[0] % 2))
        [[1], [3]]
    """

    def __init__(self, ds: DataFlow[T_co], predicate: Callable[[T_co], Any]) -> None:
        super().__init__(ds)
        self.predicate = function(self, "predicate", predicate, "is called with a datapoint; True keeps it")

    _df_calls = True
    _df_indexed = False

    def __len__(self) -> int:
        raise LengthUnknown("a pass of FilterData has no known length: it depends on each datapoint")

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return filter(_Predicate(self, p, stream).is_true, self.ds._df_run_pass(p, stream))


class _Predicate:
    """The predicate of a node in one pass."""

    def __init__(self, df: FilterData, p: int, stream: Stream) -> None:
        self._predicate = df.predicate
        calls = state_of(df).part(FirstCalls)
        if calls.num_left > 0:
            self._predicate = CheckedCalls(df.predicate, "FilterData", calls, partial(setattr, self, "_predicate"))
        self._pass = df, p, stream
        self._running: RunningPass | None = None  # if a flow has begun in the predicate

    def is_true(self, dp: Any) -> Any:
        try:
            return self._predicate(dp)
        except Exception as error:
            explain(error, "FilterData", self._predicate)
            raise

    def rng_of(self, node: object) -> Rng:
        """Not supported: see `Applied.rng_of`."""
        raise shared_rng(node, self._predicate, "FilterData")

    def running_pass(self) -> RunningPass:
        self._running = self._running or RunningPass(*self._pass)
        return self._running


calls_code(_Predicate.is_true, _Predicate.running_pass)
