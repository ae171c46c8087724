"""Bytes to datapoints: shells are loaded, and their gaps filled with arrays.

A small array is copied out, so that a datapoint which is kept does not keep its whole message; an array in a block of
the arena is read in place. Both may be written to.
"""

from __future__ import annotations

import functools
import math
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from dataflow.failures import Report
from dataflow.transport.failures import unpack_failure, unpack_report
from dataflow.transport.leases import ArenaReader
from dataflow.transport.nesting import NestedUnpickler
from dataflow.transport.parcels import ALONE, HEAD, NESTED, STOP

__all__ = ["ArrayDecoder", "Undecodable"]

_copied: Final = np.ndarray.copy


class Undecodable(Exception):
    """A datapoint could not be read; its cause says why, `before` holds those of the message that came before it."""

    def __init__(self, before: list[Any]) -> None:
        super().__init__()
        self.before = before


class ArrayDecoder:
    """The consumer's end of the codec between processes.

    Args:
        arenas: Where the large arrays of each worker are.
    """

    def __init__(self, arenas: Sequence[ArenaReader]) -> None:
        self._arenas = arenas

    def decode(self, worker: int, body: Sequence[Any]) -> list[Any]:
        """The datapoints of a message."""
        bodies, lengths = body[:2]
        arrays: Iterator[NDArray[Any]] = iter(())
        counts = None
        if len(body) > 2:
            counts, runs, where = pickle.loads(body[2])
            if where is None:
                arrays = iter(self._arrays(worker, runs, memoryview(body[3])))
            else:
                try:
                    arrays = iter(self._arrays(worker, runs, self._arenas[worker].read(*where)))
                finally:  # all were copied out
                    self._arenas[worker].free(where[0])
        nested = counts is not None and any(gaps == NESTED for gaps, _ in counts)
        try:
            shells = None if nested else pickle.loads(bodies)
        except Exception:
            shells = None  # one by one, it will be seen which it is
        if shells is None:
            return _decode_apart(bodies, array("I", bytes(lengths)).tolist(), counts, arrays)
        if counts is None:
            return cast(list[Any], shells)
        if len(counts) == 1:
            return _complete(shells, counts[0][0], arrays)
        datapoints = []
        start = 0
        for gaps, count in counts:
            datapoints += _complete(shells[start : start + count], gaps, arrays)
            start += count
        return datapoints

    def decode_failure(self, body: Sequence[Any]) -> BaseException:
        """The exception of a message about one."""
        return unpack_failure(body[0])

    def decode_report(self, body: Sequence[Any]) -> Report:
        """The report of a message with one."""
        return unpack_report(body[0])

    def _arrays(self, worker: int, runs: Sequence[Any], small: memoryview) -> list[NDArray[Any]]:
        arrays: list[NDArray[Any]] = []
        start = 0
        for name, shape, order, blocks, count in runs:
            dtype = _dtype(name)
            if blocks is not None:
                arrays += self._arenas[worker].leases(blocks, shape, dtype, order)
                continue
            nbytes = math.prod(shape) * dtype.itemsize
            if count == 1 and nbytes:
                arrays.append(np.ndarray(shape, dtype, small, start, None, order).copy(order))
            else:
                arrays += _copies(small[start : start + count * nbytes], shape, dtype, order, count)
            start += count * nbytes
        return arrays


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


def _decode_apart(bodies: Any, lengths: list[int], counts: Any, arrays: Iterator[NDArray[Any]]) -> list[Any]:
    """The datapoints of a message, loaded one by one."""
    start = len(HEAD)
    datapoints: list[Any] = []
    every_gaps = chain.from_iterable(repeat(gaps, count) for gaps, count in counts or [(None, len(lengths))])
    for length, gaps in zip(lengths, every_gaps, strict=True):
        body = ALONE + bytes(bodies[start : start + length]) + STOP
        start += length
        try:
            shell = NestedUnpickler(body, arrays).load() if gaps == NESTED else pickle.loads(body)
        except Exception as error:
            raise Undecodable(datapoints) from error
        datapoints += _complete([shell], gaps, arrays)
    return datapoints


def _complete(shells: list[Any], gaps: Any, arrays: Iterator[NDArray[Any]]) -> list[Any]:
    """The datapoints of shells that all have the same gaps."""
    if gaps is None or gaps == NESTED:
        return shells
    is_tuple, keys = gaps
    if len(keys) == 1:
        (key,) = keys
        for shell, array in zip(shells, arrays, strict=False):
            shell[key] = array
    else:
        for shell in shells:
            for key in keys:
                shell[key] = next(arrays)
    return list(map(tuple, shells)) if is_tuple else shells


@functools.lru_cache(maxsize=1024)
def _dtype(name: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype
