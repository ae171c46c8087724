"""What a message of datapoints looks like, between the worker that encodes and the consumer that decodes.

A datapoint with arrays is a parcel: its *shell*, which is what is left without the arrays; its *form*, which it has in
common with others: its *gaps*, where the arrays belong, and what these are like; their shapes; and the arrays
themselves, as bytes or as blocks of the arena. One without arrays is its shell alone.

What datapoints are like: their arrays have the same places, and the rest is of the same types.

Most flows give datapoints of one kind, and what follows from the types of the components is found out when it changes.
Of the benchmarks `mnist` and `ragged` show it: without, the worker's encoder takes 3 and 1.3 times as long.

Shells, which are what is left of datapoints without their arrays: many of them in one buffer, loaded by one call.

A shell is a pickle; or, if it is a row of numbers and text, what `marshal` writes of it, which is faster. Both can be
joined: `marshal` writes the elements of a list one after the other, and so does pickle by protocol 3, which has
explicit memo indexes and no frames. The first byte tells which it is.

The arrays of datapoints that are alike, by component: what they are like, and where they stand.

Said once for a whole column, where all of it is alike but for the first dimension, as most is: texts, sounds and sets
of points differ in how long they are. The bytes of all small arrays stand one after the other, column by column.
"""

from __future__ import annotations

import marshal
import math
import pickle
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, islice
from operator import attrgetter, is_, itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.memory.blocks import LARGE_BYTES, PLACE, Block

__all__ = [
    "ColumnReader",
    "ColumnWriter",
    "DatapointKind",
    "Description",
    "Form",
    "Kinds",
    "KnownRun",
    "Layout",
    "Like",
    "NESTED",
    "NO_ROOM",
    "NUMBERS",
    "PLAIN_BYTES",
    "PROTOCOL",
    "Parcel",
    "Piece",
    "ROWS",
    "Run",
    "TEXTS",
    "VERSION",
    "apart",
    "detail_bytes",
    "join",
    "joined",
    "known",
    "load",
    "loaded",
    "name_of",
]


# -- What datapoints are like: their arrays have the same places, and the rest is of the same types --------------------


ROWS: Final = frozenset({list, tuple})
NUMBERS: Final = frozenset({int, float, bool, type(None)})
"""Exactly these arrive from `marshal` as they do from `pickle`: it does not remember them either."""

TEXTS: Final = NUMBERS | {str, bytes}
"""Beside arrays these too are written by `marshal`: equal, if not as one object where one stands there twice."""

_PLAIN_KEYS: Final = frozenset({str, int})  # what a copy of them finds is what they find: not so for nan or an object
_ARRAY: Final = np.ndarray
_SIMPLE: Final = TEXTS | {complex}
_UNKNOWN: Final[tuple[Any, Any, Any, int]] = (None, None, None, 0)


class DatapointKind:
    """The datapoints of one type whose components have these types; those of a dict, under the same keys.

    Args:
        dp: One of them.
        types: Of its components.
    """

    __slots__ = (
        "alone",
        "form",
        "gaps",
        "has_plain_keys",
        "is_row",
        "is_simple",
        "last",
        "names",
        "pick",
        "places",
        "shapes",
        "type",
        "types",
    )

    def __init__(self, dp: Any, types: list[type]) -> None:
        self.type = type(dp)
        self.types = types
        self.names = list(dp) if self.type is dict else None  # its keys
        self.has_plain_keys = self.names is None or _PLAIN_KEYS.issuperset(map(type, self.names))
        self.places = [place for place, its in enumerate(types) if its is _ARRAY]  # of the arrays
        self.gaps = (self.type is tuple, self.places, self.names)
        self.alone = self.places[0] if len(self.places) == 1 and self.has_plain_keys else None
        self.pick = itemgetter(*self.places) if len(self.places) > 1 else None
        self.last = [_UNKNOWN] * len(self.places)  # of each array, as `learn` found it: dtype, its name, shape, bytes
        self.shapes: Any = ()  # of these arrays, for all parcels that have the same
        self.form = (self.gaps, [("", "C")] * len(self.places))
        rest = set(types) - {_ARRAY}
        # `marshal` can write what travels: without arrays the whole datapoint, which must be no dict then.
        self.is_row = rest <= TEXTS if self.places else self.names is None and rest <= NUMBERS
        self.is_simple = self.has_plain_keys and rest <= _SIMPLE  # no array stands anywhere else

    def learn(self, arrays: Sequence[NDArray[Any]]) -> None:
        """The next ones may be like these. Arrays of objects are never met again: the encoder must see each."""
        if True in [array.dtype.hasobject for array in arrays]:
            return
        names = [name_of(array.dtype) for array in arrays]
        self.last = [(a.dtype, name, a.shape, a.nbytes) for a, name in zip(arrays, names, strict=True)]
        self.shapes = [array.shape for array in arrays]
        self.form = (self.gaps, [(name, "C") for name in names])  # a new one: parcels hold the other

    def has_names_of(self, dp: Any) -> bool:
        """Whether a dict has the very same keys in the same order: 1, 1.0 and True are equal, and not the same."""
        names = self.names or []
        if len(dp) == len(names) and all(map(is_, dp, names)):
            return True
        return list(dp) == names and list(map(type, dp)) == list(map(type, names))


