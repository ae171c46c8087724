"""Item failures: records and reports of items that failed, and the budget that decides how many are tolerated.

An item fails when the function of a node raises an `Exception` for it. While the budget (`max_failures=`) lasts, it is
skipped, as if the function had returned None:

    node (MapData, …)            Tolerance: records, logs, judges by the node's own budget
      │ in a worker              FailureReporter: sends a `Report`, in the order of the datapoints around it
    runner or parallel map       Tolerance: all workers together, judged by its own budget
      │ inside another worker    FailureReporter: and so on

A failure that is not judged below is judged above: a map without a budget of its own tolerates what the budget of the
runner above allows.

A job that applies functions calls `failure_reporter()` when it begins. If that returns None, or a reporter whose
`limit` is None or 0, errors are raised. Otherwise, for an item that raised, the job calls
``report_skipped(failure_of(…), error, judged=False)`` of the reporter and yields `HOLE` for it; if the limit is a
fraction, it calls `record_seen` and `report_seen` now and then. `transforms.applying.Applied` does all this.

The judgement is pure: it knows no clock and no process.

Guarantees:

- A number is counted from zero in every pass, and each item counts once, however often it is done: done again after the
  failure of a worker, or addressed twice. Where every worker goes through all items, each pass of each worker has the
  whole number: a budget that is enough without workers is also enough with any number of them. A fraction is of all
  items seen since the start, by all workers together, and at least of 100: a short pass cannot lose all its items.
  What a worker has not reported yet counts as seen, so that a fraction that is enough without workers is with them.
- A `TooManyFailures` is reported only after every failure before it.
- The number of log lines stays small: the first failures are logged individually, later ones each time their number has
  doubled, and only in the process with no runner above it.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final

from dataflow.errors import TooManyFailures

__all__ = [
    "Budget",
    "Failure",
    "FailureReporter",
    "Report",
    "Tolerance",
    "add_note",
    "failure_of",
    "failure_reporter",
    "reporting_to",
    "traceback_of",
]


# -- Reports -----------------------------------------------------------------------------------------------------------


Budget = int | float
"""`max_failures`: a number of items in one pass, or a fraction of all items seen."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One item that was skipped because the function of a node raised.

    Attributes:
        node: The node and its function, as ``MapData(decode)``.
        position: Position of the datapoint in its pass, from 0. Datapoints that a node below has dropped are not
            counted, unless the flow is addressed.
        in_pass: Number of the node's pass, from 0.
        kind: Type of the exception.
        text: Message of the exception.
        traceback: The traceback, as text.
        path: Pairs (worker, number of workers) of every level in which it happened, the outermost first.
    """

    node: str
    position: int
    in_pass: int
    kind: str
    text: str
    traceback: str
    path: tuple[tuple[int, int], ...] = ()
    _place: tuple[Hashable, ...] = field(default=(), kw_only=True, repr=False, compare=False)
    """Which node of the flow it is, the same in every worker: two nodes may have one text."""

    def __str__(self) -> str:
        workers = "".join(f", worker {index} of {count}" for index, count in self.path)
        return f"{self.node}: datapoint {self.position} of pass {self.in_pass}{workers}: {self.kind}: {self.text}"


@dataclass(slots=True)
class Report:
    """A message from a worker about its items.

    Attributes:
        failure: An item that was skipped; None if the report holds only `seen`.
        error: The exception that the item raised.
        judged: A node below has tolerated it within a budget of its own: it counts for no other budget.
        seen: Items seen since the last report.
        warning: What the consumer is to log, once; empty in other reports.
    """

    failure: Failure | None
    error: BaseException | None
    judged: bool
    seen: int
    warning: str = ""


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it."""
    try:
        return "".join(traceback.format_exception(error))
    except DeprecationWarning:
        # With -W error: Python 3.15 warns as it looks for the source of a main program that a worker has imported.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return "".join(traceback.format_exception(error))
    except Exception:  # an attribute of it cannot be read
        return "".join([*traceback.format_tb(error.__traceback__), type(error).__qualname__])


def add_note(error: BaseException, note: str) -> None:
    """Add a note to `error`, unless its class does not let it: what is raised then would hide `error`."""
    with suppress(Exception):
        error.add_note(note)


