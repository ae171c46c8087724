"""Ctrl-C at every line of ours, and a failure of every call that takes something from the system."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from functools import cache
from itertools import islice

import numpy as np
import pytest

import dataflow
from dataflow import (
    AsyncMapData,
    BackgroundProc,
    DataFromAsyncIterable,
    DataFromList,
    FetchData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ParallelData,
    RemoteDataZMQ,
    SharedMem,
    SharedQ,
)
from dataflow.runners import scaling
from dataflow.runners.scaling import WorkerCount
from dataflow.runners.supervisor import Supervisor
from tests.support.interrupts import (
    Refuser,
    Scenario,
    check_collection,
    check_interrupt,
    check_refusal,
    failures_of,
    no_descriptor,
    points_of,
    run,
    spread,
)
from tests.support.products import covering, only
from tests.support.shares import of_this_run, shared_inside
from tests.support.waits import LIMIT

ROOT = os.path.dirname(os.path.dirname(dataflow.__file__))
SIZE = 6
QUICK_POINTS = 4  # of each class
QUICK_CALLS = 2
FULL_ENDS = 3  # of each scenario
ERRORS = {"EMFILE": no_descriptor, "MemoryError": MemoryError}
EXPECTED = [[k] for k in range(SIZE)]


def numbers():
    return DataFromList(EXPECTED, shuffle=False)


def same(dp):
    return dp


async def same_later(dp, value):
    await asyncio.sleep(0)
    return dp


@contextlib.asynccontextmanager
async def entered():
    yield None


async def elements():
    for dp in EXPECTED:
        yield dp


def files():
    cache = os.path.join(os.path.dirname(Senders.address.removeprefix("ipc://")), "files")
    return FetchData(DataFromList([[__file__], [os.__file__]], shuffle=False), cache=cache, timeout=LIMIT)


def two_passes(df):
    """Two passes, of which the first is broken off."""
    for _ in df:
        break
    return [[*map(int, dp)] for dp in df]


def first_of_endless(df):
    return [[*map(int, dp)] for dp in islice(df, SIZE)]


def one_of_them(df):
    """Whether a datapoint comes: a loop of a default runner or map continues where the last one was left."""
    return [int(k) for k in next(iter(df))] in EXPECTED


def batches(df):
    return [dp[0].tolist() for dp in df]


def arange():
    return np.arange(5)


def results(background):
    return [background.get(LIMIT)[0].tolist() for _ in range(3)]


def fill(handles, shapes, number):
    SharedMem.shm2ndarray(handles[0], shapes[0])[:] = number


def jobs(queue):
    for number in range(2):
        queue.startproc([np.int64], [(3,)], fill, (number,))
    return [queue.get(LIMIT)[0].tolist() for _ in range(2)]


class AtOnce(WorkerCount):
    """Gives work to two workers as soon as it is asked."""

    def next(self, load):
        self.num = 2
        return self.num


class AddsWorker(ParallelData):
    def _df_worker_count(self, links):
        return AtOnce(1, 2, 2)


@pytest.fixture(scope="module", autouse=True)
def no_intervals():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scaling, "_SECONDS", 1e-9)  # not 0: an interval has a rate
        patched.setattr(scaling, "_DATAPOINTS", 0)
        yield


SENDER = """
import sys
from dataflow import DataFromList, DataFlowError, send_dataflow_zmq
while True:
    try:
        df = DataFromList([[k] for k in range(6)], shuffle=False)
        send_dataflow_zmq(df, sys.argv[1], bind=True, timeout=120, heartbeat=1)
    except DataFlowError:
        pass
