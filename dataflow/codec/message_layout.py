"""What a message of datapoints looks like, between the worker that encodes and the consumer that decodes.

A datapoint with arrays is a parcel: its *shell*, which is what is left without the arrays; its *form*, which it has in
common with others: its *gaps*, where the arrays belong, and what these are like; their shapes; and the arrays
themselves, as bytes or as blocks of the arena. One without arrays is its shell alone.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any, Final

from dataflow.codec.array_columns import ColumnWriter, KnownRun, Like, Piece, Run, detail_bytes, known
from dataflow.codec.skeletons import PROTOCOL, joined
from dataflow.memory.blocks import LARGE_BYTES, Block

__all__ = ["NESTED", "NO_ROOM", "PLAIN_BYTES", "Description", "Form", "Parcel", "join"]

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