def failure_of(
    node: str, position: int, in_pass: int, error: BaseException, place: tuple[Hashable, ...] = ()
) -> Failure:
    """The record of an item for which `node`, which stands at `place`, raised `error`."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception as broken:
        text = f"<str() of it raises {type(broken).__name__}>"
    # An item that is done again in another process is the same one, and counts once: addresses would tell them apart.
    node = re.sub(r" at 0x[0-9a-fA-F]+", "", node)
    return Failure(node, position, in_pass, name, text, traceback_of(error), _place=place)


class FailureReporter:
    """Reports the items that were skipped in a worker to the runner above.

    Args:
        limit: The budget of the runner above, which applies to nodes in this worker that have no budget of their own.
        path: Pairs (worker, number of workers) of every level, the outermost first.
        send: Takes a `Report`. It may wait, and may raise to end the worker.
    """

    def __init__(self, limit: Budget | None, path: tuple[tuple[int, int], ...], send: Callable[[Report], None]) -> None:
        self.limit = limit
        self._path = path
        self._send = send
        self._seen: dict[object, int] = {}
        self._num_reported = 0

    def report_skipped(self, failure: Failure, error: BaseException, *, judged: bool) -> None:
        """Report that an item was skipped. An exception raised by this ends the flow."""
        if self._path and not failure.path:  # otherwise it stays the same object: the node may be the runner's own
            failure = replace(failure, path=self._path)
        self._send(Report(failure, error, judged, self._new_items()))

    def record_seen(self, node: object, seen: int) -> None:
        """Record that `node` has seen `seen` items in all. Of several nodes the largest number counts."""
        self._seen[node] = seen

    def report_seen(self) -> None:
        """Report how many items were seen."""
        self._send(Report(None, None, False, self._new_items()))

    def report_warning(self, text: str) -> None:
        """Report what the process with no runner above it is to log, once for all workers."""
        try:
            self._send(Report(None, None, False, self._new_items(), text))
        except Exception:  # the worker is to stop: its next step finds out
            pass

    def _new_items(self) -> int:
        before, self._num_reported = self._num_reported, max(self._seen.values(), default=0)
        return self._num_reported - before


_here: ContextVar[FailureReporter | None] = ContextVar("dataflow_failures", default=None)


def failure_reporter() -> FailureReporter | None:
    """Return the failure reporter of the current worker; None outside of workers. Call it when a pass begins."""
    return _here.get()


@contextmanager
def reporting_to(reporter: FailureReporter | None) -> Iterator[None]:
    """Inside the block, in this thread, `failure_reporter` returns `reporter`."""
    outer = _here.get()
    try:
        _here.set(reporter)
        yield
    finally:
        _here.set(outer)


# -- Budgets -----------------------------------------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)
_MAX_RECORDS: Final = 1000  # records
_MIN_SEEN: Final = 100  # datapoints of which a fraction is taken at least
_MAX_UNREPORTED: Final = 8  # datapoints that a worker has seen and not reported, or a sixteenth of all
_NUM_LOGGED: Final = 10  # failures that are logged one by one
_MAX_PASSES: Final = 256  # number of passes of which the failed positions are remembered


class Tolerance:
    """The failures of one node, or of all workers of a runner, and the judgement whether they are tolerated.

    Args:
        owner: The node that they belong to, for messages.
        limit: Its own budget; None if it has none, and a node above judges.
        parent: Reporter that failures are forwarded to; None in the main process, where failures are logged.
        shared: Any worker may do any item: an item that is done again by another worker counts once.
    """

    def __init__(
        self, owner: str, limit: Budget | None, parent: FailureReporter | None = None, *, shared: bool = False
    ) -> None:
        self.parent = parent
        self._owner = owner
        self._limit = limit
        self._shared = shared
        self._lock = threading.Lock()
        self._records: deque[Failure] = deque(maxlen=_MAX_RECORDS)
        self._failed: dict[Hashable, set[Hashable]] = {}  # failed positions by pass, if the limit is a number
        self._known: dict[Hashable, None] = {}  # recent failures, if any worker may do any item
        self._pass = 0
        self._last: BaseException | None = None
        self._warnings: set[str] = set()
        self.num_failures = 0
        self.seen = 0
        """Items seen so far. The code that applies the function increments it, and calls `report_seen` at `due`."""
        self.due = _MAX_UNREPORTED if parent is not None and isinstance(parent.limit, float) else sys.maxsize
        self._num_workers = 0  # whose failures are judged here

    @property
    def failures(self) -> list[Failure]:
        """The last 1,000 failures, in the order in which they became known."""
        with self._lock:
            return list(self._records)

    @property
    def inherited(self) -> Budget | None:
        """The budget for nodes below that have none of their own."""
        return self._limit if self._limit is not None or self.parent is None else self.parent.limit

    def begin_pass(self) -> None:
        """A pass that the workers share begins: a number is counted from zero, even if passes have no numbers."""
        self._pass += 1

    def skip(self, failure: Failure, error: BaseException, *, in_pass: Hashable = None, judged: bool = False) -> None:
        """Record that an item was skipped.

        Args:
            failure: Its record.
            error: The exception that it raised.
            in_pass: The pass that it counts for; None for reports of workers, whose records hold it.
            judged: It was judged below.

        Raises:
            TooManyFailures: The budget is used up.
        """
        with self._lock:
            if self._shared and self._is_known(failure):
                return
            self.num_failures += 1
            self._records.append(failure)
            num = self.num_failures
        # Outside of the lock: `send` may wait, and `failures` may be read meanwhile.
        if self.parent is not None:
            self.parent.record_seen(self, self.seen)
            self.parent.report_skipped(failure, error, judged=judged or self._limit is not None)
        elif num <= _NUM_LOGGED or num & (num - 1) == 0:  # a power of two
            _log(failure, num)
        if judged or self._limit is None:
            # One that was raised in this process has a traceback, whose frames hold datapoints; a worker's comes
            # without.
            self._last = error if error.__traceback__ is None else None
        elif not isinstance(self._limit, int):
            if failure.path:
                self._num_workers = math.prod(count for _, count in failure.path)
            self._check_fraction(self._limit, error)
        else:
            if in_pass is None:
                in_pass = (self._pass if self._shared else failure.path), failure.in_pass
            self._count(in_pass, (failure.node, failure._place, failure.position), error)

    def _is_known(self, failure: Failure) -> bool:
        """Whether it was reported before: its worker has failed since, and another one did the item again."""
        where = failure.in_pass, failure.node, failure._place, failure.position
        key = self._pass, where, failure.kind, failure.text
        if key in self._known:
            return True
        self._known[key] = None
        if len(self._known) > _MAX_RECORDS:
            del self._known[next(iter(self._known))]  # the oldest: dicts keep the order of insertion
        return False

    def report_seen(self) -> None:
        """Report the number of items seen to the runner above; called when `due` is reached."""
        assert self.parent is not None
        self.parent.record_seen(self, self.seen)
        self.parent.report_seen()
        self.due = self.seen + max(_MAX_UNREPORTED, self.seen // 16)

    def process_report(self, report: Report) -> TooManyFailures | None:
        """Process a worker's report; return the error if the budget is used up."""
        self.seen += report.seen
        if report.warning:
            self._warn(report.warning)
        try:
            if report.failure is not None and report.error is not None:
                self.skip(report.failure, report.error, judged=report.judged)
            if self.seen >= self.due:
                self.report_seen()
        except TooManyFailures as too_many:
            return too_many
        return None

    def _warn(self, text: str) -> None:
        if text in self._warnings:
            return
        self._warnings.add(text)
        if self.parent is not None:
            self.parent.report_warning(text)
        else:
            _LOG.warning("%s", text)

    def complete(self, error: BaseException) -> BaseException:
        """Return `error` of a worker; a `TooManyFailures` judged there gets its cause, which arrived before it."""
        if isinstance(error, TooManyFailures) and self._last is not None:
            error.__cause__ = self._last
        return error

    def _count(self, in_pass: Hashable, where: Hashable, error: BaseException) -> None:
        with self._lock:
            failed = self._failed.setdefault(in_pass, set())
            failed.add(where)
            while len(self._failed) > _MAX_PASSES:
                del self._failed[next(iter(self._failed))]
        assert self._limit is not None
        if len(failed) > self._limit:
            self._raise_too_many(f"{len(failed)} datapoints of one pass", f"max_failures={self._limit}", error)

    def _check_fraction(self, limit: float, error: BaseException) -> None:
        unreported = self._num_workers and self._num_workers * _MAX_UNREPORTED + self.seen // 16
        if self.num_failures > limit * max(self.seen + unreported, _MIN_SEEN):
            share = 100 * self.num_failures / max(self.seen, self.num_failures)
            many = f"{self.num_failures} of the {self.seen} datapoints seen ({share:.3g} %)"
            self._raise_too_many(many, f"max_failures={limit:g}", error)

    def _raise_too_many(self, many: str, limit: str, error: BaseException) -> None:
        records = self.failures
        raise TooManyFailures(
            f"{self._owner}: {many} failed, more than {limit} allows; the last is {records[-1]}. The attribute "
            "`failures` of this error lists them. Fix the function or the data, or raise max_failures",
            failures=records,
        ) from error


def _log(failure: Failure, num: int) -> None:
    if num < _NUM_LOGGED:
        _LOG.warning("skipped %s", failure)
    elif num == _NUM_LOGGED:
        _LOG.warning("skipped %s; from now on this is logged each time the number of failures has doubled", failure)
    else:
        _LOG.warning("skipped %d so far, at last %s", num, failure)
