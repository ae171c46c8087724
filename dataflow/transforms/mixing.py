"""Mixing: nodes that yield the datapoints of several flows in one sequence, in random order or by weight."""

from __future__ import annotations

import ast
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from fractions import Fraction
from functools import partial
from itertools import chain, count, pairwise
from numbers import Integral, Real
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import EmptyPass, LengthUnknown
from dataflow.protocol.base import Blocks, DataFlow, RNGDataFlow, T_co, require_flow
from dataflow.protocol.passes import known_length, passes_on
from dataflow.protocol.seeding import Stream, Table, permutation, rng, root_seed
from dataflow.protocol.state import state_of
from dataflow.transforms.arguments import require_flows, require_one_list
from dataflow.transforms.indexing import Indexes, order_by_index, pass_by_index, passes_and_positions, reorder
from dataflow.transforms.joining import SeveralInputs, interleave, take_in_turn

__all__ = ["MixData", "RandomChooseData", "RandomMixData"]

_CHUNK = 1024  # choices drawn at one time
_BLOCK: Final = 1000  # positions of a `MixData` within which the weights hold
_IN_STATE: Final = 32  # items of a list or dict that a saved state compares
_LAST: Final = 2**62  # indexes are int64
_TURN: Final = Fraction(0x9E3779B97F4A7C15, 2**64)  # golden ratio: its multiples modulo 1 are spread most evenly


class RandomMixData(SeveralInputs[T_co], RNGDataFlow[T_co]):
    """All datapoints of several flows, mixed in a new random order every pass; each flow's own order is kept.

    The lengths of the flows are read at every pass. If a flow has fewer datapoints than its length, the others
    continue; if it has more, they come at the end of the pass.

    Args:
        df_lists: The flows, all with a length.
        seed: A root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        LengthUnknown: A flow has no known length.

    Example:
        >>> df = RandomMixData([DataFromList([[1], [2]], shuffle=False), DataFromList([[10], [20]], shuffle=False)])
        >>> mixed = list(df)
        >>> sorted(mixed), [dp for dp in mixed if dp[0] < 10]
        ([[1], [2], [10], [20]], [[1], [2]])
    """

    def __init__(self, df_lists: Sequence[DataFlow[T_co]], *others: DataFlow, seed: int | None = None) -> None:
        super().__init__(df_lists, *others)
        self._df_own_root = root_seed(self, seed)
        self._orders = Table()

    @property
    def _df_indexed(self) -> bool:
        return not any(ds._df_endless for ds in self.df_lists)

    def __len__(self) -> int:
        return sum(map(len, self.df_lists))

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        lengths = tuple(map(len, self.df_lists))
        if self._df_indexed and all(ds._df_addressable for ds in self.df_lists):
            return pass_by_index(self, p, stream)
        order, _ = self._order(lengths, stream, p)
        numbers = chain.from_iterable(order[k : k + _CHUNK].tolist() for k in range(0, len(order), _CHUNK))
        return chain.from_iterable(self._parts(numbers, p, stream))

    def _parts(self, numbers: Iterator[int], p: int, stream: Stream) -> Iterator[Iterator[Any]]:
        """The datapoints of a pass: as many of each flow as its length says, and what it has beyond."""
        sources = list(self._df_passes(p, stream))
        # A flow that has fewer datapoints than its length is left out from there on.
        yield take_in_turn(numbers, sources, self._df_waits, ends=False)
        yield from (rest for ds, rest in zip(self.df_lists, sources, strict=True) if not ds._df_endless)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        lengths = tuple(map(len, self.df_lists))
        return chain.from_iterable(map(partial(self._read, stream, self._df_streams(stream), lengths), blocks))

    def _read(
        self, stream: Stream, streams: Sequence[Stream], lengths: tuple[int, ...], indexes: Indexes
    ) -> Iterator[Any]:
        passes, positions = passes_and_positions(self, indexes, sum(lengths))
        if not len(indexes):
            return iter(())
        numbers, within = reorder(passes, positions, partial(self._order, lengths, stream))
        return interleave(self.df_lists, streams, numbers, passes * np.array(lengths)[numbers] + within)

    def _order(self, lengths: tuple[int, ...], stream: Stream, p: int) -> tuple[NDArray[Any], NDArray[Any]]:
        words = self._df_words(stream, p)
        order: tuple[NDArray[Any], NDArray[Any]] = self._orders.get((words, lengths), partial(_mix, words, lengths))
        return order


