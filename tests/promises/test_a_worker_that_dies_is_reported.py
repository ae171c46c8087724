"""No pass ends as if nothing had happened after a worker died in it."""

import collections
import itertools
import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager, suppress
from multiprocessing import forkserver

import numpy as np
import psutil
import pytest

from dataflow import (
    DataFlow,
    DataFlowTerminated,
    DataFromList,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    NotReentrant,
    RepeatedData,
    WorkerDied,
)
from dataflow.protocol.state import state_of
from tests.support.faults import deadline
from tests.support.products import covering, only
from tests.support.waits import LIMIT, wait_until

N = 20


def listed():
    return DataFromList([[k] for k in range(N)], shuffle=False)


def same(dp):
    return dp


KINDS = {
    "pipe": lambda num, **more: MultiProcessRunner(listed(), 50, num, timeout=LIMIT, **more),
    "zmq": lambda num, **more: MultiProcessRunnerZMQ(listed(), num, timeout=LIMIT, **more),
    "strict pipe": lambda num, **more: MultiProcessRunner(listed(), 50, num, strict=True, timeout=LIMIT, **more),
    "strict zmq": lambda num, **more: MultiProcessRunnerZMQ(listed(), num, strict=True, timeout=LIMIT, **more),
    "strict zmq, any order": lambda num, **more: MultiProcessRunnerZMQ(
        listed(), num, strict=True, ordered=False, timeout=LIMIT, **more
    ),
    "whole passes": lambda num, **more: MultiProcessRunnerZMQ(
        RepeatedData(Generated(), 1), 1, strict=True, timeout=LIMIT, **more
    ),
    "map": lambda num, **more: MultiProcessMapData(listed(), num, same, strict=True, timeout=LIMIT, **more),
    "map, any order": lambda num, **more: MultiProcessMapData(
        listed(), num, same, strict=True, ordered=False, timeout=LIMIT, **more
    ),
    "map and batch": lambda num, **more: MultiProcessMapAndBatchData(
        listed(), num, same, 1, strict=True, timeout=LIMIT, **more
    ),
}


class Generated(DataFlow):
    def __iter__(self):
        for k in range(N):
            yield [k]

    def __len__(self):
        return N


def workers_of(df):
    df = df.ds if isinstance(df, MultiProcessMapAndBatchData) else df
    return state_of(df).resource.workers


def has_ended(worker):
    """Whether the whole process has, not only its first thread; it can still be collected."""
    try:
        return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # a child of the fork server, or collected
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(worker.pid)
            return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        return True


def kill(worker):
    """It is dead when this returns; it was not reaped."""
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(worker), LIMIT, "SIGKILL does not end it")


# Of the two tests of every kind, each kind is quick in one.
QUICK = {"zmq", "strict pipe", "whole passes", "map", "map, any order"}


def cases():
    """Every kind, with one worker and two; killed is each of them, after each number of datapoints."""
    for name, num, taken in itertools.product(KINDS, (1, 2), range(1, N + 1)):
        for victim in range(1 if name == "whole passes" else num):
            marks = () if (num, taken, victim) == (2, N, 0) and name in QUICK else (pytest.mark.full,)
            yield pytest.param(name, num, taken, victim, marks=marks, id=f"{name}-{num}-{taken}-{victim}")


@pytest.mark.parametrize(("name", "num", "taken", "victim"), list(cases()))
def test_a_worker_that_is_killed_in_a_pass_fails_that_pass(name, num, taken, victim):
    with KINDS[name](num) as df, deadline(LIMIT):
        assert len(list(df)) == N
        iterator, found = iter(df), []
        found += itertools.islice(iterator, taken)
        kill(workers_of(df)[victim])
        with pytest.raises(WorkerDied, match="SIGKILL"):
            found.extend(iterator)
        assert len(found) <= N
        with pytest.raises(DataFlowTerminated, match="WorkerDied"):
            next(iter(df))
        df.reset_state()
        assert len(list(df)) == N


@contextmanager
def stopped_fork_server():
    """Meanwhile the fork server collects and reports no worker that has ended."""
    server = psutil.Process(forkserver._forkserver._forkserver_pid)
    server.suspend()
    try:
        wait_until(lambda: server.status() == psutil.STATUS_STOPPED, LIMIT, "SIGSTOP does not stop it")
        yield
    finally:
        server.resume()


@pytest.mark.parametrize(("name", "context"), covering(["pipe", "zmq", "map"], ["fork", "forkserver", "spawn"]))
def test_a_death_that_the_fork_server_has_not_reported_fails_the_pass(name, context):
    with KINDS[name](2, context=context) as df, deadline(LIMIT):
        assert len(list(df)) == N
        iterator = iter(df)
        assert len(list(itertools.islice(iterator, N))) == N
        with stopped_fork_server():
            kill(workers_of(df)[0])
            with pytest.raises(WorkerDied, match="worker 0 of 2"):
                next(iterator)
    wait_until(lambda: not multiprocessing.active_children(), LIMIT, "they are not collected")


