import contextlib
import itertools
import logging
import queue
from collections import Counter

import pytest

from dataflow.protocol import seeding
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.sources.queues import DataFromQueue
from dataflow.sources.synthetic import FakeData
from dataflow.transforms import shuffling
from dataflow.transforms.mapping import MapData
from dataflow.transforms.shuffling import LocallyShuffleData, ShuffleData
from tests.support.contract import seeded


def numbers(n):
    return DataFromList(range(n), shuffle=False)


def first(num, df):
    return list(itertools.islice(df, num))


def test_no_datapoint_is_yielded_before_it_was_read():
    found = first(1000, LocallyShuffleData(numbers(1000), 30))
    assert found != sorted(found)
    assert all(k < place + 30 for place, k in enumerate(found))
    assert len(set(found)) > 900


def test_passes_follow_each_other_endlessly():
    with seeded(1):
        count = Counter(first(10 * 20, LocallyShuffleData(numbers(20), 5)))
    assert set(count) == set(range(20)) and all(9 <= num <= 11 for num in count.values())


def test_datapoints_are_reused():
    df = LocallyShuffleData(numbers(40), 10, num_reuse=3)
    assert len(df) == 120
    count = Counter(first(60, df))
    assert max(count.values()) == 3


def test_it_continues_where_it_stopped():
    with seeded(5):
        df = LocallyShuffleData(numbers(20), 5)
        parts = first(7, df) + first(7, df) + first(7, df)
        assert parts == first(21, LocallyShuffleData(numbers(20), 5))


def test_nothing_is_yielded_before_the_buffer_is_full():
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
    with pytest.raises(ValueError, match=f"{name} must be an integer ≥ 1, got 0"):
        LocallyShuffleData(numbers(3), **{"buffer_size": 3, name: 0})


def test_its_own_seed_replaces_the_root():
    def order(seed):
        return first(50, LocallyShuffleData(numbers(50), 20, seed=seed))

    assert order(1) == order(1) != order(2)


# -- ShuffleData -------------------------------------------------------------------------------------------------------


def test_every_pass_is_a_different_permutation():
    df = ShuffleData(numbers(60))
    passes = [list(df) for _ in range(3)]
    assert all(sorted(found) == list(range(60)) for found in passes)
    assert len({tuple(found) for found in passes}) == 3


def test_it_shuffles_an_input_whose_passes_differ():
    with seeded(2):
        ds = FakeData([()], 7, dtype="int32", domain=(0, 10**9))
        df = ShuffleData(ds)
        for p in range(3):
            assert sorted(int(k) for (k,) in df) == sorted(int(k) for (k,) in ds[7 * p : 7 * p + 7])


def test_each_datapoint_is_made_when_it_is_needed():
    made = []
    df = ShuffleData(MapData(numbers(1000), lambda k: made.append(k) or k))
    next(iter(df))
    assert len(made) == 1


def test_a_permutation_takes_four_bytes_per_datapoint_and_is_drawn_once_per_pass(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        shuffling, "permutation", lambda words, n: drawn.append(seeding.permutation(words, n)) or drawn[-1]
    )
    df = ShuffleData(numbers(2000))
    list(df)
    assert len(drawn) == 1 and drawn[0].dtype == "uint32"


def test_its_order_is_not_that_of_another_node_in_the_chain():
    with seeded(2):
        twice = ShuffleData(ShuffleData(numbers(50)))
        first, second = ShuffleData(numbers(50))[0:50], twice[0:50]
        assert first != second
        assert [first[k] for k in first] != second


def test_its_own_seed_gives_it_its_order():
    assert list(ShuffleData(numbers(50), seed=1)) == list(ShuffleData(numbers(50), seed=1))
    assert list(ShuffleData(numbers(50), seed=1)) != list(ShuffleData(numbers(50), seed=2))


def test_an_empty_input_can_be_shuffled():
    df = ShuffleData(numbers(0))
    assert list(df) == [] and df[0:0] == []
    with pytest.raises(IndexError, match="ShuffleData is empty"):
        df[0]


@pytest.mark.parametrize("num_reuse", [1, 2])
def test_a_timeout_below_a_buffer_loses_nothing(num_reuse):
    items = queue.Queue()
    df = LocallyShuffleData(DataFromQueue(items, timeout=0.02), 2, num_reuse=num_reuse)
    steps = iter(df)
    found = []
    for k in range(6):
        items.put([k])
        with contextlib.suppress(TimeoutError):
            while True:
                found.append(next(steps))
    assert len(found) == 6 * num_reuse - 2 and all(found.count([k]) <= num_reuse for k in range(6))
    df.close()
