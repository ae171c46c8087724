"""What `pack` made back to values: the one reader of its codes, for files and for the network; datapoints of files.

The bytes may be anybody's. Guarantees:

- Whatever they are, `read` returns or raises; nothing is looked up by name, and unpickled only if that is asked for.
- No length that they claim is believed. msgpack takes memory for a list when it sees how long that will be, and lists
  in lists each for as much as all bytes could hold: so all bytes are gone through first, for which nothing is made.
  Newer releases take little for one `unpackb`: there this is done in containers in containers only.
- Containers in containers are counted, and take little of the stack: `unpackb` has 40 KB there, an `Unpacker` has them
  on the heap. A thread may have a stack of 2 MB or less.
- What is remembered is bounded, in number and in bytes.
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
from dataflow.formats.dtypes import MOST_NAME, dtype_of
from dataflow.formats.packing import ALIGNMENT, MOST_LEVELS, MOST_SIZELESS, PLAIN, Code

__all__ = ["CodeReader", "Layout", "Unpacker"]

_ON_THE_STACK: Final = 6  # levels
_WALKED_FROM: Final = 0 if msgpack.version < (1, 2, 4) else 2  # the level
_UNCHECKED: Final = 1024  # bytes whose claims come to 3 MB at most
_MOST_LAYOUTS: Final = 4096  # remembered; arrays that all differ must not fill the memory
_MOST_LAYOUTS_BYTES: Final = 1 << 20
_MOST_DIMENSIONS: Final = 64
_MOST_FORMS = 1024
_SHORT = 256  # bytes of a skeleton that may return
_UNCHANGING = PLAIN | {int, complex}
_ndarray = np.ndarray


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array lies in its bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    nbytes: int
    stride: int  # bytes to the next array, in a file

    def empty(self) -> np.ndarray[Any, Any]:
        """The array, where it has no bytes; nothing is allocated for its elements."""
        if self.dtype.itemsize:
            return np.empty(self.shape, self.dtype, self.order)
        return np.ndarray(self.shape, self.dtype, bytearray(1), 0, None, self.order)  # `empty` makes S1 of S0


class CodeReader:
    """Reads what `pack` makes; for one thread.

    Args:
        array: Makes an array of a layout; called in the order in which `pack` met the arrays.
        pickled: Unpickle what was pickled.
    """

    def __init__(self, array: Callable[[Layout], Any], *, pickled: bool = False) -> None:
        self._array = array
        self._pickled = pickled
        self._layouts: dict[bytes, Layout] = {}
        self._layouts_bytes = 0  # of the keys
        self._level = 0
        options = {"ext_hook": self._extension, "strict_map_key": False, "unicode_errors": "surrogatepass"}
        self._unpackb = partial(msgpack.unpackb, **options)
        self._unpacker = partial(msgpack.Unpacker, None, **options)

    def read(self, skeleton: Any) -> Any:
        """The value of a skeleton.

        Raises:
            PickleRefused: It holds a pickle.
            Exception: These are no bytes that `pack` made. It may be of any type.
        """
        self._level = 0
        if not _WALKED_FROM and len(skeleton) > _UNCHECKED:
            _check_whole(skeleton)
        return self._unpackb(skeleton)

    def layout(self, data: bytes) -> Layout:
        """The layout that a code of an array describes."""
        return self._layouts.get(data) or self._new_layout(data)

    def _extension(self, code: int, data: bytes) -> Any:
        if code == Code.ARRAY:
            return self._array(self._layouts.get(data) or self._new_layout(data))
        if code == Code.TUPLE:
            return tuple(self._items(data))
        if code == Code.SCALAR:
            return _scalar(*_plain(data))
        return self._rare(code, data)

    def _rare(self, code: int, data: bytes) -> Any:
        match code:
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
        if len(data) > _UNCHECKED and level >= _WALKED_FROM:
            _check_whole(data)
        items = self._unpackb(data) if level <= _ON_THE_STACK else self._unpacked_on_the_heap(data)
        self._level = level - 1
        if type(items) is not list:
            raise ValueError("a container of nothing")
        return items

    def _unpacked_on_the_heap(self, data: bytes) -> Any:
        if self._level > MOST_LEVELS + 1:  # as the writer counts: the datapoint itself is level 0
            raise ValueError(f"more than {MOST_LEVELS + 1} levels of containers")
        unpacker = self._unpacker(max_buffer_size=len(data))
        unpacker.feed(data)
        value = unpacker.unpack()
        if unpacker.tell() != len(data):
            raise ValueError("a container with something behind it")
        return value

    def _new_layout(self, data: bytes) -> Layout:
        name, shape, order = _plain(data)
        dtype = _dtype(name)
        # Exactly ints: a string times an int would be a long string.
        if type(shape) is not list or len(shape) > _MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("a shape of something else than lengths")
        size = 1
        for length in shape:
            size *= length
        if size > MOST_SIZELESS and not dtype.itemsize:
            raise ValueError("many elements without a size")
        nbytes = size * dtype.itemsize
        stride = -(-nbytes // ALIGNMENT) * ALIGNMENT
        layout = Layout(dtype, tuple(shape), "F" if order == "F" else "C", nbytes, stride)
        if len(self._layouts) < _MOST_LAYOUTS and self._layouts_bytes + len(data) <= _MOST_LAYOUTS_BYTES:
            self._layouts[data] = layout
            self._layouts_bytes += len(data)
        return layout


def _check_whole(data: Any) -> None:
    """Whether all that is claimed is there, found out by a walk that makes no objects.

    Raises:
        ValueError: It is not.
    """
    walker = msgpack.Unpacker(None, max_buffer_size=len(data))
    walker.feed(data)
    try:
        walker.skip()
    except msgpack.OutOfData:
        raise ValueError("more is claimed than is there") from None
    if walker.tell() != len(data):
        raise ValueError("more is there than is claimed")


def _plain(data: bytes) -> Any:
    """What has no extension types in it."""
    if len(data) > _UNCHECKED:
        _check_whole(data)
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


def _dtype(name: Any) -> np.dtype[Any]:
    if type(name) is not str or len(name) > MOST_NAME:
        raise ValueError("a dtype without a name")
    return dtype_of(name)


def _scalar(name: Any, value: Any) -> Any:
    if name == "U" and type(value) is str:
        return np.str_(value)
    if name == "S" and type(value) is bytes:
        return np.bytes_(value)
    dtype = _dtype(name)
    if type(value) is not bytes or len(value) != dtype.itemsize:
        raise ValueError("a number of another size than its dtype")
    return _ndarray((), dtype, bytearray(value))[()] if value else np.zeros((), dtype)[()]


_Place = tuple[int, Layout, tuple[int, ...], np.dtype[Any], Literal["C", "F"], int]
_Form = tuple[list[Any], list[_Place]]  # a datapoint without its arrays; those, by component


class Unpacker:
    """Makes datapoints of what `pack` made; one for each thread.

    Skeletons that return, as those of images with one of ten labels, are unpacked once: what is the same in all of
    their datapoints is copied, and only the arrays are made anew.

    Args:
        pickled: Unpickle what was pickled.
    """

    def __init__(self, *, pickled: bool = False) -> None:
        self._codes = CodeReader(self._array, pickled=pickled)
        self._buffer: Any = b""
        self._next = 0  # where the next array begins
        self._forms: dict[bytes, _Form] = {}

    def unpack(self, skeleton: Any, buffer: Any, begin: int) -> Any:
        """A datapoint; its arrays lie in `buffer`, from `begin` on, and keep it alive.

        Raises:
            PickleRefused: It holds a pickle.
            Exception: These are no bytes that `pack` made. It may be of any type.
        """
        form = self._forms.get(skeleton) if len(skeleton) <= _SHORT else None
        if form is not None:
            kept, arrays = form
            dp = kept.copy()
            for k, layout, shape, dtype, order, stride in arrays:
                if stride:
                    dp[k] = _ndarray(shape, dtype, buffer, begin, None, order)
                    begin += stride
                else:
                    dp[k] = layout.empty()
            return dp
        self._buffer, self._next = buffer, begin
        try:
            dp = self._codes.read(skeleton)
        finally:
            self._buffer = b""
        if len(skeleton) <= _SHORT and len(self._forms) < _MOST_FORMS:
            self._remember(bytes(skeleton), dp)
        return dp

    def _remember(self, skeleton: bytes, dp: Any) -> None:
        if type(dp) is list and all(type(value) in _UNCHANGING or type(value) is np.ndarray for value in dp):
            places = [k for k, value in enumerate(dp) if type(value) is np.ndarray]
            shell = msgpack.unpackb(skeleton, unicode_errors="surrogatepass")
            if any(shell[k].code != Code.ARRAY for k in places):  # an array of objects, which was pickled
                return
            kept = [None if type(value) is np.ndarray else value for value in dp]
            layouts = [self._codes.layout(shell[k].data) for k in places]
            self._forms[skeleton] = (
                kept,
                [
                    (k, layout, layout.shape, layout.dtype, layout.order, layout.stride)
                    for k, layout in zip(places, layouts, strict=True)
                ],
            )

    def _array(self, layout: Layout) -> Any:
        if not layout.nbytes:
            return layout.empty()
        begin = self._next
        self._next = begin + layout.stride
        return _ndarray(layout.shape, layout.dtype, self._buffer, begin, None, layout.order)
