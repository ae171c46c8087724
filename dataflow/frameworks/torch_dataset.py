"""Flows as data sets of torch: shares of a pass for ranks and for the workers of a DataLoader, and saved positions."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping
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

_MAX_WORKERS: Final = 256  # of one DataLoader
_MAX_RANKS: Final = 64  # that one process starts
_NUM_SLOTS: Final = _MAX_WORKERS * _MAX_RANKS
_IDENTITY_BITS: Final = 40
_IDENTITY_MASK: Final = (1 << _IDENTITY_BITS) - 1
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
    torch = import_torch("to_torch needs")
    _require_no_count(require_flow(df, "to_torch", "df"))
    given = None if rank is None and world_size is None else place("to_torch", rank, world_size, os.environ)
    shared = torch.full((_NUM_SLOTS + _ROOT_WORDS,), -1, dtype=torch.int64).share_memory_()
    dataset: FlowDataset = _dataset_class()(df, given, flag("to_torch", "drop_uneven", drop_uneven), shared)
    dataset.shared_state.keep_root(fresh_root())
    return dataset


class FlowDataset:
    """A flow as a data set of torch. `to_torch` makes it, as a subclass of IterableDataset."""

    def __init__(
        self,
        df: DataFlow,
        given: tuple[int, int] | None,
        drop_uneven: bool,
        shared: Any,
        root: int | None = None,
    ) -> None:
        self._df = df
        self._given = given  # rank and world_size; None to look them up
        self._drop_uneven = drop_uneven
        self.shared_state = _SharedState(shared)
        self._root = root  # of `dataflow.seed` in the process that has sent this one here; None if it was not called
        self._flow: tuple[Any, DataFlow] | None = None  # the share of one place, and the place
        self._begun: int | None = None  # the pass of the current iteration
        self._loaded: int | None = None  # the pass of a loaded state, for the next iteration
        self._is_over = False  # ... of which nothing is left
        self._has_ended = False  # the current iteration, by itself

    def __iter__(self) -> Iterator[Any]:
        # A generator, which begins a pass with its first step: StatefulDataLoader makes iterators that it does not use.
        flow, worker = self._here()
        p = self._next_pass(worker)
        self._warn(flow, worker, p)
        self.shared_state.begin(p, self._rank()[0], worker)
        loaded, is_over = self._loaded is not None, self._is_over
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
            NotReproducible: The order of the flow is not defined, or its passes depend on those before.
        """
        flow, worker = self._here()
        resumable = flow if isinstance(flow, ResumableData) else ResumableData(flow)  # raises
        if self._begun is None and self._loaded is None:
            state_of(flow).passes = self._next_pass(worker)
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
        self.shared_state.keep_root(int(state["root"]))  # for the workers of the next pass
        self._is_over = bool(state.get("over"))
        self._loaded = state["pass"] - self._is_over
        self._begun = None

    def __reduce__(self) -> tuple[Any, ...]:
        root = self._root if current_root() is None else current_root()
        given = self._given or self._rank()  # where this goes, torch.distributed may not be initialised
        # As for our own workers: lambdas and classes of the main program can be sent as well.
        df = dumps(self._df, main=imported_main())
        return _rebuilt, (df, given, self._drop_uneven, self.shared_state.words, root)

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
            state.entropy = self.shared_state.root() if self._root is None else self._root
            state.fixed = self._root is not None or world_size == 1
        return flow, worker

    def _next_pass(self, worker: Any) -> int:
        return self.shared_state.following(self._rank()[0], worker) if self._loaded is None else self._loaded

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
        if p == 1 and not self.shared_state.num_begun and (self._df._df_endless or not isinstance(flow, ResumableData)):
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


class _SharedState:
    """What the workers of a DataLoader share, also with those of the next pass: the numbers of passes, the root seed.

    A DataLoader starts new workers for each pass, and tells them neither its number nor that of the passes before. But
    all workers of a pass have the same base seed, which is drawn for it. So each worker notes the pass that it begins,
    and a hash of this seed, in its own slot: a pass that another slot has under the same hash is the same; otherwise
    the pass is new, and follows the highest of all. Workers that begin at the same time find the same slots of earlier
    passes, and so the same number, whether or not they see what the others note meanwhile: a slot is one word.

    Args:
        words: int64, in shared memory: slots with pass and hash, or -1, and the root seed. Each rank has slots of its
            own, since ranks may be processes that were started with this object; in these, each worker has one, and the
            process without workers has the first.
    """

    def __init__(self, words: Any) -> None:
        self.words = words
        self.num_begun = 0  # passes, by this process: persistent workers keep their seed

    def following(self, rank: int, worker: Any) -> int:
        """The number of the pass that begins now."""
        first = _slot(rank, worker) - (0 if worker is None else int(worker.id))
        slots: list[int] = self.words[first : first + _MAX_WORKERS].tolist()
        numbers = [slot >> _IDENTITY_BITS for slot in slots]
        if worker is None:
            return max(numbers) + 1
        identity = self._identity(worker)
        same = [number for number, slot in zip(numbers, slots, strict=True) if slot & _IDENTITY_MASK == identity]
        own: int = slots[int(worker.id)]
        if own >= 0 and own & _IDENTITY_MASK == identity:
            return (own >> _IDENTITY_BITS) + 1  # by an earlier process: the same seed was drawn again
        return max(same) if same else max(numbers) + 1

    def begin(self, p: int, rank: int, worker: Any) -> None:
        """Note that this process begins pass `p`."""
        identity = 0 if worker is None else self._identity(worker)
        self.words[_slot(rank, worker)] = p << _IDENTITY_BITS | identity
        self.num_begun += 1

    def root(self) -> int:
        """The root seed of flows without `dataflow.seed`."""
        return sum(word << 62 * k for k, word in enumerate(self.words[_NUM_SLOTS:].tolist()))

    def keep_root(self, root: int) -> None:
        """Set the root seed; one that is too long, which `dataflow.seed` may have set, is left out."""
        if root.bit_length() <= 62 * _ROOT_WORDS:
            for k in range(_ROOT_WORDS):
                self.words[_NUM_SLOTS + k] = root >> 62 * k & (1 << 62) - 1

    def _identity(self, worker: Any) -> int:
        return hash((worker.seed - worker.id, self.num_begun)) & _IDENTITY_MASK or 1


def _slot(rank: int, worker: Any) -> int:
    if worker is not None and worker.num_workers > _MAX_WORKERS:
        raise ValueError(f"to_torch: a DataLoader may have {_MAX_WORKERS} workers, got {worker.num_workers}")
    return rank % _MAX_RANKS * _MAX_WORKERS + (0 if worker is None else int(worker.id))


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
        datapoints = self.ds._df_run_pass(p, stream)
        while True:
            taken = [*islice(datapoints, self.world_size)]
            if len(taken) < self.world_size and (self.tail == "drop" or len(taken) <= self.rank):
                return
            yield taken.pop(self.rank)
