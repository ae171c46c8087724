"""Every fault in every runner under every start method: the right error, in time, and nothing left behind."""

import itertools
import traceback
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from dataflow import DataFlow, DataFlowTerminated, MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner
from dataflow.errors import NotPicklable
from tests.support.faults import FAULTS, GOOD, RELEASE, Fault, Faulty, Holder, check_unbroken, deadline, told
from tests.support.waits import wait_until

LIMIT = 10.0  # seconds; it is under 2 on a machine that has nothing else to do
METHODS = ("fork", "forkserver", "spawn")


def zmq(df: DataFlow, num: int, **more: Any) -> DataFlow:
    return MultiProcessRunnerZMQ(df, num, **more)


def process(df: DataFlow, num: int, **more: Any) -> DataFlow:
    return MultiProcessRunner(df, 10, num, **more)


def zmq_in_zmq(df: DataFlow, num: int, **more: Any) -> DataFlow:
    return zmq(zmq(df, num, **more), 1, context=more.get("context"))


def zmq_in_process(df: DataFlow, num: int, **more: Any) -> DataFlow:
    return process(zmq(df, num, **more), 1, context=more.get("context"))


PLACES = {"zmq": zmq, "process": process, "zmq-in-zmq": zmq_in_zmq, "zmq-in-process": zmq_in_process}


@dataclass(frozen=True)
class Case:
    fault: Fault
    place: str
    method: str
    num: int

    def make(self) -> DataFlow:
        flow = Faulty(self.fault.name, self.num - 1, alone=self.fault.timeout < 1)
        if self.place == "thread":
            return MultiThreadRunner(
                lambda: Faulty(self.fault.name, self.num - 1, alone=self.fault.timeout < 1),
                10,
                self.num,
                timeout=self.fault.timeout,
            )
        return PLACES[self.place](flow, self.num, timeout=self.fault.timeout, context=self.method)

    def __str__(self) -> str:
        return f"{self.fault}-{self.place}-{self.method}-{self.num}"


def cases() -> list[Any]:
    """The product. Quick are all of it under fork, and so many others that every pair of choices occurs."""
    found = []
    turns = itertools.cycle(itertools.product((1, 2), PLACES))
    processes = [fault for fault in FAULTS if fault.in_processes]
    quick = {(fault, method, *reversed(next(turns))) for method in METHODS[1:] for fault in processes}
    for fault, method, place, num in itertools.product(processes, METHODS, PLACES, (1, 2)):
        marks: list[pytest.MarkDecorator] = []
        if method != "fork":
            marks.append(pytest.mark.slow)
            if (fault, method, place, num) not in quick:
                marks.append(pytest.mark.full)
        elif fault.timeout < 1:
            marks.append(pytest.mark.slow)
        case = Case(fault, place, method, num)
        found.append(pytest.param(case, id=str(case), marks=marks))
    for fault, num in itertools.product(FAULTS, (1, 2)):
        if fault.in_threads:
            case = Case(fault, "thread", "thread", num)
            found.append(pytest.param(case, id=str(case)))
    return found


def struck(runner: DataFlow, fault: Fault) -> tuple[list[Any], BaseException]:
    """The datapoints that came before the error, and the error."""
    datapoints: list[Any] = []
    with pytest.raises(fault.expected) as caught, deadline(LIMIT):
        datapoints.extend(runner)  # which keeps what comes before an exception
    return datapoints, caught.value


def check_error(case: Case, error: BaseException) -> None:
    fault = case.fault
    assert type(error) is fault.expected
    text = told(error)
    for expected in (f"worker {case.num - 1} of {case.num}" if fault.timeout > 1 else "worker 0", *fault.texts):
        assert expected in text or expected.replace(" of ", ": ") in text, f"{expected!r} is not in {text!r}"
    for name, value in fault.attributes:
        if case.place != "thread" or name != "exitcode":
            assert getattr(error, name) == value
    if fault.cause:
        assert fault.cause in "".join(traceback.format_exception(error))


@pytest.fixture(autouse=True)
def released():
    RELEASE.clear()
    yield
    RELEASE.set()


@pytest.mark.parametrize("case", cases())
def test_a_disaster_ends_in_the_right_error(case):
    fault = case.fault
    before = set(psutil.Process().children(recursive=True))
    runner = case.make()
    datapoints, error = struck(runner, fault)
    check_error(case, error)
    count = check_unbroken(datapoints).get(case.num - 1, 0)
    expected = 0 if fault.in_reset else GOOD
    assert count == expected if fault.complete and fault.timeout > 1 else count <= expected

    if fault.timeout > 1:  # a flow that is only late stays as it is
        gone = lambda: not set(psutil.Process().children(recursive=True)) - before  # noqa: E731
        wait_until(gone, 5, "a worker is left")
        with pytest.raises(DataFlowTerminated, match=rf"failed before, with .*{fault.expected.__name__}") as caught:
            next(iter(runner))
        assert caught.value.__cause__ is error

    if case.method != "spawn" and case.num == 1 and fault.timeout > 1:
        runner.reset_state()  # starts afresh, and so does the fault
        if fault.in_reset or not fault.complete:
            struck(runner, fault)
        else:
            with deadline(LIMIT):
                assert next(iter(runner))[1] == 0
    RELEASE.set()
    with deadline(LIMIT):
        runner.close()


@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.slow]) for m in METHODS[1:]])
@pytest.mark.parametrize("place", PLACES)
def test_a_flow_that_cannot_be_sent_is_refused_by_node_and_attribute(place, method):
    runner = PLACES[place](Holder(), 2, context=method)
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


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("place", ["zmq", "process"])
def test_what_was_sent_before_a_failure_arrives_however_slow_the_consumer_is(place, name):
    fault = next(fault for fault in FAULTS if fault.name == name)
    before = set(psutil.Process().children(recursive=True))
    runner = MultiProcessRunnerZMQ(Faulty(name), 1, 100) if place == "zmq" else MultiProcessRunner(Faulty(name), 100, 1)
    datapoints = []
    with pytest.raises(fault.expected), deadline(LIMIT):  # noqa: PT012
        for dp in runner:
            if not datapoints and name != "one-way-datapoint":
                (worker,) = set(psutil.Process().children(recursive=True)) - before
                wait_until(lambda: worker.status() == psutil.STATUS_ZOMBIE, 5, "the worker does not end")  # noqa: B023
            datapoints.append(dp)
    assert check_unbroken(datapoints) == {0: GOOD}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exception", "exit-3", "SIGKILL"])
@pytest.mark.parametrize("place", ["zmq", "process"])
def test_a_hundred_megabytes_that_are_still_queued_arrive_before_the_failure(place, name):
    fault = next(fault for fault in FAULTS if fault.name == name)
    flow = Faulty(name, good=200, size=1 << 16)
    runner = MultiProcessRunnerZMQ(flow, 1, 200) if place == "zmq" else MultiProcessRunner(flow, 200, 1)
    datapoints = []
    with pytest.raises(fault.expected), deadline(LIMIT):
        datapoints.extend(runner)
    counts = check_unbroken(datapoints)
    assert counts == {0: 200} if fault.complete else counts.get(0, 0) <= 200
