"""Tables of datapoints, one column for each component: the content of npz and HDF5 files.

The first datapoint determines the columns. Arrays of one dtype and shape, and numbers, make columns of arrays;
any other storable type (text, bytes, containers) makes a column of records, whose lengths differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import NotStorable
from dataflow.serial.dtypes import dtype_name, dtype_of

__all__ = ["ENDS", "Column", "ColumnTable"]

ENDS = ".ends"
"""Suffix of the name of a column of records: the array of their ends, uint64 (n,)."""

_NUMBERS: dict[type, str] = {bool: "|b1", int: "<i8", float: "<f8", complex: "<c16"}
_SCALAR = "scalar"  # a number of numpy's
_ARRAY = "array"
_RECORD = "record"
_CONTAINERS = {"list": list, "tuple": tuple, "dict": dict}
_ALONE = "alone"  # the datapoint is not a container


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
        return 0 if self.is_record else dtype_of(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))

    def values(self, rows: NDArray[Any]) -> list[Any]:
        """Return the values of these rows in datapoints; arrays that share no memory."""
        if self.kind == _ARRAY and not self.shape:  # arrays without axes: an index would make them scalars
            return [rows[k : k + 1].reshape(()).copy() for k in range(len(rows))]
        if self.kind == _ARRAY:
            return [row.copy() for row in rows] if len(rows) > 1 else [rows[0]]
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
                    f"the key {key!r} cannot name a column, because it is no plain text: rename it, or use LMDB or "
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
        stored = [name for column in columns for name in (column.name, *([column.name + ENDS] * column.is_record))]
        twice = sorted({name for name in stored if stored.count(name) > 1})
        if twice:
            raise NotStorable(f"two columns would be called {twice[0]!r}: rename one")
        return cls(container, columns)

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
                    f"component {column.name!r} is {_described(found)}, and in the first datapoint "
                    f"{_described(column)}: {_CURE}"
                )
            if column.kind == "int" and not -(2**63) <= value < 2**63:
                raise NotStorable(f"component {column.name!r} is {value}, which is no 64-bit integer: {_CURE}")
        return values

    def datapoint(self, values: Sequence[Any]) -> Any:
        """Return the datapoint with these components."""
        if self.container == "dict":
            return {column.name: value for column, value in zip(self.columns, values, strict=True)}
        return list(values) if self.container == "list" else tuple(values) if self.container == "tuple" else values[0]

    def to_json(self) -> dict[str, Any]:
        """Return the table in terms of JSON."""
        return {"container": self.container, "columns": [asdict(column) for column in self.columns]}

    @classmethod
    def from_json(cls, said: Any) -> ColumnTable:
        """Return the table from the result of `to_json`."""
        said = json.loads(said) if isinstance(said, str) else said
        columns = (Column(**{**column, "shape": tuple(column["shape"])}) for column in said["columns"])
        return cls(said["container"], tuple(columns))

    def _outline(self) -> str:
        return "no container" if self.container == _ALONE else f"a {self.container}"


_CURE = "the columns of this format hold values of one kind; bring them to one form (MapData), or use LMDB or TFRecord"


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
        if dtype is not None:
            return Column(name, _ARRAY if array else _SCALAR, dtype, value.shape)
    return Column(name, _RECORD)  # where `pack` rejects what cannot be stored


def _described(column: Column) -> str:
    if column.is_record:
        return "none of these"
    return f"{column.dtype} {column.shape}" if column.kind == _ARRAY else f"a {column.kind} ({column.dtype})"