@pytest.mark.parametrize("name", only([*KINDS.keys() - QUICK, "whole passes"], KINDS))
def test_a_death_that_a_restart_covers_does_not_fail_the_pass(name):
    with KINDS[name](2, max_restarts=1) as df, deadline(LIMIT):
        iterator = iter(df)
        found = list(itertools.islice(iterator, N))
        dead = workers_of(df)[0]
        kill(dead)
        assert list(iterator) == []
        if name not in {"pipe", "zmq"}:
            assert sorted(int(np.ravel(dp[0])[0]) for dp in found) == list(range(N))
        while workers_of(df)[0] is dead:  # a default runner has until it looks at its workers the next time
            assert len(list(df)) == N
        kill(workers_of(df)[0])
        with pytest.raises(WorkerDied):
            list(df)


@pytest.mark.parametrize("kind", ["map", "map and batch"])
def test_a_default_map_reports_a_death_though_it_has_no_end(kind):
    made = {
        "map": lambda: MultiProcessMapData(listed(), 2, same, timeout=LIMIT),
        "map and batch": lambda: MultiProcessMapAndBatchData(listed(), 2, same, 2, timeout=LIMIT),
    }
    with made[kind]() as df, deadline(LIMIT):
        iterator = iter(df)
        list(itertools.islice(iterator, N))
        kill(workers_of(df)[1])
        with pytest.raises(WorkerDied, match="SIGKILL"):
            collections.deque(iterator, 0)


class ExitsLater(DataFlow):
    """Its first pass is whole; in the second `strike` is called."""

    def __init__(self, strike):
        self.strike = strike
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        if self.passes > 1:
            self.strike()
        for k in range(N):
            yield [k]

    def __len__(self):
        return N


def fail():
    raise LookupError("in the second pass")


RUNNERS = {
    "pipe": lambda ds: MultiProcessRunner(ds, 50, 1, timeout=LIMIT),
    "zmq": lambda ds: MultiProcessRunnerZMQ(ds, 1, timeout=LIMIT),
    "thread": lambda ds: MultiThreadRunner(lambda: ds, 50, 1, timeout=LIMIT),
}


@pytest.mark.parametrize(("kind", "code"), covering([*RUNNERS], [3, 0]))
def test_a_worker_that_exits_while_it_runs_ahead_fails_the_pass_that_ends_then(kind, code):
    with RUNNERS[kind](ExitsLater(lambda: sys.exit(code))) as df, deadline(LIMIT):
        iterator = iter(df)
        found = list(itertools.islice(iterator, N))
        (worker,) = workers_of(df)
        wait_until(worker.has_ended if kind == "thread" else lambda: has_ended(worker), LIMIT, "it has not ended")
        with pytest.raises(WorkerDied, match=r"sys\.exit"):
            next(iterator)
    assert found == [[k] for k in range(N)]


@pytest.mark.parametrize("kind", RUNNERS)
def test_an_exception_that_belongs_to_the_next_pass_is_raised_there(kind):
    with RUNNERS[kind](ExitsLater(fail)) as df, deadline(LIMIT):
        iterator = iter(df)
        found = list(itertools.islice(iterator, N))
        (worker,) = workers_of(df)
        wait_until(worker.has_ended if kind == "thread" else lambda: has_ended(worker), LIMIT, "it has not ended")
        assert list(iterator) == []  # this pass is complete
        with pytest.raises(LookupError):
            next(iter(df))
    assert found == [[k] for k in range(N)]


LATER = ("iterated", "closed", "iterated twice")


@pytest.mark.parametrize(
    ("kind", "later", "step"),
    [
        ("pipe", "iterated", 3),
        ("zmq", "closed", 3),
        ("pipe", "iterated twice", 3),
        *(pytest.param(*case, 1, marks=pytest.mark.full) for case in itertools.product(["pipe", "zmq"], LATER)),
    ],
)
def test_an_iteration_is_told_why_it_ends_before_its_last_datapoint(kind, later, step):
    """Also if the chunk in hand has the rest of the pass: it is taken away."""
    for num in range(N - 9, N + 1, step):
        df = KINDS[kind](1)
        with df:
            earlier = iter(df)
            got = [dp[0] for dp in itertools.islice(earlier, num)]
            if later == "closed":
                df.close()
            else:
                assert next(iter(df)) == [num % N]
            if later == "iterated twice":
                assert next(iter(df)) == [(num + 1) % N]
            if num == N:  # complete
                assert next(earlier, None) is None
            else:
                with pytest.raises(DataFlowTerminated if later == "closed" else NotReentrant):
                    next(earlier)
        assert got == list(range(num))
