"""Flows as data sets of torch: shares of a pass for ranks and for the workers of a DataLoader, and saved positions."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from dataflow.base import DataFlow, ProxyDataFlow, require_flow
from dataflow.errors import NotReproducible
from dataflow.frameworks.tensors import import_torch, tensor_maker
from dataflow.parallel.worker_node import WorkerNode
from dataflow.parameters import flag
from dataflow.passes import walk
from dataflow.pickling import dumps, imported_main, loads
from dataflow.seeding import Stream, current_root, fresh_root
from dataflow.state import state_of
from dataflow.transforms.resuming import ResumableData
from dataflow.transforms.sharding import ShardData, Tail, place, require_seed

__all__ = ["FlowDataset", "to_torch"]

_LOG = logging.getLogger(__name__)

_MAX_WORKERS: Final = 1024  # of one DataLoader
_ROOT_WORDS: Final = 3
_RANK: Final = ("RANK", "WORLD_SIZE")


def to_torch(
    df: DataFlow, *, rank: int | None = None, world_size: int | None = None, drop_uneven: bool = False
) -> FlowDataset:
    """Make a `torch.utils.data.IterableDataset` of a flow, for torch's DataLoader.

    Each iteration is the next pass of the flow, with tensors in place of arrays: they share the memory of the arrays.
    Python integers and int32 arrays become int64, as torch wants labels; every other dtype stays.

    Let the flow make the batches, and pass ``batch_size=None``. If the flow has a runner or a parallel map, leave
    ``num_workers=0``: its workers do the work. Otherwise the workers of a DataLoader, and the ranks of a training job,
    share each pass, and no datapoint comes twice. A flow that can be addressed is read by index; of any other, each
    worker and each rank makes the whole pass and takes every n-th datapoint.

    The result has `state_dict` and `load_state_dict`, which StatefulDataLoader of torchdata uses to resume.

    Args:
        df: The flow.
        rank: Number of this process, from 0. If neither `rank` nor `world_size` is given, both are those of
            `torch.distributed` if it is initialised, or of the environment (RANK and WORLD_SIZE), or 0 of 1. They are
            read when an iteration begins.
        world_size: Number of processes.
        drop_uneven: Leave out the last datapoints of a pass if they cannot be divided equally between the ranks, so
            that all make the same number of steps. Otherwise the first ranks may have one more.

    Raises:
        MissingExtra: torch is not installed.
        TypeError: `df` is no flow, or counts itself: it holds `ResumableData`, or another data set of `to_torch`.
        NotReproducible: Several ranks or workers would have to share a flow whose order differs from process to
            process: no seed is set, or a runner mixes the datapoints of its workers.

    Example:
        >>> from torch.utils.data import DataLoader  # doctest: +SKIP
        >>> df = BatchData(DataFromList([[np.ones(3), k] for k in range(8)]), 4)
        >>> for images, labels in DataLoader(to_torch(df), batch_size=None):  # doctest: +SKIP
        ...     print(images.shape, labels.dtype)
        torch.Size([4, 3]) torch.int64
        torch.Size([4, 3]) torch.int64
    """
    import_torch("to_torch needs")
    _require_no_count(require_flow(df, "to_torch", "df"))
    given = None if rank is None and world_size is None else place("to_torch", rank, world_size, os.environ)
    dataset: FlowDataset = _dataset_class()(df, given, flag("to_torch", "drop_uneven", drop_uneven), fresh_root())
    return dataset


class FlowDataset:
    """A flow as a data set of torch. `to_torch` makes it, as a subclass of IterableDataset."""

    def __init__(
        self,
        df: DataFlow,
        given: tuple[int, int] | None,
        drop_uneven: bool,
        own_root: int,
        root: int | None = None,
        passes: PassCounter | WorkerPasses | None = None,
        loaded: tuple[int | None, int] = (None, 0),
    ) -> None:
        self._df = df
        self._given = given  # rank and world_size; None to look them up
        self._drop_uneven = drop_uneven
        self._own_root = own_root  # of flows without `dataflow.seed`; the workers of a DataLoader have it in common
        self._root = root  # of `dataflow.seed` in the process that has sent this one here; None if it was not called
        self._passes = PassCounter() if passes is None else passes
        self._flow: tuple[Any, DataFlow] | None = None  # the share of one place, and the place
        self._begun: int | None = None  # the pass of the current iteration
        # The pass of a loaded state, for the next iteration, and the process that has loaded it.
        self._loaded, self._loaded_by = loaded
        self._is_over = False  # ... of which nothing is left
        self._has_ended = False  # the current iteration, by itself
        _DATASETS.add(self)

    def __iter__(self) -> Iterator[Any]:
        # A generator, which begins a pass with its first step: StatefulDataLoader makes iterators that it does not use.
        flow, worker = self._here()
        loaded, is_over = self._loaded is not None, self._is_over
        if loaded and self._loaded_by != os.getpid():
            raise NotReproducible(
                f"to_torch: a state was loaded into the data set in process {self._loaded_by}, before it came to this "
                "one. Load it here; in the workers of a DataLoader, StatefulDataLoader of torchdata does that"
            )
        p = self._passes_here(worker).begin(self._loaded)
        self._warn(flow, worker, p)
        self._begun, self._loaded, self._is_over, self._has_ended = p, None, False, False
        state = state_of(flow)
        if not loaded:
            state.passes = p
        convert = tensor_maker(import_torch("to_torch needs"))
        if is_over:
            self._has_ended = True
            return
        datapoints = iter(flow)
        if loaded:
            # If nothing is left of the pass, which is not known in advance without a length, `ResumableData` goes on
            # with the next one; but other workers may still be in this one.
            for dp in islice(datapoints, 1):
                if state.passes > p + 1:
                    self._has_ended = True
                    return
                yield convert(dp)
        yield from map(convert, datapoints)
        self._has_ended = True

    def __len__(self) -> int:
        rank, world_size = self._rank()
        whole, rest = divmod(len(self._df), world_size)
        return whole + (not self._drop_uneven and rank < rest)

    def state_dict(self) -> dict[str, Any]:
        """The position of this share: JSON, as of `ResumableData`.

        If it is saved within a loop, after the last datapoint, nothing is left for the first loop after
        `load_state_dict`; if it is saved after a loop has ended, the first loop gets the next pass.

        Raises:
            NotReproducible: The order of the flow is not defined, or its passes depend on those before; or the workers
                of a DataLoader have the position, and this is another process.
        """
        flow, worker = self._here()
        resumable = flow if isinstance(flow, ResumableData) else ResumableData(flow)  # raises
        passes = self._passes_here(worker)
        if isinstance(passes, PassCounter) and passes.is_with_workers:
            raise NotReproducible(f"to_torch: the state of the data set was asked for in the main process, {_CURE}")
        if self._begun is None and self._loaded is None:
            state_of(flow).passes = passes.following()
        state = resumable.state_dict()
        if self._begun is None:
            return {**state, "over": self._is_over}
        # A loop that has ended continues with the next pass. But a worker waits until the others have ended, too.
        waits = worker is not None or not self._has_ended
        return {**state, "over": waits and state["pass"] > self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next iteration where `state` was saved. The flow, ranks and workers must be the same.

        Raises:
            StateMismatch: `state` is malformed, or belongs to another chain, another seed or another number of workers.
            NotReproducible: The order of the flow is not defined, or its passes depend on those before.
        """
        flow, _ = self._here()
        resumable = flow if isinstance(flow, ResumableData) else ResumableData(flow)  # raises
        resumable.load_state_dict({key: value for key, value in state.items() if key != "over"})
        self._own_root = int(state["root"])
        self._is_over = bool(state.get("over"))
        self._loaded, self._loaded_by = state["pass"] - self._is_over, os.getpid()
        self._begun = None

    def __reduce__(self) -> tuple[Any, ...]:
        root = self._root if current_root() is None else current_root()
        given = self._given or self._rank()  # where this goes, torch.distributed may not be initialised
        # As for our own workers: lambdas and classes of the main program can be sent as well.
        df = dumps(self._df, main=imported_main())
        counter = self.counter()
        passes = self._passes if counter is None else counter.transfer(_starting_iterator()) or counter
        loaded = self._loaded, self._loaded_by
        return _rebuilt, (df, given, self._drop_uneven, self._own_root, root, passes, loaded)

    # -- the share of this process -------------------------------------------------------------------------------------

    def _rank(self) -> tuple[int, int]:
        if self._given is not None:
            return self._given
        distributed = import_torch("to_torch needs").distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
            return place("to_torch", None, None, {name: os.environ[name] for name in _RANK if name in os.environ})
        return 0, 1

    def _here(self) -> tuple[DataFlow, Any]:
        """The flow of the share of this process; and the info of this worker of a DataLoader, None without."""
        worker = import_torch("to_torch needs").utils.data.get_worker_info()
        rank, world_size = self._rank()
        workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        where = (os.getpid(), rank, world_size, *workers)
        if self._flow is None or self._flow[0] != where:
            tail: Tail = "drop" if self._drop_uneven else "keep"
            share_of_rank = _share(self._df, rank, world_size, tail)
            self._flow = where, _resumable(_share(share_of_rank, workers[0], workers[1], "keep"))
        flow = self._flow[1]
        state = state_of(flow)
        if state.entropy is None:
            # Ranks draw different roots; the workers of one rank have theirs in common.
            state.entropy = self._own_root if self._root is None else self._root
            state.fixed = self._root is not None or world_size == 1
        return flow, worker

    def counter(self) -> PassCounter | None:
        """What counts passes in this process, unless it is a worker of a DataLoader that was sent the data set."""
        if isinstance(self._passes, PassCounter):
            self._passes = self._passes.in_this_process()
            return self._passes
        return None

    def _passes_here(self, worker: Any) -> PassCounter | WorkerPasses:
        """What counts the passes in this process, which is checked to be the right one."""
        if isinstance(self._passes, PassCounter) and worker is not None:
            self._passes = self._passes.in_forked_worker()
        elif worker is None:
            self._passes = self._passes.in_this_process()
        if isinstance(self._passes, WorkerPasses):
            self._passes.check(worker)
        return self._passes

    def _warn(self, flow: DataFlow, worker: Any, p: int) -> None:
        if worker is None or worker.id:
            return
        runner = next((node for node in walk(self._df) if isinstance(node, WorkerNode) and node.num_workers), None)
        if p == 0 and runner is not None:
            _LOG.warning(
                "%s starts workers of its own in each of the %d workers of a DataLoader: num_workers=0 is enough",
                runner._df_title,
                worker.num_workers,
            )
        is_new = isinstance(self._passes, WorkerPasses) and self._passes.num_begun == 1
        if p == 1 and is_new and (self._df._df_endless or not isinstance(flow, ResumableData)):
            _LOG.warning(
                "pass %d of %s begins again with its first datapoints, because the workers of a DataLoader are new and "
                "its passes continue where the last one stopped. Pass num_workers=0, or cut it with FixedSizeData",
                p,
                type(self._df).__name__,
            )


