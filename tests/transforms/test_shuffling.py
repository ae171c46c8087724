import itertools
import logging
from collections import Counter

import pytest

from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.transforms.shuffling import LocallyShuffleData
from tests.support.contract import seeded


def numbers(n):
    return DataFromList(range(n), shuffle=False)


def first(num, df):
    return list(itertools.islice(df, num))


def test_no_datapoint_comes_out_before_it_went_in():
    found = first(1000, LocallyShuffleData(numbers(1000), 30))
    assert found != sorted(found)
    assert all(k < place + 30 for place, k in enumerate(found))
    assert len(set(found)) > 900


def test_passes_follow_each_other_without_end():
    with seeded(1):
        count = Counter(first(10 * 20, LocallyShuffleData(numbers(20), 5)))
    assert set(count) == set(range(20)) and all(9 <= num <= 11 for num in count.values())


def test_datapoints_are_reused():
    df = LocallyShuffleData(numbers(40), 10, num_reuse=3)
    assert len(df) == 120
    count = Counter(first(60, df))
    assert max(count.values()) == 3


def test_it_goes_on_where_it_stopped():
    with seeded(5):
        df = LocallyShuffleData(numbers(20), 5)
        parts = first(7, df) + first(7, df) + first(7, df)
        assert parts == first(21, LocallyShuffleData(numbers(20), 5))


def test_nothing_comes_out_before_the_buffer_is_full():
    taken = []
    df = LocallyShuffleData(DataFromGenerator(lambda: (taken.append(k) or k for k in range(100))), 10)
    iterator = iter(df)
    next(iterator)
    assert len(taken) == 11


@pytest.mark.parametrize("buffer_size", [1, 2, 3])
def test_small_buffers_work(buffer_size):
    df = LocallyShuffleData(numbers(5), buffer_size)
    assert set(first(20, df)) == set(range(5))
    assert df.shuffle_interval == 1


def test_an_input_shorter_than_the_buffer_is_in_it_several_times():
    assert set(first(30, LocallyShuffleData(numbers(2), 10))) == {0, 1}


def test_a_shuffle_interval_longer_than_all_keeps_the_order():
    assert first(8, LocallyShuffleData(numbers(4), 3, shuffle_interval=10**6)) == [0, 1, 2, 3] * 2


def test_an_empty_input_ends_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "dataflow"):
        assert list(LocallyShuffleData(numbers(0), 3)) == []
    assert "was empty" in caplog.text


@pytest.mark.parametrize("name", ["buffer_size", "num_reuse", "shuffle_interval"])
def test_sizes_are_at_least_1(name):
    with pytest.raises(ValueError, match=f"{name} is at least 1, got 0"):
        LocallyShuffleData(numbers(3), **{"buffer_size": 3, name: 0})


def test_its_own_seed_replaces_the_root():
    def order(seed):
        return first(50, LocallyShuffleData(numbers(50), 20, seed=seed))

    assert order(1) == order(1) != order(2)
