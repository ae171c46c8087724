"""Nodes whose inputs are not found among their attributes: kept elsewhere, or made while they run."""

import functools
import itertools

import numpy as np

from dataflow import (
    DataFlow,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    FilterData,
    FixedSizeData,
    MapData,
    ProxyDataFlow,
    RepeatedData,
)

__all__ = ["ADDRESSABLE", "KEEPING", "SHAPES", "shuffled"]


def shuffled(n=6):
    return DataFromList([[k] for k in range(n)])


def _numbers(n=4):
    return DataFromList([[k] for k in range(n)], shuffle=False)


class _Kept(DataFlow):
    """It keeps the flow of `make` as `keep` says, and `find` returns it from there."""

    def __init__(self, make, keep, find):
        self.kept = keep(make())
        self.find = find

    def __iter__(self):
        yield from self.find(self.kept)


class _Slots(DataFlow):
    __slots__ = ("inner",)

    def __init__(self, make):
        self.inner = make()

    def __iter__(self):
        yield from self.inner


class _Property(DataFlow):
    def __init__(self, make):
        self.hidden = {"a": {"b": make()}}

    @property
    def ds(self):
        return self.hidden["a"]["b"]

    def __iter__(self):
        yield from self.ds


class _Made(DataFlow):
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        yield from self.make()


class _MadeTwice(_Made):
    def __iter__(self):
        for first, second in zip(self.make(), self.make(), strict=True):
            yield [*first, *second]


class _MadeOnce(_Made):
    """It makes the flow when it needs it first, and keeps it."""

    def __init__(self, make):
        super().__init__(make)
        self.kept = {}

    def __iter__(self):
        if "flow" not in self.kept:
            self.kept["flow"] = [self.make()]
        yield from self.kept["flow"][0]


class _MadeOnceAsInput(_Made):
    """It keeps the flow where inputs are found."""

    def __init__(self, make):
        super().__init__(make)
        self.kept = None

    def __iter__(self):
        if self.kept is None:
            self.kept = self.make()
        yield from self.kept


class _MadeInReset(_Made):
    def reset_state(self):
        self.kept = {"flow": [self.make()]}

    def __iter__(self):
        yield from self.kept["flow"][0]


class _MadeInResetAsInput(_Made):
    def reset_state(self):
        self.kept = self.make()

    def __iter__(self):
        yield from self.kept


class _Counting(_Made):
    """It counts its passes."""

    def __init__(self, make):
        super().__init__(make)
        self.num_begun = 0

    def __iter__(self):
        for dp in self.make():
            yield [*dp, self.num_begun]
        self.num_begun += 1


class _Drawing(_Made):
    """It draws from a generator of its own."""

    def __init__(self, make):
        super().__init__(make)
        self.generator = np.random.default_rng(1)

    def __iter__(self):
        for dp in self.make():
            yield [*dp, int(self.generator.integers(1000))]


class _Endless(_Made):
    def __iter__(self):
        yield from itertools.islice(RepeatedData(self.make(), -1), 7)


class _Beside(ProxyDataFlow):
    """A second flow beside the input."""

    def __init__(self, ds, make):
        super().__init__(ds)
        self.make = make

    def __iter__(self):
        for dp, (other,) in zip(self.ds, self.make(), strict=False):
            yield [*dp, other]


def _closure(make):
    flow = make()

    def passes():
        yield from flow

    return DataFromGenerator(passes)


def _in_map(make):
    return MapData(_numbers(), lambda dp: [dp[0], *itertools.chain.from_iterable(make())])


def _kept_in_map(make):
    flow = make()
    return MapData(_numbers(), lambda dp: [dp[0], *itertools.chain.from_iterable(flow)])


def _in_maps(make):
    return MapData(_in_map(make), lambda dp: [*dp, *itertools.chain.from_iterable(make())])


def _indexed_in_map(make):
    flow = make()
    return MapData(shuffled(4), lambda dp: [dp[0], *flow[2 * dp[0]]])


def _in_predicate(make):
    return FilterData(_numbers(9), lambda dp: (dp[0] + next(iter(make()))[0]) % 2)


class _Lazy:
    """A sequence whose elements are read from flows."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 4

    def __getitem__(self, k):
        return [k, *next(iter(self.make()))]


ADDRESSABLE = {
    "read by a list": lambda make: DataFromList(_Lazy(make), shuffle=False),
    "read by a shuffled list": lambda make: DataFromList(_Lazy(make)),
    "made in a map": _in_map,
    "made in two maps": _in_maps,
    "kept by a map": _kept_in_map,
    "indexed in a map": _indexed_in_map,
}
SHAPES = {
    "attribute": lambda make: _Kept(make, lambda ds: ds, lambda kept: kept),
    "list": lambda make: _Kept(make, lambda ds: [ds], lambda kept: kept[0]),
    "late in a list": lambda make: _Kept(make, lambda ds: [0, ds], lambda kept: kept[1]),
    "tuple": lambda make: _Kept(make, lambda ds: (ds,), lambda kept: kept[0]),
    "dict": lambda make: _Kept(make, lambda ds: {"a": ds}, lambda kept: kept["a"]),
    "pairs": lambda make: _Kept(make, lambda ds: [("a", ds)], lambda kept: kept[0][1]),
    "dict of lists": lambda make: _Kept(make, lambda ds: {"a": [ds]}, lambda kept: kept["a"][0]),
    "partial": lambda make: _Kept(make, lambda ds: functools.partial(iter, ds), lambda kept: kept()),
    "slots": _Slots,
    "property": _Property,
    "closure": _closure,
    "iterable": lambda make: DataFromIterable(make()),
    "function": DataFromGenerator,
    "iterator": lambda make: DataFromGenerator(lambda: map(list, make())),
    "made": _Made,
    "made twice": _MadeTwice,
    "made once": _MadeOnce,
    "made once, as an input": _MadeOnceAsInput,
    "made in reset_state": _MadeInReset,
    "made in reset_state, as an input": _MadeInResetAsInput,
    "endless": _Endless,
    "beside an input": lambda make: _Beside(shuffled(), make),
    "nested": lambda make: _Made(lambda: _Made(lambda: _closure(make))),
    "predicate": _in_predicate,
    "cut": lambda make: FixedSizeData(_Made(make), 4, keep_state=False),
    **ADDRESSABLE,
}
"""From a function that makes an addressable flow to a flow whose datapoints come from one or more of these."""
KEEPING = {"counting its passes": _Counting, "drawing from its own generator": _Drawing}
"""Shapes of the same kind that keep something from pass to pass."""
