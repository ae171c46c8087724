"""Several datapoints become one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice, takewhile
from typing import Any

import numpy as np

from dataflow.base import Blocks, DataFlow, ProxyDataFlow
from dataflow.datapoint import component, stack
from dataflow.errors import LengthUnknown
from dataflow.passes import known_length
from dataflow.seeding import Stream
from dataflow.transforms.arguments import at_least_one
from dataflow.transforms.indexing import none_dropped, passes_and_positions

__all__ = ["BatchData", "BatchDataByShape"]


class BatchData(ProxyDataFlow):
    """Stack every `batch_size` datapoints into one.

    A component of shape ``(H, W, 3)`` becomes ``(batch_size, H, W, 3)`` with the same dtype; numbers become a vector:
    Python ints int32, Python floats float32. Lists and tuples become a list, dicts a dict.

    Args:
        ds: Datapoints of one kind: same components, same shapes.
        batch_size: Datapoints per batch, at least 1.
        remainder: Give out the last batch even if it is shorter.
        use_list: Do not stack: every component of a batch is a Python list.

    Raises:
        ValueError: A pass of `ds` is shorter than one batch, and `remainder` is False; so there would be no batch.
        ShapeMismatch: Datapoints of one batch differ in shape. Names the component and lists the shapes found.
        OverflowError: A Python int does not fit into int32.

    Example:
        >>> df = BatchData(DataFromList([[np.zeros((4, 2)), k] for k in range(5)], shuffle=False), 2)
        >>> [(image.shape, label.tolist()) for image, label in df]
        [((2, 4, 2), [0, 1]), ((2, 4, 2), [2, 3])]
    """

    def __init__(self, ds: DataFlow, batch_size: int, remainder: bool = False, use_list: bool = False) -> None:
        super().__init__(ds)
        self.batch_size = at_least_one(self, "batch_size", batch_size)
        self.remainder = remainder
        self.use_list = use_list
        n = None if ds._df_endless else known_length(ds)
        if not remainder and n is not None and n < self.batch_size:
            raise ValueError(
                f"BatchData: batch_size {self.batch_size} is more than the {n} datapoints of a pass of "
                f"{type(ds).__name__}, so there would be no batch. Lower batch_size, or pass remainder=True"
            )

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain // math.gcd(self.ds._df_grain, self.batch_size)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.ds), self.batch_size)
        return whole + (self.remainder and rest > 0)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        # Nothing here holds a batch or its datapoints in a variable: whoever receives a batch may reuse its memory.
        taken = partial(_take, self.ds._df_run_pass(p, stream), self.batch_size)
        groups = iter(taken, [])
        return map(self._stack, groups if self.remainder else takewhile(self._is_whole, groups))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        n = None if self.ds._df_endless else len(self.ds)
        for block in blocks:
            if n is None:
                first, size = block * self.batch_size, np.full(len(block), self.batch_size)
            else:
                passes, positions = passes_and_positions(self, block, len(self))
                first = passes * n + positions * self.batch_size
                size = np.minimum(self.batch_size, n - positions * self.batch_size)
            spread = first[:, None] + np.arange(self.batch_size)
            wanted = spread[np.arange(self.batch_size) < size[:, None]]
            datapoints = none_dropped(self.ds._df_at([wanted], stream), self)
            yield from map(self._stack, map(partial(_take, datapoints), size.tolist()))

    def _is_whole(self, group: list[Any]) -> bool:
        return len(group) == self.batch_size

    def _stack(self, group: list[Any]) -> Any:
        return stack(group, use_list=self.use_list)


class BatchDataByShape(ProxyDataFlow):
    """Batch datapoints of which one component has the same shape.

    One batch is gathered for each shape at the same time, so memory grows with the number of shapes. The batches that
    are incomplete at the end of a pass are dropped; with ``remainder=True`` they are given out, the shape seen first
    first. How many come out of a pass is not known beforehand.

    Args:
        ds: The input.
        batch_size: Datapoints per batch, at least 1.
        idx: Position of the component that decides, or its key.
        remainder: Give out incomplete batches at the end of a pass.

    Example:
        >>> images = [[np.zeros(shape)] for shape in [(2, 2), (3, 3), (2, 2), (3, 3), (2, 2)]]
        >>> [batch[0].shape for batch in BatchDataByShape(DataFromList(images, shuffle=False), 2, 0)]
        [(2, 2, 2), (2, 3, 3)]
    """

    def __init__(self, ds: DataFlow, batch_size: int, idx: Any, *, remainder: bool = False) -> None:
        super().__init__(ds)
        self.batch_size = at_least_one(self, "batch_size", batch_size)
        self.idx = idx
        self.remainder = remainder

    @property
    def _df_indexed(self) -> bool:
        return False

    def __len__(self) -> int:
        raise LengthUnknown("a pass of BatchDataByShape has no known length: it depends on the shape of each datapoint")

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return DataFlow._df_at(self, blocks, stream)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        groups: dict[tuple[int, ...], list[Any]] = {}
        for dp in self.ds._df_run_pass(p, stream):
            shape = np.shape(component(dp, self.idx))
            group = groups.setdefault(shape, [])
            group.append(dp)
            if len(group) == self.batch_size:
                yield stack(groups.pop(shape))
        while self.remainder and groups:
            yield stack(groups.pop(next(iter(groups))))


def _take(datapoints: Iterator[Any], num: int) -> list[Any]:
    return list(islice(datapoints, num))
