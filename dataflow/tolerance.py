"""How many failed items are borne: the records, and the judgement over them. Pure: no clock, no process.

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
import sys
import threading
from collections import deque
from collections.abc import Hashable
from typing import Final

from dataflow.errors import TooManyFailures, WorkerTraceback
from dataflow.failures import Budget, Failure, FailureReporter, Report

__all__ = ["Tolerance"]

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