def _require_no_count(df: DataFlow) -> None:
    """Raise if a node of `df` has a position of its own, which would be ignored: the data set counts."""
    for node in walk(df, everywhere=True):
        if isinstance(node, ResumableData):
            raise TypeError(
                "to_torch: the position of ResumableData would be ignored, because the data set counts itself: pass "
                "the flow without ResumableData. The data set has state_dict and load_state_dict, and "
                "StatefulDataLoader calls them"
            )
        values = [value for held in vars(node).values() for value in (held, getattr(held, "dataset", None))]
        if any(isinstance(value, FlowDataset) for value in values):
            raise TypeError(
                f"to_torch: {type(node).__name__} reads a data set of to_torch, so each would take its share of the "
                "share of the other. Call to_torch once, with the whole flow"
            )


@functools.cache
def _dataset_class() -> Any:
    """`FlowDataset` as a subclass of IterableDataset, made when torch is there."""
    data = import_torch("to_torch needs").utils.data
    return type("FlowIterableDataset", (FlowDataset, data.IterableDataset), {"__module__": __name__})


def _rebuilt(df: bytes, *values: Any) -> Any:
    return _dataset_class()(loads(df), *values)


def _resumable(flow: DataFlow) -> DataFlow:
    try:
        return ResumableData(flow)
    except NotReproducible:
        return flow


