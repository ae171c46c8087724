"""Indexes that somebody above asks a strict runner or map for: its workers make them, one block at a time.

Guarantees:

- The datapoints are those that the flow itself has at these indexes, whoever makes them.
- Nobody is disturbed: while an iteration is under way, or at another place in the chain, they are made in the calling
  process. So are those that the user picks (``df[index]``), and single ones.
- A block is asked for when the one before it was given; so workers may idle between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks
from dataflow.engine.pass_engine import PassEngine
from dataflow.parallel.worker_setup import Placed, Staffed
from dataflow.passes import picked_here
from dataflow.seeding import Stream
from dataflow.state import state_of

__all__ = ["Addressed", "is_consecutive"]


class Addressed(Staffed):
    """A node whose workers can be asked for indexes."""

    @property
    def _df_grain(self) -> int:
        return self.ds._df_grain * max(1, self.num_workers)  # so that there is something for each

    def _df_at_home(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        """What is at these indexes, made in the calling process."""
        raise NotImplementedError

    def _df_steps_of_block(self, engine: Any, block: NDArray[np.int64], stream: Stream) -> Iterator[Any] | None:
        """Ask the workers for a block: its datapoints, with holes. None where they cannot be asked."""
        raise NotImplementedError

    def _df_at_work(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        """What is at these indexes, made by the workers where they can be asked."""
        for block in blocks:
            engine = None if picked_here() or len(block) < 2 else self._free_engine(stream)
            made = None if engine is None else self._df_steps_of_block(engine, block, stream)
            yield from self._df_at_home([block], stream) if made is None else made

    def _free_engine(self, stream: Stream) -> PassEngine | None:
        life = state_of(self)
        with life.lock:
            engine = life.resource
            if isinstance(engine, Placed) and engine.stream.turns != stream.turns:
                return None  # of one node in two places, one has the workers: to start others for each block costs more
            engine = self._df_engine_at(stream)
        return engine if isinstance(engine, PassEngine) and engine.is_free else None


def is_consecutive(block: NDArray[np.int64]) -> bool:
    """Whether each index is the one before it and one."""
    return bool((np.diff(block) == 1).all())
