"""An engine whose passes begin and end: what is under way for one that was broken off is wanted no more."""

from __future__ import annotations

import os
from typing import Any

from dataflow.parallel.orders import Orders
from dataflow.parallel.plan import Plan
from dataflow.parallel.staffing import Placed
from dataflow.seeding import Stream

__all__ = ["Passing"]


class Passing(Placed):
    """An engine of which each iteration is a pass of its own."""

    def __init__(self, plan: Plan, stream: Stream) -> None:
        assert isinstance(plan.desk, Orders)
        self.orders: Any = plan.desk  # which kind, knows who made it
        self._served: object = None  # the ticket of the iteration that is not over
        super().__init__(plan, stream)

    @property
    def is_free(self) -> bool:
        """Whether no iteration is under way."""
        return self._served is None

    def begin_pass(self, *what: Any, holes: bool = False) -> object:
        """Take over, for the pass that the desk is told: the ticket for this iteration.

        Args:
            what: Which pass, in the words of the desk.
            holes: Whether `HOLE` is given for what was dropped.
        """
        ticket = self.claim()
        with self.lock:
            self.check(ticket)
            self._forget()
            self.orders.begin_pass(*what)
            self.orders.keeps_holes = holes
            self._served = ticket
        return ticket

    def abandon(self, ticket: object) -> None:
        """The iteration with this ticket is over, and what is under way for it is wanted no more."""
        if os.getpid() != self.pid:
            return
        with self.lock:
            if self.ticket is ticket and not self.closing:
                self._forget()
                self._served = None

    def _forget(self) -> None:
        list(self.take_chunk)
        self.hand_out_ended()
        self.orders.begin()
