"""The arrays of datapoints that are alike, by component: what they are like, and where they stand.

Said once for a whole column, where all of it is alike but for the first dimension, as most is: texts, sounds and sets
of points differ in how long they are. The bytes of all small arrays stand one after the other, column by column.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.blocks import PLACE, Block

__all__ = ["ColumnReader", "Layout", "Like", "Piece", "described", "described_apart", "name_of"]

Like = tuple[Any, str]  # dtype (or its name), order
Layout = tuple[Any, tuple[int, ...], str]  # dtype (or its name), shape, order
Piece = bytes | Block  # an array that was copied
Run = tuple[Any, tuple[int, ...], str, int, bytes | None, bytes | None]
"""Some arrays of a column: what their dtype is called; their shape, or what follows the first dimension; their order;
how many they are; if they differ in the first dimension, what that is; and status byte and start of their blocks, if
they have any."""

_SMALL: Final = -(2**63), 0  # instead of status byte and start: among blocks, a small array
_NO_PLACE: Final = PLACE.pack(*_SMALL)
_MOST_NAMES: Final = 1024
_NAMES: Final[dict[np.dtype[Any], Any]] = {}  # what `name_of` has answered: a pure function, remembered
_place: Final = attrgetter("place")
_copied: Final = np.ndarray.copy


def described(like: Like, shapes: tuple[Any, ...], data: Sequence[Piece], small: list[bytes]) -> list[Run]:
    """What the arrays of a column are, all of which are `like`; the bytes of those that are small go to `small`."""
    name, order = like
    count, first = len(shapes), shapes[0]
    kinds = set(map(type, data))
    if len(kinds) == 1 and first == shapes[-1] and shapes.count(first) == count:
        return [(name, first, order, count, None, _placed(data, kinds, small))]
    if order == "C":
        lengths: Any = None
        if set(map(len, shapes)) == {1}:
            lengths = chain.from_iterable(shapes)
        elif () not in shapes and [shape[1:] for shape in shapes].count(first[1:]) == count:
            lengths = [shape[0] for shape in shapes]
        if lengths is not None:
            return [(name, first[1:], order, count, array("q", lengths).tobytes(), _placed(data, kinds, small))]
    return described_apart([(name, shape, order) for shape in shapes], data, small)


def described_apart(layouts: Iterable[Layout], data: Iterable[Piece], small: list[bytes]) -> list[Run]:
    """What arrays are that may have nothing in common."""
    runs: list[Run] = []
    pieces = zip(layouts, data, strict=True)
    for (layout, kind), run in groupby(pieces, lambda piece: (piece[0], type(piece[1]))):
        some = [piece for _, piece in run]
        runs.append((*layout, len(some), None, _placed(some, {kind}, small)))
    return runs


def _placed(data: Sequence[Any], kinds: set[type], small: list[bytes]) -> bytes | None:
    """Where the blocks are; None if there are none."""
    if Block not in kinds:
        small += data
        return None
    if len(kinds) == 1:
        return b"".join(map(_place, data))
    small += [where for where in data if type(where) is not Block]
    return b"".join([where.place if type(where) is Block else _NO_PLACE for where in data])


class ColumnReader:
    """Makes the arrays of columns, in the order in which they were described.

    Args:
        small: The bytes of the small ones, which are copied out.
        leases: Makes arrays in blocks, as `ArenaReader.leases` does.
    """

    def __init__(self, small: memoryview, leases: Callable[..., list[NDArray[Any]]]) -> None:
        self._small = small
        self._leases = leases
        self._start = 0  # of what was not read yet

    def read(self, runs: Iterable[Run]) -> list[NDArray[Any]]:
        """The arrays of a column."""
        arrays: list[NDArray[Any]] = []
        for name, shape, order, count, lengths, places in runs:
            dtype = _dtype(name)
            if lengths is not None:
                arrays += self._of_lengths(array("q", lengths), places, shape, dtype)
            elif places is None:
                nbytes = count * math.prod(shape) * dtype.itemsize
                arrays += _copies(self._next(nbytes), shape, dtype, order, count)
            else:
                arrays += self._leases(PLACE.iter_unpack(places), shape, dtype, order)
        return arrays

    def _of_lengths(
        self, lengths: array[int], places: bytes | None, tail: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Iterable[NDArray[Any]]:
        """Arrays that are alike but for the first dimension."""
        row_bytes = math.prod(tail) * dtype.itemsize
        if not row_bytes:
            return [np.ndarray((length, *tail), dtype) for length in lengths]
        if places is None:
            stops = list(accumulate(lengths))
            many = np.ndarray((stops[-1], *tail), dtype, self._next(stops[-1] * row_bytes))
            return [many[start:stop].copy() for start, stop in zip([0, *stops], stops, strict=False)]
        where = list(PLACE.iter_unpack(places))
        total = sum([length for length, place in zip(lengths, where, strict=True) if place == _SMALL])
        many = np.ndarray((total, *tail), dtype, self._next(total * row_bytes))
        arrays: list[NDArray[Any]] = []
        stop = 0
        for length, place in zip(lengths, where, strict=True):
            if place == _SMALL:
                start, stop = stop, stop + length
                arrays.append(many[start:stop].copy())
            else:
                arrays += self._leases([place], (length, *tail), dtype, "C")
        return arrays

    def _next(self, nbytes: int) -> memoryview:
        start = self._start
        self._start += nbytes
        return self._small[start : self._start]


def _copies(
    data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any, count: int
) -> Iterable[NDArray[Any]]:
    """The `count` arrays in `data`, each in memory of its own."""
    if not data.nbytes:  # nothing to copy, and numpy's copy would make one byte of none
        return [np.ndarray(shape, dtype, order=order) for _ in range(count)]
    many = np.ndarray((count, *(shape[::-1] if order == "F" else shape)), dtype, data)
    if not shape:
        return [many[k : k + 1].copy().reshape(()) for k in range(count)]
    if order == "F":
        return [one.T.copy(order="F") for one in many]
    return map(_copied, many)


@functools.lru_cache(maxsize=_MOST_NAMES)
def _dtype(name: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def name_of(dtype: np.dtype[Any]) -> Any:
    """A dtype as text, or itself where text would lose something."""
    try:
        return _NAMES[dtype]
    except KeyError:
        added = dtype.isbuiltin == 2  # by another package, such as bfloat16: known under its name there alone
        name = dtype if added or dtype.kind == "V" or dtype.metadata else dtype.str
        if len(_NAMES) < _MOST_NAMES:
            _NAMES[dtype] = name
        return name
