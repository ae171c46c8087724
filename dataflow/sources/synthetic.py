"""Synthetic source: random arrays of given shapes, for benchmarks and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, repeat
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataflow.protocol.base import Blocks, RNGDataFlow
from dataflow.protocol.parameters import flag, whole_number
from dataflow.protocol.seeding import Positions, Rng, Stream, Table, root_seed
from dataflow.sources.source import Source

__all__ = ["FakeData"]


class FakeData(Source[list[NDArray[Any]]], RNGDataFlow[list[NDArray[Any]]]):
    """Lists of random arrays.

    With ``random=False`` one datapoint is drawn for each pass and yielded repeatedly: each time a new list, always with
    the same arrays.

    Args:
        shapes: The shape of each component.
        size: Datapoints per pass.
        random: Draw new values for every datapoint.
        dtype: One dtype for all components, or a list with one for each: bool, integer or floating.
        domain: Smallest value and upper bound, for all components, or a list of such pairs. Integers are
            in ``[low, high)``.
        seed: A root seed for this node, instead of the one of `dataflow.seed`.

    Raises:
        ValueError: The lists differ in length (the message holds both), `size` is negative, or a domain is empty.
        TypeError: A shape or dtype is invalid.

    Example:
        >>> df = FakeData([(2, 3), (4,)], size=10, dtype=["float32", "int32"], domain=[(0, 1), (5, 8)])
        >>> image, label = df[3]
        >>> image.shape, image.dtype, label.shape, bool((label >= 5).all())
        ((2, 3), dtype('float32'), (4,), True)
    """

    _df_indexed = True

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        size: int = 1000,
        random: bool = True,
        dtype: DTypeLike | Sequence[DTypeLike] = "float32",
        domain: tuple[float, float] | Sequence[tuple[float, float]] = (0, 1),
        *,
        seed: int | None = None,
    ) -> None:
        if not isinstance(shapes, list | tuple) or not all(isinstance(shape, list | tuple) for shape in shapes):
            raise TypeError(
                f"FakeData expects a list of shapes, one for each component, got {shapes!r:.100}: for images and "
                "labels, shapes=[(224, 224, 3), ()]"
            )
        self.shapes = [
            tuple(whole_number(self, f"each size in shapes[{k}]", size, 0) for size in shape)
            for k, shape in enumerate(shapes)
        ]
        self._size = whole_number(self, "size", size, 0)
        self.random = flag(self, "random", random)
        self.dtype = [_dtype(kind) for kind in self._each("dtype", dtype, isinstance(dtype, list | tuple))]
        several = isinstance(domain, list) or (isinstance(domain, tuple) and isinstance(domain[0], list | tuple))
        self.domain = [_domain(pair) for pair in self._each("domain", domain, several)]
        for kind in self.dtype:
            if kind.kind not in "biuf":
                raise TypeError(f"FakeData draws bool, integer and floating dtypes, not {kind}")
        self._drawers = list(map(_drawer, self.shapes, self.dtype, self.domain))
        self._df_own_root = root_seed(self, seed)
        self._repeated = Table()

    def _each(self, name: str, value: Any, several: bool) -> list[Any]:
        values = list(value) if several else [value] * len(self.shapes)
        if len(values) != len(self.shapes):
            raise ValueError(
                f"FakeData: {len(values)} {name}s for {len(self.shapes)} shapes; give one {name}, or one for each shape"
            )
        return values

    def __len__(self) -> int:
        return self._size

    @property
    def _df_parameters(self) -> dict[str, Any]:
        dtypes, domains = [str(dtype) for dtype in self.dtype], self.domain
        return {
            **super()._df_parameters,
            "size": self._size,
            "dtype": dtypes[0] if len(set(dtypes)) == 1 else dtypes,
            "domain": domains[0] if len(set(domains)) == 1 else domains,
        }

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if not self.random:
            return map(list, repeat(self._one(stream, p), self._size))
        positions = Positions(self._df_words(stream, p))
        return map(self._draw, map(positions.at, range(self._size)))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return chain.from_iterable(map(partial(self._read, stream), blocks))

    def _read(self, stream: Stream, indexes: NDArray[np.int64]) -> Iterator[Any]:
        if self._size == 0 and len(indexes):
            raise IndexError(f"FakeData of size 0 is empty: there is no datapoint at index {indexes[0]}")
        if not self.random:
            passes = groupby((indexes // self._size).tolist())
            return map(list, chain.from_iterable(repeat(self._one(stream, p), len(list(same))) for p, same in passes))
        return map(self._draw, map(self._df_index_rngs(stream, self._size).at, indexes.tolist()))

    def _one(self, stream: Stream, p: int) -> list[Any]:
        words = self._df_words(stream, p)
        one: list[Any] = self._repeated.get(words, partial(_first, self._draw, words))
        return one

    def _draw(self, rng: Rng) -> list[Any]:
        return [draw(rng) for draw in self._drawers]


def _first(draw: Any, words: tuple[int, ...]) -> Any:
    return draw(Positions(words).at(0))


def _dtype(kind: DTypeLike) -> np.dtype[Any]:
    try:
        return np.dtype(kind)
    except TypeError as error:
        raise TypeError(
            f"FakeData: dtype must be a numpy dtype such as 'float32', or a list of them: {error}"
        ) from None


def _domain(pair: Any) -> tuple[float, float]:
    wanted = f"FakeData: a domain is (low, high) with low <= high, both finite, got {pair!r:.100}"
    try:
        low, high = pair
        valid = low <= high and math.isfinite(high - low)
    except (TypeError, ValueError):
        raise TypeError(wanted) from None
    if not valid:
        raise ValueError(wanted)
    return low, high


def _drawer(shape: tuple[int, ...], dtype: np.dtype[Any], domain: tuple[float, float]) -> Callable[[Rng], Any]:
    """The function that draws one component."""
    low, high = domain
    if dtype.kind == "b":
        return partial(_integers, 0, 2, shape, dtype, dtype)
    if dtype.kind in "iu":
        first = math.ceil(low)
        return partial(_integers, first, max(math.ceil(high), first + 1), shape, dtype.newbyteorder("="), dtype)
    drawn = np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    if shape and dtype == drawn and domain == (0, 1):
        return methodcaller("random", shape, drawn)
    return partial(_floats, low, high, shape, drawn, dtype)


def _integers(
    first: int, stop: int, shape: tuple[int, ...], drawn: np.dtype[Any], dtype: np.dtype[Any], rng: Rng
) -> NDArray[Any]:
    return np.asarray(rng.integers(first, stop, size=shape, dtype=drawn)).astype(dtype, copy=False)


def _floats(
    low: float, high: float, shape: tuple[int, ...], drawn: np.dtype[Any], dtype: np.dtype[Any], rng: Rng
) -> NDArray[Any]:
    out: Any = np.asarray(rng.random(shape, dtype=drawn))
    if (low, high) != (0, 1):
        out *= high - low
        out += low
    return np.asarray(out, dtype)
