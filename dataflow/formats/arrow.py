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

A missing value is None in a row. In a batch, and inside a list, it is NaN among floats, NaT among times, and None among
text and objects; integers, booleans and lists have no such value, so the batch raises `NoBatch`.

What would lose a part of its meaning is refused: Python's integers where NumPy would round them, values of several
kinds where it would make text of them, masks, time zones, and extension types (`check_types`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.datapoint import empty

__all__ = [
    "ArrayColumn",
    "NoBatch",
    "ObjectColumn",
    "Selection",
    "TableColumn",
    "arrow_column",
    "check_columns",
    "check_types",
    "column_of",
    "join_arrays",
    "lies_in_nanoseconds",
]

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


class NullableColumn(ArrayColumn):
    """The rows of a NumPy array, of which some are missing. In the array, these are NaN or NaT."""

    def __init__(self, array: NDArray[Any], is_missing: NDArray[np.bool_]) -> None:
        super().__init__(array)
        self._is_missing = is_missing

    def rows(self, selection: Selection) -> Iterable[Any]:
        return _with_none(super().rows(selection), self._is_missing[selection])


class _SomeTensors:
    """Arrays of one shape, of which some are missing.

    Args:
        column: Those that are there.
        is_missing: Which rows are not.
    """

    def __init__(self, column: ArrayColumn, is_missing: NDArray[np.bool_]) -> None:
        self._column = column
        self._is_missing = is_missing
        self._positions = np.cumsum(~is_missing) - 1

    def rows(self, selection: Selection) -> Iterable[Any]:
        is_missing = self._is_missing[selection]
        found = iter(self._column.rows(self._positions[selection][~is_missing]))
        return [None if missing else next(found) for missing in is_missing.tolist()]

    def batch(self, selection: Selection) -> NDArray[Any]:
        if (missing := np.flatnonzero(self._is_missing[selection])).size:
            raise NoBatch(int(missing[0]), "is missing (null), and is an array elsewhere")
        return self._column.batch(self._positions[selection])


def _with_none(values: Iterable[Any], is_missing: NDArray[np.bool_]) -> list[Any]:
    return [None if missing else value for value, missing in zip(values, is_missing.tolist(), strict=True)]


def column_of(values: Sequence[Any]) -> TableColumn:
    """Return the column of a list: an array of Python's numbers if it holds them all, and else its objects."""
    if not values or not set(map(type, values)) <= {int, float, bool, complex}:
        return ObjectColumn(values)
    array = _numbers_of(values)
    return (
        ObjectColumn(values) if array.dtype.hasobject or _first_lost(values, array) is not None else ArrayColumn(array)
    )


_LISTS = (list, tuple)
_EXACT = 2**53  # below it, floats of 64 bits are exact integers


def _list_as_array(value: Any) -> Any:
    """Return a list of numbers as an array, and anything else unchanged."""
    if type(value) not in _LISTS:
        return value
    try:
        array = np.array(value)
    except ValueError:  # nested lists that differ in length
        return value
    return array if array.dtype.kind in "biufc" and len(value) and _first_lost(value, array) is None else value


def _array_of(values: list[Any]) -> NDArray[Any]:
    kinds = set(map(type, values))
    if all(issubclass(kind, str) for kind in kinds):
        return _text(values)
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        raise NoBatch(0, "belongs to a column with masked arrays")
    are_numbers = all(
        issubclass(kind, np.ndarray | list | tuple | np.generic | int | float | complex) for kind in kinds
    )
    if not are_numbers or any(issubclass(kind, str | bytes) for kind in kinds):
        return _objects(values)
    first = _shape(values[0], 0)
    for k, value in enumerate(values):
        if (shape := _shape(value, k)) != first:
            raise NoBatch(k, f"has the shape {shape}, and the first row of the batch {first}")
    try:
        found = _numbers_of(values)
    except (TypeError, ValueError) as error:
        raise NoBatch(0, f"and those of other rows of the batch form no array ({error})") from None
    if (lost := _first_lost(values, found)) is not None:
        raise NoBatch(lost, f"would change in an array of {found.dtype}, which NumPy makes of the rows of the batch")
    return found


def _numbers_of(values: Sequence[Any]) -> NDArray[Any]:
    """Return what NumPy makes of some values; of integers, without floats between int64 and uint64."""
    if {int} == set(map(type, values)) and min(values) >= 0 and 2**63 <= max(values) < 2**64:
        return np.array(values, np.uint64)
    return np.array(values)


def _first_lost(values: Sequence[Any], array: NDArray[Any]) -> int | None:
    """Return the first of some values that is another one in the array that NumPy has made of them; None if none is.

    It makes floats of integers of both signs beyond 64 bits, and of integers beside floats; text of numbers beside
    text; it strips NULs at the end of text; and times may not fit into their common unit.
    """
    dtypes = {value.dtype if isinstance(value, np.ndarray | np.generic) else type(value) for value in values}
    if dtypes <= {array.dtype, float, complex} or array.dtype.hasobject or array.dtype.kind in "biuV":
        return None
    with np.errstate(all="ignore"):
        if array.dtype.kind in "fc" and bool((np.abs(array) < _EXACT).all()):
            return None
    return next((k for k, value in enumerate(values) if not _is_same(value, array[k])), None)


def _is_same(value: Any, found: Any) -> bool:
    if found.dtype.kind in "mM":
        there = np.asarray(value)
        if there.dtype.kind != found.dtype.kind:  # NumPy makes durations of numbers, and dates of durations
            return False
        back = found.astype(there.dtype)
        return bool(((there == back) | (np.isnat(there) & np.isnat(back))).all())
    for one, other in zip(np.array(value, object).flat, found.ravel().tolist(), strict=True):
        plain = one.item() if isinstance(one, np.generic) else one  # NumPy would compare floats
        if plain != other and repr(plain) != repr(other):  # the latter is equal if both are NaN
            return False
    return True


def _shape(value: Any, k: int) -> tuple[int, ...]:
    try:
        return np.shape(value)
    except ValueError:
        raise NoBatch(k, "holds lists that differ in length") from None


def _text(values: list[Any]) -> NDArray[Any]:
    """Return text as an array: of fixed width, unless None is among it, or numpy would strip a NUL."""
    if None in values or any(value.endswith("\0") for value in values):
        return _objects(values)
    return np.array(values, str)


def _objects(values: list[Any]) -> NDArray[Any]:
    out = np.empty(len(values), object)
    for k, value in enumerate(values):  # one by one: NumPy would make arrays of sequences and tensors
        out[k] = value
    return out


def join_arrays(batches: Sequence[NDArray[Any]], order: NDArray[np.int64] | None) -> NDArray[Any]:
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


def check_columns(named: str, columns: Sequence[Any] | None, existing: Sequence[Any]) -> None:
    """Check that the chosen columns are there.

    Raises:
        ValueError: One is missing, is named twice, or is there twice.
    """
    for name in existing if columns is None else columns:
        if existing.count(name) > 1:
            raise ValueError(f"TableData: {named} has two columns {name!r}: rename one")
    for name in columns or ():
        if name not in existing:
            close = difflib.get_close_matches(str(name), map(str, existing), 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            known = ", ".join(map(repr, existing)) or "none"
            raise ValueError(f"TableData: {named} has no column {name!r}; there are {known}.{hint}")
    if columns is not None and len(set(columns)) < len(columns):
        raise ValueError(f"TableData: columns names a column twice: {list(columns)}")


# -- Arrow -------------------------------------------------------------------------------------------------------------


def arrow_column(data: Any) -> TableColumn:
    """Return the column of an Arrow array or chunked array; numbers are not copied."""
    import pyarrow as pa

    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks() if data.num_chunks != 1 else data.chunk(0)
    if isinstance(data, pa.ChunkedArray):  # longer than one array can be
        return _ArrowColumn(data)
    if isinstance(data, pa.FixedShapeTensorArray):
        if not data.null_count:
            return ArrayColumn(data.to_numpy_ndarray())
        there = data.is_valid()
        return _SomeTensors(ArrayColumn(data.filter(there).to_numpy_ndarray()), ~_numbers(there))
    data = _plain(data)
    if not _has_array(data):
        return _ArrowColumn(data)
    return NullableColumn(_numbers(data), _numbers(data.is_null())) if data.null_count else ArrayColumn(_numbers(data))


def check_types(named: str, fields: Iterable[Any]) -> None:
    """Check that the values of these Arrow fields lose nothing.

    Raises:
        ValueError: One does; names the column, and the cure.
    """
    for field in fields:
        if (lost := _lost_of(field)) is not None:
            raise ValueError(f"TableData: column {field.name!r} of {named} {lost}")


def _lost_of(field: Any) -> str | None:
    """Return what the values of an Arrow field would lose, and the cure, as the rest of a sentence; None if nothing.

    A type of an extension means more than what it is stored as. Known ones are read as what they mean.
    """
    from pyarrow import types

    kind = field.type
    name = getattr(kind, "extension_name", (field.metadata or {}).get(b"ARROW:extension:name", b"").decode())
    if types.is_timestamp(kind) and kind.tz and kind.tz not in _UTC:
        return (
            f"has times of the zone {kind.tz}, and NumPy's have none: convert it to UTC, with "
            ".cast(pa.timestamp('us', 'UTC')) in Arrow, .dt.tz_convert('UTC') in pandas, or "
            ".dt.convert_time_zone('UTC') in polars"
        )
    if name and name not in _KNOWN and not name.startswith("datasets."):
        storage = getattr(kind, "storage_type", kind)
        return (
            f"has the extension type {name}, which is more than the {storage} that stores it: convert it, for example "
            "periods of pandas with .dt.to_timestamp(), or to that type, with .cast() in Arrow"
        )
    below = [kind.field(k) for k in range(kind.num_fields)]
    if types.is_dictionary(kind):
        below.append(field.with_type(kind.value_type))
    inside = (_NESTED_TENSOR if _is_tensor(one) else _lost_of(one) for one in below)
    return next((reason for reason in inside if reason is not None), None)


def _is_tensor(field: Any) -> bool:
    return getattr(field.type, "extension_name", "") == "arrow.fixed_shape_tensor"


_NESTED_TENSOR = "has tensors inside lists or structs, where they would lose their shape: make a column of them"
_KNOWN = ("arrow.fixed_shape_tensor", "arrow.json", "arrow.bool8", "arrow.uuid")
_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "+00:00")  # as which NumPy's times are understood


def _plain(data: Any) -> Any:
    """Return an Arrow array without dictionaries, extension types and views."""
    import pyarrow as pa

    while True:
        if isinstance(data, pa.DictionaryArray):
            data = _plain(data.dictionary).take(data.indices)
        elif isinstance(data, pa.UuidArray):
            return data
        elif isinstance(data, pa.ExtensionArray):
            data = data.storage.cast(pa.bool_()) if isinstance(data, pa.Bool8Array) else data.storage
        else:
            kind = _without_views(data.type)
            return data if kind == data.type else data.cast(kind)


def _without_views(kind: Any) -> Any:
    """Return a type without views, at any depth: polars uses them, and Arrow has few functions for them."""
    import pyarrow as pa
    from pyarrow import types

    def without(kind: Any) -> Any:
        if types.is_string_view(kind):
            return pa.large_string()
        return pa.large_binary() if types.is_binary_view(kind) else kind

    return _replaced(kind, without)


def _replaced(kind: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a type whose innermost types are replaced."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(kind):
        return pa.struct([field.with_type(_replaced(field.type, replace)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_replaced(kind.key_type, replace), _replaced(kind.item_type, replace))
    if not _is_list(kind):
        return replace(kind)
    item = kind.value_field.with_type(_replaced(kind.value_type, replace))
    if types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if types.is_large_list(kind) else pa.list_(item)


def lies_in_nanoseconds(data: Any) -> bool:
    """Whether all times of a chunked array, at any depth, are within the range of 64 bits of nanoseconds."""
    import pyarrow as pa
    from pyarrow import types

    def finer(kind: Any) -> Any:
        return pa.timestamp("ns", kind.tz) if types.is_timestamp(kind) else kind

    try:
        data.cast(_replaced(data.type, finer))
    except pa.ArrowInvalid:
        return False
    return True


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
        self._has_nanoseconds = "time64[ns]" in str(data.type)

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
        found = _plain(found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found)
        return _in_microseconds(found) if self._has_nanoseconds else found


def _in_microseconds(data: Any) -> Any:
    """Return times of day in microseconds, as Python has them, at any depth.

    Raises:
        ValueError: One has nanoseconds.
    """
    import pyarrow as pa

    def coarser(kind: Any) -> Any:
        return pa.time64("us") if kind == pa.time64("ns") else kind

    rows = data.take(pa.array(np.arange(len(data))))  # of a slice of lists, values of other lists would be cast, too
    try:
        return rows.cast(_replaced(data.type, coarser))
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"a time of day has nanoseconds, which datetime.time lacks ({error}): cast the column before, to "
            "pa.time64('us') with safe=False, or to pa.int64()"
        ) from error


def _rows_of(data: Any) -> Iterable[Any]:
    from pyarrow import types

    kind = data.type
    if _has_array(data):
        rows = list(_numbers(data))
        return _with_none(rows, _numbers(data.is_null())) if data.null_count else rows
    if types.is_integer(kind) or types.is_boolean(kind):
        scalar = kind.to_pandas_dtype()
        return [None if value is None else scalar(value) for value in data.to_pylist()]
    if not _is_list(kind):
        return data.to_pylist()  # type: ignore[no-any-return]
    if data.null_count:
        nulls = data.is_null().to_numpy(zero_copy_only=False).tolist()
        return [None if nulls[k] else next(iter(_rows_of(data.slice(k, 1)))) for k in range(len(data))]
    ends = np.cumsum(_lengths(data)).tolist()
    child = _plain(data.flatten())
    if child.null_count and (types.is_integer(child.type) or types.is_boolean(child.type)):
        # Of rows without a missing value arrays are made, whichever rows are read together with them.
        return [_row_of_list(child.slice(first, end - first)) for first, end in zip([0, *ends], ends, strict=False)]
    if _has_array(child):
        numbers = _numbers(child)
        return (numbers[first:end].copy() for first, end in zip([0, *ends], ends, strict=False))
    leaf = child.type
    while _is_list(leaf):
        leaf = leaf.value_type
    if _is_list(child.type) and not (types.is_large_string(leaf) or types.is_string(leaf) or types.is_nested(leaf)):
        return [_nested(child.slice(first, end - first)) for first, end in zip([0, *ends], ends, strict=False)]
    return data.to_pylist()  # type: ignore[no-any-return]


def _row_of_list(data: Any) -> Any:
    """Return one row of a list of integers or booleans: an array, unless a value is missing."""
    return data.to_pylist() if data.null_count else _numbers(data).copy()


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
    lengths = _lengths(data)
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


def _lengths(data: Any) -> NDArray[Any]:
    """Return the length of each list; there is no missing list."""
    import pyarrow.compute

    return _numbers(pyarrow.compute.list_value_length(data))
