"""What is told of an item that failed, by whom and to whom. How many are borne is judged in `tolerance`.

An item fails when the function of a node raises an `Exception` for it. While the budget (`max_failures=`) lasts, it is
skipped, as if the function had returned None:

    node (MapData, …)            Tolerance: writes down, logs, judges by the node's own budget
      │ in a worker              Teller: sends a `Report`, in the order of the datapoints around it
    runner or parallel map       Tolerance: all workers together, judged by its own budget
      │ inside another worker    FailureReporter: and so on

What is not judged below is judged above: a map without a budget of its own bears what the runner above told it to.

A job that applies functions asks `failure_reporter()` when it begins. Without an answer, or with one whose `limit` is
None or 0, errors are raised. Otherwise, for an item that raised, it calls ``skipped(failure_of(…), error,
judged=False)`` of the reporter and gives `HOLE` for it; and now and then `saw` and `report_seen`, where the limit is a
fraction. `transforms.applying.Applied` does all this.

How many failed items are borne: the records, and the judgement over them. Pure: no clock, no process.

Guarantees:

- A number is counted anew in every pass, and each item once, however often it is done: done again after the death of a
  worker, or addressed twice. Where every worker goes through all items, each pass of each has the whole number: a
  budget that suffices without workers suffices with any number of them. A fraction is of all items seen since the
  start, by all workers together, and judged once there are 100.
- Whoever is told of a `TooManyFailures` has been told of every failure before it.
- The log does not drown: the first failures are logged one by one, later ones each time their number has doubled, and
  only in the process in which nobody stands above.
"""

from __future__ import annotations

import logging
import math
import operator
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Final

from dataflow.errors import DataFlowTerminated, TooManyFailures, WorkerTraceback

__all__ = [
    "Budget",
    "Failure",
    "FailureReporter",
    "Report",
    "Tolerance",
    "budget_of",
    "failure_of",
    "failure_reporter",
    "forked_off",
    "reporting_to",
]


# -- What is told of an item that failed, by whom and to whom. How many are borne is judged in `tolerance` -------------


Budget = int | float
"""`max_failures`: a number of items in one pass, or a fraction of all seen."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One item that was skipped because the function of a node raised.

    Attributes:
        node: The node and its function, as ``MapData(decode)``.
        position: Which datapoint of its pass, from 0. Those that a node below has dropped are not counted, unless the
            flow is addressed.
        in_pass: Which pass of the node, from 0.
        kind: Type of the exception.
        text: What it says.
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

    def __str__(self) -> str:
        workers = "".join(f", worker {index} of {count}" for index, count in self.path)
        return f"{self.node}: datapoint {self.position} of pass {self.in_pass}{workers}: {self.kind}: {self.text}"


@dataclass(slots=True)
class Report:
    """What a worker tells.

    Attributes:
        failure: An item that was skipped; None if only `seen` is told.
        error: What it raised.
        judged: A node below has a budget of its own and has borne it: it counts for nobody else.
        seen: Items seen since the last report.
    """

    failure: Failure | None
    error: BaseException | None
    judged: bool
    seen: int


def budget_of(owner: object, value: Any) -> Budget | None:
    """`value`, if it is a `max_failures`: None, an integer from 0, or a fraction between 0 and 1.

    Raises:
        ValueError: It is negative, not a number, or a fraction outside (0, 1).
        TypeError: It is no number (a bool is none either).
    """
    name = owner if isinstance(owner, str) else type(owner).__name__
    wanted = "an integer from 0, or a fraction of the datapoints above 0 and below 1"
    if value is None:
        return None
    if isinstance(value, bool) or not (isinstance(value, Real) or hasattr(value, "__index__")):
        raise TypeError(f"{name}: max_failures is {wanted}, got {value!r}")
    if hasattr(value, "__index__"):
        number = operator.index(value)
        if number < 0:
            raise ValueError(f"{name}: max_failures is {wanted}, got {value!r}")
        return number
    fraction = float(value)
    if math.isnan(fraction) or not 0 < fraction < 1:
        raise ValueError(f"{name}: max_failures is {wanted}, got {value!r}")
    return fraction


def failure_of(node: str, position: int, in_pass: int, error: BaseException) -> Failure:
    """The record of an item for which `node` raised `error`."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception as broken:
        text = f"<str() of it raises {type(broken).__name__}>"
    return Failure(node, position, in_pass, name, text, "".join(traceback.format_exception(error)))


