"""Joining: nodes that combine several flows, side by side or one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, cycle, islice, starmap
from typing import Any

import numpy as np

from dataflow.errors import ShapeMismatch, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, T_co
from dataflow.protocol.passes import known_length
from dataflow.protocol.pauses import limit, paused, pausing, side_by_side
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.transforms.arguments import require_end, require_flows, require_one_list
from dataflow.transforms.grouping import NextGroup, ReusedMemory, may_reuse_memory
from dataflow.transforms.indexing import Indexes, none_dropped, pass_from, passes_and_positions

__all__ = ["ConcatData", "JoinData", "SeveralInputs", "interleave", "take_in_turn"]


class SeveralInputs(DataFlow[T_co]):
    """A node with several inputs. A flow may be given more than once, and has a separate random stream each time.

    Args:
        df_lists: The inputs in order, at least one. An input that is given twice is listed twice.
    """

    def __init__(self, df_lists: Iterable[DataFlow], *others: DataFlow) -> None:
        require_one_list(df_lists, others, self)
        self.df_lists: list[Any] = require_flows(df_lists, self)

    @property
    def _df_inputs(self) -> Sequence[DataFlow]:
        return super()._df_inputs if self._df_user_written else self.df_lists

    def _df_streams(self, stream: Stream) -> list[Stream]:
        """The stream of every input."""
        level = self._df_depth.level
        return [stream.turn(level, j) for j in range(len(self.df_lists))]

    def _df_passes(self, p: int, stream: Stream) -> Iterator[Iterator[Any]]:
        """Pass `p` of every input, begun when it is requested."""
        for ds, below in zip(self.df_lists, self._df_streams(stream), strict=True):
            yield ds._df_run_pass(p, below)


def interleave(
    flows: Sequence[DataFlow], streams: Sequence[Stream], numbers: Indexes, indexes: Indexes
) -> Iterator[Any]:
    """For each `k`, the datapoint at ``indexes[k]`` of the flow ``numbers[k]``.

    Raises:
        RuntimeError: A flow yields fewer than it was asked for; names its class.
    """
    parts = (
        chain(ds._df_at([indexes[numbers == j]], stream), _too_few(ds))
        for j, (ds, stream) in enumerate(zip(flows, streams, strict=True))
    )
    return take_in_turn(numbers.tolist(), parts, any(ds._df_waits for ds in flows))


def _too_few(ds: DataFlow) -> Iterator[Any]:
    raise RuntimeError(f"{type(ds).__name__} has yielded fewer datapoints than it was asked for by index")
    yield


def take_in_turn(
    numbers: Iterable[int], sources: Iterable[Iterator[Any]], waits: bool, *, ends: bool = True
) -> Iterator[Any]:
    """For each number, the next datapoint of that source. The sources are begun at the first step.

    A source that has no more ends all; without `ends`, the others continue.
    """
    return pausing(_take_in_turn(iter(numbers), sources, waits, ends), waits)


def _take_in_turn(numbers: Iterator[int], sources: Iterable[Iterator[Any]], waits: bool, ends: bool) -> Iterator[Any]:
    begun, left = list(sources), numbers
    while True:
        try:
            for j in left:
                yield next(begun[j])
            return
        except StopIteration:
            if ends:
                return
            left = numbers
            continue
        except TimeoutError as error:
            # The number whose source was late is taken again first.
            left, pause = chain([j], numbers), paused(error, waits)
        yield pause


class JoinData(SeveralInputs[T_co]):
    """Datapoints of several flows side by side: the first with the first, the second with the second, and so on.

    Lists and tuples are concatenated to a list, dicts are merged. A pass ends with the shortest input. Further
    datapoints of the other inputs are left out; if the lengths are known, they are not read.

    Args:
        df_lists: The flows. The same flow may occur twice.

    Raises:
        ShapeMismatch: Two dicts have a key in common; the message holds it.
        TypeError: One datapoint is a list and another one a dict.
        ValueError: An input writes into the memory of a datapoint of another one, as maps with one buffer do. Looked
            for in the first datapoints.

    Example:
        >>> images = DataFromList([["a.png"], ["b.png"]], shuffle=False)
        >>> labels = DataFromList([[7], [9], [5]], shuffle=False)
        >>> list(JoinData([images, labels]))
        [['a.png', 7], ['b.png', 9]]
    """

    _df_counts = True
    _df_indexed = True

    @property
    def _df_endless(self) -> bool:
        return all(ds._df_endless for ds in self.df_lists)

    def __len__(self) -> int:
        ending = [ds for ds in self.df_lists if not ds._df_endless]
        return min(map(len, ending or self.df_lists))

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        n = self._length()
        passes = [pass_from(ds, p, n, below) for ds, below in zip(self.df_lists, self._df_streams(stream), strict=True)]
        rows = self._joined(passes)
        if all(known_length(ds) == n and not ds._df_endless for ds in self.df_lists):
            return rows  # each input ends by itself, also where one has more datapoints than its length
        return limit(rows, True, n) if self._df_waits else islice(rows, n)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return chain.from_iterable(map(partial(self._read, self._df_streams(stream), self._length()), blocks))

    def _read(self, streams: Sequence[Stream], n: int | None, indexes: Indexes) -> Iterator[Any]:
        columns = [
            none_dropped(ds._df_at([self._below(ds, indexes, n)], stream), self)
            for ds, stream in zip(self.df_lists, streams, strict=True)
        ]
        return self._joined(columns)

    def _joined(self, inputs: Sequence[Iterator[Any]]) -> Iterator[Any]:
        """What `inputs` have at the same position, until one has no more."""
        waits, left = self._df_waits, state_of(self).part(_LeftToCompare)
        rest = starmap(_join, side_by_side(inputs, True)) if waits else map(_join, *inputs)
        if left.num <= 0 or len(inputs) == 1 or not any(map(may_reuse_memory, self.df_lists)):
            return rest
        first = _FirstJoined(inputs, left, waits)
        return chain(first, _RestJoined(first, rest))

    def _below(self, ds: DataFlow, indexes: Indexes, n: int | None) -> Indexes:
        if n is None:
            return indexes
        passes, positions = passes_and_positions(self, indexes, n)
        below: Indexes = passes * (n if ds._df_endless else len(ds)) + positions
        return below

    def _length(self) -> int | None:
        """Number of datapoints that a pass takes from every input; None if unknown."""
        return None if self._df_endless else known_length(self)


class _LeftToCompare:
    """How many datapoints of a join, and of what size, are still compared with what they held when they came."""

    num = 64
    nbytes = 1 << 24


class _FirstJoined(Iterator[Any]):
    """The first datapoints of a join, compared when all inputs have yielded. No generator: it goes on after a timeout.

    Args:
        inputs: The inputs.
        left: How many are compared.
        waits: Whether the inputs may raise `TimeoutError`, and continue with the next step.

    Raises:
        ValueError: While iterating: the datapoint of an input has changed before that of another one came.
    """

    def __init__(self, inputs: Sequence[Iterator[Any]], left: _LeftToCompare, waits: bool) -> None:
        self._num_inputs = len(inputs)
        self._left = left
        self._memory = ReusedMemory()
        self._memory.is_reused, self._memory.compares_all = False, True
        self._rows = NextGroup(take_in_turn(cycle(range(len(inputs))), inputs, waits), self._memory)
        self.has_ended = False  # an input has no more

    def __next__(self) -> Any:
        if self._left.num <= 0:
            raise StopIteration
        try:
            row = self._rows.take(self._num_inputs)
        except ValueError as error:
            if not self._memory.is_reused:  # it is an error of an input
                raise
            raise ValueError(
                "JoinData: the datapoint of one input has changed while that of another one was made: they use the "
                "same memory, such as one buffer that both functions fill, so both would hold the same values. Yield, "
                "or return, copies (array.copy())"
            ) from error
        if len(row) < self._num_inputs:
            self.has_ended = True
            raise StopIteration
        joined = _join(*row)
        self._left.num -= 1
        components = joined.values() if isinstance(joined, dict) else joined
        self._left.nbytes -= sum(getattr(item, "nbytes", 0) for item in components)
        if self._left.nbytes < 0:
            self._left.num = 0
        return joined


class _RestJoined(Iterable[Any]):
    """The datapoints of a join after those that are compared; none if an input has ended among them.

    No generator: two threads that step a `chain` over one crash it.
    """

    def __init__(self, first: _FirstJoined, rest: Iterator[Any]) -> None:
        self._first = first
        self._rest = rest

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if self._first.has_ended else self._rest


class ConcatData(SeveralInputs[T_co]):
    """One pass of every flow, one after the other.

    Args:
        df_lists: The flows. The same flow may occur twice. A pass of the last may be endless.

    Raises:
        ValueError: A pass of a flow before the last never ends, so the following ones would not be reached.

    Example:
        >>> df = ConcatData([DataFromList([[1], [2]], shuffle=False), DataFromList([[3]])])
        >>> list(df), df[2], df[5]
        ([[1], [2], [3]], [3], [3])
    """

    def __init__(self, df_lists: Iterable[DataFlow[T_co]], *others: DataFlow) -> None:
        super().__init__(df_lists, *others)
        for ds in self.df_lists[:-1]:
            require_end(ds, "ConcatData", "reads one input after the other")

    @property
    def _df_indexed(self) -> bool:
        return not self._df_endless

    @property
    def _df_endless(self) -> bool:
        return any(ds._df_endless for ds in self.df_lists)

    def __len__(self) -> int:
        return sum(map(len, self.df_lists))

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return chain.from_iterable(self._df_passes(p, stream))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        lengths = np.array([len(ds) for ds in self.df_lists], dtype=np.int64)
        return chain.from_iterable(map(partial(self._read, self._df_streams(stream), lengths), blocks))

    def _read(self, streams: Sequence[Stream], lengths: Indexes, indexes: Indexes) -> Iterator[Any]:
        ends = np.cumsum(lengths)
        passes, positions = passes_and_positions(self, indexes, int(ends[-1]))
        numbers = np.searchsorted(ends, positions, side="right")
        within = positions - (ends - lengths)[numbers]
        return interleave(self.df_lists, streams, numbers, passes * lengths[numbers] + within)


def _join(*datapoints: Any) -> Any:
    joined: list[Any] = []
    for dp in datapoints:
        if type(dp) is not list and not isinstance(dp, list | tuple):
            break
        joined += dp
    else:
        return joined
    if not all(isinstance(dp, dict) for dp in datapoints):
        kinds = ", ".join(type(dp).__name__ for dp in datapoints)
        raise TypeError(
            f"JoinData joins lists and tuples, or dicts, got {kinds}: convert them to one type with MapData"
        )
    merged: dict[Any, Any] = {}
    for dp in datapoints:
        merged.update(dp)
    if len(merged) < sum(map(len, datapoints)):
        keys = list(chain.from_iterable(datapoints))
        twice = sorted({repr(key) for key in keys if keys.count(key) > 1})
        raise ShapeMismatch(
            f"JoinData: more than one datapoint has the key {', '.join(twice)}, and one value would hide the other. "
            "Rename it with MapData, or leave it out with SelectComponent"
        )
    return merged
