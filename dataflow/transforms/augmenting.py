"""Random maps: functions that draw random numbers from the datapoint's own generator."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from typing import Any

from dataflow.protocol.base import DataFlow, T_co, T_in
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.failures import Budget
from dataflow.protocol.passes import calls_code
from dataflow.protocol.seeding import Rng, root_seed
from dataflow.transforms.applying import Applied, Place
from dataflow.transforms.mapping import MapData

__all__ = ["AppliedWithRng", "RandomMapData"]


class AppliedWithRng(Applied):
    """`func` applied to a shallow copy of each datapoint and a random generator of its own: that of `draw`."""

    func: Callable[..., Any]
    rng_at: Callable[[int], Rng]

    def step(self, dp: Any, _: None) -> Any:
        if dp is HOLE:
            return HOLE
        try:
            # No variable holds the generator: a reference that is kept would make the next generator more expensive.
            out = self.func(dp[:] if type(dp) is list else copy(dp), self.rng_at(self.drawn_as))
        except Exception as error:
            self.explain(error)
            raise
        return self.drop() if out is None else out


calls_code(AppliedWithRng.step, AppliedWithRng.running_call)


class RandomMapData(MapData[T_co]):
    """Apply a function that draws random numbers: ``func(dp, rng)``.

    The numbers of `rng` follow only from the seed, the pass and the position of the datapoint. They are independent of
    the numbers drawn for other datapoints and of the worker that runs `func`, so a single datapoint can be reproduced.

    The function may keep the generator after it returns; no other datapoint uses it.

    Args:
        ds: The input.
        func: Takes a shallow copy of the datapoint and a `numpy.random.Generator`; returns a datapoint, or None to drop
            it.
        seed: A root seed for this node, instead of the one of `dataflow.seed`.
        max_failures: How many datapoints may fail, as for `MapData`.

    Raises:
        TypeError: `func` cannot be called.
        TooManyFailures: The budget `max_failures` is used up, if there is one; the last error is the cause.

    Example:
        >>> def jitter(dp, rng):
        ...     return [dp[0] + rng.normal()]
        >>> df = RandomMapData(DataFromList([[0.0], [10.0], [20.0]], shuffle=False), jitter, seed=1)
        >>> list(df) == [df[0], df[1], df[2]], list(df) == [df[0], df[1], df[2]]
        (True, False)
    """

    _df_draws = True

    def __init__(
        self,
        ds: DataFlow[T_in],
        func: Callable[[T_in, Rng], T_co | None],
        *,
        seed: int | None = None,
        max_failures: Budget | None = None,
    ) -> None:
        of_map: Callable[..., T_co | None] = func  # MapData calls it by `AppliedWithRng`
        super().__init__(ds, of_map, max_failures=max_failures)
        self._df_own_root = root_seed(self, seed)

    def _df_kernel(self, scope: Hashable, place: Place) -> Applied:
        return AppliedWithRng(type(self).__name__, self.func, place, self._df_tolerance(), scope)
