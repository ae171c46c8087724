"""`timeout=` is over if no datapoint comes, whatever workers do; time of the source and of the loop does not count."""

import contextlib
import multiprocessing
import time
from types import SimpleNamespace

import pytest

import dataflow
from dataflow import (
    DataFromGenerator,
    DataFromList,
    MapData,
    MultiProcessMapData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    RepeatedData,
    TimeoutError,
)
from dataflow.runners.schedules import TaskSchedule
from tests.support.fakes import Numbers, runner
from tests.support.faults import deadline
from tests.support.products import covering
from tests.support.waits import LIMIT


def dropped(dp):
    return None


def failing(dp):
    raise ValueError("not one")


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def endless():
    return RepeatedData(numbers(50), -1)


@pytest.mark.parametrize(
    ("node", "strict", "func"),
    covering([MultiThreadMapData, MultiProcessMapData], [True, False], [dropped, failing]),
)
def test_results_that_are_dropped_are_nothing_to_wait_for(node, strict, func):
    with (
        node(endless(), 2, func, strict=strict, timeout=0.3, max_failures=10**9) as df,
        deadline(LIMIT),
        pytest.raises(dataflow.TimeoutError, match=r"no datapoint from Multi\w+ for 0.3 seconds"),
    ):
        next(iter(df))


@pytest.mark.parametrize(("func", "strict"), covering([dropped, failing], [True, False]))
def test_nor_are_they_from_a_runner(strict, func):
    with (
        MultiProcessRunnerZMQ(MapData(endless(), func), 2, strict=strict, timeout=0.3, max_failures=10**9) as df,
        deadline(LIMIT),
        pytest.raises(dataflow.TimeoutError),
    ):
        next(iter(df))


@pytest.fixture
def later(monkeypatch):
    """Advances the clock of code that waits for workers by so many seconds."""
    passed = [0.0]
    monkeypatch.setattr(
        "dataflow.runners.engine.time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed))
    )
    return passed.append


@pytest.mark.parametrize("node", [MultiThreadMapData, MultiProcessMapData])
def test_a_source_that_takes_longer_is_waited_for(node, later):
    def source():
        for k in range(4):
            later(10 * LIMIT)
            yield [k]

    with node(DataFromGenerator(source), 2, same, strict=True, timeout=LIMIT) as df, deadline(LIMIT):
        assert list(df) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("kind", ["process", "zmq", "thread"])
def test_a_consumer_that_takes_longer_is_waited_for(kind, later):
    with runner(kind, lambda: Numbers(20), prefetch=1) as df, deadline(LIMIT):
        for k, dp in enumerate(df):
            assert dp == [k]
            later(10 * LIMIT)


def same(dp):
    return dp


def runner_around(ds, num, func, buffer_size, **more):
    return MultiProcessRunnerZMQ(MapData(ds, func), num, buffer_size, **more)


@pytest.mark.parametrize(
    ("node", "ordered"), covering([MultiThreadMapData, MultiProcessMapData, runner_around], [True, False])
)
def test_what_has_come_of_a_task_is_handed_out_before_its_timeout(node, ordered, monkeypatch):
    monkeypatch.setattr(
        TaskSchedule, "short_task", float("inf")
    )  # tasks are of 4 datapoints soon, also where all is slow
    gates = {k: multiprocessing.get_context("fork").Event() for k in (41, 42, 43)}  # at most one begins a task

    def func(dp):
        if dp[0] in gates:
            gates[dp[0]].wait(LIMIT)
        return dp

    more = {} if node is MultiThreadMapData else {"context": "fork"}
    found = []
    with node(numbers(60), 1, func, buffer_size=8, strict=True, ordered=ordered, timeout=0.2, **more) as df:
        steps = iter(df)
        with deadline(LIMIT):
            for k, gate in [*gates.items(), (60, None)]:
                while len(found) < k:  # how often nothing comes in time before, is up to the machine
                    with contextlib.suppress(TimeoutError):
                        found.extend(steps)
                assert found == [[j] for j in range(k)]
                if gate is not None:
                    gate.set()
