"""Random chains of every kind of node, each from a number: own nodes, drops, filters, counts, sources that continue."""

import itertools
import random

from dataflow import (
    BatchData,
    CacheData,
    ConcatData,
    DataFlow,
    DataFromGenerator,
    FilterData,
    FixedSizeData,
    FlattenData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MixData,
    ProxyDataFlow,
    RandomChooseData,
    RandomMapData,
    RandomMixData,
    RepeatedData,
    RNGDataFlow,
    ShuffleData,
)
from tests.support.chains import boxed, jittered, odd_only, odd_only_at_random, paired, plain_number
from tests.support.own_nodes import SHAPES, shuffled

__all__ = ["made_beside", "random_chain", "with_new_neighbours"]


class Passing(ProxyDataFlow):
    def __iter__(self):
        for dp in self.ds:
            yield [dp]


class Drawing(ProxyDataFlow, RNGDataFlow):
    def __iter__(self):
        for dp in self.ds:
            yield [dp, int(self.rng.integers(1000))]


class DrawnInReset(ProxyDataFlow, RNGDataFlow):
    """Its random numbers are drawn in the wrong place."""

    def reset_state(self):
        super().reset_state()
        self.drawn = int(self.rng.integers(1000))

    def __iter__(self):
        for dp in self.ds:
            yield [dp, self.drawn]


class Twice(DataFlow):
    """It iterates its input twice in a pass."""

    def __init__(self, ds):
        self.flows = [("ds", ds)]

    def __iter__(self):
        for _, ds in self.flows:
            yield from ds
            yield from ds


def made_beside(dp):
    return [dp, *next(iter(shuffled()))]


def is_kept(dp):
    return plain_number(dp) % 3


def is_kept_at_random(dp):
    return (plain_number(dp) + next(iter(shuffled()))[0]) % 2


def _source(rnd, shapes):
    kind = rnd.randrange(8)
    if kind < 2:
        return shuffled(rnd.randint(1, 9))
    if kind < 6:
        return rnd.choice(list(shapes.values()))(shuffled)
    if kind == 6:
        n = rnd.randint(1, 9)
        return DataFromGenerator(lambda: ([k] for k in range(n)))
    return FixedSizeData(DataFromGenerator([k] for k in itertools.count()), rnd.randint(1, 9))


CONTINUING = [
    lambda rnd, ds: RepeatedData(ds, -1),
    lambda rnd, ds: MixData([ds, shuffled(3)], [2, 1]),
    lambda rnd, ds: LocallyShuffleData(ds, rnd.randint(1, 4)),
]


def _continuing(rnd, ds):
    return FixedSizeData(rnd.choice(CONTINUING)(rnd, ds), rnd.randint(1, 9))


STEPS = [
    lambda rnd, ds: MapData(ds, boxed),
    lambda rnd, ds: MapData(ds, made_beside),
    lambda rnd, ds: RandomMapData(ds, jittered),
    lambda rnd, ds: MapData(ds, odd_only),
    lambda rnd, ds: RandomMapData(ds, odd_only_at_random),
    lambda rnd, ds: FilterData(ds, is_kept),
    lambda rnd, ds: FilterData(ds, is_kept_at_random),
    lambda rnd, ds: FlattenData(MapData(ds, paired)),
    lambda rnd, ds: BatchData(MapData(ds, boxed), rnd.randint(1, 3), remainder=True, use_list=True),
    lambda rnd, ds: FixedSizeData(ds, rnd.randint(1, 7), rnd.random() < 0.7),
    lambda rnd, ds: RepeatedData(ds, rnd.randint(1, 3)),
    lambda rnd, ds: CacheData(ds, rnd.random() < 0.5),
    lambda rnd, ds: ShuffleData(ds) if ds.addressable and not ds._df_endless else Passing(ds),
    lambda rnd, ds: Passing(ds),
    lambda rnd, ds: Drawing(ds),
    lambda rnd, ds: DrawnInReset(ds),
    lambda rnd, ds: Twice(ds),
    lambda rnd, ds: JoinData([ds, _chain(rnd, 1)]),
    lambda rnd, ds: ConcatData([ds, _chain(rnd, 1)]),
    lambda rnd, ds: JoinData([ds, ds]),
    lambda rnd, ds: RandomChooseData([ds, _chain(rnd, 1)]),
    lambda rnd, ds: RandomMixData([shuffled(4), shuffled(3), ds]) if ds.addressable else Passing(ds),
    _continuing,
]


def _chain(rnd, max_steps, shapes=SHAPES):
    ds = _source(rnd, shapes)
    for _ in range(rnd.randint(0, max_steps)):
        try:
            ds = rnd.choice(STEPS)(rnd, ds)
        except ValueError:  # a batch that is longer than the pass, an endless input
            pass
    return ds


def random_chain(number, shapes=SHAPES):
    """The chain of this number, made anew."""
    return _chain(random.Random(number), 4, shapes)


class _Recording(random.Random):
    """It keeps which of the sources and steps were chosen."""

    def __init__(self, number):
        super().__init__(number)
        self.chosen = []

    def choice(self, seq):
        found = super().choice(seq)
        self.chosen.append(found)
        return found


def with_new_neighbours(numbers, shapes=SHAPES):
    """Those of which the chain has a source and a step, or two steps, next to each other that none before it has."""
    known = set()
    for number in numbers:
        recording = _Recording(number)
        _chain(recording, 4, shapes)
        found = {*itertools.pairwise(recording.chosen)} - known
        if found:
            known |= found
            yield number
