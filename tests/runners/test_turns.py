"""Many worker processes on few cores: a few at a time compute, all take part, and none can hold up the others."""

import itertools
import logging
import os
import signal
import time

import pytest

from dataflow import DataFlow, DataFromList, MultiProcessRunner, MultiProcessRunnerZMQ, WorkerDied, worker_info
from dataflow.protocol.state import state_of
from dataflow.runners import backends, options
from tests.support.fakes import METHODS
from tests.support.products import only
from tests.support.waits import LIMIT

CLASSES = {
    "zmq": lambda ds, n, **options: MultiProcessRunnerZMQ(ds, n, timeout=LIMIT, **options),
    "pipes": lambda ds, n, **options: MultiProcessRunner(ds, 10, n, timeout=LIMIT, **options),
}


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """One worker at a time has a turn, if there are more than two."""
    for module in (backends, options):
        monkeypatch.setattr(module, "share_of_cores", lambda num_workers: 1)


class Computing(DataFlow):
    """Yields which worker it is, after some work."""

    def __iter__(self):
        while True:
            sum(range(5000))
            yield [worker_info().index, os.getpid()]


class Sleeping(DataFlow):
    """Yields when it began to sleep, and when it woke up."""

    def __iter__(self):
        while True:
            began = time.monotonic()
            time.sleep(0.05)
            yield [worker_info().index, began, time.monotonic()]


class Ending(DataFlow):
    """Ends at once, in all workers but the last."""

    def __iter__(self):
        return iter([[worker_info().index]] * (worker_info().index == 3))


def take_until(datapoints, condition, limit=LIMIT):
    end = time.monotonic() + limit
    for dp in datapoints:
        if condition(dp):
            return
        assert time.monotonic() < end, "it never came"


@pytest.mark.parametrize(("name", "start"), only([("pipes", "forkserver")], itertools.product(CLASSES, METHODS)))
def test_all_workers_take_part(name, start):
    missing = set(range(4))
    with CLASSES[name](Computing(), 4, context=start) as df:
        take_until(df, lambda dp: missing.discard(dp[0]) or not missing)


def test_workers_that_sleep_do_so_at_the_same_time():
    """With turns, one would sleep at a time."""
    last = {}

    def all_asleep(dp):
        worker, began, ended = dp
        last[worker] = began, ended
        return len(last) == 6 and max(began for began, _ in last.values()) < min(ended for _, ended in last.values())

    with MultiProcessRunnerZMQ(Sleeping(), 6, hwm=1, timeout=LIMIT) as df:
        take_until(df, all_asleep)


def test_stopped_workers_do_not_stop_the_others():
    with MultiProcessRunnerZMQ(Computing(), 4, hwm=1, timeout=LIMIT) as df:
        datapoints = iter(df)
        found = {}
        take_until(datapoints, lambda dp: found.setdefault(*dp) and len(found) == 4)
        pids = [found[k] for k in range(3)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            left = [30]

            def enough(dp):
                left[0] -= dp[0] == 3
                return not left[0]

            take_until(datapoints, enough)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def test_a_worker_that_ends_lets_the_others_go_on():
    with MultiProcessRunnerZMQ(Ending(), 4, timeout=LIMIT) as df:
        datapoints = iter(df)
        assert [next(datapoints) for _ in range(50)] == [[3]] * 50


def test_a_killed_worker_is_reported():
    def kill_the_sender(df):
        for _, pid in df:
            os.kill(pid, signal.SIGKILL)

    with MultiProcessRunnerZMQ(Computing(), 4, timeout=LIMIT) as df, pytest.raises(WorkerDied, match="SIGKILL"):
        kill_the_sender(df)


def test_workers_that_are_killed_and_replaced_leave_their_turns():
    killed = set()
    with MultiProcessRunnerZMQ(Computing(), 4, max_restarts=3, timeout=LIMIT) as df:
        for worker, pid in df:
            if len(killed) < 3 and worker not in {k for k, _ in killed}:
                killed.add((worker, pid))
                os.kill(pid, signal.SIGKILL)
            elif pid not in {pid for _, pid in killed} and worker in {k for k, _ in killed}:
                break  # one of those in their place


def test_a_loop_that_was_left_goes_on_and_closing_is_quick(caplog):
    with caplog.at_level(logging.INFO, "dataflow"), MultiProcessRunnerZMQ(Computing(), 8, timeout=LIMIT) as df:
        for _ in range(3):
            next(iter(df))
        began = time.monotonic()
    assert time.monotonic() - began < LIMIT / 2
    assert "they take turns while they compute, 1 at a time" in caplog.text
    assert not [
        record for record in caplog.records if record.levelno >= logging.WARNING and "did not" in record.message
    ]


def test_statistics_say_how_many_work_at_a_time():
    with MultiProcessRunnerZMQ(Computing(), 8, timeout=LIMIT) as df:
        end = time.monotonic() + 0.3
        take_until(df, lambda dp: time.monotonic() > end)
        (runner,) = df.statistics().runners
        assert 1 <= runner.num_with_work <= 4


@pytest.mark.parametrize(
    ("num_workers", "options"), [(2, {}), (8, {"strict": True})], ids=["few workers", "strict: they take tasks"]
)
def test_others_take_no_turns(num_workers, options, caplog):
    numbers = DataFromList(range(9), shuffle=False)
    with (
        caplog.at_level(logging.INFO, "dataflow"),
        MultiProcessRunnerZMQ(numbers, num_workers, timeout=LIMIT, **options) as df,
    ):
        next(iter(df))
        assert state_of(df).resource.jobserver is None
    assert "take turns" not in caplog.text
