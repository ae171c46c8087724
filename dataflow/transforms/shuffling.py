"""A new order for what is too large to be in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from dataflow.base import Blocks, DataFlow, ProxyDataFlow, RNGDataFlow
from dataflow.life import life_of
from dataflow.seeding import Stream, rng, root_seed
from dataflow.transforms.arguments import at_least_one
from dataflow.transforms.repeating import passes_on

__all__ = ["LocallyShuffleData"]

_logger = logging.getLogger("dataflow.transforms")


class LocallyShuffleData(ProxyDataFlow, RNGDataFlow):
    """Shuffle within a buffer through which the datapoints go, pass after pass of the input, without end.

    The first datapoint comes out when the buffer is full; from then on one goes in at the end for each that comes out
    at the beginning, and the whole buffer is shuffled at intervals. Passes of the input get mixed at their borders; an
    input shorter than the buffer is in it several times. An iteration goes on where the last one stopped, so there can
    be one at a time. ``len`` is the number of datapoints that one pass of the input makes.

    Args:
        ds: The input.
        buffer_size: Datapoints in the buffer, at least 1.
        num_reuse: How many times each datapoint is put into the buffer.
        shuffle_interval: Shuffle after so many datapoints of the input; a third of `buffer_size` if it is None.
        seed: A root seed for this node's order, instead of the one of `dataflow.seed`.

    Example:
        >>> df = LocallyShuffleData(DataFromList([[k] for k in range(100)], shuffle=False), 10)
        >>> first_pass = [k for _, (k,) in zip(range(len(df)), df)]
        >>> first_pass == list(range(100)), len(set(first_pass)) > 80
        (False, True)
    """

    def __init__(
        self,
        ds: DataFlow,
        buffer_size: int,
        num_reuse: int = 1,
        shuffle_interval: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(ds)
        self.buffer_size = at_least_one(self, "buffer_size", buffer_size)
        self.num_reuse = at_least_one(self, "num_reuse", num_reuse)
        if shuffle_interval is None:
            shuffle_interval = max(1, self.buffer_size // 3)
        self.shuffle_interval = at_least_one(self, "shuffle_interval", shuffle_interval)
        self.own_root = root_seed(self, seed)

    @property
    def indexed(self) -> bool:
        return False

    @property
    def endless(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.ds) * self.num_reuse

    def at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return DataFlow.at(self, blocks, stream)

    def run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return life_of(self).continued.take(stream, partial(self._shuffled, stream), type(self).__name__)

    def _shuffled(self, stream: Stream) -> Iterator[Any]:
        generator = rng(self.words(stream, 0))
        buffer: deque[Any] = deque()
        for number, dp in enumerate(passes_on(self.ds, stream), start=1):
            if number % self.shuffle_interval == 0:
                buffer = deque(map(list(buffer).__getitem__, generator.permutation(len(buffer)).tolist()))
            for _ in range(self.num_reuse):
                if len(buffer) == self.buffer_size:
                    yield buffer.popleft()
                buffer.append(dp)
        _logger.warning("LocallyShuffleData ends, because a pass of %s was empty", type(self.ds).__name__)
