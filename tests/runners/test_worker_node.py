"""What stands above a strict runner or map asks its workers for indexes: they do the work, and nothing else changes."""

import copy
import os
import random
import signal
import threading
from itertools import chain, islice, repeat

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataflow
from dataflow import (
    BatchData,
    DataFlowTerminated,
    JoinData,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    RandomMapData,
    ResumableData,
    ShardData,
    ShuffleData,
)
from dataflow.protocol.passes import open_flow
from dataflow.protocol.seeding import Stream
from dataflow.runners.worker_node import WorkerNode
from tests.support.chains import CHAINS, DROPPING
from tests.support.contract import one_pass, plain, seeded
from tests.support.fakes import METHODS
from tests.support.faults import deadline, processes_of
from tests.support.flows import jittered, listed
from tests.support.products import covering, only, rotating
from tests.support.waits import LIMIT

pytestmark = pytest.mark.usefixtures("unseeded")


def strict(kind, ds, num, **more):
    """The same datapoints from anywhere. The timeout is there so that no test can hang."""
    if num == 0:
        return ds
    more = {"strict": True, "timeout": LIMIT, **more}
    if kind == "process":
        return MultiProcessRunner(ds, 5, num, **more)
    if kind == "zmq":
        return MultiProcessRunnerZMQ(ds, num, 5, **more)
    if kind == "thread":
        return MultiThreadRunner(lambda: copy.deepcopy(ds), 5, num, **more)
    if kind == "nest":
        return MultiProcessRunner(MultiProcessRunnerZMQ(ds, num, 5, **more), 5, num, **more)
    return {"map": MultiProcessMapData, "threads": MultiThreadMapData}[kind](ds, num, same, **more)


def same(dp):
    return dp


RUNNERS = ("process", "zmq", "thread")


each_kind = rotating(
    "kind",
    {"process": "process", "zmq": "zmq", "nest": "nest", "map": "map"},
    always={"thread": "thread", "threads": "threads"},
)


def shuffled(n=40):
    return RandomMapData(ShuffleData(listed(n)), jittered)


def made_in(dp):
    return [dp[0], here()]


def here():
    return os.getpid(), threading.get_native_id()


# -- who does the work -------------------------------------------------------------------------------------------------


ABOVE = {
    "resume": ResumableData,
    "batch": lambda ds: ResumableData(BatchData(ds, 10, use_list=True)),
    "shuffle": ShuffleData,
    "run": lambda ds: MultiThreadRunner(lambda: ds, 20, 1, strict=True, timeout=LIMIT),
}


def makers(df, num):
    """Who makes the datapoints: iterated, pass after pass, until `num` were seen, and for some time after that."""
    datapoints = chain.from_iterable(repeat(df))
    found, left = set(), 60
    with deadline(LIMIT):
        while len(found) < num or left:
            left -= len(found) >= num
            dp = next(datapoints)
            found.update(dp[1] if isinstance(dp[1], list) else [dp[1]])
    return found


@pytest.mark.parametrize(("runner", "above"), covering(RUNNERS, [*ABOVE]))
def test_the_workers_do_it_for_any_node_above(runner, above):
    with ABOVE[above](strict(runner, MapData(listed(60), made_in), 2)) as df:
        found = makers(df, 2)
    assert here() not in found
    assert len(found) == 2


@pytest.mark.parametrize(
    ("node", "above"), covering([MultiProcessMapData, MultiThreadMapData], ["resume", "batch", "run"])
)
def test_so_do_those_of_a_map(node, above):
    with ABOVE[above](node(listed(60), 2, made_in, strict=True, timeout=LIMIT)) as df:
        found = makers(df, 2)
    assert here() not in found
    assert len(found) == 2


def test_in_a_strict_nest_the_inner_workers_do_it():
    ds = MapData(listed(60), lambda dp: [dp[0], dataflow.worker_info().path])
    with strict("nest", ds, 2) as df:
        assert makers(df, 4) == {((j, 2), (k, 2)) for j in range(2) for k in range(2)}


@each_kind
def test_what_the_user_picks_is_made_in_the_calling_process(kind):
    with strict(kind, MapData(listed(60), made_in), 2) as df:
        assert [df[5][1], *(maker for _, maker in df[10:20])] == [here()] * 11


@each_kind
def test_nobody_who_iterates_is_disturbed(kind):
    dataflow.seed(1)
    expected = list(shuffled(200))
    with strict(kind, shuffled(200), 2) as df, deadline(LIMIT):
        iterator = iter(df)
        found = list(islice(iterator, 20))
        assert list(ResumableData(df)) == expected  # in the midst of the other
        assert found + list(iterator) == expected


