"""Function application: call a function for each datapoint, and tolerate or annotate its errors."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import copy
from functools import cached_property, partial
from itertools import repeat
from operator import length_hint
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import MissingExtra, NotReproducible, TimeoutError
from dataflow.protocol.base import DataFlow, T_co
from dataflow.protocol.datapoint import HOLE, component, replaced
from dataflow.protocol.failures import Budget, Tolerance, add_note, failure_of, failure_reporter
from dataflow.protocol.first_calls import CheckedCalls
from dataflow.protocol.passes import RunningCall, calls_code, walk
from dataflow.protocol.seeding import Rng, Stream
from dataflow.protocol.state import Drops, FirstCalls, state_of

__all__ = [
    "Applied",
    "AppliedToComponent",
    "RequestedBlocks",
    "ToleratesFailures",
    "Uncopied",
    "explain",
    "keeps_positions",
    "name_of",
    "shared_rng",
]

Place = Callable[[int], tuple[int, int]]
"""From the number of a datapoint, in order of arrival, to (pass, position in the pass)."""


def name_of(func: object) -> str:
    """The name of a function in messages."""
    return getattr(func, "__qualname__", None) or repr(func)


def explain(error: BaseException, owner: str, func: object, place: tuple[int, int] | None = None) -> None:
    """Add a note to `error`: raised by `func`, for the datapoint at `place`. Call it before ``raise``.

    Raises:
        RuntimeError: `error` is a StopIteration, which would look like the end of the pass and silently cut it short;
            or a TimeoutError of another flow, after which the pass would go on without the datapoint.
    """
    where = "" if place is None else f", for datapoint {place[1]} of pass {place[0]}"
    add_note(error, f"raised by the function of {owner}: {name_of(func)}{where}")
    if isinstance(error, StopIteration | TimeoutError):
        kind = type(error).__name__
        raise RuntimeError(f"the function of {owner}, {name_of(func)}, raised {kind}{where}: {error}") from error


def shared_rng(node: object, func: object, owner: str) -> NotReproducible:
    """The error for ``node.rng``, read in the function `func` of another node."""
    name = type(node).__name__
    return NotReproducible(
        f"{name}.rng was read in {name_of(func)}, which {owner} calls: outside of a pass of {name} its numbers would "
        "follow from the datapoints that this worker has had before, not from this one. Use RandomMapData, or "
        "with_rng=True of a parallel map: they call func(dp, rng) with a generator of the datapoint"
    )


class Applied:
    """`func` applied to a shallow copy of each datapoint of one pass, or of one sequence of indexes.

    A position is computed only after a failure: the datapoints are paired with an iterator whose remaining length gives
    the number of datapoints so far.

    Args:
        owner: Name of the node's class, for messages.
        func: Takes a datapoint and returns one, or None to drop it.
        place: Maps the number of a datapoint among those of `over` to its pass and position.
        tolerance: Records failures, and raises when the budget is used up; None to raise the first failure.
        scope: Identifies this run among others of the same node that have the same pass numbers.

    Example:
        >>> from dataflow.protocol.failures import Tolerance
        >>> from dataflow.transforms.applying import Applied
        >>> tolerance = Tolerance("MapData", 1)
        >>> applied = Applied("MapData", lambda dp: [1 / dp[0]], lambda k: (0, k), tolerance)
        >>> list(applied.over([[1], [0], [2]]))
        [[1.0], HOLE, [0.5]]
        >>> tolerance.failures[0].position, tolerance.failures[0].kind
        (1, 'ZeroDivisionError')
    """

    def __init__(
        self,
        owner: str,
        func: Callable[[Any], Any],
        place: Place,
        tolerance: Tolerance | None = None,
        scope: Hashable = None,
    ) -> None:
        self.owner = owner
        self.func = func
        self._place = place
        self._tolerance = tolerance
        self._scope = scope
        self.on_drop: Callable[[], object] | None = None  # called for each datapoint that is dropped
        self.caller: tuple[DataFlow, Stream] | None = None  # the node that calls the function, and its place
        self.is_counted = False  # whether positions are numbers of arrival
        self._numbered: Iterator[tuple[int, int]] | None = None  # from these to positions, if one below was dropped
        self._running: tuple[int, RunningCall] | None = None  # the call in which a flow has begun last
        self._left: Any = repeat(None, sys.maxsize)
        self.rng_at: Callable[[int], Rng] | None = None
        self._indexes: Iterator[int] | None = None
        self.drawn_as = 0  # index of the present datapoint, if the function draws
        self._drawn: tuple[int, Rng] | None = None
        self._given = func

    @cached_property
    def label(self) -> str:
        """The node, in the records of failures. The text of a function that has no name may be long."""
        return f"{self.owner}({name_of(self._given)})"

    @cached_property
    def _place_of_caller(self) -> tuple[Hashable, ...]:
        """Tells two nodes of one label apart, in the same way in every worker: the branch, and what is below."""
        if self.caller is None:
            return ()
        df, stream = self.caller
        return stream.turns, *df._df_depth[:2]

    def draw(self, rng_at: Callable[[int], Rng], indexes: Iterator[int]) -> None:
        """Give each datapoint a random generator. Call it before `over`.

        Args:
            rng_at: Returns the generator of an index: `IndexRngs.at`, or `IndexRngs.of` with a pass.
            indexes: The index of each datapoint.
        """
        self.rng_at, self._indexes = rng_at, indexes

    def rng(self) -> Rng:
        """The generator of the present datapoint, at its beginning."""
        assert self.rng_at is not None, "draw() was called"
        return self.rng_at(self.drawn_as)

    def rng_of(self, node: object) -> Rng:
        """The generator of the present datapoint, as it was left, for `node` whose method the function is or calls.

        Raises:
            NotReproducible: This is not the map of `node`, or its function gets a generator anyway.
        """
        if self.rng_at is None or not self._belongs_to(node):
            raise shared_rng(node, self.func, self.owner)
        if self._drawn is None or self._drawn[0] != self.begun:
            self._drawn = None  # another generator may be made in its place
            self._drawn = self.begun, self.rng_at(self.drawn_as)
        return self._drawn[1]

    def _belongs_to(self, node: object) -> bool:
        is_caller = self.caller is not None and self.caller[0] is node
        return is_caller or getattr(self._given, "__self__", None) is node  # a copied chain has methods of the original

    def check_first_calls(self, node: DataFlow, *, seeds: bool = False) -> None:
        """Check the first calls of the function in this process."""
        calls = state_of(node).part(FirstCalls)
        if calls.num_left > 0:
            self.func = CheckedCalls(
                self.func, self.owner, calls, partial(setattr, self, "func"), given=self._given, seeds=seeds
            )

    @property
    def begun(self) -> int:
        """Number of datapoints received so far."""
        return sys.maxsize - length_hint(self._left)

    def over(self, datapoints: Iterable[Any]) -> Iterator[Any]:
        """The result of `func` for each of `datapoints`, or `HOLE`. Call it once."""
        if self._indexes is not None:
            datapoints = map(self._at_index, datapoints, self._indexes)
        # In this order: `map` takes from `_left`, which counts, only when a datapoint has come.
        return map(self.chosen_step, datapoints, self._left)

    @property
    def chosen_step(self) -> Callable[[Any, None], Any]:
        """`step`; within the budget, if there is one."""
        return self.step if self._tolerance is None else self._step_tolerantly

    def _at_index(self, dp: Any, index: int) -> Any:
        self.drawn_as = index
        return dp

    def step(self, dp: Any, _: None) -> Any:
        """Apply the function to one datapoint. The second argument is ignored; its iterator counts the datapoints."""
        if dp is HOLE:
            return HOLE
        try:
            out = self.func(dp[:] if type(dp) is list else copy(dp))
        except Exception as error:
            self.explain(error)
            raise
        return self.drop() if out is None else out

    def drop(self) -> Any:
        if self.on_drop is not None:
            self.on_drop()
        return HOLE

    def running_call(self) -> RunningCall | None:
        """The call of the function for the present datapoint, if a flow begins in it."""
        if self.caller is None:
            return None
        k = self.begun
        if self._running is None or self._running[0] != k:
            df, stream = self.caller
            p, position = self._place(k - 1)
            if self.is_counted and _has_dropped_below(df):
                self._numbered = self._numbered or enumerate(_positions(df, p, stream), start=1)
                position = next(position for number, position in self._numbered if number == k)
            self._running = k, RunningCall(df, stream, p, position)
        return self._running[1]

    def explain(self, error: BaseException) -> None:
        """Add a note to `error`, which the function raised for the present datapoint. Call it before ``raise``."""
        explain(error, self.owner, self.func, self._place(self.begun - 1))

    def _step_tolerantly(self, dp: Any, _: None) -> Any:
        if dp is HOLE:
            return HOLE
        tolerance = self._tolerance
        assert tolerance is not None
        tolerance.seen += 1
        try:
            out = self.step(dp, _)
        except (MissingExtra, NotReproducible):  # no failure of this datapoint, but of all
            raise
        except Exception as error:
            p, position = self._place(self.begun - 1)
            failure = failure_of(self.label, position, p, error, self._place_of_caller)
            tolerance.skip(failure, error, in_pass=(self._scope, p))
            out = self.drop()
        if tolerance.seen >= tolerance.due:
            tolerance.report_seen()
        return out


class AppliedToComponent(Applied):
    """`func` applied to one component of each datapoint, which is passed without a copy.

    Args:
        args: The parameters of `Applied`; `func` takes the component and returns a new one, or None to drop the
            datapoint.
        index: Position of the component, or its key in a dict.
    """

    def __init__(self, *args: Any, index: Any) -> None:
        super().__init__(*args)
        self._index = index

    def step(self, dp: Any, _: None) -> Any:
        if dp is HOLE:
            return HOLE
        is_list = type(dp) is list
        try:
            old = dp[self._index] if is_list else component(dp, self._index)
        except (IndexError, TypeError):
            old = component(dp, self._index)  # raises the same error, which lists the components
        try:
            new = self.func(old)
        except Exception as error:
            self.explain(error)
            raise
        if new is None:
            return self.drop()
        if not is_list:
            return replaced(dp, self._index, new)
        out = dp[:]
        out[self._index] = new
        return out


class Uncopied(Applied):
    """`func` applied to what a node itself has gathered, such as the datapoints of a batch: without a copy.

    Args:
        args: The parameters of `Applied`. What `func` returns is never dropped.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.label = self.owner

    def step(self, dp: Any, _: None) -> Any:
        try:
            return self.func(dp)
        except Exception as error:
            self.explain(error)
            raise

    def explain(self, error: BaseException) -> None:
        p, position = self._place(self.begun - 1)
        where = f"raised by {self.owner}, for datapoint {position} of pass {p}"
        add_note(error, where)
        if isinstance(error, StopIteration | TimeoutError):  # as in `explain`
            raise RuntimeError(f"{type(error).__name__} was {where}: {error}") from error


