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
"""

from __future__ import annotations

import math
import operator
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from dataflow.errors import DataFlowTerminated

__all__ = [
    "Budget",
    "Failure",
    "Report",
    "FailureReporter",
    "budget_of",
    "failure_of",
    "forked_off",
    "reporting_to",
    "failure_reporter",
]

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
