"""Every fault in every runner under every start method: the right error, in time, and nothing left behind."""

import itertools
import traceback
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import pytest

from dataflow import DataFlow, DataFlowTerminated, MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner
from dataflow.errors import NotPicklable
from tests.support.fakes import METHODS
from tests.support.faults import (
    BY_NAME,
    FAULTS,
    GOOD,
    RELEASE,
    Fault,
    Faulty,
    Holder,
    WhenAllAreStopped,
    check_unbroken,
    deadline,
    processes_of,
    reported,
    struck,
)
from tests.support.products import covering
from tests.support.waits import LIMIT, wait_until

pytestmark = pytest.mark.usefixtures("released")


def zmq(df: DataFlow, num: int, **more: Any) -> DataFlow:
    return MultiProcessRunnerZMQ(df, num, **more)


def process(df: DataFlow, num: int, **more: Any) -> DataFlow:
    return MultiProcessRunner(df, 10, num, **more)


PLACES = {"zmq": (zmq,), "process": (process,), "zmq-in-zmq": (zmq, zmq), "zmq-in-process": (zmq, process)}


def placed(place: str, df: DataFlow, num: int, method: str, fault: Fault | None = None) -> DataFlow:
    """`df` in `num` workers, around which there may be one more."""
    innermost, *around = PLACES[place]
    df = innermost(df, num, timeout=fault and fault.timeout, context=method)
    if fault is not None and fault.is_lateness:
        df = WhenAllAreStopped(df)
    for outer in around:
        df = outer(df, 1, context=method)
    return df


@dataclass(frozen=True)
class Case:
    fault: Fault
    place: str
    method: str
    num: int

    def make(self) -> DataFlow:
        flow = partial(Faulty, self.fault.name, self.num - 1, alone=self.fault.is_lateness)
        if self.place == "thread":
            return MultiThreadRunner(flow, 10, self.num, timeout=self.fault.timeout)
        return placed(self.place, flow(), self.num, self.method, self.fault)

    def __str__(self) -> str:
        return f"{self.fault}-{self.place}-{self.method}-{self.num}"