class Kinds:
    """The kind of the last datapoint."""

    def __init__(self) -> None:
        self.last = DatapointKind([], [])

    def find(self, dp: Any, types: list[type]) -> DatapointKind:
        """The kind of a datapoint that is not like the last one."""
        kind = DatapointKind(dp, types)
        if kind.has_plain_keys:  # else nobody's objects are kept
            self.last = kind
        return kind


# -- Shells, which are what is left of datapoints without their arrays: many of them in one buffer, loaded … -----------


PROTOCOL: Final = 3  # of pickle
VERSION: Final = 2  # of marshal: the last without references, whose numbers would not hold in a list

_PICKLED: Final = b"\x80"  # how each pickle begins
_ALONE: Final = b"\x80\x03"  # with its protocol
_STOP: Final = b"."  # and how it ends
_HEAD: Final = _ALONE + b"]("  # a list, and a mark: how many begin
_TAIL: Final = b"e" + _STOP  # append all since the mark; no pickle of an object begins so
_ROWS: Final = b"["  # a list by marshal; in the next four bytes, its length
_COUNT_BYTES: Final = 4


def joined(bodies: Sequence[bytes]) -> tuple[list[bytes], int]:
    """All shells, and their lengths, which serve where they cannot be loaded at once; and the bytes of all."""
    if bodies and max(bodies) < _PICKLED:
        data = _rows(bodies)
        return [data, b""], len(data) - len(_ROWS) - _COUNT_BYTES
    if not bodies or min(bodies) >= _PICKLED:
        data, lengths = _pickles(bodies)
        cut = len(_ALONE + _STOP) * len(bodies)
        return [data, lengths.tobytes()], len(data) - len(_HEAD + _TAIL) + cut
    parts, lengths = [], array("I")
    for is_pickled, run in groupby(bodies, lambda body: body >= _PICKLED):
        some = list(run)
        part, its_lengths = _pickles(some) if is_pickled else (_rows(some), array("I", map(len, some)))
        parts.append(part)
        lengths += its_lengths
    return [b"".join(parts), lengths.tobytes()], sum(map(len, bodies))


def _rows(bodies: Sequence[bytes]) -> bytes:
    return b"".join([_ROWS, len(bodies).to_bytes(_COUNT_BYTES, "little"), *bodies])


def _pickles(bodies: Sequence[bytes]) -> tuple[bytes, array[int]]:
    bare = [body[2:-1] for body in bodies]
    return b"".join([_HEAD, *bare, _TAIL]), array("I", map(len, bare))


def load(body: Any) -> Any:
    """What the bytes of one shell, or the first of several parts, stand for."""
    return pickle.loads(body) if body[0] == _PICKLED[0] else marshal.loads(body)


def loaded(data: Any, lengths: Any) -> list[Any]:
    """All shells."""
    shells: list[Any] = load(data)
    sizes = memoryview(lengths).cast("I") if len(lengths) else ()
    start = done = 0
    while len(shells) < len(sizes):  # those of the other sort come after them
        around = len(_HEAD + _TAIL) if data[start] == _PICKLED[0] else len(_ROWS) + _COUNT_BYTES
        start += around + sum(sizes[done : len(shells)])
        done = len(shells)
        shells += load(data[start:])
    return shells


def apart(data: Any, lengths: Any) -> Iterator[bytes]:
    """Each as it was before it was joined."""
    sizes = iter(memoryview(lengths).cast("I"))
    start = 0
    while start < len(data):
        if data[start] == _PICKLED[0]:
            start += len(_HEAD)
            while data[start] != _TAIL[0]:
                end = start + next(sizes)
                yield _ALONE + bytes(data[start:end]) + _STOP
                start = end
            start += len(_TAIL)
        else:
            start += len(_ROWS)
            count = int.from_bytes(data[start : start + _COUNT_BYTES], "little")
            start += _COUNT_BYTES
            for size in islice(sizes, count):
                yield bytes(data[start : start + size])
                start += size


