"""The law of ranks: a job may continue on another number of ranks after any step, and nothing is lost or repeated."""

import json
import random
import zlib
from collections import deque

import numpy as np
import pytest

from dataflow import (
    BatchData,
    BucketBatchData,
    CacheData,
    DataFromList,
    FilterData,
    FixedSizeData,
    JoinData,
    MapData,
    MixData,
    MultiProcessMapData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    NotReproducible,
    PackData,
    PadBatchData,
    ParallelData,
    ProxyDataFlow,
    RandomMapData,
    RepeatedData,
    ResumableData,
    RNGDataFlow,
    ShardData,
    ShuffleData,
    StateMismatch,
)
from tests.support.contract import seeded

# -- chains ------------------------------------------------------------------------------------------------------------


def numbers(n, shuffle=False):
    return DataFromList([[k, ()] for k in range(n)], shuffle=shuffle)


def drawn(dp, rng):
    return [dp[0], (*dp[1], int(rng.integers(10**6)))]


def drawn_globally(dp):
    return [dp[0], (*dp[1], random.random(), np.random.rand())]


def doubled(dp):
    return [2 * dp[0], dp[1]]


def is_wanted(dp):
    return dp[0] % 7 != 3


def with_tokens(dp):
    return [list(range(dp[0], dp[0] + 1 + dp[0] % 5))]


def first_tokens(dp):
    return [int(dp["tokens"][0]), (tuple(dp["tokens"].tolist()), tuple(dp["segment_ids"].tolist()))]


def packed(ds):
    return MapData(PackData(MapData(ds, with_tokens), 8), first_tokens)