def _has_dropped_below(df: DataFlow) -> bool:
    """Whether datapoints arrive at `df` at other positions than their indexes."""
    inputs = [ds for ds in df._df_inputs if keeps_positions(ds)]
    return any(state_of(node).part(Drops).has_dropped for ds in inputs for node in walk(ds))


def keeps_positions(ds: DataFlow) -> bool:
    """Whether dropped datapoints keep their positions: not where a node counts those that a map below may drop."""
    return ds._df_addressable and not any(
        node._df_counts
        and any(below._df_calls and below._df_inputs for ds in node._df_inputs for below in walk(ds, everywhere=True))
        for node in walk(ds, everywhere=True)
    )


def _positions(df: Any, p: int, stream: Stream) -> Iterator[int]:
    """The positions of the datapoints that arrive at `df` in pass `p`: its input is read again, by index."""
    n = df.ds._df_num_from(stream.begin)
    datapoints = df.ds._df_at([np.arange(p * n, (p + 1) * n)], stream)
    return (position for position, dp in enumerate(datapoints) if dp is not HOLE)


for _step in (Applied.step, AppliedToComponent.step, Uncopied.step):
    calls_code(_step, Applied.running_call)


class ToleratesFailures(DataFlow[T_co]):
    """A node that skips and counts what it cannot make, within the budget `max_failures`."""

    _df_run_settings = frozenset({"max_failures"})
    max_failures: Budget | None = None

    def _df_made(self, func: Callable[[Any], Any], place: Place, scope: Any) -> Uncopied:
        """`func` applied to what this node has gathered, within the budget."""
        applied = Uncopied(type(self).__name__, func, place, self._df_tolerance(), scope)
        applied.caller = self, scope[0] if isinstance(scope, tuple) else scope
        applied.on_drop = self._df_note_skip
        return applied

    def _df_note_drop(self) -> None:
        state_of(self).part(Drops).has_dropped = True

    def _df_note_skip(self) -> None:
        state_of(self).part(Drops).has_skipped = True

    def _df_tolerance(self) -> Tolerance | None:
        """The `Tolerance` that records failures in this worker; None to raise the first failure."""
        above = failure_reporter()
        budget = self.max_failures
        if not (budget if budget is not None or above is None else above.limit):
            return None
        state = state_of(self)
        with state.lock:
            # The next iteration of a flow that runs in the consumer (num_proc=0) may be under another runner.
            if state.tolerance is None or state.tolerance.parent is not above:
                state.tolerance = Tolerance(type(self).__name__, budget, above)
            return state.tolerance


