"""Every fault in the function of every parallel map, strict or not: the right error, in time, nothing left behind."""

import itertools
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest

from dataflow import (
    DataFlow,
    DataFlowTerminated,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiThreadMapData,
    worker_info,
)
from dataflow.errors import NotPicklable
from tests.support.fakes import METHODS, Forever
from tests.support.faults import (
    BLOCKED,
    BY_NAME,
    FAULTS,
    GOOD,
    RELEASE,
    SIZE,
    Fault,
    all_stopped,
    deadline,
    reported,
    struck,
)
from tests.support.products import only
from tests.support.waits import LIMIT, wait_until

pytestmark = pytest.mark.usefixtures("released")


class FaultyFunction:
    """[k] becomes [k, array]; the fault happens at [GOOD], and, where it is one of all workers, ever after."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, dp: Any) -> Any:
        fault = BY_NAME[self.name]
        if not fault.in_reset and (dp[0] == GOOD or (dp[0] > GOOD and fault.is_lateness)):
            made = fault.strike()
            if made is not None:
                return made
        return [dp[0], np.full(SIZE, dp[0])]


class FaultyStart:
    """The fault happens when the last worker is prepared."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> None:
        here = worker_info()
        if here is not None and here.index == here.count - 1:
            BY_NAME[self.name].strike()


@dataclass(frozen=True)
class Case:
    fault: Fault
    strict: bool
    method: str  # "thread" for threads
    num: int

    def make(self) -> DataFlow:
        name = self.fault.name
        more = {"strict": self.strict, "timeout": self.fault.timeout, "buffer_size": 20}
        if self.fault.in_reset:
            more["worker_init"] = FaultyStart(name)
        if self.method == "thread":
            return MultiThreadMapData(Forever(), self.num, FaultyFunction(name), **more)
        return MultiProcessMapData(Forever(), self.num, FaultyFunction(name), context=self.method, **more)

    def __str__(self) -> str:
        return f"{self.fault}-{'strict' if self.strict else 'default'}-{self.method}-{self.num}"


def cases() -> list[Any]:
    """Every fault in each kind of map under each start method, with one worker or with two in turn.

    Quick are strict maps of two workers and default ones of one: for each fault one in threads, the other under fork.
    """
    found = []
    kinds = enumerate(FAULTS), (True, False), enumerate((*METHODS, "thread"))
    for (k, fault), strict, (m, method) in itertools.product(*kinds):
        if fault.in_threads if method == "thread" else fault.in_processes:
            quick = method in {"fork", "thread"} and strict is ((k + (method == "thread")) % 2 == 0)
            num = 1 + (strict if quick else (k + m + strict) % 2)
            marks = [] if quick else [pytest.mark.full]
            case = Case(fault, strict, method, num)
            found.append(pytest.param(case, id=str(case), marks=marks))
    return found


def check_error(case: Case, error: BaseException) -> None:
    fault = case.fault
    assert type(error) is fault.expected
    text = reported(error)
    for expected in ("worker 0" if fault.is_lateness else f" of {case.num}", *fault.texts):
        assert expected in text or expected.replace("datapoint", "index") in text, f"{expected!r} is not in {text!r}"
    for name, value in fault.attributes:
        if case.method != "thread" or name != "exitcode":
            assert getattr(error, name) == value
    if fault.cause:
        cause = "strike" if fault.in_reset else fault.cause
        assert cause in "".join(traceback.format_exception(error))


def check_datapoints(case: Case, datapoints: list[Any]) -> None:
    fault, found = case.fault, [k for k, _ in datapoints]
    assert all((array == k).all() for k, array in datapoints)
    assert len(set(found)) == len(found)
    if case.strict:
        assert found == list(range(len(found)))
    if not fault.in_reset:  # where the other worker goes on
        assert GOOD not in found
        assert len(found) == GOOD or not (case.strict and fault.complete)


def struck_at_last(case: Case, df: DataFlow) -> tuple[list[Any], BaseException]:
    """The datapoints, and the error. A map that is late stays usable: the same iterator waits again.

    It is asked until all workers stand still, once more, and until all that they have made has come. So its timeout
    need not be longer than workers take to start, to meet what stops them, or to send what they had made before.
    """
    if not case.fault.is_lateness:
        return struck(df, case.fault)
    steps, datapoints, is_over = iter(df), list[Any](), False
    while True:
        with pytest.raises(case.fault.expected) as caught:
            datapoints.extend(steps)  # which keeps what comes before an exception
        if is_over and (len(datapoints) >= GOOD or not (case.strict and case.fault.complete)):
            return datapoints, caught.value
        is_over = len(BLOCKED) == case.num if case.method == "thread" else all_stopped(df)


@pytest.mark.parametrize("case", cases())
def test_a_disaster_ends_in_the_right_error(case):
    fault = case.fault
    before = set(psutil.Process().children(recursive=True))
    df = case.make()
    with deadline(LIMIT):
        datapoints, error = struck_at_last(case, df)
    check_datapoints(case, datapoints)
    check_error(case, error)

    if not fault.is_lateness:  # a flow that is only late stays as it is
        gone = lambda: not set(psutil.Process().children(recursive=True)) - before  # noqa: E731
        wait_until(gone, LIMIT, "a worker is left")
        with pytest.raises(DataFlowTerminated, match=rf"failed before, with .*{fault.expected.__name__}") as caught:
            next(iter(df))
        assert caught.value.__cause__ is error
        if case.num == 1 and not fault.in_reset and fault.complete:
            df.reset_state()  # restarts, and so does the fault
            with deadline(LIMIT):
                assert next(iter(df))[0] == 0 if case.strict else True
    RELEASE.set()
    with deadline(LIMIT):
        df.close()


@pytest.mark.parametrize(
    ("name", "strict"),
    only(
        [("exception", True), ("SIGKILL", False)],
        itertools.product(["exception", "exit-3", "SIGKILL", "_exit"], [True, False]),
    ),
)
def test_so_does_one_in_a_map_that_also_batches(name, strict):
    fault = BY_NAME[name]
    df = MultiProcessMapAndBatchData(Forever(), 2, FaultyFunction(name), 2, strict=strict, timeout=LIMIT)
    datapoints, error = struck(df, fault)
    check_error(Case(fault, strict, "fork", 2), error)
    if strict:
        assert [batch[0].tolist() for batch in datapoints] == [[0, 1], [2, 3]][: len(datapoints)]
        assert len(datapoints) == 2 or not fault.complete
    df.close()


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_function_that_cannot_be_sent_is_refused(method):
    import threading

    lock = threading.Lock()
    df = MultiProcessMapData(Forever(), 2, lambda dp: [dp[0], lock], context=method)
    with pytest.raises(NotPicklable), deadline(LIMIT):
        next(iter(df))
