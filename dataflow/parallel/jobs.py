"""What a worker does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dataflow.base import DataFlow
from dataflow.life import life_of
from dataflow.passes import open_flow
from dataflow.seeding import Stream
from dataflow.transport.outbox import Outbox

__all__ = ["Job", "Produce"]


class Job(Protocol):
    """The work of one worker."""

    def run(self, outbox: Outbox) -> None:
        """Work until there is nothing more to do, or until the outbox says stop."""

    def close(self) -> None:
        """Close what the work had opened."""


@dataclass
class Produce:
    """Pass after pass of a whole flow, for ever, from pass `first`."""

    df: DataFlow
    stream: Stream
    first: int

    def run(self, outbox: Outbox) -> None:
        life_of(self.df).worked_by = self
        open_flow(self.df, self.stream)
        p = self.first
        # A pass with nothing in it would be followed by another: the flow has ended.
        while outbox.put_all(self.df.run_pass(p, self.stream)):
            p += 1
        outbox.ended()

    def close(self) -> None:
        # A thread that was left behind and returns late must not close what its successor has opened.
        if life_of(self.df).worked_by is self:
            self.df.close()
