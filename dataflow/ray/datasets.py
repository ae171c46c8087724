"""Conversions between dataflows and Ray Data: a pass of a flow as a Ray dataset, and a Ray dataset as a flow.

Guarantees:

- A dataset made from a flow is one pass of it, however often and by however many tasks it is read: its shards,
  concatenated, are the same datapoints in the same order, for any number of shards.
- A column has one dtype and one shape in all shards; otherwise an error is raised.
- When a loop over a dataset ends, is left, or its flow is closed, Ray stops reading.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import DataFlowError, LengthUnknown, NotAddressable, ShapeMismatch, WorkerError
from dataflow.protocol.base import Blocks, DataFlow, close_flow, require_flow
from dataflow.protocol.datapoint import component, components, present, selected, stack
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.passes import open_flow, root_stream
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.ray.cluster import ClusterPayload, connect, ray_package
from dataflow.sources.source import Source
from dataflow.system.extras import optional
from dataflow.system.pickling import dumps, loads
from dataflow.system.session import terminated
from dataflow.system.worker_process import seed_globals
from dataflow.transforms.indexing import consecutive

__all__ = ["DataFromRayDataset", "FlowPass", "Shard", "from_ray_dataset", "ray_column", "to_ray_dataset"]

Columns = dict[str, NDArray[Any]]
Form = dict[str, tuple[str, tuple[int, ...]]]
"""The dtype of each column, and the shape of one row of it."""


def to_ray_dataset(df: DataFlow, names: Sequence[str], num_shards: int | None = None, rows_per_block: int = 256) -> Any:
    """Return the next pass of a flow as a ``ray.data.Dataset``; tasks of the cluster each read a share of its indexes.

    Components are stacked as `BatchData` does it: arrays of one shape, numbers, text. A random flow draws what it would
    draw in a loop. However often the dataset is read, it is the same pass; call this function once for each epoch. A
    pass that never ends makes a dataset that never ends, always from its beginning: use ``limit``, or leave the loop.

    Ray combines blocks up to ``ray.data.DataContext.get_current().target_max_block_size``, 128 MiB,
    before any row is delivered. Lower it beforehand if rows are small or slow to come.

    Args:
        df: The flow; the tasks get a pickled copy.
        names: Names of the columns, one for each component in order. For dicts: the keys that become columns.
        num_shards: Number of tasks that read. None derives it from the number of CPUs; it is 1 if the flow cannot be
            addressed, or never ends. Tasks that never end must all run at once, each on a CPU.
        rows_per_block: Number of datapoints that are stacked at a time.

    Returns:
        A ``ray.data.Dataset`` that was not read yet. Its rows come in the order of the pass if
        ``ds.context.execution_options.preserve_order`` is set to True.

    Raises:
        MissingExtra: Ray, or another package that Ray Data needs, is not installed.
        NotAddressable: Several shards were requested of a flow that is only a sequence of passes; names the node.
        NotPicklable: The flow cannot be sent; names node and attribute.
        ShapeMismatch: While reading: a row differs from the first one in dtype or shape, or Ray would change its
            values; names the column.
        ValueError: While reading: there are more or fewer components than names.
    """
    require_flow(df, "to_ray_dataset", "df")
    names = _column_names(names, "to_ray_dataset")
    rows_per_block = whole_number("to_ray_dataset", "rows_per_block", rows_per_block, 1)
    breaks = df._df_unaddressable()
    if num_shards is not None:
        num_shards = whole_number("to_ray_dataset", "num_shards", num_shards, 1)
    if num_shards is not None and num_shards > 1 and breaks is not None:
        raise NotAddressable(
            f"to_ray_dataset divides a pass among {num_shards} shards by index, but {type(breaks).__name__} is only a "
            "sequence of passes. Leave out num_shards, and do the costly work with map_batches of the dataset; or put "
            "the datapoints into a list (DataFromList)"
        )
    for package in ("pandas", "pyarrow"):  # which Ray does not install
        optional(package, "ray-data", "Ray Data needs")
    ray = connect()
    data = optional("ray.data", "ray-data", "Ray datasets need")
    if num_shards is None:
        divisible = breaks is None and not df._df_endless
        num_tasks = 2 * int(ray.cluster_resources().get("CPU", 1))
        num_shards = max(1, min(math.ceil(len(df) / rows_per_block), num_tasks)) if divisible else 1
    state = state_of(df)
    state.continued.require_same_weights(root_stream(df), df)
    packed = dumps(ClusterPayload(FlowPass(df, state.passes, root_stream(df))))
    state.passes += 1
    shards = [Shard(k, num_shards, names, rows_per_block) for k in range(num_shards)]
    stored = ray.put(packed)  # once for all tasks; a task holds a reference

    def read_shard(batch: Columns) -> Iterator[Columns]:
        return shards[int(batch["id"][0])].read(ray.get(stored))

    # One row for each shard, and a task for each row, which yields: Ray takes each block as soon as it is full, and
    # limits how far tasks run ahead.
    return data.range(num_shards, override_num_blocks=num_shards).map_batches(read_shard, batch_size=1)


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
        """Yield the blocks, in the process that reads them; `packed` is the pickled payload of a `FlowPass`."""
        flow_pass: FlowPass = loads(packed).load()
        seed_globals((flow_pass.stream.root, flow_pass.p, self.index))
        try:
            open_flow(flow_pass.df, flow_pass.stream)
            first = self._first_of_all(flow_pass)
            form = _form(self._columns(first)) if first else None
            datapoints = self._datapoints(flow_pass)
            while rows := list(islice(datapoints, self.rows_per_block)):
                columns = self._columns(rows)
                form = form or _form(self._columns(rows[:1]))
                _require_form(columns, form)
                yield columns
        except Exception as error:
            if not _survives_pickling(error):
                raise WorkerError("".join(traceback.format_exception_only(error)).strip()) from error
            raise
        finally:
            close_flow(flow_pass.df)

    def _datapoints(self, flow_pass: FlowPass) -> Iterator[Any]:
        if not flow_pass.df._df_addressable:
            return flow_pass.df._df_run_pass(flow_pass.p, flow_pass.stream)
        return present(flow_pass.df._df_at(self._indexes(flow_pass), flow_pass.stream))

    def _indexes(self, flow_pass: FlowPass) -> Blocks:
        if flow_pass.df._df_endless:
            size = self.rows_per_block
            return (np.arange(first, first + size) for first in count(self.index * size, self.count * size))
        begin, end = (self._cut(flow_pass.df, k) for k in (self.index, self.index + 1))
        first = flow_pass.p * len(flow_pass.df)
        return consecutive(first + begin, first + end)

    def _cut(self, df: DataFlow, k: int) -> int:
        """Return the position at which shard `k` begins."""
        n = len(df)
        return n if k == self.count else n * k // self.count // df._df_grain * df._df_grain

    def _first_of_all(self, flow_pass: FlowPass) -> list[Any]:
        """Return the first datapoint of the pass, for comparison with other shards; empty if it was dropped."""
        if self.index == 0:
            return []
        first = 0 if flow_pass.df._df_endless else flow_pass.p * len(flow_pass.df)
        return list(present(flow_pass.df._df_at([np.array([first])], flow_pass.stream)))

    def _columns(self, rows: list[Any]) -> Columns:
        """Return some datapoints as columns.

        Raises:
            ValueError: There are more or fewer components than names.
            ShapeMismatch: Values of one column differ in shape, or would change in a column of Ray.
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
            return {name: ray_column(name, column) for name, column in zip(names, stack(rows), strict=True)}
        except ShapeMismatch as error:
            for k, name in enumerate(names):
                shapes = dict.fromkeys(
                    np.shape(row[k]) for row in rows if isinstance(row, list | tuple) and k < len(row)
                )
                if len(shapes) > 1:
                    raise _not_one_form(name, " and ".join(map(str, shapes))) from error
            raise


