import pickle
import random
import threading

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromList,
    FilterData,
    MapData,
    MultiProcessRunnerZMQ,
    RandomMapData,
    RepeatedData,
    RepeatedDataPoint,
    ShuffleData,
    TooManyFailures,
)
from dataflow.protocol.passes import root_stream
from tests.support.contract import seeded


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def drawn(dp, rng):
    return [*dp, int(rng.integers(10**9))]


def test_every_position_of_every_pass_has_different_numbers():
    df = RandomMapData(numbers(50), drawn)
    passes = [list(df), list(df)]
    assert len({number for found in passes for _, number in found}) == 100


def test_the_draws_of_one_datapoint_do_not_affect_another():
    def greedy(dp, rng):
        rng.normal(size=dp[0] % 7)
        rng.integers(10, dtype=np.uint8)  # leaves half-used words behind
        return [dp[0], float(rng.random())]

    def shy(dp, rng):
        return greedy(dp, rng) if dp[0] == 20 else [dp[0], None]

    with seeded(3):
        assert dict(RandomMapData(numbers(30), greedy))[20] == dict(RandomMapData(numbers(30), shy))[20]


def test_a_datapoint_dropped_below_keeps_its_position():
    def odd(dp):
        return dp if dp[0] % 2 else None

    with seeded(3):
        whole = dict(RandomMapData(numbers(20), drawn))
        assert dict(RandomMapData(MapData(numbers(20), odd), drawn)) == {k: whole[k] for k in range(1, 20, 2)}


def test_the_numbers_of_a_sequence_of_passes_are_those_of_the_list():
    with seeded(3):
        flows = [RandomMapData(ds, drawn) for ds in (numbers(6), DataFromGenerator(lambda: ([k] for k in range(6))))]
        assert list(flows[0]) == list(flows[1])
        assert list(flows[0]) == list(flows[1])


def test_an_endless_sequence_of_passes_never_repeats_a_number():
    df = RandomMapData(RepeatedData(FilterData(numbers(4), any), -1), drawn)
    found = [number for _, (_, number) in zip(range(9), df, strict=False)]
    found += [number for _, (_, number) in zip(range(9), df, strict=False)]
    assert len({*found}) == 18


def test_a_function_that_returns_none_drops():
    with seeded(3):
        df = RandomMapData(numbers(40), lambda dp, rng: dp if rng.random() < 0.5 else None)
        found = list(df)
        assert 5 < len(found) < 35
        assert found == df[0:40]


def test_moving_it_into_a_worker_changes_no_number():
    with seeded(3):
        with MultiProcessRunnerZMQ(RandomMapData(ShuffleData(numbers(20)), drawn), 1, timeout=60) as df:
            found = [list(df), list(df)]
        inside = RandomMapData(ShuffleData(numbers(20)), drawn)
        assert found == [list(inside), list(inside)]


def test_its_own_seed_replaces_the_root():
    def make(seed):
        return list(RandomMapData(numbers(5), drawn, seed=seed))

    assert make(1) == make(1) != make(2)


def test_the_function_gets_a_copy():
    lst = [[0], [1]]
    assert list(RandomMapData(DataFromList(lst, shuffle=False), lambda dp, rng: dp.append(5) or dp))[1] == [1, 5]
    assert lst == [[0], [1]]


# -- a generator that the function keeps -------------------------------------------------------------------------------


def test_a_generator_that_is_kept_stays_that_of_its_datapoint():
    def late(dp, rng):
        return [dp[0], lambda: float(rng.random())]

    def at_once(dp, rng):
        return [dp[0], float(rng.random())]

    with seeded(3):
        expected = dict(RandomMapData(numbers(20), at_once))
        promised = list(RandomMapData(numbers(20), late))
        random.Random(0).shuffle(promised)
        assert {k: draw() for k, draw in promised} == expected


def test_its_bit_generator_may_be_kept_too():
    kept = []

    def keep(dp, rng):
        kept.append(rng.bit_generator)
        return drawn(dp, rng)

    with seeded(3):
        expected = list(RandomMapData(numbers(9), drawn))
        df = RandomMapData(numbers(9), keep)
        for k, dp in enumerate(df):
            assert dp == expected[k]
            for bits in kept:
                np.random.Generator(bits).random(100)


def test_two_threads_do_not_share_a_generator():
    with seeded(3):
        df = RandomMapData(numbers(300), drawn)
        expected = [df[0:300], df[300:600]]
        found = {}
        stream = root_stream(df)

        def read(p):
            found[p] = list(df._df_run_pass(p, stream))

        threads = [threading.Thread(target=read, args=(p,)) for p in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [found[0], found[1]] == expected


# -- use by parallel maps ----------------------------------------------------------------------------------------------


def test_the_generators_of_a_node_are_pickled_without_it():
    with seeded(3):
        df = RandomMapData(BatchData(RepeatedDataPoint(numbers(8), 2), 2), lambda dp, rng: [int(rng.integers(10**9))])
        rngs = pickle.loads(pickle.dumps(df._df_index_rngs(root_stream(df), len(df))))
        asked = [3, 0, 17, 9, 3]
        assert [[int(rngs.at(k).integers(10**9))] for k in asked] == [df[k] for k in asked]
        assert int(rngs.of(2, 1).integers(10**9)) == df[17][0]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_is_explained():
    def broken(dp, rng):
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        list(RandomMapData(numbers(3), broken))
    assert "raised by the function of RandomMapData: " in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="RandomMapData expects a function, got int"):
        RandomMapData(numbers(3), 5)


def test_failures_are_tolerated_as_in_a_map_and_do_not_affect_others():
    def some(dp, rng):
        number = drawn(dp, rng)
        if dp[0] % 5 == 2:
            raise ValueError("corrupt")
        return number

    with seeded(3):
        expected = [dp for dp in RandomMapData(numbers(12), drawn) if dp[0] % 5 != 2]
        df = RandomMapData(numbers(12), some, max_failures=3)
        assert list(df) == expected
        assert [failure.position for failure in df.failures] == [2, 7]
        with pytest.raises(TooManyFailures):
            list(RandomMapData(numbers(12), some, max_failures=1))
