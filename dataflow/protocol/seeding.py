"""Random seeds: one root seed, from which every node, pass and worker derives independent random numbers.

Guarantees:

- A number depends on (root, turns, level, pass, position) and on nothing else: not on time, process id or how often it
  was asked for.
- `level` counts the nodes below that draw or join. Wrapping a flow, printing it, batching it, or moving it into one
  worker changes no number.
- Input ``j > 0`` of a node that joins several takes a *turn* ``(level of the join, j)``; input 0 takes none.
"""

from __future__ import annotations

import functools
import secrets
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.parameters import whole_number

__all__ = [
    "Depth",
    "IndexRngs",
    "Positions",
    "Rng",
    "Spread",
    "Stream",
    "Table",
    "Turns",
    "current_root",
    "derived",
    "fresh_root",
    "permutation",
    "rng",
    "root_seed",
    "seed",
]


class _Root:
    """The root seed of this process; if None, every outermost flow draws its own."""

    def __init__(self) -> None:
        self.value: int | None = None


_ROOT = _Root()


def seed(n: int | None) -> None:
    """Fix the root of all random numbers of all flows in this process and of the workers that they start.

    It is read when an iteration begins, when a flow is indexed, and when workers start.

    Args:
        n: An integer from 0; None returns to fresh entropy for every flow.

    Raises:
        ValueError: `n` is negative.

    Example:
        >>> def shuffled():
        ...     return [k for (k,) in DataFromList([[k] for k in range(5)])]
        >>> dataflow.seed(7); first = shuffled()
        >>> dataflow.seed(7); first == shuffled()
        True
        >>> dataflow.seed(None)
    """
    _ROOT.value = None if n is None else whole_number("dataflow.seed", "seed", n, 0)


def root_seed(owner: object, seed: int | None) -> int | None:
    """Return the ``seed=`` of a node as an integer.

    Raises:
        ValueError: `seed` is negative.
        TypeError: `seed` is not an integer.
    """
    return None if seed is None else whole_number(owner, "seed", seed, 0)


def current_root() -> int | None:
    """The root fixed by `seed`; None if it was not called."""
    return _ROOT.value


def fresh_root() -> int:
    """128 bits of fresh entropy."""
    return secrets.randbits(128)