class Receiving(Protocol):
    """What receives datapoints, as `Applied`."""

    @property
    def begun(self) -> int:
        """Number of datapoints received so far, at least of those whose positions are no longer needed."""


class RequestedBlocks:
    """Blocks of indexes whose datapoints are still to come, from which the index of a failed datapoint is looked up.

    Args:
        blocks: Blocks of indexes, in the order of the request.
        length: Datapoints per pass; None where a pass never ends.
    """

    def __init__(self, blocks: Iterable[NDArray[np.int64]], length: Callable[[], int | None]) -> None:
        self._blocks = blocks
        self._length = length
        self._kept: deque[tuple[int, NDArray[np.int64]]] = deque()  # (number of the first datapoint, block)
        self._num_requested = 0

    def recorded(self, applied: Receiving) -> Iterator[NDArray[np.int64]]:
        """Yield the blocks, and keep each until `applied` has received its datapoints."""
        for block in self._blocks:
            while self._kept and self._kept[0][0] + len(self._kept[0][1]) <= applied.begun:
                self._kept.popleft()
            self._kept.append((self._num_requested, block))
            self._num_requested += len(block)
            yield block

    def place(self, k: int) -> tuple[int, int]:
        """Pass and position of the datapoint with number `k`, from 0."""
        for start, block in tuple(self._kept):  # another thread may ask
            if start <= k < start + len(block):
                index, length = int(block[k - start]), self._length()
                return divmod(index, length) if length else (0, index)
        raise AssertionError("an input yielded more datapoints than were requested")
