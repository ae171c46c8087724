"""Datapoints as tensorpack's serializers wrote them: pickles, or msgpack with arrays in the manner of msgpack-numpy.

That package itself is not used: it unpickles arrays of objects, and takes any bytes for pointers to such objects where
they are fields of a structure.

Source:
    msgpack-numpy 0.4.8, whose layout is read.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import msgpack
import numpy as np

from dataflow.errors import PickleRefused
from dataflow.formats.damage import Damaged

__all__ = ["unpack_foreign"]

_PICKLE = 0x80  # the first byte of a pickle of protocol 2 or later; as msgpack it would be an empty dict, of one byte


def unpack_foreign(data: Any, *, pickled: bool) -> Any:
    """A datapoint from a pickle or from msgpack.

    Args:
        data: The bytes.
        pickled: Unpickle. Never do this to a file of which you do not know who wrote it.

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
        return msgpack.unpackb(data, object_hook=partial(_decoded, pickled=pickled), strict_map_key=False)
    except PickleRefused:
        raise
    except Exception as error:
        raise Damaged(
            f"neither a record of dataflow, nor msgpack, nor a pickle ({type(error).__name__}: {error})"
        ) from error


def _decoded(value: dict[Any, Any], *, pickled: bool) -> Any:
    """What msgpack-numpy makes of a dict; arrays of objects are pickles."""
    if b"complex" in value and b"data" in value:
        return complex(_text(value[b"data"]))
    if b"nd" not in value or b"type" not in value or b"data" not in value:
        return value
    if _text(value.get(b"kind", b"")) == "O":
        if not pickled:
            raise PickleRefused("an array of Python objects was pickled")
        return pickle.loads(value[b"data"])
    dtype = _dtype(value[b"type"])
    if dtype.hasobject:
        raise ValueError(f"an array of the dtype {dtype}, which is not pickled")
    if not value[b"nd"]:
        return np.frombuffer(value[b"data"], dtype)[0]
    array: Any = np.ndarray(tuple(value[b"shape"]), dtype, value[b"data"])
    return array.copy()  # one that can be written to


def _dtype(said: Any) -> np.dtype[Any]:
    if isinstance(said, list | tuple):
        fields: list[Any] = [(_text(name), _dtype(kind), *map(tuple, shape)) for name, kind, *shape in said]
        return np.dtype(fields)
    return np.dtype(_text(said))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