class FailureReporter:
    """A worker's way to tell what was skipped in it.

    Args:
        limit: The budget of whoever is told: what the nodes in this worker bear that have none of their own.
        path: Where the worker stands.
        send: Takes a `Report`. It may wait, and may raise to end the worker.
    """

    def __init__(self, limit: Budget | None, path: tuple[tuple[int, int], ...], send: Callable[[Report], None]) -> None:
        self.limit = limit
        self._path = path
        self._send = send
        self._seen: dict[object, int] = {}
        self._told = 0

    def skipped(self, failure: Failure, error: BaseException, *, judged: bool) -> None:
        """An item was skipped. Whatever this raises ends the flow."""
        if not failure.path:
            failure = replace(failure, path=self._path)
        self._send(Report(failure, error, judged, self._news()))

    def saw(self, who: object, seen: int) -> None:
        """The node `who` has seen so many items in all. It may go through a chain of nodes: the most count."""
        self._seen[who] = seen

    def report_seen(self) -> None:
        """Tell how many items were seen."""
        self._send(Report(None, None, False, self._news()))

    def _news(self) -> int:
        before, self._told = self._told, max(self._seen.values(), default=0)
        return self._told - before


_here: ContextVar[FailureReporter | None] = ContextVar("dataflow_failures", default=None)


def failure_reporter() -> FailureReporter | None:
    """What the code that runs here was told from above; None outside of workers. To be asked when a pass begins."""
    return _here.get()


@contextmanager
def reporting_to(reporter: FailureReporter | None) -> Iterator[None]:
    """Inside the block, in this thread, `failure_reporter` gives `reporter`."""
    token = _here.set(reporter)
    try:
        yield
    finally:
        _here.reset(token)


def forked_off(pid: int) -> DataFlowTerminated:
    """The error for a child that code in a flow has forked off process `pid`, and that goes on with the flow."""
    return DataFlowTerminated(
        f"this process was forked by code that runs in a dataflow, and only its parent (pid {pid}) may go on with the "
        "flow. End the child with os._exit when its own work is done, or start it by subprocess or multiprocessing"
    )


# -- How many failed items are borne: the records, and the judgement over them. Pure: no clock, no process -------------


_LOG = logging.getLogger(__name__)
_KEPT: Final = 1000  # records
_FIRST: Final = 100  # datapoints after which a fraction is judged
_LOGGED: Final = 10  # failures that are logged one by one
_PASSES: Final = 256  # of which the failed positions are remembered


