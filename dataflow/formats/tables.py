"""`TableData`: the rows of a table as dicts, or batches straight from its columns.

A table is a sequence of *parts*: the row groups of parquet files, the record batches of an Arrow table, or one part for
all else. A reader loads a part when a row of it is requested, and keeps the parts used last.
"""

from __future__ import annotations

import copy
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence, Set
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import FileDamaged, ShapeMismatch
from dataflow.formats.arrow import (
    ArrayColumn,
    NoBatch,
    ObjectColumn,
    Selection,
    TableColumn,
    arrow_column,
    check_columns,
    check_types,
    column_of,
    join_arrays,
)
from dataflow.formats.loading import PositionalSource, Positions, by_part, files_of, parts_of, starts_of
from dataflow.formats.parquet import ParquetFiles
from dataflow.formats.positional import Identity
from dataflow.protocol.base import Blocks, DataFlow
from dataflow.protocol.datapoint import present
from dataflow.protocol.failures import Budget
from dataflow.protocol.parameters import count_or_fraction, flag, whole_number
from dataflow.protocol.seeding import Stream
from dataflow.system.extras import optional
from dataflow.transforms.applying import RequestedBlocks, ToleratesFailures

__all__ = ["TableData"]

_KEPT_BYTES = 1 << 27  # of the parts of a table that a reader keeps, apart from the last
_AT_ONCE = 1 << 24  # bytes of rows that are converted together
_MAX_ROWS = 4096
_AT_A_TIME = 4096  # positions that are requested at a time
_FEW_ROWS = 1 << 14  # Arrow tables whose parts are smaller on average are joined
_SUFFIXES = (".parquet", ".pq")

Table = Any
"""A dict of columns, a DataFrame, an Arrow table, or paths of parquet files."""


