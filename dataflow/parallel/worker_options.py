"""Options shared by everything that has workers: failure budget, worker_init, limits of native threads.

`Staffed` derives from `WorkerOptions`, and `Staffed.start` hands them to every worker. What is left to a class with
workers:

- in its constructor: ``self._df_set_options(max_failures, worker_init, thread_limit)``;
- where it runs without workers: ``initialise(self.worker_init)`` before the reset, and
  ``partial(reported_steps, begin, self)`` around what is stepped, both as in `Runner`;
- `_df_shares_items` true if any worker may do any item, so that one that is done again counts once; then also, where a
  pass begins, after ``_df_engine_at``: ``tolerance_of(self).begin_pass()``.

In the worker, `MapData` and what derives from it do the rest, in `_df_run_pass` and in `_df_at`: they ask
`failures.told()`, give `HOLE` for an item that failed, and report it under the index that they were asked for, which is
to be the position in the pass. A job calls `limit_threads_again()` after it has opened its flow, and lets `Stopped` and
`ConsumerGone` through wherever it steps one: a report may raise them in the midst of a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, SupportsIndex

from dataflow.failures import (
    Budget,
    Failure,
    FailureReporter,
    Report,
    Tolerance,
    budget_of,
    failure_reporter,
    reporting_to,
)
from dataflow.parameters import whole_number
from dataflow.state import state_of
from dataflow.workers.native_threads import ThreadLimit, limit_of, share_of_cores

__all__ = ["WorkerOptions", "ThreadLimitOption", "reported_steps", "tolerance_of"]

ThreadLimitOption = SupportsIndex | Literal["share"] | None
"""`thread_limit`: threads of each native library, "share" for a worker's share of the cores, None to leave them."""


class WorkerOptions:
    """What a node with workers keeps of what the user said about them."""

    _df_own_process: ClassVar[bool]
    num_workers: int
    max_failures: Budget | None = None
    worker_init: Callable[[], object] | None = None
    thread_limit: int | Literal["share"] | None = None

    def _df_set_options(
        self, max_failures: Any, worker_init: Callable[[], object] | None, thread_limit: ThreadLimitOption = None
    ) -> None:
        """Check and keep what the user gave.

        Raises:
            TypeError: One is of a wrong type.
            ValueError: A number is out of range.
        """
        name = type(self).__name__
        self.max_failures = budget_of(self, max_failures)
        if worker_init is not None and not callable(worker_init):
            raise TypeError(f"{name}: worker_init is a function without arguments, got {worker_init!r}")
        self.worker_init = worker_init
        if thread_limit is None or (isinstance(thread_limit, str) and thread_limit == "share"):
            self.thread_limit = thread_limit
            return
        alternatives = ', "share", or None to leave threads alone'
        self.thread_limit = whole_number(self._df_title, "thread_limit", thread_limit, 1, alternatives=alternatives)

    @property
    def _df_title(self) -> str:
        """What it is called in messages."""
        return type(self).__name__

    @property
    def _df_shares_items(self) -> bool:
        """Whether any worker may do any item: then it fails once, wherever it is done."""
        return False

    @property
    def failures(self) -> list[Failure]:
        """The last 1,000 items that were skipped in all workers since they were started."""
        tolerance = state_of(self).tolerance
        return [] if tolerance is None else tolerance.failures

    def _df_begin_failures(self) -> Tolerance:
        """Workers are about to start: what bears the failures in them, from now on."""
        tolerance = Tolerance(self._df_title, self.max_failures, failure_reporter(), shared=self._df_shares_items)
        state_of(self).tolerance = tolerance
        return tolerance

    def _df_threads_of_worker(self) -> ThreadLimit | None:
        """What each worker does about native threads; None where it is no process of its own."""
        if self.thread_limit is None or not self._df_own_process:
            return None
        if self.thread_limit == "share":
            return limit_of(share_of_cores(self.num_workers), exact=False)
        return limit_of(self.thread_limit, exact=True)


def tolerance_of(owner: WorkerOptions) -> Tolerance:
    """What bears the failures of the workers that `owner` has started."""
    tolerance = state_of(owner).tolerance
    assert tolerance is not None, "begin_terms comes first"
    return tolerance


def reported_steps(begin: Callable[[], Iterator[Any]], owner: WorkerOptions) -> Iterator[Any]:
    """A flow that is run in the consumer, whose nodes are told what they would be told in a worker of `owner`.

    Its steps raise `TooManyFailures` when the budget is used up.
    """
    # Not `owner` itself, which keeps this iterator: nor the tolerance, of which a reset makes a new one.
    life = weakref.ref(state_of(owner))

    def hear(report: Report) -> None:
        alive = life()
        verdict = None if alive is None or alive.tolerance is None else alive.tolerance.heard(report)
        if verdict is not None:
            raise verdict

    return _steps(begin, FailureReporter(tolerance_of(owner).inherited, (), hear))


def _steps(begin: Callable[[], Iterator[Any]], reporter: FailureReporter) -> Iterator[Any]:
    with reporting_to(reporter):
        steps = begin()
    try:
        while True:
            with reporting_to(reporter):
                dp = next(steps)
            yield dp
    except StopIteration:
        return