class Tolerance:
    """The failures of one node, or of all workers of a runner, and the judgement over them.

    Args:
        owner: Whose they are, for messages.
        limit: Its own budget; None if it has none, and somebody above judges.
        above: Who is told; None in the main process, where failures are logged.
        shared: Any worker may do any item: one that is done again by another counts once.
    """

    def __init__(
        self, owner: str, limit: Budget | None, above: FailureReporter | None = None, *, shared: bool = False
    ) -> None:
        self.above = above
        self._owner = owner
        self._limit = limit
        self._shared = shared
        self._lock = threading.Lock()
        self._records: deque[Failure] = deque(maxlen=_KEPT)
        self._failed: dict[Hashable, set[Hashable]] = {}  # by pass, what has failed in it; for a number
        self._known: dict[Hashable, None] = {}  # what was told of late, if any worker may do any item
        self._pass = 0
        self._last: BaseException | None = None
        self.num_failures = 0
        self.seen = 0
        """Items seen so far. Counted by whoever applies the function; when it reaches `due`, `look` is called."""
        looks = isinstance(limit, float) or (above is not None and isinstance(above.limit, float))
        self.due = _FIRST if looks else sys.maxsize

    @property
    def failures(self) -> list[Failure]:
        """The last 1,000, in the order in which they became known."""
        with self._lock:
            return list(self._records)

    @property
    def inherited(self) -> Budget | None:
        """The budget for whoever is below and has none of his own."""
        return self._limit if self._limit is not None or self.above is None else self.above.limit

    def begin_pass(self) -> None:
        """A pass begins, which the workers share: a number is counted anew, also where passes have no numbers."""
        self._pass += 1

    def skip(self, failure: Failure, error: BaseException, *, in_pass: Hashable = None, judged: bool = False) -> None:
        """Write down that an item was skipped.

        Args:
            failure: Its record.
            error: What it raised.
            in_pass: The pass that it counts for; None for what workers tell, whose records say it.
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
        if self.above is not None:
            self.above.saw(self, self.seen)
            self.above.skipped(failure, error, judged=judged or self._limit is not None)
        elif num <= _LOGGED or num & (num - 1) == 0:
            _log(failure, num)
        if judged or self._limit is None:
            self._last = error if error.__traceback__ is None else None
        elif not isinstance(self._limit, int):
            self._last = error
            self._judge()
            _strip(error, failure.traceback)
        else:
            if in_pass is None:
                in_pass = (self._pass if self._shared else failure.path), failure.in_pass
            self._count(in_pass, (failure.node, failure.position), error)

    def _is_known(self, failure: Failure) -> bool:
        """Whether it was told before: whoever had done it has died, and another did it again."""
        key = self._pass, failure.in_pass, failure.node, failure.position, failure.kind, failure.text
        if key in self._known:
            return True
        self._known[key] = None
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return False

    def look(self) -> None:
        """So many items were seen that it is time to judge, or to tell.

        Raises:
            TooManyFailures: The budget is used up.
        """
        if self.above is not None:
            self.above.saw(self, self.seen)
            if isinstance(self.above.limit, float):
                self.above.report_seen()
        self.due = self.seen + max(_FIRST, self.seen // 10)
        if isinstance(self._limit, float):
            self._judge()

    def heard(self, report: Report) -> TooManyFailures | None:
        """A worker has told something; the verdict, if that was too much."""
        self.seen += report.seen
        try:
            if report.failure is not None and report.error is not None:
                self.skip(report.failure, report.error, judged=report.judged)
            if self.seen >= self.due:
                self.look()
        except TooManyFailures as verdict:
            return verdict
        return None

    def complete(self, error: BaseException) -> BaseException:
        """`error` of a worker; a `TooManyFailures` that was judged there gets its cause back, which came before it."""
        if isinstance(error, TooManyFailures) and self._last is not None:
            error.__cause__ = self._last
        return error

    def _count(self, in_pass: Hashable, where: Hashable, error: BaseException) -> None:
        with self._lock:
            failed = self._failed.setdefault(in_pass, set())
            failed.add(where)
            while len(self._failed) > _PASSES:
                del self._failed[next(iter(self._failed))]
        assert self._limit is not None
        if len(failed) > self._limit:
            self._condemn(f"{len(failed)} datapoints of one pass", f"max_failures={self._limit}", error)

    def _judge(self) -> None:
        assert self._limit is not None
        if self.seen >= _FIRST and self.num_failures > self._limit * self.seen and self._last is not None:
            share = 100 * self.num_failures / self.seen
            many = f"{self.num_failures} of the {self.seen} datapoints seen ({share:.3g} %)"
            self._condemn(many, f"max_failures={self._limit:g}", self._last)

    def _condemn(self, many: str, limit: str, error: BaseException) -> None:
        records = self.failures
        raise TooManyFailures(
            f"{self._owner}: {many} failed, more than {limit} allows; the last is {records[-1]}. The attribute "
            "`failures` of this error lists them. Mend the function or the data, or raise max_failures",
            failures=records,
        ) from error


def _log(failure: Failure, num: int) -> None:
    if num < _LOGGED:
        _LOG.warning("skipped %s", failure)
    elif num == _LOGGED:
        _LOG.warning("skipped %s; from now on this is logged each time the number of failures has doubled", failure)
    else:
        _LOG.warning("skipped %d so far, at last %s", num, failure)


def _strip(error: BaseException, text: str) -> None:
    """Take the frames away from an error that is kept: they would keep the datapoint, and whoever iterates, alive."""
    waiting, seen = [error], set[int]()
    while waiting:
        link = waiting.pop()
        if id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            waiting += [other for other in (link.__cause__, link.__context__) if other is not None]
    error.__cause__ = WorkerTraceback(text)