# -- The arrays of datapoints that are alike, by component: what they are like, and where they stand -------------------


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


# -- What a message of datapoints looks like, between the worker that encodes and the consumer that decodes ------------


NESTED: Final = "nested"
"""The gaps of a shell that refers to its arrays by number, wherever they are; and the form of its parcel, which has
layouts instead of shapes."""

PLAIN_BYTES: Final = 64
"""A pickle that holds an array is longer."""

NO_ROOM: Final = object()
"""Instead of an encoded datapoint: the arena has no room for its arrays at present."""

_ONLY_BYTES: Final = frozenset({bytes})
_WHERE: Final = struct.Struct("<qqq")  # status byte and start of the block with the small arrays, and their bytes

Form = tuple[Any, Sequence[Like]]
"""The gaps, and what the arrays in them are like."""

Parcel = tuple[bytes, Form | str, Sequence[Any], Sequence[Piece], int]
"""An encoded datapoint with arrays: its shell, its form, the shapes of its arrays, these, and the bytes of all."""


def join(encoded: Sequence[Any], write: Callable[[bytes], Block | None]) -> tuple[list[Any], int]:
    """The body of a message, and the bytes of its datapoints.

    The body is all shells and their lengths; and, where there are arrays, what a `Description` reads, which is the same
    for many messages; and the rest: details of the columns, and after them the bytes of the small arrays; or, if these
    are many and `write` finds a block, its place.
    """
    if _ONLY_BYTES.issuperset(map(type, encoded)):
        return joined(encoded)
    parcels = [item if type(item) is tuple else (item, None, (), (), len(item)) for item in encoded]
    bodies, forms, every_shapes, every_data, sizes = zip(*parcels, strict=True)
    writer = ColumnWriter()
    groups: list[tuple[Any, int, list[list[Run]]]] = []
    end = 0
    for form, count in _runs(forms):
        start, end = end, end + count
        shapes, data = every_shapes[start:end], every_data[start:end]
        if form is None:
            groups.append((None, count, []))
        elif form == NESTED:
            column = writer.column_apart(chain.from_iterable(shapes), chain.from_iterable(data))
            groups.append((NESTED, count, [column]))
        else:
            columns = zip(form[1], zip(*shapes, strict=True), zip(*data, strict=True), strict=True)
            groups.append((form[0], count, [writer.column(*column) for column in columns]))
    small = writer.small
    block = None
    if sum(map(len, small)) >= LARGE_BYTES and (block := write(many := b"".join(small))) is not None:
        small = [_WHERE.pack(block.status, block.start, len(many))]
    frames, _ = joined(bodies)
    described = pickle.dumps((groups, block is not None), PROTOCOL)
    return [*frames, described, b"".join([*writer.details, *small])], sum(sizes)


class Description:
    """What a message says of its arrays, as the reader keeps it for all messages that say the same.

    Attributes:
        groups: The gaps of datapoints in a row, how many these are, and the arrays of each component.
        has_nested: Whether there are shells that refer to their arrays by number.
        detail_bytes: Of all columns.
        may_be_kept: No dtype is one that a user could change.
    """

    def __init__(self, data: Any) -> None:
        groups, self._in_block = pickle.loads(data)
        self.groups: list[tuple[Any, int, list[list[KnownRun]]]] = [
            (gaps, count, list(map(known, columns))) for gaps, count, columns in groups
        ]
        runs = [run for _, _, columns in groups for column in columns for run in column]
        self.has_nested = any(gaps == NESTED for gaps, _, _ in groups)
        self.may_be_kept = all(type(run[0]) is str for run in runs)
        self.detail_bytes = sum(map(detail_bytes, runs))

    def where(self, rest: memoryview) -> tuple[int, int, int] | None:
        """The block with the small arrays, and their bytes; None if they stand in `rest`, after the details."""
        return _WHERE.unpack_from(rest, self.detail_bytes) if self._in_block else None


def _runs(values: Sequence[Any]) -> list[tuple[Any, int]]:
    """What is equal in a row, and how often."""
    if values.count(values[0]) == len(values):
        return [(values[0], len(values))]
    return [(value, len(list(run))) for value, run in groupby(values)]
