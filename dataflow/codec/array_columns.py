"""The arrays of datapoints that are alike, by component: what they are like, and where they stand.

Said once for a whole column, where all of it is alike but for the first dimension, as most is: texts, sounds and sets
of points differ in how long they are. The bytes of all small arrays stand one after the other, column by column.
"""

from __future__ import annotations

import math
import pickle
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.memory.blocks import PLACE, Block

__all__ = [
    "ColumnReader",
    "ColumnWriter",
    "KnownRun",
    "Layout",
    "Like",
    "Piece",
    "Run",
    "detail_bytes",
    "known",
    "name_of",
]

Like = tuple[Any, str]  # name of the dtype, order
Layout = tuple[Any, tuple[int, ...], str]  # name of the dtype, shape, order
Piece = bytes | Block  # an array that was copied
Run = tuple[Any, tuple[int, ...], str, int, bool, bool]
"""Some arrays of a column: what their dtype is called; their shape, or what follows the first dimension; their order;
how many they are; whether they differ in the first dimension; and whether any of them has a block. All that is the same
in many messages: the first dimensions and the places of the blocks stand elsewhere."""
KnownRun = tuple[np.dtype[Any], tuple[int, ...], str, int, bool, bool, int]
"""The same at the reader: with a dtype; and the bytes of an array, or of one of its rows."""

_SMALL: Final = -(2**63), 0  # instead of status byte and start: among blocks, a small array
_NO_PLACE: Final = PLACE.pack(*_SMALL)
_LENGTH_BYTES: Final = 8
_place: Final = attrgetter("place")
_copied: Final = np.ndarray.copy


class ColumnWriter:
    """Says what arrays are, column by column, and collects what each of them has for itself.

    Attributes:
        details: Of each run, the first dimensions, where they differ; and the places of the blocks, if it has any.
        small: The bytes of the arrays that have no block.
    """

    def __init__(self) -> None:
        self.details: list[bytes] = []
        self.small: list[bytes] = []

    def column(self, like: Like, shapes: tuple[Any, ...], data: Sequence[Piece]) -> list[Run]:
        """What the arrays of a column are, all of which are `like`."""
        name, order = like
        count, first = len(shapes), shapes[0]
        kinds = set(map(type, data))
        if len(kinds) == 1 and first == shapes[-1] and shapes.count(first) == count:
            return [(name, first, order, count, False, self._place(data, kinds))]
        if order == "C":
            lengths: Any = None
            if set(map(len, shapes)) == {1}:
                lengths = chain.from_iterable(shapes)
            elif () not in shapes and [shape[1:] for shape in shapes].count(first[1:]) == count:
                lengths = [shape[0] for shape in shapes]
            if lengths is not None:
                self.details.append(array("q", lengths).tobytes())
                return [(name, first[1:], order, count, True, self._place(data, kinds))]
        return self.column_apart([(name, shape, order) for shape in shapes], data)

    def column_apart(self, layouts: Iterable[Layout], data: Iterable[Piece]) -> list[Run]:
        """What arrays are that may have nothing in common."""
        runs: list[Run] = []
        pieces = zip(layouts, data, strict=True)
        for (layout, kind), run in groupby(pieces, lambda piece: (piece[0], type(piece[1]))):
            some = [piece for _, piece in run]
            runs.append((*layout, len(some), False, self._place(some, {kind})))
        return runs

    def _place(self, data: Sequence[Any], kinds: set[type]) -> bool:
        """Write down where the blocks are; whether there are any."""
        if Block not in kinds:
            self.small += data
            return False
        if len(kinds) == 1:
            self.details += map(_place, data)
        else:
            self.small += [where for where in data if type(where) is not Block]
            self.details += [where.place if type(where) is Block else _NO_PLACE for where in data]
        return True


def known(runs: Iterable[Run]) -> list[KnownRun]:
    """The runs of a column as `ColumnReader` wants them."""
    found: list[KnownRun] = []
    for name, shape, order, count, differ, placed in runs:
        dtype = _dtype(name)
        found.append((dtype, shape, order, count, differ, placed, math.prod(shape) * dtype.itemsize))
    return found


def detail_bytes(run: Run) -> int:
    """How much a run has of what stands elsewhere."""
    *_, count, differ, placed = run
    return count * (_LENGTH_BYTES * differ + PLACE.size * placed)


class ColumnReader:
    """Makes the arrays of columns, in the order in which they were described.

    Args:
        details: As `ColumnWriter` has collected them.
        small: The bytes of the small ones, which are copied out.
        leases: Makes arrays in blocks, as `ArenaReader.leases` does.
    """

    def __init__(self, details: memoryview, small: memoryview, leases: Callable[..., list[NDArray[Any]]]) -> None:
        self._details = _Unread(details)
        self._small = _Unread(small)
        self._leases = leases

    def read(self, runs: Iterable[KnownRun]) -> list[NDArray[Any]]:
        """The arrays of a column."""
        arrays: list[NDArray[Any]] = []
        for dtype, shape, order, count, differ, placed, nbytes in runs:
            lengths = self._details.take(count * _LENGTH_BYTES).cast("q").tolist() if differ else None
            places = PLACE.iter_unpack(self._details.take(count * PLACE.size)) if placed else None
            if lengths is not None:
                arrays += self._of_lengths(lengths, places, shape, dtype, nbytes)
            elif places is not None:
                arrays += self._leases(places, shape, dtype, order)
            else:
                arrays += _copies(self._small.take(count * nbytes), shape, dtype, order, count)
        return arrays

    def _of_lengths(
        self,
        lengths: list[int],
        places: Iterable[Any] | None,
        tail: tuple[int, ...],
        dtype: np.dtype[Any],
        row_bytes: int,
    ) -> Iterable[NDArray[Any]]:
        """Arrays that are alike but for the first dimension."""
        if not row_bytes:
            return [np.ndarray((length, *tail), dtype) for length in lengths]
        if places is None:
            stops = list(accumulate(lengths))
            many = np.ndarray((stops[-1], *tail), dtype, self._small.take(stops[-1] * row_bytes))
            return [many[start:stop].copy() for start, stop in zip([0, *stops], stops, strict=False)]
        where = list(places)
        total = sum([length for length, place in zip(lengths, where, strict=True) if place == _SMALL])
        many = np.ndarray((total, *tail), dtype, self._small.take(total * row_bytes))
        arrays: list[NDArray[Any]] = []
        stop = 0
        for length, place in zip(lengths, where, strict=True):
            if place == _SMALL:
                start, stop = stop, stop + length
                arrays.append(many[start:stop].copy())
            else:
                arrays += self._leases([place], (length, *tail), dtype, "C")
        return arrays


class _Unread:
    """Bytes that are read from the beginning."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._start = 0

    def take(self, nbytes: int) -> memoryview:
        """The next of them."""
        start = self._start
        self._start = stop = start + nbytes
        return self._data[start:stop]


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


def _dtype(name: Any) -> np.dtype[Any]:
    # What was pickled is loaded each time: users can change such a dtype (its field names), and it is theirs alone.
    dtype: np.dtype[Any] = np.dtype(name) if type(name) is str else pickle.loads(name)
    return dtype


def name_of(dtype: np.dtype[Any]) -> Any:
    """A dtype as text; or as a pickle, where text would lose something: metadata, fields, alignment."""
    if dtype.metadata is not None or dtype.kind == "V" or dtype.isbuiltin == 2:  # 2: of another package, as bfloat16
        return pickle.dumps(dtype, pickle.HIGHEST_PROTOCOL)
    return dtype.str
