"""What travels: datapoints, their components, and how several become one batch.

A datapoint is a list, a tuple or a dict of components; any other value is tolerated where nothing looks inside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from operator import is_not
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataflow.errors import ShapeMismatch

__all__ = [
    "HOLE",
    "Hole",
    "allocate",
    "allocating",
    "component",
    "components",
    "is_datapoint",
    "present",
    "replaced",
    "selected",
    "stack",
]


@final
class Hole:
    """The place of a datapoint that a map dropped: positions stay what they were."""

    def __reduce__(self) -> str:
        return "HOLE"

    def __repr__(self) -> str:
        return "HOLE"


HOLE: Final = Hole()
_is_present: Final = partial(is_not, HOLE)


def present(datapoints: Iterable[Any]) -> Iterator[Any]:
    """The datapoints without the holes. No variable holds one: who receives it may reuse its memory."""
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
    raise TypeError(f"a datapoint is a list, tuple or dict of components, got {type(dp).__name__}: wrap it as [value]")


def component(dp: Any, key: Any) -> Any:
    """One component, by index or by key; an error that lists what there is."""
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
    """The components `keys` of `dp`, in that order: a dict for a dict, else a list."""
    if isinstance(dp, dict):
        return {key: component(dp, key) for key in keys}
    return [component(dp, key) for key in keys]


def _missing(dp: Any, key: Any, error: Exception) -> Exception:
    if not is_datapoint(dp):
        return TypeError(f"a datapoint is a list, tuple or dict of components, got {type(dp).__name__}")
    known = list(dp) if isinstance(dp, dict) or not dp else f"0 to {len(dp) - 1}"
    kind = KeyError if isinstance(error, KeyError) else type(error)
    return kind(f"no component {key!r} in a {type(dp).__name__} datapoint; there are {known}")


# -- memory ------------------------------------------------------------------------------------------------------------

Allocator = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]

_allocator: ContextVar[Allocator | None] = ContextVar("dataflow_allocator", default=None)


def allocate(shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
    """An uninitialised C-ordered array, in the memory in which the surrounding worker would send it.

    In the main process, and for Python objects, it is `numpy.empty`. Whoever fills it instead of a fresh array may
    save a copy.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    make = _allocator.get()
    return np.empty(shape, dtype) if make is None or dtype.hasobject else make(shape, dtype)


@contextmanager
def allocating(make: Allocator) -> Iterator[None]:
    """Inside the block, in this thread, `allocate` calls `make`."""
    token = _allocator.set(make)
    try:
        yield
    finally:
        _allocator.reset(token)


# -- batches -----------------------------------------------------------------------------------------------------------


def stack(datapoints: Sequence[Any], *, use_list: bool = False) -> Any:
    """Stack each component of `datapoints` on a new first axis; `use_list` keeps Python lists.

    Lists and tuples become a list, dicts become a dict.

    Raises:
        ShapeMismatch: The datapoints differ in components, or a component in shape or kind; names the component.
        OverflowError: A Python int does not fit into int32.
        TypeError: A component is of a kind that has no array.
    """
    first = datapoints[0]
    keys = [key for key, _ in components(first)]
    kind = dict if isinstance(first, dict) else (list, tuple)
    for dp in datapoints:
        if not isinstance(dp, kind) or len(dp) != len(keys) or (kind is dict and any(key not in dp for key in keys)):
            raise ShapeMismatch(
                f"the datapoints of one batch differ in their components: {_outline(first)} and {_outline(dp)}. "
                "Bring them to one form with MapData before BatchData"
            )
    columns = ([dp[key] for dp in datapoints] for key in keys)
    stacked = [column if use_list else _stack_column(column, key) for key, column in zip(keys, columns, strict=True)]
    return dict(zip(keys, stacked, strict=True)) if kind is dict else stacked


def _outline(dp: Any) -> str:
    if isinstance(dp, dict):
        return f"a dict of {sorted(map(repr, dp))}"
    return f"a {type(dp).__name__} of {len(dp)}" if is_datapoint(dp) else f"a {type(dp).__name__}"


