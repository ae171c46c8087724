"""What a message of datapoints looks like, between the worker that encodes and the consumer that decodes.

A datapoint with arrays is a parcel: the pickle of its *shell*, which is what is left without the arrays; its *gaps*,
where the arrays belong; and the arrays themselves, as bytes or as blocks of the arena. One without arrays is its pickle
alone. Shells are pickled by protocol 3, which has explicit memo indexes and no frames: so the bodies of many pickles
can be joined into one list, and loaded by one call.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from dataflow.transport.blocks import LARGE_BYTES, Block

__all__ = [
    "ALONE",
    "HEAD",
    "NESTED",
    "NO_ROOM",
    "PLAIN_BYTES",
    "PROTOCOL",
    "STOP",
    "Layout",
    "Parcel",
    "Piece",
    "join",
    "name_of",
]

PROTOCOL: Final = 3
NESTED: Final = "nested"
"""The gaps of a shell that refers to its arrays by number, wherever they are."""

PLAIN_BYTES: Final = 64
"""A pickle that holds an array is longer."""

ALONE: Final = b"\x80\x03"  # protocol 3: how each pickle begins
STOP: Final = b"."  # and ends
HEAD: Final = ALONE + b"]("  # a list, and a mark: how many begin
TAIL: Final = b"e" + STOP  # append all since the mark

NO_ROOM: Final = object()
"""Instead of an encoded datapoint: the arena has no room for its arrays at present."""

_NO_GAPS: Final = object()
_MOST_NAMES: Final = 1024
_NAMES: Final[dict[np.dtype[Any], Any]] = {}  # what `name_of` has answered: a pure function, remembered
_ONLY_BYTES: Final = frozenset({bytes})

Layout = tuple[Any, tuple[int, ...], str]  # dtype (or its name), shape, order
Piece = tuple[Layout, bytes | Block]


Parcel = tuple[bytes, Any, list[Piece], int]
"""An encoded datapoint with arrays: the pickle of its shell, its gaps, the arrays, and the bytes of all."""


def join(encoded: Sequence[Any], write: Callable[[bytes], Block | None]) -> tuple[list[Any], int]:
    """The body of a message, and the bytes of its datapoints.

    The body is all shells as one list; their lengths, which serve where the list cannot be loaded as a whole; and,
    where there are arrays, what these are, and the bytes of the small ones: in the message, or in a block, if they are
    many and `write` finds one.
    """
    if _ONLY_BYTES.issuperset(map(type, encoded)):
        return _joined(encoded), sum(map(len, encoded))
    nbytes = 0
    bodies: list[bytes] = []
    counts: list[list[Any]] = []  # gaps, and how many datapoints in a row have them
    runs: list[list[Any]] = []  # dtype, shape, order, blocks (None for small arrays), and how many in a row are so
    small: list[bytes] = []
    gaps: Any = _NO_GAPS
    layout: Any = None
    in_blocks = False
    for item in encoded:
        if type(item) is bytes:
            item = (item, None, (), len(item))
        body, its_gaps, pieces, its_bytes = item
        bodies.append(body)
        nbytes += its_bytes
        if its_gaps is not gaps and its_gaps != gaps:
            gaps = its_gaps
            counts.append([gaps, 0])
        counts[-1][1] += 1
        for its_layout, data in pieces:
            is_block = type(data) is Block
            if is_block is not in_blocks or (its_layout is not layout and its_layout != layout):
                layout, in_blocks = its_layout, is_block
                runs.append([*layout, [] if is_block else None, 0])
            runs[-1][4] += 1
            if is_block:
                runs[-1][3].append((data.status, data.start))
            else:
                small.append(data)
    many = b"".join(small)
    block = write(many) if len(many) >= LARGE_BYTES else None
    where = None if block is None else (block.status, block.start, len(many))
    described = pickle.dumps((counts, runs, where), PROTOCOL)
    return [*_joined(bodies), described, many if block is None else b""], nbytes


def _joined(bodies: Sequence[bytes]) -> list[bytes]:
    """One pickle of a list, from the pickles of its elements; and the length of each in it."""
    bare = [body[2:-1] for body in bodies]
    return [HEAD + b"".join(bare) + TAIL, array("I", map(len, bare)).tobytes()]


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
