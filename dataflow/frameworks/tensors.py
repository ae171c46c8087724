"""Conversion of datapoints into torch tensors, without a copy where possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.system.extras import optional

__all__ = ["import_torch", "tensor_maker"]

_CURE: Final = "yield a NumPy scalar of the dtype you want, such as np.float64, before to_torch"
_MAX_FLOAT32: Final = float(np.finfo(np.float32).max)
_NUMERIC: Final = "biufc"  # kinds of dtypes that tensors can have


def import_torch(purpose: str) -> Any:
    """The module torch.

    Args:
        purpose: Subject and verb of the message: "to_torch needs".

    Raises:
        MissingExtra: It is not installed.
    """
    return optional("torch", "torch", purpose)


def tensor_maker(torch: Any) -> Callable[[Any], Any]:
    """A function that returns a datapoint with tensors in place of arrays and numbers.

    Guarantees:

    - A tensor shares the memory of its array, which stays in use as long as the tensor. These are copied: int32, which
      becomes int64; read-only arrays, since torch could write to them; the other byte order, strides that are negative
      or no multiple of an element, and unaligned fields.
    - Python numbers become what ``torch.tensor`` makes of them, int64 for integers. NumPy scalars keep their dtype,
      except int32, which becomes int64.
    - What a tensor cannot hold is refused: masks, floats of more than 64 bits, and Python numbers that would not fit or
      become infinite.
    - Text, bytes, objects and dates stay as they are; so do lists and tuples as lists and tuples.
    """
    from_numpy, tensor = torch.from_numpy, torch.tensor

    def number(value: complex) -> Any:
        try:
            made = tensor(value)
        except (OverflowError, ValueError, RuntimeError) as error:
            raise OverflowError(f"the Python integer {value} does not fit into an int64 tensor: {_CURE}") from error
        largest = max(abs(value.real), abs(value.imag))
        if _MAX_FLOAT32 < largest < math.inf and made.isinf():
            raise OverflowError(f"the Python number {value} would be infinite in a {made.dtype} tensor: {_CURE}")
        return made

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            if isinstance(value, np.ma.MaskedArray):
                raise TypeError("a masked array would lose its mask in a tensor: fill it (.filled()), before to_torch")
            array = np.asarray(value)
            return from_numpy(_shareable(array)) if array.dtype.kind in _NUMERIC else value
        if isinstance(value, bool | int | float | complex):
            return number(value)
        if isinstance(value, tuple):
            items = map(convert, value)
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, list):
            return [*map(convert, value)]
        if isinstance(value, dict):
            return {key: convert(item) for key, item in value.items()}
        return value

    return convert


def _shareable(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy of it whose memory torch can use."""
    dtype = array.dtype
    if dtype.char in "gG":
        raise TypeError(f"torch has no {dtype}: convert the array with .astype(), in a map before to_torch")
    if dtype.char == "Q":  # of the same size as "L", which torch knows
        array = array.view(np.dtype(dtype.str))
    if dtype.kind == "i" and dtype.itemsize == 4:
        return array.astype(np.int64)
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 or stride % dtype.itemsize for stride in array.strides):
        array = array.copy()
    if not array.flags.aligned:
        array = array.copy()
    return array
