"""Packer of one datapoint into msgpack, with its arrays beside it; in the msgpack, descriptions replace them.

A type that msgpack lacks is an extension type: tuples, complex numbers, large integers, numpy's scalars, arrays.
Types are exact: unpacking gives back the same types; otherwise packing raises `NotStorable`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from dataflow.errors import NotStorable
from dataflow.transport.dtypes import MAX_NAME, dtype_name

__all__ = ["ALIGNMENT", "MAX_LEVELS", "MAX_SIZELESS", "PLAIN", "Code", "Packed", "pack"]

ALIGNMENT: Final = 16
"""Alignment of the bytes of each array."""

MAX_LEVELS: Final = 100
"""Maximum depth of nested containers; the reader enforces it, too."""

MAX_SIZELESS: Final = 1 << 20
"""Maximum number of zero-sized elements in an array: such a claim costs no bytes to make."""

PLAIN: Final = frozenset({type(None), bool, float, str, bytes})
"""Types that msgpack has, too."""

_INTEGERS = range(-(2**63), 2**64)  # integers that msgpack can represent

_dumps: Callable[[Any], bytes] = partial(msgpack.packb, use_bin_type=True, unicode_errors="surrogatepass")


class Code(IntEnum):
    """Numbers of our extension types."""

    ARRAY = 1  # dtype, shape, order; the bytes are elsewhere
    SCALAR = 2  # dtype, bytes
    TUPLE = 3  # a list
    INTEGER = 4  # its decimal digits
    COMPLEX = 5  # two floats
    BYTEARRAY = 6  # the bytes
    SET = 7  # a list
    FROZENSET = 8  # a list
    PICKLE = 9  # a pickle


class Packed(NamedTuple):
    """A packed datapoint."""

    skeleton: bytes  # msgpack
    arrays: list[NDArray[Any]]  # in the order in which the skeleton names them


def pack(dp: Any, *, pickled: bool = False) -> Packed:
    """Pack a datapoint.

    Args:
        dp: A list, tuple or dict of components, or any other value.
        pickled: Pickle values without a representation of their own.

    Raises:
        NotStorable: A component cannot be stored; names it.
    """
    packing = _Packing(pickled)
    try:
        lowered = packing.lower(dp, ())
        return Packed(_dumps(lowered), packing.arrays)
    except (ValueError, OverflowError) as error:  # such as a length that msgpack cannot hold
        raise NotStorable(f"a datapoint of type {type(dp).__name__} cannot be stored: {error}") from error


class _Packing:
    def __init__(self, pickled: bool) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._pickled = pickled

    def lower(self, value: Any, path: tuple[Any, ...]) -> Any:
        """Return the value in terms of msgpack."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is np.ndarray and not value.dtype.hasobject:
            return msgpack.ExtType(Code.ARRAY, self._layout(value, path))
        if kind is int:
            return value if value in _INTEGERS else msgpack.ExtType(Code.INTEGER, str(value).encode())
        if len(path) > MAX_LEVELS:
            raise NotStorable(f"{_place(path[:3])} holds more than {MAX_LEVELS} levels of containers: flatten it")
        if kind is list:
            return self._items(value, path)
        if kind is tuple:
            return msgpack.ExtType(Code.TUPLE, _dumps(self._items(value, path)))
        if kind is dict:
            return {self.lower(key, (*path, key)): self.lower(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, np.generic) and not value.dtype.hasobject and value.dtype.type is kind:
            if kind is np.str_ or kind is np.bytes_:  # numpy would lose NULs at the end
                return msgpack.ExtType(Code.SCALAR, _dumps([value.dtype.kind, _whole(value)]))
            return msgpack.ExtType(Code.SCALAR, _dumps([self._name(value.dtype, path), np.asarray(value).tobytes()]))
        if kind is complex:
            return msgpack.ExtType(Code.COMPLEX, np.array(value, "<c16").tobytes())
        if kind is bytearray:
            return msgpack.ExtType(Code.BYTEARRAY, bytes(value))
        if kind is set or kind is frozenset:
            code = Code.SET if kind is set else Code.FROZENSET
            return msgpack.ExtType(code, _dumps(self._items(list(value), path)))
        if self._pickled:
            return msgpack.ExtType(Code.PICKLE, _pickle_of(value, path))
        raise NotStorable(
            f"{_place(path)} is {_describe(value)}, which has no form on disk. Make it an array, a number, text, "
            "bytes or containers of them (MapDataComponent), or save with pickle=True; then loading needs it, too"
        )

    def _items(self, values: Any, path: tuple[Any, ...]) -> list[Any]:
        return [item if type(item) in PLAIN else self.lower(item, (*path, k)) for k, item in enumerate(values)]

    def _layout(self, array: NDArray[Any], path: tuple[Any, ...]) -> bytes:
        if not array.itemsize and array.size > MAX_SIZELESS:
            raise NotStorable(
                f"{_place(path)} has {array.size} elements without a size, and {MAX_SIZELESS} are the most. Store its "
                "shape instead (MapDataComponent)"
            )
        fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        self.arrays.append(array)
        return _dumps([self._name(array.dtype, path), array.shape, "F" if fortran else "C"])

    def _name(self, dtype: np.dtype[Any], path: tuple[Any, ...]) -> str:
        name = dtype_name(dtype)
        if name is None:
            raise NotStorable(
                f"{_place(path)} has the dtype {dtype}, which numpy itself does not know by a name. View it as another "
                "dtype of the same size (MapDataComponent), such as uint16 for bfloat16"
            )
        if len(name) > MAX_NAME:
            raise NotStorable(
                f"{_place(path)} has a dtype of {len(dtype.names or ())} fields, whose description takes {len(name)} "
                f"characters, and {MAX_NAME} are the most. Make one array of fields that are alike (MapDataComponent)"
            )
        return name


def _whole(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, np.str_) else bytes(value)


def _pickle_of(value: Any, path: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise NotStorable(f"{_place(path)} is {_describe(value)}, which cannot be pickled: {error}") from error


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.hasobject:
        return f"an array of Python objects ({value.dtype})"
    return f"of type {type(value).__module__}.{type(value).__qualname__}".replace("type builtins.", "type ")


def _place(path: tuple[Any, ...]) -> str:
    return "component " + " / ".join(map(repr, path)) if path else "the datapoint"
