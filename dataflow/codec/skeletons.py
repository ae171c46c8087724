"""Shells, which are what is left of datapoints without their arrays: many of them in one buffer, loaded by one call.

A shell is a pickle; or, if it is a row of numbers and text, what `marshal` writes of it, which is faster. Both can be
joined: `marshal` writes the elements of a list one after the other, and so does pickle by protocol 3, which has
explicit memo indexes and no frames. The first byte tells which it is.
"""

from __future__ import annotations

import marshal
import pickle
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

__all__ = ["PROTOCOL", "VERSION", "apart", "joined", "load", "loaded"]

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
