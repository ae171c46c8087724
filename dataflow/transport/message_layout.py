"""Layout of a message of datapoints, shared by the encoder in the worker and the decoder in the consumer.

Terms:

- Skeleton: the part of a datapoint that is left without its arrays. A datapoint without arrays is encoded as its
  skeleton alone.
- Gaps: the positions in a skeleton where arrays belong.
- Form: the gaps, and the dtype and order of the arrays in them; many datapoints have the same form.
- Encoded datapoint: skeleton, form, shapes of the arrays, and the arrays themselves, as bytes or as blocks
  of the arena.

The body of a message, here of two small images with their names and a datapoint without an array:

    datapoints    [image, "a"]     [image, "b"]     ["end", 1]
    skeletons     [None, "a"]      [None, "b"]      ["end", 1]

    skeletons     one list of the marshalled ones, one of the pickled ones, each loaded by one call
    lengths       of the skeletons, to load them one by one if a list cannot be loaded
    table         gaps: component 0 of 2 datapoints, then nothing in 1; by component its arrays: 2 × uint8 (28, 28)
    details       first dimensions of arrays that differ in them; of large arrays the places of their blocks
    small arrays  their bytes, column by column

Datapoint kinds: most flows yield datapoints of one kind, with arrays in the same places and other components of the
same types. What follows from these types is computed only when they change. Without this cache, the worker's encoder
takes 3 times as long in the benchmark `mnist`, and 1.3 times in `ragged`.

Skeletons: many of them are joined in one buffer and loaded by one call. A skeleton is a pickle; or, if it is a row of
numbers and text, the output of `marshal`, which is faster. Both can be joined: `marshal` writes the elements of a list
one after the other, and so does pickle with protocol 3, which has explicit memo indexes and no frames. The first byte
distinguishes the two.

Array columns: the arrays of similar datapoints are described by component. If all arrays of a column are alike except
for the first dimension, as is common for texts, sounds and point sets, one description covers the whole column. The
bytes of all small arrays follow one another, column by column.
"""

from __future__ import annotations

import marshal
import math
import pickle
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, groupby, islice, pairwise
from operator import attrgetter, is_, itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.arena import LARGE_BYTES, LOCATION, Block

__all__ = [
    "ColumnReader",
    "DatapointKind",
    "Description",
    "Layout",
    "NESTED",
    "NO_ROOM",
    "NUMBERS",
    "PLAIN_BYTES",
    "PROTOCOL",
    "ROWS",
    "TEXTS",
    "VERSION",
    "split_skeletons",
    "has_padding",
    "join",
    "load",
    "load_skeletons",
    "name_of",
    "without_padding",
]


# -- Datapoint kinds ---------------------------------------------------------------------------------------------------


ROWS: Final = frozenset({list, tuple})
NUMBERS: Final = frozenset({int, float, bool, type(None)})
"""Exactly these types arrive from `marshal` as they do from `pickle`: `marshal` does not memoize them either."""

TEXTS: Final = NUMBERS | {str, bytes}
"""Beside arrays, `marshal` writes these types too. The values arrive equal, but an object that occurs twice arrives as
two.
"""

# A copy of such a key finds what the key finds; this is not so for nan, or for objects compared by identity.
_PLAIN_KEYS: Final = frozenset({str, int})
_ARRAY: Final = np.ndarray
_SIMPLE: Final = TEXTS | {complex}
_UNKNOWN: Final[tuple[Any, Any, Any, int]] = (None, None, None, 0)


