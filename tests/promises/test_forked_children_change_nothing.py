"""Children that the user's code forks, in a worker or in the consumer: they neither speak for it nor write to it."""

import itertools
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from dataflow import (
    BackgroundProc,
    BatchData,
    DataFlowTerminated,
    DataFromList,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    SharedMem,
    SharedQ,
)
from tests.support.fakes import METHODS
from tests.support.faults import deadline
from tests.support.forks import in_child
from tests.support.products import only
from tests.support.waits import LIMIT

NUM = 120
FORKS = (20, 60, 90)  # datapoints at which the code forks
SIZE = 3000


# -- in a worker -------------------------------------------------------------------------------------------------------


def wait_for_child(pid):
    """Whatever the child does, it ends."""
    end = time.monotonic() + LIMIT
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < end, "the child goes on"
        time.sleep(0.001)


class Forking:
    """A function that forks now and then; the child leaves in some way."""

    def __init__(self, how):
        self.how = how

    def __call__(self, dp):
        k = dp[0]
        if k in FORKS and (pid := os.fork()) == 0:
            if self.how == "exit":
                sys.exit(3)
            if self.how == "exit with text":
                sys.exit("goodbye")
            if self.how == "raise":
                raise ValueError("in the child")
            assert self.how == "go on"
            return [k, np.full(SIZE, -7)]
        if k in FORKS:
            wait_for_child(pid)
        return [k, np.full(SIZE, k)]


def numbers():
    return DataFromList([[k] for k in range(NUM)], shuffle=False)


RUNS = {
    "zmq": lambda f: MultiProcessRunnerZMQ(MapData(numbers(), f), 1, context="fork", timeout=LIMIT),
    "strict": lambda f: MultiProcessRunnerZMQ(MapData(numbers(), f), 2, context="fork", strict=True, timeout=LIMIT),
    "pipe": lambda f: MultiProcessRunner(MapData(numbers(), f), 20, 1, context="fork", timeout=LIMIT),
    "tolerant": lambda f: MultiProcessRunner(
        MapData(numbers(), f), 20, 1, context="fork", strict=True, max_failures=3, timeout=LIMIT
    ),
    "map": lambda f: MultiProcessMapData(numbers(), 2, f, context="fork", strict=True, timeout=LIMIT),
    "nested": lambda f: MultiProcessRunner(
        MultiProcessMapData(numbers(), 1, f, context="fork", strict=True), 20, 1, context="fork", strict=True
    ),
    "above a runner": lambda f: MultiProcessRunner(
        MapData(MultiProcessRunner(numbers(), 5, 1, context="fork", strict=True), f), 20, 1, context="fork", strict=True
    ),
    "thread": lambda f: MultiThreadRunner(lambda: MapData(numbers(), f), 20, 1, timeout=LIMIT),
    "thread map": lambda f: MultiThreadMapData(numbers(), 2, f, strict=True, timeout=LIMIT),
}
HOW = ["exit", "exit with text", "raise", "go on"]


def check_worker_children(name, how):
    with RUNS[name](Forking(how)) as df, deadline(4 * LIMIT):
        got = [(int(k), set(array.tolist())) for k, array in df]
    assert got == [(k, {k}) for k in range(NUM)]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("zmq", "exit"),
        ("map", "go on"),
        ("tolerant", "raise"),
        ("thread", "go on"),
    ],
)
def test_a_child_of_a_worker_cannot_speak_for_it(name, how):
    check_worker_children(name, how)


@pytest.mark.full
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", RUNS)
def test_whatever_the_worker_and_however_the_child_goes_on(name, how):
    check_worker_children(name, how)


@pytest.mark.parametrize("how", ["exit", "go on"])
def test_a_child_of_a_worker_cannot_write_into_its_batches(how):
    # The batch is filled in memory that the consumer shares.
    ds = BatchData(MapData(numbers(), Forking(how)), 8)
    with MultiProcessRunner(ds, 20, 1, context="fork", strict=True, timeout=LIMIT) as df, deadline(4 * LIMIT):
        got = [batch for _, batch in df]
    assert (np.concatenate(got) == np.arange(NUM)[:, None]).all()


