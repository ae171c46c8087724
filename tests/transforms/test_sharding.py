import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    Dropped,
    FakeData,
    FilterData,
    MapData,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReproducible,
    RandomMapData,
    RepeatedData,
    ResumableData,
    RNGDataFlow,
    SelectComponent,
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


def times_ten(dp):
    return [dp, 10]


def noisy(dp):
    """A function in which a flow begins: its numbers have a place in the chain, too."""
    return [dp, next(iter(DataFromList(range(1000))))]


@pytest.mark.parametrize(
    "draw",
    {
        "RandomMapData": lambda ds: RandomMapData(ds, drawn),
        "above other maps": lambda ds: RandomMapData(SelectComponent(MapData(ds, times_ten), [0]), drawn),
        "seed_globals": lambda ds: MapData(ds, lambda dp: [dp, random.random(), np.random.rand()], seed_globals=True),
        "a flow in a function": lambda ds: MapData(ds, noisy),
        "a map in threads": lambda ds: MultiThreadMapData(ds, 2, drawn, with_rng=True, strict=True),
        "a runner": lambda ds: MultiThreadRunner(lambda: RandomMapData(ds, drawn), 5, 1, strict=True),
    }.values(),
)  # fmt: skip
@pytest.mark.parametrize(
    "make", [numbers, lambda n: FilterData(numbers(n), lambda dp: True)], ids=["by index", "whole passes"]
)
def test_what_is_drawn_for_a_datapoint_belongs_to_its_position_in_the_whole_pass(draw, make):
    with seeded(1):
        df = draw(make(7))
        above = [draw(ds) for ds in shards(make(7), 3, "keep")]
        below = shards(draw(make(7)), 3, "keep")
        for _ in range(2):
            whole = list(df)
            assert interleaved([list(part) for part in above]) == whole
            assert interleaved([list(part) for part in below]) == whole


def test_datapoints_that_fill_up_a_pass_have_numbers_of_their_own():
    with seeded(1):
        above = [list(RandomMapData(df, drawn)) for df in shards(numbers(1), 4, "repeat")]
        assert len({dp[0][1] for dp in above}) == 4


def test_shards_of_shards_keep_the_positions_too():
    with seeded(1):
        parts = [
            list(RandomMapData(ShardData(ShardData(numbers(12), outer, 2), inner, 3), drawn))
            for inner in range(3)
            for outer in range(2)
        ]
        assert interleaved(parts) == list(RandomMapData(numbers(12), drawn))


def test_what_has_no_position_of_its_own_differs_between_ranks():
    with seeded(1):
        batches = [
            RandomMapData(BatchData(df, 3, use_list=True), drawn)
            for df in shards(MapData(numbers(12), lambda k: [k]), 2, "drop")
        ]
        assert len({dp[1] for df in batches for dp in df}) == 4
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


# -- flows that are only a sequence of passes --------------------------------------------------------------------------


def generated(n):
    return DataFromGenerator(lambda: iter(range(n)))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("tail", ["drop", "keep", "repeat"])
@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_shares_of_whole_passes_are_those_of_the_same_flow_by_index(n, tail, world_size):
    if tail == "drop" and n < world_size:
        return
    made = [list(df) for df in shards(generated(n), world_size, tail)]
    assert made == [list(df) for df in shards(numbers(n), world_size, tail)]


def test_passes_of_a_random_flow_are_shared_and_every_pass_is_another():
    def make():
        return FilterData(ShuffleData(numbers(20)), odd_only)

    with seeded(3):
        df, parts = make(), shards(make(), 3, "keep")
        for _ in range(2):
            assert interleaved([list(part) for part in parts]) == list(df)


def reusing(n):
    buffer = np.zeros(2)
    for k in range(n):
        buffer[:] = k
        yield [buffer]


@pytest.mark.parametrize("tail", ["drop", "keep", "repeat"])
def test_a_source_that_reuses_its_memory_is_shared_right(tail):
    made = [[int(dp[0][0]) for dp in df] for df in shards(DataFromGenerator(lambda: reusing(8)), 3, tail)]
    assert made == [list(df) for df in shards(numbers(8), 3, tail)]


def test_one_warning_says_that_each_rank_does_the_work_of_all(caplog):
    df = ShardData(MapData(generated(9), str), 1, 3)
    for _ in range(2):
        list(df)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "DataFromGenerator cannot be addressed, so each of the 3 ranks makes the whole pass" in record.getMessage()
    caplog.clear()
    list(ShardData(generated(9), 0, 1))
    list(ShardData(numbers(9), 1, 3))
    assert not caplog.records


def test_a_flow_without_an_order_cannot_be_shared():
    mixed = MultiThreadRunner(lambda: numbers(8), 5, 2)
    with pytest.raises(NotReproducible, match=r"ShardData: 2 processes .* Pass strict=True to MultiThreadRunner"):
        ShardData(MapData(mixed, str), 0, 2)
    ShardData(mixed, 0, 1)
    unordered = MultiThreadMapData(numbers(8), 2, str, strict=True, ordered=False)
    with pytest.raises(NotReproducible, match="Leave out ordered=False of MultiThreadMapData"):
        ShardData(unordered, 0, 2)
    with pytest.raises(NotReproducible, match="Leave out ordered=False of MultiThreadMapData"):
        ResumableData(unordered)


def test_whole_passes_of_a_random_flow_need_a_seed():
    with pytest.raises(NotReproducible, match=r"DataFromList draws .* dataflow.seed\(n"):
        list(ShardData(FilterData(numbers(8, shuffle=True), odd_only), 0, 2))


# -- errors ------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(TypeError, match="rank must be an integer ≥ 0, got True"):
        ShardData(numbers(4), True, 2)
    with pytest.raises(ValueError, match="tail must be"):
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