def _mix(words: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each position of a pass, the number of a flow and the position in that flow's pass."""
    order = permutation(words, sum(lengths))
    ends = np.cumsum(lengths)
    numbers = np.searchsorted(ends, order, side="right").astype(np.min_scalar_type(len(lengths)))
    within = np.empty_like(order)
    within[np.argsort(numbers, kind="stable")] = np.arange(len(order)) - np.repeat(ends - lengths, lengths)
    return numbers, within


class RandomChooseData(SeveralInputs[T_co], RNGDataFlow[T_co]):
    """Take each datapoint from a randomly chosen flow. A pass ends when the chosen flow has no more.

    The number of datapoints in a pass is not known in advance.

    Args:
        df_lists: The flows, all equally probable; or pairs (flow, probability), where the probabilities sum to 1.
        seed: A root seed for this node's choices, instead of the one of `dataflow.seed`.

    Raises:
        ValueError: The probabilities do not sum to 1, or one is negative; the message holds them.

    Example:
        >>> flow = DataFromList([[1], [2]], shuffle=False)
        >>> list(RandomChooseData([(flow, 1.0), (DataFromList([[3]]), 0.0)]))
        [[1], [2]]
    """

    def __init__(
        self,
        df_lists: Sequence[DataFlow[T_co]] | Sequence[tuple[DataFlow[T_co], float]],
        *others: DataFlow,
        seed: int | None = None,
    ) -> None:
        require_one_list(df_lists, others, self)
        entries = df_lists if isinstance(df_lists, list | tuple) else require_flows(df_lists, self)
        if any(isinstance(entry, tuple | list) for entry in entries):
            self.df_lists, self.probabilities = _split_weights(list(entries))
        else:
            self.df_lists = require_flows(entries, self)
            self.probabilities = [1 / len(self.df_lists)] * len(self.df_lists)
        self._df_own_root = root_seed(self, seed)

    @property
    def _df_summary(self) -> str:
        given = [f"{probability:g}" for probability in self.probabilities[:8]]
        more = ", …" if len(self.probabilities) > len(given) else ""
        return "" if len(set(self.probabilities)) == 1 else f"probabilities {', '.join(given)}{more}"

    @property
    def _df_endless(self) -> bool:
        chosen = zip(self.df_lists, self.probabilities, strict=True)
        return all(ds._df_endless for ds, probability in chosen if probability > 0)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        numbers = chain.from_iterable(self._choices(p, stream))
        return take_in_turn(numbers, self._df_passes(p, stream), self._df_waits)

    def _choices(self, p: int, stream: Stream) -> Iterator[list[int]]:
        """The numbers of the chosen flows, endlessly."""
        ends = np.cumsum(self.probabilities)
        generator = rng(self._df_words(stream, p))
        while True:
            yield np.searchsorted(ends / ends[-1], generator.random(_CHUNK), side="right").tolist()


def _split_weights(entries: list[Any]) -> tuple[list[Any], list[float]]:
    if not all(isinstance(entry, tuple | list) and len(entry) == 2 for entry in entries):
        raise TypeError("RandomChooseData: df_lists holds flows, or pairs (flow, probability), not some of each")
    for first, second in entries:
        if isinstance(second, DataFlow) and not isinstance(first, DataFlow):
            raise TypeError(
                f"RandomChooseData: df_lists holds pairs (flow, probability), got ({first!r}, "
                f"{type(second).__name__}): write ({type(second).__name__}(…), {first!r})"
            )
        if isinstance(second, DataFlow):
            raise TypeError(
                f"RandomChooseData: df_lists is one list of flows or of pairs (flow, probability), got a pair of two "
                f"flows, {type(first).__name__} and {type(second).__name__}: write [a, b] or [(a, 0.7), (b, 0.3)]"
            )
    flows = [require_flow(ds, "RandomChooseData") for ds, _ in entries]
    probabilities = [float(probability) for _, probability in entries]
    if not (min(probabilities) >= 0 and abs(sum(probabilities) - 1) <= 1e-6):  # which a NaN is not
        raise ValueError(
            f"RandomChooseData: probabilities are at least 0 and sum to 1, got {probabilities}, which sum to "
            f"{sum(probabilities):g}"
        )
    return flows, probabilities


class MixData(SeveralInputs[T_co]):
    """An endless mixture of several flows by weight.

    In every block of 1,000 datapoints that begins at a multiple of 1,000, the number of datapoints from a flow differs
    from ``1000 * weight / sum(weights)`` by less than one, and over many blocks the shares converge to the weights. If
    these numbers are whole and there is no `seed`, they hold in any 1,000 consecutive datapoints. Datapoints that a map
    below drops count as present.

    With a schedule the weights change at given positions. Each phase has its weights exactly: its blocks of 1,000 count
    from its beginning, and each flow continues where the phase before has left it. A state of `ResumableData` may be
    loaded under another schedule that is the same up to the position that was saved, such as a longer one, if nodes
    that map, batch, cut or shard are between the two.

    Each flow is read in its own order, pass after pass. If all flows can be addressed, so can the mixture. Its order
    follows from the weights and the seed alone, so it can be sharded, and resumed at any position at once.

    Args:
        dfs: The flows. The same flow may occur twice.
        weights: One number from 0 for each flow; only their ratios matter. A flow of weight 0 is never read. Or a
            schedule: a dict from the position at which a phase begins to its weights, in increasing order from 0.
        seed: None interleaves the flows as evenly as possible, without random numbers. An integer shuffles each block
            of 1,000; it is the root of these random numbers.

    Raises:
        TypeError: A weight is not a number, or a position in a schedule is not an integer.
        ValueError: There are more or fewer weights than flows, a weight is negative or not finite, or all are 0; or a
            schedule does not begin at 0, or its positions do not increase.
        EmptyPass: A pass of a flow is empty.

    Example:
        >>> text, code = DataFromList(["a", "b", "c"], shuffle=False), DataFromList([1, 2], shuffle=False)
        >>> df = MixData([text, code], [3, 1])
        >>> df[:8]
        ['a', 'b', 1, 'c', 'a', 'b', 2, 'c']
        >>> [sum(isinstance(dp, str) for dp in df[begin : begin + 1000]) for begin in (0, 1000)]
        [750, 750]
        >>> MixData([text, code], {0: [1, 0], 2: [0, 1]})[:4]
        ['a', 'b', 1, 2]

    Source:
        ``mix`` of grain and ``interleave_datasets`` of Hugging Face datasets.
    """

    _df_indexed = True
    _df_endless = True
    _df_continues = True

    def __init__(
        self,
        dfs: Sequence[DataFlow[T_co]],
        weights: Sequence[float] | Mapping[int, Sequence[float]],
        seed: int | None = None,
    ) -> None:
        self.df_lists = require_flows(dfs, self, "dfs")
        schedule = _make_schedule(weights, len(self.df_lists))
        phases = {begin: list(given) for begin, given in schedule}
        self.weights: list[float] | dict[int, list[float]] = phases if isinstance(weights, Mapping) else phases[0]
        self._df_own_root = root_seed(self, seed)
        self._df_draws = seed is not None
        self._plans, self._tables = Table(), Table()

    def __len__(self) -> int:
        raise LengthUnknown("a pass of MixData never ends; wrap it in FixedSizeData(df, size) to give it a length")

    def reset_state(self) -> None:
        state_of(self).continued.forget()
        super().reset_state()

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self._df_addressable:
            return order_by_index(self, p, stream)
        return state_of(self).continued.take(stream, partial(self._in_order, stream), self)

    def _in_order(self, stream: Stream) -> Iterator[Any]:
        schedule = self._schedule()
        blocks = (self._order(stream, schedule, start)[0].tolist() for start in _starts(schedule))
        flows = enumerate(zip(self.df_lists, self._df_streams(stream), strict=True))
        passes = (chain(passes_on(ds, below), self._ended(j)) for j, (ds, below) in flows)
        return take_in_turn(chain.from_iterable(blocks), passes, self._df_waits)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        schedule = self._schedule()
        for j, ds in enumerate(self.df_lists):
            if any(weights[j] for _, weights in schedule) and not ds._df_endless and known_length(ds) == 0:
                raise self._empty(j)
        return chain.from_iterable(map(partial(self._read, stream, self._df_streams(stream), schedule), blocks))

    def _read(self, stream: Stream, streams: Sequence[Stream], schedule: Schedule, indexes: Indexes) -> Iterator[Any]:
        if not len(indexes):
            return iter(())
        begins = np.array([begin for begin, _ in schedule])
        in_phase = indexes - begins[np.searchsorted(begins, indexes, side="right") - 1]
        positions = in_phase % _BLOCK
        numbers, below = reorder(indexes - positions, positions, partial(self._order, stream, schedule))
        return interleave(self.df_lists, streams, numbers, below)

    def _df_weights(self) -> tuple[str, ...]:
        return _text(self._schedule()), *super()._df_weights()

    def _schedule(self) -> Schedule:
        return _make_schedule(self.weights, len(self.df_lists))  # which the user may change between two passes

    def _order(self, stream: Stream, schedule: Schedule, start: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """For each position of the block that begins at `start`, the number of a flow and the index in that flow."""
        words = self._df_words(stream, 0) if self._df_draws else None
        plan = self._plans.get((words, schedule), partial(self._make_plan, stream, schedule))
        phase = plan[bisect_right(schedule, start, key=itemgetter(0)) - 1]
        make = partial(self._order_in, stream, phase, (start - phase.begin) // _BLOCK)
        made: tuple[NDArray[Any], NDArray[Any]] = self._tables.get((words, start, schedule), make)
        return made

    def _make_plan(self, stream: Stream, schedule: Schedule) -> list[_Phase]:
        plan: list[_Phase] = []
        before = np.zeros(len(self.df_lists), np.int64)
        ends = [*(begin for begin, _ in schedule[1:]), None]
        for (begin, weights), end in zip(schedule, ends, strict=True):
            phase = _Phase(begin, end, _Shares(weights), before)
            plan.append(phase)
            if end is not None:
                blocks = (end - begin) // _BLOCK
                numbers, _ = self._order_in(stream, phase, blocks)  # cut where the phase ends
                before = before + np.array(phase.shares.before(blocks)) + np.bincount(numbers, minlength=len(before))
        return plan

    def _order_in(self, stream: Stream, phase: _Phase, block: int) -> tuple[NDArray[Any], NDArray[Any]]:
        words = self._df_words(stream, block, purpose=phase.begin) if self._df_draws else None
        numbers, below = _order_of_block(phase.shares, block, words)
        left = None if phase.end is None else phase.end - phase.begin - block * _BLOCK
        return numbers[:left], (below + phase.before[numbers])[:left]

    def _df_agrees(self, parameter: str, saved: str, here: str, num: int | None) -> bool:
        if parameter != "weights" or num is None:
            return False
        try:
            return _phases_before(num, saved) == _phases_before(num, here)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # the state has been edited
            return False

    @property
    def _df_compared(self) -> dict[str, Any]:
        phases = {begin: _in_parts(list(weights)) for begin, weights in self._schedule()}
        return {**super()._df_compared, "weights": _in_parts(phases) if isinstance(self.weights, dict) else phases[0]}

    def _ended(self, j: int) -> Iterator[Any]:
        raise self._empty(j)
        yield

    def _empty(self, j: int) -> EmptyPass:
        return EmptyPass(f"MixData: a pass of input {j} ({type(self.df_lists[j]).__name__}) is empty: check its source")


Schedule = tuple[tuple[int, tuple[float, ...]], ...]
"""The phases of a mixture: the position at which each begins, and its weights."""


class _Phase(NamedTuple):
    """The positions of a `MixData` that have the same weights."""

    begin: int
    end: int | None
    shares: _Shares
    before: NDArray[np.int64]  # datapoints of each flow in the phases before


def _starts(schedule: Schedule) -> Iterator[int]:
    """The position at which each block begins."""
    for (begin, _), (end, _) in pairwise(schedule):
        yield from range(begin, end, _BLOCK)
    yield from count(schedule[-1][0], _BLOCK)


def _make_schedule(weights: Any, num_flows: int) -> Schedule:
    """The phases, checked; one for a list of weights.

    Raises:
        TypeError, ValueError: As `MixData`.
    """
    if not isinstance(weights, Mapping):
        return ((0, tuple(_check_weights(weights, num_flows))),)
    for begin in weights:
        if isinstance(begin, bool) or not isinstance(begin, Integral):
            raise TypeError(
                f"MixData: a schedule is a dict from positions, integers from 0, to weights, got the key {begin!r}. "
                "Write MixData([a, b], {0: [8, 2], 1_000_000: [5, 5]})"
            )
    begins = [int(begin) for begin in weights]
    if not begins or begins[0] != 0:
        raise ValueError(
            f"MixData: a schedule begins at position 0, and the positions of this one are {begins}: give the weights "
            "of the beginning, {0: […], …}"
        )
    if not all(before < after for before, after in pairwise(begins)):
        raise ValueError(f"MixData: the positions of a schedule increase, got {begins}")
    if begins[-1] > _LAST:
        raise ValueError(f"MixData: the positions of a schedule are at most {_LAST}, got {begins[-1]}")
    return tuple(
        (begin, tuple(_check_weights(given, num_flows))) for begin, given in zip(begins, weights.values(), strict=True)
    )


def _text(schedule: Schedule) -> str:
    phases = {begin: list(weights) for begin, weights in schedule}
    return str(phases if len(phases) > 1 else phases[0])


def _in_parts(items: Any) -> Any:
    """A list or dict as nested lists of parts that are short enough for a saved state to compare them."""
    while len(items) > _IN_STATE:
        entries = list(items.items() if isinstance(items, dict) else items)
        parts = (entries[k : k + _IN_STATE] for k in range(0, len(entries), _IN_STATE))
        items = [dict(part) if isinstance(items, dict) else part for part in parts]
    return items


def _phases_before(num: int, text: str) -> list[tuple[int, Any]]:
    """The phases of which the first `num` datapoints have any, from the text of a saved state."""
    found, parts = {}, [ast.literal_eval(text)]
    if not isinstance(parts[0], dict) and "{" not in text:
        parts = [{0: parts[0]}]
    while parts:
        part = parts.pop(0)
        if isinstance(part, dict):
            found.update(part)
        elif isinstance(part, list):
            parts[:0] = part
        else:  # text would be one of texts, without end
            raise ValueError(f"{part!r} is not a phase")
    return [(begin, weights) for begin, weights in found.items() if begin < max(num, 1)]


class _Shares:
    """How many datapoints each flow contributes to each block. Computed in exact integers, for any block at once.

    Flow `j` contributes ``floor(1000 * share)`` datapoints to each block. The sum of the fractions that are left is a
    whole number `k`; so `k` of the flows contribute one more. They are chosen by systematic sampling: the fractions are
    laid end to end, and each flow is chosen whose part holds a point of a grid of width 1. Block `t` moves the grid by
    ``t * _TURN``, so that each flow is chosen as often as its fraction says.

    Args:
        weights: One from 0 for each flow.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(repr(weight)) for weight in weights]  # 0.1 means a tenth
        quotas = [_BLOCK * weight / sum(exact) for weight in exact]
        self._whole = [math.floor(quota) for quota in quotas]
        ends = [Fraction(0)]
        for quota, whole in zip(quotas, self._whole, strict=True):
            ends.append(ends[-1] + quota - whole)
        self._denominator = math.lcm(_TURN.denominator, *(end.denominator for end in ends))
        self._turn = int(_TURN * self._denominator)
        self._ends = [int(end * self._denominator) for end in ends]

    def before(self, block: int) -> list[int]:
        """The number of datapoints of each flow in all blocks before `block`."""
        if not self._ends[-1]:
            return [block * whole for whole in self._whole]
        points = [_sum_of_floors(block, self._denominator, self._turn, end) for end in self._ends]
        extra = (after - before for before, after in pairwise(points))
        return [block * whole + more for whole, more in zip(self._whole, extra, strict=True)]


def _order_of_block(shares: _Shares, block: int, words: tuple[int, ...] | None) -> tuple[NDArray[Any], NDArray[Any]]:
    before, after = np.array(shares.before(block)), np.array(shares.before(block + 1))
    counts = after - before
    numbers = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(_BLOCK) - np.repeat(np.cumsum(counts) - counts, counts)  # of the datapoints of one flow
    if words is None:
        # The datapoints of each flow are at equal distances, the first at half of one.
        order = np.argsort((within + 0.5) / counts[numbers], kind="stable")
        return numbers[order], (before[numbers] + within)[order]
    numbers = numbers[permutation(words, _BLOCK)]
    below = np.empty_like(numbers)
    below[np.argsort(numbers, kind="stable")] = np.repeat(before, counts) + within
    return numbers, below


def _sum_of_floors(n: int, m: int, a: int, b: int) -> int:
    """The sum of ``(a * k + b) // m`` for `k` from 0 to ``n - 1``, in O(log m) steps as in Euclid's algorithm."""
    total = 0
    while n:
        total += (n - 1) * n // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        n, b = divmod(a * n + b, m)  # exchange the roles of the axes: count the grid points below the line by rows
        m, a = a, m
    return total


def _check_weights(weights: Any, num_flows: int) -> list[float]:
    """The weights as floats.

    Raises:
        TypeError: A weight is not a number.
        ValueError: There is not one for each flow, one is negative or not finite, or all are 0.
    """
    if isinstance(weights, DataFlow | str | bytes | Mapping | Set) or not isinstance(weights, Iterable):
        shown = type(weights).__name__ if isinstance(weights, DataFlow) else repr(weights)
        raise TypeError(
            f"MixData: weights must be a list of numbers, one for each flow, got {shown}. "
            "Write MixData([a, b], [0.7, 0.3])"
        )
    given = list(weights)
    for weight in given:
        if isinstance(weight, bool | np.bool_) or not isinstance(weight, Real):
            raise TypeError(f"MixData: weights are numbers from 0, got {weight!r}")
    found = [float(weight) for weight in given]
    if len(found) != num_flows:
        raise ValueError(
            f"MixData: give one weight for each flow; there are {num_flows} flows and {len(found)} weights"
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in found) or not any(found):
        raise ValueError(f"MixData: weights are finite numbers from 0, and one at least is above 0; got {found}")
    return found
