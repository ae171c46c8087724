"""Unpacker of what `pack` writes: the only reader of its codes, for files and for the network.

The bytes are untrusted. Guarantees:

- For any bytes, `read` returns or raises; nothing is looked up by name, and pickles are loaded only on request.
- Claimed lengths are verified. msgpack allocates little for what one `unpackb` claims; containers in containers each
  take another one, so their bytes are scanned first, without making objects.
- Nesting is limited, and takes little of the stack: `unpackb` has 40 KB there, an `Unpacker` has them
  on the heap. A thread may have a stack of 2 MB or less.
- Caches are bounded, in entries and in bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import msgpack
import numpy as np

from dataflow.errors import PickleRefused
from dataflow.transport.dtypes import MAX_NAME, dtype_of
from dataflow.transport.packing import ALIGNMENT, MAX_LEVELS, MAX_SIZELESS, PLAIN, Code

__all__ = ["CodeReader", "ArrayLayout", "Unpacker", "in_place"]

_ON_THE_STACK: Final = 6  # levels that are unpacked by `unpackb`, each with 40 KB of the stack
_UNCHECKED: Final = 1024  # bytes whose claimed lengths amount to 3 MB at most
_MAX_LAYOUTS: Final = 4096  # cached; arrays that all differ must not fill the memory
_MAX_LAYOUTS_BYTES: Final = 1 << 20
_MAX_DIMENSIONS: Final = 64
_MAX_FORMS = 1024
_SHORT = 256  # maximum bytes of a cached skeleton
_ARRAY = int(Code.ARRAY)  # compared faster than a member
_UNCHANGING = PLAIN | {int, complex}
_ndarray = np.ndarray


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Layout of an array in its bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    nbytes: int
    stride: int  # bytes to the next array, in a file

    def empty(self) -> np.ndarray[Any, Any]:
        """Return the array if it has no bytes; nothing is allocated for its elements."""
        if self.dtype.itemsize:
            return np.empty(self.shape, self.dtype, self.order)
        return np.ndarray(self.shape, self.dtype, bytearray(1), 0, None, self.order)  # `np.empty` makes S1 of S0


class CodeReader:
    """Reads what `pack` writes; for one thread.

    Args:
        array: Makes an array of a layout; called in the order in which `pack` met the arrays.
        pickled: Load pickles.
    """

    def __init__(self, array: Callable[[ArrayLayout], Any], *, pickled: bool = False) -> None:
        self._array = array
        self._pickled = pickled
        self._layouts: dict[bytes, ArrayLayout] = {}
        self._layouts_bytes = 0  # of the keys
        self._level = 0
        options = {"ext_hook": self._extension, "strict_map_key": False, "unicode_errors": "surrogatepass"}
        self._unpackb = partial(msgpack.unpackb, **options)
        self._unpacker = partial(msgpack.Unpacker, None, **options)

    def read(self, skeleton: Any) -> Any:
        """Return the value of a skeleton.

        Raises:
            PickleRefused: It holds a pickle.
            Exception: The bytes were not written by `pack`. It may be of any type.
        """
        # An exception in the last read has left it where it was.
        self._level = 0
        return self._unpackb(skeleton)

    def layout(self, data: bytes) -> ArrayLayout:
        """Return the layout that an array's code describes."""
        return self._layouts.get(data) or self._new_layout(data)

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return self._array(self._layouts.get(data) or self._new_layout(data))
        match code:
            case Code.TUPLE:
                return tuple(self._items(data))
            case Code.SCALAR:
                return _scalar(*_plain(data))
            case Code.INTEGER:
                return int(data)
            case Code.COMPLEX:
                return complex(np.frombuffer(data, "<c16")[0])
            case Code.BYTEARRAY:
                return bytearray(data)
            case Code.SET:
                return set(self._items(data))
            case Code.FROZENSET:
                return frozenset(self._items(data))
            case Code.PICKLE if self._pickled:
                return pickle.loads(data)
            case Code.PICKLE:
                raise PickleRefused("a component was pickled")
        raise ValueError(f"there is no extension type {code}")

    def _items(self, data: bytes) -> list[Any]:
        self._level = level = self._level + 1
        if len(data) > _UNCHECKED and level > 1:
            _check_whole(data)
        items = self._unpackb(data) if level <= _ON_THE_STACK else self._unpacked_on_the_heap(data)
        self._level = level - 1
        if type(items) is not list:
            raise ValueError("the payload of an extension is not a list")
        return items

    def _unpacked_on_the_heap(self, data: bytes) -> Any:
        if self._level > MAX_LEVELS + 1:  # as the writer counts: the datapoint itself is level 0
            raise ValueError(f"more than {MAX_LEVELS + 1} levels of containers")
        unpacker = self._unpacker(max_buffer_size=len(data))
        unpacker.feed(data)
        value = unpacker.unpack()
        if unpacker.tell() != len(data):
            raise ValueError("a container is followed by other bytes")
        return value

    def _new_layout(self, data: bytes) -> ArrayLayout:
        name, shape, order = _plain(data)
        dtype = _dtype(name)
        # Exactly ints: a string times an int would be a long string.
        if type(shape) is not list or len(shape) > _MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("a shape is not a list of non-negative integers")
        size = 1
        for length in shape:
            # Python's integers do not overflow, as NumPy's would for a shape that is a mere claim.
            size *= length
        if size > MAX_SIZELESS and not dtype.itemsize:
            raise ValueError("an array has too many elements of size zero")
        nbytes = size * dtype.itemsize
        stride = -(-nbytes // ALIGNMENT) * ALIGNMENT
        layout = ArrayLayout(dtype, tuple(shape), "F" if order == "F" else "C", nbytes, stride)
        if len(self._layouts) < _MAX_LAYOUTS and self._layouts_bytes + len(data) <= _MAX_LAYOUTS_BYTES:
            self._layouts[data] = layout
            self._layouts_bytes += len(data)
        return layout


def _check_whole(data: Any) -> None:
    """Check that all claimed lengths are there, by a scan that makes no objects.

    Raises:
        ValueError: A claimed length exceeds the data.
    """
    walker = msgpack.Unpacker(None, max_buffer_size=len(data))
    walker.feed(data)
    try:
        walker.skip()
    except msgpack.OutOfData:
        raise ValueError("a declared length exceeds the data") from None
    if walker.tell() != len(data):
        raise ValueError("the data are longer than declared")


def _plain(data: bytes) -> Any:
    """Unpack data without extension types."""
    if len(data) > _UNCHECKED:
        _check_whole(data)
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


def _dtype(name: Any) -> np.dtype[Any]:
    if type(name) is not str or len(name) > MAX_NAME:
        raise ValueError("a dtype is not given by a name")
    return dtype_of(name)


def _scalar(name: Any, value: Any) -> Any:
    if name == "U" and type(value) is str:
        return np.str_(value)
    if name == "S" and type(value) is bytes:
        return np.bytes_(value)
    dtype = _dtype(name)
    if type(value) is not bytes or len(value) != dtype.itemsize:
        raise ValueError("the bytes of a number do not fit its dtype")
    return _ndarray((), dtype, bytearray(value))[()] if value else np.zeros((), dtype)[()]


_Place = tuple[int, tuple[int, ...], np.dtype[Any], int, Literal["C", "F"]]  # component, shape, dtype, offset, order
_Form = tuple[list[Any], list[_Place]]  # a datapoint without its arrays; their places


def in_place(record: Any) -> Any:
    """Return memory in which the arrays of a record may stay: the record itself, if it is writable and unshared."""
    return record


class Unpacker:
    """Unpacks datapoints; one for each thread.

    Skeletons that repeat, such as those of images with one of ten labels, are unpacked once: the constant part of their
    datapoints is copied, and only the arrays are made again.

    Args:
        begin: Offset of the skeleton in a record. The arrays begin at the next multiple of `ALIGNMENT`.
        pickled: Load pickles.
    """

    def __init__(self, begin: int, *, pickled: bool = False) -> None:
        self._codes = CodeReader(self._array, pickled=pickled)
        self.read = self._codes.read
        """Return the datapoint of a skeleton without arrays. Takes bytes; raises as `unpack` does."""
        self._begin = begin
        self._buffer: Any = b""
        self._next = 0  # offset of the next array
        self._forms: dict[bytes, _Form] = {}

    def unpack(self, record: Any, size: int) -> Any:
        """Return a datapoint.

        Args:
            record: The bytes of skeleton and arrays, at their places, in memory in which arrays may stay.
            size: Bytes of the skeleton.

        Raises:
            PickleRefused: It holds a pickle.
            Exception: The bytes were not written by `pack`. It may be of any type.
        """
        end = self._begin + size
        skeleton = bytes(record[self._begin : end])
        form = self._forms.get(skeleton)
        if form is not None:
            kept, arrays = form
            dp = kept.copy()
            for k, shape, dtype, offset, order in arrays:
                dp[k] = _ndarray(shape, dtype, record, offset, None, order)
            return dp
        self._next = first = end + -end % ALIGNMENT
        self._buffer = record
        try:
            dp = self._codes.read(skeleton)
        finally:
            # Otherwise this object would keep the record until the next one.
            self._buffer = b""
        if size <= _SHORT and len(self._forms) < _MAX_FORMS:
            self._remember(skeleton, dp, first)
        return dp

    def _remember(self, skeleton: bytes, dp: Any, offset: int) -> None:
        # Values that cannot change: all copies of the datapoint share them.
        if type(dp) is not list or not all(type(value) in _UNCHANGING or type(value) is _ndarray for value in dp):
            return
        kept: list[Any] = []
        places: list[_Place] = []
        codes = msgpack.unpackb(skeleton, unicode_errors="surrogatepass")
        for k, (value, code) in enumerate(zip(dp, codes, strict=True)):
            if type(value) is not _ndarray:
                kept.append(value)
                continue
            layout = self._codes.layout(code.data) if code.code == Code.ARRAY else None
            if layout is None or not layout.nbytes:  # it holds objects, which were pickled, or has no bytes
                return
            kept.append(None)
            places.append((k, layout.shape, layout.dtype, offset, layout.order))
            offset += layout.stride
        self._forms[skeleton] = kept, places

    def _array(self, layout: ArrayLayout) -> Any:
        if not layout.nbytes:
            return layout.empty()
        begin = self._next
        self._next = begin + layout.stride
        return _ndarray(layout.shape, layout.dtype, self._buffer, begin, None, layout.order)
