"""Mixing: nodes that yield the datapoints of several flows in random order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow, RNGDataFlow, require_flow
from dataflow.seeding import Stream, Table, permutation, rng, root_seed
from dataflow.transforms.arguments import require_flows, require_one_list
from dataflow.transforms.indexing import Indexes, pass_by_index, passes_and_positions, reordered
from dataflow.transforms.joining import SeveralInputs, interleaved

__all__ = ["RandomChooseData", "RandomMixData"]

_CHUNK = 1024  # choices drawn at one time


class RandomMixData(SeveralInputs, RNGDataFlow):
    """All datapoints of several flows, mixed in a new random order every pass; each flow's own order is kept.

    The lengths of the flows are read at every pass. If a flow has fewer datapoints than its length, the others
    continue.

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

    def __init__(self, df_lists: Sequence[DataFlow], *others: DataFlow, seed: int | None = None) -> None:
        super().__init__(df_lists, *others)
        self._df_own_root = root_seed(self, seed)
        self._orders = Table()

    @property
    def _df_indexed(self) -> bool:
        return not any(ds._df_endless for ds in self._df_flows)

    def __len__(self) -> int:
        return sum(map(len, self._df_flows))

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        lengths = tuple(map(len, self._df_flows))
        if self._df_indexed and all(ds._df_addressable for ds in self._df_flows):
            return pass_by_index(self, p, stream)
        numbers, _ = self._order(lengths, stream, p)
        passes = [ds._df_run_pass(p, below) for ds, below in zip(self._df_flows, self._df_streams(stream), strict=True)]
        return _mixed(numbers, passes)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        lengths = tuple(map(len, self._df_flows))
        return chain.from_iterable(map(partial(self._read, stream, self._df_streams(stream), lengths), blocks))

    def _read(
        self, stream: Stream, streams: Sequence[Stream], lengths: tuple[int, ...], indexes: Indexes
    ) -> Iterator[Any]:
        passes, positions = passes_and_positions(self, indexes, sum(lengths))
        if not len(indexes):
            return iter(())
        numbers, within = reordered(passes, positions, partial(self._order, lengths, stream))
        return interleaved(self._df_flows, streams, numbers, passes * np.array(lengths)[numbers] + within)

    def _order(self, lengths: tuple[int, ...], stream: Stream, p: int) -> tuple[NDArray[Any], NDArray[Any]]:
        words = self._df_words(stream, p)
        order: tuple[NDArray[Any], NDArray[Any]] = self._orders.get((words, lengths), partial(_mix, words, lengths))
        return order


def _mixed(numbers: NDArray[Any], passes: list[Iterator[Any]]) -> Iterator[Any]:
    for j in chain.from_iterable(numbers[k : k + _CHUNK].tolist() for k in range(0, len(numbers), _CHUNK)):
        try:
            yield next(passes[j])
        except StopIteration:
            pass  # the flow has fewer datapoints than its length


def _mix(words: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each position of a pass, the number of a flow and the position in that flow's pass."""
    order = permutation(words, sum(lengths))
    ends = np.cumsum(lengths)
    numbers = np.searchsorted(ends, order, side="right").astype(np.min_scalar_type(len(lengths)))
    within = np.empty_like(order)
    within[np.argsort(numbers, kind="stable")] = np.arange(len(order)) - np.repeat(ends - lengths, lengths)
    return numbers, within


class RandomChooseData(SeveralInputs, RNGDataFlow):
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
        df_lists: Sequence[DataFlow] | Sequence[tuple[DataFlow, float]],
        *others: DataFlow,
        seed: int | None = None,
    ) -> None:
        require_one_list(df_lists, others, self)
        entries = df_lists if isinstance(df_lists, list | tuple) else require_flows(df_lists, self)
        if any(isinstance(entry, tuple | list) for entry in entries):
            self.df_lists, self.probabilities = _weighted(list(entries))
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
        chosen = zip(self._df_flows, self.probabilities, strict=True)
        return all(ds._df_endless for ds, probability in chosen if probability > 0)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        passes = [ds._df_run_pass(p, below) for ds, below in zip(self._df_flows, self._df_streams(stream), strict=True)]
        ends = np.cumsum(self.probabilities)
        generator = rng(self._df_words(stream, p))
        while True:
            for j in np.searchsorted(ends / ends[-1], generator.random(_CHUNK), side="right").tolist():
                try:
                    yield next(passes[j])
                except StopIteration:
                    return


def _weighted(entries: list[Any]) -> tuple[list[Any], list[float]]:
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
    if min(probabilities) < 0 or abs(sum(probabilities) - 1) > 1e-6:
        raise ValueError(
            f"RandomChooseData: probabilities are at least 0 and sum to 1, got {probabilities}, which sum to "
            f"{sum(probabilities):g}"
        )
    return flows, probabilities