class DatapointKind:
    """Properties shared by datapoints of one type with the same component types (for a dict: under the same keys).

    Args:
        dp: One of these datapoints.
        types: Types of its components.
    """

    __slots__ = (
        "array_indexes",
        "form",
        "gaps",
        "has_plain_keys",
        "is_row",
        "is_simple",
        "last",
        "names",
        "pick",
        "shapes",
        "single_array",
        "type",
        "types",
    )

    def __init__(self, dp: Any, types: list[type]) -> None:
        self.type = type(dp)
        self.types = types
        self.names = list(dp) if self.type is dict else None  # the keys of a dict
        self.has_plain_keys = self.names is None or _PLAIN_KEYS.issuperset(map(type, self.names))
        self.array_indexes = [index for index, its in enumerate(types) if its is _ARRAY]  # of the arrays
        self.gaps = (self.type is tuple, self.array_indexes, self.names)
        self.single_array = self.array_indexes[0] if len(self.array_indexes) == 1 and self.has_plain_keys else None
        self.pick = itemgetter(*self.array_indexes) if len(self.array_indexes) > 1 else None
        # Of each array: its dtype, the dtype's name, shape and bytes, as found by `learn`.
        self.last = [_UNKNOWN] * len(self.array_indexes)
        self.shapes: Any = ()  # of these arrays; shared by all encoded datapoints with the same shapes
        self.form = (self.gaps, [("", "C")] * len(self.array_indexes))
        rest = set(types) - {_ARRAY}
        # Whether `marshal` can write what is sent: without arrays that is the whole datapoint, which must not be a
        # dict.
        self.is_row = rest <= TEXTS if self.array_indexes else self.names is None and rest <= NUMBERS
        self.is_simple = self.has_plain_keys and rest <= _SIMPLE  # arrays occur as components only

    def learn(self, arrays: Sequence[NDArray[Any]]) -> bool:
        """Remember what these arrays are like, for the next ones.

        Returns False for arrays of objects, and with padding: the encoder must inspect each.
        """
        if True in [array.dtype.hasobject or has_padding(array.dtype) for array in arrays]:
            return False
        self.last = [(array.dtype, name_of(array.dtype), array.shape, array.nbytes) for array in arrays]
        self.shapes = [array.shape for array in arrays]
        # A new list, because earlier encoded datapoints refer to the old one.
        self.form = (self.gaps, [(name, "C") for _, name, *_ in self.last])
        return True

    def has_names_of(self, dp: Any) -> bool:
        """Return True if a dict has exactly these keys in this order.

        1, 1.0 and True are equal, but they are different keys here.
        """
        names = self.names or []
        if len(dp) == len(names) and all(map(is_, dp, names)):
            return True
        return list(dp) == names and list(map(type, dp)) == list(map(type, names))


# -- Skeletons: many in one buffer -------------------------------------------------------------------------------------


PROTOCOL: Final = 3  # of pickle
VERSION: Final = 2  # of marshal: the last without references, whose numbers would be wrong inside a list

# First byte of each pickle. Types of `marshal` are ASCII characters, to which it adds this bit only from version 3 on.
_PICKLED: Final = b"\x80"
_PROTOCOL_OPCODE: Final = b"\x80\x03"  # with its protocol
_STOP: Final = b"."  # last byte of each pickle
_HEAD: Final = _PROTOCOL_OPCODE + b"]("  # opcodes: empty list, and a stack mark
_TAIL: Final = b"e" + _STOP  # opcode: append everything since the mark; no pickled object begins with it
_ROWS: Final = b"["  # a list in marshal format; its length is in the next four bytes
_COUNT_BYTES: Final = 4  # little-endian on every machine


