"""Datapoints: access to their components, and stacking into batches.

A datapoint is a list, a tuple or a dict of components. Nodes that do not access components accept any other value.
"""

from __future__ import annotations

import copy
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from functools import partial
from itertools import chain
from operator import attrgetter, countOf, is_not
from types import FunctionType, ModuleType
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataflow.errors import ShapeMismatch

__all__ = [
    "ARRAY_NAMES",
    "HOLE",
    "INT32",
    "Hole",
    "allocating",
    "as_number_or_array",
    "columns_of",
    "component",
    "components",
    "empty",
    "is_datapoint",
    "present",
    "replaced",
    "require_kept",
    "selected",
    "stack",
    "stack_column",
    "user_attributes",
]


@final
class Hole:
    """Placeholder of a datapoint that a map dropped; it keeps the positions of the others."""

    def __reduce__(self) -> str:
        return "HOLE"

    def __repr__(self) -> str:
        return "HOLE"


HOLE: Final = Hole()
INT32: Final[np.dtype[Any]] = np.dtype(np.int32)
"""The dtype of Python ints in a batch, unless the user chooses another."""

_is_present: Final = partial(is_not, HOLE)
_SEQUENCES: Final = frozenset({list, tuple})
_SCALARS: Final[Mapping[type, np.dtype[Any]]] = {
    **{kind: np.dtype(kind) for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"},
    int: INT32,
    float: np.dtype(np.float32),
    complex: np.dtype(np.complex64),
    bool: np.dtype(bool),
}
"""The dtype of a batch of such scalars, which have no shape."""
_CODES: Final = {np.dtype(code): code for code in "bBhHiIqQ"}
"""The codes of `struct` for integers, in its standard sizes."""
_JOINED_BYTES: Final = range(1 << 10, 1 << 13)
"""Sizes of arrays that are joined: NumPy keeps 80 bytes in each that was read as bytes, too many for smaller ones."""
_HUGE_BYTES: Final = 1 << 22
"""From this size on NumPy asks for huge pages."""
ARRAY_NAMES: Final = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")
"""Of which an array or tensor of another library has at least one."""
_EXACT: Final = 2**53  # below it, floats of 64 bits are exact integers
_INTEGER: Final = re.compile(r"int\d")
_shape: Final = attrgetter("shape")
_dtype: Final = attrgetter("dtype")
_NUMBERS_AND_ARRAYS: Final = (bool, int, float, complex, np.generic, np.ndarray)


def present(datapoints: Iterable[Any]) -> Iterator[Any]:
    """The datapoints without the holes. No variable may hold one: its receiver may reuse its memory."""
    return filter(_is_present, datapoints)


def is_datapoint(dp: Any) -> bool:
    """Whether `dp` has components."""
    return isinstance(dp, list | tuple | dict)


def components(dp: Any) -> Iterable[tuple[Any, Any]]:
    """Pairs (index or key, component)."""
    if isinstance(dp, dict):
        return dp.items()
    if isinstance(dp, list | tuple):
        return enumerate(dp)
    raise _not_a_datapoint(dp)


def _not_a_datapoint(value: Any) -> TypeError:
    return TypeError(
        f"a datapoint is a list, tuple or dict of components, got {type(value).__name__}: wrap it as [value]"
    )


_TEXTS: Final = (str, bytes)


def component(dp: Any, key: Any) -> Any:
    """One component, by index or by key; the error lists the available ones."""
    if isinstance(dp, _TEXTS):  # its characters are no components
        raise _not_a_datapoint(dp)
    try:
        return dp[key]
    except (KeyError, IndexError, TypeError) as error:
        raise _missing(dp, key, error) from error


def replaced(dp: Any, key: Any, value: Any) -> Any:
    """A copy of `dp` with another component: a list for a list or tuple, a dict for a dict."""
    try:
        out = copy.copy(dp) if isinstance(dp, dict) else [component for _, component in components(dp)]
        out[key] = value
    except (IndexError, TypeError) as error:
        raise _missing(dp, key, error) from error
    return out


def selected(dp: Any, keys: Sequence[Any]) -> Any:
    """The components `keys` of `dp`, in that order: a dict for a dict, otherwise a list."""
    if type(dp) is list:
        try:
            return [dp[key] for key in keys]
        except (IndexError, TypeError):
            pass  # `component` says which
    if isinstance(dp, dict):
        return {key: component(dp, key) for key in keys}
    return [component(dp, key) for key in keys]


def _missing(dp: Any, key: Any, error: Exception) -> Exception:
    if not is_datapoint(dp):
        return _not_a_datapoint(dp)
    known = list(dp) if isinstance(dp, dict) or not dp else f"0 to {len(dp) - 1}"
    kind = KeyError if isinstance(error, KeyError) else type(error)
    return kind(f"no component {key!r} in a {type(dp).__name__} datapoint; there are {known}")


def user_attributes(value: Any) -> dict[str, Any]:
    """The public attributes of an object of a user's class: not what it may keep for itself, as a cache.

    Other objects have none.
    """
    from dataflow.system.references import attributes_of, is_of_library  # imported when it is first used

    if isinstance(value, type | FunctionType | ModuleType | Enum) or is_of_library(type(value)):
        return {}
    return {name: held for name, held in attributes_of(value) if name[:1] != "_"}


# -- memory ------------------------------------------------------------------------------------------------------------

Allocator = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]

