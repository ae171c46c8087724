"""Spans of indexes for workers that share no memory with the consumer: fewer, where datapoints are large."""

from __future__ import annotations

from dataflow.channel.task_queue import TaskQueue
from dataflow.engine.schedules import IndexRanges

__all__ = ["WeightedIndexRanges"]


class WeightedIndexRanges(IndexRanges):
    """The desk of a strict runner, with a bound in bytes.

    Nothing holds a worker up in the middle of a span: that could be the one for which all others wait. So no more is
    asked for than may be under way, with datapoints as large as those that came last.

    Args:
        task_queue: From which the workers take.
        num_workers: How many they are.
        max_ahead: How many datapoints may be under way for each; None for as many as keep it busy.
        bytes_per_worker: What may be under way for each; one datapoint always may.
        grain: Of how many indexes a span should be a multiple.
        ordered: Whether datapoints are handed out in the order of their indexes.
    """

    max_per_task = 8192

    def __init__(
        self,
        task_queue: TaskQueue,
        num_workers: int,
        max_ahead: int | None,
        bytes_per_worker: int,
        *,
        grain: int,
        ordered: bool,
    ) -> None:
        super().__init__(task_queue, num_workers, max_ahead, grain=grain, ordered=ordered)
        self._bytes_per_worker = bytes_per_worker

    def ahead(self) -> int:
        if not self.bytes_each:
            return 1  # nothing has come that could be weighed
        return max(1, min(super().ahead(), int(self._bytes_per_worker / self.bytes_each)))
