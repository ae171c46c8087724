"""Time statistics of the shared-memory classes: what `statistics()` returns."""

from __future__ import annotations

import logging
from dataclasses import dataclass

__all__ = ["Profile", "Statistics"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Times of all results that were returned so far.

    Attributes:
        num_results: Number of results.
        seconds_waited: Time that `get` waited for them.
        seconds_copied: Time that `get` spent copying them.
        seconds_made: Time that the workers spent on them.
    """

    num_results: int = 0
    seconds_waited: float = 0.0
    seconds_copied: float = 0.0
    seconds_made: float = 0.0


class Profile:
    """Adds up the times, and logs them on request.

    Args:
        owner: Name of the class that users see.
        logged: Log every result.
    """

    def __init__(self, owner: str, logged: bool) -> None:
        self.owner = owner
        self.logged = logged
        self.statistics = Statistics()

    def add(self, worker: str, waited: float, copied: float, made: float) -> None:
        """Add one result; all times in seconds."""
        old = self.statistics
        self.statistics = Statistics(
            old.num_results + 1, old.seconds_waited + waited, old.seconds_copied + copied, old.seconds_made + made
        )
        if self.logged:
            _LOG.info(
                "%s: %s made a result in %.3g ms; get waited %.3g ms for it and copied it in %.3g ms",
                self.owner,
                worker,
                made * 1e3,
                waited * 1e3,
                copied * 1e3,
            )
