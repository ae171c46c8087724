"""Flows as data sets of torch: shares of a pass for ranks and for the workers of a DataLoader, and saved positions."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Final

from dataflow.errors import NotReproducible, StateMismatch
from dataflow.frameworks.tensors import import_torch, tensor_maker
from dataflow.frameworks.worker_groups import Counter, Member, keeping, member_of_started, unnumbered
from dataflow.protocol.base import DataFlow, require_flow
from dataflow.protocol.kept import kept_by, own_nodes
from dataflow.protocol.parameters import flag
from dataflow.protocol.passes import walk
from dataflow.protocol.pauses import Pause, limit, pausing, resumed
from dataflow.protocol.seeding import current_root, fresh_root
from dataflow.protocol.state import FirstCalls, Promise, state_of
from dataflow.runners.worker_node import WorkerNode
from dataflow.system.pickling import dumps, imported_main, loads
from dataflow.transforms.grouping import MemoryWatch, may_reuse_memory
from dataflow.transforms.resuming import ResumableData, Resumed, begin_of
from dataflow.transforms.sharding import ShardData, Tail, place

__all__ = ["FlowDataset", "to_torch"]

_LOG = logging.getLogger(__name__)

_RANK: Final = ("RANK", "WORLD_SIZE")


def to_torch(
    df: DataFlow, *, rank: int | None = None, world_size: int | None = None, drop_uneven: bool = False
) -> FlowDataset:
    """Make a `torch.utils.data.IterableDataset` of a flow, for torch's DataLoader.

    Each iteration is the next pass of the flow, with tensors in place of arrays: they share the memory of the arrays.
    Python integers and int32 arrays become int64, as torch wants labels; every other dtype stays. Where a DataLoader
    keeps tensors, in its workers or to make a batch, a flow that yields one array again and again is an error.

    Let the flow make the batches, and pass ``batch_size=None``. If the flow has a runner or a parallel map, leave
    ``num_workers=0``: its workers do the work. Otherwise the workers of a DataLoader, and the ranks of a training job,
    share each pass, and no datapoint comes twice. A flow that can be addressed is read by index; of any other, each
    worker and each rank makes the whole pass and takes every n-th datapoint. Each loop that begins is the next pass of
    the data set, also with several loaders.

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
    dataset: FlowDataset = _dataset_class()(df, given, flag("to_torch", "drop_uneven", drop_uneven))
    return dataset


