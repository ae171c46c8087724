"""``num_workers="auto"`` in strict runners and maps: workers are added while that pays, and the data are the same.

A fixed number of processes gets work only as far as that pays.
"""

import collections
import dataclasses
import itertools
import logging
import mmap
import os
import re
import signal
import threading
import time

import pytest

from dataflow import (
    DataFromList,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiThreadMapData,
    ParallelData,
    WorkerDied,
)
from dataflow.protocol.state import state_of
from dataflow.runners import options, scaling, worker_node
from dataflow.runners.scaling import WorkerCount
from dataflow.system.worker_pool import WorkerPool
from tests.support.products import only

LIMIT = 60.0
N = 200


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch):
    monkeypatch.setattr(scaling, "_SECONDS", 0.02)


@pytest.fixture
def all_at_once(monkeypatch):
    """As soon as the number of workers is decided, it is the maximum, whatever was measured."""

    def choose_most(self, load):
        self.num = self.most
        return self.num

    monkeypatch.setattr(WorkerCount, "next", choose_most)


@pytest.fixture
def own_machine(monkeypatch):
    """As if nothing else ran: no worker waits for a core, and twice as many make twice as much."""
    decide = WorkerCount.next

    def without_others(self, load):
        return decide(self, dataclasses.replace(load, delayed=0.0, datapoints=round(load.seconds * 500 * self.num)))

    monkeypatch.setattr(WorkerCount, "next", without_others)


def numbers(n=N):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def sleep(dp):
    time.sleep(2e-3)
    return [2 * dp[0]]


def double(dp):
    return [2 * dp[0]]


def sleep_and_tell(dp):
    time.sleep(2e-3)
    return [dp[0], os.getpid()]


FLOWS = {
    "ParallelData": lambda **options: ParallelData(MapData(numbers(), sleep), **options),
    "ParallelData of threads": lambda **options: ParallelData(MapData(numbers(), sleep), backend="thread", **options),
    "MultiProcessRunner": lambda **options: MultiProcessRunner(
        MapData(numbers(), sleep), 10, "auto", strict=True, **options
    ),
    "MultiProcessMapData": lambda **options: MultiProcessMapData(numbers(), "auto", sleep, strict=True, **options),
    "MultiThreadMapData": lambda **options: MultiThreadMapData(numbers(), "auto", sleep, strict=True, **options),
}


def most_given(caplog):
    """The largest number of workers that were given work, by the log."""
    return max(map(int, re.findall(r"gives work to (\d+) workers", caplog.text)), default=1)


def passes_until(condition, least=3):
    """At least so many passes; on a loaded machine, where more workers do not always pay at once, more."""
    end = time.monotonic() + LIMIT
    for number in itertools.count():
        if number >= least and (condition() or time.monotonic() > end):
            return
        yield number


@pytest.mark.parametrize("name", only(FLOWS.keys() - {"MultiProcessRunner"}, FLOWS))
def test_workers_that_sleep_become_more_and_the_data_are_the_same(name, own_machine, caplog):
    with caplog.at_level(logging.INFO, "dataflow"), FLOWS[name](max_workers=6, timeout=LIMIT) as df:
        assert [next(iter(df))] == [[0]]
        assert len(state_of(df).resource.workers) == 1
        for _ in passes_until(lambda: most_given(caplog) >= 4):
            assert list(df) == [[2 * k] for k in range(N)]
    assert '="auto" has workers: at most 6' in caplog.text
    assert most_given(caplog) in {4, 6}
    assert "they wait for something other than a core" in caplog.text


def test_batches_of_a_map_are_the_same():
    with MultiProcessMapAndBatchData(numbers(), "auto", sleep, 8, strict=True, max_workers=4, timeout=LIMIT) as df:
        for _ in range(3):
            assert [batch[0].tolist() for batch in df] == [[2 * (k + j) for j in range(8)] for k in range(0, N, 8)]


