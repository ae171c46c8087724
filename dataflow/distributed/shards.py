"""Shard of a pass: the part of a flow that one task of Ray Data reads, as blocks of columns.

Guarantees:

- The shards of a pass, concatenated, are the pass: the same datapoints in the same order, for any number of shards.
- Tasks keep no state: reading a shard again gives the same.
- A column has one dtype and one shape in all shards; otherwise an error is raised.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow, close_flow
from dataflow.datapoint import components, present, selected, stack
from dataflow.errors import ShapeMismatch, WorkerError
from dataflow.passes import open_flow
from dataflow.pickling import dumps, loads
from dataflow.seeding import Stream
from dataflow.transforms.indexing import consecutive
from dataflow.workers.process import seed_globals

__all__ = ["Columns", "FlowPass", "Shard"]

Columns = dict[str, NDArray[Any]]
Form = dict[str, tuple[str, tuple[int, ...]]]
"""The dtype of each column, and the shape of one row of it."""


@dataclass(frozen=True)
class FlowPass:
    """One pass of a flow, of which shards are parts."""

    df: DataFlow
    p: int
    stream: Stream


@dataclass(frozen=True)
class Shard:
    """One shard of a pass, and the columns that it is read as.

    Attributes:
        index: Which shard of `count`. Consecutive datapoints, in the order of the shards; of a flow that never ends,
            every `count`-th block.
        names: Names of the columns.
        rows_per_block: Number of datapoints that are stacked at a time.
    """

    index: int
    count: int
    names: tuple[str, ...]
    rows_per_block: int

    def read(self, packed: bytes) -> Iterator[Columns]:
        """Yield the blocks, in the process that reads them; `packed` is a pickled `FlowPass`."""
        of: FlowPass = loads(packed)
        seed_globals((of.stream.root, of.p, self.index))
        try:
            open_flow(of.df, of.stream)
            first = self._first_of_all(of)
            form = _form(self._columns(first)) if first else None
            datapoints = self._datapoints(of)
            while rows := list(islice(datapoints, self.rows_per_block)):
                columns = self._columns(rows)
                form = form or _form(self._columns(rows[:1]))
                _require_form(columns, form)
                yield columns
        except Exception as error:
            if not _travels(error):
                raise WorkerError("".join(traceback.format_exception_only(error)).strip()) from error
            raise
        finally:
            close_flow(of.df)

    def _datapoints(self, of: FlowPass) -> Iterator[Any]:
        if not of.df._df_addressable:
            return of.df._df_run_pass(of.p, of.stream)
        return present(of.df._df_at(self._indexes(of), of.stream))

    def _indexes(self, of: FlowPass) -> Blocks:
        if of.df._df_endless:
            size = self.rows_per_block
            return (np.arange(first, first + size) for first in count(self.index * size, self.count * size))
        begin, end = (self._cut(of.df, k) for k in (self.index, self.index + 1))
        first = of.p * len(of.df)
        return consecutive(first + begin, first + end)

    def _cut(self, df: DataFlow, k: int) -> int:
        """Return the position at which shard `k` begins."""
        n = len(df)
        return n if k == self.count else n * k // self.count // df._df_grain * df._df_grain

    def _first_of_all(self, of: FlowPass) -> list[Any]:
        """Return the first datapoint of the pass, for comparison with other shards; empty if it was dropped."""
        if self.index == 0:
            return []
        first = 0 if of.df._df_endless else of.p * len(of.df)
        return list(present(of.df._df_at([np.array([first])], of.stream)))

    def _columns(self, rows: list[Any]) -> Columns:
        """Return some datapoints as columns.

        Raises:
            ValueError: There are more or fewer components than names.
            ShapeMismatch: Values of one column differ in shape.
        """
        names = self.names
        if isinstance(rows[0], dict):
            rows = [list(selected(row, names).values()) for row in rows]
        elif (found := len(list(components(rows[0])))) != len(names):
            raise ValueError(
                f"to_ray_dataset was given {len(names)} names of columns, {list(names)}, and datapoints have {found} "
                "components. Give one for each, or choose components with SelectComponent"
            )
        try:
            return dict(zip(names, stack(rows), strict=True))
        except ShapeMismatch as error:
            for k, name in enumerate(names):
                shapes = dict.fromkeys(
                    np.shape(row[k]) for row in rows if isinstance(row, list | tuple) and k < len(row)
                )
                if len(shapes) > 1:
                    raise _not_one_form(name, " and ".join(map(str, shapes))) from error
            raise


def _form(columns: Columns) -> Form:
    return {
        name: ("text" if column.dtype.kind == "U" else str(column.dtype), column.shape[1:])
        for name, column in columns.items()
    }


def _require_form(columns: Columns, form: Form) -> None:
    for name, (dtype, shape) in _form(columns).items():
        if (dtype, shape) != form[name]:
            raise _not_one_form(name, f"{form[name][0]} {form[name][1]} and {dtype} {shape}")


def _not_one_form(name: str, found: str) -> ShapeMismatch:
    return ShapeMismatch(
        f"column {name!r} of a Ray dataset has one dtype and one shape, and there are {found}. Resize, pad or convert "
        "with MapDataComponent before to_ray_dataset"
    )


def _travels(error: Exception) -> bool:
    """Whether an exception survives pickling. If not, one of Ray's own would arrive, without its type and text."""
    try:
        return type(loads(dumps(error))) is type(error)
    except Exception:  # any error of pickling
        return False
