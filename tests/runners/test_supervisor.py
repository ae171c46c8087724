"""`max_restarts`: a worker that died is replaced, and what it had taken is done again."""

import gc
import itertools
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import weakref

import numpy as np
import pytest

from dataflow import (
    DataFromList,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiThreadMapData,
    WorkerDied,
    worker_info,
)
from dataflow.protocol.state import state_of
from tests.support.fakes import PROCESS_KINDS, Forever, Numbers, each_method, runner
from tests.support.faults import deadline, processes_of
from tests.support.products import covering, only
from tests.support.waits import LIMIT, wait_until


def listed(n):
    return DataFromList([[k, np.full(k % 3 * 9000, k)] for k in range(n)], shuffle=False)


def changed(dp):
    dp[1] += 1  # the worker's own: what is done again must find it as it was
    return [2 * dp[0], dp[1]]


def blocks_in_use(df):
    """Of the arena of tasks, and of those of the workers: how many blocks are not free."""
    gc.collect()
    engine = state_of(df).resource
    task_queue, codec = engine._plan.schedule.task_queue, engine._plan.links.codec
    memories = [task_queue.writer.memory, *(reader._memory for reader in codec._readers)]
    return [sum(map(bool, memory.statuses[:])) for memory in memories]


def killed_while_it_runs(n, num_kills, num, seed, max_restarts):
    """Kill workers at random moments of one pass; check every datapoint, and that no block is lost."""
    choose = random.Random(seed)
    moments = set(choose.sample(range(n // 20, n - n // 5), num_kills))  # what is left is more than the buffer holds
    kills = owed = 0
    with MultiProcessMapData(
        listed(n), num, changed, strict=True, buffer_size=100, timeout=LIMIT, max_restarts=max_restarts
    ) as df:
        for k, (value, array) in enumerate(df):
            assert value == 2 * k
            assert len(array) == k % 3 * 9000
            assert (array == k + 1).all()
            owed += k in moments
            if owed and (alive := processes_of(df)):  # else all are dead, and not yet replaced
                choose.choice(alive).kill()
                kills, owed = kills + 1, owed - 1
        assert k == n - 1 and kills == num_kills
        del array

        def all_free():
            assert [value for value, _ in df] == [2 * k for k in range(n)]
            return not any(blocks_in_use(df))

        # What was done twice may still be under way, and is received in a later pass. A lost block stays in use.
        wait_until(all_free, LIMIT, lambda: f"blocks were lost: {blocks_in_use(df)}")


def test_the_output_is_that_of_an_undisturbed_run():
    with deadline(LIMIT):
        killed_while_it_runs(2000, 5, 2, seed=1, max_restarts=5)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_twenty_kills_in_twenty_thousand_datapoints_change_nothing(seed):
    with deadline(2 * LIMIT):
        killed_while_it_runs(20_000, 20, 3, seed, max_restarts=50)


class Once:
    """Does something bad the first time that it meets [k]; every process sees whether that was."""

    def __init__(self, k, strike):
        self.k = k
        self.strike = strike
        self.done = multiprocessing.Value("b", False)

    def __call__(self, dp):
        if dp[0] == self.k and not self.done.value:
            self.done.value = True
            self.strike()
        return [dp[0]]


STRIKES = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "_exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(3),
}


def restarted(caplog):
    return [record for record in caplog.records if "restart 1" in record.message]


@pytest.mark.parametrize(("name", "strict"), covering([*STRIKES], [True, False]))
def test_the_datapoint_that_it_died_of_is_done_again(name, strict, caplog):
    func = Once(30, STRIKES[name])
    with (
        MultiProcessMapData(Numbers(100), 2, func, strict=strict, max_restarts=1, timeout=LIMIT) as df,
        deadline(LIMIT),
    ):
        found = list(df if strict else itertools.islice(df, 100))
        assert found == [[k] for k in range(100)] if strict else len(found) == 100
        while not restarted(caplog):  # by default others may make up for it before the death is seen
            assert len(list(itertools.islice(df, 100))) == 100
    (record,) = restarted(caplog)
    assert record.levelno == logging.WARNING and "of 2 of MultiProcessMapData" in record.message


def test_a_thread_that_exits_is_replaced_too():
    func = Once(30, STRIKES["sys.exit"])
    with MultiThreadMapData(Numbers(100), 2, func, strict=True, max_restarts=1, timeout=LIMIT) as df, deadline(LIMIT):
        assert list(df) == [[k] for k in range(100)]


def test_the_record_of_a_restart_does_not_keep_the_function_alive(caplog):
    func = Once(3, STRIKES["sys.exit"])
    of_func = weakref.ref(func)
    with MultiThreadMapData(Numbers(9), 1, func, strict=True, max_restarts=1, timeout=LIMIT) as df, deadline(LIMIT):
        assert list(df) == [[k] for k in range(9)]
    del func, df
    gc.collect()
    assert restarted(caplog) and of_func() is None


@each_method
def test_by_every_start_method(method):
    func = MapFunction()
    with MultiProcessMapData(Numbers(60), 1, func, strict=True, max_restarts=1, timeout=LIMIT, context=method) as df:
        iterator = iter(df)
        found = [next(iterator)]
        processes_of(df)[0].kill()
        with deadline(LIMIT):
            found.extend(iterator)
    assert found == [[k] for k in range(60)]


class MapFunction:
    def __call__(self, dp):
        return dp


def test_one_death_too_many_is_reported():
    def func(dp):
        if dp[0] == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return dp

    found = []
    with pytest.raises(WorkerDied, match="SIGKILL"), deadline(LIMIT):
        found.extend(MultiProcessMapData(Numbers(50), 2, func, strict=True, max_restarts=2, timeout=LIMIT))
    assert found == [[k] for k in range(10)]


def test_a_worker_that_is_killed_while_it_waits_takes_nothing_with_it():
    with MultiProcessMapData(Numbers(20), 2, changed_number, strict=True, max_restarts=4, timeout=LIMIT) as df:
        for _ in range(2):
            assert list(df) == [[2 * k] for k in range(20)]
            for process in processes_of(df):
                process.kill()
        with deadline(LIMIT):
            assert list(df) == [[2 * k] for k in range(20)]


def changed_number(dp):
    return [2 * dp[0]]


def test_a_map_that_batches_does_it_again_too():
    func = Once(30, STRIKES["killed"])
    expected = [batch[0].tolist() for batch in dataflow_batches(Numbers(50))]
    with MultiProcessMapAndBatchData(Numbers(50), 2, func, 4, strict=True, max_restarts=1, timeout=LIMIT) as df:
        assert [batch[0].tolist() for batch in df] == expected


def dataflow_batches(ds):
    from dataflow import BatchData

    return BatchData(MapData(ds, lambda dp: dp), 4)


# -- runners -----------------------------------------------------------------------------------------------------------


def with_restarts(kind, num, more):
    return runner(kind, Forever, num, max_restarts=more)


@pytest.mark.parametrize(("kind", "num"), only([("process", 1)], itertools.product(PROCESS_KINDS, [1, 2])))
def test_a_runner_goes_on_with_a_fresh_worker(kind, num):
    with with_restarts(kind, num, 3) as df, deadline(LIMIT):
        iterator = iter(df)
        found = [k for (k,) in itertools.islice(iterator, 100)]
        for _ in range(3):
            processes_of(df)[0].kill()
            found += [k for (k,) in itertools.islice(iterator, 3000)]
        while len(processes_of(df)) < num:  # the others may have made all that before the death was seen
            found += [k for (k,) in itertools.islice(iterator, 100)]
    if num == 1:  # each worker's datapoints came without a gap, and each began at the start
        starts = [k for k, value in enumerate(found) if value == 0]
        for begin, end in itertools.pairwise([*starts, len(found)]):
            assert found[begin:end] == list(range(end - begin))


@pytest.mark.parametrize("kind", ["process", "zmq"])
def test_a_runner_reports_one_death_too_many(kind):
    df = with_restarts(kind, 1, 1)
    iterator = iter(df)
    with pytest.raises(WorkerDied, match="SIGKILL"), deadline(LIMIT):  # noqa: PT012
        for k, _ in enumerate(iterator):
            if k % 100 == 99 and processes_of(df):
                processes_of(df)[0].kill()


def test_no_socket_directory_is_left_while_a_replaced_worker_works(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with with_restarts("zmq", 1, 2) as df, deadline(LIMIT):
        iterator = iter(df)
        for _ in range(2):
            next(iterator)
            processes_of(df)[0].kill()
            list(itertools.islice(iterator, 2000))
            assert not list(tmp_path.glob("dataflow-*"))


def test_a_replaced_worker_has_the_place_of_the_first():
    def func(dp):
        if dp[0] == 5 and not done.value:
            done.value = True
            os._exit(1)
        return [worker_info().index, worker_info().count, threading.active_count()]

    done = multiprocessing.Value("b", False)
    with MultiProcessMapData(Numbers(20), 1, func, strict=True, max_restarts=1, timeout=LIMIT) as df:
        assert {tuple(dp[:2]) for dp in df} == {(0, 1)}


def test_a_replaced_worker_inherits_nothing_that_it_would_close():
    collected = set()

    def func(dp):
        if os.getpid() not in collected:
            collected.add(os.getpid())
            gc.unfreeze()
            gc.collect()  # the consumer's sockets and workers, of a fork in the midst of the run, are garbage here
        return dp

    with MultiProcessMapData(Numbers(300), 2, func, strict=True, max_restarts=2, timeout=LIMIT) as df, deadline(LIMIT):
        for k, dp in enumerate(df):
            assert dp == [k]
            if k in {20, 150}:
                processes_of(df)[0].kill()
        assert k == 299
