"""Strict runners: exactly the datapoints of each pass, in order, whatever the runner and the number of workers."""

import copy
import itertools
import os
import random
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataflow
from dataflow import (
    BatchData,
    DataFlow,
    FakeData,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    NotAddressable,
    RepeatedData,
    WorkerDied,
    worker_info,
)
from tests.support.chains import CHAINS, DROPPING
from tests.support.contract import check_node, one_pass
from tests.support.fakes import Forever, Numbers, each_method
from tests.support.faults import deadline, processes_of
from tests.support.flows import chain, listed
from tests.support.products import covering, rotating
from tests.support.waits import LIMIT

pytestmark = pytest.mark.usefixtures("unseeded")

KINDS = ("process", "zmq", "thread")


def strict(kind, ds, num, *, prefetch=5, **more):
    """A strict runner of any kind. The timeout is there so that no test can hang."""
    more = {"strict": True, "timeout": LIMIT, **more}
    if kind == "process":
        return MultiProcessRunner(ds, prefetch, num, **more)
    if kind == "zmq":
        return MultiProcessRunnerZMQ(ds, num, prefetch, **more)
    return MultiThreadRunner(lambda: copy.deepcopy(ds), prefetch, num, **more)


each_process_kind = rotating("kind", {"process": "process", "zmq": "zmq"})
each_kind = rotating("kind", {"process": "process", "zmq": "zmq"}, always={"thread": "thread"})


# -- by index ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "num"), covering(KINDS, [0, 1, 2, 4]))
def test_passes_are_those_of_the_flow_itself(kind, num):
    dataflow.seed(2)
    alone = chain()
    expected = [list(alone) for _ in range(4)]
    assert expected[0] != expected[1]
    with strict(kind, chain(), num) as df:
        assert len(df) == 40
        found = [list(df), list(df)]
        next(iter(df))  # a pass that is broken off is over
        assert [*found, expected[2], list(df)] == expected


@pytest.mark.parametrize(("kind", "prefetch"), [*covering(KINDS, [1, 2, 50]), ("zmq", None)])  # only hwm may be None
def test_whatever_the_bound(kind, prefetch):
    with strict(kind, listed(300), 2, prefetch=prefetch) as df:
        assert list(df) == list(df) == [[k] for k in range(300)]


@each_kind
def test_without_order_each_comes_once(kind):
    with strict(kind, listed(100), 2, ordered=False) as df:
        for _ in range(2):
            assert sorted(df) == [[k] for k in range(100)]


@each_kind
def test_what_a_map_drops_is_skipped(kind):
    with strict(kind, MapData(listed(50), lambda dp: dp if dp[0] % 3 else None), 2) as df:
        assert list(df) == [[k] for k in range(50) if k % 3]
        assert df[4] == [4]


@each_kind
def test_an_empty_pass_ends_at_once(kind):
    with strict(kind, FakeData([(2,)], 0), 2) as df:
        assert list(df) == list(df) == []


@each_kind
def test_an_endless_flow_stays_endless_and_in_order(kind):
    with strict(kind, RepeatedData(listed(3), -1), 2) as df:
        assert df._df_endless
        assert list(itertools.islice(df, 10)) == [[k % 3] for k in range(10)]


@pytest.mark.parametrize(("kind", "num"), covering(KINDS, [0, 1, 2]))
def test_a_loop_over_an_endless_flow_goes_on_where_the_last_one_stopped(kind, num):
    flows = [RepeatedData(listed(30), -1)] + [RepeatedData(Numbers(30), -1)] * (num < 2)
    for flow in flows:
        with strict(kind, flow, num) as df:
            for begin in range(0, 100, 10):
                assert list(itertools.islice(df, 10)) == [[k % 30] for k in range(begin, begin + 10)]


@each_kind
def test_an_endless_flow_that_nobody_else_holds_is_iterated(kind):
    taken = list(itertools.islice(strict(kind, RepeatedData(listed(3), -1), 2), 50))
    assert taken == [[k % 3] for k in range(50)]


@each_kind
def test_it_is_addressed_in_the_calling_process(kind):
    dataflow.seed(1)
    alone = chain()
    with strict(kind, chain(), 2) as df:
        assert df.addressable
        assert df[30:90] == alone[30:90]


@each_kind
def test_every_worker_takes_part(kind):
    left = {0, 1}
    with strict(kind, MapData(listed(100), lambda dp: [worker_info().index]), 2) as df, deadline(LIMIT):
        while left:  # in a single pass one of them may be too late
            left -= {k for (k,) in df}


def test_no_more_is_made_ahead_than_the_bound_allows():
    made = [0]

    def func(dp):
        made[0] += 1
        return dp

    with MultiThreadRunner(lambda: MapData(listed(500), func), 5, 2, strict=True, timeout=LIMIT) as df:
        for given, _ in enumerate(df, 1):
            assert made[0] <= given + 2 * (2 * 5 + 2)


@each_kind
def test_runners_are_batched_and_nested(kind):
    dataflow.seed(3)
    expected = [batch[0].tolist() for batch in BatchData(chain(), 7)]
    with strict("process", BatchData(strict(kind, chain(), 2), 7), 2) as df:
        assert [batch[0].tolist() for batch in df] == expected
    dataflow.seed(3)
    with MultiProcessMapData(strict(kind, chain(), 2), 2, lambda dp: dp, strict=True, timeout=LIMIT) as df:
        assert [dp[0] for dp in df] == [dp[0] for dp in chain()]