def cases() -> list[Any]:
    """Every three of a fault, a start method and a place, with one worker or with two in turn.

    Quick is every fault in one place under fork, and every fifth one under forkserver: in a runner in another only one
    of them, which starts a server in each worker. Under spawn, where each worker is an interpreter, two are quick: one
    with a class that the consumer cannot import, and a death.
    """
    places, processes = [*PLACES], [fault for fault in FAULTS if fault.in_processes]
    quick: dict[Any, Any] = {
        (BY_NAME["local-class"], "spawn", "process", 1): (),
        (BY_NAME["SIGKILL"], "spawn", "zmq", 1): (),
    }
    for k, fault in enumerate(processes):
        quick[fault, "fork", places[k % 4], 1 + k // 4 % 2] = ()
        if k % 5 == 1:
            quick[fault, "forkserver", places[k // 5 % 3], 2] = ()
    chosen = quick | {
        (fault, method, place, 1 + (i + j + k) % 2): pytest.mark.full
        for (i, fault), (j, method), (k, place) in itertools.product(*map(enumerate, (processes, METHODS, PLACES)))
        if not quick.keys() & {(fault, method, place, num) for num in (1, 2)}
    }
    found = []
    for (fault, method, place, num), full in chosen.items():
        case = Case(fault, place, method, num)
        found.append(pytest.param(case, id=str(case), marks=full))
    for fault, num in itertools.product(FAULTS, (1, 2)):
        if fault.in_threads:
            case = Case(fault, "thread", "thread", num)
            found.append(pytest.param(case, id=str(case)))
    return found


def check_error(case: Case, error: BaseException) -> None:
    fault = case.fault
    assert type(error) is fault.expected
    text = reported(error)
    for expected in (f"worker {case.num - 1} of {case.num}" if not fault.is_lateness else "worker 0", *fault.texts):
        assert expected in text or expected.replace(" of ", ": ") in text, f"{expected!r} is not in {text!r}"
    for name, value in fault.attributes:
        if case.place != "thread" or name != "exitcode":
            assert getattr(error, name) == value
    if fault.cause:
        assert fault.cause in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("case", cases())
def test_a_disaster_ends_in_the_right_error(case):
    fault = case.fault
    before = set(psutil.Process().children(recursive=True))
    runner = case.make()
    datapoints, error = struck(runner, fault)
    check_error(case, error)
    count = check_unbroken(datapoints).get(case.num - 1, 0)
    expected = 0 if fault.in_reset else GOOD
    assert count == expected if fault.complete and not fault.is_lateness else count <= expected

    if not fault.is_lateness:  # a flow that is only late stays as it is
        gone = lambda: not set(psutil.Process().children(recursive=True)) - before  # noqa: E731
        wait_until(gone, LIMIT, "a worker is left")
        with pytest.raises(DataFlowTerminated, match=rf"failed before, with .*{fault.expected.__name__}") as caught:
            next(iter(runner))
        assert caught.value.__cause__ is error

    if case.method != "spawn" and case.num == 1 and not fault.is_lateness:
        runner.reset_state()  # restarts, and so does the fault
        if fault.in_reset or not fault.complete:
            struck(runner, fault)
        else:
            with deadline(LIMIT):
                assert next(iter(runner))[1] == 0
    RELEASE.set()
    with deadline(LIMIT):
        runner.close()


@pytest.mark.parametrize(("place", "method"), covering([*PLACES], METHODS[1:]))
def test_a_flow_that_cannot_be_sent_is_refused_by_node_and_attribute(place, method):
    runner = placed(place, Holder(), 2, method)
    with pytest.raises(NotPicklable, match=r"Holder\.handle .*reset_state"), deadline(LIMIT):
        next(iter(runner))


def test_threads_pass_on_what_could_not_be_sent_to_a_process():
    names = ("lock-in-datapoint", "one-way-datapoint", "unpicklable", "local-class")
    errors = []
    for name in names[2:]:
        with pytest.raises(Exception, match=r"only here|holds a lock") as caught, deadline(LIMIT):
            list(MultiThreadRunner(lambda name=name: Faulty(name), 10, 1))
        errors.append(type(caught.value).__name__)
    assert errors == ["Locked", "Local"]
    for name in names[:2]:
        with MultiThreadRunner(lambda name=name: Faulty(name), 10, 1) as runner, deadline(LIMIT):
            assert len(list(itertools.islice(runner, 2 * GOOD))) == 2 * GOOD


# -- what was sent before ----------------------------------------------------------------------------------------------


BEFORE = ("exception", "exit-3", "one-way-datapoint")


@pytest.mark.parametrize(("name", "place"), covering(BEFORE, ["zmq", "process"]))
def test_what_was_sent_before_a_failure_arrives_however_slow_the_consumer_is(place, name):
    fault = BY_NAME[name]
    runner = MultiProcessRunnerZMQ(Faulty(name), 1, 100) if place == "zmq" else MultiProcessRunner(Faulty(name), 100, 1)
    datapoints = []
    with pytest.raises(fault.expected), deadline(LIMIT):  # noqa: PT012
        for dp in runner:
            if not datapoints and name != "one-way-datapoint":
                wait_until(lambda: not processes_of(runner), LIMIT, "the worker does not end")
            datapoints.append(dp)
    assert check_unbroken(datapoints) == {0: GOOD}


@pytest.mark.parametrize(("name", "place"), covering(["exception", "exit-3", "SIGKILL"], ["zmq", "process"]))
def test_a_hundred_megabytes_that_are_still_queued_arrive_before_the_failure(place, name):
    fault = BY_NAME[name]
    flow = Faulty(name, good=200, size=1 << 16)
    runner = MultiProcessRunnerZMQ(flow, 1, 200) if place == "zmq" else MultiProcessRunner(flow, 200, 1)
    datapoints = []
    with pytest.raises(fault.expected), deadline(LIMIT):
        datapoints.extend(runner)
    counts = check_unbroken(datapoints)
    assert counts == {0: 200} if fault.complete else counts.get(0, 0) <= 200
