"""What is known here of users' nodes whose passes workers make, and two passes of a node at the same time.

At least one of the two is made by a worker, or read ahead of the loop. Otherwise each sees what the other has changed
in the attributes of the node, as far as the loop has come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import ref

from dataflow.errors import NotReproducible
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import RESET, Kept, Taken, state_of
from dataflow.system.worker_info import place_words

__all__ = ["CURE", "KeptInWorker", "PassHere", "differing", "kept_in_worker", "readers", "warn_of_change"]

_LOG: Final = logging.getLogger(__name__)
CURE: Final = "Make it a variable of __iter__"


class KeptInWorker:
    """What a node keeps whose passes are made by a worker, as far as this process knows; or are read ahead here."""

    def __init__(self) -> None:
        self.reported: dict[str, Any] = {}  # what has changed since the first pass, as of the last report
        self.is_due = False  # this did not come from the worker, which must not continue with what it has
        self.is_loaded = False  # a state has given this, and no pass has begun since
        self.follows_lost = False  # a pass was left early before this one, and what it had changed is not known
        self.is_for_both = False  # passes are made here, too, and the node was given it here as well
        self.node: Callable[[], Any] = lambda: None  # a weak reference
        self.runner: Callable[[], Any] = lambda: None  # a weak reference to what has begun the last of these passes
        self.has_itself = False  # the worker is a thread: it has the node, or a runner below it knows what that keeps
        self.here: Kept | None = None  # that of the node here, if the worker has a copy of it
        self.seen: dict[str, Any] = {}  # the attributes of the node here, as the last pass began
        self.taken: Taken | None = None  # of the last pass
        self.num_begun = 0  # such passes
        self.changed = ""  # an attribute that the last pass has changed, once that is known
        self.overlaps = False  # another pass of the node was made during the last one
        self.before: dict[str, Any] = {}  # `reported`, as the first of passes began that overlap, or the last one

    def begin(self, df: Any, reader: Any, taken: Taken) -> None:
        """Note that `reader` begins a pass of the node `df`, in a worker or by reading it ahead.

        Raises:
            NotReproducible: Another pass is not over, and has changed something.
        """
        self.overlaps = self.is_running(beside=[taken, *readers(taken.stream)])
        if self.overlaps:
            self.require_alone(df, self.changed)
        self.node, self.runner = ref(df), ref(reader)
        self.taken, self.changed = taken, ""
        self.num_begun += 1

    def is_running(self, beside: Sequence[Taken]) -> bool:
        """Whether the loop may take more of the last pass, and that is none of the nodes `beside` another one."""
        nodes = {id(taken.node) for taken in beside}  # of weak references: there is one for each node
        return any(not (taken.is_over or taken.is_stopped or id(taken.node) in nodes) for taken in self._last())

    @property
    def is_over(self) -> bool:
        """Whether the loop has seen the end of the last pass."""
        return all(taken.is_over for taken in self._last())

    def _last(self) -> list[Taken]:
        return [] if self.taken is None else [self.taken, *readers(self.taken.stream)]

    def require_alone(self, df: Any, changed: str) -> None:
        """Check that nothing was changed by one of two passes that were made at the same time.

        Raises:
            NotReproducible: The attribute `changed` was.
        """
        if changed:
            runner = self.runner()
            where = "another node" if runner is None else type(runner).__name__
            raise NotReproducible(
                f"{type(df).__name__}.{changed} is kept from pass to pass, and two passes were made at the same time, "
                f"at least one of them ahead of the loop, for {where}: what one sees of the changes by the other is "
                f"not what it sees without workers. {CURE}; or make one {type(df).__name__} for each; or iterate one "
                "pass to its end before the next begins"
            )


def kept_in_worker(df: Any) -> KeptInWorker:
    """What the node `df` keeps whose passes are made by a worker of this place: the main process, or a worker.

    The threads of runners in each other have the same nodes, and one for each place: a pass of the inner runner that
    was abandoned may end while the outer one is given what its next pass begins with.
    """
    found: KeptInWorker = state_of(df).part(Kept).in_workers.setdefault(place_words(), KeptInWorker())
    return found


def readers(stream: Stream) -> list[Taken]:
    """What reads a pass at `stream` ahead of the loop, the innermost first."""
    found: list[Taken] = []
    while stream.ahead is not None:
        found.append(stream.ahead)
        stream = stream.ahead.stream
    return found


class PassHere:
    """A pass of the node `df` at `stream` that is made here, while there may be another.

    A worker's pass begins with what the node keeps by then, and what it changes is known at its end. So of two passes
    at the same time, neither sees what the other changes, or one that is read ahead lets the other see too much. If
    either changes anything, that is refused: as soon as it is known, at the latest when the first of them is over. If
    the other pass was left early, it is logged.

    Raises:
        NotReproducible: Another pass is not over, and has changed something.
    """

    def __init__(self, df: Any, stream: Stream) -> None:
        part = self._part_of(df)
        self._num_begun = 0 if part is None else part.num_begun
        self._is_ahead = stream.ahead is not None
        self._overlaps = part is not None and part.is_running(beside=readers(stream))
        self._before: dict[str, Any] | None = None
        if part is not None and not part.is_over:
            from dataflow.protocol.kept_values import describe  # which few flows need

            self._before = describe(df)
            if self._overlaps:
                part.overlaps = True
                part.require_alone(df, part.changed)

    def end(self, df: Any) -> None:
        """The pass is whole.

        Raises:
            NotReproducible: Another pass overlaps it, and one of the two has changed something.
        """
        part = self._part_of(df)
        # What is read ahead may go on in the next pass of what reads it, as below `FixedSizeData`.
        overlaps = part is not None and (self._overlaps or (part.num_begun > self._num_begun and not self._is_ahead))
        if part is not None and (overlaps or self._before is not None):
            from dataflow.protocol.kept_changes import changed_since  # which few flows need

            found = changed_since(df, part.seen if self._before is None else self._before)
            changed = next(iter(found), part.changed)
            if overlaps:
                part.overlaps = True  # what the other one changes may not be known yet
            if self._is_ahead and not overlaps:
                part.changed = changed
            if overlaps or (self._is_ahead and part.overlaps):
                part.require_alone(df, changed)
            elif changed and not self._is_ahead:
                warn_of_change(df, changed)

    @staticmethod
    def _part_of(df: Any) -> KeptInWorker | None:
        known = state_of(df).part(Kept).in_workers
        return known.get(place_words()) if known else None


def differing(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The attributes that a node keeps otherwise than before."""
    return [name for name in {**now, **before} if name != RESET and now.get(name) != before.get(name)]


def warn_of_change(df: Any, name: str) -> None:
    """Log, once for the node `df`, that a pass was left early and that its attribute `name` changes."""
    part = state_of(df).part(Kept)
    if not part.has_warned:
        part.has_warned = True
        _LOG.warning(
            "%s.%s is kept from pass to pass, and a pass was left early after it had been read ahead: datapoints "
            "that depend on it are others than without workers. %s; or iterate whole passes; or cut them above "
            "what reads ahead, with FixedSizeData(…, size), which continues with the next datapoint",
            type(df).__name__,
            name,
            CURE,
        )
