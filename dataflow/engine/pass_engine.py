"""An engine whose passes begin and end: what is under way for one that was broken off is wanted no more."""

from __future__ import annotations

import os
from typing import Any

from dataflow.engine.plan import Plan
from dataflow.engine.task_schedule import TaskSchedule
from dataflow.parallel.worker_setup import Placed
from dataflow.seeding import Stream

__all__ = ["PassEngine"]


class PassEngine(Placed):
    """An engine of which each iteration is a pass of its own."""

    def __init__(self, plan: Plan, stream: Stream) -> None:
        assert isinstance(plan.schedule, TaskSchedule)
        self.schedule: Any = plan.schedule  # which kind, knows who made it
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
        generation = self.take_over()
        with self.lock:
            self.check(generation)
            self._forget()
            self.schedule.begin_pass(*what)
            self.schedule.keeps_holes = holes
            self._served = generation
        return generation

    def abandon(self, generation: object) -> None:
        """The iteration with this ticket is over, and what is under way for it is wanted no more."""
        if os.getpid() != self.pid:
            return
        with self.lock:
            if self.generation is generation and not self.closing:
                self._forget()
                self._served = None

    def _forget(self) -> None:
        list(self.take_chunk)
        self.hand_out_ended()
        self.schedule.begin()
