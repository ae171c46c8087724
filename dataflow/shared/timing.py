"""Where the time goes: what `statistics()` of the shared-memory classes returns."""

from __future__ import annotations

import logging
from dataclasses import dataclass

__all__ = ["Profile", "Statistics"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Times of all results that were handed out so far.

    Attributes:
        num_results: How many there were.
        seconds_waited: How long `get` waited for them.
        seconds_copied: How long it copied them.
        seconds_made: How long the workers worked on them.
    """

    num_results: int = 0
    seconds_waited: float = 0.0
    seconds_copied: float = 0.0
    seconds_made: float = 0.0


class Profile:
    """Adds up the times, and logs them if asked to.

    Args:
        owner: Name of the class that users see.
        logged: Log every result.
    """

    def __init__(self, owner: str, logged: bool) -> None:
        self.owner = owner
        self.logged = logged
        self.statistics = Statistics()

    def add(self, worker: str, waited: float, copied: float, made: float) -> None:
        """One result more; all times in seconds."""
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
