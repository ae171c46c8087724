"""Random chains, for laws that hold for all of them (Hypothesis)."""

from hypothesis import strategies as st

from dataflow import (
    BatchData,
    CacheData,
    ConcatData,
    DataFromList,
    FakeData,
    FixedSizeData,
    FlattenData,
    JoinData,
    MapData,
    MapDataComponent,
    MixData,
    RandomMapData,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    SelectComponent,
    ShardData,
    ShuffleData,
)
from dataflow.protocol.datapoint import is_datapoint

__all__ = ["BREAKS", "CHAINS", "DROPPING", "NUM_PASSES", "SIZE", "odd_only"]

NUM_PASSES = 4
SMALL = st.integers(1, 4)
SIZE = st.integers(1, 9)


def boxed(dp):
    return [list(dp)]


def paired(dp):
    return [dp, dp]


def jittered(dp, rng):
    return [dp, int(rng.integers(1000))]


def odd_only(dp):
    return dp if plain_number(dp) % 2 else None


def odd_only_at_random(dp, rng):
    return [plain_number(dp), int(rng.integers(1000))] if rng.random() < 0.7 else None


def plain_number(value):
    while is_datapoint(value):
        value = value[0]
    return int(value)


def lists():
    return st.builds(
        lambda n, shuffle, packed: DataFromList([[k] for k in range(n)], shuffle, packed=packed),
        SIZE,
        st.booleans(),
        st.booleans(),
    )


def fakes():
    return st.builds(lambda n, random: FakeData([(2,)], n, random, "int32", (0, 99)), SIZE, st.booleans())


def sharded(ds, tail, world_size, rank):
    if tail != "repeat":
        world_size = min(world_size, len(ds))  # no shard without a datapoint
    return ShardData(ds, rank % world_size, world_size, tail)


def one_to_one(flows):
    return st.one_of(
        st.builds(MapData, flows, st.just(boxed)),
        st.builds(MapDataComponent, flows, st.just(repr)),
        st.builds(SelectComponent, flows, st.just([0])),
        st.builds(RandomMapData, flows, st.just(jittered)),
        st.builds(ShuffleData, flows),
        st.builds(RepeatedData, flows, SMALL),
        st.builds(RepeatedDataPoint, flows, SMALL),
        st.builds(CacheData, flows, st.booleans()),
        st.builds(lambda ds: FlattenData(MapData(ds, paired), num=2), flows),
        st.builds(sharded, flows, st.just("keep"), SMALL, SMALL),
    )


def joining(flows):
    pairs = st.one_of(st.tuples(flows, flows), flows.map(lambda ds: (ds, ds)), st.tuples(flows))
    return st.one_of(pairs.map(ConcatData), pairs.map(RandomMixData))


def counting(flows):
    endless = st.one_of(
        st.builds(RepeatedData, flows, st.just(-1)),
        st.builds(lambda ds: RandomMapData(RepeatedData(ds, -1), jittered), flows),
        st.builds(lambda ds: ShardData(RepeatedData(ds, -1), 1, 2), flows),
        st.builds(lambda ds, other, seed: MixData([ds, other], [2, 1], seed), flows, flows, st.sampled_from([None, 1])),
    )
    pairs = st.one_of(
        st.tuples(flows, flows), flows.map(lambda ds: (ds, ds)), st.tuples(endless, flows), st.tuples(flows, endless)
    )
    return st.one_of(
        st.builds(lambda ds, n, remainder: BatchData(MapData(ds, boxed), 1 + n % len(ds), remainder, True), flows, SIZE,
                  st.booleans()),
        st.builds(lambda ds, n: FixedSizeData(BatchData(MapData(ds, boxed), n, use_list=True), 3), endless, SIZE),
        st.builds(FixedSizeData, st.one_of(flows, endless), SIZE, st.booleans()),
        st.builds(sharded, flows, st.sampled_from(["drop", "repeat"]), SMALL, SMALL),
        pairs.map(JoinData),
    )  # fmt: skip


def steps(flows):
    return st.one_of(one_to_one(flows), joining(flows), counting(flows))


def dropping_steps(flows):
    return st.one_of(one_to_one(flows), joining(flows))


CHAINS = st.recursive(st.one_of(lists(), fakes()), steps, max_leaves=6)
DROPPING = st.recursive(
    st.one_of(
        st.builds(MapData, lists(), st.just(odd_only)), st.builds(RandomMapData, lists(), st.just(odd_only_at_random))
    ),
    dropping_steps,
    max_leaves=5,
)
BREAKS = st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=NUM_PASSES, max_size=NUM_PASSES)
