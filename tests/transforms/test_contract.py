"""The contract of all nodes, checked for every transform, and for random chains of them."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.errors import Dropped
from dataflow.sources.in_memory import DataFromList
from dataflow.transforms.augmenting import RandomMapData
from dataflow.transforms.batching import BatchData, BatchDataByShape
from dataflow.transforms.caching import CacheData
from dataflow.transforms.filtering import FilterData
from dataflow.transforms.joining import ConcatData, JoinData
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.transforms.mixing import MixData, RandomChooseData, RandomMixData
from dataflow.transforms.padding import BucketBatchData, PadBatchData
from dataflow.transforms.repeating import FixedSizeData, RepeatedData, RepeatedDataPoint
from dataflow.transforms.resuming import ResumableData
from dataflow.transforms.selecting import FlattenData, SelectComponent
from dataflow.transforms.sharding import ShardData
from dataflow.transforms.shuffling import LocallyShuffleData, ShuffleData
from dataflow.transforms.token_blocks import PackData
from tests.support.chains import BREAKS, CHAINS, DROPPING, NUM_PASSES, SIZE, odd_only
from tests.support.contract import check_node, listed, plain, seeded


def same(dp):
    return dp


def drawn(dp, rng):
    return [rng.integers(1000), dp[1]]


def odd(dp):
    return dp[1] % 2


def number(dp):
    return dp[1]


NODES = {
    "BatchData": (lambda ds: BatchData(ds, 3), {}),
    "BatchData remainder": (lambda ds: BatchData(ds, 3, remainder=True, use_list=True), {}),
    "BatchDataByShape": (lambda ds: BatchDataByShape(ds, 2, 0), {"addressable": False, "exclusive": True}),
    "BatchDataByShape remainder": (lambda ds: BatchDataByShape(ds, 3, 0, remainder=True), {"addressable": False}),
    "BatchData int64": (lambda ds: BatchData(ds, 3, int_dtype=np.int64, collate=list), {}),
    "BucketBatchData": (lambda ds: BucketBatchData(ds, 3, key=number, boundaries=[2, 5]), {"addressable": False}),
    "CacheData": (CacheData, {}),
    "CacheData shuffle": (lambda ds: CacheData(ds, shuffle=True), {}),
    "ConcatData": (lambda ds: ConcatData([ds, ds]), {}),
    "FilterData": (lambda ds: FilterData(ds, odd), {"addressable": False}),
    "FixedSizeData": (lambda ds: FixedSizeData(ds, 3), {"stateful_unaddressed": True}),
    "FixedSizeData restart": (lambda ds: FixedSizeData(ds, 11, keep_state=False), {}),
    "FlattenData": (FlattenData, {"addressable": False, "kinds": (list, tuple)}),
    "FlattenData num": (lambda ds: FlattenData(ds, num=2), {"kinds": (list, tuple)}),
    "JoinData": (lambda ds: JoinData([ds, ds]), {"kinds": (list, tuple)}),
    "JoinData one": (lambda ds: JoinData([ds]), {}),
    "LocallyShuffleData": (lambda ds: LocallyShuffleData(ds, 4), {"addressable": False, "stateful": True}),
    "MapData": (lambda ds: MapData(ds, same), {}),
    "MapDataComponent": (lambda ds: MapDataComponent(ds, operator.neg, 1), {}),
    "MixData": (lambda ds: MixData([ds, ds, ds], [5, 3, 1]), {"stateful": True}),
    "MixData seed": (lambda ds: MixData([ds, RepeatedData(ds, 2)], [1, 2], seed=3), {"stateful": True}),
    "PackData": (lambda ds: PackData(ds, 3, key=0), {"addressable": False}),
    "PackData fit": (lambda ds: PackData(ds, 5, key=0, policy="fit", window=3), {"addressable": False}),
    "PackData lengths": (lambda ds: PackData(ShuffleData(ds), 3, key=0, lengths=[2] * 8), {"needs_addressing": True}),
    "PackData endless": (lambda ds: PackData(RepeatedData(ds, -1), 3, key=0), {
        "addressable": False, "stateful": True,
    }),
    "PadBatchData": (lambda ds: PadBatchData(ds, 3, mask=True), {}),
    "PadBatchData remainder": (lambda ds: PadBatchData(ds, 3, remainder=True, keys=[0]), {}),
    "RandomChooseData": (lambda ds: RandomChooseData([ds, RepeatedData(ds, 3)]), {"addressable": False}),
    "RandomMapData": (lambda ds: RandomMapData(ds, drawn), {}),
    "RandomMapData endless": (lambda ds: RandomMapData(RepeatedData(ds, -1), drawn), {"stateful": True}),
    "RandomMixData": (lambda ds: RandomMixData([ds, RepeatedData(ds, 2)]), {}),
    "RepeatedData": (lambda ds: RepeatedData(ds, 2), {}),
    "RepeatedDataPoint": (lambda ds: RepeatedDataPoint(ds, 3), {}),
    "ResumableData": (ResumableData, {}),
    "SelectComponent": (lambda ds: SelectComponent(ds, [1]), {}),
    "ShardData": (lambda ds: ShardData(ds, 1, 3), {}),
    "ShardData endless": (lambda ds: ShardData(RepeatedData(ds, -1), 1, 3), {"stateful": True}),
    "ShardData keep": (lambda ds: ShardData(ds, 1, 3, tail="keep"), {}),
    "ShardData repeat": (lambda ds: ShardData(ds, 2, 3, tail="repeat"), {}),
    "ShuffleData": (ShuffleData, {"needs_addressing": True}),
    # Chains in which state meets structure.
    "endless within": (lambda ds: FixedSizeData(JoinData([ds, RepeatedData(ds, -1)]), 5), {
        "kinds": (list, tuple), "stateful_unaddressed": True,
    }),
}  # fmt: skip


@pytest.mark.parametrize(("make", "traits"), NODES.values(), ids=NODES)
def test_the_node_keeps_the_contract(make, traits):
    check_node(make, **traits)


def test_endless_repetition_continues_where_it_stopped():
    df = RepeatedData(listed(), -1)
    seen = [k for _, (_, k) in zip(range(3), df, strict=False)]
    seen += [k for _, (_, k) in zip(range(5), df, strict=False)]
    assert len(seen) == 8 and len(set(seen)) >= 7  # zip takes one more before it ends
    assert df[10][1] in range(8)
    assert np.shape(df[10][0]) == (2,)


# -- random chains: pass p of n datapoints is [df[p * n + k] for k in range(n)] ----------------------------------------


@given(CHAINS, BREAKS, st.integers(0, 99))
def test_a_pass_has_the_datapoints_of_its_indexes(df, breaks, root):
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
def test_a_pass_has_the_datapoints_of_its_indexes_without_dropped_ones(df, root):
    with seeded(root):
        n = len(df)
        for p in range(3):
            assert [plain(dp) for dp in df] == plain(df[p * n : (p + 1) * n])[1]


@given(CHAINS, st.integers(0, 99), st.data())
def test_indexes_may_be_requested_in_any_order(df, root, data):
    with seeded(root):
        n = len(df)
        expected = plain(df[0 : 2 * n])[1]
        for k in data.draw(st.lists(st.integers(0, 2 * n - 1), max_size=5)):
            assert plain(df[k]) == expected[k]


@given(SIZE.map(lambda n: MapData(DataFromList([[k] for k in range(n)], shuffle=False), odd_only)), SIZE)
def test_a_node_that_counts_raises_if_a_datapoint_below_was_dropped(ds, size):
    df = FixedSizeData(ds, size)
    if all(k % len(ds) % 2 for k in range(size)):
        assert len(df[0:size]) == size
    else:
        with pytest.raises(Dropped, match="FixedSizeData counts"):
            df[0:size]
