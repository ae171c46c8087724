"""Shuffling: nodes that shuffle whole passes by index, or any sequence within a buffer."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from dataflow.errors import TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, RNGDataFlow, T_co
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.passes import passes_on
from dataflow.protocol.pauses import Pause, limit, paused, pausing, resumed
from dataflow.protocol.seeding import Stream, Table, permutation, rng, root_seed
from dataflow.protocol.state import state_of
from dataflow.transforms.arguments import require_addressable, require_end
from dataflow.transforms.grouping import MemoryWatch, may_reuse_memory
from dataflow.transforms.indexing import Indexes, pass_by_index, passes_and_positions, reorder

__all__ = ["LocallyShuffleData", "ShuffleData"]

_logger = logging.getLogger("dataflow.transforms")


class ShuffleData(ProxyDataFlow[T_co], RNGDataFlow[T_co]):
    """Each pass of the input in a new random order.

    The order of a pass follows from the seed and the number of the pass. Only one permutation is kept in memory, four
    bytes per datapoint; the input is read by index, so each datapoint is computed when it is needed.

    Args:
        ds: The input; it must be addressable and have a length.
        seed: A root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        NotAddressable: `ds` is only a sequence of passes; the message names the node. Use `LocallyShuffleData` for
            those.
        ValueError: A pass of `ds` never ends.

    Example:
        >>> df = ShuffleData(MapData(DataFromList([[k] for k in range(5)], shuffle=False), lambda dp: [dp[0] * 10]))
        >>> sorted(df), [df[5 + k] for k in range(5)] == list(df)
        ([[0], [10], [20], [30], [40]], True)
    """

    _df_grain = 1

    def __init__(self, ds: DataFlow[T_co], *, seed: int | None = None) -> None:
        super().__init__(ds)
        require_addressable(ds, self)
        require_end(ds, "ShuffleData", "shuffles whole passes")
        self._df_own_root = root_seed(self, seed)
        self._orders = Table()

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return pass_by_index(self, p, stream)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        n = len(self)
        return self.ds._df_at(map(partial(self._below, stream, n), blocks), stream)

    def _df_num_below(self, num: int) -> int | None:
        n = max(len(self), 1)
        return -(-num // n) * n  # whole passes

    def _df_origins(self, indexes: Indexes, stream: Stream) -> Indexes:
        return self.ds._df_origins(self._below(stream, len(self), indexes), stream)

    def _below(self, stream: Stream, n: int, indexes: Indexes) -> Indexes:
        passes, positions = passes_and_positions(self, indexes, n)
        if not len(indexes):
            return indexes
        (order,) = reorder(passes, positions, partial(self._order, stream, n))
        return passes * n + order

    def _order(self, stream: Stream, n: int, p: int) -> tuple[NDArray[Any]]:
        words = self._df_words(stream, p)
        return (self._orders.get((words, n), partial(permutation, words, n)),)


class LocallyShuffleData(ProxyDataFlow[T_co], RNGDataFlow[T_co]):
    """Shuffle within a buffer through which the datapoints pass, endlessly, pass after pass of the input.

    The first datapoint is yielded when the buffer is full; from then on each new datapoint is appended and the first
    one yielded, and the whole buffer is shuffled at intervals. Consecutive passes of the input are mixed where they
    meet; an input shorter than the buffer is in it several times. An iteration continues where the last one stopped,
    so only one is possible at a time. ``len`` is the number of datapoints that one pass of the input contributes.

    Datapoints stay in the buffer without a copy, so an input that yields one array again and again is an error.

    Args:
        ds: The input.
        buffer_size: Datapoints in the buffer, at least 1.
        num_reuse: Number of times that each datapoint is put into the buffer.
        shuffle_interval: Shuffle after this many datapoints of the input; None means a third of `buffer_size`.
        seed: A root seed for this node's order, instead of the one of `dataflow.seed`.

    Example:
        >>> df = LocallyShuffleData(DataFromList([[k] for k in range(100)], shuffle=False), 10)
        >>> first_pass = [k for _, (k,) in zip(range(len(df)), df)]
        >>> first_pass == list(range(100)), len(set(first_pass)) > 80
        (False, True)
    """

    _df_indexed = False
    _df_endless = True
    _df_continues = True

    def __init__(
        self,
        ds: DataFlow[T_co],
        buffer_size: int,
        num_reuse: int = 1,
        shuffle_interval: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(ds)
        self.buffer_size = whole_number(self, "buffer_size", buffer_size, 1)
        self.num_reuse = whole_number(self, "num_reuse", num_reuse, 1)
        if shuffle_interval is None:
            shuffle_interval = max(1, self.buffer_size // 3)
        self.shuffle_interval = whole_number(self, "shuffle_interval", shuffle_interval, 1)
        self._df_own_root = root_seed(self, seed)

    def __len__(self) -> int:
        return len(self.ds) * self.num_reuse

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return state_of(self).continued.take(stream, partial(self._shuffle, stream), self)

    def _shuffle(self, stream: Stream) -> Iterator[Any]:
        waits = self._df_waits
        return pausing(self._steps(stream, waits), waits)

    def _steps(self, stream: Stream, waits: bool) -> Iterator[Any]:
        generator = rng(self._df_words(stream, 0))
        buffer: deque[Any] = deque()
        datapoints = passes_on(self.ds, stream)
        if may_reuse_memory(self.ds):
            datapoints = MemoryWatch().over(datapoints, waits)
        interval = self.shuffle_interval
        yield from self._through(buffer, limit(datapoints, waits, interval - 1), waits)
        # Each interval begins with a datapoint, because there is no shuffle after the last one.
        for dp in resumed(datapoints, True) if waits else datapoints:
            if type(dp) is Pause:
                yield dp
                continue
            buffer = deque(map(list(buffer).__getitem__, generator.permutation(len(buffer)).tolist()))
            yield from self._through(buffer, chain((dp,), limit(datapoints, waits, interval - 1)), waits)
        _logger.warning("LocallyShuffleData ends, because a pass of %s was empty", type(self.ds).__name__)

    def _through(self, buffer: deque[Any], datapoints: Iterator[Any], waits: bool) -> Iterator[Any]:
        """Append the datapoints to the buffer; yield those that leave it."""
        pop, put = buffer.popleft, buffer.append
        while True:
            try:
                if self.num_reuse == 1 and len(buffer) == self.buffer_size:
                    for dp in datapoints:
                        yield pop()
                        put(dp)
                    return
                for dp in datapoints:
                    for _ in range(self.num_reuse):
                        if len(buffer) == self.buffer_size:
                            yield pop()
                        put(dp)
                return
            except TimeoutError as error:
                pause = paused(error, waits)
            yield pause