class TableData(ToleratesFailures[dict[str, Any]], PositionalSource[dict[str, Any]]):
    """The rows of a table as dicts by column, or batches of them.

    Numbers keep their dtype: a row holds NumPy scalars, a batch arrays. Lists of numbers are arrays. Text is str. A
    missing value is None in a row; in a batch it is NaN or NaT where the dtype has that, and None among text.

    What would be lost is refused by name, with the cure: masks, time zones other than UTC, extension types such as
    pandas' periods, a second column of one name, columns in the names of folders or in later files only, and in a
    batch, Python integers that NumPy would round.

    With `batch_size` the datapoints are batches, taken from whole columns without a loop over rows; the arrays are
    writable. Where a map has to see each row, leave it out, and put `BatchData` above the map.

    Parquet files are opened where they are read, and a row group is read when one of its rows is requested. Each
    process keeps the row groups used last, of up to 128 MiB and at least one. With `shuffle` every row of a batch may
    lie in another row group: if the table is larger than that, give `block_shuffle` a multiple of the row group's size.

    A row that cannot be read, in a damaged row group for example, is a datapoint that fails, as a map's does: it ends
    the pass, or is skipped under `max_failures`. So is a batch with such a row, or whose rows form no array. With a
    `max_failures` of its own, a table of several files goes on without a file that is missing behind its URL, has no
    valid footer, or other columns: that file counts as one row that fails.

    Args:
        table: A dict of columns of one length, a pandas or polars DataFrame, a pyarrow Table, a structured NumPy array;
            or parquet files: a path, a folder, a URL, or a list of them, read in that order. The files of a folder are
            sorted by name. Lists, DataFrames and arrays of objects are copied, without the objects in them: what is
            changed in them later is not seen. Arrays of numbers are not copied.
        columns: Names of the columns to read; None reads all.
        batch_size: Rows in a batch; None gives single rows.
        remainder: Give out the last batch even if it is shorter.
        shuffle: Draw a new order of the rows for every pass; None means whether `block_shuffle` is given.
        block_shuffle: Rows per block: shuffle the blocks, and the rows inside each, instead of all at once.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.
        max_failures: How many datapoints (rows, or batches) of one pass may fail, as for `MapData`; they are skipped,
            logged, and listed in `failures`.

    Raises:
        TypeError: `table` is of another type.
        ValueError: A column is missing, columns differ in length, or the columns of two files differ in type; names
            table or file, and column.
        FileNotFoundError: There is no such file, or a folder has no parquet file.
        FileDamaged: A file is damaged, or a value cannot be read; names file, row group or row, and column.
        ShapeMismatch: Some rows form no array: lists differ in length, or a value is missing. Names column and row.
        MissingExtra: The table needs pyarrow, which is not installed.

    Example:
        >>> table = {"x": np.arange(4.0), "name": ["a", "b", "c", "d"]}
        >>> df = TableData(table)
        >>> len(df), df[1]
        (4, {'x': np.float64(1.0), 'name': 'b'})
        >>> [batch["x"].tolist() for batch in TableData(table, columns=["x"], batch_size=3, remainder=True)]
        [[0.0, 1.0, 2.0], [3.0]]
    """

    def __init__(
        self,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int | None = None,
        remainder: bool = False,
        shuffle: bool | None = None,
        block_shuffle: int | None = None,
        seed: int | None = None,
        max_failures: Budget | None = None,
    ) -> None:
        super().__init__(shuffle, block_shuffle=block_shuffle, seed=seed)
        self.max_failures = count_or_fraction(self, "max_failures", max_failures)
        if isinstance(columns, str):
            raise TypeError(f"TableData: columns must be a list of names, got {columns!r}; write [{columns!r}]")
        self.columns = None if columns is None else list(columns)
        self.batch_size = None if batch_size is None else whole_number(self, "batch_size", batch_size, 1)
        self.remainder = flag(self, "remainder", remainder)
        self._paths = files_of("TableData", table, _SUFFIXES) if _is_paths(table) else None
        self.table = table if self._paths is not None else _own(table)
        if self._paths is None:
            _open_in_memory(self.table, self.columns)  # checks it

    @property
    def _df_files(self) -> Sequence[str]:
        return self._paths or ()

    @property
    def _df_compared(self) -> dict[str, Any]:
        return {name: value for name, value in super()._df_compared.items() if name != "table"}  # data, or their place

    def _df_open_reader(self) -> _TableReader:
        if self._paths is None:
            return _open_in_memory(self.table, self.columns)
        files = ParquetFiles(self._paths, self.columns, skip=self.max_failures is not None)
        if self.columns is None and (lost := self._partitions() - set(files.columns)):
            files.close()
            raise ValueError(
                f"TableData: the column {min(lost)!r} is in the names of folders, such as {self._paths[0]}, and not in "
                "the files, so it would be lost: name the columns to read in columns=, or pass a table that has it, "
                "such as pyarrow.dataset.dataset(folder, partitioning='hive').to_table()"
            )
        return _TableReader(
            files.columns,
            files.num_rows,
            files.load,
            files.named,
            identities=files.identities,
            check=files.require_unchanged,
            close=files.close,
        )

    def _partitions(self) -> set[str]:
        """Return the names of columns in the names of folders, as Hive writes them: ``year=2020/rows.parquet``.

        Below a folder that was given, or where the paths that were given differ.
        """

        def split(path: str) -> set[str]:
            return set(re.split(r"[/\\]", path))

        folders = [split(os.path.dirname(path)) for path in self._paths or ()]
        is_folder = isinstance(self.table, str | os.PathLike) and os.fspath(self.table) not in (self._paths or ())
        given = split(os.fspath(self.table)) if is_folder else set.intersection(*folders)
        return {unquote(part.split("=")[0]) for part in set.union(*folders) - given if "=" in part}

    def __len__(self) -> int:
        num = super().__len__()
        if self.batch_size is None:
            return num
        if 0 < num < self.batch_size and not self.remainder:
            raise ValueError(
                f"TableData: batch_size {self.batch_size} is more than the {num} rows of the table, so a pass would "
                "have no batch. Pass remainder=True, or a smaller batch_size"
            )
        return num // self.batch_size + (self.remainder and num % self.batch_size > 0)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        size = self.batch_size
        if size is None and self._df_tolerance() is None:
            return super()._df_run_pass(p, stream)
        made = self._df_made(_row_or_error if size is None else self._batch, lambda k: (p, k), stream)
        if size is None:
            positions = self._df_positions(p, len(self), stream, _AT_A_TIME)
            return present(made.over(chain.from_iterable(map(self._rows_or_errors, positions))))
        num_rows = super().__len__()
        used = min(num_rows, len(self) * size)
        # All rows are drawn from, also those that are left over in this pass.
        return present(made.over(self._df_positions(p, num_rows, stream, size, used)))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        is_batches = self.batch_size is not None
        if not is_batches and self._df_tolerance() is None:
            return super()._df_at(blocks, stream)
        requested = RequestedBlocks(blocks, partial(len, self))
        func = self._batch if is_batches else _row_or_error
        made = self._df_made(func, requested.place, (stream, RequestedBlocks))
        blocks = requested.recorded(made)
        if is_batches:
            return made.over(self._rows_at(index, stream) for block in blocks for index in block.tolist())
        return made.over(
            chain.from_iterable(self._rows_or_errors(self._df_positions_at(block, stream)) for block in blocks)
        )

    def _df_origins(self, indexes: Positions, stream: Stream) -> Positions:
        if self.batch_size is not None:
            return DataFlow._df_origins(self, indexes, stream)
        return super()._df_origins(indexes, stream)

    def _df_column(self, name: str) -> NDArray[Any]:
        with TableData(self.table, columns=[name], batch_size=_AT_A_TIME, remainder=True) as table:
            return np.concatenate([np.empty(0, np.int64), *(batch[name] for batch in table)], dtype=object)

    def _batch(self, positions: Positions) -> Any:
        return self.reader().batch(positions)

    def _rows_or_errors(self, positions: Positions) -> Iterator[Any]:
        return self.reader().read(positions, with_errors=True)  # type: ignore[no-any-return]

    def _rows_at(self, index: int, stream: Stream) -> Positions:
        """Return the rows of the batch at an index of the sequence of passes."""
        size, num_rows, num = self.batch_size or 1, super().__len__(), len(self)
        if num == 0:
            raise IndexError(f"TableData has no batches, so index {index} is out of range")
        p, number = divmod(index, num)
        rows = np.arange(number * size, min((number + 1) * size, num_rows))
        return self._df_order(p, num_rows, stream)[rows].astype(np.int64) if self.shuffle else rows


