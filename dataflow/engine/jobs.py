"""What a worker does: a whole flow, for ever. Jobs that take tasks are in `tasking`."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from dataflow.base import DataFlow, close_flow
from dataflow.channel.batching_sender import BatchingSender
from dataflow.channel.task_queue import TaskReader
from dataflow.passes import open_flow
from dataflow.seeding import Stream
from dataflow.state import state_of
from dataflow.workers.native_threads import limit_threads_again

__all__ = ["Job", "Produce"]


class Job(Protocol):
    """The work of one worker."""

    def run(self, sender: BatchingSender, inbox: TaskReader | None = None) -> None:
        """Work until there is nothing more to do, or until the outbox says stop; `inbox` is where tasks come from."""

    def close(self) -> None:
        """Close what the work had opened."""


@dataclass
class Produce:
    """Pass after pass of a whole flow, for ever, from pass `first`."""

    df: DataFlow
    stream: Stream
    first: int

    def run(self, sender: BatchingSender, inbox: TaskReader | None = None) -> None:
        state_of(self.df).worked_by = threading.current_thread()
        open_flow(self.df, self.stream)
        limit_threads_again()  # of what the reset has imported
        p = self.first
        # A pass with nothing in it would be followed by another: the flow has ended.
        while sender.put_all(self.df._df_run_pass(p, self.stream)):
            p += 1
        sender.ended()

    def close(self) -> None:
        # A thread that was left behind and returns late must not close what its successor has opened. It may do the
        # same job.
        if state_of(self.df).worked_by is threading.current_thread():
            close_flow(self.df)
