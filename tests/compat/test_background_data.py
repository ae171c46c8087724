"""Background processes as the source of a flow."""

import itertools

import numpy as np
import psutil
import pytest

from dataflow import (
    BackgroundData,
    BatchData,
    DataFlowTerminated,
    FixedSizeData,
    JoinData,
    MapData,
    MultiProcessRunnerZMQ,
    SharedMem,
    WorkerDied,
)
from dataflow import TimeoutError as DataFlowTimeout
from tests.compat.targets import GOOD, Counting, Numbered, drawn, wait_at
from tests.support.contract import check_node, plain, seeded
from tests.support.faults import reported
from tests.support.pauses import taken_patiently
from tests.support.waits import LIMIT


def pair():
    return [*drawn()[:1], 5]


def taken(df, num):
    return [plain(dp) for dp in itertools.islice(df, num)]


@pytest.mark.parametrize("n_proc", [0, 1])
def test_the_source_keeps_the_contract_of_all_nodes(n_proc):
    make = lambda: BackgroundData(pair, ["f8", "i8"], [(), ()], n_proc, timeout=LIMIT)  # noqa: E731
    check_node(make, source=True, stateful=True, addressable=False)


def test_datapoints_are_lists_that_chain_with_every_node():
    df = BackgroundData(pair, n_proc=2, timeout=LIMIT)
    df = BatchData(MapData(df, lambda dp: [dp[0] * 0 + 1, dp[1]]), 3)
    with FixedSizeData(df, 2) as df:
        for ones, fives in df:
            assert ones.tolist() == [1, 1, 1] and fives.tolist() == [5, 5, 5]


def test_a_pass_goes_on_where_the_last_one_stopped_and_a_reset_renews_the_processes():
    with seeded(4), BackgroundData(drawn, n_proc=2, timeout=LIMIT) as df:
        first = taken(df, 3) + taken(df, 3)
        df.reset_state()
        again = taken(df, 3)
    with seeded(4), BackgroundData(drawn, n_proc=2, timeout=LIMIT) as df:
        assert taken(df, 6) == first
        df.reset_state()
        assert taken(df, 3) == again
    assert again != first[:3]
    with BackgroundData(drawn, n_proc=2, seed=4) as df, BackgroundData(drawn, n_proc=2, seed=4) as other:
        assert taken(df, 3) == taken(other, 3)


def test_under_another_seed_the_processes_are_others():
    others = len(psutil.Process().children(recursive=True))
    with BackgroundData(drawn, n_proc=1, timeout=LIMIT) as df:
        for number in (4, 5):
            with seeded(number):
                taken(df, 2)
            assert len(psutil.Process().children(recursive=True)) == others + 1


def test_in_two_places_of_a_chain_it_draws_different_numbers():
    with seeded(4):
        df = BackgroundData(drawn, timeout=LIMIT)
        with JoinData([df, df]) as joined:
            pairs = taken(joined, 4)
    assert len({str(part) for _, parts in pairs for part in parts}) == 8


def test_it_runs_in_the_worker_of_a_runner():
    with MultiProcessRunnerZMQ(FixedSizeData(BackgroundData(drawn, n_proc=2), 4), 2, timeout=LIMIT) as df:
        found = taken(df, 4) + taken(df, 4)  # two passes
    assert len({str(dp) for dp in found}) == 8


def test_order_and_reproducibility_are_told():
    assert BackgroundData(drawn, n_proc=2)._df_reproducible
    assert not BackgroundData(drawn, n_proc=2, ordered=False)._df_reproducible
    assert BackgroundData(drawn, n_proc=1, ordered=False)._df_reproducible
    assert BackgroundData(drawn)._df_endless and not BackgroundData(drawn).addressable


def test_a_failure_is_told_until_it_is_reset():
    armed = SharedMem.puthandle("i8", 1, [1])
    df = BackgroundData(Counting("SIGKILL", armed), ["i8", "i8"], [1000, 1000], timeout=LIMIT)
    with df:
        found = []
        with pytest.raises(WorkerDied, match=r"worker 0 of 1 of BackgroundData.*SIGKILL") as caught:
            found.extend(df)
        assert len(found) == GOOD and "n_proc" in reported(caught.value)
        with pytest.raises(DataFlowTerminated, match=r"failed before.*reset_state\(\)"):
            taken(df, 1)
        SharedMem.shm2ndarray(armed)[0] = 0
        df.reset_state()
        assert len(taken(df, 5)) == 5


def test_a_late_datapoint_is_waited_for_again():
    gate = SharedMem.puthandle("i8", 1)
    with BackgroundData(wait_at, ["i8"], [3], target_args=(gate,), timeout=0.05) as df:
        with pytest.raises(DataFlowTimeout, match=r"BackgroundData for 0\.05 seconds"):
            taken(df, 1)
        SharedMem.shm2ndarray(gate)[0] = 1
        df.timeout = LIMIT
        assert taken(df, 1) == plain([[np.arange(3)]])[1]


def test_a_wrong_parameter_is_named():
    with pytest.raises(ValueError, match="seed"):
        BackgroundData(drawn, seed=-1)
    with pytest.raises(ValueError, match="timeout"):
        BackgroundData(drawn, timeout=-1)
    with pytest.raises(TypeError, match="BackgroundData: target"):
        taken(BackgroundData(5), 1)


def test_options_are_kept_as_they_were_checked():
    df = BackgroundData(pair, n_proc=2.0)
    assert type(df.n_proc) is int and "2 processes" in repr(df)


@pytest.mark.parametrize("n_proc", [1, 2])
@pytest.mark.parametrize("ordered", [True, False])
def test_an_iterator_waits_again_and_nothing_is_lost(n_proc, ordered):
    gate = SharedMem.puthandle("i8", 1)
    make = Numbered(gate, 2 if n_proc == 1 else 0)
    with BackgroundData(make, ["i8", "i8"], [(), ()], n_proc, ordered=ordered, timeout=0.05) as source:
        df = BatchData(source, 3)
        found = taken_patiently(iter(df), 4, lambda: SharedMem.shm2ndarray(gate).fill(1))
        found += taken_patiently(iter(df), 4, int, num_late=0)  # another loop continues there
    numbers = {}
    for pids, ks in found:
        for pid, k in zip(pids, ks, strict=True):
            numbers.setdefault(pid, []).append(k)
    assert len(numbers) == n_proc or not ordered  # then one process may be faster than the other by far
    assert all(ks == list(range(len(ks))) for ks in numbers.values())