@each_kind
def test_nobody_is_disturbed_who_begins_while_a_block_is_about_to_begin(kind, monkeypatch):
    dataflow.seed(1)
    expected = list(shuffled(200))
    free_engine, begun = WorkerNode._free_engine, []

    with strict(kind, shuffled(200), 2) as df, deadline(LIMIT):

        def begin_in_between(self, *args, **kwargs):
            engine = free_engine(self, *args, **kwargs)
            if self is df and engine is not None and not begun:
                begun.append(iter(df))  # as by another thread
                begun.append(next(begun[0]))
            return engine

        monkeypatch.setattr(WorkerNode, "_free_engine", begin_in_between)
        assert list(ResumableData(df)) == expected
        assert [begun[1], *begun[0]] == expected


@each_kind
def test_of_one_node_in_two_places_each_gets_its_own(kind):
    dataflow.seed(1)
    alone = shuffled()
    expected = list(ResumableData(JoinData((alone, alone))))
    with strict(kind, shuffled(), 2) as df, deadline(LIMIT):
        found = list(ResumableData(JoinData((df, df))))
    assert found == expected


@pytest.mark.parametrize("strictly", [True, False])
def test_an_iteration_that_another_place_has_ended_says_so(strictly):
    node = MultiThreadMapData(listed(12), 1, list, strict=strictly, timeout=LIMIT)
    with JoinData([node, node]) as df, pytest.raises(DataFlowTerminated, match=r"MapData stands at two places.* make"):
        list(df)


@each_kind
def test_what_was_dropped_keeps_its_position(kind):
    ds = MapData(listed(600), lambda dp: dp if dp[0] % 7 else None)
    with strict(kind, ds, 2) as runner, deadline(LIMIT):
        df = ResumableData(runner)
        assert list(islice(df, 300)) == [[k] for k in range(600) if k % 7][:300]
        state = df.state_dict()
        assert state["offset"] == 350
        other = ResumableData(MapData(listed(600), lambda dp: dp if dp[0] % 7 else None))
        if kind in {*RUNNERS, "nest"}:
            state["flow"] = other.state_dict()["flow"]
            other.load_state_dict(state)
            assert list(other) == [[k] for k in range(351, 600) if k % 7]


@each_kind
def test_a_failure_comes_in_its_place(kind):
    def func(dp):
        if dp[0] == 300:
            raise KeyError("three hundred")
        return dp

    found = []
    with pytest.raises(KeyError, match="three hundred"), deadline(LIMIT):
        found.extend(ResumableData(strict(kind, MapData(listed(600), func), 2)))
    assert found == [[k] for k in range(300)]


def test_a_map_that_batches_is_addressed_too():
    with MultiProcessMapAndBatchData(listed(40), 2, same, 4, strict=True, timeout=LIMIT) as df, deadline(LIMIT):
        assert [batch[0].tolist() for batch in ResumableData(df)] == [list(range(k, k + 4)) for k in range(0, 40, 4)]


# -- deaths in a nest --------------------------------------------------------------------------------------------------


def kill_one_of_a_nest(df, choose):
    outer = processes_of(df)
    inner = [child for process in outer for child in process.children()]
    victims = choose.choice([some for some in (outer, inner) if some] or [[]])
    if not victims:
        return False
    with_them = choose.choice(victims)
    with_them.send_signal(signal.SIGKILL)
    return True


