"""Bytes to datapoints: shells are loaded, and their gaps filled with arrays.

A small array is copied out, so that a datapoint which is kept does not keep its whole message; an array in a block of
the arena is read in place. Both may be written to.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.arena import ArenaReader, Block
from dataflow.transport.failures import unpack_failure
from dataflow.transport.parcels import ALONE, HEAD, NESTED, STOP

__all__ = ["ArrayDecoder", "Undecodable"]


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
            counts, runs = pickle.loads(body[2])
            arrays = self._arrays(worker, runs, memoryview(body[3]))
        nested = counts is not None and any(gaps == NESTED for gaps, _ in counts)
        try:
            shells = None if nested else pickle.loads(bodies)
        except Exception:
            shells = None  # one by one, it will be seen which it is
        if shells is None:
            return _decode_apart(bodies, np.frombuffer(lengths, np.uint32).tolist(), counts, arrays)
        if counts is None:
            return cast(list[Any], shells)
        datapoints = []
        start = 0
        for gaps, count in counts:
            datapoints += _complete(shells[start : start + count], gaps, arrays)
            start += count
        return datapoints

    def decode_failure(self, body: Sequence[Any]) -> BaseException:
        """The exception of a message about one."""
        return unpack_failure(body[0])

    def _arrays(self, worker: int, runs: Sequence[Any], small: memoryview) -> Iterator[NDArray[Any]]:
        start = 0
        for name, shape, order, blocks, count in runs:
            dtype = _dtype(name)
            if blocks is not None:
                for status, begin in blocks:
                    yield self._arenas[worker].lease(Block(status, begin, 0), shape, dtype, order)
                continue
            reverse = order == "F"
            nbytes = math.prod(shape) * dtype.itemsize
            if not nbytes:  # nothing to copy, and numpy's copy would make one byte of none
                yield from (np.ndarray(shape, dtype, order=order) for _ in range(count))
                continue
            many = np.ndarray((count, *(shape[::-1] if reverse else shape)), dtype, small, start)
            start += count * nbytes
            if not shape:
                yield from (many[k : k + 1].copy().reshape(()) for k in range(count))
            elif reverse:
                yield from (one.T.copy(order="F") for one in many)
            else:
                yield from (one.copy() for one in many)


def _decode_apart(bodies: Any, lengths: list[int], counts: Any, arrays: Iterator[NDArray[Any]]) -> list[Any]:
    """The datapoints of a message, loaded one by one."""
    start = len(HEAD)
    datapoints: list[Any] = []
    every_gaps = chain.from_iterable(repeat(gaps, count) for gaps, count in counts or [(None, len(lengths))])
    for length, gaps in zip(lengths, every_gaps, strict=True):
        body = ALONE + bytes(bodies[start : start + length]) + STOP
        start += length
        try:
            shell = _NestedUnpickler(body, arrays).load() if gaps == NESTED else pickle.loads(body)
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


class _NestedUnpickler(pickle.Unpickler):
    """Loads a shell that refers to its arrays by number, in the order of the numbers."""

    def __init__(self, body: bytes, arrays: Iterator[NDArray[Any]]) -> None:
        super().__init__(io.BytesIO(body))
        self._arrays = arrays
        self._seen: list[NDArray[Any]] = []

    def persistent_load(self, number: int) -> NDArray[Any]:
        if number == len(self._seen):
            self._seen.append(next(self._arrays))
        return self._seen[number]


@functools.lru_cache(maxsize=1024)
def _dtype(name: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype
