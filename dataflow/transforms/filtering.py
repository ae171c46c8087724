"""Filter: a node that keeps the datapoints for which a predicate is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dataflow.base import DataFlow, ProxyDataFlow
from dataflow.errors import LengthUnknown
from dataflow.parameters import function
from dataflow.seeding import Stream
from dataflow.transforms.applying import explain

__all__ = ["FilterData"]


class FilterData(ProxyDataFlow):
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

    def __init__(self, ds: DataFlow, predicate: Callable[[Any], Any]) -> None:
        super().__init__(ds)
        self.predicate = function(self, "predicate", predicate, "is called with a datapoint; True keeps it")

    @property
    def _df_indexed(self) -> bool:
        return False

    def __len__(self) -> int:
        raise LengthUnknown("a pass of FilterData has no known length: it depends on each datapoint")

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return filter(self._is_wanted, self.ds._df_run_pass(p, stream))

    def _is_wanted(self, dp: Any) -> Any:
        try:
            return self.predicate(dp)
        except Exception as error:
            explain(error, "FilterData", self.predicate)
            raise
