"""Columns of tables, and what their rows and batches are: NumPy arrays, Python objects, Arrow data.

A column gives its rows one by one (`rows`), or some of them as one array (`batch`), in memory of their own:

| column | a row | a batch of n |
|---|---|---|
| numbers, booleans, times | a NumPy scalar | an array (n,) of that dtype |
| arrays of one shape | an array | an array (n, …) |
| text | a str | an array of str |
| bytes, dicts, other objects | itself | an array of objects |
| lists of numbers, also nested ones | an array; nested lists that differ in length: lists | an array (n, …) |
| lists of text and of other objects | a list | an array (n, …) |

A missing value is None in a row. In a batch it is NaN among floats, NaT among times, and None among text and objects;
integers, booleans and lists have no such value, so the batch raises `NoBatch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.datapoint import empty

__all__ = ["ArrayColumn", "NoBatch", "ObjectColumn", "Selection", "TableColumn", "arrow_column", "joined"]

Selection = slice | NDArray[np.int64]
"""Rows of a column: consecutive ones, or any."""


class NoBatch(Exception):
    """Some rows form no array.

    Attributes:
        row: The first row of the selection that does not fit.
        reason: What is wrong with it, as the rest of a sentence.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


class TableColumn(Protocol):
    """One column of a table, or of a part of it."""

    def rows(self, selection: Selection) -> Iterable[Any]:
        """Return the values of some rows. If one cannot be converted, this raises, not the loop over the values."""

    def batch(self, selection: Selection) -> NDArray[Any]:
        """Return some rows as one array. Raises `NoBatch`."""


class ArrayColumn:
    """The rows of a NumPy array without objects."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def rows(self, selection: Selection) -> Iterable[Any]:
        found = self._array[selection]
        if found.ndim > 1 or found.dtype.names:
            return (row.copy() for row in found)
        return found.tolist() if found.dtype.kind in "US" else list(found)

    def batch(self, selection: Selection) -> NDArray[Any]:
        array = self._array
        if isinstance(selection, slice):
            found = array[selection]
            out = empty(found.shape, found.dtype)
            out[...] = found
            return out
        out = empty((len(selection), *array.shape[1:]), array.dtype)
        # The mode only avoids a buffer: all positions are within the array.
        return np.take(array, selection, axis=0, out=out, mode="clip")


class ObjectColumn:
    """Rows that are Python objects."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._has_lists = any(type(value) in _LISTS for value in values)

    def rows(self, selection: Selection) -> Iterable[Any]:
        values = self._values
        found = values[selection] if isinstance(selection, slice) else map(values.__getitem__, selection.tolist())
        return [_list_as_array(value) for value in found] if self._has_lists else list(found)

    def batch(self, selection: Selection) -> NDArray[Any]:
        return _array_of(list(self.rows(selection)))


_LISTS = (list, tuple)


def _list_as_array(value: Any) -> Any:
    """Return a list of numbers as an array, and anything else unchanged."""
    if type(value) not in _LISTS:
        return value
    try:
        array = np.array(value)
    except ValueError:  # nested lists that differ in length
        return value
    return array if array.dtype.kind in "biufc" and len(value) else value


def _array_of(values: list[Any]) -> NDArray[Any]:
    kinds = set(map(type, values))
    if kinds == {str}:
        return _text(values)
    if all(issubclass(kind, np.ndarray | list | tuple | np.generic | int | float | complex) for kind in kinds):
        first = _shape(values[0], 0)
        for k, value in enumerate(values):
            if (shape := _shape(value, k)) != first:
                raise NoBatch(k, f"has the shape {shape}, and the first row of the batch {first}")
        return np.array(values)
    return _objects(values)


def _shape(value: Any, k: int) -> tuple[int, ...]:
    try:
        return np.shape(value)
    except ValueError:
        raise NoBatch(k, "holds lists that differ in length") from None


def _text(values: list[Any]) -> NDArray[Any]:
    """Return text as an array: of fixed width, unless None is among it, or numpy would strip a NUL."""
    if None in values or any(value.endswith("\0") for value in values):
        return _objects(values)
    return np.array(values)


def _objects(values: list[Any]) -> NDArray[Any]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def joined(batches: Sequence[NDArray[Any]], order: NDArray[np.int64] | None) -> NDArray[Any]:
    """Return several batches of one column as one, in another order.

    Raises:
        NoBatch: They differ in shape.
    """
    num = 0
    for batch in batches:
        if batch.shape[1:] != batches[0].shape[1:]:
            reason = f"has the shape {batch.shape[1:]}, and another row of the batch {batches[0].shape[1:]}"
            raise NoBatch(num if order is None else int(np.flatnonzero(order == num)[0]), reason)
        num += len(batch)
    found = np.concatenate(batches)
    return found if order is None else found[order]


# -- Arrow -------------------------------------------------------------------------------------------------------------