# -- Counting passes ---------------------------------------------------------------------------------------------------


_CURE: Final = (
    "but the workers of a DataLoader do the work, each with a position of its own. Use StatefulDataLoader of "
    "torchdata, which saves and loads those, or num_workers=0"
)
_PASS_BITS: Final = 32
_NUMBER, _SLOTS = 0, 1  # words in shared memory: the number of the group begun last; a word for each worker


@dataclass(slots=True)
class _Group:
    """One start of the workers of a DataLoader, or one iteration without workers.

    Attributes:
        number: Which group of its data set, from 1.
        first: The pass that it begins with.
        num_started: How many workers have been started so far.
    """

    number: int
    first: int
    num_started: int = 0


class PassCounter:
    """Counts the passes of a data set, in the process that iterates.

    A DataLoader starts a group of workers for each iteration, or with ``persistent_workers`` for many, and tells them
    neither which nor how many there were. But its iterator is on the stack of the thread that starts them, whether the
    data set is pickled for a worker or inherited by a fork. So this process gives each iterator a number, and the
    first pass of its group; the worker receives both, and compares its index and the number of workers with what was
    counted here.

    Guarantees:

    - The number of a pass depends on what this process has iterated, and on nothing else: not on seeds, on when a
      worker starts, or on forks by others.
    - Several loaders may be iterated at a time: each iteration is a pass of its own.
    - A group that goes on (persistent workers) counts its further passes itself. Once another group has begun, it
      raises instead.

    What workers report, in shared memory: their slot has the number of their group and the pass that they have begun,
    if it is not the first of their group. Each slot has one writer at a time; a late one has the number of its group.
    """

    def __init__(self, first: int = 0) -> None:
        words = import_torch("to_torch needs").zeros(_SLOTS + _MAX_WORKERS, dtype=import_torch("to_torch needs").int64)
        self._words = words.share_memory_()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()  # by iterator
        self._last = _Group(0, first - 1)
        self._forked: dict[int, WorkerPasses] = {}  # by thread: for the worker that it is forking off
        self.is_with_workers = False  # the last pass was begun by the workers of a DataLoader

    def following(self) -> int:
        """The number of the next pass."""
        found = [word & (1 << _PASS_BITS) - 1 for word in self._reported() if word >> _PASS_BITS == self._last.number]
        return max(found, default=self._last.first) + 1

    def _reported(self) -> list[int]:
        reported: list[int] = self._words[_SLOTS:].tolist() if self.is_with_workers else []
        return reported

    def begin(self, loaded: int | None = None) -> int:
        """Begin an iteration in this process, and return the number of its pass: `loaded`, from a state, if given."""
        with self._lock:
            return self._begin(loaded, with_workers=False).first

    def _begin(self, loaded: int | None, *, with_workers: bool) -> _Group:
        self._last = _Group(self._last.number + 1, self.following() if loaded is None else loaded)
        self._words[_NUMBER] = self._last.number
        self.is_with_workers = with_workers
        return self._last

    def transfer(self, iterator: Any) -> WorkerPasses | None:
        """What the next worker of a DataLoader's iterator receives; None if it is none, so that a copy counts anew."""
        if iterator is None:
            return None
        with self._lock:
            group = self._groups.get(iterator)
            if group is None:
                group = self._groups[iterator] = self._begin(None, with_workers=True)
            group.num_started += 1
            return WorkerPasses(
                group.number, group.first, group.num_started - 1, vars(iterator)["_num_workers"], self._words
            )

    def before_fork(self, iterator: Any) -> None:
        """Note what a worker receives that this thread is about to fork off."""
        made = self.transfer(iterator)
        if made is None:
            self._forked.pop(threading.get_ident(), None)
        else:
            self._forked[threading.get_ident()] = made

    def in_forked_worker(self) -> WorkerPasses:
        """What this worker of a DataLoader has received by the fork; only the thread that forked is left in it."""
        received = None if os.getpid() == self._pid else self._forked.get(threading.get_ident())
        if received is None:
            raise NotReproducible(
                "to_torch: this worker was not started by torch's DataLoader for this data set, so the number of its "
                "pass is not known. Pass the data set itself to DataLoader, or use num_workers=0"
            )
        return received

    def in_this_process(self) -> PassCounter:
        """The counter itself; in a forked process, which iterates on its own, one that goes on from here."""
        return self if os.getpid() == self._pid else PassCounter(self.following())

    def __reduce__(self) -> tuple[Any, ...]:
        return PassCounter, (self.following(),)