_allocator: ContextVar[Allocator | None] = ContextVar("dataflow_allocator", default=None)


def empty(shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
    """An uninitialised C-ordered array, inside a worker in the shared memory from which it is sent.

    In the main process, and for Python objects, it is `numpy.empty`. Filling this array instead of a new one may save a
    copy.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    make = _allocator.get()
    return np.empty(shape, dtype) if make is None or dtype.hasobject else make(shape, dtype)


@contextmanager
def allocating(make: Allocator) -> Iterator[None]:
    """Inside the block, in this thread, `empty` calls `make`."""
    token = _allocator.set(make)
    try:
        yield
    finally:
        _allocator.reset(token)


# -- batches -----------------------------------------------------------------------------------------------------------


def stack(datapoints: Sequence[Any], *, use_list: bool = False, int_dtype: np.dtype[Any] = INT32) -> Any:
    """Stack each component of `datapoints` on a new first axis; `use_list` keeps Python lists.

    Lists and tuples become a list, dicts become a dict.

    Raises:
        ShapeMismatch: The datapoints differ in components, or a component in shape or kind; names the component.
        OverflowError: A Python int does not fit into `int_dtype`, a Python float would be infinite as float32, or an
            integer or a date would be another one in the common dtype of the batch.
        TypeError: A component is of a type that cannot become an array.
    """
    columns = columns_of(datapoints)
    stack_one = stack_column if int_dtype is INT32 else partial(stack_column, int_dtype=int_dtype)
    stacked = columns.values() if use_list else map(stack_one, columns.values(), columns)
    return dict(zip(columns, stacked, strict=True)) if isinstance(datapoints[0], dict) else list(stacked)


def columns_of(datapoints: Sequence[Any]) -> dict[Any, list[Any]]:
    """The components of all datapoints, by index or key."""
    if _SEQUENCES.issuperset(_kinds(datapoints)):
        try:
            # Cheaper than `zip`, which makes an iterator for each datapoint.
            if len(datapoints[0]) == 1:
                return {0: [value for (value,) in datapoints]}
            if len(datapoints[0]) == 2:
                columns: dict[Any, list[Any]] = {0: [], 1: []}
                add_first, add_second = columns[0].append, columns[1].append
                for first, second in datapoints:
                    add_first(first)
                    add_second(second)
                return columns
            return dict(enumerate(map(list, zip(*datapoints, strict=True))))
        except ValueError:
            pass  # they differ in length
    return {key: [dp[key] for dp in datapoints] for key in _common_keys(datapoints)}


def _common_keys(datapoints: Sequence[Any]) -> list[Any]:
    first = datapoints[0]
    keys = [key for key, _ in components(first)]
    kind = dict if isinstance(first, dict) else (list, tuple)
    for dp in datapoints:
        if not isinstance(dp, kind) or len(dp) != len(keys) or (kind is dict and any(key not in dp for key in keys)):
            raise ShapeMismatch(
                f"the datapoints of one batch differ in their components: {_outline(first)} and {_outline(dp)}. "
                "Bring them to one form with MapData before BatchData"
            )
    return keys


def _kinds(values: Sequence[Any]) -> list[type]:
    """The types of `values`, each once, in order of appearance."""
    first = type(values[0])
    return [first] if countOf(map(type, values), first) == len(values) else list(dict.fromkeys(map(type, values)))


def _outline(dp: Any) -> str:
    if isinstance(dp, dict):
        return f"a dict of {sorted(map(repr, dp))}"
    return f"a {type(dp).__name__} of {len(dp)}" if is_datapoint(dp) else f"a {type(dp).__name__}"


def stack_column(values: list[Any], key: Any, int_dtype: np.dtype[Any] = INT32) -> NDArray[Any]:
    """Stack one component, named `key`, of several datapoints: scalars, arrays, text, or lists of one length."""
    kinds = _kinds(values)
    if kinds == [np.ndarray]:
        alike = _stack_alike(values)
        return _stack_arrays(values, key) if alike is None else alike
    if len(kinds) == 1 and (dtype := _SCALARS.get(kinds[0])) is not None:
        return _stack_scalars(values, kinds[0], key, int_dtype if kinds[0] is int else dtype)
    are_arrays = [issubclass(kind, np.ndarray) for kind in kinds]
    if all(are_arrays):
        return _stack_arrays(values, key)
    if any(issubclass(kind, str | bytes) for kind in kinds):
        return _stack_text(values, kinds, key)
    if not all(issubclass(kind, _NUMBERS_AND_ARRAYS) for kind in kinds):
        if all(issubclass(kind, list | tuple) for kind in kinds):
            return _stack_lists(values, key, int_dtype)
        return stack_column([as_number_or_array(value, key, int_dtype) for value in values], key, int_dtype)
    dtype = _common_dtype([_scalar_dtype(kind, values, key, int_dtype) for kind in kinds], key)
    if any(issubclass(kind, int) for kind in kinds):
        _check_ints(values, key, int_dtype)
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        return _stack_arrays([np.ma.array(value, dtype=dtype) for value in values], key)
    shape: tuple[int, ...] = ()
    if any(are_arrays):
        shapes = [np.shape(value) for value in values]
        shape = shapes[0]
        if shapes.count(shape) < len(shapes):
            raise _shapes_differ(key, shapes)
    out = empty((len(values), *shape), dtype)
    _fill(out, values, key)
    for value in values:
        require_kept(value, dtype, key)
    return out


def _fill(out: NDArray[Any], values: list[Any], key: Any) -> None:
    """Assign numbers to `out`; floats may be rounded, but not become infinite."""
    if out.dtype.kind not in "fc":
        try:
            out[:] = values
        except OverflowError:  # of dates, from NumPy 2.5 on: find out which
            for value in values:
                require_kept(value, out.dtype, key)
            raise
        return
    try:
        with np.errstate(over="raise"):
            out[:] = values
    except FloatingPointError:
        raise OverflowError(
            f"component {key!r} holds a number that would be infinite as {out.dtype} (Python floats are batched as "
            "float32). Yield NumPy scalars of the dtype you want, for example np.float64"
        ) from None


def _date_or_nat(date: Any, dtype: np.dtype[Any]) -> Any:
    try:
        return date.astype(dtype)
    except OverflowError:
        return np.array("NaT", dtype)[()]


def require_kept(value: Any, dtype: np.dtype[Any], key: Any) -> None:
    """Check that integers and dates stay what they are when they are converted to `dtype`; floats may be rounded.

    Raises:
        OverflowError: They do not; names the component and a value.
    """
    array = np.asarray(value)
    for given, common in zip(array.dtype.names or (), dtype.names or (), strict=False):
        require_kept(array[given], dtype[common], key)
    if array.dtype == dtype or array.dtype.kind not in ("iu" if dtype.kind in "fc" else "mM"):
        return
    try:
        made = array.astype(dtype)
    except OverflowError:  # of dates, from NumPy 2.5 on
        made = np.array([_date_or_nat(one, dtype) for one in array.flat], dtype).reshape(array.shape)
    if dtype.kind in "mM":
        wrong = array[(made.astype(array.dtype) != array) & ~np.isnat(array)]
        unit = "datetime64[s]" if dtype.kind == "M" else "timedelta64[s]"
        cure = f"Convert them to one unit that holds all of them, such as {unit}"
    else:
        exact = 2 ** (np.finfo(dtype).nmant + 1)  # up to here every integer is a float
        large = (array > exact) | (array < -exact)
        pairs = zip(array[large].tolist(), made[large].real.tolist(), strict=True)
        wrong = np.array([one for one, as_float in pairs if int(as_float) != one], dtype=array.dtype)
        cure = "Yield one dtype, so that integers stay integers"
    if wrong.size:
        raise OverflowError(
            f"component {key!r} holds {wrong.flat[0]} ({array.dtype}), which would be another value as {dtype}, the "
            f"common dtype of this batch. {cure}"
        )


def _stack_scalars(values: list[Any], kind: type, key: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Stack scalars of one type. `struct` reads a list twice as fast as NumPy, and checks what it writes."""
    out = empty(len(values), dtype)
    code = "f" if kind is float else _CODES.get(dtype)
    if kind is complex:
        _fill(out, values, key)
    elif code is None:
        out[:] = values
    else:
        try:
            struct.pack_into(f"={len(values)}{code}", out.data, 0, *values)
        except (OverflowError, struct.error):
            if kind is float:
                _fill(out, values, key)  # raises it with an explanation, as `_check_ints` does
            else:
                _check_ints(values, key, dtype)
            raise
    return out


def _stack_lists(lists: list[Any], key: Any, int_dtype: np.dtype[Any]) -> NDArray[Any]:
    """Stack lists or tuples of one length, whose elements are themselves stacked."""
    lengths = [*map(len, lists)]
    if lengths.count(lengths[0]) < len(lengths):
        found = list(dict.fromkeys(lengths))
        shown = ", ".join(map(str, found[:8])) + (", …" if len(found) > 8 else "")
        raise ShapeMismatch(
            f"component {key!r} is a list of different lengths within one batch: {shown}. Pad it with PadBatchData, "
            "which pads the components in its keys, or pass use_list=True to BatchData to keep Python lists"
        )
    if not lengths[0]:
        return empty((len(lists), 0), int_dtype)
    elements = stack_column([*chain.from_iterable(lists)], key, int_dtype)
    return elements.reshape(len(lists), lengths[0], *elements.shape[1:])


def as_number_or_array(value: Any, key: Any, int_dtype: np.dtype[Any] = INT32) -> Any:
    """`value` if it is a number or text; else as an array: a list, an image, an array or tensor of another library.

    Raises:
        TypeError: It cannot become an array.
    """
    if isinstance(value, (*_NUMBERS_AND_ARRAYS, str, bytes)):
        return value
    if isinstance(value, list | tuple):
        return _stack_lists([value], key, int_dtype)[0]
    try:
        if any(hasattr(value, name) for name in ARRAY_NAMES[:-1]):
            array = np.asarray(value)
            if array.dtype.kind in "fO" and _lost_integers(value, array):
                raise TypeError("NumPy makes floats of its integers: fill in those that are missing, or cast it")
            return array
        if hasattr(value, ARRAY_NAMES[-1]):
            return np.from_dlpack(value)
    except Exception as error:  # another library's: a tensor on a GPU, or of a dtype that NumPy lacks
        raise TypeError(
            f"component {key!r} is a {type(value).__name__} that cannot become an array ({error}). Convert it with "
            "MapDataComponent before batching"
        ) from error
    raise TypeError(
        f"component {key!r} is a {type(value).__name__}, which cannot become an array. Convert it with "
        "MapDataComponent before batching, or pass use_list=True to keep a Python list"
    )


def _lost_integers(value: Any, array: NDArray[Any]) -> bool:
    """Whether integers of pandas, polars or Arrow may be other numbers in `array`: NumPy makes floats of some."""
    if not (hasattr(value, "isna") or hasattr(value, "null_count") or hasattr(value, "schema")):
        return False  # a tensor, for example
    if array.ndim == 2 and hasattr(value, "columns"):
        kinds = value.dtypes if hasattr(value, "dtypes") else value.schema.types
        return any(_are_integers(kind) and _has_inexact(array[:, k]) for k, kind in enumerate(kinds))
    return _are_integers(getattr(value, "dtype", getattr(value, "type", None))) and _has_inexact(array)


def _are_integers(kind: Any) -> bool:
    """Whether a dtype of another library is one of integers, or of lists or categories of them."""
    name = str(getattr(getattr(kind, "categories", None), "dtype", kind)).lower()
    return _INTEGER.search(name) is not None and "float" not in name and "double" not in name


def _has_inexact(values: Any) -> bool:
    """Whether there is a float that is NaN, or too large to be an exact integer, in an array or in arrays in it."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        return any(map(_has_inexact, values.flat))
    return getattr(values, "dtype", np.dtype(type(values))).kind == "f" and not (np.abs(values) < _EXACT).all()


def _stack_alike(arrays: list[NDArray[Any]]) -> NDArray[Any] | None:
    """Stack arrays of one shape and one dtype in one call; None if they differ or are 0-dimensional."""
    first = arrays[0]
    if first.dtype.metadata is not None or first.dtype.kind == "V":
        return None  # dtypes that differ in metadata are equal: `_stack_arrays` compares the metadata
    if first.nbytes in _JOINED_BYTES and (joined := _join(arrays)) is not None:
        return joined
    try:
        if countOf(map(len, arrays), len(first)) < len(arrays):
            return None
        out = empty((len(arrays), *first.shape), first.dtype)
        # Raises if dtypes differ, or shapes beyond the first axis, which was compared above.
        np.concatenate(arrays, out=out.reshape(len(arrays) * len(first), *first.shape[1:]), casting="no")
    except (TypeError, ValueError):
        return None
    return out


def _join(arrays: list[NDArray[Any]]) -> NDArray[Any] | None:
    """Stack small arrays in new memory of the main process; None if they differ, or cannot be read as bytes.

    NumPy spends more time on choosing how to copy a small array than on the copy.
    """
    num, shape, dtype = len(arrays), arrays[0].shape, arrays[0].dtype
    is_here = _allocator.get() is None and not dtype.hasobject and num * arrays[0].nbytes < _HUGE_BYTES
    if not is_here or countOf(map(_shape, arrays), shape) < num or countOf(map(_dtype, arrays), dtype) < num:
        return None
    try:
        return np.ndarray((num, *shape), dtype, bytearray().join(arrays))  # type: ignore[arg-type]
    except TypeError:  # one is not contiguous, or they are dates
        return None


def _stack_arrays(arrays: list[NDArray[Any]], key: Any) -> NDArray[Any]:
    shape, dtype = arrays[0].shape, arrays[0].dtype
    if any(array.shape != shape for array in arrays):
        raise _shapes_differ(key, [array.shape for array in arrays])
    if any(array.dtype != dtype for array in arrays):
        dtype = _common_dtype([array.dtype for array in arrays], key)
    if dtype.metadata is not None or dtype.kind == "V":
        dtype = _shared_dtype([array.dtype for array in arrays], dtype)
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        for one in arrays:
            require_kept(one, dtype, key)
        masked: NDArray[Any] = np.ma.stack(arrays)
        return masked
    out = empty((len(arrays), *shape), dtype)
    for k, one in enumerate(arrays):
        require_kept(one, dtype, key)
        out[k] = one
    return out


def _shared_dtype(dtypes: list[np.dtype[Any]], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """`dtype`, without metadata unless all arrays of a batch have the same: dtypes are compared regardless of it."""
    if all(one is dtypes[0] for one in dtypes) or len({repr(_metadata(one)) for one in dtypes}) == 1:
        return dtype
    return _without_metadata(dtype)


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.subdtype is not None:
        return np.dtype((_without_metadata(dtype.base), dtype.shape))
    if dtype.names is None or dtype.fields is None:
        return np.dtype(dtype.str) if dtype.metadata is not None else dtype
    fields = [dtype.fields[name] for name in dtype.names]
    return np.dtype(
        {
            "names": dtype.names,
            "formats": [_without_metadata(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
            "aligned": dtype.isalignedstruct,
        }
    )


def _metadata(dtype: np.dtype[Any]) -> Any:
    """The metadata of a dtype, its fields and its elements."""
    below = [dtype[name] for name in dtype.names or ()] if dtype.subdtype is None else [dtype.base]
    return None if dtype.metadata is None else dict(dtype.metadata), list(map(_metadata, below))


def _scalar_dtype(kind: type, values: list[Any], key: Any, int_dtype: np.dtype[Any]) -> np.dtype[Any]:
    if kind in _SCALARS and kind is not int:
        return _SCALARS[kind]
    if issubclass(kind, np.ndarray | np.generic):
        return _common_dtype([value.dtype for value in values if type(value) is kind], key)
    if issubclass(kind, int):
        return int_dtype
    return np.dtype(np.float32 if issubclass(kind, float) else np.complex64)


def _common_dtype(dtypes: list[np.dtype[Any]], key: Any) -> np.dtype[Any]:
    found = list(dict.fromkeys(dtypes))
    is_text = [dtype.kind in "US" for dtype in found]
    kinds = {dtype.kind if dtype.kind in "mMO" else "" for dtype in found}
    try:
        # NumPy would make text of numbers, durations of numbers, and dates of durations.
        if (all(is_text) or not any(is_text)) and (len(kinds) == 1 or "O" in kinds):
            return np.result_type(*found)
    except TypeError:
        pass
    names = ", ".join(str(dtype) for dtype in found)
    raise ShapeMismatch(f"component {key!r} mixes {names} in one batch, which have no common dtype. Yield one type")


def _check_ints(values: list[Any], key: Any, dtype: np.dtype[Any]) -> None:
    limits = np.iinfo(dtype)
    ints = [value for value in values if isinstance(value, int)]
    if min(ints) < limits.min or max(ints) > limits.max:
        wrong = next(value for value in ints if not limits.min <= value <= limits.max)
        wider = "Pass int_dtype=np.int64 to the batching node, or yield" if dtype != np.int64 else "Yield"
        raise OverflowError(
            f"component {key!r} holds the Python int {wrong}, which does not fit into {dtype} (Python ints are "
            f"batched as {dtype}). {wider} a numpy scalar of the dtype you want, for example np.uint64"
        )


def _stack_text(values: list[Any], kinds: Iterable[type], key: Any) -> NDArray[Any]:
    kind = str if isinstance(values[0], str) else bytes
    if not all(issubclass(found, kind) for found in kinds):
        found = sorted({found.__name__ for found in kinds})
        raise ShapeMismatch(f"component {key!r} mixes {', '.join(found)} in one batch. Yield one type")
    # numpy strips trailing NULs of fixed-width strings: bytes become an object array, and such text raises an error.
    if kind is bytes:
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return out
    if "\0" in "".join(values) and any(value.endswith("\0") for value in values):
        raise ShapeMismatch(f"component {key!r} holds text that ends in NUL, which numpy strips. Pass use_list=True")
    return np.array(values)


def _shapes_differ(key: Any, shapes: Sequence[tuple[int, ...]]) -> ShapeMismatch:
    found = ", ".join(str(shape) for shape in dict.fromkeys(shapes))
    return ShapeMismatch(
        f"component {key!r} has different shapes within one batch: {found}. Resize or pad it before BatchData, batch "
        "by shape with BatchDataByShape, or pass use_list=True"
    )