Turns = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """The source of random numbers at one place of a chain: the root seed and the turns taken on the way down.

    `drawn` says that the root was drawn rather than fixed: another process that runs the same flow has drawn another
    one. `standalone` is set where a pass must follow from the seed and its number alone, and not depend on the passes
    before it: the reason and the cure, which continue the sentence "a pass of … continues where the last one stopped".
    `shared` is set where several processes make the same pass, `repeated` where they do or a resumed run does. `begin`
    is the position at which the shard below, or the batches below it, begin their passes: 0, except in the rest of a
    pass that another number of ranks had begun. `ahead` is the `Taken` of the node that reads it ahead of the loop, in
    this process, or None.
    """

    root: int
    turns: Turns = ()
    drawn: bool = field(default=False, compare=False)
    standalone: str = field(default="", compare=False)
    shared: bool = field(default=False, compare=False)
    repeated: bool = field(default=False, compare=False)
    begin: int = 0
    ahead: Any = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream, (self.root, self.turns, self.drawn, self.standalone, self.shared, self.repeated, self.begin)

    def turn(self, level: int, j: int) -> Stream:
        """The stream of input `j` of a node at `level`: input 0 keeps the stream."""
        return self if j == 0 else self.at((level, j))

    def at(self, *turns: tuple[int, int], standalone: str | None = None) -> Stream:
        """The stream behind further turns; `standalone` replaces that of this one, if given."""
        reason = self.standalone if standalone is None else standalone
        return Stream(
            self.root, (*self.turns, *turns), self.drawn, reason, self.shared, self.repeated, ahead=self.ahead
        )

    def words(
        self, level: int, p: int, *, root: int | None = None, purpose: int = 0, ranks: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """The key of one generator: at this place, for a node at `level`, in pass `p`.

        `root` replaces the root seed (a node's own ``seed=``); `purpose` separates generators of one node, `ranks` the
        processes that each take a share of what is below.
        """
        flat = (word for turn in self.turns for word in turn)
        return (self.root if root is None else root, len(self.turns), *flat, level, p, purpose, *ranks)


def _sequence(words: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(words[0], spawn_key=words[1:])


def derived(words: tuple[int, ...]) -> int:
    """A root seed that follows from `words` alone."""
    return int.from_bytes(_sequence(words).generate_state(4).tobytes(), "little")


class Rng(np.random.Generator):
    """A `numpy.random.Generator` that also knows the old names of `numpy.random.RandomState`.

    Ported nodes may keep calling ``self.rng.rand``, ``randn``, ``randint`` and ``random_sample``.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return Rng, (self.bit_generator,)

    def rand(self, *shape: int) -> Any:
        """Uniform float64 in [0, 1), of the given shape; a float without one."""
        return self.random(shape or None)

    def randn(self, *shape: int) -> Any:
        """Standard normal float64 of the given shape; a float without one."""
        return self.standard_normal(shape or None)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64) -> Any:
        """Integers from `low` (inclusive) to `high` (exclusive), or from 0 to `low`; a Python int without `size`."""
        drawn = self.integers(low, high, size, dtype)  # keywords would cost 60 ns more
        return int(drawn) if size is None and (not isinstance(drawn, np.ndarray) or drawn.ndim == 0) else drawn

    def random_sample(self, size: Any = None) -> Any:
        """Uniform float64 in [0, 1)."""
        return self.random(size)

    def spawn(self, n_children: int) -> list[np.random.Generator]:
        """Independent generators, which follow from the numbers drawn here, not from earlier calls."""
        keys = self.integers(0, 2**32, size=(n_children, 4), dtype=np.uint32)
        return [Rng(np.random.PCG64(np.random.SeedSequence(key.tolist()))) for key in keys]

    def seed(self, *_: Any) -> None:
        """Not supported: the error says what to use instead."""
        raise TypeError("rng.seed() would break reproducibility: rng is renewed every pass. Call dataflow.seed(n).")

    def get_state(self, *_: Any, **__: Any) -> None:
        """Not supported: the error says what to use instead."""
        raise TypeError("rng has no get_state(): its numbers follow from (dataflow.seed, pass). Save those instead.")

    def set_state(self, *_: Any) -> None:
        """Not supported: the error says what to use instead."""
        raise TypeError("rng has no set_state(): its numbers follow from (dataflow.seed, pass). Call dataflow.seed(n).")


def rng(words: tuple[int, ...]) -> Rng:
    """The generator with this key (8 µs; for many positions of one pass use `Positions`)."""
    return Rng(np.random.PCG64(_sequence(words)))


class Positions:
    """The generators of all positions of one pass: one Philox that is moved by its counter (about 1 µs each).

    Guarantees:

    - `at` always begins at the start of a position: the numbers drawn for one position do not affect another.
    - A generator that is still referenced stays that of its position: the next call makes another one, which costs ten
      times as much as moving one. So drop the reference before the next call, unless the generator must be kept.
    - One user at a time: each thread makes its own `Positions`.
    """

    def __init__(self, words: tuple[int, ...]) -> None:
        self._philox = np.random.Philox(_sequence(words))
        self._rng = Rng(self._philox)
        self._state = self._philox.state
        self._counter = self._state["state"]["counter"]
        self._counter[:] = 0
        self._unkept = self._references()

    def at(self, position: int) -> Rng:
        """The generator of one position, at its beginning. Positions are 2**192 numbers apart."""
        if self._references() != self._unkept:
            self._philox = np.random.Philox(0)
            self._rng = Rng(self._philox)
        self._counter[3] = position
        self._philox.state = self._state
        return self._rng

    def _references(self) -> tuple[int, int]:
        """Reference counts, read in one place, so that in every Python only references from elsewhere differ."""
        return sys.getrefcount(self._rng), sys.getrefcount(self._philox)


class Depth(NamedTuple):
    """What is below a node, along first inputs; the keys of its random numbers follow from it."""

    level: int = 0  # nodes that draw or join
    num_calling: int = 0  # nodes that call the user's code
    ranks: tuple[int, ...] = ()  # of shards


class Spread(NamedTuple):
    """Which positions of a whole pass a node has, whose datapoints are a share of it one by one."""

    first: int = 0
    stride: int = 1
    ranks: tuple[int, ...] = ()  # of shards below whose positions the node does not keep


class IndexRngs:
    """The generators that belong to the indexes of one node. Picklable.

    Args:
        words: The key of the node's random numbers in a pass.
        n: Datapoints per pass; None for an endless flow, which is pass 0 as a whole.
        first: The position in the whole pass of the node's first datapoint.
        stride: The distance there from each datapoint of the node to the next.
    """

    def __init__(self, words: Callable[[int], tuple[int, ...]], n: int | None, first: int = 0, stride: int = 1) -> None:
        self._words = words
        self._n = n
        self._first, self._stride = first, stride
        self._p = -1  # the pass of the positions
        self._positions: Positions | None = None  # None before the first call

    def at(self, index: int) -> Rng:
        """The generator of one index, at its beginning, as from `Positions.at`; cheap while the pass stays the same."""
        return self.of(0, index) if self._n is None else self.of(*divmod(index, self._n))

    def of(self, p: int, position: int) -> Rng:
        """The generator of one position of pass `p`, for a flow that is only a sequence of passes."""
        if self._positions is None or p != self._p:
            self._p, self._positions = p, Positions(self._words(p))
        return self._positions.at(self._first + self._stride * position)

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexRngs, (self._words, self._n, self._first, self._stride)


def permutation(words: tuple[int, ...], n: int) -> NDArray[Any]:
    """A permutation of ``range(n)``: uint32 (n,), uint64 from 2**32 on."""
    order = np.arange(n, dtype=np.uint32 if n < 2**32 else np.uint64)
    rng(words).shuffle(order)
    return order


class Table:
    """A one-entry cache of a pure function of its key; never pickled.

    A node may keep one: a value that follows from (seed, pass) alone is not state.
    """

    def __init__(self) -> None:
        self._last: tuple[Hashable, Any] | None = None

    def get(self, key: Hashable, make: functools.partial[Any]) -> Any:
        """The value of `make()`, made once as long as `key` stays the same.

        Two threads may both make it: the pair is replaced at once, so neither sees a value of another key.
        """
        last = self._last
        if last is None or last[0] != key:
            last = (key, make())
            self._last = last
        return last[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, ()
