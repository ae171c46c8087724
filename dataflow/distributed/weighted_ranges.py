"""Schedule of index ranges for workers that share no memory with the consumer: shorter where datapoints are large."""

from __future__ import annotations

from dataflow.channel.task_queue import TaskQueue
from dataflow.engine.schedules import IndexRanges

__all__ = ["WeightedIndexRanges"]


class WeightedIndexRanges(IndexRanges):
    """The schedule of a strict runner, with a bound in bytes.

    A worker cannot be paused in the middle of a range: that could be the one for which all others wait. So only as
    much is requested as may be under way, if datapoints are as large as the most recent ones.

    Args:
        task_queue: The queue from which the workers take.
        num_workers: Number of workers.
        max_ahead: Number of datapoints that may be under way for each; None for as many as keep it busy.
        bytes_per_worker: Bytes that may be under way for each; one datapoint is always allowed.
        grain: Number of indexes that the length of a range should be a multiple of.
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
            return 1  # no datapoint has come whose size is known
        return max(1, min(super().ahead(), int(self._bytes_per_worker / self.bytes_each)))
