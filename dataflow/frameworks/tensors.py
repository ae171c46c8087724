"""Conversion of datapoints into torch tensors, without a copy where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.extras import optional

__all__ = ["import_torch", "tensor_maker"]

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
      becomes int64; read-only arrays, since torch could write to them; the other byte order, and negative strides.
    - Python numbers become what ``torch.tensor`` makes of them, int64 for integers. NumPy scalars keep their dtype,
      except int32, which becomes int64.
    - Text, bytes, objects and dates stay as they are; so do lists and tuples as lists and tuples.
    """
    from_numpy, tensor = torch.from_numpy, torch.tensor

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            return from_numpy(_shareable(array)) if array.dtype.kind in _NUMERIC else value
        if isinstance(value, bool | int | float | complex):
            return tensor(value)
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
    if dtype.kind == "i" and dtype.itemsize == 4:
        return array.astype(np.int64)
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return array
