"""Layout of arrays of fixed shapes and dtypes in shared memory, and checked stores into them."""

from __future__ import annotations

import math
import mmap
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataflow.errors import ShapeMismatch

__all__ = ["Layout", "as_array", "components_of", "fixed_dtype", "fixed_shape", "store", "store_one"]

_ALIGNMENT: Final = 64
_KINDS_WITH_RANGES: Final = "iu"
_KINDS_OF_NUMBERS: Final = "iuf"
_KINDS_WITH_INFINITIES: Final = "fc"
_CURE: Final = "return one array, or a list or tuple of arrays"


@dataclass(frozen=True)
class Layout:
    """Dtypes and shapes of several arrays, and the offset of each in one piece of memory."""

    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, owner: str, dtypes: Sequence[DTypeLike], shapes: Sequence[Any]) -> Layout:
        """Return the layout that a user describes by two lists.

        Raises:
            ValueError: The lists differ in length; the message gives both lengths.
            TypeError: A dtype has no fixed size, or an argument is not a list.
        """
        for name, value in (("dtypes", dtypes), ("shapes", shapes)):
            if not isinstance(value, list | tuple):
                raise TypeError(f"{owner}: {name} is a list with one entry for each array, got {value!r:.100}")
        if len(dtypes) != len(shapes):
            raise ValueError(f"{owner}: {len(dtypes)} dtypes for {len(shapes)} shapes; give one of each for each array")
        return cls(tuple(map(fixed_dtype, dtypes)), tuple(map(fixed_shape, shapes)))

    @property
    def nbytes(self) -> int:
        """Total size of all arrays in bytes; at least one."""
        return max(1, self.starts()[-1])

    def starts(self) -> list[int]:
        """Return the offset of each array, and that of the next set of arrays."""
        starts = [0]
        for dtype, shape in zip(self.dtypes, self.shapes, strict=True):
            nbytes = math.prod(shape) * dtype.itemsize
            starts.append(starts[-1] + -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
        return starts

    def views(self, memory: mmap.mmap, start: int = 0) -> list[NDArray[Any]]:
        """Return the arrays at offset `start`, to be read and written in place."""
        parts = zip(self.dtypes, self.shapes, self.starts(), strict=False)
        return [np.ndarray(shape, dtype, memory, start + begin) for dtype, shape, begin in parts]


def fixed_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype; raise if its values do not have a fixed size."""
    found = np.empty(0, dtype).dtype  # numpy turns a zero-length text dtype into one of length 1
    if found.hasobject:
        raise TypeError(f"dtype {found} refers to Python objects, which cannot be shared between processes")
    return found


def fixed_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape as a tuple; a single number is the length of a vector."""
    sizes = tuple(map(operator.index, shape)) if isinstance(shape, Sequence | np.ndarray) else (operator.index(shape),)
    if any(size < 0 for size in sizes):
        raise ValueError(f"a shape has no negative size, got {sizes}")
    return sizes


def components_of(result: Any) -> tuple[Any, ...]:
    """Return the arrays of a function's result: one, or several in a list or tuple."""
    if isinstance(result, dict | set):
        raise TypeError(f"the target returned a {type(result).__name__}; {_CURE}")
    if isinstance(result, np.ndarray | np.generic | complex | float | int | str | bytes):
        return (result,)
    if result is None:
        raise TypeError(f"the target returned None; {_CURE}")
    return tuple(result)


def as_array(value: Any, position: int) -> NDArray[Any]:
    """Return a component as an array, whatever its dtype."""
    if value is None:
        raise TypeError(f"component {position} of the result is None; return an array, or leave the component out")
    return np.asarray(value)


def store(views: Sequence[NDArray[Any]], result: Any) -> None:
    """Write the target's result into `views`.

    Raises:
        ShapeMismatch: Another number of arrays, or another shape; the message gives both.
        TypeError: The conversion would change the kind, for example from complex to float.
        OverflowError: A value does not fit into the dtype. Floats stored as integers lose their fraction.
    """
    parts = components_of(result)
    if len(parts) != len(views):
        raise ShapeMismatch(
            f"the target returned {len(parts)} arrays, of shapes {[np.shape(part) for part in parts]}; agreed were "
            f"{len(views)}, of shapes {[view.shape for view in views]}"
        )
    for position, (view, part) in enumerate(zip(views, parts, strict=True)):
        store_one(view, part, f"component {position}", as_array(part, position))


def store_one(view: NDArray[Any], value: Any, name: str, array: NDArray[Any]) -> None:
    """Write `value` into `view`; `array` is `value` as an array. For errors see `store`."""
    if array.shape != view.shape:
        raise ShapeMismatch(f"{name} has shape {array.shape}; agreed was {view.shape}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, and the mask would be lost: call filled() first")
    # As in numpy's assignment, and in ELEKTRONN: 5 fits into uint8, whatever its dtype, and 2.7 becomes 2.
    to_integers = view.dtype.kind in _KINDS_WITH_RANGES and array.dtype.kind in _KINDS_OF_NUMBERS
    if not to_integers and not np.can_cast(array.dtype, view.dtype, "same_kind"):
        raise TypeError(
            f"{name} has dtype {array.dtype}, shape {array.shape}, and cannot become {view.dtype}, shape {view.shape}, "
            "without changing its kind. Convert it with astype, or agree on another dtype"
        )
    # numpy calls days into nanoseconds a safe cast, and they overflow.
    simple = view.dtype == array.dtype or view.dtype.kind not in "mMV"
    if simple and np.can_cast(array.dtype, view.dtype, "safe"):
        np.copyto(view, array)
    else:
        _store_checked(view, array, name)


def _in_range(array: NDArray[Any], limits: np.iinfo[Any]) -> bool:
    """Whether all values, truncated to integers, lie within `limits`; NaN and infinities do not."""
    if not array.size:
        return True
    smallest, largest = array.min(), array.max()
    if not (np.isfinite(smallest) and np.isfinite(largest)):
        return False
    return int(smallest) >= limits.min and int(largest) <= limits.max


def _store_checked(view: NDArray[Any], array: NDArray[Any], name: str) -> None:
    if view.dtype.kind in _KINDS_WITH_INFINITIES:
        fits = True
        try:
            with np.errstate(over="raise"):
                np.copyto(view, array, casting="unsafe")
        except FloatingPointError:
            fits = False
    elif view.dtype.kind in _KINDS_WITH_RANGES and array.dtype.kind in _KINDS_OF_NUMBERS:
        fits = _in_range(array, np.iinfo(view.dtype))
        if fits:
            np.copyto(view, array, casting="unsafe")
    else:  # texts, times, structures: nothing may be truncated
        times = array.dtype.kind in "mM"
        try:
            np.copyto(view, array, casting="unsafe")
            back = view.astype(array.dtype, casting="unsafe")
            fits = bool(np.array_equal(back, array, equal_nan=True) if times else np.array_equal(back, array))
        except OverflowError:  # of times, by numpy from 2.5 on
            fits = False
    if not fits:
        spread = f", from {array.min()} to {array.max()}" if array.dtype.kind in "iufmM" else ""
        raise OverflowError(
            f"{name} has values of {array.dtype}, shape {array.shape}{spread}, that do not fit into {view.dtype}, "
            f"shape {view.shape}"
        )
