"""Tables of datapoints, one column for each component: the content of npz and HDF5 files.

The first datapoint determines the columns. Arrays of one dtype and shape, and numbers, make columns of arrays;
any other storable type (text, bytes, containers) makes a column of records, whose lengths differ.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, repeat
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import FileDamaged, NotStorable
from dataflow.formats.checksums import check_version, file_damaged
from dataflow.formats.loading import Positions, runs
from dataflow.formats.records import RecordDecoder, RecordEncoder
from dataflow.transport.dtypes import dtype_name, dtype_of

__all__ = [
    "ENDS",
    "Column",
    "ColumnTable",
    "GrowingColumn",
    "RecordRows",
    "RecordWriter",
    "StoredColumn",
    "TableWriter",
    "check_num_rows",
]

ENDS = ".ends"
"""Suffix of the name of a column of records: the array of their ends, uint64 (n,)."""

_NUMBERS: dict[type, str] = {bool: "|b1", int: "<i8", float: "<f8", complex: "<c16"}
_DTYPES = {kind.__name__: dtype for kind, dtype in _NUMBERS.items()}
_SCALAR = "scalar"  # a number of numpy's
_ARRAY = "array"
_RECORD = "record"
_CONTAINERS = {"list": list, "tuple": tuple, "dict": dict}
_ALONE = "alone"  # the datapoint is not a container
_AT_ONCE = 1 << 19  # bytes of neighbouring rows that are read together
_MAX_ROWS = 4096
_MAX_EMPTY_ROWS = 1 << 24  # without any bytes: the bytes of a file do not limit how many it claims


@dataclass(frozen=True)
class Column:
    """One component of all datapoints.

    Attributes:
        name: Its key, or its number as text, or a name given by the user.
        kind: "array", "scalar" (numpy's), "record", or the name of one of Python's numbers.
        dtype: Dtype of each row; "" for records.
        shape: Shape of each row.
    """

    name: str
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()

    @property
    def is_record(self) -> bool:
        """Whether its rows are records."""
        return self.kind == _RECORD

    @property
    def row_bytes(self) -> int:
        """Bytes of each row; 0 for records."""
        return 0 if self.is_record else dtype_of(self.dtype).itemsize * math.prod(self.shape)

    def is_valid(self) -> bool:
        """Whether it can be one of ours.

        Raises:
            ValueError: Its dtype is invalid, or its shape is too large.
        """
        if type(self.name) is not str or self.kind not in {_SCALAR, _ARRAY, _RECORD, *_DTYPES}:
            return False
        if self.is_record or self.kind in _DTYPES:
            return (self.dtype, self.shape) == (_DTYPES.get(self.kind, ""), ())
        dtype = dtype_of(self.dtype)
        if not dtype.itemsize and dtype.kind in "SU":  # `np.empty` and copies have one character
            return False
        np.empty((0 if self.row_bytes else _MAX_ROWS, *self.shape), dtype)  # without elements
        return self.kind == _ARRAY or not self.shape

    def values(self, rows: NDArray[Any]) -> list[Any]:
        """Return the values of these rows in datapoints; arrays that share no memory."""
        if self.kind == _ARRAY and not self.shape:  # arrays without axes: an index would make them scalars
            return [rows[k : k + 1].reshape(()).copy() for k in range(len(rows))]
        if self.kind == _ARRAY:
            return [row.copy() for row in rows] if rows.base is not None or len(rows) > 1 else [rows[0]]
        if self.kind == _SCALAR:
            return [row.copy() if rows.dtype.names else row for row in rows]
        values: list[Any] = rows.tolist()
        return values


@dataclass(frozen=True)
class ColumnTable:
    """Schema shared by all datapoints of a file."""

    container: str
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, dp: Any, names: Sequence[str] | None = None) -> ColumnTable:
        """Return the table for datapoints like `dp`.

        Args:
            dp: The first datapoint.
            names: Names of the columns, one for each component.

        Raises:
            NotStorable: A key cannot be the name of a column.
            ValueError: There are fewer or more `names` than components.
        """
        container = next((name for name, kind in _CONTAINERS.items() if type(dp) is kind), _ALONE)
        keys = list(dp) if container == "dict" else None
        for key in keys or ():
            if type(key) is not str or not key or "\0" in key or not key.isprintable() or key.startswith("/"):
                raise NotStorable(
                    f"the key {key!r} cannot name a column, because it is not plain text: rename it, or use LMDB or "
                    "TFRecord"
                )
        if keys is not None and names is not None:
            if sorted(names) != sorted(keys):
                raise ValueError(f"the datapoints have the keys {keys}, not {list(names)}")
            keys = list(names)
        values = _values(dp, container, keys)
        if names is not None and len(names) != len(values):
            raise ValueError(f"{len(names)} names for {len(values)} components: {list(names)}")
        labels = [str(name) for name in (names or keys or range(len(values)))]
        columns = tuple(map(_column, labels, values))
        table = cls(container, columns)
        stored = table._stored_names()
        twice = sorted({name for name in stored if stored.count(name) > 1})
        if twice:
            raise NotStorable(f"two columns would be called {twice[0]!r}: rename one")
        return table

    def _stored_names(self) -> list[str]:
        return [name for column in self.columns for name in (column.name, *([column.name + ENDS] * column.is_record))]

    def row(self, dp: Any) -> list[Any]:
        """Return the components of a datapoint in the order of the columns: arrays and numbers, or values for records.

        Raises:
            NotStorable: The datapoint does not fit the table; names the component.
        """
        keys = [column.name for column in self.columns] if self.container == "dict" else None
        kind = _CONTAINERS.get(self.container)
        if (type(dp) is not kind) if kind else (type(dp) in _CONTAINERS.values()):
            raise NotStorable(f"it is a {type(dp).__name__}, and the first was {self._outline()}: {_CURE}")
        if keys is not None and dp.keys() != set(keys):
            raise NotStorable(f"it has the keys {list(dp)}, and the first had {keys}: {_CURE}")
        if kind is not None and len(dp) != len(self.columns):
            raise NotStorable(f"it has {len(dp)} components, and the first had {len(self.columns)}: {_CURE}")
        values = _values(dp, self.container, keys)
        for column, value in zip(self.columns, values, strict=True):
            if not column.is_record and (found := _column(column.name, value)) != column:
                raise NotStorable(
                    f"component {column.name!r} is {_describe(found)}, and in the first datapoint "
                    f"{_describe(column)}: {_CURE}"
                )
            if column.kind == "int" and not -(2**63) <= value < 2**63:
                raise NotStorable(f"component {column.name!r} is {value}, which is not a 64-bit integer: {_CURE}")
        return values

    def read(self, columns: Sequence[StoredColumn], positions: Positions) -> Iterator[Any]:
        """Yield the datapoints at these positions; neighbouring rows are read together."""
        row_bytes = sum(column.row_bytes for column in columns)
        for first, end in runs(positions, min(_MAX_ROWS, max(1, _AT_ONCE // max(1, row_bytes)))):
            yield from self._datapoints([column.values(first, end) for column in columns], end - first)

    def _datapoints(self, columns: list[list[Any]], num: int) -> Iterable[Any]:
        if self.container == _ALONE:
            return columns[0]
        rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True) if columns else repeat((), num)
        if self.container == "dict":
            names = [column.name for column in self.columns]
            return (dict(zip(names, row, strict=True)) for row in rows)
        return map(list, rows) if self.container == "list" else rows

    def to_json(self) -> dict[str, Any]:
        """Return the table in terms of JSON."""
        return {"container": self.container, "columns": [asdict(column) for column in self.columns]}

    @classmethod
    def from_json(cls, said: Any) -> ColumnTable:
        """Return the table from the result of `to_json`."""
        columns = (Column(**{**column, "shape": tuple(column["shape"])}) for column in said["columns"])
        return cls(said["container"], tuple(columns))

    @classmethod
    def described(cls, path: str, place: str, text: bytes, version: int) -> tuple[ColumnTable, int, Any]:
        """Return the table of a file of ours, its number of rows, and all that the file says about itself in `text`.

        Raises:
            FileDamaged: `text` is not JSON, or says something else, or has another version than `version`.
        """
        try:
            about = json.loads(text)
        except Exception as error:  # ValueError, or RecursionError
            raise file_damaged(path, place, f"what it says about itself cannot be read ({error})") from error
        try:
            check_version(path, place, about.get("version"), version, about.get("checksum"))
            table, num = cls.from_json(about["table"]), about["size"]
            counts = [num, *(n for column in table.columns for n in column.shape)]
            if any(type(n) is not int or n < 0 for n in counts) or not all(map(Column.is_valid, table.columns)):
                raise ValueError("its columns are none that this format has")
            names, num_columns = table._stored_names(), len(table.columns)
            if len(set(names)) < len(names) or (num_columns != 1 and table.container == _ALONE):
                raise ValueError(f"{num_columns} columns {names} do not make up a datapoint")
            if table.container not in {*_CONTAINERS, _ALONE}:
                raise ValueError(f"a datapoint cannot be a {table.container!r}")
            return table, num, about
        except FileDamaged:
            raise
        except Exception as error:  # of any type: anything may stand there
            reason = f"what it says about its rows cannot be read ({type(error).__name__}: {error})"
            raise file_damaged(path, place, reason) from error

    def _outline(self) -> str:
        return "no container" if self.container == _ALONE else f"a {self.container}"


_CURE = "the columns of this format hold values of one kind; bring them to one form (MapData), or use LMDB or TFRecord"


def check_num_rows(path: str, num: int, columns: Iterable[Column]) -> None:
    """Check that the bytes of a file limit the number of its rows, or that it is no large one.

    Raises:
        FileDamaged: The rows of these columns take no bytes, and there would be too many.
    """
    if num > _MAX_EMPTY_ROWS and not _has_content(columns):
        raise file_damaged(path, "", f"it claims {num} rows without content, and {_MAX_EMPTY_ROWS} are the most")


def _has_content(columns: Iterable[Column]) -> bool:
    return any(column.is_record or column.row_bytes for column in columns)


def _values(dp: Any, container: str, keys: list[str] | None) -> list[Any]:
    if keys is not None:
        return [dp[key] for key in keys]
    return [dp] if container == _ALONE else list(dp)


def _column(name: str, value: Any) -> Column:
    kind = type(value)
    if kind in _NUMBERS:
        return Column(name, kind.__name__, _NUMBERS[kind])
    array = isinstance(value, np.ndarray) and kind is np.ndarray
    text = kind is np.str_ or kind is np.bytes_  # of any length, so it is stored as records
    if array or (isinstance(value, np.generic) and value.dtype.type is kind and not text):
        dtype = dtype_name(value.dtype)
        if dtype is not None and value.dtype.itemsize:
            return Column(name, _ARRAY if array else _SCALAR, dtype, value.shape)
    return Column(name, _RECORD)  # where `pack` rejects what cannot be stored


def _describe(column: Column) -> str:
    if column.is_record:
        return "none of these"
    return f"{column.dtype} {column.shape}" if column.kind == _ARRAY else f"a {column.kind} ({column.dtype})"


# -- reading and writing -----------------------------------------------------------------------------------------------


class StoredColumn(Protocol):
    """A column of an open file."""

    column: Column
    row_bytes: int
    """Mean bytes of a row."""

    def values(self, first: int, end: int) -> list[Any]:
        """Return the values of these rows in datapoints."""


class RecordRows:
    """A stored column of records.

    Args:
        path: The file, for messages.
        place: What the file calls the column, for messages.
        column: The column.
        ends: End of each record among the bytes of the column.
        size: Bytes of the column.
        fetch: Return the bytes between two of them, for rows from the first one on: (row, begin, end).
        offset: Where the bytes of the column begin in the file, if known.

    Raises:
        FileDamaged: The ends are not ascending, or the last one is not that of the column.
    """

    def __init__(
        self,
        path: str,
        place: str,
        column: Column,
        ends: NDArray[np.uint64],
        size: int,
        fetch: Callable[[int, int, int], Any],
        *,
        offset: int | None = None,
    ) -> None:
        if (int(ends[-1]) if len(ends) else 0) != size or (ends[1:] < ends[:-1]).any():
            raise file_damaged(path, place, f"the ends of its records do not fit its {size} bytes")
        self.column = column
        self.row_bytes = int(ends[-1]) // len(ends) if len(ends) else 0
        self._path = path
        self._unit = f"{place}, row"
        self._ends = np.concatenate([np.zeros(1, np.uint64), ends])
        self._fetch = fetch
        self._offset = offset

    def values(self, first: int, end: int) -> list[Any]:
        """Return the values of these rows in datapoints."""
        ends = self._ends[first : end + 1].tolist()
        base = ends[0]
        data = memoryview(self._fetch(first, base, ends[-1]))
        decode = RecordDecoder(self._path, self._unit, foreign=False).decode
        name, offset = self.column.name, self._offset
        values = []
        for k, (begin, after) in enumerate(pairwise(ends), start=first):
            at = None if offset is None else offset + begin
            row = decode(data[begin - base : after - base], k, at, key=_row_key(k))
            if type(row) is not dict or name not in row or len(row) > 1:
                raise file_damaged(self._path, f"{self._unit} {k}", f"its record is not one of column {name!r}", at)
            values.append(row[name])
        return values


class RecordWriter:
    """Makes the records of a column, and notes their ends.

    Args:
        column: The column.
    """

    def __init__(self, column: Column) -> None:
        self.ends = array("Q")
        self._name = column.name
        self._encode = RecordEncoder().encode
        self._end = 0

    def record(self, value: Any) -> bytes:
        """Return the record of the next row."""
        # As the component of a datapoint, so that an error names it.
        record = self._encode({self._name: value}, _row_key(len(self.ends)))
        self._end += len(record)
        self.ends.append(self._end)
        return record


class GrowingColumn(Protocol):
    """A column of a file that is being written."""

    def write(self, value: Any) -> None:
        """Write the value of one row."""

    def finish(self) -> None:
        """Write the buffered rows."""


G = TypeVar("G", bound=GrowingColumn)


class TableWriter(Generic[G]):
    """Writes datapoints into columns, which the first datapoint determines.

    Args:
        begin: Make a column of the file.
        names: Names of the columns; None means keys or numbers.
    """

    def __init__(self, begin: Callable[[Column], G], names: Sequence[str] | None = None) -> None:
        self.table = ColumnTable("list", ())
        self.columns: list[G] = []
        self.num = 0
        self._begin = begin
        self._names = names

    def write(self, dp: Any) -> None:
        """Write one datapoint.

        Raises:
            NotStorable: A component cannot be stored; names it.
        """
        if not self.num:
            self.table = ColumnTable.of(dp, self._names)
            self.columns = [self._begin(column) for column in self.table.columns]
        if self.num == _MAX_EMPTY_ROWS and not _has_content(self.table.columns):
            raise NotStorable(f"there are {self.num} datapoints without content already, which are the most")
        for column, value in zip(self.columns, self.table.row(dp), strict=True):
            column.write(value)
        self.num += 1

    def finish(self) -> None:
        """Write the buffered rows."""
        for column in self.columns:
            column.finish()


def _row_key(k: int) -> bytes:
    return b"%d" % k
