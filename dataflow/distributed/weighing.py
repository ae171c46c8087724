"""Spans of indexes for workers that share no memory with the consumer: fewer, where datapoints are large."""

from __future__ import annotations

from typing import Any, Final, Protocol

from dataflow.parallel.spans import Spans
from dataflow.transport.trays import Tray

__all__ = ["WeighedSpans"]

_FADING: Final = 0.9  # how much of the size of a datapoint counts at the next message: one large one is not forgotten


class Scales(Protocol):
    """Who knows how large messages are."""

    last_nbytes: int
    """Of the message that was heard last."""


class WeighedSpans(Spans):
    """The desk of a strict runner, with a bound in bytes.

    Nothing holds a worker up in the middle of a span: that could be the one for which all others wait. So no more is
    asked for than may be under way, with datapoints as large as those that came last.

    Args:
        tray: From which the workers take.
        num_workers: How many they are.
        bytes_per_worker: What may be under way for each; one datapoint always may.
        grain: Of how many indexes a span should be a multiple.
        ordered: Whether datapoints are handed out in the order of their indexes.
    """

    most_per_task = 8192

    def __init__(self, tray: Tray, num_workers: int, bytes_per_worker: int, *, grain: int, ordered: bool) -> None:
        super().__init__(tray, num_workers, None, grain=grain, ordered=ordered)
        self._bytes_per_worker = bytes_per_worker
        self._bytes_each: float | None = None  # of the datapoints that came last; None while there were none
        self._scales: Scales | None = None

    def weigh_by(self, scales: Scales) -> None:
        """Ask `scales` how large messages are."""
        self._scales = scales

    def heard(self, worker: int, datapoints: list[Any], error: BaseException | None) -> int:
        count = super().heard(worker, datapoints, error)
        if count and self._scales is not None:
            self._bytes_each = max(1.0, self._scales.last_nbytes / count, _FADING * (self._bytes_each or 0.0))
        return count

    def ahead(self) -> int:
        if self._bytes_each is None:
            return 1
        return max(1, min(super().ahead(), int(self._bytes_per_worker / self._bytes_each)))