def _is_paths(table: Any) -> bool:
    if isinstance(table, str | os.PathLike):
        return True
    return isinstance(table, list | tuple) and all(isinstance(path, str | os.PathLike) for path in table)


# -- reading -----------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Rows of one part of a table."""

    number: int
    selection: Selection


Columns = Mapping[Any, TableColumn]


class _UnreadRow(NamedTuple):
    """Why a row cannot be read, in its place."""

    error: Exception


def _row_or_error(row: Any) -> Any:
    if type(row) is _UnreadRow:
        raise row.error
    return row


class _TableReader:
    """An open table.

    Args:
        names: Its columns.
        num_rows: The number of rows of each part.
        load: Returns the columns of a part, and their size in bytes.
        is_in_memory: All parts are in memory already, so none is dropped.
        named: Returns the name of the table, or of the file of a part, and the part's first row in it.
        identities: The state of each file.
        check: Raises if what `load` reads of these parts has changed.
        close: Closes what `load` reads.
    """

    def __init__(
        self,
        names: Sequence[Any],
        num_rows: Sequence[int],
        load: Callable[[int], tuple[Columns, int]],
        named: Callable[[int], tuple[str, int]],
        *,
        is_in_memory: bool = False,
        identities: Sequence[Identity] = (),
        check: Callable[[Set[int]], None] = lambda parts: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._names = names
        self._starts = starts_of(num_rows)
        self._load = load
        self._named = named
        self.identities = identities
        self._check = check
        self._close = close
        self._is_in_memory = is_in_memory
        self._max_bytes = sys.maxsize if is_in_memory else _KEPT_BYTES
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Columns, int]] = OrderedDict()
        self._kept_bytes = 0
        self._damaged: dict[int, Exception] = {}  # parts that could not be loaded, and why

    def __len__(self) -> int:
        return int(self._starts[-1])

    def close(self) -> None:
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0
            self._close()

    def read(self, positions: Positions, *, with_errors: bool = False) -> Iterator[Any]:
        """Yield rows as dicts; those of a part are converted together.

        Args:
            positions: The rows.
            with_errors: Yield an `_UnreadRow` in place of a row that cannot be read.

        Raises:
            FileDamaged: A row cannot be read; names file, row or row group, and column.
        """
        self._begin(positions)
        begin = 0
        while begin < len(positions):
            end = begin + self._num_at_once(int(positions[begin]))
            rows = self._readable(positions[begin:end])
            has_errors = type(rows) is list
            yield from map(_row_or_error, rows) if has_errors and not with_errors else rows
            begin = end

    def _readable(self, positions: Positions) -> Iterable[Any]:
        """Return rows, each a dict; or, if one of them cannot be read, a list that has an `_UnreadRow` in its place."""
        try:
            return self._rows(positions)
        except Exception as error:
            if len(positions) == 1:
                return [_UnreadRow(self._explain(int(positions[0]), error))]
        half = len(positions) // 2
        return [*self._readable(positions[:half]), *self._readable(positions[half:])]

    def _explain(self, position: int, error: Exception) -> Exception:
        """Return the error of one row; the message names the column, unless it is about the whole part."""
        number = self._part_of(position)
        if number in self._damaged:
            return error
        row = position - int(self._starts[number])
        for name in self._names:
            try:
                self._columns(number)[name].rows(slice(row, row + 1))
            except Exception as found:
                return self._value_error(name, position, found)
        return error

    def _value_error(self, name: Any, position: int, error: Exception) -> ValueError:
        message = f"{self._place(name, position)}: the value cannot be read ({type(error).__name__}: {error})"
        if self._is_in_memory:
            return ValueError(message)
        return FileDamaged(message, path=self._named(self._part_of(position))[0])

    def batch(self, positions: Positions) -> dict[Any, NDArray[Any]]:
        """Return rows as arrays.

        Raises:
            ShapeMismatch: Some rows form no array; names column and row.
            FileDamaged: A row cannot be read; names file, row or row group, and column.
        """
        self._begin(positions)
        parts, order = self._parts(positions)
        arrays: dict[Any, list[NDArray[Any]]] = {name: [] for name in self._names}
        for part in parts:
            columns = self._columns(part.number)
            for name, some in arrays.items():
                some.append(self._batch_of(name, columns[name], part))
        return {name: self._join(name, some, order, positions) for name, some in arrays.items()}

    def _join(
        self, name: Any, arrays: list[NDArray[Any]], order: NDArray[np.int64] | None, positions: Positions
    ) -> NDArray[Any]:
        try:
            return arrays[0] if len(arrays) == 1 else join_arrays(arrays, order)
        except NoBatch as error:
            raise self._mismatch(name, int(positions[error.row]), error.reason) from None

    def _batch_of(self, name: Any, column: TableColumn, part: _Part) -> NDArray[Any]:
        selection, start = part.selection, int(self._starts[part.number])
        try:
            return column.batch(selection)
        except Exception as error:
            rows = range(selection.start, selection.stop) if isinstance(selection, slice) else selection.tolist()
            if isinstance(error, NoBatch):
                raise self._mismatch(name, start + rows[error.row], error.reason) from None
            for row in rows:
                try:
                    column.rows(slice(row, row + 1))
                except Exception as found:
                    raise self._value_error(name, start + row, found) from error
            raise

    def _mismatch(self, name: Any, row: int, reason: str) -> ShapeMismatch:
        return ShapeMismatch(
            f"{self._place(name, row)}: the value {reason}, so the rows form no batch. Leave out batch_size, bring the "
            "values to one form with MapData (whose max_failures skips bad rows), and put BatchData above it; or leave "
            "the column out with columns=, or skip such batches with max_failures="
        )

    def _part_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, "right")) - 1

    def _place(self, name: Any, row: int) -> str:
        part = self._part_of(row)
        where, first = self._named(part)
        return f"{where}, column {name!r}, row {row - int(self._starts[part]) + first}"

    def _rows(self, positions: Positions) -> Iterator[dict[Any, Any]]:
        parts, order = self._parts(positions)
        values: dict[Any, list[Iterable[Any]]] = {name: [] for name in self._names}
        for part in parts:
            found = self._columns(part.number)
            for name, some in values.items():
                some.append(found[name].rows(part.selection))
        columns: list[Iterable[Any]] = []
        for some in values.values():
            if order is None:
                columns.append(some[0] if len(some) == 1 else chain.from_iterable(some))
            else:
                columns.append(map(list(chain.from_iterable(some)).__getitem__, order.tolist()))
        if not columns:
            return ({} for _ in positions)
        return map(dict, map(partial(zip, self._names), zip(*columns, strict=True)))

    def _num_at_once(self, position: int) -> int:
        """Return how many rows are converted together: fewer if rows are large."""
        part = self._part_of(position)
        num = int(self._starts[part + 1] - self._starts[part])
        try:
            self._columns(part)
        except Exception:
            return _MAX_ROWS  # it is raised again for each row
        with self._lock:
            size = self._kept[part][1] if part in self._kept else 0
        return max(1, min(_MAX_ROWS, _AT_ONCE * num // max(1, size)))

    def _parts(self, positions: Positions) -> tuple[list[_Part], NDArray[np.int64] | None]:
        """Return the parts that hold these rows, and the order that brings their rows together to `positions`."""
        first, num = int(positions[0]), len(positions)
        if int(positions[-1]) - first == num - 1 and (num < 3 or bool((np.diff(positions) == 1).all())):
            return list(self._run(first, first + num)), None
        numbers = np.searchsorted(self._starts, positions, "right") - 1
        order = None
        if (np.diff(numbers) < 0).any():
            part_by_part = np.argsort(numbers, kind="stable")
            order = np.empty(num, np.int64)
            order[part_by_part] = np.arange(num)
            positions = positions[part_by_part]
        return [_Part(number, inside) for number, inside in by_part(self._starts, positions)], order

    def _run(self, first: int, end: int) -> Iterator[_Part]:
        while first < end:
            number = self._part_of(first)
            begin, after = self._starts[number : number + 2].tolist()
            yield _Part(number, slice(first - begin, min(end, after) - begin))
            first = after

    def _columns(self, number: int) -> Columns:
        with self._lock:
            found = self._kept.get(number)
            if found is None:
                if number in self._damaged:
                    raise copy.copy(self._damaged[number])
                try:
                    found = self._kept[number] = self._load(number)
                except Exception as error:
                    self._damaged[number] = copy.copy(error)
                    raise
                self._kept_bytes += found[1]
                while len(self._kept) > 1 and self._kept_bytes > self._max_bytes:
                    _, (_, size) = self._kept.popitem(last=False)
                    self._kept_bytes -= size
            else:
                self._kept.move_to_end(number)
            return found[0]

    def _begin(self, positions: Positions) -> None:
        """Check the files of these rows, and forget the parts that could not be loaded for another reason than content.

        Raises:
            FileDamaged: A file has changed since it was opened.
        """
        if not self._is_in_memory:
            with self._lock:
                self._check(parts_of(self._starts, positions))
        if self._damaged:
            with self._lock:
                self._damaged = {k: error for k, error in self._damaged.items() if isinstance(error, ValueError)}


# -- tables in memory --------------------------------------------------------------------------------------------------


def _own(table: Any) -> Any:
    """Return a table that stays the same when the caller changes lists or frames.

    This process reads what it found when it opened the table, and workers what they find when they are started again.
    Of arrays of numbers, which are not copied, both read the present values.
    """
    if isinstance(table, Mapping) and not hasattr(table, "close"):  # the latter is a file, such as those of NumPy
        return {name: _own_column(table[name]) for name in table}
    return _own_column(table)


def _own_column(values: Any) -> Any:
    if hasattr(values, "iloc"):
        # From pandas 3 on, the one that is changed first gets memory of its own then.
        return values.copy(deep=sys.modules["pandas"].__version__.startswith(("1.", "2.")))
    if hasattr(getattr(values, "dtype", None), "na_value"):  # an array of pandas
        return values.copy()
    is_of_polars = hasattr(values, "__arrow_c_stream__") and hasattr(values, "__copy__")
    has_objects = isinstance(values, np.ndarray) and values.dtype.hasobject
    return copy.copy(values) if has_objects or is_of_polars or isinstance(values, MutableSequence) else values


def _open_in_memory(table: Any, columns: Sequence[Any] | None) -> _TableReader:
    """Open a table that is in memory."""
    if isinstance(table, Mapping):
        return _open_arrays("the dict", table, columns)
    if isinstance(table, np.ndarray) and table.dtype.names:
        return _open_arrays("the array", {name: table[name] for name in table.dtype.names}, columns)
    if hasattr(table, "iloc") and hasattr(table, "columns"):
        names = list(table.columns)
        check_columns("the DataFrame", columns, names)
        chosen = {name: _of_series(name, table[name]) for name in (names if columns is None else columns)}
        return _of_one_part("the DataFrame", chosen, len(table))
    if hasattr(table, "__arrow_c_stream__") and not any(hasattr(table, name) for name in ("set_format", "read_all")):
        return _open_arrow(table, columns)
    raise TypeError(f"TableData expects a table, got {type(table).__name__}: {_cure(table)}")


def _cure(table: Any) -> str:
    if isinstance(table, DataFlow):
        return "it is a dataflow already"
    if hasattr(table, "set_format"):
        return "a Hugging Face dataset is a sequence of rows, so use DataFromList(dataset)"
    if hasattr(table, "read_all"):
        return "a stream can be read only once, so pass the result of its read_all()"
    if hasattr(table, "collect"):
        return "pass the result of its collect()"
    if isinstance(table, list | tuple | np.ndarray):
        return "a list of rows, or an array of them, belongs into DataFromList"
    return "pass a dict of columns, a DataFrame, a pyarrow Table, or paths of parquet files"


def _open_arrays(named: str, table: Mapping[Any, Any], columns: Sequence[Any] | None) -> _TableReader:
    check_columns(named, columns, list(table))
    chosen = {name: table[name] for name in (table if columns is None else columns)}
    lengths = {}
    for name, values in (chosen or table).items():  # rows without columns are as many as those of all columns
        try:
            lengths[name] = -1 if isinstance(values, _NO_COLUMNS) else len(values)
        except TypeError:
            lengths[name] = -1
        if lengths[name] < 0:
            raise TypeError(
                f"TableData: column {name!r} is a {type(values).__name__}; a column is a list or an array of its rows"
            )
    if len(set(lengths.values())) > 1:
        raise ValueError(f"TableData: the columns differ in length, so they do not form rows: {lengths}")
    found = {name: _of_values(name, values) for name, values in chosen.items()}
    return _of_one_part(named, found, next(iter(lengths.values()), 0))


_NO_COLUMNS = (str, bytes, bytearray, memoryview, Mapping, Set)


def _of_values(name: Any, values: Any) -> TableColumn:
    dtype = getattr(values, "dtype", None)
    if hasattr(values, "iloc") and dtype is not None:
        return _of_series(name, values)
    if hasattr(dtype, "na_value"):  # an array or an index of pandas: NumPy would make floats of its integers
        return _of_series(name, sys.modules["pandas"].Series(values))
    if isinstance(values, list | tuple | range):
        return column_of(values)
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        pa = _pyarrow()
        _check_polars(name, dtype)
        data = pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values)
        check_types("the dict", [pa.field(name, data.type)])
        return arrow_column(data)
    if hasattr(values, "__array__"):
        return _of_array(name, values)
    return ObjectColumn(values)


def _of_array(name: Any, values: Any) -> TableColumn:
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError(
            f"TableData: column {name!r} is a masked array, whose mask would be lost: fill it (.filled()), or pass a "
            "column that knows missing values, such as pyarrow.array(column.data, mask=column.mask)"
        )
    array = np.asarray(values)
    return ObjectColumn(list(array)) if array.dtype == object else ArrayColumn(array)


def _of_series(name: Any, series: Any) -> TableColumn:
    """Return the column of a pandas Series, whose index is not used."""
    if isinstance(series.dtype, np.dtype) or hasattr(series.dtype, "fill_value"):  # the latter is sparse
        return _of_array(name, series.to_numpy())
    pa = _pyarrow()
    try:
        data = pa.array(series, from_pandas=True)
    except pa.ArrowException as error:
        raise ValueError(f"TableData: column {name!r} of the dtype {series.dtype} cannot be read: {error}") from error
    check_types("the DataFrame", [pa.field(str(name), data.type)])
    return arrow_column(data)


def _of_one_part(named: str, columns: Columns, num_rows: int) -> _TableReader:
    def load(_: int) -> tuple[Columns, int]:
        return columns, 0

    return _TableReader(list(columns), [num_rows], load, lambda _: (named, 0), is_in_memory=True)


def _open_arrow(table: Any, columns: Sequence[Any] | None) -> _TableReader:
    schema = getattr(table, "schema", None)
    for name, dtype in schema.items() if isinstance(schema, Mapping) else ():
        if columns is None or name in columns:
            _check_polars(name, dtype)
    whole = _pyarrow().table(table)
    check_columns("the table", columns, whole.column_names)
    if columns is not None:
        whole = whole.select(list(columns))
    check_types("the table", whole.schema)
    batches = whole.to_batches()
    if len(batches) > 1 and whole.num_rows < _FEW_ROWS * len(batches):
        whole = whole.combine_chunks()
        batches = whole.to_batches()
    starts = starts_of(batch.num_rows for batch in batches)

    def load(number: int) -> tuple[Columns, int]:
        batch = batches[number]
        columns = zip(batch.schema.names, batch.columns, strict=True)
        return {name: arrow_column(data) for name, data in columns}, batch.nbytes

    return _TableReader(
        whole.column_names,
        [batch.num_rows for batch in batches],
        load,
        lambda number: ("the table", int(starts[number])),
        is_in_memory=True,
    )


def _check_polars(name: Any, dtype: Any) -> None:
    """Check that Polars passes a column on: of Python objects, Arrow would get the addresses."""
    if (what := _NOT_PASSED_ON.get(str(dtype))) is not None:
        raise ValueError(
            f"TableData: column {name!r} holds {what}, which Polars does not pass on: leave the column out with "
            "columns=, or pass a dict of columns in which it is a list (.to_list())"
        )
    for inside in (getattr(dtype, "inner", None), *(field.dtype for field in getattr(dtype, "fields", None) or ())):
        if inside is not None:
            _check_polars(name, inside)


_NOT_PASSED_ON = {
    "Object": "Python objects",
    "Int128": "integers of 128 bits",
    "UInt128": "integers of 128 bits",
}


def _pyarrow() -> Any:
    return optional("pyarrow", "tables", "tables of pandas, polars and Arrow, and parquet files, need")
