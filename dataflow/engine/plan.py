"""What an engine runs: the choices of one runner or map, made and not yet started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from dataflow.channel.flow_control import Credit
from dataflow.channel.protocols import Channel
from dataflow.codec.protocols import Codec
from dataflow.engine.schedule import MixedSchedule, Schedule
from dataflow.engine.worker_errors import died
from dataflow.engine.worker_main import WorkerSpec
from dataflow.errors import WorkerDied
from dataflow.tolerance import Tolerance
from dataflow.workers.pool import Worker

__all__ = ["Plan"]


@dataclass
class Plan:
    """What an engine runs.

    Attributes:
        owner: Name of the runner's class, for messages.
        channel: How messages move.
        codec: How the consumer reads them.
        credit: What bounds the workers.
        specs: What each worker runs.
        start: Starts one worker.
        schedule: Where datapoints wait to be handed out.
        max_restarts: How many workers that died are replaced.
        tolerance: Bears the failures of single items that workers report, and judges them.
        died: Makes the error for a worker that ended without an exception.
    """

    owner: str
    channel: Channel
    codec: Codec
    credit: Credit
    specs: list[WorkerSpec]
    start: Callable[[WorkerSpec], Worker]
    schedule: Schedule = field(default_factory=MixedSchedule)
    max_restarts: int = 0
    tolerance: Tolerance = field(default_factory=lambda: Tolerance("", None))
    died: Callable[[str, int, int, int | None, int | None, int | None], WorkerDied] = died

    def stop(self) -> None:
        """Tell the workers that nothing more is wanted."""
        self.credit.stop()
        self.schedule.stop()

    def close(self) -> None:
        """Let go of all that the consumer holds. Idempotent."""
        with ExitStack() as last:  # all of it, whatever one of them raises
            for end in (self.credit, self.schedule, self.codec, self.channel):
                last.callback(end.close)
