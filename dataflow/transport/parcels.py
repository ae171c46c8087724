"""What a message of datapoints looks like, between the worker that encodes and the consumer that decodes.

A datapoint with arrays is a parcel: its *shell*, which is what is left without the arrays; its *form*, which it has in
common with others: its *gaps*, where the arrays belong, and what these are like; their shapes; and the arrays
themselves, as bytes or as blocks of the arena. One without arrays is its shell alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any, Final

from dataflow.transport.blocks import LARGE_BYTES, Block
from dataflow.transport.columns import Like, Piece, described, described_apart
from dataflow.transport.shells import PROTOCOL, joined

__all__ = ["NESTED", "NO_ROOM", "PLAIN_BYTES", "Form", "Parcel", "join"]

NESTED: Final = "nested"
"""The gaps of a shell that refers to its arrays by number, wherever they are; and the form of its parcel, which has
layouts instead of shapes."""

PLAIN_BYTES: Final = 64
"""A pickle that holds an array is longer."""

NO_ROOM: Final = object()
"""Instead of an encoded datapoint: the arena has no room for its arrays at present."""

_ONLY_BYTES: Final = frozenset({bytes})

Form = tuple[Any, Sequence[Like]]
"""The gaps, and what the arrays in them are like."""

Parcel = tuple[bytes, Form | str, Sequence[Any], Sequence[Piece], int]
"""An encoded datapoint with arrays: its shell, its form, the shapes of its arrays, these, and the bytes of all."""


def join(encoded: Sequence[Any], write: Callable[[bytes], Block | None]) -> tuple[list[Any], int]:
    """The body of a message, and the bytes of its datapoints.

    The body is all shells and their lengths; and, where there are arrays, what these are, and the bytes of the small
    ones: in the message, or in a block, if they are many and `write` finds one.
    """
    if _ONLY_BYTES.issuperset(map(type, encoded)):
        return joined(encoded)
    parcels = [item if type(item) is tuple else (item, None, (), (), len(item)) for item in encoded]
    bodies, forms, every_shapes, every_data, sizes = zip(*parcels, strict=True)
    small: list[bytes] = []
    groups: list[tuple[Any, int, list[Any]]] = []
    end = 0
    for form, count in _runs(forms):
        start, end = end, end + count
        shapes, data = every_shapes[start:end], every_data[start:end]
        if form is None:
            groups.append((None, count, []))
        elif form == NESTED:
            column = described_apart(chain.from_iterable(shapes), chain.from_iterable(data), small)
            groups.append((NESTED, count, [column]))
        else:
            columns = zip(form[1], zip(*shapes, strict=True), zip(*data, strict=True), strict=True)
            groups.append((form[0], count, [described(*column, small) for column in columns]))
    many = b"".join(small)
    block = write(many) if len(many) >= LARGE_BYTES else None
    where = None if block is None else (block.status, block.start, len(many))
    frames, _ = joined(bodies)
    return [*frames, pickle.dumps((groups, where), PROTOCOL), many if block is None else b""], sum(sizes)


def _runs(values: Sequence[Any]) -> list[tuple[Any, int]]:
    """What is equal in a row, and how often."""
    if values.count(values[0]) == len(values):
        return [(values[0], len(values))]
    return [(value, len(list(run))) for value, run in groupby(values)]
