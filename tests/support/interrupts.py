"""Interrupts and failures at every step of a run: what SQLite does with memory that runs out, done with Ctrl-C.

A scenario makes something, uses it and closes it. It is run once to see which lines of ours the main thread executes;
then once for each of these lines, with SIGINT raised as the line is executed first; and once for each call that takes
something from the system, with that call failing. After each of these runs the scenario must leave nothing behind, and
what it has made must be good for another use.
"""

import builtins
import contextlib
import errno
import faulthandler
import gc
import importlib
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import zmq

import dataflow
from dataflow import DataFlow, DataFlowTerminated
from dataflow.protocol.state import state_of
from dataflow.system.interrupts import signals_deferred
from tests.support.leaks import check_nothing_left, snapshot

PACKAGE = os.path.dirname(dataflow.__file__) + os.sep
SOON = 30.0  # seconds: two are promised, on a machine that has nothing else to do

IN_FINALISERS = (
    "protocol/event_loop.py",
    "system/interrupts.py",
    "runners/maps.py",
    "runners/worker_node.py",
    "runners/runners.py",
    "protocol/passes.py",
    "protocol/state.py",
    "transforms/awaiting.py",
)
"""Where a finaliser begins and has not deferred signals yet, or a dropped generator runs lines without a call: what is
raised there Python reports and forgets. (CPython itself runs no handler there.)"""

Point = tuple[str, int]
"""File, below the package, and line."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """Something to be made, used and closed.

    Attributes:
        name: Its name.
        make: Makes it.
        use: Uses it, and gives what comes of that.
        expected: What has to come.
        recover: Prepares it for another use after it was closed.
        goes_on: Whether it may be used again after an interrupt without being closed.
        again: Uses it like that, and says whether all is well; None if `use` gives the same as before.
    """

    name: str
    make: Callable[[], Any]
    use: Callable[[Any], Any]
    expected: Any
    recover: Callable[[Any], Any] = lambda thing: None
    goes_on: bool = True
    again: Callable[[Any], bool] | None = None

    def __str__(self) -> str:
        return self.name


class Tracer:
    """Calls `reached` with each line of ours that this thread of this process executes, once for each line."""

    def __init__(self, reached: Callable[[Point], bool], file: str = "") -> None:
        self._reached = reached  # whether to go on
        self._prefix = PACKAGE + file
        self._pid = os.getpid()
        self._seen: set[tuple[Any, int]] = set()
        self._ours: dict[Any, bool] = {}

    def __enter__(self) -> None:
        self._outer = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._outer)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = code.co_filename.startswith(self._prefix)
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if event != "line" or line in self._seen or os.getpid() != self._pid:
            return self._line
        self._seen.add(line)
        if not self._reached((line[0].removeprefix(PACKAGE), line[1])):
            sys.settrace(self._outer)
            return None
        return self._line


def act_at_each_line(run: Callable[[Callable[[Callable[[], object]], Tracer]], object], file: str, least: int) -> None:
    """Call `run` once to see to which lines it comes, and then once for each of them.

    Args:
        run: Gets a function, with which it traces: in ``with traced(act):``, `act` is called at the line.
        file: The lines are those of this file, below the package.
        least: `act` must have been called at so many.
    """
    points: list[Point] = []
    acted: list[Point] = []
    run(lambda act: Tracer(lambda point: points.append(point) is None, file))
    for chosen in points:

        def traced(act: Callable[[], object], chosen: Point = chosen) -> Tracer:
            def reached(point: Point) -> bool:
                if point == chosen:
                    act()
                    acted.append(point)
                return point != chosen

            return Tracer(reached, file)

        run(traced)
    assert len(acted) >= least


def points_of(scenario: Scenario) -> list[Point]:
    """The lines of ours that the main thread executes, in the order in which it comes to them."""
    points: list[Point] = []

    def reached(point: Point) -> bool:
        points.append(point)
        return True

    run(scenario)  # imports and permanent caches are filled from now on
    with Tracer(reached):
        run(scenario)
    return points


def run(scenario: Scenario) -> None:
    """Make, use and close."""
    thing = scenario.make()
    assert scenario.use(thing) == scenario.expected
    thing.close()


def spread(points: Sequence[Any], count: int) -> list[Any]:
    """So many of them, evenly spread, the first and the last among them."""
    if len(points) <= count:
        return list(points)
    return [points[k * (len(points) - 1) // (count - 1)] for k in range(count)]


class Interrupter:
    """Raises SIGINT as the main thread comes to a line."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self.fired: float | None = None  # when
        self.tracer = Tracer(self._reached, point[0])

    def _reached(self, point: Point) -> bool:
        if point != self._point:
            return True
        self.fired = time.monotonic()
        signal.raise_signal(signal.SIGINT)
        return False


