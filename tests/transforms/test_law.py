"""The law: pass p of a flow of n datapoints is ``[df[p * n + k] for k in range(n)]``, whatever the chain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.datapoint import is_datapoint
from dataflow.errors import Dropped
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.synthetic import FakeData
from dataflow.transforms.batching import BatchData
from dataflow.transforms.caching import CacheData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.transforms.mixing import RandomMixData
from dataflow.transforms.repeating import FixedSizeData, RepeatedData, RepeatedDataPoint
from dataflow.transforms.selecting import SelectComponent
from tests.support.contract import plain, seeded

NUM_PASSES = 4
SMALL = st.integers(1, 4)
SIZE = st.integers(1, 9)


def boxed(dp):
    return [list(dp)]


def odd_only(dp):
    return dp if plain_number(dp) % 2 else None


def plain_number(value):
    while is_datapoint(value):
        value = value[0]
    return int(value)


def lists():
    return st.builds(lambda n, shuffle: DataFromList([[k] for k in range(n)], shuffle), SIZE, st.booleans())


def fakes():
    return st.builds(lambda n, random: FakeData([(2,)], n, random, "int32", (0, 99)), SIZE, st.booleans())


def one_to_one(flows):
    return st.one_of(
        st.builds(MapData, flows, st.just(boxed)),
        st.builds(MapDataComponent, flows, st.just(repr)),
        st.builds(SelectComponent, flows, st.just([0])),
        st.builds(RepeatedData, flows, SMALL),
        st.builds(RepeatedDataPoint, flows, SMALL),
        st.builds(CacheData, flows, st.booleans()),
    )


def joining(flows):
    pairs = st.one_of(st.tuples(flows, flows), flows.map(lambda ds: (ds, ds)), st.tuples(flows))
    return st.one_of(pairs.map(ConcatData), pairs.map(RandomMixData))


def counting(flows):
    endless = st.builds(RepeatedData, flows, st.just(-1))
    pairs = st.one_of(
        st.tuples(flows, flows), flows.map(lambda ds: (ds, ds)), st.tuples(endless, flows), st.tuples(flows, endless)
    )
    return st.one_of(
        st.builds(lambda ds, n, remainder: BatchData(MapData(ds, boxed), 1 + n % len(ds), remainder, True), flows, SIZE,
                  st.booleans()),
        st.builds(lambda ds, n: FixedSizeData(BatchData(MapData(ds, boxed), n, use_list=True), 3), endless, SIZE),
        st.builds(FixedSizeData, st.one_of(flows, endless), SIZE, st.booleans()),
        pairs.map(JoinData),
    )  # fmt: skip


def steps(flows):
    return st.one_of(one_to_one(flows), joining(flows), counting(flows))


def dropping_steps(flows):
    return st.one_of(one_to_one(flows), joining(flows))


CHAINS = st.recursive(st.one_of(lists(), fakes()), steps, max_leaves=6)
DROPPING = st.recursive(st.builds(MapData, lists(), st.just(odd_only)), dropping_steps, max_leaves=5)
BREAKS = st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=NUM_PASSES, max_size=NUM_PASSES)


@given(CHAINS, BREAKS, st.integers(0, 99))
def test_a_pass_is_what_its_indexes_give(df, breaks, root):
    with seeded(root):
        n = len(df)
        expected = plain(df[0 : NUM_PASSES * n])[1]
        assert len(expected) == NUM_PASSES * n
        for p, num_taken in enumerate(breaks):  # None: the whole pass
            iterator = iter(df)
            found = (
                list(iterator) if num_taken is None else [dp for _, dp in zip(range(num_taken), iterator, strict=False)]
            )
            assert [plain(dp) for dp in found] == expected[
                p * n : p * n + (n if num_taken is None else min(n, num_taken))
            ]
            middle = (2 * p + 1) * n // 2
            assert plain(df[middle]) == expected[middle]


@given(DROPPING, st.integers(0, 99))
def test_a_pass_is_what_its_indexes_give_without_those_that_were_dropped(df, root):
    with seeded(root):
        n = len(df)
        for p in range(3):
            assert [plain(dp) for dp in df] == plain(df[p * n : (p + 1) * n])[1]


@given(CHAINS, st.integers(0, 99), st.data())
def test_indexes_may_be_asked_for_in_any_order(df, root, data):
    with seeded(root):
        n = len(df)
        expected = plain(df[0 : 2 * n])[1]
        for k in data.draw(st.lists(st.integers(0, 2 * n - 1), max_size=5)):
            assert plain(df[k]) == expected[k]


@given(SIZE.map(lambda n: MapData(DataFromList([[k] for k in range(n)], shuffle=False), odd_only)), SIZE)
def test_a_node_that_counts_says_that_a_datapoint_below_was_dropped(ds, size):
    df = FixedSizeData(ds, size)
    if all(k % len(ds) % 2 for k in range(size)):
        assert len(df[0:size]) == size
    else:
        with pytest.raises(Dropped, match="FixedSizeData counts"):
            df[0:size]
