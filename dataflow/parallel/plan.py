"""What an engine runs: the choices of one runner or map, made and not yet started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from dataflow.errors import WorkerDied
from dataflow.parallel.desk import Desk, Mixture
from dataflow.parallel.obituary import died
from dataflow.parallel.serving import Service
from dataflow.tolerance import Tolerance
from dataflow.transport.channel import Channel
from dataflow.transport.codec import Codec
from dataflow.transport.credit import Credit
from dataflow.workers.crew import Worker

__all__ = ["Plan"]


@dataclass
class Plan:
    """What an engine runs.

    Attributes:
        owner: Name of the runner's class, for messages.
        channel: How messages move.
        codec: How the consumer reads them.
        credit: What bounds the workers.
        services: What each worker runs.
        start: Starts one worker.
        desk: Where datapoints wait to be handed out.
        max_restarts: How many workers that died are replaced.
        tolerance: Bears the failures of single items that workers report, and judges them.
        died: Makes the error for a worker that ended without an exception.
    """

    owner: str
    channel: Channel
    codec: Codec
    credit: Credit
    services: list[Service]
    start: Callable[[Service], Worker]
    desk: Desk = field(default_factory=Mixture)
    max_restarts: int = 0
    tolerance: Tolerance = field(default_factory=lambda: Tolerance("", None))
    died: Callable[[str, int, int, int | None, int | None, int | None], WorkerDied] = died

    def stop(self) -> None:
        """Tell the workers that nothing more is wanted."""
        self.credit.stop()
        self.desk.stop()

    def close(self) -> None:
        """Let go of all that the consumer holds. Idempotent."""
        with ExitStack() as last:  # all of it, whatever one of them raises
            for end in (self.credit, self.desk, self.codec, self.channel):
                last.callback(end.close)