def mixed(ds, choice):
    n = len(ds)
    schedule = {0: [2, 1], n // 3: [1, choice.randint(0, 2)]}
    return FixedSizeData(MixData([ds, RandomMapData(numbers(5 + n // 3), drawn)], schedule), n)


def as_sequence(dp):
    """A number that stands for the datapoint, and a sequence of ones of some length."""
    number = zlib.crc32(repr(dp).encode())
    return [number, np.ones(1 + number % 4, np.int64)]


BELOW = {
    "shuffle": lambda ds, choice: ShuffleData(ds) if ds.addressable else FilterData(ds, is_wanted),
    "draw": lambda ds, choice: RandomMapData(ds, drawn),
    "map": lambda ds, choice: MapData(ds, doubled),
    "filter": lambda ds, choice: FilterData(ds, is_wanted),
    "mix": lambda ds, choice: mixed(ds, choice) if ds.addressable else RandomMapData(ds, drawn),
    "pack": lambda ds, choice: packed(ds),
}
ONE_TO_ONE = {
    "draw": lambda ds: RandomMapData(ds, drawn),
    "map": lambda ds: MapData(ds, doubled),
    "seeded globals": lambda ds: MapData(ds, drawn_globally, seed_globals=True),
    "threads": lambda ds: MultiThreadMapData(ds, 2, drawn, with_rng=True, strict=True),
    "no workers": lambda ds: MultiProcessRunnerZMQ(ds, 0, strict=True),
}


class Job:
    """A chain that ranks divide, made anew for each rank."""

    def __init__(self, seed, global_batch):
        choice = random.Random(seed)
        self.choice = choice
        self.n = global_batch * choice.randint(2, 3) + choice.choice([0, 0, 1, global_batch // 2, global_batch - 1])
        self.below = choice.choices(list(BELOW), k=choice.randint(0, 3))
        self.above = choice.choices(list(ONE_TO_ONE)[: 5 if seed % 5 == 0 else 3], k=choice.randint(0, 2))
        self.tail = choice.choice(["drop", "drop", "keep", "repeat"])
        self.shard_above = choice.random() < 0.5
        self.pads = choice.random() < 0.3
        self.seed = seed

    def __repr__(self):
        return f"{self.seed}: {self.n} {self.below} {self.above} {self.tail} above={self.shard_above} pads={self.pads}"

    def datapoints(self):
        """What is divided."""
        choice, ds = random.Random(self.seed), numbers(self.n, shuffle=self.seed % 3 == 0)
        for name in self.below:
            ds = BELOW[name](ds, choice)
        return ds

    def mapped(self, ds):
        for name in self.above:
            ds = ONE_TO_ONE[name](ds)
        return ds

    def batched(self, ds, batch_size):
        if self.pads:
            return PadBatchData(MapData(ds, as_sequence), batch_size)
        return BatchData(ds, batch_size, use_list=True)

    def rank(self, rank, world_size, batch_size):
        ds = self.datapoints()
        if self.shard_above:
            ds = ShardData(self.batched(self.mapped(ds), batch_size), rank, world_size, self.tail)
        else:
            ds = self.batched(self.mapped(ShardData(ds, rank, world_size, self.tail)), batch_size)
        return ResumableData(ds)

    def ranks(self, world_size, batch_size):
        return [self.rank(rank, world_size, batch_size) for rank in range(world_size)]

    def joined(self, batches):
        """The datapoints of one step, in the order of the whole pass."""
        rows = [rows_of(zip(*batch, strict=True)) for batch in batches]
        if self.shard_above:
            return [row for part in rows for row in part]
        return [row for group in zip(*rows, strict=True) for row in group]

    def whole(self):
        """The datapoints of two passes, without ranks and batches."""
        ds = self.mapped(self.datapoints())
        ds = MapData(ds, as_sequence) if self.pads else ds
        return [rows_of(ds) for _ in range(2)]


def rows_of(datapoints):
    """Datapoints that can be compared, without their padding."""
    return [(int(number), extra if type(extra) is tuple else int(extra.sum())) for number, extra in datapoints]


def take(job, iterators, num=None):
    """The datapoints of the next steps that all ranks make, whole ones; and how many steps these are."""
    found, steps = [], 0
    while steps != num:
        batches = [batch for iterator in iterators if (batch := next(iterator, None)) is not None]
        if len(batches) < len(iterators):
            break
        found += job.joined(batches)
        steps += 1
    return found, steps


def states_of(ranks):
    states = [json.dumps(df.state_dict()) for df in ranks]
    assert len(set(states)) == 1
    return json.loads(states[0])


def resumed(job, state, world_size, batch_size):
    ranks = job.ranks(world_size, batch_size)
    for df in ranks:
        df.load_state_dict(state)
    return ranks


def check(job, old, new, num_passes, num_steps):
    """Run `num_passes` and `num_steps` steps on the ranks and batches `old`, then the rest of two passes on `new`."""
    whole = job.whole()
    ranks = job.ranks(*old)
    for p in range(num_passes):
        found, steps = take(job, list(map(iter, ranks)))
        end = len(whole[p]) // (old[0] * old[1]) * old[0] * old[1]
        assert found[:end] == whole[p][:end]
    iterators = list(map(iter, ranks))
    num_whole = len(whole[num_passes]) // (old[0] * old[1])  # what follows is the tail
    found, steps = take(job, iterators, min(num_steps, num_whole))
    p, position = num_passes, steps * old[0] * old[1]
    assert found == whole[p][:position]
    state = states_of(ranks)
    if state["pass"] > p:  # that was its last step
        p, position = p + 1, 0
    assert state["position"] == position
    per_step = new[0] * new[1]
    if job.tail == "repeat" and job.shard_above and position % per_step:
        with pytest.raises(StateMismatch, match=r"not whole steps of .* Put it directly below the batches"):
            resumed(job, state, *new)
        return
    ranks = resumed(job, state, *new)
    while p < 2:
        if (len(whole[p]) - position) // per_step == 0 and position:  # less than a step is left
            if job.tail != "drop":
                return
            p, position = p + 1, 0
            continue
        iterators = list(map(iter, ranks))
        found, steps = take(job, iterators)
        for iterator in iterators:
            deque(iterator, maxlen=0)  # some may have one step more
        wanted = whole[p][position:]
        assert found[: len(wanted) // per_step * per_step] == wanted[: len(wanted) // per_step * per_step], (p, state)
        if job.tail == "drop":
            assert len(found) == len(wanted) // per_step * per_step
        assert states_of(ranks)["pass"] == p + 1
        p, position = p + 1, 0


def divisors(num):
    return [k for k in range(1, 13) if num % k == 0] + ([num] if num < 30 else [])


def check_chain(seed):
    global_batch = 840 if seed % 10 == 9 else 24
    job = Job(seed, global_batch)
    choice = random.Random(-seed)
    with seeded(seed):
        for _ in range(2):
            old, new = (choice.choice(divisors(global_batch)) for _ in range(2))
            batches = [global_batch // old, global_batch // new]
            if old != new and choice.random() < 0.3:  # another number of datapoints in a step
                batches[1] = min(max(1, batches[1] + choice.choice([-1, 1, 2])), job.n // new)
            check(job, (old, batches[0]), (new, batches[1]), choice.randint(0, 1), choice.randint(0, 3))


LONG = {9, 10, 16, 18}  # what they are made of, another one has too, in less time


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.full] * (seed in LONG)) for seed in range(20)])
def test_any_chain_continues_on_any_number_of_ranks(seed):
    check_chain(seed)


@pytest.mark.full
@pytest.mark.parametrize("first", range(20, 320, 5))
def test_many_chains_continue_on_any_number_of_ranks(first):
    for seed in range(first, first + 5):
        check_chain(seed)


@pytest.mark.parametrize("tail", ["drop", "keep", "repeat"])
@pytest.mark.parametrize("wrap", [lambda ds: ds, lambda ds: FilterData(ds, len)], ids=["by index", "whole passes"])
@pytest.mark.parametrize("world_size", [1, 4, 7, 20])
def test_a_tail_is_that_of_what_is_left_after_a_change(tail, wrap, world_size):
    def make(rank, world_size):
        return ResumableData(ShardData(wrap(numbers(23, shuffle=True)), rank, world_size, tail))

    with seeded(6):
        alone = make(0, 1)
        first, second = ([dp[0] for dp in alone] for _ in range(2))
        ranks = [make(rank, world_size) for rank in range(world_size)]
        state = saved(make(1, 2), 4)
        for df in ranks:
            df.load_state_dict(state)
        for whole, position in ((first, 8), (second, 0)):
            left = whole[position:]
            num_equal = len(left) // world_size * world_size
            if tail == "drop":
                left = left[:num_equal]
            elif tail == "repeat" and num_equal < len(left):
                left += whole[: num_equal + world_size - len(left)]
            shares = [left[rank::world_size] for rank in range(world_size)]
            if not all(shares):
                return  # a rank that has nothing left goes on with the next pass
            assert [[dp[0] for dp in df] for df in ranks] == shares


# -- workers -----------------------------------------------------------------------------------------------------------


def in_workers(rank, world_size, batch_size, shard_above):
    """A chain with workers below the shard, above it, and around all."""
    ds = MultiThreadMapData(ShuffleData(numbers(53)), 2, drawn, with_rng=True, strict=True)
    if shard_above:
        ds = ShardData(BatchData(RandomMapData(ds, drawn), batch_size, use_list=True), rank, world_size)
    else:
        ds = ShardData(ds, rank, world_size)
        ds = BatchData(MultiProcessMapData(ds, 2, drawn, with_rng=True, strict=True), batch_size, use_list=True)
    return ResumableData(MultiProcessRunnerZMQ(ds, 2, strict=True))


@pytest.mark.parametrize(
    ("shard_above", "new"),
    [
        (True, (2, 6)),
        (False, (1, 12)),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in [(True, (1, 12)), (True, (2, 5)), (False, (2, 6)), (False, (2, 5))]
        ),
    ],
)
def test_runners_and_maps_in_processes_continue_too(shard_above, new):
    job = Job(0, 12)
    job.shard_above = shard_above
    with seeded(5):
        chain = RandomMapData(RandomMapData(ShuffleData(numbers(53)), drawn), drawn)
        whole = [rows_of(chain) for _ in range(2)]
        ranks = [in_workers(rank, 3, 4, shard_above) for rank in range(3)]
        found, _ = take(job, list(map(iter, ranks)), 2)
        state = states_of(ranks)
        for df in ranks:
            df.close()
        ranks = [in_workers(rank, *new, shard_above) for rank in range(new[0])]
        for df in ranks:
            df.load_state_dict(state)
        rest, steps = take(job, list(map(iter, ranks)))
        following, _ = take(job, list(map(iter, ranks)), 2)
        for df in ranks:
            df.close()
    per_step = new[0] * new[1]
    assert steps == (53 - 24) // per_step
    assert found + rest == whole[0][: 24 + steps * per_step]
    assert following == whole[1][: 2 * per_step]


# -- what loading says, and what it refuses ----------------------------------------------------------------------------


def batches(rank, world_size, batch_size, n=48, **options):
    return ResumableData(BatchData(ShardData(numbers(n), rank, world_size, **options), batch_size))


def saved(df, num):
    iterator = iter(df)
    for _ in range(num):
        next(iterator)
    return json.loads(json.dumps(df.state_dict()))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ((4, 6), (3, 8), "resumes on 3 ranks × 8 instead of 4 × 6: 24 datapoints per step, as before"),
        ((4, 6), (3, 6), "resumes on 3 ranks × 6 instead of 4 × 6: 18 datapoints per step, instead of 24"),
        ((4, 3), (1, 12), "resumes on 1 rank × 12 instead of 4 × 3: 12 datapoints per step, as before"),
        ((4, 6), (4, 6), None),
    ],
)
def test_one_warning_says_what_has_changed(old, new, message, caplog):
    with seeded(1):
        state = saved(batches(0, *old), 1)
        batches(0, *new).load_state_dict(state)
    assert [record.getMessage() for record in caplog.records] == ([message] if message else [])


def test_without_batches_a_step_is_one_datapoint_on_each_rank(caplog):
    state = saved(ResumableData(ShardData(numbers(12), 1, 2)), 3)
    assert (state["offset"], state["position"]) == (3, 6)
    parts = [ResumableData(ShardData(numbers(12), rank, 3)) for rank in range(3)]
    for part in parts:
        part.load_state_dict(state)
    assert [[dp[0] for dp in part] for part in parts] == [[6, 9], [7, 10], [8, 11]]
    assert caplog.records[0].getMessage() == "resumes on 3 ranks instead of 2: 3 datapoints per step, instead of 2"


def test_the_state_of_a_chain_without_a_shard_continues_on_several_ranks():
    state = saved(ResumableData(BatchData(numbers(48), 12)), 1)
    found = []
    for rank in range(2):
        df = batches(rank, 2, 6)
        df.load_state_dict(state)
        found.append(next(iter(df))[0].tolist())
    assert found == [[12, 14, 16, 18, 20, 22], [13, 15, 17, 19, 21, 23]]
    with seeded(3):
        drawing = ResumableData(BatchData(RandomMapData(ShardData(numbers(48), 0, 2), drawn), 6, use_list=True))
        alone = ResumableData(BatchData(RandomMapData(numbers(48), drawn), 12, use_list=True))
        alone.load_state_dict(saved(drawing, 1))
        found = rows_of(zip(*next(iter(alone)), strict=True))
        assert found == rows_of(RandomMapData(numbers(48), drawn))[12:24]
    df = ResumableData(BatchData(numbers(48), 12))
    df.load_state_dict(saved(batches(1, 3, 5), 1))
    assert [batch[0].tolist() for batch in df] == [[*range(15, 27)], [*range(27, 39)]]
    assert df.state_dict()["pass"] == 1


def test_an_endless_flow_continues_on_other_ranks():
    def make(rank, world_size, batch_size):
        return ResumableData(BatchData(ShardData(RepeatedData(numbers(7), -1), rank, world_size), batch_size))

    state = saved(make(1, 2, 3), 2)
    parts = [make(rank, 5, 1) for rank in range(5)]
    for part in parts:
        part.load_state_dict(state)
    iterators = list(map(iter, parts))
    assert [next(one)[0][0] for _ in range(3) for one in iterators] == [(12 + k) % 7 for k in range(15)]
    state = parts[0].state_dict()
    assert state["position"] == 27
    df = make(0, 1, 1)
    df.load_state_dict(state)
    assert next(iter(df))[0][0] == 27 % 7


def test_at_a_position_in_the_billions_nothing_is_made_before():
    def make(rank, world_size, batch_size):
        ds = RandomMapData(RepeatedData(numbers(1000), -1), drawn)
        return ResumableData(BatchData(ShardData(ds, rank, world_size), batch_size, use_list=True))

    with seeded(2):
        state = {**saved(make(0, 4, 10), 0), "offset": 25 * 10**7, "position": 10**10}
        parts = [make(rank, 3, 7) for rank in range(3)]
        for part in parts:
            part.load_state_dict(state)
        assert [next(iter(part))[0][0] for part in parts] == [0, 1, 2]


class Noise(ProxyDataFlow, RNGDataFlow):
    """A user's node that draws from its own generator."""

    def __iter__(self):
        for dp in self.ds:
            yield [*dp, self.rng.random()]


class Swapped(ProxyDataFlow):
    """A user's node that draws nothing, but may do anything."""

    def __iter__(self):
        yield from self.ds


BROKEN = {
    "ShuffleData": ShuffleData,
    "FilterData": lambda ds: FilterData(ds, is_wanted),
    "BucketBatchData": lambda ds: BucketBatchData(ds, 2, key=lambda dp: dp[0], boundaries=[5]),
    "PackData": lambda ds: PackData(MapData(ds, with_tokens), 8),
    "RandomMapData": lambda ds: RandomMapData(BatchData(ds, 2), drawn),
    "MapData": lambda ds: MapData(BatchData(ds, 2), drawn_globally, seed_globals=True),
    "FixedSizeData": lambda ds: FixedSizeData(ds, 3),
    "CacheData": CacheData,
    "Noise": Noise,
    "Swapped": Swapped,
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("below", ["batches", "maps", "nothing"])
def test_what_has_an_order_of_its_own_on_each_rank_is_refused_by_name(name, below):
    def make(rank, world_size):
        ds = BROKEN[name](MapData(ShardData(numbers(48), rank, world_size), doubled))
        if below == "maps":
            ds = MapData(ds, list)
        return ResumableData(BatchData(ds, 2, use_list=True) if below == "batches" else ds)

    with seeded(3):
        df = make(0, 3)
        state = saved(df, 1)
        assert state["position"] is None
        rest = rows_as_text(df)
        same = make(0, 3)
        same.load_state_dict(state)  # as before, where nothing has changed
        list(same)
        other = make(0, 2)
        untouched = make(0, 2).state_dict()
        with pytest.raises(
            StateMismatch, match=rf"world_size was 3 and is 2, and {name}, above the shard, .* put ShardData directly"
        ):
            other.load_state_dict(state)
        assert other.state_dict() == untouched
    assert rest


def rows_as_text(df):
    return [repr(dp) for dp in df]


def test_a_shard_of_a_shard_and_shards_below_several_inputs_are_refused():
    def nested(world_size):
        return ResumableData(ShardData(ShardData(numbers(24), 0, world_size), 0, 2))

    with pytest.raises(StateMismatch, match="one shard divides the share of another"):
        nested(3).load_state_dict(saved(nested(2), 1))

    def joined(world_size):
        return ResumableData(JoinData([ShardData(numbers(24), 0, world_size), ShardData(numbers(24), 0, world_size)]))

    with pytest.raises(StateMismatch, match="JoinData, above the shard"):
        joined(3).load_state_dict(saved(joined(2), 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 49}, "a pass of DataFromList had 48 datapoints and has 49"),
        ({"tail": "keep"}, "ShardData.tail was 'drop' and is 'keep'"),
    ],
)
def test_nothing_else_may_change_with_the_ranks(change, message):
    with pytest.raises(StateMismatch, match=message):
        batches(0, 3, 8, **change).load_state_dict(saved(batches(0, 4, 6), 1))


def renamed(dp, rng):
    return drawn(dp, rng)


def of_shards(world_size, *funcs):
    df = ShardData(numbers(24), 0, world_size)
    for func in funcs:
        df = RandomMapData(df, func)
    return ResumableData(df)


@pytest.mark.parametrize(
    ("here", "message"),
    [
        ([renamed], "RandomMapData.func was drawn and is renamed"),
        ([drawn] * 3, "it had ShardData in place of RandomMapData"),
    ],
)
def test_nodes_above_the_shard_may_not_change_with_the_ranks(here, message):
    with seeded(1), pytest.raises(StateMismatch, match=message):
        of_shards(3, *here).load_state_dict(saved(of_shards(2, drawn), 1))


def test_a_shard_may_move_where_the_positions_stay():
    with seeded(2):
        below = saved(ResumableData(BatchData(RandomMapData(ShardData(numbers(48), 0, 2), drawn), 3, use_list=True)), 2)
        df = ResumableData(ShardData(BatchData(RandomMapData(numbers(48), drawn), 3, use_list=True), 0, 2))
        df.load_state_dict(below)
        assert next(iter(df))[0] == [12, 13, 14]
        above = saved(ResumableData(ShuffleData(ShardData(numbers(48), 0, 2))), 2)
        with pytest.raises(StateMismatch, match="it had ShuffleData in place of ShardData"):
            ResumableData(ShardData(ShuffleData(numbers(48)), 0, 2)).load_state_dict({**above, "position": None})


def test_the_size_of_batches_changes_only_with_the_ranks():
    state = saved(batches(0, 4, 6), 1)
    with pytest.raises(StateMismatch, match=r"BatchData\.batch_size was 6 and is 8"):
        batches(0, 4, 8).load_state_dict(state)


def test_a_state_of_version_1_is_loaded_where_nothing_else_changed():
    state = {**saved(batches(0, 4, 6), 1), "version": 1}
    del state["position"]
    df = batches(2, 4, 6)
    df.load_state_dict(state)
    assert df.state_dict()["position"] == 24
    with pytest.raises(StateMismatch, match="does not say how far all ranks were: it has version 1"):
        batches(0, 3, 8).load_state_dict(state)


def test_a_position_that_contradicts_the_offset_is_refused():
    state = saved(batches(0, 4, 6), 1)
    for position in (23, 48, 10**6):
        with pytest.raises(StateMismatch, match=rf"damaged: it names datapoint {position} of pass 0"):
            batches(0, 3, 8).load_state_dict({**state, "position": position})


@pytest.mark.parametrize("tail", ["drop", "keep", "repeat"])
def test_all_ranks_save_the_same_state(tail):
    with seeded(4):
        ranks = [batches(rank, 4, 3, n=50, tail=tail) for rank in range(4)]
        iterators = list(map(iter, ranks))
        for _ in range(4):  # of 50 datapoints, 48 are in whole steps
            for iterator in iterators:
                next(iterator)
            states_of(ranks)


def test_all_ranks_save_the_same_state_before_the_first_step_though_some_have_nothing_left():
    def make(rank, world_size):
        return ResumableData(BatchData(ShardData(numbers(7), rank, world_size, "keep"), 1, use_list=True))

    df = make(0, 2)
    iterator = iter(df)
    for _ in range(3):
        next(iterator)
    ranks = [make(rank, 3) for rank in range(3)]
    for other in ranks:
        other.load_state_dict(df.state_dict())
    iterators = list(map(iter, ranks))
    assert states_of(ranks)["position"] == 6
    assert [next(iterator)[0] for iterator in iterators] == [[6], [1], [2]]
    assert [[dp[0] for dp in iterator] for iterator in iterators] == [[], [[4]], [[5]]]


def test_without_a_seed_there_is_one_state_or_none():
    states_of([batches(rank, 3, 4) for rank in range(3)])
    df = ResumableData(RandomMapData(ShardData(numbers(6), 0, 2), drawn))
    next(iter(df))
    with pytest.raises(NotReproducible, match=r"RandomMapData draws different numbers on each rank.*dataflow\.seed"):
        df.state_dict()


@pytest.mark.parametrize(
    "dropping",
    {
        "a map": lambda ds: MapData(ds, wanted_only),
        "a map in threads": lambda ds: MultiThreadMapData(ds, 2, wanted_only, strict=True),
        "failures": lambda ds: MapData(ds, failing, max_failures=100),
    }.values(),
)
def test_what_a_map_above_a_shard_drops_of_whole_passes_leaves_no_position(dropping):
    def make(world_size, n=100):
        ds = ShardData(FilterData(numbers(n), lambda dp: True), 0, world_size)
        return ResumableData(BatchData(dropping(ds), 2, use_list=True))

    state = saved(make(2), 8)
    assert state["position"] is None
    with pytest.raises(StateMismatch, match="a map above the shard has dropped datapoints"):
        make(3).load_state_dict(state)
    make(2).load_state_dict(state)
    if not dropping(numbers(1))._df_has_workers:  # workers have read ahead
        assert saved(make(2), 1)["position"] == 4, "nothing was dropped so far"


@pytest.mark.parametrize("shard_above", [True, False])
def test_whole_passes_in_a_worker_continue_on_any_number_of_ranks(shard_above):
    def make(rank, world_size, batch_size):
        ds = FilterData(ShuffleData(numbers(60)), is_wanted)
        if shard_above:
            ds = ShardData(BatchData(ds, batch_size, use_list=True), rank, world_size)
        else:
            ds = BatchData(ShardData(ds, rank, world_size), batch_size, use_list=True)
        return ResumableData(ParallelData(ds, 1, backend="thread"))

    job = Job(0, 12)
    job.shard_above = shard_above
    with seeded(6):
        whole = rows_of(FilterData(ShuffleData(numbers(60)), is_wanted))
        ranks, found = [make(rank, 2, 6) for rank in range(2)], []
        for world_size in (3, 1, 6):
            found += take(job, list(map(iter, ranks)), 1)[0]
            state = states_of(ranks)
            assert state["position"] == len(found)
            for df in ranks:
                df.close()
            ranks = [make(rank, world_size, 12 // world_size) for rank in range(world_size)]
            for df in ranks:
                df.load_state_dict(state)
        assert found == whole[:36]
        for df in ranks:
            df.close()


def without_empty(batch):
    return batch if sum(batch[0]) else None


@pytest.mark.parametrize(
    ("make", "world_size"),
    [
        (lambda ds: BatchData(MapData(ds, wanted_only), 2, use_list=True), 2),
        (lambda ds: MapData(BatchData(ds, 2, use_list=True), without_empty), 1),
        (lambda ds: MapData(BatchData(ds, 2, use_list=True), without_empty), 2),
        (lambda ds: BatchData(ds, 2, max_failures=3), 1),
    ],
)
def test_what_a_worker_may_have_dropped_above_what_is_divided_leaves_no_position(make, world_size):
    ds = FilterData(numbers(20), lambda dp: True)
    ds = make(ds if world_size == 1 else ShardData(ds, 0, world_size))
    with ResumableData(ParallelData(ds, 1, backend="thread")) as df:
        assert saved(df, 1)["position"] is None


def test_what_is_still_to_be_skipped_of_a_pass_without_a_length_leaves_no_position():
    def make(world_size):
        ds = ShardData(FilterData(numbers(30), lambda dp: True), 0, world_size)
        return ResumableData(BatchData(ds, 2, use_list=True))

    df = make(2)
    df.skip(9)  # two more than a pass has
    state = df.state_dict()
    assert state["position"] is None
    with pytest.raises(
        StateMismatch, match=r"still to be skipped, of a pass without a length.* save after the step that follows"
    ):
        make(3).load_state_dict(state)
    same = make(2)
    same.load_state_dict(state)
    assert next(iter(same))[0] == next(iter(df))[0] == [8, 10]
    state = df.state_dict()
    assert (state["pass"], state["position"]) == (1, 12)
    other = make(3)
    other.load_state_dict(state)
    assert other.state_dict()["position"] == 12
    begun = iter(other)  # what is read again to come to a position is not skipped
    assert other.state_dict()["position"] == 12
    assert next(begun)[0] == [12, 15]


def wanted_only(dp):
    return dp if dp[0] < 6 or is_wanted(dp) else None


def failing(dp):
    assert dp[0] < 6 or is_wanted(dp)
    return dp


def test_datapoints_dropped_by_index_keep_their_positions():
    def make(rank, world_size):
        return ResumableData(MapData(ShardData(numbers(40), rank, world_size, "keep"), wanted_only))

    whole = [dp[0] for dp in make(0, 1)]
    state = saved(make(1, 2), 5)
    found = []
    for rank in range(4):
        df = make(rank, 4)
        df.load_state_dict(state)
        found += [dp[0] for dp in df]
    assert sorted(found) == [k for k in whole if k >= state["position"]]
