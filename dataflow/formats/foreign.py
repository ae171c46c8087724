"""Reader of tensorpack's datapoints: pickles, or msgpack with arrays in the format of msgpack-numpy.

msgpack-numpy decodes the arrays, behind a guard: on its own it unpickles arrays of objects, and takes any bytes for
pointers to objects where a dtype says so. Guarantees:

- Unless pickles are read, it gets no array of kind "O" and no dtype with objects in it: it gets the dtype that was
  checked, not the text that claims one.
- Its `patch` is never called: msgpack stays as it is for the rest of the program.
"""

from __future__ import annotations

import math
import pickle
from functools import partial
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np

from dataflow.errors import PickleRefused
from dataflow.formats.checksums import Damaged
from dataflow.transport.dtypes import MAX_NAME
from dataflow.transport.packing import MAX_SIZELESS

__all__ = ["unpack_foreign"]

_MAX_LEVELS = 30  # of nested structures
_PICKLE = 0x80  # the first byte of a pickle of protocol 2 or later; as msgpack it would be an empty dict, of one byte


def unpack_foreign(data: Any, *, pickled: bool) -> Any:
    """Return a datapoint from a pickle or from msgpack.

    Args:
        data: The bytes.
        pickled: Load pickles. Only for files from sources that you trust.

    Raises:
        PickleRefused: It is or holds a pickle, and `pickled` is false.
        Damaged: It is neither, or was cut off.
    """
    if len(data) > 1 and data[0] == _PICKLE:
        if not pickled:
            raise PickleRefused("this datapoint was pickled")
        try:
            return pickle.loads(data)
        except (pickle.UnpicklingError, EOFError) as error:
            raise Damaged(f"a pickle that cannot be read ({error})") from error
    try:
        return msgpack.unpackb(data, object_hook=partial(_decode, pickled=pickled), strict_map_key=False)
    except PickleRefused:
        raise
    except Exception as error:
        raise Damaged(
            f"neither a record of dataflow, nor msgpack, nor a pickle ({type(error).__name__}: {error})"
        ) from error


def _decode(value: dict[Any, Any], *, pickled: bool) -> Any:
    """Decode a dict as msgpack-numpy does."""
    if b"nd" not in value and "nd" not in value:
        return msgpack_numpy.decode(value) if b"complex" in value else value
    if any(_text(value.get(key, b"")) == "O" for key in (b"kind", "kind")):
        if not pickled:
            raise PickleRefused("an array of Python objects was pickled")
        return msgpack_numpy.decode(value)
    if b"nd" not in value or b"type" not in value or b"data" not in value:
        return value  # a dict of the user; the package does not decode it either
    dtype = _dtype(value[b"type"])
    if dtype.hasobject:
        raise ValueError(f"an array of the dtype {dtype}, which is not pickled")
    shape = value.get(b"shape", ())
    if (type(shape) is not list and shape != ()) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("a shape that is not a list of non-negative integers")
    if not dtype.itemsize and math.prod(shape) > MAX_SIZELESS:
        raise ValueError("an array has too many elements of size zero")
    is_array = value[b"nd"] is True
    checked = {b"nd": is_array, b"type": dtype, b"kind": b"", b"shape": tuple(shape), b"data": value[b"data"]}
    array = msgpack_numpy.decode(checked)
    return array.copy() if is_array else array  # a writable copy


def _dtype(said: Any, level: int = 0) -> np.dtype[Any]:
    """Return the dtype of a description in the format of ``dtype.descr``."""
    if level > _MAX_LEVELS or (isinstance(said, str | bytes) and len(said) > MAX_NAME):
        raise ValueError("a dtype of too many levels or characters")
    if isinstance(said, list | tuple):
        fields: list[Any] = [(_text(name), _dtype(kind, level + 1), *map(tuple, shape)) for name, kind, *shape in said]
        return np.dtype(fields)
    if not isinstance(said, str | bytes):
        raise ValueError(f"a dtype that is a {type(said).__name__}")
    return np.dtype(_text(said))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