@each_method
def test_by_every_start_method(method):
    dataflow.seed(4)
    expected = list(chain())
    with strict("zmq", chain(), 2, context=method) as df:
        assert list(df) == expected


@each_kind
@pytest.mark.parametrize("num", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_strict_runner_keeps_the_contract_of_all_nodes(kind, num):
    def make(ds):
        return strict(kind, ds, num if ds.addressable else min(num, 1))

    check_node(make, exclusive=num > 0, kinds=(list,), picklable=kind != "thread")


@each_kind
def test_several_workers_need_a_flow_that_can_be_addressed(kind):
    with pytest.raises(NotAddressable, match=r"Numbers cannot be addressed.*MultiProcessMapData"):
        strict(kind, BatchData(Numbers(5), 2), 2)


# -- whole passes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "n"), covering(KINDS, [0, 1, 200]))
def test_one_worker_makes_the_passes_of_any_flow(kind, n):
    with strict(kind, Numbers(n), 1) as df:
        for few in (0, 1, 7, n):
            assert list(df) == [[k] for k in range(n)]
            list(itertools.islice(df, few))
            assert list(df) == [[k] for k in range(n)]


@each_kind
def test_a_pass_that_never_ends_is_broken_off(kind):
    with strict(kind, Forever(), 1) as df, deadline(LIMIT):
        for _ in range(5):
            assert list(itertools.islice(df, 30)) == [[k] for k in range(30)]


@each_kind
def test_a_failure_in_a_whole_pass_comes_after_what_was_made_before(kind):
    class Failing(DataFlow):
        def __iter__(self):
            yield from ([k] for k in range(20))
            raise ValueError("twenty")

    found = []
    with pytest.raises(ValueError, match="twenty"), deadline(LIMIT):
        found.extend(strict(kind, Failing(), 1))
    assert found == [[k] for k in range(20)]


# -- deaths ------------------------------------------------------------------------------------------------------------


def kill_some(df, expected, num_kills, seed):
    choose = random.Random(seed)
    moments = set(choose.sample(range(len(expected) // 10, len(expected) * 9 // 10), num_kills))
    owed = 0
    for k, dp in enumerate(df):
        assert dp == expected[k]
        owed += k in moments
        if owed and (alive := processes_of(df)):  # else all are dead, and not yet replaced
            choose.choice(alive).kill()
            owed -= 1
    assert k == len(expected) - 1


@each_process_kind
def test_killed_workers_change_nothing(kind):
    dataflow.seed(6)
    expected = list(chain(500))
    with strict(kind, chain(500), 2, max_restarts=2) as df, deadline(LIMIT):
        kill_some(df, expected, 2, seed=1)


@pytest.mark.full
@each_process_kind
def test_twenty_kills_in_a_pass_of_twenty_thousand_change_nothing(kind):
    dataflow.seed(6)
    expected = list(chain(20_000))
    with strict(kind, chain(20_000), 3, prefetch=50, max_restarts=50) as df, deadline(2 * LIMIT):
        kill_some(df, expected, 20, seed=2)


@each_process_kind
def test_a_whole_pass_that_was_cut_short_goes_on_where_it_was(kind):
    with strict(kind, Numbers(1000), 1, max_restarts=3) as df, deadline(LIMIT):
        kill_some(df, [[k] for k in range(1000)], 3, seed=3)


@each_process_kind
def test_a_death_is_reported_without_restarts(kind):
    def func(dp):
        if dp[0] == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        return dp

    found = []
    with pytest.raises(WorkerDied, match="SIGKILL"), deadline(LIMIT):
        found.extend(strict(kind, MapData(listed(100), func), 2))
    assert found == [[k] for k in range(len(found))] and len(found) <= 50


@pytest.mark.parametrize(("kind", "num"), covering(KINDS, [1, 2]))
def test_an_exception_comes_in_its_place(kind, num):
    def func(dp):
        if dp[0] == 50:
            raise KeyError("fifty")
        return dp

    found = []
    with pytest.raises(KeyError, match="fifty") as caught, deadline(LIMIT):
        found.extend(strict(kind, MapData(listed(100), func), num))
    assert found == [[k] for k in range(50)]
    assert any("datapoint 50 of pass 0" in note for note in caught.value.__notes__)


# -- the law -----------------------------------------------------------------------------------------------------------


def law(df, kind, num):
    dataflow.seed(9)
    alone = copy.deepcopy(df)
    expected = [one_pass(alone) for _ in range(3)]
    with strict(kind, df, num) as runner, deadline(LIMIT):
        assert one_pass(runner) == expected[0]
        next(iter(runner), None)
        assert one_pass(runner) == expected[2]


@each_kind
@settings(
    max_examples=settings.default.max_examples // 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(CHAINS, st.integers(1, 3))
def test_random_chains_are_the_same_in_every_strict_runner(kind, df, num):
    law(df, kind, num)


@each_kind
@settings(
    max_examples=settings.default.max_examples // 13,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(DROPPING, st.integers(1, 3))
def test_so_are_random_chains_that_drop(kind, df, num):
    law(df, kind, num)
