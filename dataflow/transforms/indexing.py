"""Index arithmetic of the nodes that read their input by index.

Index `i` of a flow of `n` datapoints is position ``i % n`` of pass ``i // n``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import Dropped, TimeoutError
from dataflow.protocol.base import DataFlow
from dataflow.protocol.datapoint import HOLE, present
from dataflow.protocol.passes import picked_here, walk, without_order
from dataflow.protocol.pauses import paused, pausing
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import Drops, state_of

__all__ = [
    "Indexes",
    "consecutive",
    "none_dropped",
    "onwards",
    "order_by_index",
    "pass_by_index",
    "pass_from",
    "pass_in_order",
    "passes_and_positions",
    "reorder",
]

Indexes = NDArray[np.int64]

_BLOCK = 256  # indexes per block; smaller blocks cost more per datapoint, larger ones are no faster


def consecutive(begin: int, end: int) -> Iterator[Indexes]:
    """Blocks of the indexes from `begin` to before `end`."""
    for first in range(begin, end, _BLOCK):
        yield np.arange(first, min(first + _BLOCK, end), dtype=np.int64)


def onwards(begin: int, num_wanted: int = _BLOCK) -> Iterator[Indexes]:
    """Blocks of the indexes from `begin`, endlessly; one ends at `num_wanted`, enough if nothing is dropped."""
    while True:
        yield from consecutive(begin, begin + num_wanted)
        begin += num_wanted


def pass_by_index(df: DataFlow, p: int, stream: Stream) -> Iterator[Any]:
    """Pass `p` of an addressable flow, read by index."""
    state_of(df).continued.require_same_weights(stream, df)
    n = df._df_num_from(stream.begin)
    return present(df._df_at(consecutive(p * n, (p + 1) * n), stream))


def order_by_index(df: DataFlow, p: int, stream: Stream) -> Iterator[Any]:
    """Pass `p` of an addressable node, read by index; an endless one continues where its last pass stopped."""
    if not df._df_endless:
        return pass_by_index(df, p, stream)
    return state_of(df).continued.take(stream, partial(_endless, df, stream), df)


def pass_in_order(df: DataFlow, stream: Stream, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The pass that `begin` begins, of a node that has read more than it has yielded.

    An endless one continues where the last pass stopped, so that what was read is not lost when a loop is left.
    """
    return state_of(df).continued.take(stream, begin, df) if df._df_endless else begin()


def _endless(df: DataFlow, stream: Stream) -> Iterator[Any]:
    return present(df._df_at(onwards(0), stream))


def pass_from(df: DataFlow, p: int, num_taken: int | None, stream: Stream) -> Iterator[Any]:
    """Pass `p` of an input from which each pass takes `num_taken` datapoints; None if that is unknown.

    If the input is endless and addressable, each pass continues after the last one. One whose pass has no order, and
    which can be addressed, is read by index: what is side by side belongs together.
    """
    if num_taken is not None and df._df_endless and df._df_addressable:
        state_of(df).continued.require_same_weights(stream, df)
        return present(df._df_at(onwards(p * num_taken, num_taken), stream))
    if df._df_addressable and not df._df_endless and without_order(df) is not None:
        return pass_by_index(df, p, stream)
    return df._df_run_pass(p, stream)


def passes_and_positions(df: DataFlow, indexes: Indexes, n: int) -> tuple[Indexes, Indexes]:
    """The pass and the position of each index of `df`, which has `n` datapoints per pass.

    Raises:
        IndexError: `df` is empty.
    """
    if n == 0 and len(indexes):
        raise IndexError(f"{type(df).__name__} is empty: there is no datapoint at index {indexes[0]}")
    passes, positions = np.divmod(indexes, max(n, 1))
    return passes, positions


def reorder(
    passes: Indexes, positions: Indexes, tables: Callable[[int], tuple[NDArray[Any], ...]]
) -> list[NDArray[np.int64]]:
    """The entries of each pass's tables at the positions: one array for each table."""
    numbers = sorted({*passes.tolist()})
    if len(numbers) == 1:  # nearly always
        return [table[positions].astype(np.int64) for table in tables(numbers[0])]
    out: list[NDArray[np.int64]] = []
    for p in numbers:
        here = passes == p
        found = [table[positions[here]] for table in tables(p)]
        out = out or [np.empty_like(positions) for _ in found]
        for column, values in zip(out, found, strict=True):
            column[here] = values
    return out


def none_dropped(datapoints: Iterator[Any], df: DataFlow) -> Iterator[Any]:
    """The same datapoints; a step checks that the next one was not dropped.

    Raises:
        Dropped: There is a hole among them, so the positions of `df`, which counts datapoints, are undefined; or the
            user reads ``df[i]``, and a node below has dropped a datapoint before, so that a loop yields another one.
    """
    if picked_here():
        for node in walk(df, everywhere=True):
            drops = state_of(node).part(Drops)
            if drops.has_dropped or (drops.has_skipped and node is not df):
                raise _dropped_below(df)
    waits = df._df_waits
    return pausing(_none_dropped(datapoints, df, waits), waits)


def _none_dropped(datapoints: Iterator[Any], df: DataFlow, waits: bool) -> Iterator[Any]:
    while True:
        try:
            for dp in datapoints:
                if dp is HOLE:
                    state_of(df).part(Drops).has_dropped = True
                    raise _dropped_below(df)
                yield dp
            return
        except TimeoutError as error:
            pause = paused(error, waits)
        yield pause


def _dropped_below(df: DataFlow) -> Dropped:
    return Dropped(
        f"{type(df).__name__} counts datapoints, and one below it was dropped: a map returned None, so the positions "
        "of all that follow depend on it. Filter the list before DataFromList; or use FilterData, and iterate"
    )