"""


class Senders:
    """A program that sends the numbers to every peer that connects. Interpreters that are started here know it, too."""

    variable = "DATAFLOW_TEST_SENDERS"
    address = os.environ.get(variable, "")


def receiver():
    return RemoteDataZMQ(Senders.address, bind=False, num_senders=1, timeout=LIMIT, heartbeat=1)


def received(df):
    return [[int(k) for k in dp] for dp in df]


@pytest.fixture(scope="module", autouse=True)
def senders():
    Senders.address = f"ipc://{tempfile.mkdtemp(prefix='df-sender')}/s"
    with subprocess.Popen(
        [sys.executable, "-c", SENDER, Senders.address], env={**os.environ, "PYTHONPATH": ROOT}
    ) as program:
        yield
        program.kill()
    shutil.rmtree(os.path.dirname(Senders.address.removeprefix("ipc://")))


def default_and_strict(name, make, use=list):
    """The scenario of a runner or map with one worker in default mode, and that of a strict one with two."""
    return (
        Scenario(name, lambda: make(1, timeout=LIMIT), use, EXPECTED, again=one_of_them),
        Scenario(f"{name}-strict", lambda: make(2, strict=True, timeout=LIMIT), two_passes, EXPECTED),
    )


SCENARIOS = (
    *default_and_strict("process", lambda num, **more: MultiProcessRunner(numbers(), 2, num, **more)),
    *default_and_strict("zmq", lambda num, **more: MultiProcessRunnerZMQ(numbers(), num, **more)),
    Scenario("auto", lambda: AddsWorker(numbers(), max_workers=2, timeout=LIMIT), two_passes, EXPECTED),
    *default_and_strict("thread", lambda num, **more: MultiThreadRunner(numbers, 2, num, **more)),
    *default_and_strict(
        "process-map",
        lambda num, **more: MultiProcessMapData(numbers(), num, same, buffer_size=4, **more),
        first_of_endless,
    ),
    *default_and_strict(
        "thread-map",
        lambda num, **more: MultiThreadMapData(numbers(), num, same, buffer_size=4, **more),
        first_of_endless,
    ),
    Scenario(
        "map-and-batch",
        lambda: MultiProcessMapAndBatchData(numbers(), 2, same, 3, buffer_size=4, strict=True, timeout=LIMIT),
        batches,
        [[0, 1, 2], [3, 4, 5]],
    ),
    Scenario(
        "coroutines",
        lambda: AsyncMapData(numbers(), same_later, 2, setup=entered, timeout=LIMIT),
        two_passes,
        EXPECTED,
    ),
    Scenario("files", files, lambda df: [len(dp[0]) > 0 for dp in df], [True, True]),
    Scenario("async-iterable", lambda: DataFromAsyncIterable(elements), two_passes, EXPECTED),
    Scenario("background", lambda: BackgroundProc(arange), results, [[0, 1, 2, 3, 4]] * 3, BackgroundProc.reset),
    Scenario("queue", SharedQ, jobs, [[0, 0, 0], [1, 1, 1]], goes_on=False),
    Scenario("receiver", receiver, received, EXPECTED, goes_on=False),
)
QUICK_SCENARIOS = [  # one for each class, default or strict
    scenario
    for scenario in SCENARIOS
    if scenario.name not in {"process-strict", "zmq", "thread-strict", "process-map-strict", "thread-map"}
]


@cache
def points(scenario):
    return points_of(scenario)


@cache
def shares():
    """Which scenario is interrupted at which lines: each line in two of those that come to it, the next in others.

    In one of the two the flow is closed then, in the other used again; in turn, if only one scenario comes to a line.
    """
    reached, chosen = defaultdict(list), defaultdict(list)
    for scenario in SCENARIOS:
        for point in points(scenario):
            reached[point].append(scenario)
    for (file, line), scenarios in reached.items():
        for k in range(min(len(scenarios), 2)):
            scenario = scenarios[(line + k * len(scenarios) // 2) % len(scenarios)]
            chosen[scenario].append(((file, line), (line + k) % 2 == 0))
    return chosen


each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
each_class = pytest.mark.parametrize("scenario", QUICK_SCENARIOS, ids=str)


def interrupt_failures(scenario, cases):
    """Of interrupts at these lines, each with whether the flow is closed then."""
    return failures_of(lambda case: check_interrupt(scenario, case[0], closes=case[1]), cases)


@each_class
def test_ctrl_c_at_any_line_is_raised_and_leaves_nothing(scenario):
    chosen = spread(points(scenario), QUICK_POINTS)
    assert interrupt_failures(scenario, [(point, k % 2 == 0) for k, point in enumerate(chosen)]) == []


@shared_inside
@each_scenario
def test_ctrl_c_at_every_line_is_raised_and_leaves_nothing(scenario):
    assert interrupt_failures(scenario, of_this_run(shares()[scenario])) == []


def left_loop():
    """An iterator over a flow that is in use."""
    left = iter(MultiThreadRunner(numbers, 2, 1))
    next(left)
    return left


@shared_inside
@each_scenario
def test_a_flow_collected_at_every_line_changes_nothing(scenario):
    """Its finaliser defers signals, takes locks and joins threads, wherever Python collects garbage."""
    chosen = [point for point, _ in of_this_run(shares()[scenario])]
    assert failures_of(lambda point: check_collection(scenario, point, left_loop), chosen) == []


def test_after_an_interrupt_while_a_worker_is_added_the_next_loop_works(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    with AddsWorker(numbers(), max_workers=2, timeout=LIMIT) as df:
        with monkeypatch.context() as patched:
            patched.setattr(Supervisor, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(df)
        assert list(df) == EXPECTED


def num_calls(scenario):
    run(scenario)
    refuser = Refuser(1 << 30, no_descriptor())
    with refuser.active():
        run(scenario)
    return refuser.num_calls


@pytest.mark.parametrize(("scenario", "error"), covering(QUICK_SCENARIOS, [*ERRORS]), ids=str)
def test_a_call_that_the_system_refuses_leaves_nothing(scenario, error):
    chosen = spread(range(1, num_calls(scenario) + 1), QUICK_CALLS)
    assert failures_of(lambda number: check_refusal(scenario, number, ERRORS[error]()), chosen) == []


@shared_inside
@pytest.mark.parametrize("error", ERRORS)
@each_scenario
def test_every_call_that_the_system_refuses_leaves_nothing(scenario, error):
    numbers = of_this_run(range(1, num_calls(scenario) + 1))
    assert failures_of(lambda number: check_refusal(scenario, number, ERRORS[error]()), numbers) == []


def check_end(scenario, point):
    """An interpreter that is interrupted at `point`, and closes nothing, ends, and its workers with it."""
    code = "import sys; from tests.support.interrupts import interrupt_here; interrupt_here(*sys.argv[1:])"
    program = subprocess.Popen(
        [sys.executable, "-c", code, __name__, scenario.name, point[0], str(point[1])],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": ROOT, Senders.variable: Senders.address},
    )
    try:
        _, said = program.communicate(timeout=LIMIT)
        # It may never come to this line: what happens depends on time.
        assert program.returncode == 0 or "KeyboardInterrupt" in said, said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
            raise AssertionError("a worker outlives the interpreter")


@pytest.mark.parametrize("scenario", only(SCENARIOS[:1], SCENARIOS[:3]), ids=str)
def test_an_interpreter_that_is_interrupted_ends(scenario):
    every = points(scenario)
    check_end(scenario, every[len(every) // 3])


@pytest.mark.full
@each_scenario
def test_an_interpreter_that_is_interrupted_anywhere_ends(scenario):
    assert failures_of(lambda point: check_end(scenario, point), spread(points(scenario), FULL_ENDS)) == []
