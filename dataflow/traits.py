"""What a node says about itself, besides its datapoints: where its random numbers come from, and what a pass of it is.

Whoever promises sameness (shards, saved states, strict runners) asks these questions; a node that is special answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from dataflow.seeding import IndexRngs, Stream

__all__ = ["Traits"]


class Traits:
    """The traits of a node, as they are where a node says nothing else."""

    draws: bool = False
    """Whether this node draws random numbers."""

    own_root: int | None = None
    """A root seed of its own (`seed=` of random nodes), instead of the one told from above."""

    own_rank: int | None = None
    """Which share of its input this node takes; None if it is no shard, or the only one."""

    remote_inputs: ClassVar[bool] = False
    """Whether the inputs are reset and iterated elsewhere, by workers."""

    @property
    def inputs(self) -> Sequence[Any]:
        """The flows below."""
        return ()

    @property
    def indexed(self) -> bool:
        """Whether this node itself can be addressed, given inputs that can."""
        return False

    # -- random numbers ------------------------------------------------------------------------------------------------

    @property
    def level(self) -> int:
        """How many nodes below, along first inputs, draw or join."""
        first = self._first()
        return 0 if first is None else first.level + (first.draws or first.joins)

    @property
    def joins(self) -> bool:
        """Whether this node has several inputs, each with a stream of its own."""
        return len(self.inputs) > 1

    @property
    def shard_ranks(self) -> tuple[int, ...]:
        """The ranks of the shards below, along first inputs: what is drawn above a shard differs between ranks."""
        first = self._first()
        if first is None:
            return ()
        below: tuple[int, ...] = first.shard_ranks
        return below if first.own_rank is None else (*below, first.own_rank)

    def _first(self) -> Any:
        return next(iter(self.inputs), None)

    def words(self, stream: Stream, p: int, *, purpose: int = 0) -> tuple[int, ...]:
        """The key of this node's random numbers in pass `p`."""
        return stream.words(self.level, p, root=self.own_root, purpose=purpose, ranks=self.shard_ranks)

    def index_rngs(self, stream: Stream, n: int | None) -> IndexRngs:
        """The generators that belong to this node's indexes, with `n` datapoints per pass; None for an endless flow.

        What it returns can be pickled, and holds nothing of the node: a map that works in workers sends it along, and
        asks there for the generator of each index. So does `RandomMapData`, here; so both draw the same.
        """
        words = partial(stream.words, self.level, root=self.own_root, ranks=self.shard_ranks)
        return IndexRngs(words, n)

    # -- passes --------------------------------------------------------------------------------------------------------

    @property
    def reproducible(self) -> bool:
        """Whether this node gives the same datapoints in the same order whenever seed and pass are the same.

        A runner that mixes what several workers make does not.
        """
        return not (self.remote_inputs and self.joins)

    @property
    def continues(self) -> bool:
        """Whether a pass goes on where the last one stopped, so that none can be begun without those before it.

        It matters only where the node is not read by index: not addressed, and no part of an addressable flow with a
        length, of which every pass follows from the seed.
        """
        return self.remote_inputs and not self.indexed

    @property
    def grain(self) -> int:
        """How many consecutive indexes share work: blocks that are a multiple of it do nothing twice."""
        return 1

    # -- saved states --------------------------------------------------------------------------------------------------

    @property
    def stands_for(self) -> Any:
        """The node that gives the same datapoints without workers: for a runner its input, else the node itself.

        A saved state knows only that one; so it may be loaded under another runner, or with another number of workers.
        """
        return self._first() if self.remote_inputs else self

    @property
    def compared(self) -> dict[str, Any]:
        """What a saved state compares besides types and lengths: the public attributes."""
        found = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {name: value for name, value in found.items() if name not in vars(Traits)} | {"seed": self.own_root}
