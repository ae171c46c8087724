"""Numbers of passes for the workers of a DataLoader, given by the process that iterates.

torch tells its workers no number of a pass, and nothing that they have in common is new in each. But workers are
started in one place: by the constructor of an iterator of torch, which is on the stack of the thread that forks a
worker, or that pickles the data set for it. Later passes of persistent workers begin with `_reset` of this iterator.
Both run in the process that iterates, which numbers a pass before a worker can ask for it.

Guarantees:

- All workers of a pass read the same number, and each pass that this process begins has another, in the order in which
  they begin: also with several loaders at a time, loops left early, and workers that are slow to start.
- A fork, or a pickling, by other code changes nothing: no such constructor is on its stack.
- All passes belong to one flow: a mixture whose weights have changed since the first pass raises, and so does a flow
  that has changed since persistent workers were given a copy of it.
- A worker that was given no number, because torch or a wrapper hides the data set, or because a pass is iterated
  twice, raises.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from dataflow.errors import NotReproducible, StateMismatch
from dataflow.protocol.base import DataFlow
from dataflow.protocol.changes import Snapshot
from dataflow.protocol.passes import walk
from dataflow.protocol.seeding import current_root

__all__ = ["Counter", "Member", "keeping", "member_of_started", "unnumbered"]

# Words of a group in shared memory
_LATEST: Final = 0  # how many passes the group has begun after its first
_OFFSET: Final = 1  # number of the latest pass, less the word before
_LOADED: Final = 2  # the pass of a state that workers have loaded; -1 for none
_KEEPS: Final = 3  # whether a node of the user's keeps something from pass to pass
_ROOT: Final = 4  # the root seed of the state, from here on
_NUM_WORDS: Final = 21
_BITS: Final = 62

_NEEDED: Final = {"_dataset", "_workers", "_num_workers", "_persistent_workers"}  # attributes of torch's iterator
_RESET: Final = "_reset"  # its method
_MAX_DEPTH: Final = 4  # of data sets in data sets
_MAX_ITEMS: Final = 1000  # of a list in which a data set is looked for


class Member(NamedTuple):
    """What a worker is given: the words of its group, and who it is."""

    words: Any
    worker: int
    num_workers: int
    keeps: bool  # workers of groups before have noted that a node keeps something

    def number(self, worker: Any, k: int) -> int:
        """The number of the `k`-th pass of the group, in the worker with this info of torch."""
        if (self.worker, self.num_workers) != (worker.id, worker.num_workers):
            raise NotReproducible(
                f"to_torch: worker {worker.id} of {worker.num_workers} of a DataLoader has the data set of worker "
                f"{self.worker} of {self.num_workers}. {_CURE}"
            )
        if k > int(self.words[_LATEST]):
            raise NotReproducible(
                "to_torch: a worker of a DataLoader has iterated the data set twice in one pass, which the process "
                "that iterates the DataLoader cannot count. Iterate it once, or make a second data set by to_torch"
            )
        p = k + int(self.words[_OFFSET])
        if p and (self.keeps or self.words[_KEEPS]):
            raise keeping("A node of your own")
        return p

    def note_kept(self) -> None:
        """Tell the process that iterates, and its workers, that a node keeps something from pass to pass."""
        self.words[_KEEPS] = 1

    def note_loaded(self, p: int, root: int) -> None:
        """Tell the process that iterates that its workers have loaded a state of pass `p`."""
        if root.bit_length() > _BITS * (_NUM_WORDS - _ROOT):
            raise StateMismatch(
                f"the state was saved with a seed of {root.bit_length()} bits. Call dataflow.seed with it before you "
                "resume"
            )
        for j in range(_ROOT, _NUM_WORDS):
            self.words[j] = root >> _BITS * (j - _ROOT) & (1 << _BITS) - 1
        self.words[_LOADED] = p  # last: where it is set, the words of the root are complete


_CURE: Final = (
    "Pass the data set itself to the DataLoader; or use num_workers=0 and a runner in the flow, such as ParallelData"
)


def keeping(name: str) -> NotReproducible:
    """The error of a worker in which `name` should continue with what it kept in the pass before."""
    return NotReproducible(
        f"to_torch: {name} keeps something from pass to pass, which workers of a DataLoader cannot know: some are new "
        "in each pass, others have read ahead. Pass num_workers=0; or make it a variable of __iter__"
    )


def unnumbered() -> NotReproducible:
    """The error of a worker that was given nothing."""
    return NotReproducible(
        "to_torch: the data set is in a worker of a DataLoader, but was not found in what the DataLoader was given, so "
        f"that the pass has no number. Make it before the workers start, and do not hide it. {_CURE}"
    )


class _Group:
    """The workers that one iterator of torch has started, for one data set."""

    def __init__(self, iterator: Any, p: int, flow: Snapshot | None) -> None:
        torch = sys.modules["torch"]
        self.iterator = weakref.ref(iterator)
        self.flow = flow  # what persistent workers were given; None if each pass has new ones
        self.root = current_root()
        self.is_read = False  # the state that its workers have loaded
        # Shared memory of torch reaches forked workers and, by its pickle, spawned ones.
        self.words = torch.zeros(_NUM_WORDS, dtype=torch.int64).share_memory_()
        self.words[_OFFSET], self.words[_LOADED] = p, -1

    def begin(self, p: int) -> None:
        """Let a later pass be number `p`: its workers read it when torch has told them to begin."""
        latest = int(self.words[_LATEST]) + 1
        self.words[_OFFSET] = p - latest
        self.words[_LATEST] = latest


class Counter:
    """Counts the passes of one data set, in the process that iterates it."""

    def __init__(
        self, df: DataFlow, begun: int, root: int, fixed: bool, weights: tuple[str, ...] | None = None
    ) -> None:
        self.df = df
        self.begun = begun  # how many passes; the number of the next
        self.root = root  # of flows without `dataflow.seed`
        self.fixed = fixed  # the root is not drawn, but of a saved state
        self.weights = weights  # of mixtures, when the first pass began; None before
        self.by_workers = False  # whether the latest pass is that of a group
        self.keeps = False  # workers have noted that a node keeps something from pass to pass
        self._groups: list[_Group] = []

    def next(self) -> int:
        """The number of the pass that begins in this process."""
        with _forks.lock:
            self.by_workers = False
            p = self._next()
        if self.keeps:
            raise keeping("A node of your own")
        return p

    def require_same_weights(self) -> None:
        """Check that a pass can go on where the one before has stopped: mixtures have the weights of the first pass.

        Raises:
            ValueError: The weights of one are others.
        """
        weights = self._note_weights()
        if weights != self.weights:
            raise ValueError(
                f"MixData: weights were {', '.join(self.weights or ())} when the first loop over the data set of "
                f"to_torch began, and are {', '.join(weights)} now. The position in each flow follows from them, so "
                "the data set cannot continue with others. Make a new one by to_torch, which begins with the first "
                "datapoint of each flow"
            )

    def _note_weights(self) -> tuple[str, ...]:
        """The weights of now, which are those of the first pass if there was none."""
        weights = self.df._df_weights()
        self.weights = weights if self.weights is None else self.weights
        return weights

    def member(self, iterator: Any) -> Member:
        """What the next worker of this iterator is given; its first worker begins a pass."""
        with _forks.lock:
            group = next((group for group in self._groups if group.iterator() is iterator), None)
            if group is None:
                self._note_weights()  # new workers compare them: what a fork hook raises, Python only prints
                is_persistent = vars(iterator)["_persistent_workers"]
                group = _Group(iterator, self._next(), self._snapshot() if is_persistent else None)
                self._groups.append(group)
                self.by_workers = True
                # An attribute of the iterator itself hides the method of its class: torch calls ours for later passes.
                if is_persistent:
                    begun = vars(iterator).setdefault(_RESET, _Reset(iterator)).begun
                    begun.append(partial(self._begin_later, group))
        return Member(group.words, len(vars(iterator)["_workers"]), vars(iterator)["_num_workers"], self.keeps)

    def read_loaded(self) -> None:
        """Continue with what workers have loaded since: they did so before their iterator was ready."""
        with _forks.lock:
            for group in self._groups:
                self.keeps = self.keeps or bool(group.words[_KEEPS])
                loaded = int(group.words[_LOADED])
                if loaded >= 0 and not group.is_read:
                    group.is_read = True  # not in shared memory, which a forked process may read as well
                    self.begun, self.fixed = loaded + 1, True
                    self.root = sum(word << _BITS * j for j, word in enumerate(group.words[_ROOT:].tolist()))
            self._groups = [group for group in self._groups if group.iterator() is not None]

    def _next(self) -> int:
        self.read_loaded()
        self.begun += 1
        return self.begun - 1

    def _snapshot(self) -> Snapshot:
        return Snapshot(walk(self.df, everywhere=True))

    def _begin_later(self, group: _Group) -> None:
        with _forks.lock:
            self.require_same_weights()
            change = None if group.flow is None else group.flow.difference(self._snapshot())
            if change is not None:
                raise NotReproducible(
                    "to_torch: the persistent workers of a DataLoader have a copy of the flow, which has changed "
                    f"since they started: {change}. Make a new DataLoader; or leave out persistent_workers, and each "
                    "loop starts new workers"
                )
            if group.root != current_root():
                raise NotReproducible(
                    f"to_torch: dataflow.seed({current_root()}) was called after the persistent workers of a "
                    f"DataLoader had started with dataflow.seed({group.root}). Call it before, or make a new DataLoader"
                )
            self.by_workers = True
            group.begin(self._next())


class _Reset:
    """Takes the place of `_reset` of an iterator with persistent workers: numbers the pass that begins.

    It holds the iterator weakly: torch ends the workers when the iterator is collected.
    """

    def __init__(self, iterator: Any) -> None:
        self.begun: list[Any] = []  # to call, one for each data set
        self._iterator = weakref.ref(iterator)

    def __call__(self, *args: Any, **options: Any) -> Any:
        iterator: Any = self._iterator()
        if not (options.get("first_iter") or any(args[1:2])):  # the constructor calls it as well
            for begin in self.begun:
                begin()
        return getattr(type(iterator), _RESET)(iterator, *args, **options)


# -- what torch is about to start --------------------------------------------------------------------------------------


def member_of_started(dataset: Any) -> Member | None:
    """What the worker is given for which this thread pickles `dataset`; None if it is pickled for another reason."""
    iterator = _started()
    if iterator is None or not any(found is dataset for found in _contained(vars(iterator)["_dataset"])):
        return None
    member: Member = dataset.counter.member(iterator)
    return member


def _started() -> Any:
    """The iterator of torch whose constructor starts a worker in this thread; None if there is none."""
    loader = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(loader, "_BaseDataLoaderIter", ())  # torchdata's iterators derive from it
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__init__" and isinstance(found := frame.f_locals.get("self"), kind):
            return found if vars(found).keys() >= _NEEDED and vars(found)["_num_workers"] else None
        frame = frame.f_back
    return None


def _contained(dataset: Any) -> Iterator[Any]:
    """The data sets of `to_torch` in a data set of torch: itself, or what it holds in attributes, lists and dicts."""
    waiting, seen = [(dataset, 0)], set()
    while waiting:
        value, depth = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        if isinstance(held.get("counter"), Counter):
            yield value
        elif depth < _MAX_DEPTH and not isinstance(value, DataFlow | type | ModuleType):
            listed = value if isinstance(value, list | tuple) else ()
            items = [*islice(listed, _MAX_ITEMS), *islice(held.values(), _MAX_ITEMS)]
            waiting += [(item, depth + 1) for item in items]


class _Forks:
    """Gives forked workers what spawned ones get by pickling."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # of all counters
        self._given: dict[int, list[tuple[Any, Member]]] = {}  # by the thread that forks

    def before(self) -> None:
        iterator = _started()
        if iterator is not None:
            found = [*_contained(vars(iterator)["_dataset"])]
            # By thread: others may fork at the same time, for workers of another loader.
            self._given[threading.get_ident()] = [(dataset, dataset.counter.member(iterator)) for dataset in found]

    def in_parent(self) -> None:
        self._given.pop(threading.get_ident(), None)

    def in_child(self) -> None:
        # The one thread of the child has the identifier of the thread that has forked it.
        given, self._given = self._given.pop(threading.get_ident(), []), {}
        self.lock = threading.RLock()  # another thread of the parent may have held it
        for dataset, member in given:
            dataset.join(member)


_forks = _Forks()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.before, after_in_parent=_forks.in_parent, after_in_child=_forks.in_child)
