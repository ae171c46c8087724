"""The vocabulary of disasters: what can go wrong inside a worker, and what its consumer must see.

A fault happens in one worker of a runner, after `GOOD` good datapoints, or while the flow is reset; the other workers
never end. Every datapoint says whose it is and carries an array by which a torn one would show.
"""

import contextlib
import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest

from dataflow import DataFlow, ProxyDataFlow, WorkerDied, WorkerError, worker_info
from dataflow import TimeoutError as DataFlowTimeout
from dataflow.protocol.state import state_of
from tests.support.waits import LIMIT, wait_until

GOOD = 5  # datapoints before the fault
SIZE = 1000  # numbers in the array of a datapoint


class TwoArguments(Exception):
    """Cannot be made again from its args."""

    def __init__(self, code: int, path: str) -> None:
        super().__init__(f"code {code} at {path}")
        self.code = code
        self.path = path


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Speechless(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class OneWay:
    """Can be pickled, and cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ("arrived damaged",)


def _refuse(text: str) -> None:
    raise ValueError(text)


class Holder(DataFlow):
    """A flow that cannot be pickled."""

    def __init__(self) -> None:
        self.handle = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        yield [0]


# -- what happens ------------------------------------------------------------------------------------------------------


def raise_value_error() -> None:
    raise ValueError("no such label: 17")


def raise_two_arguments() -> None:
    raise TwoArguments(7, "/data/x")


def raise_unicode_error() -> None:
    b"\xff".decode("utf-8")


def raise_key_error() -> None:
    {}["label"]


def raise_local() -> None:
    class Local(Exception):
        pass

    raise Local("only here")


def raise_locked() -> None:
    raise Locked("holds a lock")


def raise_speechless() -> None:
    raise Speechless


def yield_a_lock() -> Any:
    return [0, threading.Lock()]


def yield_what_does_not_arrive() -> Any:
    return [0, 0, OneWay()]


def exit_0() -> None:
    sys.exit(0)


def exit_3() -> None:
    sys.exit(3)


def exit_with_text() -> None:
    sys.exit("cannot go on")


def leave_at_once() -> None:
    os._exit(1)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    faulthandler.disable()  # a forked worker has that of pytest
    os.kill(os.getpid(), signal.SIGSEGV)


def abort() -> None:
    faulthandler.disable()
    signal.raise_signal(signal.SIGABRT)


def stop() -> None:
    # Into this thread: it would go on until another one has got what is sent to the process.
    signal.raise_signal(signal.SIGSTOP)


RELEASE = threading.Event()  # set by `released`, for threads that cannot be killed
BLOCKED = set[int]()  # identifiers of the threads that wait for it


def block() -> None:
    BLOCKED.add(threading.get_ident())
    RELEASE.wait(2 * LIMIT)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One disaster.

    Attributes:
        name: Its name.
        strike: Makes it happen; what it returns is given out as a datapoint.
        expected: Type of the error that the consumer gets.
        texts: What the error must say, in addition to the worker's name.
        in_reset: It happens in `reset_state`, before the first datapoint.
        complete: Every earlier datapoint arrives; else an unbroken prefix.
        attributes: What the error must carry.
        cause: What the printed cause must contain; empty where there is none.
        timeout: Seconds that the consumer waits for a datapoint: few where this is what goes wrong.
        in_threads: It ends in the same error if the worker is a thread.
        in_processes: It makes sense if the worker is a process.
    """

    name: str
    strike: Callable[[], Any]
    expected: type[BaseException]
    texts: tuple[str, ...] = ()
    in_reset: bool = False
    complete: bool = True
    attributes: tuple[tuple[str, Any], ...] = ()
    cause: str = ""
    timeout: float = LIMIT
    in_threads: bool = True
    in_processes: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def is_lateness(self) -> bool:
        """Whether no worker fails, and the consumer only waits too long: the flow stays as it is."""
        return self.expected is DataFlowTimeout


def died(name: str, strike: Callable[[], Any], happened: str, cure: str, exitcode: int, **more: Any) -> Fault:
    """A worker that ends without an exception."""
    attributes = (("exitcode", exitcode), *more.pop("attributes", ()))
    return Fault(name, strike, WorkerDied, (happened, cure), attributes=attributes, **more)


EXIT = "Raise an exception instead"
CRASH = "faulthandler"

FAULTS = (
    Fault("exception", raise_value_error, ValueError, ("no such label: 17",), cause="raise_value_error"),
    Fault("exception-in-reset", raise_value_error, ValueError, ("17",), in_reset=True, cause="reset_state"),
    Fault(
        "two-arguments",
        raise_two_arguments,
        TwoArguments,
        ("code 7 at /data/x",),
        attributes=(("code", 7), ("path", "/data/x")),
        cause="raise_two_arguments",
    ),
    Fault("unicode", raise_unicode_error, UnicodeDecodeError, attributes=(("object", b"\xff"), ("start", 0))),
    Fault("key", raise_key_error, KeyError, attributes=(("args", ("label",)),)),
    Fault("local-class", raise_local, WorkerError, ("Local", "only here"), cause="raise_local", in_threads=False),
    Fault("unpicklable", raise_locked, WorkerError, ("Locked", "holds a lock"), cause="raise_locked", in_threads=False),
    Fault("speechless", raise_speechless, Speechless, cause="raise_speechless"),
    Fault("lock-in-datapoint", yield_a_lock, TypeError, ("component 1", f"datapoint {GOOD}"), in_threads=False),
    Fault(
        "one-way-datapoint",
        yield_what_does_not_arrive,
        ValueError,
        ("arrived damaged", f"datapoint {GOOD}", "unpickled"),
        in_threads=False,
    ),
    died("exit-0", exit_0, "exit code 0", EXIT, 0, cause="exit_0"),
    died("exit-3", exit_3, "exit code 3", EXIT, 3, cause="exit_3"),
    died("exit-text", exit_with_text, "exit code 1", EXIT, 1, cause="cannot go on"),
    died("exit-in-reset", exit_3, "exit code 3", EXIT, 3, in_reset=True, cause="reset_state"),
    died("_exit", leave_at_once, "exit code 1", EXIT, 1, complete=False, in_threads=False),
    died("SIGKILL", kill, "SIGKILL", "Lower num_proc", -signal.SIGKILL, complete=False, in_threads=False),
    died("SIGKILL-in-reset", kill, "SIGKILL", "dmesg", -9, in_reset=True, in_threads=False),
    died("SIGSEGV", crash, "SIGSEGV", CRASH, -signal.SIGSEGV, complete=False, in_threads=False),
    died("SIGABRT", abort, "SIGABRT", CRASH, -signal.SIGABRT, complete=False, in_threads=False),
    Fault("SIGSTOP", stop, DataFlowTimeout, ("stopped by a signal",), complete=False, timeout=0.2, in_threads=False),
    Fault("blocked", block, DataFlowTimeout, ("timeout=",), timeout=0.2, in_processes=False),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


class Faulty(DataFlow):
    """[worker, number, array] endlessly; the fault happens in worker `victim`.

    Args:
        name: Which fault.
        victim: Index of the worker.
        alone: The other workers fall silent when they have given `GOOD` datapoints: a timeout is one of all workers.
        good: Datapoints before the fault.
        size: Numbers in each array.
    """

    def __init__(self, name: str, victim: int = 0, *, alone: bool = False, good: int = GOOD, size: int = SIZE) -> None:
        self.name = name
        self.victim = victim
        self.alone = alone
        self.good = good
        self.size = size

    @property
    def strikes(self) -> bool:
        here = worker_info()
        return here is not None and here.index == self.victim

    def reset_state(self) -> None:
        fault = BY_NAME[self.name]
        if fault.in_reset and self.strikes:
            fault.strike()

    def __iter__(self) -> Iterator[Any]:
        here = worker_info()
        k = 0
        while True:
            if k == self.good and (self.strikes or self.alone):
                dp = BY_NAME[self.name].strike()
                if dp is not None:
                    yield dp
            yield [here.index if here else 0, k, np.full(self.size, k)]
            k += 1


def workers_of(df: DataFlow) -> list[Any]:
    """The workers of a runner or map that has been started."""
    return list(state_of(df).resource.workers)


def processes_of(df: DataFlow) -> list[psutil.Process]:
    """Those of its workers that run."""
    found = []
    for worker in workers_of(df):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends meanwhile
            if not worker.has_ended():
                found.append(psutil.Process(worker.pid))
    return found


def all_stopped(df: DataFlow) -> bool:
    """Whether a signal has stopped every worker of a runner or map that has been started."""
    return all(process.status() == psutil.STATUS_STOPPED for process in processes_of(df))


class WhenAllAreStopped(ProxyDataFlow):
    """Asks its input, a runner, for nothing before all of its workers are stopped: no timeout runs before that."""

    def __iter__(self) -> Iterator[Any]:
        wait_until(lambda: all_stopped(self.ds), LIMIT, "a worker is not stopped")
        yield from self.ds


def struck(df: DataFlow, fault: Fault) -> tuple[list[Any], BaseException]:
    """The datapoints that came before the error, and the error."""
    datapoints: list[Any] = []
    with pytest.raises(fault.expected) as caught, deadline(LIMIT):
        datapoints.extend(df)  # which keeps what comes before an exception
    return datapoints, caught.value


class Interrupted(Exception):
    """What a signal handler raises."""


def is_interrupted_at(k: int, action: Callable[[], object]) -> bool:
    """Call `action`; at the `k`-th beginning or end of a call in it comes a signal, whose handler raises `Interrupted`.

    Returns False if there are fewer. In the main thread only.
    """
    events = itertools.count()

    def interrupt(frame: object, event: str, arg: object) -> None:
        if next(events) == k:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_interrupted)
    try:
        sys.setprofile(interrupt)
        action()
        sys.setprofile(None)
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)
    return False


def raise_interrupted(signum: int, frame: object) -> None:
    raise Interrupted


@pytest.fixture
def released() -> Iterator[None]:
    """Lets go, at the end, of threads that are blocked."""
    RELEASE.clear()
    BLOCKED.clear()
    yield
    RELEASE.set()


def check_unbroken(datapoints: list[Any]) -> dict[int, int]:
    """Check that each worker's datapoints came in order, whole, without a gap; how many came of each."""
    counts: dict[int, int] = {}
    for worker, k, array in datapoints:
        assert k == counts.get(worker, 0), f"worker {worker}: {k} came after {counts.get(worker, 0) - 1}"
        assert (array == k).all(), f"worker {worker}: datapoint {k} is torn"
        counts[worker] = k + 1
    return counts


def reported(error: BaseException) -> str:
    """All that an error says: its text and its notes."""
    try:
        text = str(error)
    except RuntimeError:
        text = ""
    return "\n".join([text, *getattr(error, "__notes__", ())])


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Fail what has not ended after `seconds`, wherever it hangs. In the main thread only; may be nested."""

    def give_up(signum: int, frame: Any) -> None:
        raise AssertionError(f"hangs: not ended after {seconds} seconds")

    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, give_up)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, began + outer - time.monotonic()))