def test_a_child_of_a_worker_cannot_join_a_batch_made_by_it():
    with MultiProcessMapAndBatchData(
        numbers(), 2, Forking("go on"), 10, context="fork", strict=True, timeout=LIMIT
    ) as df:
        got = [batch for _, batch in df]
    assert (np.concatenate(got) == np.arange(NUM)[:, None]).all()


def test_the_child_gets_an_error_that_says_what_it_did(capfd):
    check_worker_children("pipe", "go on")
    assert "this process was forked by code that runs in a dataflow" in capfd.readouterr().err
    check_worker_children("pipe", "raise")
    reported = capfd.readouterr().err
    assert "ValueError: in the child" in reported
    assert "Exception ignored" not in reported


def fill(mp_arrays, shapes, how):
    SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[:] = 1
    make(how)


def make(how):
    pid = os.fork()
    if pid == 0:
        if how == "exit":
            sys.exit(3)
        if how == "raise":
            raise ValueError("in the child")
        return np.full(SIZE, -7.0)
    wait_for_child(pid)
    return np.ones(SIZE)


@pytest.mark.parametrize("how", only(["exit", "go on"], ["exit", "raise", "go on"]))
def test_a_child_of_a_background_process_cannot_answer_for_it(how):
    with BackgroundProc(make, target_args=(how,), dtypes=[np.float64], shapes=[(SIZE,)], context="fork") as proc:
        assert [proc.get()[0].sum() for _ in range(5)] == [SIZE] * 5
    with SharedQ(context="fork") as queue:
        for _ in range(5):
            queue.startproc([np.float64], [(SIZE,)], fill, (how,))
            assert queue.get(timeout=LIMIT)[0].sum() == SIZE


# -- in the consumer ---------------------------------------------------------------------------------------------------


def whole(dp):
    return [dp[0], np.full(SIZE, dp[0])]


CONSUMED = {name: run for name, run in RUNS.items() if name != "nested"}


@pytest.mark.parametrize("name", only(["zmq", "map", "above a runner", "thread"], CONSUMED))
def test_a_child_of_the_consumer_cannot_go_on_for_it(name):
    got, said = [], set()
    with CONSUMED[name](whole) as df, deadline(4 * LIMIT):
        iterator = iter(df)
        for k, array in iterator:
            if k in FORKS:
                said.add(in_child(lambda: next(iterator)))
                kept = array.copy()
                in_child(lambda array=array: array.fill(-7))
                assert (array == kept).all(), "the child has written into the parent's array"
            got.append((int(k), set(array.tolist())))
        assert got == [(k, {k}) for k in range(NUM)]
    (reported,) = said
    assert reported.startswith("DataFlowTerminated: this iteration of ")
    assert f"belongs to process {os.getpid()}" in reported


@pytest.mark.parametrize("name", only(["strict", "pipe", "tolerant", "thread map"], CONSUMED))
def test_nor_shortly_before_the_end_of_a_pass(name):
    with CONSUMED[name](whole) as df, deadline(4 * LIMIT):
        iterator = iter(df)
        for k, _ in iterator:
            said = in_child(lambda: next(iterator)) if NUM - 10 <= k < NUM - 1 else "DataFlowTerminated"
            assert said.startswith("DataFlowTerminated"), k


@pytest.mark.parametrize("name", ["strict", "map", "thread"])
def test_nor_can_it_begin_what_the_consumer_was_about_to_begin(name):
    with CONSUMED[name](whole) as df, deadline(4 * LIMIT):
        first = iter(df)
        next(first)
        second = iter(df)
        assert in_child(lambda: next(second)).startswith("DataFlowTerminated")
        assert len(list(df)) == NUM


def test_it_may_start_workers_of_its_own():
    with RUNS["map"](whole) as df:
        next(iter(df))
        assert in_child(lambda: len(list(df))) == f"returned {NUM}"
        assert len(list(df)) == NUM


