"""The law: for every chain, pass p of a flow of n datapoints is ``[df[p * n + k] for k in range(n)]``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import DataFromList, Dropped, FixedSizeData, MapData
from tests.support.chains import BREAKS, CHAINS, DROPPING, NUM_PASSES, SIZE, odd_only
from tests.support.contract import plain, seeded


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
