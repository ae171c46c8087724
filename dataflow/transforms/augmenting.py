"""Random maps: functions that draw random numbers from the datapoint's own generator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from itertools import chain, count, tee
from typing import Any

import numpy as np

from dataflow.base import Blocks, DataFlow
from dataflow.datapoint import HOLE, present
from dataflow.failures import Budget
from dataflow.passes import calls_code, known_length
from dataflow.seeding import Rng, Stream, root_seed
from dataflow.state import state_of
from dataflow.transforms.applying import Applied, Place, RequestedBlocks
from dataflow.transforms.indexing import order_by_index
from dataflow.transforms.mapping import MapData

__all__ = ["AppliedWithRng", "RandomMapData"]


class AppliedWithRng(Applied):
    """`func` applied to a shallow copy of each datapoint and a random generator of its own.

    Args:
        args: The parameters of `Applied`; `func` takes a datapoint and a generator.
        rng_at: Returns the generator of an index: `IndexRngs.at`, or `IndexRngs.of` with a pass.
        indexes: The index of each datapoint.
    """

    func: Callable[..., Any]

    def __init__(self, *args: Any, rng_at: Callable[[int], Rng], indexes: Iterator[int]) -> None:
        super().__init__(*args)
        self._rng_at = rng_at
        self._indexes = indexes
        self._index = 0  # of the present datapoint

    def over(self, datapoints: Iterable[Any]) -> Iterator[Any]:
        return super().over(map(self._at_index, datapoints, self._indexes))

    def _at_index(self, dp: Any, index: int) -> Any:
        self._index = index
        return dp

    def step(self, dp: Any, _: None) -> Any:
        if dp is HOLE:
            return HOLE
        try:
            # No variable holds the generator: a reference that is kept would make the next generator more expensive.
            out = self.func(dp[:] if type(dp) is list else copy(dp), self._rng_at(self._index))
        except Exception as error:
            self.explain(error)
            raise
        return self.drop() if out is None else out


calls_code(AppliedWithRng.step, AppliedWithRng.running_call)


class RandomMapData(MapData):
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
        self, ds: DataFlow, func: Callable[..., Any], *, seed: int | None = None, max_failures: Budget | None = None
    ) -> None:
        super().__init__(ds, func, max_failures=max_failures)
        self._df_own_root = root_seed(self, seed)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.ds._df_addressable:
            return order_by_index(self, p, stream)  # datapoints dropped below keep their positions
        if not self.ds._df_endless:
            return self._numbered(p, p, stream)
        return state_of(self).continued.take(stream, partial(self._numbered, 0, p, stream), type(self).__name__)

    def _numbered(self, drawn_as: int, p: int, stream: Stream) -> Iterator[Any]:
        rng_at = partial(self._df_index_rngs(stream, None).of, drawn_as)
        applied = self._applied_with(stream, lambda k: (p, k), rng_at, count())
        return present(applied.over(self.ds._df_run_pass(p, stream)))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        n = None if self.ds._df_endless else len(self.ds)
        # Two views of the same blocks; neither is more than one block ahead of the other.
        here, below = tee(blocks)
        requested = RequestedBlocks(below, partial(known_length, self.ds))
        indexes = chain.from_iterable(map(np.ndarray.tolist, here))
        applied = self._applied_with(stream, requested.place, self._df_index_rngs(stream, n).at, indexes)
        return applied.over(self.ds._df_at(requested.recorded(applied), stream))

    def _applied_with(
        self, stream: Stream, place: Place, rng_at: Callable[[int], Rng], indexes: Iterator[int]
    ) -> Applied:
        owner = type(self).__name__
        applied = AppliedWithRng(owner, self.func, place, self._df_tolerance(), stream, rng_at=rng_at, indexes=indexes)
        applied.on_drop, applied.caller = self._df_note_drop, (self, stream)
        return applied
