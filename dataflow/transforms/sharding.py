"""Sharding: a node that yields one rank's share of a flow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args

from dataflow.base import Blocks, DataFlow, ProxyDataFlow
from dataflow.errors import NotReproducible
from dataflow.parameters import whole_number
from dataflow.passes import known_length, promise, walk
from dataflow.seeding import Stream
from dataflow.state import Promise
from dataflow.transforms.arguments import require_addressable
from dataflow.transforms.indexing import Indexes, none_dropped, order_by_index, passes_and_positions

__all__ = ["ShardData", "Tail", "place", "require_seed"]

_VARIABLES: Final = (  # set by torchrun and similar launchers, Open MPI, Slurm
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
Tail = Literal["drop", "keep", "repeat"]


class ShardData(ProxyDataFlow):
    """Every `world_size`-th datapoint of each pass, beginning with number `rank`.

    Each process of a training job builds the same chain, with the same seed and its own rank; together the shards of a
    pass make up the pass. Random numbers drawn above a shard differ between ranks, those drawn below are the same: so
    shuffle below it, and augment above it.

    Args:
        ds: The input; it must be addressable.
        rank: Number of this process, from 0. If neither `rank` nor `world_size` is given, both are read from the
            environment: RANK and WORLD_SIZE, or those of Open MPI or Slurm.
        world_size: Number of processes.
        tail: What to do with the rest if the datapoints cannot be divided equally: "drop" leaves it out, "repeat" fills
            up with datapoints from the beginning of the pass, "keep" makes the first shards longer by one. With "drop"
            and "repeat", all ranks make the same number of steps.

    Raises:
        NotAddressable: `ds` is only a sequence of passes; the message names the node.
        ValueError: `rank` and `world_size` do not fit together, only one is known, or a shard would be empty.
        NotReproducible: No seed is set, so every rank would draw a different order.
        Dropped: A map below dropped a datapoint, and ranks would make different numbers of steps.

    Example:
        >>> ds = DataFromList([[k] for k in range(7)], shuffle=False)
        >>> list(ShardData(ds, rank=1, world_size=3)), list(ShardData(ds, rank=0, world_size=3, tail="keep"))
        ([[1], [4]], [[0], [3], [6]])

    Source:
        torch.utils.data.distributed.DistributedSampler, whose ``drop_last=False`` is "repeat".
    """

    _df_counts = True
    _df_promise = Promise("ShardData")

    def __init__(
        self, ds: DataFlow, rank: int | None = None, world_size: int | None = None, tail: Tail = "drop"
    ) -> None:
        super().__init__(ds)
        require_addressable(ds, self)
        if tail not in get_args(Tail):
            raise ValueError(f'ShardData: tail is "drop", "keep" or "repeat", got {tail!r}')
        self.rank, self.world_size = place("ShardData", rank, world_size, os.environ)
        self.tail: Tail = tail
        self._df_own_rank = self.rank if self.world_size > 1 else None
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
    def _df_grain(self) -> int:
        return 1

    @property
    def _df_compared(self) -> dict[str, Any]:
        # Every rank makes the same steps, so a state saved by one is valid for all.
        return {name: value for name, value in super()._df_compared.items() if name != "rank"}

    def __len__(self) -> int:
        whole, rest = divmod(len(self.ds), self.world_size)
        if self.tail == "keep":
            return whole + (self.rank < rest)
        return whole + (self.tail == "repeat" and rest > 0)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        require_seed("ShardData", self.ds, self.world_size, stream)
        return order_by_index(self, p, stream)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        require_seed("ShardData", self.ds, self.world_size, stream)
        datapoints = self.ds._df_at(map(self._below, blocks), stream)
        return datapoints if self.tail == "keep" else none_dropped(datapoints, self)

    def _df_num_below(self, num: int) -> int | None:
        if self.ds._df_endless:
            return num * self.world_size
        p, position = divmod(num, max(len(self), 1))
        return p * len(self.ds) + position * self.world_size

    def _below(self, indexes: Indexes) -> Indexes:
        if self.ds._df_endless:
            return indexes * self.world_size + self.rank
        n = len(self.ds)
        passes, positions = passes_and_positions(self, indexes, len(self))
        below: Indexes = passes * n + (positions * self.world_size + self.rank) % max(n, 1)
        return below


def require_seed(owner: str, ds: DataFlow, world_size: int, stream: Stream) -> None:
    """Check that all ranks draw the same order. `owner` is the class or function that the user has called.

    Raises:
        NotReproducible: A node draws random numbers whose root seed differs from rank to rank.
    """
    if world_size == 1 or not stream.drawn:
        return
    for node in walk(ds, everywhere=True):
        if node._df_draws and node._df_own_root is None:
            raise NotReproducible(
                f"{owner}: no seed is set, so {type(node).__name__} draws different numbers on each of the "
                f"{world_size} ranks, and their shares would overlap. Call dataflow.seed(n), with the same n on every "
                "rank, before the loop"
            )


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