def killed_in_a_nest(n, num_kills, seed):
    dataflow.seed(6)
    expected = list(shuffled(n))
    choose = random.Random(seed)
    moments = set(choose.sample(range(n // 10, n * 9 // 10), num_kills))
    owed = 0
    with deadline(10 * LIMIT), strict("nest", shuffled(n), 2, max_restarts=50) as df:
        for k, dp in enumerate(df):
            assert dp == expected[k]
            owed += k in moments
            if owed:
                try:
                    owed -= kill_one_of_a_nest(df, choose)
                except psutil.NoSuchProcess:
                    continue
        assert k == n - 1 and not owed


def test_killed_outer_and_inner_workers_of_a_nest_change_nothing():
    killed_in_a_nest(1500, 2, seed=3)


@pytest.mark.full
def test_twenty_kills_in_a_nest_change_nothing():
    killed_in_a_nest(20_000, 20, seed=2)


# -- states that move --------------------------------------------------------------------------------------------------


PLACES = st.one_of(
    st.tuples(st.sampled_from(RUNNERS), st.integers(0, 4)), st.just(("nest", 2)), st.tuples(st.just("nest"), st.just(1))
)


def moved(ds, breaks, total):
    """A run that is saved at each of the breaks, and goes on in another place."""
    found, state = [], None
    for (kind, num), few, method in breaks:
        more = {} if kind == "thread" or num == 0 else {"context": method}
        with deadline(LIMIT), strict(kind, copy.deepcopy(ds), num, **more) as runner:
            df = ResumableData(runner)
            if state is not None:
                df.load_state_dict(state)
            wanted = total if few is None else len(found) + few
            while len(found) < min(wanted, total):
                before = len(found)
                found += [plain(dp) for dp in islice(df, min(wanted, total) - len(found))]
                assert len(found) > before, "two empty passes would be a hang"
            state = df.state_dict()
    return found


def resumes_anywhere(ds, breaks, methods):
    with seeded(9):
        alone = ResumableData(copy.deepcopy(ds))
        n = len(one_pass(alone))
        if not n:
            return
        alone = ResumableData(copy.deepcopy(ds))
        expected = [plain(dp) for _ in range(3) for dp in alone]
        plan = [(place, few, method) for (place, few), method in zip(breaks, methods, strict=False)]
        last = (("zmq", 2), None, None)
        assert moved(ds, [*plan, last], len(expected)) == expected


BREAKS = st.lists(st.tuples(PLACES, st.integers(0, 12)), min_size=1, max_size=3)
FORKED = st.just([None] * 3)


@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(CHAINS, DROPPING), BREAKS, FORKED)
def test_a_state_moves_between_runners_and_numbers_of_workers(ds, breaks, methods):
    resumes_anywhere(ds, breaks, methods)


@pytest.mark.full
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(CHAINS, DROPPING), BREAKS, st.lists(st.sampled_from(METHODS), min_size=3, max_size=3))
def test_and_between_all_start_methods(ds, breaks, methods):
    resumes_anywhere(ds, breaks, methods)


@pytest.mark.full
@pytest.mark.parametrize("kind", [*RUNNERS, "nest"])
def test_at_every_place_of_a_pass(kind):
    dataflow.seed(3)
    alone = shuffled(20)
    expected = [plain(dp) for _ in range(2) for dp in alone]
    for k in range(21):
        assert moved(shuffled(20), [(("process", 2), k, None), ((kind, 2), None, None)], 40) == expected


# -- maps read in another order ----------------------------------------------------------------------------------------


def with_pid(dp):
    return [*dp, os.getpid()]


def pids_and_rest(datapoints):
    found = list(datapoints)
    return {dp[-1] for dp in found}, [dp[:-1] for dp in found]


APART = {
    "a shard": lambda ds: ShardData(ds, 1, 3),
    "a shard, tail repeat": lambda ds: ShardData(ds, 2, 3, "repeat"),
    "a shuffle": ShuffleData,
    "a shard of a shuffle": lambda ds: ShardData(ShuffleData(ds), 0, 2),
}


@pytest.mark.parametrize("name", only(["a shard, tail repeat", "a shard of a shuffle"], APART))
def test_workers_of_a_map_make_the_datapoints_that_stand_apart(name):
    with seeded(4):
        expected = [list(APART[name](MapData(shuffled(200), same))) for _ in range(1)]
        with MultiProcessMapData(shuffled(200), 2, with_pid, strict=True, timeout=LIMIT) as mapped:
            df = APART[name](mapped)
            for _ in range(2):
                pids, rest = pids_and_rest(df)
                assert os.getpid() not in pids and pids <= {process.pid for process in psutil.Process().children(True)}
                expected.append(rest)
    assert expected[0] == expected[1] != expected[2]


@pytest.mark.parametrize("options", only([{"remainder": True}], [{}, {"use_list": True}, {"remainder": True}]), ids=str)
def test_workers_of_a_map_that_batches_make_what_a_shard_reads(options):
    with seeded(4):
        expected = [plain(batch) for batch in ShardData(BatchData(listed(103), 4, **options), 1, 2)]
        with MultiProcessMapAndBatchData(listed(103), 2, with_pid, 4, strict=True, timeout=LIMIT, **options) as mapped:
            found = list(ShardData(mapped, 1, 2))
    assert [plain(batch[:-1]) for batch in found] == expected
    assert os.getpid() not in {int(pid) for batch in found for pid in batch[-1]}


def numbers_with_rng(dp, rng):
    return [*dp, int(rng.integers(10**6))]


@pytest.mark.parametrize("kind", [MultiProcessMapData, MultiThreadMapData])
def test_random_numbers_and_failures_belong_to_the_index(kind):
    def failing(dp):
        if dp[0] % 9 == 4:
            raise ValueError(dp[0])
        return dp

    with seeded(5):
        expected = list(ShardData(RandomMapData(listed(60), numbers_with_rng), 1, 3))
        with kind(listed(60), 2, numbers_with_rng, with_rng=True, strict=True, timeout=LIMIT) as mapped:
            assert list(ShardData(mapped, 1, 3)) == expected
        with kind(listed(60), 2, failing, strict=True, timeout=LIMIT, max_failures=9) as mapped:
            found = list(ShardData(mapped, 1, 3, "keep"))
            positions = {failure.position for failure in mapped.failures}
    assert positions == {k for k in range(1, 60, 3) if k % 9 == 4}
    assert [dp[0] for dp in found] == [k for k in range(1, 60, 3) if k % 9 != 4]


def test_a_map_without_an_order_is_read_in_order_of_the_indexes():
    with MultiThreadMapData(listed(50), 3, same, strict=True, ordered=False, timeout=LIMIT) as mapped:
        order = [3, 40, 7, 22, 1]
        stream = Stream(1)
        open_flow(mapped, stream)
        assert [dp[0] for dp in mapped._df_at([np.array(order)], stream)] == order