class WorkerPasses:
    """The passes of one worker of a DataLoader, as the process that has started it counts them. Picklable.

    Args:
        number: Of the group of workers.
        first: The first pass of the group.
        index: Which worker of the group this one is.
        num_workers: How many there are.
        words: In shared memory.
    """

    def __init__(self, number: int, first: int, index: int, num_workers: int, words: Any) -> None:
        self._number, self._first, self._index, self._num_workers, self._words = (
            number,
            first,
            index,
            num_workers,
            words,
        )
        self.num_begun = 0  # passes, by this worker
        self._next = first

    def check(self, worker: Any) -> None:
        """Raise if this is not the worker that was meant.

        Raises:
            NotReproducible: It is another one.
        """
        if worker.num_workers > _MAX_WORKERS:
            raise ValueError(f"to_torch: a DataLoader may have {_MAX_WORKERS} workers, got {worker.num_workers}")
        if (worker.id, worker.num_workers) != (self._index, self._num_workers):
            raise NotReproducible(
                f"to_torch: this is worker {worker.id} of {worker.num_workers} of a DataLoader, but received the "
                f"passes of worker {self._index} of {self._num_workers}: the data set was also sent elsewhere while "
                "the workers were started. Make a data set for each use, by another to_torch"
            )

    def following(self) -> int:
        """The number of the next pass."""
        return self._next

    def begin(self, loaded: int | None = None) -> int:
        """Begin a pass, and return its number: `loaded`, from a state, if given.

        Raises:
            NotReproducible: This worker goes on, but the data set was given to another DataLoader meanwhile.
        """
        if self.num_begun and int(self._words[_NUMBER]) != self._number:
            raise NotReproducible(
                "to_torch: the data set was iterated elsewhere since the persistent workers of this DataLoader began, "
                "so the number of their next pass is not known. Make a data set for each, by another to_torch"
            )
        p = self._next if loaded is None else loaded
        if p != self._first:
            self._words[_SLOTS + self._index] = self._number << _PASS_BITS | p
        self.num_begun += 1
        self._next = p + 1
        return p

    def in_this_process(self) -> PassCounter:
        """The counter of a process that was started by a worker and iterates on its own."""
        return PassCounter(self._next)