def ray_column(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Return a column as one that Ray preserves.

    Ray takes the bytes of another order for those of its own, cuts text and bytes at a NUL, makes floats of integers
    beside None, drops masks, and knows dates in seconds only.

    Raises:
        ShapeMismatch: There is none.
    """
    kind = column.dtype.kind
    if isinstance(column, np.ma.MaskedArray):
        raise _not_for_ray(name, "is a masked array: fill it (.filled())")
    if kind == "O" and not any(all(isinstance(value, one) for value in column.flat) for one in (str, bytes)):
        raise _not_for_ray(name, "holds Python objects: make arrays, numbers, text or bytes of them")
    if not column.dtype.isnative and kind != "V":
        column = column.astype(column.dtype.newbyteorder("="))
    if kind in "US" and column.ndim == 1:
        return column.astype(object)
    if kind in "mM" and (of := np.datetime_data(column.dtype)) not in _TIMES:
        seconds = column.astype(f"{kind}8[s]")
        is_certain = kind == "M" or of[0] not in {"Y", "M", "generic"}  # the others have no certain length
        if not is_certain or not np.array_equal(seconds.astype(column.dtype), column, equal_nan=True):
            raise _not_for_ray(name, f"is of {column.dtype}: use the unit s, ms, us or ns")
        return seconds
    return column


_TIMES = {(unit, 1) for unit in ("s", "ms", "us", "ns")}  # which Arrow has


def _not_for_ray(name: str, reason: str) -> ShapeMismatch:
    return ShapeMismatch(
        f"column {name!r} {reason}, with MapDataComponent before to_ray_dataset: a Ray dataset would change its values"
    )


def _form(columns: Columns) -> Form:
    return {name: (_name_of(column), column.shape[1:]) for name, column in columns.items()}


def _name_of(column: NDArray[Any]) -> str:
    if column.dtype.kind != "O":
        return str(column.dtype)
    return "text" if all(isinstance(value, str) for value in column.flat) else "bytes"


def _require_form(columns: Columns, form: Form) -> None:
    for name, (dtype, shape) in _form(columns).items():
        if (dtype, shape) != form[name]:
            raise _not_one_form(name, f"{form[name][0]} {form[name][1]} and {dtype} {shape}")


def _not_one_form(name: str, found: str) -> ShapeMismatch:
    return ShapeMismatch(
        f"column {name!r} of a Ray dataset has one dtype and one shape, and there are {found}. Resize, pad or convert "
        "with MapDataComponent before to_ray_dataset"
    )


def _survives_pickling(error: Exception) -> bool:
    """Whether an exception survives pickling. If not, one of Ray's own would arrive, without its type and text."""
    try:
        return type(loads(dumps(error))) is type(error)
    except Exception:  # any error of pickling
        return False


def from_ray_dataset(ds: Any, names: Sequence[str], batch_size: int | None = None) -> DataFlow:
    """The rows of a Ray dataset as a flow; each pass reads the dataset once.

    Datapoints are lists with a component for each name. Arrays belong to the caller: they can be kept, and written to.
    Numbers are numpy scalars of the column's dtype. Ray decides the order, which may differ from pass to pass; so the
    flow cannot be addressed. It has a length if the dataset is materialized.

    Args:
        ds: A ``ray.data.Dataset``; or an iterator over one, such as the share ``ds.streaming_split(world)[rank]`` of a
            rank. Then no rank gets its first datapoint of a pass before all have begun it.
        names: The columns, in this order.
        batch_size: Rows per datapoint; the last of a pass may have fewer. None gives single rows.

    Raises:
        TypeError: `ds` is neither a dataset nor an iterator over one.
        KeyError: While iterating: there is no such column; the message lists the existing ones.
        DataFlowError: While iterating: this process has no connection to the cluster of the dataset.
    """
    return DataFromRayDataset(ds, names, batch_size)


class DataFromRayDataset(Source):
    """The flow that `from_ray_dataset` returns."""

    _df_reproducible = False

    def __init__(self, ds: Any, names: Sequence[str], batch_size: int | None = None) -> None:
        if not callable(getattr(ds, "iter_batches", None)):
            cure = "; for the other direction there is to_ray_dataset" if isinstance(ds, DataFlow) else ""
            raise TypeError(
                "from_ray_dataset expects a dataset of Ray Data, or an iterator over one, such as streaming_split "
                f"gives, got {type(ds).__name__}{cure}"
            )
        self.ds = ds
        self.names = _column_names(names, "from_ray_dataset")
        self.batch_size = None if batch_size is None else whole_number("from_ray_dataset", "batch_size", batch_size, 1)
        # Only for a materialized dataset is the number known without reading.
        self._num_rows = int(ds.count()) if type(ds).__name__ == "MaterializedDataset" else None

    def __len__(self) -> int:
        if self._num_rows is None:
            raise LengthUnknown(
                "Ray does not know how many rows a dataset has before it has read it. Give from_ray_dataset "
                "ds.materialize(), which reads it once, or put FixedSizeData above"
            )
        return math.ceil(self._num_rows / (self.batch_size or 1))

    def reset_state(self) -> None:
        ray = ray_package()
        if not ray.is_initialized():
            raise DataFlowError(
                "this process is not connected to the Ray cluster of the dataset. Iterate it where the dataset was "
                "made, or in a task or an actor of that cluster; a parallel map above it moves the work elsewhere"
            )
        connect()  # raises if the connection is that of the parent
        state_of(self).own(self, _Readings())

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        readings = state_of(self).resource
        if not isinstance(readings, _Readings):  # it was closed by another thread after the reset
            raise terminated(type(self).__name__)
        batches = iter(self.ds.iter_batches(batch_size=self.batch_size, batch_format="numpy"))
        return self._datapoints(batches, readings)

    def _datapoints(self, batches: Any, readings: _Readings) -> Iterator[Any]:
        readings.open.add(batches)
        try:
            for batch in batches:
                if readings.is_closed:  # during this step
                    break
                columns = [component(batch, name) for name in self.names]
                if self.batch_size is None:
                    yield from map(list, zip(*(map(_own, column) for column in columns), strict=True))
                else:
                    yield [column if column.flags.writeable else column.copy() for column in columns]
            if readings.is_closed:
                raise terminated(type(self).__name__)
        finally:
            readings.open.discard(batches)
            batches.close()


class _Readings:
    """The readings of one flow that are in progress, as generators. Any thread may close them."""

    def __init__(self) -> None:
        self.open: set[Any] = set()
        self.is_closed = False

    def close(self) -> None:
        """Close all. Idempotent."""
        self.is_closed = True
        # A copy, made in one step under the interpreter's lock: the threads that iterate add and discard readings.
        for batches in list(self.open):
            with suppress(ValueError):  # another thread is inside, and closes it after this step
                batches.close()


def _own(value: Any) -> Any:
    """Return a row of a column: an array that keeps no block alive, or a scalar as it is."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _column_names(names: Sequence[str], owner: str) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{owner}: names is a list of the names of columns, got {names!r}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{owner}: names has one name for each column, all different, got {list(names)}")
    return tuple(names)
