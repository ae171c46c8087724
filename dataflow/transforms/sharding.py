"""Sharding: a node that yields one rank's share of a flow.

The law: what a step of all ranks together yields follows from the seed and the number of datapoints in it, not from the
number of ranks. So a shard is a mapping of positions, and what is drawn above it for a datapoint belongs to the
position in the whole pass (`DataFlow._df_spread`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, get_args

from dataflow.errors import NotReproducible, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.passes import cure_for_order, known_length, promise, require_seed, without_order
from dataflow.protocol.pauses import paused, pausing
from dataflow.protocol.seeding import Spread, Stream
from dataflow.protocol.state import Promise, state_of
from dataflow.transforms.batching import GroupedData
from dataflow.transforms.grouping import copy_datapoint, may_reuse_memory
from dataflow.transforms.indexing import Indexes, none_dropped, order_by_index, passes_and_positions

__all__ = ["ShardData", "Tail", "batches_of", "place"]

_VARIABLES: Final = (  # set by torchrun and similar launchers, Open MPI, Slurm
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_LOG: Final = logging.getLogger(__name__)
Tail = Literal["drop", "keep", "repeat"]


class ShardData(ProxyDataFlow[T_co]):
    """Every `world_size`-th datapoint of each pass, beginning with number `rank`.

    Each process of a training job builds the same chain, with the same seed and its own rank; together the shards of a
    pass make up the pass. Put it directly below or above the batches: then each step of the job has the same datapoints
    for any number of ranks, if the number of datapoints in all batches of a step is the same. Random numbers drawn for
    a datapoint above the shard, as by `RandomMapData`, belong to its position in the whole pass, as below it. A node of
    your own above it that draws from ``self.rng`` draws other numbers on each rank.

    If `ds` can be addressed, each rank makes its own share only, and what lies below costs nothing for the others. Any
    other flow is made as a whole by every rank, which keeps its share; a warning says so.

    Args:
        ds: The input.
        rank: Number of this process, from 0. If neither `rank` nor `world_size` is given, both are read from the
            environment: RANK and WORLD_SIZE, or those of Open MPI or Slurm.
        world_size: Number of processes.
        tail: What to do with the rest if the datapoints cannot be divided equally: "drop" leaves it out, "repeat" fills
            up with datapoints from the beginning of the pass, "keep" makes the first shards longer by one. With "drop"
            and "repeat", all ranks make the same number of steps.

    Raises:
        ValueError: `rank` and `world_size` do not fit together, only one is known, or a shard would be empty.
        NotReproducible: No seed is set, so every rank would draw a different order; or the order of `ds` is not
            defined, because a runner mixes the datapoints of several workers.
        Dropped: A map below dropped a datapoint, and ranks would make different numbers of steps.

    Example:
        >>> ds = DataFromList([[k] for k in range(7)], shuffle=False)
        >>> list(ShardData(ds, rank=1, world_size=3)), list(ShardData(ds, rank=0, world_size=3, tail="keep"))
        ([[1], [4]], [[0], [3], [6]])

    Source:
        torch.utils.data.distributed.DistributedSampler, whose ``drop_last=False`` is "repeat".
    """

    _df_counts = True
    _df_is_share = True
    _df_promise = Promise("ShardData")
    _df_grain = 1

    def __init__(
        self, ds: DataFlow[T_co], rank: int | None = None, world_size: int | None = None, tail: Tail = "drop"
    ) -> None:
        super().__init__(ds)
        if tail not in get_args(Tail):
            raise ValueError(f'ShardData: tail must be "drop", "keep" or "repeat", got {tail!r}')
        self.rank, self.world_size = place("ShardData", rank, world_size, os.environ)
        self.tail: Tail = tail
        self._df_own_rank = self.rank if self.world_size > 1 else None
        if self.world_size > 1:
            _require_order(ds, self.world_size)
        n = None if ds._df_endless else known_length(ds)
        if n is not None and n < self.world_size and tail == "drop":
            raise ValueError(
                f"ShardData: a pass of {type(ds).__name__} has {n} datapoints, fewer than the {self.world_size} ranks, "
                'so every shard would be empty. Use fewer ranks, or tail="repeat"'
            )

    def reset_state(self) -> None:
        """Prepare the flow in the process that iterates it. Optional: the first `iter` does it."""
        promise(self, self._df_promise)
        super().reset_state()

    @property
    def _df_compared(self) -> dict[str, Any]:
        # Every rank makes the same steps, so a state saved by one is valid for all.
        return {name: value for name, value in super()._df_compared.items() if name != "rank"}

    def _df_spread(self, begin: int) -> Spread:
        own, below = self._begins(begin)
        first, stride, ranks = self.ds._df_spread(below)
        return Spread(first + stride * (own + self.rank), stride * self.world_size, ranks)

    def __len__(self) -> int:
        return self._df_num_from(0)

    def _begins(self, begin: int) -> tuple[int, int]:
        """Where the shard begins in its input, and where passes of the input begin: at batches, if it divides those."""
        return (0, begin) if not begin or batches_of(self.ds) is not None else (begin, 0)

    def _df_num_from(self, begin: int, *, longest: bool = False) -> int:
        own, below = self._begins(begin)
        whole, rest = divmod(max(0, self.ds._df_num_from(below) - own), self.world_size)
        if self.tail == "keep" and not longest:
            return whole + (self.rank < rest)
        return whole + (self.tail != "drop" and rest > 0)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        _require_seed(self.ds, self.world_size, stream)
        if self.ds._df_addressable:
            return order_by_index(self, p, stream)
        if self.world_size == 1 and not stream.begin:
            return self.ds._df_run_pass(p, stream)
        self._warn_of_whole_passes()
        waits = self._df_waits
        own, below = self._begins(stream.begin)
        datapoints = self.ds._df_run_pass(p, replace(stream, shared=True, repeated=True, begin=below))
        return pausing(self._in_turn(datapoints, own, waits), waits)

    def _warn_of_whole_passes(self) -> None:
        state = state_of(self)
        broken = self.ds._df_unaddressable()
        if broken is not None and not state.warned:
            state.warned = True
            _LOG.warning(
                "ShardData: %s cannot be addressed, so each of the %d ranks makes the whole pass and keeps its share: "
                "each does the work of all. To divide the work, read from what can be addressed, such as a table or "
                "DataFromList, and map it by MapData",
                type(broken).__name__,
                self.world_size,
            )

    def _in_turn(self, datapoints: Iterator[Any], begin: int, waits: bool) -> Iterator[Any]:
        """Every `world_size`-th datapoint from position `begin` on, of a pass that every rank makes.

        All ranks have read equally far whenever they yield.
        """
        copies = may_reuse_memory(self.ds)
        num_kept = self.world_size - 1 if self.tail == "repeat" else 0
        first: list[Any] = []  # datapoints of the beginning of the pass, to fill up its end
        mine: Any = None  # the datapoint of this rank, once it was read
        num_read = 0
        while True:
            try:
                for dp in datapoints:
                    if num_read < num_kept:
                        first.append(copy_datapoint(dp))
                    turn = (num_read - begin) % self.world_size
                    num_read += 1
                    if num_read <= begin:
                        continue
                    if turn == self.rank:
                        mine = copy_datapoint(dp) if copies and turn < self.world_size - 1 else dp
                    if turn == self.world_size - 1:
                        del dp  # the receiver may reuse its memory
                        yield mine
                        mine = None
                break
            except TimeoutError as error:
                pause = paused(error, waits)
            yield pause
        rest = max(0, num_read - begin) % self.world_size
        if self.rank < rest and self.tail != "drop":
            yield mine
        elif rest and self.tail == "repeat":
            yield first[(self.rank - rest) % len(first)]

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        _require_seed(self.ds, self.world_size, stream)
        own, below = self._begins(stream.begin)
        indexes = map(partial(self._below, stream.begin), blocks)
        datapoints = self.ds._df_at(indexes, replace(stream, begin=below) if own else stream)
        return datapoints if self.tail == "keep" else none_dropped(datapoints, self)

    def _df_num_below(self, num: int) -> int | None:
        if self.ds._df_endless:
            return num * self.world_size
        p, position = divmod(num, max(len(self), 1))
        return p * len(self.ds) + position * self.world_size

    def _below(self, begin: int, indexes: Indexes) -> Indexes:
        own, below = self._begins(begin)
        if self.ds._df_endless:
            return own + indexes * self.world_size + self.rank
        n = self.ds._df_num_from(below)
        passes, positions = passes_and_positions(self, indexes, self._df_num_from(begin))
        found: Indexes = passes * n + (own + positions * self.world_size + self.rank) % max(n, 1)
        return found


def batches_of(ds: DataFlow) -> GroupedData | None:
    """The batches whose datapoints `ds` passes on one by one, without drawing for them; None if there are none."""
    while not isinstance(ds, GroupedData):
        if ds._df_draws or not ds._df_one_to_one:
            return None
        ds = ds._df_inputs[0]
    return ds


def _require_order(ds: DataFlow, world_size: int) -> None:
    mixed = without_order(ds)
    if mixed is not None:
        raise NotReproducible(
            f"ShardData: {world_size} processes would have to share the datapoints of {mixed._df_title}, which come in "
            f"another order in each. {cure_for_order(mixed)}, or use one process"
        )


def _require_seed(ds: DataFlow, world_size: int, stream: Stream) -> None:
    """Check that all ranks draw the same order."""
    if world_size > 1 and stream.drawn:
        problem = f"on each of the {world_size} ranks, and their shares would overlap"
        require_seed(ds, "ShardData: ", problem, ", with the same n on every rank, before the loop")


def place(owner: str, rank: int | None, world_size: int | None, environment: Mapping[str, str]) -> tuple[int, int]:
    """The rank and the number of ranks that are given, or else those of the environment.

    Raises:
        ValueError: They do not fit together, only one is known, or there are none in the environment.
    """
    if rank is None and world_size is None:
        rank, world_size, source = _from_environment(owner, environment)
    else:
        source = "the arguments"
    if rank is None or world_size is None:
        raise ValueError(f"{owner}: give both rank and world_size, or neither; got {rank} and {world_size}")
    cure = f"; {source} say {rank!r} of {world_size!r}"
    rank = whole_number(owner, "rank", rank, 0, cure)
    world_size = whole_number(owner, "world_size", world_size, 1, cure)
    if not 0 <= rank < world_size:
        raise ValueError(f"{owner}: rank is from 0 to world_size - 1; {source} say {rank} of {world_size}")
    return rank, world_size


def _from_environment(owner: str, environment: Mapping[str, str]) -> tuple[int, int, str]:
    for names in _VARIABLES:
        found = [name for name in names if name in environment]
        if len(found) == 1:
            raise ValueError(
                f"{owner}: the environment has {found[0]}, but not both of {' and '.join(names)}. Set both, or give "
                "rank and world_size"
            )
        if found:
            values = [environment[name] for name in names]
            try:
                return int(values[0]), int(values[1]), " and ".join(names)
            except ValueError:
                raise ValueError(f"{owner}: {' and '.join(names)} are integers, got {values}") from None
    tried = ", ".join("/".join(names) for names in _VARIABLES)
    raise ValueError(
        f"{owner}: no rank is set in the environment ({tried}). Start the program with a launcher that sets it, "
        "or give rank and world_size: 0 and 1 for a single process"
    )