def _stack_column(values: list[Any], key: Any) -> NDArray[Any]:
    if all(isinstance(value, np.ndarray) for value in values):
        return _stack_arrays(values, key)
    if any(isinstance(value, str | bytes) for value in values):
        return _stack_text(values, key)
    kinds = dict.fromkeys(map(type, values))
    dtype = _common_dtype([_scalar_dtype(kind, values, key) for kind in kinds], key)
    _check_int32(values, dtype, key)
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise _shapes_differ(key, [np.shape(value) for value in values])
    out = allocate((len(values), *shapes.pop()), dtype)
    out[:] = values
    return out


def _stack_arrays(arrays: list[NDArray[Any]], key: Any) -> NDArray[Any]:
    shape, dtype = arrays[0].shape, arrays[0].dtype
    if any(array.shape != shape for array in arrays):
        raise _shapes_differ(key, [array.shape for array in arrays])
    if any(array.dtype != dtype for array in arrays):
        dtype = _common_dtype([array.dtype for array in arrays], key)
    if dtype.metadata is not None or dtype.kind == "V":
        dtype = _shared_dtype([array.dtype for array in arrays], dtype)
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        masked: NDArray[Any] = np.ma.stack(arrays)
        return masked
    out = allocate((len(arrays), *shape), dtype)
    for k, array in enumerate(arrays):
        out[k] = array
    return out


def _shared_dtype(dtypes: list[np.dtype[Any]], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """`dtype`, without metadata that some arrays of a batch have and others do not: dtypes are equal without them."""
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
    """Metadata of a dtype, of its fields and of its elements."""
    below = [dtype[name] for name in dtype.names or ()] if dtype.subdtype is None else [dtype.base]
    return None if dtype.metadata is None else dict(dtype.metadata), list(map(_metadata, below))


def _scalar_dtype(kind: type, values: list[Any], key: Any) -> np.dtype[Any]:
    if kind is bool:
        return np.dtype(bool)
    if issubclass(kind, np.ndarray | np.generic):
        return _common_dtype([value.dtype for value in values if type(value) is kind], key)
    for python, dtype in ((int, np.int32), (float, np.float32), (complex, np.complex64)):
        if issubclass(kind, python):
            return np.dtype(dtype)
    raise TypeError(
        f"component {key!r} is a {kind.__name__}, which has no array form. Turn it into an array with "
        "MapDataComponent before batching, or pass use_list=True to keep a Python list"
    )


def _common_dtype(dtypes: list[np.dtype[Any]], key: Any) -> np.dtype[Any]:
    found = list(dict.fromkeys(dtypes))
    is_text = [dtype.kind in "US" for dtype in found]
    try:
        # numpy would turn numbers into text.
        if all(is_text) or not any(is_text):
            return np.result_type(*found)
    except TypeError:
        pass
    names = ", ".join(str(dtype) for dtype in found)
    raise ShapeMismatch(f"component {key!r} mixes {names} in one batch, which have no common dtype. Yield one type")


def _check_int32(values: list[Any], dtype: np.dtype[Any], key: Any) -> None:
    limits = np.iinfo(np.int32)
    for value in values:
        if isinstance(value, int) and not limits.min <= value <= limits.max:
            raise OverflowError(
                f"component {key!r} holds the Python int {value}, which does not fit into int32 (a batch of Python "
                f"ints is int32, this one {dtype}). Yield a numpy scalar of the dtype you want, for example np.int64"
            )


def _stack_text(values: list[Any], key: Any) -> NDArray[Any]:
    kind = str if isinstance(values[0], str) else bytes
    if not all(isinstance(value, kind) for value in values):
        found = sorted({type(value).__name__ for value in values})
        raise ShapeMismatch(f"component {key!r} mixes {', '.join(found)} in one batch. Yield one type")
    # Fixed-width numpy strings drop trailing NULs, so bytes travel as objects; text that numpy would cut is refused.
    if kind is bytes:
        out = np.empty(len(values), dtype=object)
        out[:] = values
        return out
    if any(value.endswith("\0") for value in values):
        raise ShapeMismatch(f"component {key!r} holds text that ends in NUL, which numpy cuts. Pass use_list=True")
    return np.array(values)


def _shapes_differ(key: Any, shapes: Sequence[tuple[int, ...]]) -> ShapeMismatch:
    found = ", ".join(str(shape) for shape in dict.fromkeys(shapes))
    return ShapeMismatch(
        f"component {key!r} has different shapes within one batch: {found}. Resize or pad it before BatchData, batch "
        "by shape with BatchDataByShape, or pass use_list=True"
    )
