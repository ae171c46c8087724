"""What a node says about itself, besides its datapoints: where its random numbers come from, and what a pass of it is.

Whoever promises sameness (shards, saved states, strict runners) asks these questions; a node that is special answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from dataflow.seeding import IndexRngs, Stream

__all__ = ["NodeInfo"]


class NodeInfo:
    """The traits of a node, as they are where a node says nothing else."""

    _df_draws: bool = False
    """Whether this node draws random numbers."""

    _df_own_root: int | None = None
    """A root seed of its own (`seed=` of random nodes), instead of the one told from above."""

    _df_own_rank: int | None = None
    """Which share of its input this node takes; None if it is no shard, or the only one."""

    _df_run_settings: ClassVar[frozenset[str]] = frozenset()
    """Attributes that say how this node is run, not which datapoints it gives: a fingerprint ignores them."""

    _df_remote_inputs: ClassVar[bool] = False
    """Whether the inputs are reset and iterated elsewhere, by workers."""

    @property
    def _df_inputs(self) -> Sequence[Any]:
        """The flows below."""
        return ()

    @property
    def _df_indexed(self) -> bool:
        """Whether this node itself can be addressed, given inputs that can."""
        return False

    # -- random numbers ------------------------------------------------------------------------------------------------

    @property
    def _df_level(self) -> int:
        """How many nodes below, along first inputs, draw or join."""
        first = self._df_first()
        return 0 if first is None else first._df_level + (first._df_draws or first._df_joins)

    @property
    def _df_joins(self) -> bool:
        """Whether this node has several inputs, each with a stream of its own."""
        return len(self._df_inputs) > 1

    @property
    def _df_shard_ranks(self) -> tuple[int, ...]:
        """The ranks of the shards below, along first inputs: what is drawn above a shard differs between ranks."""
        first = self._df_first()
        if first is None:
            return ()
        below: tuple[int, ...] = first._df_shard_ranks
        return below if first._df_own_rank is None else (*below, first._df_own_rank)

    def _df_first(self) -> Any:
        return next(iter(self._df_inputs), None)

    def _df_words(self, stream: Stream, p: int, *, purpose: int = 0) -> tuple[int, ...]:
        """The key of this node's random numbers in pass `p`."""
        return stream.words(self._df_level, p, root=self._df_own_root, purpose=purpose, ranks=self._df_shard_ranks)

    def _df_index_rngs(self, stream: Stream, n: int | None) -> IndexRngs:
        """The generators that belong to this node's indexes, with `n` datapoints per pass; None for an endless flow.

        What it returns can be pickled, and holds nothing of the node: a map that works in workers sends it along, and
        asks there for the generator of each index. So does `RandomMapData`, here; so both draw the same.
        """
        words = partial(stream.words, self._df_level, root=self._df_own_root, ranks=self._df_shard_ranks)
        return IndexRngs(words, n)

    # -- passes --------------------------------------------------------------------------------------------------------

    @property
    def _df_reproducible(self) -> bool:
        """Whether this node gives the same datapoints in the same order whenever seed and pass are the same.

        A runner that mixes what several workers make does not.
        """
        return not (self._df_remote_inputs and self._df_joins)

    @property
    def _df_continues(self) -> bool:
        """Whether a pass goes on where the last one stopped, so that none can be begun without those before it.

        It matters only where the node is not read by index: not addressed, and no part of an addressable flow with a
        length, of which every pass follows from the seed.
        """
        return self._df_remote_inputs and not self._df_indexed

    @property
    def _df_ends_if_strict(self) -> bool:
        """Whether this node makes passes endless, and would not with ``strict=True``."""
        return False

    @property
    def _df_grain(self) -> int:
        """How many consecutive indexes share work: blocks that are a multiple of it do nothing twice."""
        return 1

    # -- saved states --------------------------------------------------------------------------------------------------

    @property
    def _df_stands_for(self) -> Any:
        """The node that gives the same datapoints without workers: for a runner its input, else the node itself.

        A saved state knows only that one; so it may be loaded under another runner, or with another number of workers.
        """
        return self._df_first() if self._df_remote_inputs else self

    @property
    def _df_compared(self) -> dict[str, Any]:
        """What a saved state compares besides types and lengths: the public attributes."""
        settings = self._df_run_settings
        found = {name: value for name, value in vars(self).items() if not name.startswith("_") and name not in settings}
        return {name: value for name, value in found.items() if name not in vars(NodeInfo)} | {
            "seed": self._df_own_root
        }