def test_default_maps_add_workers_too(own_machine, caplog):
    with (
        caplog.at_level(logging.INFO, "dataflow"),
        MultiProcessMapData(numbers(), "auto", sleep, max_workers=4, timeout=LIMIT) as df,
    ):
        datapoints = iter(df)
        for _ in passes_until(lambda: most_given(caplog) == 4):
            assert {next(datapoints)[0] // 2 for _ in range(3 * N)} == set(range(N))
    assert most_given(caplog) == 4


def test_a_worker_that_was_added_is_replaced_when_it_is_killed(all_at_once, caplog):
    is_killed = mmap.mmap(-1, 1)
    n = 5000  # for ten seconds, until a worker is added

    def sleep_until_one_is_killed(dp):
        time.sleep(0 if is_killed[0] else 2e-3)
        return [dp[0], os.getpid()]

    flow = MapData(numbers(n), sleep_until_one_is_killed)
    df = ParallelData(flow, max_workers=4, max_restarts=1, context="fork", timeout=LIMIT)
    with caplog.at_level(logging.INFO, "dataflow"), df:
        found, first = [], None
        for k, pid in df:
            found.append(k)
            first = first or pid
            if not is_killed[0] and pid != first:
                os.kill(pid, signal.SIGKILL)
                is_killed[0] = True
    assert found == list(range(n)) and is_killed[0]
    assert "Another was started in its place" in caplog.text


def test_a_worker_that_was_added_and_is_killed_is_named(all_at_once):
    df = ParallelData(MapData(numbers(5000), sleep_and_tell), max_workers=2, timeout=LIMIT)  # so it is worker 1
    with df:
        rest = iter(df)
        _, first = next(rest)
        added = next(pid for _, pid in rest if pid != first)
        os.kill(added, signal.SIGKILL)  # once: more of its datapoints may come, and its process id is free by then
        with pytest.raises(WorkerDied, match=r"worker 1 of 2 of ParallelData .*SIGKILL"):
            list(rest)


REFUSALS = {
    "processes": (lambda: BlockingIOError(11, "no more"), "[Errno 11] no more"),
    "threads": (lambda: RuntimeError("can't start new thread"), "can't start new thread"),
    "memory": (MemoryError, "no memory"),
}


@pytest.mark.parametrize("lacking", only(["processes"], REFUSALS))
def test_a_worker_that_cannot_be_started_is_not_needed(lacking, all_at_once, monkeypatch, caplog):
    refusal, text = REFUSALS[lacking]
    started = []

    def add(self, make):
        if started:
            raise refusal()  # a new one each time: it keeps its frames
        started.append(True)
        return add_as_before(self, make)

    add_as_before = WorkerPool.add
    monkeypatch.setattr(WorkerPool, "add", add)
    with caplog.at_level(logging.INFO, "dataflow"), FLOWS["ParallelData"](max_workers=4, timeout=LIMIT) as df:
        for _ in passes_until(lambda: "starts no more" in caplog.text, 2):
            assert list(df) == [[2 * k] for k in range(N)]
    assert caplog.text.count(f"starts no more than 1 workers: {text}") == caplog.text.count("starts no more") == 1


def test_another_error_while_a_worker_is_added_is_raised(all_at_once, monkeypatch):
    started = []

    def add(self, make):
        if started:
            raise RuntimeError("a defect")
        started.append(True)
        return add_as_before(self, make)

    add_as_before = WorkerPool.add
    monkeypatch.setattr(WorkerPool, "add", add)
    df = FLOWS["ParallelData"](max_workers=4, timeout=LIMIT)
    with pytest.raises(RuntimeError, match="a defect"):
        collections.deque(map(list, itertools.repeat(df)), 0)
    df.close()


def test_a_flow_that_was_closed_and_is_iterated_again_begins_with_one_worker(all_at_once):
    df = FLOWS["ParallelData"](max_workers=4, timeout=LIMIT)
    for _ in range(2):
        for _ in passes_until(lambda: len(state_of(df).resource.workers) == 4, 1):
            assert list(df) == [[2 * k] for k in range(N)]
        assert len(state_of(df).resource.workers) == 4
        df.close()
    assert next(iter(df)) == [0]
    assert len(state_of(df).resource.workers) == 1
    df.close()


def test_threads_that_are_added_have_nodes_of_their_own(own_machine):
    class Own(MapData):
        def reset_state(self):
            super().reset_state()
            self.thread = threading.get_ident()

    def thread_of(dp):
        time.sleep(2e-3)
        return threading.get_ident()

    df = ParallelData(Own(numbers(), thread_of), backend="thread", max_workers=4, timeout=LIMIT)
    with df:
        seen = set()
        for _ in passes_until(lambda: len(seen) == 4):
            seen.update(df)
        assert len(seen) == 4
    assert not hasattr(df.ds, "thread")  # the user's node was reset in no thread


# -- more workers than are needed, as asked for ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ParallelData", "MultiProcessMapData"])
def test_of_a_few_workers_only_those_that_are_needed_get_work(name, caplog):
    make = {
        "ParallelData": lambda: ParallelData(MapData(numbers(), double), 2, timeout=LIMIT),
        "MultiProcessMapData": lambda: MultiProcessMapData(numbers(), 2, double, strict=True, timeout=LIMIT),
    }[name]

    def slowly(dp):
        time.sleep(5e-4)  # the consumer is the bottleneck
        return dp

    with caplog.at_level(logging.INFO, "dataflow"), make() as df:
        text = "gives work to 1 worker (at most 2; before 2): the consumer hardly waits"
        for _ in passes_until(lambda: text in caplog.text):
            assert list(map(slowly, df)) == [[2 * k] for k in range(N)]
    assert text in caplog.text


@pytest.fixture
def one_core(monkeypatch):
    for module in (options, worker_node):
        monkeypatch.setattr(module, "share_of_cores", lambda num: 1)


@pytest.mark.parametrize("name", only(["ParallelData"], ["ParallelData", "MultiProcessMapData"]))
def test_of_many_workers_some_get_work_at_first_and_all_if_they_sleep(name, one_core, own_machine, caplog):
    make = {
        "ParallelData": lambda: ParallelData(MapData(numbers(), sleep), 6, timeout=LIMIT),
        "MultiProcessMapData": lambda: MultiProcessMapData(numbers(), 6, sleep, strict=True, timeout=LIMIT),
    }[name]
    with caplog.at_level(logging.INFO, "dataflow"), make() as df:
        assert next(iter(df)) == [0]
        assert len(state_of(df).resource.workers) == 6
        for _ in passes_until(lambda: most_given(caplog) >= 4):
            assert list(df) == [[2 * k] for k in range(N)]
    assert most_given(caplog) in {4, 6}


def test_workers_without_work_are_prepared_when_they_get_some(one_core, monkeypatch, tmp_path):
    def let_work(num):
        def chosen(self, load):
            self.num = num
            return num

        monkeypatch.setattr(WorkerCount, "next", chosen)

    def touch():
        (tmp_path / str(os.getpid())).touch()

    def prepared():
        return len(list(tmp_path.iterdir()))

    for num, expected in (2, 2), (6, 2 + 6):
        let_work(num)
        with ParallelData(MapData(numbers(), sleep), 6, worker_init=touch, timeout=LIMIT) as df:
            for _ in passes_until(lambda: prepared() == expected):  # noqa: B023 (called at once)
                assert list(df) == [[2 * k] for k in range(N)]
        assert prepared() == expected  # closing it has changed nothing


def test_the_death_of_the_only_worker_with_work_is_reported_after_all_that_is_due_before(one_core, monkeypatch):
    monkeypatch.setattr(WorkerCount, "next", lambda self, load: self.num)
    df = MultiProcessMapData(numbers(), 6, sleep_and_tell, strict=True, timeout=LIMIT)
    found = []

    def iterate():
        for k, pid in df:
            found.append(k)
            if len(found) == 5:
                os.kill(pid, signal.SIGKILL)

    with df, pytest.raises(WorkerDied):
        iterate()
    assert found == [*range(len(found))]  # the error comes where the worker died, after all that is due before