@pytest.mark.parametrize("how", ["raise", "go on"])
def test_a_child_that_the_source_of_a_map_forks_gives_the_workers_nothing(how):
    parent = os.getpid()
    read, write = os.pipe()

    def forking(dp):
        try:
            return Forking(how)(dp)
        finally:
            if os.getpid() != parent:
                os.write(write, b"c")

    got = []
    with MultiProcessMapData(MapData(numbers(), forking), 2, list, context="fork", strict=True, timeout=LIMIT) as df:
        try:
            got.extend((int(k), set(array.tolist())) for k, array in df)
        except BaseException as error:
            if os.getpid() != parent:
                expected = DataFlowTerminated if how == "go on" else ValueError
                os.write(write, b"x" if isinstance(error, expected) else str(error).encode()[:500])
            raise
        finally:
            if os.getpid() != parent:
                os._exit(0)
    os.close(write)
    with open(read) as file:
        assert file.read() == "cx" * len(FORKS)
    assert got == [(k, {k}) for k in range(NUM)]


def test_shared_queues_belong_to_the_process_that_made_them():
    with (
        SharedQ(context="fork") as queue,
        BackgroundProc(np.ones, target_args=(SIZE,), dtypes=[np.float64], shapes=[(SIZE,)], context="fork") as proc,
    ):
        queue.startproc([np.float64], [(SIZE,)], fill, ("exit",))
        start = in_child(lambda: queue.startproc([np.float64], [(SIZE,)], fill, ("exit",)))
        assert start.startswith("DataFlowTerminated: this SharedQ belongs to process")
        assert in_child(queue.get).startswith("DataFlowTerminated: this SharedQ belongs to process")
        (array,) = queue.get()
        in_child(lambda: array.fill(-7))
        assert array.sum() == SIZE
        assert in_child(proc.get).startswith("DataFlowTerminated: this BackgroundProc belongs to process")
        assert proc.get()[0].sum() == SIZE


def test_children_may_end_while_the_parent_goes_on():
    with RUNS["map"](whole) as df:
        iterator = iter(df)
        for _ in range(10):
            next(iterator)
        assert in_child(df.close) == "returned None"
        assert in_child(iterator.close) == "returned None"
        assert len(list(iterator)) == NUM - 10


# -- a process of its own ----------------------------------------------------------------------------------------------


def doubled(**options):
    with MultiProcessRunnerZMQ(
        MapData(DataFromList([[k] for k in range(4)], shuffle=False), double), 1, **options
    ) as df:
        return list(df)


def double(dp):
    return [2 * dp[0]]


@pytest.mark.parametrize(
    ("outer", "inner"),
    only([("fork", "fork"), ("forkserver", "forkserver")], itertools.product(METHODS, METHODS)),
)
def test_a_forked_child_starts_runners_of_its_own_whatever_its_parent_has(outer, inner):
    with MultiProcessRunnerZMQ(DataFromList([[1]]), 1, context=outer, timeout=LIMIT) as df:
        assert next(iter(df)) == [1]
        with deadline(LIMIT):
            assert in_child(lambda: doubled(context=inner)) == "returned [[0], [2], [4], [6]]"
        assert next(iter(df)) == [1]
        assert doubled(context=inner) == [[0], [2], [4], [6]]


LATE = """
import multiprocessing, os
if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=print)
    process.start()
    process.join()
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    from dataflow import DataFromList, MultiProcessRunner
    with MultiProcessRunner(DataFromList([[1]]), 1, 1, context="forkserver") as df:
        assert next(iter(df)) == [1]
"""


def test_so_does_one_that_was_forked_before_this_package_was_imported(tmp_path):
    (tmp_path / "main.py").write_text(LATE)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, timeout=LIMIT, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_forked_child_does_not_wait_for_a_fork_server_that_another_thread_of_its_parent_starts():
    from multiprocessing import forkserver

    with forkserver._forkserver._lock, deadline(LIMIT):
        assert in_child(lambda: forkserver._forkserver._lock.acquire(timeout=1)) == "returned True"