@contextlib.contextmanager
def hang_is_an_error(seconds: float) -> Iterator[None]:
    """Interrupt what has not ended after `seconds`: again and again, since the first time may be deferred."""

    def give_up(signum: int, frame: Any) -> None:
        raise AssertionError(f"hangs: not ended after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 3)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def lost_exceptions() -> Iterator[list[Any]]:
    """What is raised where nothing can be raised: in callbacks of weak references, and where garbage is collected."""
    lost: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda what: lost.append((repr(what.exc_value), repr(what.object)))
    try:
        yield lost
    finally:
        sys.unraisablehook = before


def check_interrupt(scenario: Scenario, point: Point, *, closes: bool = True) -> bool:
    """Interrupt the scenario at `point`, and see that all is well; whether the point was reached.

    Args:
        scenario: What is run.
        point: Where.
        closes: Whether what was interrupted is closed before it is used again; else what is no flow may refuse to be
            used.
    """
    gc.collect()
    before = snapshot()
    interrupter = Interrupter(point)
    thing = None
    caught = False
    with lost_exceptions() as lost, hang_is_an_error(SOON):
        try:
            with interrupter.tracer:
                thing = scenario.make()
                assert scenario.use(thing) == scenario.expected
                thing.close()
                if interrupter.fired is not None:  # in a finaliser: it comes a moment later
                    thing = None
                    threading.Event().wait(1)
        except KeyboardInterrupt:
            caught = True
            assert interrupter.fired is not None and time.monotonic() - interrupter.fired < SOON
    with signals_deferred():  # a handler that was left in its place by an interrupt is put back by the next section
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "another handler is left"
    assert caught or interrupter.fired is None or (lost and point[0] in IN_FINALISERS), (
        f"the interrupt was lost: {lost}"
    )
    thing = thing or scenario.make()
    with hang_is_an_error(SOON):
        if closes or not scenario.goes_on:
            thing.close()
            check_nothing_left(before)
            scenario.recover(thing)
            assert scenario.use(thing) == scenario.expected
        else:
            try:
                assert scenario.use(thing) == scenario.expected if scenario.again is None else scenario.again(thing)
            except DataFlowTerminated:
                assert not isinstance(thing, DataFlow), "the next iteration does not work"
                thing.close()
                scenario.recover(thing)
                assert scenario.use(thing) == scenario.expected
        assert not isinstance(thing, DataFlow) or state_of(thing).ready, "it was used without a reset"
        thing.close()
    del thing
    check_nothing_left(before)
    return interrupter.fired is not None


def check_collection(scenario: Scenario, point: Point, make: Callable[[], Iterator[Any]]) -> None:
    """Collect an iterator, made by `make`, that only a cycle holds, as the scenario comes to `point`: all is well."""
    gc.collect()
    before = snapshot()
    cycle: list[Any] = [make()]
    cycle.append(cycle)
    held = [cycle]
    del cycle

    def reached(now: Point) -> bool:
        if now == point:
            held.clear()
            gc.collect()
        return now != point

    with hang_is_an_error(SOON), Tracer(reached):
        run(scenario)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "another handler is left"
    held.clear()
    check_nothing_left(before)


# -- what the system refuses -------------------------------------------------------------------------------------------

CALLS: tuple[tuple[Any, str], ...] = (
    (builtins, "open"),
    (os, "open"),
    (os, "pipe"),
    (os, "dup"),
    (os, "memfd_create"),
    (os, "eventfd"),
    (os, "fork"),
    (mmap, "mmap"),
    (socket, "socketpair"),
    (BaseProcess, "start"),
    (threading.Thread, "start"),
    (zmq, "Context"),
    (zmq.Context, "socket"),
)
"""What takes something from the system."""


class Refuser:
    """Lets the k-th call of those in `CALLS` that this process makes from our code raise an error."""

    def __init__(self, number: int, error: BaseException) -> None:
        self._number = number
        self.num_calls = 0
        self._error = error
        self._pid = os.getpid()
        self.refused = ""  # the call

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        before = [(owner, name, getattr(owner, name)) for owner, name in CALLS]
        for owner, name, function in before:
            setattr(owner, name, self._replacing(name, function))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def _replacing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == self._pid and not self.refused and _is_of_ours():
                self.num_calls += 1
                if self.num_calls == self._number:
                    self.refused = name
                    raise self._error
            return function(*args, **kwargs)

        return call


def _is_of_ours() -> bool:
    """Whether code of the package has asked for it, itself or through a library; not the tests' own code."""
    frame: FrameType | None = sys._getframe(2)
    if frame is not None and frame.f_code.co_name == "_try_to_open":  # it only tries them
        return False
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def no_descriptor() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def check_refusal(scenario: Scenario, number: int, error: BaseException) -> bool:
    """Let the `number`-th call fail, and see that all is well; whether there were so many calls."""
    gc.collect()
    before = snapshot()
    refuser = Refuser(number, error)
    thing = None
    raised = ""
    with hang_is_an_error(SOON):
        try:
            with refuser.active():
                thing = scenario.make()
                assert scenario.use(thing) == scenario.expected
                thing.close()
        except type(error) as found:
            raised = repr(found)
            if getattr(found, "errno", errno.EMFILE) != errno.EMFILE:
                raise
    error.__traceback__ = error.__context__ = None  # whose frames would keep what they made, though it was tolerated
    thing = thing or scenario.make()
    with hang_is_an_error(SOON):
        thing.close()
        check_nothing_left(before)
        scenario.recover(thing)
        assert scenario.use(thing) == scenario.expected, raised
        thing.close()
    del thing
    check_nothing_left(before)
    return bool(refuser.refused)


def failures_of(check: Callable[[Any], Any], cases: Sequence[Any], most: int = 3) -> list[str]:
    """What is wrong with the first cases with which something is. Each has alarms of its own."""
    # All together take minutes, and the dump of a thread that runs may crash.
    faulthandler.cancel_dump_traceback_later()
    found: list[str] = []
    for case in cases:
        try:
            check(case)
        except Exception as error:
            found.append(f"{case}: {type(error).__name__}: {error}")
            if len(found) == most:
                break
    return found


# -- in an interpreter of its own --------------------------------------------------------------------------------------


def interrupt_here(where: str, name: str, file: str, line: str) -> None:
    """Run a scenario, interrupt it, close nothing, and end as a program that was interrupted does."""
    scenarios: Sequence[Scenario] = importlib.import_module(where).SCENARIOS
    scenario = next(scenario for scenario in scenarios if scenario.name == name)
    with Interrupter((file, int(line))).tracer:
        run(scenario)