class FlowDataset:
    """A flow as a data set of torch. `to_torch` makes it, as a subclass of IterableDataset."""

    def __init__(self, df: DataFlow, given: tuple[int, int] | None, drop_uneven: bool) -> None:
        self._df = df
        self._given = given  # rank and world_size; None to look them up
        self._drop_uneven = drop_uneven
        self.counter = Counter(df, 0, fresh_root(), fixed=False)
        self.member: Member | None = None  # of a group of workers; None in the process that iterates
        self._num_made = 0  # iterations, by a worker
        self._root: int | None = None  # of `dataflow.seed` in the process that has sent this one here
        self._flow: tuple[Any, DataFlow] | None = None  # the share of one place, and the place
        self._begun: int | None = None  # the pass of the current iteration
        self._state: Mapping[str, Any] | None = None  # loaded, for the next iteration
        self._has_ended = False  # the current iteration, by itself

    def __iter__(self) -> Iterator[Any]:
        self._num_made += 1
        self._begun = None
        self.counter.by_workers = False
        waits = self._df._df_waits
        # Torch's frames are looked for now: at the first step of the generator, others may be on the stack.
        return pausing(self._datapoints(self._num_made - 1, waits, _is_collated()), waits, "the data set")

    def _datapoints(self, k: int, waits: bool, is_collated: bool) -> Iterator[Any]:
        # A pass begins with its first step: StatefulDataLoader makes iterators that it does not use.
        flow, worker = self._here()
        p = self._number(worker, k)
        state, loaded = state_of(flow), self._state
        is_over = loaded is not None and _is_over(loaded)
        if loaded is None:
            state.passes = p
        else:
            p = _pass_of(loaded)
            self.counter.begun = p + 1
        self.counter.require_same_weights()
        self._check(worker, p)
        self._begun, self._state, self._has_ended = p, None, False
        convert = tensor_maker(import_torch("to_torch needs"))
        if is_over:
            self._has_ended = True
            return
        datapoints = iter(flow)
        # A worker of a DataLoader sends datapoints in another thread.
        if (is_collated or worker is not None) and may_reuse_memory(flow):
            datapoints = state.part(MemoryWatch).over(datapoints, waits)
        if loaded is not None:
            # If nothing is left of the pass, which is not known in advance without a length, `ResumableData` goes on
            # with the next one; but other workers may still be in this one.
            for dp in resumed(limit(datapoints, waits, 1), waits):
                if type(dp) is Pause:
                    yield dp
                    continue
                if state.passes > p + 1:
                    self._has_ended = True
                    return
                yield convert(dp)
        yield from resumed(map(convert, datapoints), waits)
        self._note_kept(flow, is_continued=k > 0 or p == 0 or loaded is not None)
        self._has_ended = self._begun == p

    def _note_kept(self, flow: DataFlow, *, is_continued: bool) -> None:
        """At the end of a pass in a worker: see whether nodes keep something; `is_continued` says whether they may."""
        if self.member is None:
            return
        for df, changed in zip(own_nodes(flow), kept_by(flow), strict=True):
            if changed:
                self.member.note_kept()
                if not is_continued:
                    raise keeping(f"{type(df).__name__}.{min(changed)}")

    def join(self, member: Member) -> None:
        """Become the data set of a forked worker."""
        self.member, self._num_made, self._begun = member, 0, None

    def __len__(self) -> int:
        rank, world_size = self._rank()
        whole, rest = divmod(len(self._df), world_size)
        return whole + (not self._drop_uneven and rank < rest)

    def state_dict(self) -> dict[str, Any]:
        """The position of this share: JSON, as of `ResumableData`.

        If it is saved within a loop, after the last datapoint, nothing is left for the first loop after
        `load_state_dict`; if it is saved after a loop has ended, the first loop gets the next pass.

        Raises:
            NotReproducible: The order of the flow is not defined, its passes depend on those before, or a function has
                drawn from a random generator that it holds.
        """
        flow, worker = self._here()
        resumable = flow if isinstance(flow, ResumableData) else ResumableData(flow)  # raises
        for node in walk(flow):
            if state_of(node).part(FirstCalls).broken:
                raise NotReproducible(state_of(node).part(FirstCalls).broken)
        if worker is None and self.counter.by_workers:
            raise NotReproducible(
                "to_torch: the workers of a DataLoader make the datapoints, and this process does not know how many. "
                "Use StatefulDataLoader of torchdata, and its state_dict(); or num_workers=0"
            )
        num_workers = 1 if worker is None else worker.num_workers
        if self._state is not None:
            return {**resumable.state_dict(), "over": _is_over(self._state), "workers": num_workers}
        if self._begun is None:
            flow_state = state_of(flow)
            resumed_at, flow_state.passes = flow_state.part(Resumed), self._coming(worker)
            if resumed_at.bookmark is None or not self._df._df_endless:  # otherwise it goes on after the one before
                resumed_at.bookmark = begin_of(flow_state, flow_state.passes)
            return {**resumable.state_dict(), "over": False, "workers": num_workers}
        # A loop that has ended continues with the next pass. But a worker waits until the others have ended, too.
        state = resumable.state_dict()
        waits = worker is not None or not self._has_ended
        return {**state, "over": waits and state["pass"] > self._begun, "workers": num_workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next iteration where `state` was saved.

        With ``num_workers=0`` the number of ranks may be another one, and then the size of the batches, as for
        `ResumableData`. The workers of a DataLoader must be as many as before.

        Raises:
            StateMismatch: `state` is malformed, or belongs to another chain, another seed or another number of workers.
            NotReproducible: The order of the flow is not defined, or its passes depend on those before.
        """
        self._state = None
        flow, _ = self._here()
        self._load(flow, state)
        self._state, self._begun, self.counter.by_workers = dict(state), None, False
        root = int(state["root"])
        self.counter.begun, self.counter.root, self.counter.fixed = _pass_of(state), root, True
        self.counter.weights = None  # a state of other weights belongs to another chain
        if self.member is not None:
            self.member.note_loaded(_pass_of(state), root)

    def __reduce__(self) -> tuple[Any, ...]:
        root = self._root if current_root() is None else current_root()
        given = self._given or self._rank()  # where this goes, torch.distributed may not be initialised
        # As for our own workers: lambdas and classes of the main program can be sent as well.
        df = dumps(self._df, main=imported_main())
        member = member_of_started(self)
        count = self.counter.begun, self.counter.root, self.counter.fixed, self.counter.weights
        return _rebuilt, (df, given, self._drop_uneven, count, member, root, self._state)

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
        if worker is None:
            self.counter.read_loaded()
        rank, world_size = self._rank()
        workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        where = (os.getpid(), rank, world_size, *workers)  # the pid, since a forked process has inherited this share
        if self._flow is None or self._flow[0] != where:
            tail: Tail = "drop" if self._drop_uneven else "keep"
            several, is_first = world_size > 1 or workers[1] > 1, workers[0] == 0
            share_of_rank = _share(self._df, rank, world_size, tail, warns=is_first)
            share = _share(share_of_rank, workers[0], workers[1], "keep", warns=is_first and world_size == 1)
            self._flow = where, _resumable(share, several)
            if self._state is not None:
                self._load(self._flow[1], self._state)  # it was loaded elsewhere
        flow = self._flow[1]
        state = state_of(flow)
        root = self.counter.root if self._root is None else self._root
        if state.entropy != root:
            # Ranks draw different roots; the workers of one rank have theirs in common.
            state.entropy = root
            state.fixed = self._root is not None or world_size == 1 or self.counter.fixed
        return flow, worker

    def _load(self, flow: DataFlow, state: Mapping[str, Any]) -> None:
        resumable = flow if isinstance(flow, ResumableData) else ResumableData(flow)  # raises
        worker = import_torch("to_torch needs").utils.data.get_worker_info()
        if self._state is not None and worker is not None:
            raise StateMismatch(
                "to_torch: a state was loaded into the data set, which is now in a worker of a DataLoader; each worker "
                "has a state of its own. Load it with num_workers=0; or save and load with StatefulDataLoader"
            )
        here = 1 if worker is None else worker.num_workers
        there = state.get("workers", here) if isinstance(state, Mapping) else here
        if there != here:
            raise StateMismatch(
                f"to_torch: the state was saved by one of {there} workers of a DataLoader, each with its own share, "
                f"and is loaded by one of {here}. Use as many workers; or save and load with num_workers=0"
            )
        # Workers are not in step with each other, so their positions say nothing about those of other numbers.
        resumable._df_load(state, elastic=here == 1)
        if current_root() is None and self._root not in {None, int(state["root"])}:
            raise StateMismatch(
                f"the state was saved with the seed {state['root']}, but this program has called "
                f"dataflow.seed({self._root}). Leave out the call, or use the same number"
            )
        resumable._df_promise = Promise("to_torch")

    def _number(self, worker: Any, k: int) -> int:
        """The number of the pass that begins, the `k`-th of a worker."""
        if worker is None:
            return self.counter.next()
        if self.member is None:
            raise unnumbered()
        return self.member.number(worker, k)

    def _coming(self, worker: Any) -> int:
        """The number of the pass that begins with the next step."""
        if worker is not None:
            return self._number(worker, max(0, self._num_made - 1))
        return self.counter.begun

    def _check(self, worker: Any, p: int) -> None:
        if worker is None:
            return
        runner = next((node for node in walk(self._df) if isinstance(node, WorkerNode) and node.num_workers), None)
        if p == 0 and runner is not None and not worker.id:
            _LOG.warning(
                "%s starts workers of its own in each of the %d workers of a DataLoader: num_workers=0 is enough",
                runner._df_title,
                worker.num_workers,
            )
        continuing = self._df if self._df._df_endless else self._df._df_continuing()
        if p and continuing is not None:
            raise NotReproducible(
                f"to_torch: the passes of {type(continuing).__name__} continue where the last one stopped, but the "
                f"workers of a DataLoader cannot tell where: some are new in pass {p}, others have read ahead. Pass "
                "num_workers=0; or use passes that are independent, such as FixedSizeData(…, keep_state=False)"
            )


def _pass_of(state: Mapping[str, Any]) -> int:
    """The pass that the iteration after a loaded state belongs to."""
    return int(state["pass"]) - _is_over(state)


def _is_over(state: Mapping[str, Any]) -> bool:
    return bool(state.get("over"))


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


def _rebuilt(
    df: bytes,
    given: tuple[int, int],
    drop_uneven: bool,
    count: tuple[int, int, bool, tuple[str, ...] | None],
    member: Member | None,
    root: int | None,
    state: Mapping[str, Any] | None,
) -> Any:
    # A function, which pickle finds by its name; it would not find the class, which is made at run time.
    dataset = _dataset_class()(loads(df), given, drop_uneven)
    dataset.counter = Counter(dataset._df, *count)
    dataset.member, dataset._root, dataset._state = member, root, state
    return dataset


def _resumable(flow: DataFlow, several: bool) -> DataFlow:
    """`flow`, with a position if it can have one. One process promises the same datapoints once its state is used."""
    try:
        resumable = ResumableData(flow)
    except NotReproducible:
        return flow
    resumable._df_promise = Promise("to_torch", refuses=several)
    return resumable


# -- shares ------------------------------------------------------------------------------------------------------------


def _share(df: DataFlow, rank: int, world_size: int, tail: Tail, *, warns: bool) -> DataFlow:
    """Every `world_size`-th datapoint of each pass, from number `rank`; of several processes, one warns."""
    if world_size == 1:
        return df
    share = ShardData(df, rank, world_size, tail)
    state_of(share).warned = not warns
    return share


def _is_collated() -> bool:
    """Whether a DataLoader makes batches of the datapoints, and keeps them until one is complete."""
    frame: FrameType | None = sys._getframe(2)  # the caller of `__iter__`
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(("torch.", "torchdata.")):
            found = getattr(frame.f_locals.get("self"), "auto_collation", None)
            if found is not None:
                return bool(found)
        frame = frame.f_back
    return False
