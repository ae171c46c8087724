"""What a receiver has observed: where its consumer's time goes, and what each sender has done, by its own counters.

Senders report their counters with their heartbeats. Nothing is trusted: what is malformed is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dataflow.observe.figures import RunnerStatistics, WorkerStatistics
from dataflow.observe.observer import RunnerMetrics
from dataflow.transport.worker_counters import WorkerActivity, totals_of

__all__ = ["ReceiverFigures", "pack_counters"]

_TIMES: Final = struct.Struct("<3d")  # seconds busy, blocked, waiting for memory
_MAX_SECONDS: Final = 1e9
_MAX_SENDERS: Final = 64  # that are shown one by one


def pack_counters(words: Sequence[int]) -> bytes:
    """The counters of a sender, as the body of a message. `words` are settled (`worker_counters`)."""
    seconds = totals_of(words).seconds
    return _TIMES.pack(seconds[WorkerActivity.BUSY], seconds[WorkerActivity.BLOCKED], seconds[WorkerActivity.MEMORY])


class ReceiverFigures:
    """The figures of one receiver. Written under its lock; read from any thread, also after it was closed.

    Attributes:
        metrics: Where the consumer's time goes.
    """

    def __init__(self) -> None:
        self.metrics = RunnerMetrics(lambda worker: (), 0)
        self._senders: dict[str, WorkerStatistics] = {}  # by source: over all its passes
        self._before: dict[str, WorkerStatistics] = {}  # of the passes before the present one
        self._pass_of: dict[str, bytes] = {}  # the id of the sender that each source is at present

    @property
    def consumer(self) -> int | None:
        """The thread that iterates, by its ident; None between two iterations."""
        return self.metrics.consumer

    def received(self, source: str, count: int, nbytes: int) -> None:
        """Add a message with datapoints."""
        self.metrics.datapoints += count
        self.metrics.nbytes += nbytes
        sender = self._sender(source)
        if sender is not None:
            self._senders[source] = replace(
                sender,
                datapoints=sender.datapoints + count,
                nbytes=sender.nbytes + nbytes,
                messages=sender.messages + 1,
            )

    def counted(self, source: str, sender_id: bytes, body: Sequence[Any]) -> None:
        """Record the counters that a sender has sent; they begin at 0 with each of its passes."""
        sender = self._sender(source)
        if sender is None or len(body) != 1 or len(body[0]) != _TIMES.size:
            return
        times = _TIMES.unpack(body[0])
        if not all(0 <= seconds <= _MAX_SECONDS for seconds in times):
            return
        if self._pass_of.get(source) != sender_id:
            self._pass_of[source] = sender_id
            self._before[source] = sender
        before = self._before[source]
        self._senders[source] = replace(
            sender,
            busy_seconds=before.busy_seconds + times[0],
            blocked_seconds=before.blocked_seconds + times[1],
            memory_seconds=before.memory_seconds + times[2],
        )

    def statistics(self, owner: str) -> RunnerStatistics:
        """The figures, with the senders as workers."""
        statistics, _ = self.metrics.statistics()
        return replace(statistics, name=owner, backend="remote", workers=tuple(self._senders.values()))

    def _sender(self, source: str) -> WorkerStatistics | None:
        known = self._senders.get(source)
        if known is None and len(self._senders) < _MAX_SENDERS:
            known = self._senders[source] = WorkerStatistics(len(self._senders))
        return known
