"""Options shared by all nodes with workers: failure budget, worker_init, limits of native threads.

`WorkerSetup` derives from `WorkerOptions` and hands the options to every worker. A class with workers must do the
following:

- in its constructor: ``self._df_set_options(max_failures, worker_init, thread_limit)``;
- where it runs without workers: call ``initialise(self.worker_init)`` before the reset, and wrap the stepped iterator
  in ``partial(reported_steps, begin, self)``, both as in `Runner`;
- if any worker may do any item: let `_df_shares_items` be true, so that an item that is done again counts once, and
  call ``tolerance_of(self).begin_pass()`` where a pass begins, after ``_df_engine_at``.

In the worker, `MapData` and its subclasses do the rest, in `_df_run_pass` and in `_df_at`: they call
`failures.failure_reporter()`, yield `HOLE` for an item that failed, and report it under the index that they were asked
for, which must be its position in the pass. A job calls `limit_threads_again()` after it has opened its flow. Wherever
it steps a flow, it lets `Stopped` and `ConsumerGone` pass: a report may raise them in the middle of a step.
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
    failure_reporter,
    reporting_to,
)
from dataflow.parameters import count_or_fraction, function, whole_number
from dataflow.state import state_of
from dataflow.workers.native_threads import ThreadLimit, limit_of, share_of_cores

__all__ = ["WorkerOptions", "ThreadLimitOption", "reported_steps", "tolerance_of"]

ThreadLimitOption = SupportsIndex | Literal["share"] | None
"""`thread_limit`: threads of each native library, "share" for a worker's share of the cores, None to leave them."""


class WorkerOptions:
    """Mixin of nodes with workers: keeps the user's options for them."""

    _df_own_process: ClassVar[bool]
    num_workers: int
    max_failures: Budget | None = None
    worker_init: Callable[[], object] | None = None
    thread_limit: int | Literal["share"] | None = None

    def _df_set_options(
        self, max_failures: Any, worker_init: Callable[[], object] | None, thread_limit: ThreadLimitOption = None
    ) -> None:
        """Check and keep the user's options.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: A number is out of range.
        """
        name = self._df_title
        self.max_failures = count_or_fraction(name, "max_failures", max_failures)
        if worker_init is not None:
            function(name, "worker_init", worker_init, "is called without arguments in each worker")
        self.worker_init = worker_init
        if thread_limit is None or (isinstance(thread_limit, str) and thread_limit == "share"):
            self.thread_limit = thread_limit
            return
        alternatives = ', "share", or None for no limit'
        self.thread_limit = whole_number(name, "thread_limit", thread_limit, 1, alternatives=alternatives)

    @property
    def _df_title(self) -> str:
        """The node's name in messages."""
        return type(self).__name__

    @property
    def _df_shares_items(self) -> bool:
        """Whether any worker may do any item: then a failed item counts once, whichever worker does it."""
        return False

    @property
    def failures(self) -> list[Failure]:
        """The last 1,000 items that were skipped in all workers since they were started."""
        tolerance = state_of(self).tolerance
        return [] if tolerance is None else tolerance.failures

    def _df_begin_failures(self) -> Tolerance:
        """Make the `Tolerance` that counts the failures of the workers about to be started."""
        tolerance = Tolerance(self._df_title, self.max_failures, failure_reporter(), shared=self._df_shares_items)
        state_of(self).tolerance = tolerance
        return tolerance

    def _df_threads_of_worker(self) -> ThreadLimit | None:
        """The limit of native threads in each worker; None if a worker is not a process of its own."""
        if self.thread_limit is None or not self._df_own_process:
            return None
        if self.thread_limit == "share":
            return limit_of(share_of_cores(self.num_workers), exact=False)
        return limit_of(self.thread_limit, exact=True)


def tolerance_of(owner: WorkerOptions) -> Tolerance:
    """The `Tolerance` that counts the failures of the workers that `owner` has started."""
    tolerance = state_of(owner).tolerance
    assert tolerance is not None, "_df_begin_failures comes first"
    return tolerance


def reported_steps(begin: Callable[[], Iterator[Any]], owner: WorkerOptions) -> Iterator[Any]:
    """Iterate a flow in the consumer, reporting failures of its nodes as in a worker of `owner`.

    Its steps raise `TooManyFailures` when the budget is used up.
    """
    # Not `owner` itself, which keeps this iterator; nor the tolerance, which a reset replaces.
    state_ref = weakref.ref(state_of(owner))

    def process(report: Report) -> None:
        state = state_ref()
        too_many = None if state is None or state.tolerance is None else state.tolerance.process_report(report)
        if too_many is not None:
            raise too_many

    return _steps(begin, FailureReporter(tolerance_of(owner).inherited, (), process))


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