def _join(bodies: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Join skeletons. Return the frames of a message, and the total bytes of the skeletons.

    The frames are one buffer, and the lengths of its skeletons, needed if they cannot be loaded at once.

    Raises:
        TypeError: Some are bytes and others are not.
    """
    # Bytes compare by their first byte first: all of them are marshalled, or below, all are pickled.
    if max(bodies, default=_PICKLED) < _PICKLED:
        data = _rows(bodies)
        return [data, b""], len(data) - len(_ROWS) - _COUNT_BYTES
    if min(bodies, default=_PICKLED) >= _PICKLED:
        data, lengths = _pickles(bodies)
        cut = len(_PROTOCOL_OPCODE + _STOP) * len(bodies)
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
    """Load the bytes of one skeleton, or the first of several parts."""
    return pickle.loads(body) if body[0] == _PICKLED[0] else marshal.loads(body)


def load_skeletons(data: Any, lengths: Any) -> list[Any]:
    """Load all skeletons."""
    shells: list[Any] = load(data)
    sizes = memoryview(lengths).cast("I")
    start = done = 0
    while len(shells) < len(sizes):  # the parts in the other format follow
        around = len(_HEAD + _TAIL) if data[start] == _PICKLED[0] else len(_ROWS) + _COUNT_BYTES
        start += around + sum(sizes[done : len(shells)])
        done = len(shells)
        shells += load(data[start:])
    return shells


def split_skeletons(data: Any, lengths: Any) -> Iterator[bytes]:
    """Yield each skeleton as it was before it was joined."""
    sizes = iter(memoryview(lengths).cast("I"))
    start = 0
    while start < len(data):
        if data[start] == _PICKLED[0]:
            start += len(_HEAD)
            while data[start] != _TAIL[0]:
                end = start + next(sizes)
                yield _PROTOCOL_OPCODE + bytes(data[start:end]) + _STOP
                start = end
            start += len(_TAIL)
        else:
            start += len(_ROWS)
            count = int.from_bytes(data[start : start + _COUNT_BYTES], "little")
            start += _COUNT_BYTES
            for size in islice(sizes, count):
                yield bytes(data[start : start + size])
                start += size


# -- Array columns -----------------------------------------------------------------------------------------------------


Like = tuple[Any, str]  # name of the dtype, order
Layout = tuple[Any, tuple[int, ...], str]  # name of the dtype, shape, order
Piece = bytes | Block  # a copied array
Run = tuple[Any, tuple[int, ...], str, int, bool, bool]
"""Consecutive arrays of a column: the name of their dtype; their shape, or the dimensions after the first; their order;
their number; whether they differ in the first dimension; and whether any of them has a block. All of this is the same
in many messages: the first dimensions and the locations of the blocks are stored separately, in the details.
"""
KnownRun = tuple[np.dtype[Any], tuple[int, ...], str, int, bool, bool, int]
"""A `Run` in the reader: with a dtype object, and the bytes of one array, or of one of its rows."""

_SMALL: Final = -(2**63), 0  # stands for a small array among blocks, instead of status byte and start
_NO_LOCATION: Final = LOCATION.pack(*_SMALL)
_LENGTH_BYTES: Final = 8
_location: Final = attrgetter("location")
_copied: Final = np.ndarray.copy


class ColumnWriter:
    """Describes arrays column by column, and collects the details of each.

    Attributes:
        details: Of each run: the first dimensions, if they differ; and the locations of the blocks, if it has any.
        small: The bytes of the arrays without a block.
    """

    def __init__(self) -> None:
        self.details: list[bytes] = []
        self.small: list[bytes] = []

    def column(self, like: Like, shapes: tuple[Any, ...], data: Sequence[Piece]) -> list[Run]:
        """Describe the arrays of a column, all of which have dtype and order `like`."""
        name, order = like
        count, first = len(shapes), shapes[0]
        kinds = set(map(type, data))
        if len(kinds) == 1 and first == shapes[-1] and shapes.count(first) == count:
            return [(name, first, order, count, False, self._add_blocks(data, kinds))]
        if order == "C":
            lengths: Any = None
            if set(map(len, shapes)) == {1}:
                lengths = chain.from_iterable(shapes)
            elif () not in shapes and [shape[1:] for shape in shapes].count(first[1:]) == count:
                lengths = [shape[0] for shape in shapes]
            if lengths is not None:
                self.details.append(array("q", lengths).tobytes())
                return [(name, first[1:], order, count, True, self._add_blocks(data, kinds))]
        return self.column_apart([(name, shape, order) for shape in shapes], data)

    def column_apart(self, layouts: Iterable[Layout], data: Iterable[Piece]) -> list[Run]:
        """Describe arrays that may have nothing in common."""
        runs: list[Run] = []
        pieces = zip(layouts, data, strict=True)
        for (layout, kind), run in groupby(pieces, lambda piece: (piece[0], type(piece[1]))):
            some = [piece for _, piece in run]
            runs.append((*layout, len(some), False, self._add_blocks(some, {kind})))
        return runs

    def _add_blocks(self, data: Sequence[Any], kinds: set[type]) -> bool:
        """Record the locations of the blocks. Return True if there are any."""
        if Block not in kinds:
            self.small += data
            return False
        if len(kinds) == 1:
            self.details += map(_location, data)
        else:
            self.small += [where for where in data if type(where) is not Block]
            self.details += [where.location if type(where) is Block else _NO_LOCATION for where in data]
        return True


def _known(runs: Iterable[Run]) -> list[KnownRun]:
    """Prepare the runs of a column for `ColumnReader`."""
    found: list[KnownRun] = []
    for name, shape, order, count, differ, in_blocks in runs:
        dtype = _dtype(name)
        found.append((dtype, shape, order, count, differ, in_blocks, math.prod(shape) * dtype.itemsize))
    return found


class ColumnReader:
    """Restores the arrays of columns, in the order in which they were described.

    Args:
        details: As collected by `ColumnWriter`.
        small: The bytes of the small arrays, which are copied out.
        leases: Returns arrays in blocks, as `ArenaReader.leases` does.
    """

    def __init__(self, details: memoryview, small: memoryview, leases: Callable[..., list[NDArray[Any]]]) -> None:
        self._details = _Unread(details)
        self._small = _Unread(small)
        self._leases = leases

    def read(self, runs: Iterable[KnownRun]) -> list[NDArray[Any]]:
        """Return the arrays of a column."""
        arrays: list[NDArray[Any]] = []
        for dtype, shape, order, count, differ, in_blocks, nbytes in runs:
            lengths = self._details.take(count * _LENGTH_BYTES).cast("q").tolist() if differ else None
            locations = LOCATION.iter_unpack(self._details.take(count * LOCATION.size)) if in_blocks else None
            if lengths is not None:
                arrays += self._of_lengths(lengths, locations, shape, dtype, nbytes)
            elif locations is not None:
                arrays += self._leases(locations, shape, dtype, order)
            else:
                arrays += _copies(self._small.take(count * nbytes), shape, dtype, order, count)
        return arrays

    def _of_lengths(
        self,
        lengths: list[int],
        locations: Iterable[Any] | None,
        tail: tuple[int, ...],
        dtype: np.dtype[Any],
        row_bytes: int,
    ) -> Iterable[NDArray[Any]]:
        """Return arrays that are alike except for the first dimension."""
        if not row_bytes:
            return [np.ndarray((length, *tail), dtype) for length in lengths]
        if locations is None:
            bounds = list(accumulate(lengths, initial=0))
            many = np.ndarray((bounds[-1], *tail), dtype, self._small.take(bounds[-1] * row_bytes))
            return [many[start:stop].copy() for start, stop in pairwise(bounds)]
        pieces = list(zip(lengths, locations, strict=True))
        total = sum([length for length, location in pieces if location == _SMALL])
        many = np.ndarray((total, *tail), dtype, self._small.take(total * row_bytes))
        arrays: list[NDArray[Any]] = []
        stop = 0
        for length, location in pieces:
            if location == _SMALL:
                start, stop = stop, stop + length
                arrays.append(many[start:stop].copy())
            else:
                arrays += self._leases([location], (length, *tail), dtype, "C")
        return arrays


class _Unread:
    """A buffer with a read position."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._start = 0

    def take(self, nbytes: int) -> memoryview:
        """Read the next `nbytes`."""
        start = self._start
        self._start = stop = start + nbytes
        return self._data[start:stop]


def _copies(
    data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any, count: int
) -> Iterable[NDArray[Any]]:
    """Copy the `count` arrays in `data`, each into its own memory."""
    if not data.nbytes:  # numpy's copy of an empty array would have one byte
        return [np.ndarray(shape, dtype, order=order) for _ in range(count)]
    if dtype.kind == "V":  # numpy would leave out the padding
        return [
            np.ndarray(shape, dtype, row.copy(), order=order)
            for row in np.ndarray((count, data.nbytes // count), np.uint8, data)
        ]
    many = np.ndarray((count, *(shape[::-1] if order == "F" else shape)), dtype, data)
    if not shape:
        return [many[k : k + 1].copy().reshape(()) for k in range(count)]
    if order == "F":
        return [one.T.copy(order="F") for one in many]
    # Copied as the caller extends its list, so before it frees the block that `data` may be in.
    return map(_copied, many)


def _dtype(name: Any) -> np.dtype[Any]:
    # A pickled dtype is loaded each time: users can change such a dtype (its field names), so it must not be shared.
    dtype: np.dtype[Any] = np.dtype(name) if type(name) is str else pickle.loads(name)
    return dtype


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Whether there are bytes between the fields, which NumPy does not copy: a copy has there what was in memory."""
    if dtype.kind != "V":
        return False
    dtype = dtype.base
    fields = [dtype[name] for name in dtype.names or ()]
    return bool(fields) and (sum(one.itemsize for one in fields) != dtype.itemsize or any(map(has_padding, fields)))


def without_padding(array: NDArray[Any], order: Any) -> NDArray[Any]:
    """Return a copy of an array, with zeros where it has padding."""
    out = np.zeros(array.shape, array.dtype, order)
    _copy_fields(array, out)
    return out


def _copy_fields(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy field by field: NumPy copies the padding of equal dtypes, too, from 2.5 on."""
    if source.dtype.names is None:
        target[...] = source
    else:
        for name in source.dtype.names:
            _copy_fields(source[name], target[name])


def name_of(dtype: np.dtype[Any]) -> Any:
    """A dtype as text; or as a pickle, where text would lose metadata, fields or alignment."""
    # `isbuiltin` is 2 for dtypes of other packages, for example bfloat16.
    if dtype.metadata is not None or dtype.kind == "V" or dtype.isbuiltin == 2:
        return pickle.dumps(dtype)
    return dtype.str


# -- Messages ----------------------------------------------------------------------------------------------------------


NESTED: Final = "nested"
"""The gaps of a skeleton that refers to its arrays by number, wherever they are; and the form of its encoded datapoint,
which has layouts instead of shapes.
"""

PLAIN_BYTES: Final = 64
"""Every pickle that contains an array is longer than this."""

NO_ROOM: Final = object()
"""Returned instead of an encoded datapoint: the arena has no room for its arrays at present."""

_WHERE: Final = struct.Struct("<qqq")  # status byte and start of the block with the small arrays, and their bytes

Form = tuple[Any, Sequence[Like]]
"""The gaps, and dtype and order of the arrays in them."""

EncodedDatapoint = tuple[bytes, Form | str, Sequence[Any], Sequence[Piece], int]
"""An encoded datapoint with arrays: its skeleton, its form, the shapes of its arrays, the arrays, and the total bytes.
"""


def join(encoded: Sequence[Any], write: Callable[[bytes], Block | None]) -> tuple[list[Any], int]:
    """Return the body of a message, and the bytes of its datapoints.

    The body consists of all skeletons and their lengths. If there are arrays, two frames follow: the data of a
    `Description`, which is the same for many messages; and the details of the columns, followed by the bytes of the
    small arrays, or by the location of a block with these bytes, if they are many and `write` finds a block.
    """
    if not encoded or type(encoded[0]) is bytes:
        with suppress(TypeError):  # one of them has arrays: it is a tuple
            return _join(encoded)
    datapoints = [item if type(item) is tuple else (item, None, (), (), len(item)) for item in encoded]
    bodies, forms, every_shapes, every_data, sizes = zip(*datapoints, strict=True)
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
    frames, _ = _join(bodies)
    described = pickle.dumps((groups, block is not None), PROTOCOL)
    return [*frames, described, b"".join([*writer.details, *small])], sum(sizes)


class Description:
    """The array description of a message, cached by the reader for all messages with the same description.

    Attributes:
        groups: For consecutive datapoints: their gaps, their number, and the arrays of each component.
        has_nested: Whether any skeleton refers to its arrays by number.
        detail_bytes: Bytes of the details of all columns.
        may_be_kept: Whether it can be cached: it has no dtype that a user could change.
    """

    def __init__(self, data: Any) -> None:
        groups, self._in_block = pickle.loads(data)
        self.groups: list[tuple[Any, int, list[list[KnownRun]]]] = [
            (gaps, count, list(map(_known, columns))) for gaps, count, columns in groups
        ]
        runs = [run for _, _, columns in groups for column in columns for run in column]
        self.has_nested = any(gaps == NESTED for gaps, _, _ in groups)
        self.may_be_kept = all(type(run[0]) is str for run in runs)
        self.detail_bytes = sum(
            count * (_LENGTH_BYTES * differ + LOCATION.size * in_blocks) for *_, count, differ, in_blocks in runs
        )

    def where(self, rest: memoryview) -> tuple[int, int, int] | None:
        """The block with the small arrays, and their bytes; None if they are in `rest`, after the details."""
        return _WHERE.unpack_from(rest, self.detail_bytes) if self._in_block else None


def _runs(values: Sequence[Any]) -> list[tuple[Any, int]]:
    """Run-length encoding: each value, and how often it repeats in a row."""
    if values.count(values[0]) == len(values):
        return [(values[0], len(values))]
    return [(value, len(list(run))) for value, run in groupby(values)]
