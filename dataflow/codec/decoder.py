"""Decoder: message bodies to datapoints. Skeletons are unpickled, and their gaps filled with arrays.

A small array is copied out, so that a datapoint that is kept does not keep its whole message alive; an array in a block
of the arena is read in place. Both are writable. Messages often describe their arrays in the same way, so descriptions
are cached: without the cache, the benchmarks `image`, `ragged` and `batch` take 1.15 to 1.3 times the consumer's CPU
time here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from dataflow.codec.exceptions import unpack_failure, unpack_report
from dataflow.codec.message_layout import NESTED, ColumnReader, Description, apart, load, loaded
from dataflow.codec.nested_arrays import NestedUnpickler
from dataflow.failures import Report
from dataflow.memory.blocks import BlockReaders

__all__ = ["ArrayDecoder", "Undecodable"]

_MAX_DESCRIPTIONS: Final = 64
_LONG: Final = 4096  # descriptions of at least this many bytes are not cached


class Undecodable(Exception):
    """A datapoint could not be decoded.

    Its cause gives the reason; `before` holds the datapoints that precede it in the message.
    """

    def __init__(self, before: list[Any]) -> None:
        super().__init__()
        self.before = before


class ArrayDecoder:
    """The consumer's end of the codec between processes.

    Args:
        arenas: The arena of each worker, with its large arrays.
    """

    def __init__(self, arenas: BlockReaders) -> None:
        self._arenas = arenas
        self._descriptions: dict[bytes, Description] = {}  # cache, by their bytes

    def decode(self, worker: int, body: Sequence[Any]) -> list[Any]:
        """Decode the datapoints of a message."""
        data, lengths, *described = body
        groups, has_nested = self._arrays(worker, *described) if described else ([], False)
        try:
            shells = None if has_nested else loaded(data, lengths)
        except Exception:
            shells = None  # loading them one by one shows which one fails
        if shells is None:
            return _decode_apart(data, lengths, groups)
        if len(groups) == 1:
            gaps, _, columns = groups[0]
            return _complete(shells, gaps, columns)
        if not groups:
            return shells
        datapoints = []
        start = 0
        for gaps, count, columns in groups:
            datapoints += _complete(shells[start : start + count], gaps, columns)
            start += count
        return datapoints

    def decode_failure(self, body: Sequence[Any]) -> BaseException:
        """Decode the exception of an error message."""
        return unpack_failure(body[0])

    def decode_report(self, body: Sequence[Any]) -> Report:
        """Decode the report of a report message."""
        return unpack_report(body[0])

    def _arrays(self, worker: int, described: Any, rest: Any) -> tuple[list[tuple[Any, int, list[Any]]], bool]:
        """Return groups of consecutive datapoints, and whether any datapoint is nested.

        A group is (gaps, number of datapoints, arrays by component).
        """
        description, rest = self._description(bytes(described)), memoryview(rest)
        arena = self._arenas[worker]
        where = description.where(rest)
        try:
            small = rest[description.detail_bytes :] if where is None else arena.read(*where)
            reader = ColumnReader(rest, small, arena.leases)
            groups = []
            for gaps, count, columns in description.groups:
                groups.append((gaps, count, list(map(reader.read, columns))))
            return groups, description.has_nested
        finally:
            if where is not None:  # all arrays were copied out
                arena.free(where[0])

    def _description(self, data: bytes) -> Description:
        try:
            return self._descriptions[data]
        except KeyError:
            description = Description(data)
            if len(data) < _LONG and description.may_be_kept:
                if len(self._descriptions) >= _MAX_DESCRIPTIONS:
                    self._descriptions.clear()
                self._descriptions[data] = description
            return description


def _decode_apart(data: Any, lengths: Any, groups: Sequence[Any]) -> list[Any]:
    """Decode the datapoints of a message one by one."""
    datapoints: list[Any] = []
    bodies = apart(data, lengths)
    for gaps, count, columns in groups or [(None, None, [])]:
        arrays = [iter(column) for column in columns]
        for body in islice(bodies, count):
            try:
                shell = NestedUnpickler(body, arrays[0]).load() if gaps == NESTED else load(body)
            except Exception as error:
                raise Undecodable(datapoints) from error
            datapoints += _complete([shell], gaps, arrays)
    return datapoints


def _complete(shells: list[Any], gaps: Any, columns: Sequence[Iterable[Any]]) -> list[Any]:
    """Fill the gaps of skeletons that all have the same gaps."""
    if gaps is None or gaps == NESTED:
        return shells
    is_tuple, indexes, names = gaps
    for index, column in zip(indexes, columns, strict=True):
        for shell, array in zip(shells, column, strict=False):  # in this order: a column may be shared
            shell[index] = array
    if names is not None:
        return [dict(zip(names, shell, strict=False)) for shell in shells]
    return list(map(tuple, shells)) if is_tuple else shells
