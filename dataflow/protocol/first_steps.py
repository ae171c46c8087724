"""Checks of the first steps of the code in a user's node or source in each process: from what it draws.

Guarantees:

- After `FirstCalls.num_steps_left` steps, the code is stepped as if there were no checks.
- Where a pass is made again, by other ranks or in a resumed run (`Stream.repeated`), a draw from a global generator
  raises, in every loop. Where a node only promises the same datapoints, it is logged once.
- What the nodes below draw is not put down to the code above them: it counts only if the code names such a generator,
  and seeds none.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, TypeVar

from dataflow.errors import NotReproducible
from dataflow.protocol.first_calls import warn
from dataflow.protocol.generators import (
    drawn_from,
    global_generators,
    holds_global,
    may_seed,
    mentions_globals,
    names_any,
    states_of,
)
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import FirstCalls, state_of

__all__ = ["WatchedSteps"]

T = TypeVar("T")

_DRAWING_ANYWAY: Final = frozenset({"DataLoader"})  # of torch: each iteration of one draws a number, in any order


class WatchedSteps:
    """The first steps of the code of the node `df` in one pass at `stream`; they are watched.

    Args:
        df: The node.
        stream: Its place.
        below: Yields the nodes below it.

    Raises:
        NotReproducible: The code is known to draw from a global generator, and the pass is made again elsewhere.
    """

    def __init__(self, df: Any, stream: Stream, below: Callable[[Any], Iterator[Any]]) -> None:
        self._below = below
        self._df = weakref.ref(df)  # the node may keep the iterator
        self._calls = state_of(df).part(FirstCalls)
        self._is_repeated = stream.repeated
        self._seeded: set[str] = set()  # in this pass: what follows from a seed is the same in each
        if stream.repeated and self._calls.draws:
            raise NotReproducible(self._calls.draws)

    def call(self, step: Callable[[], T]) -> T:
        """What `step` returns, which calls the code."""
        before = states_of(global_generators())
        try:
            out = step()
        except StopIteration:
            self._look(before)
            raise
        self._look(before)
        return out

    def steps(self, iterator: Iterator[Any]) -> Generator[Any, None, bool]:
        """Yield the first of `iterator`; return whether it has ended."""
        while self._calls.num_steps_left > 0:
            self._calls.num_steps_left -= 1  # before the step, which may be left for good
            try:
                yield self.call(iterator.__next__)  # no variable: it would keep the datapoint until the next step
            except StopIteration:
                return True
        return False

    def _look(self, before: dict[str, Any]) -> None:
        after = states_of(global_generators())
        changed = {name for name in before if name in after and after[name] != before[name]}
        if not changed:
            return
        drawn = drawn_from(before, after)
        self._seeded |= changed - {*drawn}
        drawn = [name for name in drawn if name not in self._seeded]
        df = self._df()
        if not drawn or df is None or self._calls.draws:
            return
        promise = self._calls.promise
        is_alone = threading.current_thread() is threading.main_thread() and not (promise and promise.shares_process)
        names_them = mentions_globals(df) or holds_global(df)
        if "torch" in drawn and names_any(df, _DRAWING_ANYWAY):
            drawn.remove("torch")
        if not drawn or may_seed(df) or not _is_own([*self._below(df)], names_them, is_alone):
            return
        text = _text(df, "" if promise is None else f"{promise.owner}: ", drawn)
        if names_them:
            self._calls.draws = text
        if self._is_repeated and names_them and is_alone:
            raise NotReproducible(text)
        if promise is not None and not promise.refuses:
            self._calls.broken = self._calls.broken or text
        self._calls.num_steps_left = 0
        warn(text)


def _is_own(below: Sequence[Any], names_them: bool, is_alone: bool) -> bool:
    """Whether the code of the node has drawn, and not that of a node below, or of another thread."""
    if any(state_of(node).part(FirstCalls).has_warned for node in below):
        return False
    return names_them or (is_alone and not any(node._df_calls for node in below))


def _text(df: Any, owner: str, names: list[str]) -> str:
    return (
        f"{owner}the code of {type(df).__name__} draws random numbers from the global generator of "
        f"{' and '.join(names)}, whose numbers are others in each process and each run: shares of a pass may "
        "overlap, and a resumed run may repeat datapoints and leave out others. Draw from self.rng in the __iter__ "
        "of a class that derives from RNGDataFlow: its numbers follow from dataflow.seed and the pass. Or make a "
        "generator with a seed of its own in the code, such as random.Random(7)"
    )