_DATASETS: Final[weakref.WeakSet[FlowDataset]] = weakref.WeakSet()


def _before_fork() -> None:
    """Called in the thread that forks: give each data set that a worker of a DataLoader inherits its number."""
    iterator = _starting_iterator() if _DATASETS else None
    for dataset in list(_DATASETS):
        counter = dataset.counter()
        if counter is not None:
            counter.before_fork(
                iterator if iterator is not None and _holds(vars(iterator)["_dataset"], dataset) else None
            )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


def _starting_iterator() -> Any:
    """The iterator of a DataLoader whose constructor is on the stack of this thread; None if there is none.

    It is known by its attributes, which are the same in torch and in torchdata.
    """
    frame = sys._getframe(1) if "torch.utils.data.dataloader" in sys.modules else None
    while frame is not None:
        if frame.f_code.co_name == "__init__":
            attributes = getattr(frame.f_locals.get("self"), "__dict__", {})
            if {"_dataset", "_dataset_kind"} <= attributes.keys() and attributes.get("_num_workers"):
                return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _holds(value: Any, dataset: FlowDataset, depth: int = 4) -> bool:
    """Whether `value`, the data set of a DataLoader, is `dataset` or holds it, as a chain of data sets does."""
    if value is dataset:
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if not items and isinstance(getattr(value, "__dict__", None), dict):
        items = vars(value).values()
    return depth > 0 and len(items) <= _MAX_WORKERS and any(_holds(item, dataset, depth - 1) for item in items)


# -- shares ------------------------------------------------------------------------------------------------------------


def _share(df: DataFlow, rank: int, world_size: int, tail: Tail) -> DataFlow:
    """Every `world_size`-th datapoint of each pass, from number `rank`."""
    if world_size == 1:
        return df
    if df._df_addressable:
        return ShardData(df, rank, world_size, tail)
    return TakenInTurn(df, rank, world_size, tail)


class TakenInTurn(ProxyDataFlow):
    """Every `world_size`-th datapoint of a flow that cannot be addressed: each process makes the whole pass."""

    def __init__(self, ds: DataFlow, rank: int, world_size: int, tail: str) -> None:
        super().__init__(ds)
        self.rank, self.world_size, self.tail = rank, world_size, tail
        mixed = next((node for node in walk(ds, everywhere=True) if not node._df_reproducible), None)
        if mixed is not None:
            name = mixed._df_title
            raise NotReproducible(
                f"to_torch: {world_size} processes would have to share the datapoints of {name}, which come in another "
                f"order in each. Pass strict=True to {name}, or use one process"
            )

    @property
    def _df_indexed(self) -> bool:
        return False

    @property
    def _df_own_rank(self) -> int | None:  # type: ignore[override]
        return self.rank

    @property
    def _df_compared(self) -> dict[str, Any]:
        return {name: value for name, value in super()._df_compared.items() if name != "rank"}

    def __len__(self) -> int:
        whole, rest = divmod(len(self.ds), self.world_size)
        return whole + (self.tail == "keep" and self.rank < rest)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        require_seed("to_torch", self.ds, self.world_size, stream)
        datapoints = self.ds._df_run_pass(p, replace(stream, shared=True))
        while True:
            taken = [*islice(datapoints, self.world_size)]
            if len(taken) < self.world_size and (self.tail == "drop" or len(taken) <= self.rank):
                return
            yield taken.pop(self.rank)
