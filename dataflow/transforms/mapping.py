"""Maps: nodes that apply a function to datapoints or to single components."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import chain, count, tee
from typing import Any

import numpy as np

from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co, T_in
from dataflow.protocol.datapoint import present
from dataflow.protocol.failures import Budget
from dataflow.protocol.generators import SeededGlobals
from dataflow.protocol.parameters import count_or_fraction, flag, function
from dataflow.protocol.passes import in_worker, known_length
from dataflow.protocol.seeding import Rng, Stream
from dataflow.protocol.state import state_of
from dataflow.transforms.applying import Applied, AppliedToComponent, Place, RequestedBlocks, ToleratesFailures
from dataflow.transforms.indexing import order_by_index

__all__ = ["MapData", "MapDataComponent"]


class MapData(ToleratesFailures[T_co], ProxyDataFlow[T_co]):
    """Apply a function to every datapoint.

    The function gets a shallow copy: it may assign components, but changing an array in place changes the source as
    well. ``len`` stays the length of the input, even if the function drops datapoints.

    If the function raises, the pass ends with that exception, with a note that names the datapoint; or, with
    `max_failures`, the datapoint is dropped, logged, and listed in `failures`.

    Args:
        ds: The input.
        func: Takes a datapoint and returns one; returns None to drop it.
        max_failures: How many datapoints of one pass may fail; or, as a number between 0 and 1, the fraction of all
            datapoints seen, or of 100 while there are fewer. In a runner each worker counts for itself. None means the
            budget of the runner above, or 0 without one.
        seed_globals: Before each call, seed `random`, `np.random` and, if it is imported, torch (on the CPU) with
            numbers that follow from the seed, the pass and the position of the datapoint, as for `RandomMapData`. Code
            that draws from them is then exact in every run, with any number of worker processes; threads would share
            them. In this process, the generators are left as they were.

    Raises:
        TypeError: `func` cannot be called, or it is a coroutine or generator function; or a call returns an awaitable
            or a generator.
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
    _df_takes = 1
    seed_globals: bool = False

    def __init__(
        self,
        ds: DataFlow[T_in],
        func: Callable[[T_in], T_co | None],
        *,
        max_failures: Budget | None = None,
        seed_globals: bool = False,
    ) -> None:
        super().__init__(ds)
        self.func = function(self, "func", func, "takes the datapoint or component, and returns a new one")
        self.max_failures = count_or_fraction(self, "max_failures", max_failures)
        # An attribute only if it differs from the default: states and caches saved before there was one stay valid.
        if flag(self, "seed_globals", seed_globals):
            self.seed_globals = self._df_draws = True

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.ds._df_addressable and (self._df_draws or self.ds._df_endless):
            return order_by_index(self, p, stream)  # datapoints dropped below keep their positions
        if not self._df_draws:
            applied = self._apply(stream, stream, lambda k: (p, k))
            applied.is_counted = True
            return present(applied.over(self.ds._df_run_pass(p, stream)))
        if not self.ds._df_endless:
            return self._number(p, p, stream)
        return state_of(self).continued.take(stream, partial(self._number, 0, p, stream), self)

    def _number(self, drawn_as: int, p: int, stream: Stream) -> Iterator[Any]:
        rngs = self._df_index_rngs(stream, None)
        applied = self._apply(stream, stream, lambda k: (p, k), partial(rngs.of, drawn_as), count())
        return present(applied.over(self.ds._df_run_pass(p, stream)))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        rng_at = indexes = None
        if self._df_draws:
            n = None if self.ds._df_endless else self.ds._df_num_from(stream.begin)
            rng_at = self._df_index_rngs(stream, n).at
            # Two views of the same blocks; neither is more than one block ahead of the other.
            blocks, here = tee(blocks)
            indexes = chain.from_iterable(map(np.ndarray.tolist, here))
        requested = RequestedBlocks(blocks, partial(known_length, self.ds, stream.begin))
        # Separate from the budget of a pass: if a map below drops datapoints, positions in a pass differ from indexes.
        scope = stream if self._df_draws else (stream, RequestedBlocks)
        applied = self._apply(stream, scope, requested.place, rng_at, indexes)
        return applied.over(self.ds._df_at(requested.recorded(applied), stream))

    def _apply(
        self,
        stream: Stream,
        scope: Hashable,
        place: Place,
        rng_at: Callable[[int], Rng] | None = None,
        indexes: Iterator[int] | None = None,
    ) -> Applied:
        applied = self._df_kernel(scope, place)
        applied.on_drop, applied.caller = self._df_note_drop, (self, stream)
        if rng_at is not None and indexes is not None:
            applied.draw(rng_at, indexes)
        if self.seed_globals:
            applied.func = SeededGlobals(applied.func, applied.rng, restores=not in_worker())
        applied.check_first_calls(self, seeds=self.seed_globals)
        return applied

    def _df_kernel(self, scope: Hashable, place: Place) -> Applied:
        """The function, for one pass or for one sequence of indexes."""
        return Applied(type(self).__name__, self.func, place, self._df_tolerance(), scope)


class MapDataComponent(MapData[T_co]):
    """Apply a function to one component of every datapoint.

    The function gets the component itself, not a copy. A list or tuple becomes a list, a dict stays a dict.

    Args:
        ds: The input.
        func: Takes the component and returns a new one; returns None to drop the datapoint.
        index: Position of the component, or its key in a dict.
        max_failures: How many datapoints may fail, as for `MapData`.
        seed_globals: Seed the global random generators for each datapoint, as for `MapData`.

    Example:
        >>> list(MapDataComponent(DataFromList([[1, "a"], [2, "b"]], shuffle=False), lambda k: k * k))
        [[1, 'a'], [4, 'b']]
    """

    def __init__(
        self,
        ds: DataFlow,
        func: Callable[[Any], Any],
        index: Any = 0,
        *,
        max_failures: Budget | None = None,
        seed_globals: bool = False,
    ) -> None:
        super().__init__(ds, func, max_failures=max_failures, seed_globals=seed_globals)
        self.index = index

    def _df_kernel(self, scope: Hashable, place: Place) -> Applied:
        return AppliedToComponent(type(self).__name__, self.func, place, self._df_tolerance(), scope, index=self.index)
