"""A worker in the place of one that has died."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from dataflow.channel.protocols import Receiver
from dataflow.engine.plan import Plan
from dataflow.errors import WorkerDied
from dataflow.workers.pool import WorkerPool

__all__ = ["Restarts"]

_LOG = logging.getLogger(__name__)


class Restarts:
    """How many deaths are still made good; and how it is done.

    Guarantees:

    - All that the dead worker had sent was heard before: so nothing of it can be taken for its successor's.
    - The successor has an arena, and a way to the consumer, that nobody used before it: what the dead one left half
      done in memory or in a pipe is gone with it. Its counters go on where the dead one was heard.

    Args:
        plan: What is run; `specs` holds what each worker runs at present.
        num_left: How many deaths are made good.

    Attributes:
        num_left: How many still are.
    """

    def __init__(self, plan: Plan, num_left: int) -> None:
        self._plan = plan
        self.num_left = num_left
        self._num_made = 0

    def made_good(self, worker: int, death: WorkerDied, pool: WorkerPool, receiver: Receiver) -> bool:
        """Start another in the place of `worker`; False if there were too many deaths."""
        if not self.num_left:
            return False
        self.num_left -= 1
        self._num_made += 1
        plan = self._plan
        plan.codec.renew(worker)
        port = receiver.readmit(worker)
        spec = replace(plan.specs[worker], port=port, encoder=plan.codec.port(worker))
        try:
            pool.replace(worker, partial(plan.start, spec))
        except BaseException:
            port.hand_over()  # to nobody
            raise
        plan.specs[worker] = spec
        _LOG.warning(
            "%s. Another was started in its place: restart %d, of at most %d",
            death,
            self._num_made,
            self._num_made + self.num_left,
        )
        return True
