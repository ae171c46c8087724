import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import (
    CacheData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    Dropped,
    FakeData,
    MapData,
    MultiThreadRunner,
    NotAddressable,
    NotReproducible,
    RandomMapData,
    RepeatedData,
    ResumableData,
    RNGDataFlow,
    ShardData,
    ShuffleData,
)
from tests.support.chains import CHAINS, odd_only
from tests.support.contract import plain, seeded

ENVIRONMENTS = [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                ("SLURM_PROCID", "SLURM_NTASKS")]  # fmt: skip


def numbers(n, **kwargs):
    return DataFromList(range(n), **{"shuffle": False, **kwargs})


def shards(ds, world_size, tail):
    return [ShardData(ds, rank, world_size, tail) for rank in range(world_size)]


def interleaved(passes):
    """The datapoints in the order in which the ranks take turns."""
    longest = max(map(len, passes))
    return [found[k] for k in range(longest) for found in passes if k < len(found)]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in [name for names in ENVIRONMENTS for name in names]:
        monkeypatch.delenv(name, raising=False)


@given(CHAINS, st.integers(1, 5), st.sampled_from(["drop", "keep", "repeat"]), st.integers(0, 2))
def test_the_shards_of_a_pass_make_up_the_pass(ds, world_size, tail, p):
    n = len(ds)
    world_size = min(world_size, n)
    with seeded(4):
        whole = plain(ds[p * n : (p + 1) * n])[1]
        found = []
        for df in shards(ds, world_size, tail):
            for _ in range(p):
                next(iter(df))  # an interrupted pass
            found.append([plain(dp) for dp in df])
            assert len(found[-1]) == len(df)
        together = interleaved(found)
        if tail == "drop":
            assert together == whole[: n // world_size * world_size]
        elif tail == "keep":
            assert together == whole
        else:
            assert together == (whole + whole)[: -(-n // world_size) * world_size]
        if tail != "keep":
            assert len({*map(len, found)}) == 1


def test_more_ranks_than_datapoints():
    with pytest.raises(ValueError, match=r"2 datapoints, fewer than the 5 ranks"):
        ShardData(numbers(2), 0, 5)
    assert [list(df) for df in shards(numbers(2), 5, "repeat")] == [[0], [1], [0], [1], [0]]
    assert [list(df) for df in shards(numbers(2), 3, "keep")] == [[0], [1], []]


def test_an_endless_flow_is_divided_too():
    first, second = shards(RepeatedData(numbers(3), -1), 2, "drop")
    assert [[k for _, k in zip(range(4), df, strict=False)] for df in (first, second)] == [[0, 2, 1, 0], [1, 0, 2, 1]]


# -- random numbers ----------------------------------------------------------------------------------------------------


def drawn(dp, rng):
    return [dp, int(rng.integers(10**9))]


def test_numbers_below_a_shard_are_the_same_on_every_rank_and_those_above_differ():
    with seeded(1):
        below = [list(ShardData(RandomMapData(numbers(6), drawn), rank, 2)) for rank in range(2)]
        assert interleaved(below) == list(RandomMapData(numbers(6), drawn))
        above = [list(RandomMapData(df, drawn)) for df in shards(numbers(1), 4, "repeat")]
        assert len({dp[0][1] for dp in above}) == 4
        orders = [list(ShuffleData(df)) for df in shards(CacheData(numbers(60)), 2, "drop")]
        assert [k // 2 for k in orders[0]] != [k // 2 for k in orders[1]]


class Choosy(RNGDataFlow):
    """A user's node that draws random numbers, and makes a flow in every pass."""

    def __init__(self, ds):
        self.ds = ds

    def __iter__(self):
        order = list(DataFromList(range(40)))
        for dp in self.ds:
            yield [dp, self.rng.random(), order]


def test_a_users_node_above_a_shard_differs_between_ranks_too():
    with seeded(1):
        (one,), (other,) = (list(Choosy(df)) for df in shards(numbers(1), 2, "repeat"))
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2] and sorted(one[2]) == sorted(other[2])


def test_one_rank_of_one_is_the_flow_itself():
    with seeded(1):
        ds = numbers(8, shuffle=True)
        assert list(RandomMapData(ShardData(ds, 0, 1), drawn)) == list(RandomMapData(numbers(8, shuffle=True), drawn))


@pytest.mark.parametrize("ask", [list, lambda df: df[0], lambda df: df[0:2]], ids=["iterate", "index", "slice"])
@pytest.mark.parametrize(
    ("name", "make"),
    {
        "DataFromList": lambda: numbers(8, shuffle=True),
        "FakeData": lambda: FakeData([(2,)], 8),
        "ShuffleData": lambda: MapData(ShuffleData(numbers(8)), str),
    }.items(),
)
def test_without_a_seed_ranks_would_overlap(name, make, ask):
    with pytest.raises(
        NotReproducible, match=rf"{name} draws different numbers on each of the 2 ranks.* dataflow.seed\(n"
    ):
        ask(ShardData(make(), 0, 2))
    with seeded(1):
        ask(ShardData(make(), 0, 2))
    ask(ShardData(make(), 0, 1))


def test_a_seed_of_the_node_itself_suffices():
    assert len(list(ShardData(ShuffleData(numbers(8), seed=3), 1, 2))) == 4
    assert list(ShardData(numbers(4), 1, 2)) == [1, 3]


def test_it_needs_the_seed_inside_a_worker_too():
    with (
        MultiThreadRunner(lambda: ShardData(ShuffleData(numbers(8)), 0, 2), 5, 1, timeout=30) as df,
        pytest.raises(NotReproducible),
    ):
        list(df)
    with seeded(2):
        with MultiThreadRunner(lambda: ShardData(ShuffleData(numbers(8)), 0, 2), 5, 1, timeout=30) as df:
            found = list(df)
        assert found == list(ShardData(ShuffleData(numbers(8)), 0, 2))


class Inside(DataFlow):
    """A user's node that makes and shards a flow in each pass."""

    def __iter__(self):
        yield from ShardData(DataFromList(range(8)), 0, 2)


def test_a_flow_iterated_by_a_users_node_has_its_seed():
    with pytest.raises(NotReproducible):
        list(Inside())
    with seeded(3):
        expected = list(Inside())
        state = ResumableData(Inside()).state_dict()
    df = ResumableData(Inside())
    df.load_state_dict(state)
    assert list(df) == expected


def test_a_saved_state_contains_the_seed():
    def make(rank):
        return ResumableData(ShardData(ShuffleData(numbers(9)), rank, 2))

    with seeded(8):
        one, other = make(0), make(1)
        next(iter(one))
        state = one.state_dict()
        whole = list(other)
    resumed = make(1)  # a state saved by one rank is valid for all
    resumed.load_state_dict(state)
    assert list(resumed) == whole[1:]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_input_without_indexes_raises():
    with pytest.raises(NotAddressable, match="ShardData reads its input by index, but DataFromGenerator is only"):
        ShardData(MapData(DataFromGenerator(lambda: iter([[1]])), list), 0, 2)


@pytest.mark.parametrize("tail", ["drop", "repeat"])
def test_a_dropped_datapoint_would_make_steps_unequal(tail):
    df = ShardData(MapData(numbers(6), odd_only), 0, 2, tail)
    with pytest.raises(Dropped, match="ShardData counts datapoints"):
        list(df)


def test_with_kept_tails_steps_may_differ_and_maps_may_drop():
    assert [list(df) for df in shards(MapData(numbers(6), odd_only), 3, "keep")] == [[3], [1], [5]]


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [(2, 2, "say 2 of 2"), (-1, 2, "say -1 of 2"), (0, 0, "say 0 of 0"), (0, None, "both"), (None, 2, "both")],
)
def test_rank_and_world_size_must_be_consistent(rank, world_size, message):
    with pytest.raises(ValueError, match=message):
        ShardData(numbers(4), rank, world_size)


def test_rank_and_world_size_must_be_integers():
    with pytest.raises(TypeError, match="rank is an integer from 0, got True"):
        ShardData(numbers(4), True, 2)
    with pytest.raises(ValueError, match="tail is"):
        ShardData(numbers(4), 0, 2, "pad")


# -- the environment ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ENVIRONMENTS, ids=str)
def test_the_rank_is_read_from_the_launcher(monkeypatch, names):
    for name, value in zip(names, "13", strict=True):
        monkeypatch.setenv(name, value)
    df = ShardData(numbers(6))
    monkeypatch.delenv(names[0])
    assert (df.rank, df.world_size, list(df)) == (1, 3, [1, 4])


def test_the_first_launcher_has_priority_and_arguments_override_all(monkeypatch):
    for names, values in zip(ENVIRONMENTS, ("13", "25", "04"), strict=True):
        for name, value in zip(names, values, strict=True):
            monkeypatch.setenv(name, value)
    assert (ShardData(numbers(9)).rank, ShardData(numbers(9), 0, 2).rank) == (1, 0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no rank is set in the environment .* 0 and 1 for a single process"),
        ({"RANK": "0"}, "has RANK, but not both of RANK and WORLD_SIZE"),
        ({"SLURM_NTASKS": "2"}, "has SLURM_NTASKS, but not both"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "are integers, got"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE say 2 of 2"),
    ],
    ids=str,
)
def test_an_incomplete_environment_raises(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ShardData(numbers(4))


PROGRAM = """
import json
import dataflow
from dataflow import BatchData, DataFromList, RandomMapData, ShardData, ShuffleData

dataflow.seed(6)
files = DataFromList([[k] for k in range(103)], shuffle=False)
df = ShuffleData(files)
df = ShardData(df)
df = RandomMapData(df, lambda dp, rng: [dp[0], int(rng.integers(10**9))])
df = BatchData(df, 8, remainder=True)
print(json.dumps([[batch[0].tolist() for batch in df] for epoch in range(3)]))
"""


@pytest.mark.slow
def test_two_processes_make_equal_steps_and_see_no_datapoint_twice():
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "PYTHONHASHSEED": str(rank)},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ranks = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    for epoch in range(3):
        assert len(ranks[0][epoch]) == len(ranks[1][epoch]) == 7
        seen = [k for rank in ranks for batch in rank[epoch] for k in batch]
        assert len(seen) == len({*seen}) == 102
    assert ranks[0][0] != ranks[0][1]