def arrow_column(data: Any) -> TableColumn:
    """Return the column of an Arrow array or chunked array; numbers are not copied."""
    import pyarrow as pa

    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks() if data.num_chunks != 1 else data.chunk(0)
    if isinstance(data, pa.ChunkedArray):  # longer than one array can be
        return _ArrowColumn(data)
    if isinstance(data, pa.FixedShapeTensorArray) and not data.null_count:
        return ArrayColumn(data.to_numpy_ndarray())
    data = _plain(data)
    return ArrayColumn(_numbers(data)) if _has_array(data) else _ArrowColumn(data)


def _plain(data: Any) -> Any:
    """Return an Arrow array without dictionaries, extension types and views."""
    import pyarrow as pa

    while True:
        if isinstance(data, pa.DictionaryArray):
            data = _plain(data.dictionary).take(data.indices)
        elif isinstance(data, pa.ExtensionArray):
            data = data.storage
        elif str(data.type) in _VIEWS:  # Arrow has few functions for these, which polars uses
            data = data.cast(_VIEWS[str(data.type)])
        else:
            return data


_VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}


def _has_array(data: Any) -> bool:
    """Whether an Arrow array has a NumPy array with a value for each row."""
    from pyarrow import types

    kind = data.type
    if types.is_floating(kind) or types.is_timestamp(kind) or types.is_duration(kind) or types.is_date(kind):
        return True
    return (types.is_integer(kind) or types.is_boolean(kind)) and not data.null_count


def _numbers(data: Any) -> NDArray[Any]:
    array: NDArray[Any] = data.to_numpy(zero_copy_only=False)
    return array


class _ArrowColumn:
    """Text, lists and other Arrow data, which become Python objects or arrays when they are read."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def rows(self, selection: Selection) -> Iterable[Any]:
        return _rows_of(self._select(selection))

    def batch(self, selection: Selection) -> NDArray[Any]:
        return _batch_of(self._select(selection))

    def _select(self, selection: Selection) -> Any:
        import pyarrow as pa

        if isinstance(selection, slice):
            found = self._data.slice(selection.start, selection.stop - selection.start)
        else:
            found = self._data.take(pa.array(selection))
        return _plain(found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found)


def _rows_of(data: Any) -> Iterable[Any]:
    from pyarrow import types

    kind = data.type
    if _has_array(data):
        return list(_numbers(data))
    if types.is_integer(kind):
        scalar = kind.to_pandas_dtype()
        return [None if value is None else scalar(value) for value in data.to_pylist()]
    if not _is_list(kind):
        return data.to_pylist()  # type: ignore[no-any-return]
    if data.null_count:
        nulls = data.is_null().to_numpy(zero_copy_only=False).tolist()
        return [None if nulls[k] else next(iter(_rows_of(data.slice(k, 1)))) for k in range(len(data))]
    ends = _ends(data)
    child = _plain(data.flatten())
    if _has_array(child):
        numbers = _numbers(child)
        return (numbers[first:end].copy() for first, end in zip([0, *ends], ends, strict=False))
    if _is_list(child.type):
        return [_nested(child.slice(first, end - first)) for first, end in zip([0, *ends], ends, strict=False)]
    return data.to_pylist()  # type: ignore[no-any-return]


def _nested(data: Any) -> Any:
    """Return one row of nested lists: an array if they have one length and hold numbers."""
    try:
        found = _batch_of(data)
    except NoBatch:
        return data.to_pylist()
    return data.to_pylist() if found.dtype.kind in "OUS" else found


def _batch_of(data: Any) -> NDArray[Any]:
    from pyarrow import types

    kind = data.type
    if _has_array(data):
        numbers = _numbers(data)
        out = empty(numbers.shape, numbers.dtype)
        out[...] = numbers
        return out
    if types.is_string(kind) or types.is_large_string(kind):
        return _text(data.to_pylist())
    if not types.is_integer(kind) and not types.is_boolean(kind) and not _is_list(kind):
        return _objects(data.to_pylist())
    if data.null_count:
        missing = int(np.flatnonzero(data.is_null().to_numpy(zero_copy_only=False))[0])
        raise NoBatch(missing, f"is missing (null), and an array of {kind} has no place for that")
    ends = np.array(_ends(data))
    lengths = np.diff(ends, prepend=0)
    if len(lengths) and (lengths != lengths[0]).any():
        other = int(np.flatnonzero(lengths != lengths[0])[0])
        raise NoBatch(other, f"is a list of {lengths[other]}, and the first row of the batch a list of {lengths[0]}")
    length = int(lengths[0]) if len(lengths) else 0
    try:
        values = _batch_of(_plain(data.flatten()))
    except NoBatch as error:
        raise NoBatch(error.row // max(1, length), f"holds a list in which a value {error.reason}") from None
    return values.reshape(len(data), length, *values.shape[1:])


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _ends(data: Any) -> list[int]:
    """Return where each list ends in the flattened array; there is no missing list."""
    from pyarrow import types

    if types.is_fixed_size_list(data.type):
        size = data.type.list_size
        return list(range(size, size * (len(data) + 1), size)) if size else [0] * len(data)
    offsets = data.offsets.to_numpy()
    return (offsets[1:] - offsets[0]).tolist()  # type: ignore[no-any-return]
