"""The law of ranks for saved states: a job continues on another number of ranks, from a position in the whole pass.

In one step of a job, the outermost node yields one datapoint on every rank. All ranks together take `per_step`
consecutive datapoints of the whole pass for it, whatever their number: so a position there says what was done.

This holds if, above the shard, there are only nodes that map single datapoints or make batches, and no numbers are
drawn for batches: what is drawn for a datapoint belongs to its position. Any other node has an order, or a number of
steps, of its own on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from dataflow.protocol.base import DataFlow
from dataflow.protocol.fingerprints import Description, changed_code, difference, is_description, without_workers
from dataflow.protocol.passes import walk
from dataflow.transforms.batching import GroupedData
from dataflow.transforms.sharding import ShardData, batches_of

__all__ = ["Change", "Division", "division_of", "has_dropped_above"]


class Division(NamedTuple):
    """How the ranks of a job divide a pass of its chain.

    Attributes:
        nodes: The nodes that map or batch what is divided, from above, without the shard.
        unit: The flow whose datapoints are divided.
        shard: The shard; None if the chain has none, as on a single rank.
        broken: The node above the shard that has an order or a number of steps of its own on each rank; None if none.
    """

    nodes: Sequence[DataFlow]
    unit: DataFlow
    shard: ShardData | None
    broken: DataFlow | None

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return 1 if self.shard is None else self.shard.world_size

    @property
    def batch_sizes(self) -> Sequence[int]:
        """The sizes of the batches, from above."""
        return [node.batch_size for node in self.nodes if isinstance(node, GroupedData)]

    @property
    def per_step(self) -> int:
        """How many datapoints all ranks have together in one step."""
        return self.world_size * prod(self.batch_sizes)

    def change_since(self, saved: Description, here: Description, index: int | None) -> Change:
        """How the ranks and batches of a saved description differ from those of this chain.

        Args:
            saved: The description in the state.
            here: That of this chain.
            index: No datapoint of `unit` from this index on was made; None if that is unknown.
        """
        try:
            old, new = self._peeled(saved), self._peeled(here)
        except ValueError as error:
            return Change(self.world_size, self.batch_sizes, self.world_size, self.batch_sizes, str(error))
        batches = [k for k, node in enumerate(self.nodes) if isinstance(node, GroupedData)]
        sizes = [_number(old.nodes[k]["parameters"].get("batch_size")) for k in batches]
        other = next(self._other_differences(old, new, batches), None) or difference(
            old.unit, new.unit, self.unit, index
        )
        code = changed_code(old.chain(), new.chain()) if other is None else []
        return Change(old.world_size, sizes, self.world_size, self.batch_sizes, other, code)

    def _other_differences(self, old: _Peeled, new: _Peeled, batches: Sequence[int]) -> Iterator[str]:
        for k, (before, after) in enumerate(zip(old.nodes, new.nodes, strict=True)):
            name, was, now = after["type"], before["parameters"], after["parameters"]
            if before["type"] != name:
                yield f"it had {before['type']} in place of {name}"
            for key in sorted({*was, *now} - ({"batch_size"} if k in batches else set())):
                if (text := was.get(key, "missing")) != now.get(key, "missing"):
                    yield f"{name}.{key} was {text} and is {now.get(key, 'missing')}"
        if None not in {old.tail, new.tail} and old.tail != new.tail:
            yield f"ShardData.tail was {old.tail} and is {new.tail}"

    def _peeled(self, description: Description) -> _Peeled:
        """A description without its first shard, in two parts.

        Raises:
            ValueError: It is damaged, or has too few nodes.
        """
        world_size, tail = 1, None
        path: list[Description] = []
        names = {"ShardData", type(self.shard).__name__}
        while True:
            if not is_description(description):
                raise ValueError("the saved description is damaged")
            inputs, parameters = description["inputs"], description["parameters"]
            if description["type"] in names and tail is None and len(inputs) == 1:
                world_size, tail = _number(parameters.get("world_size")), str(parameters.get("tail"))
            else:
                path.append(description)
            if len(inputs) != 1:
                break
            description = inputs[0]
        num = len(self.nodes)
        if len(path) <= num:
            raise ValueError(f"it had {path[-1]['type']} in place of {type(self.nodes[len(path) - 1]).__name__}")
        return _Peeled(path[:num], world_size, tail, _chained(path[num:]))


class _Peeled(NamedTuple):
    nodes: list[Description]  # of `Division.nodes`
    world_size: int
    tail: str | None
    unit: Description

    def chain(self) -> Description:
        """The description without the shard."""
        return _chained([*self.nodes, self.unit])


def _chained(path: Sequence[Description]) -> Description:
    found = path[-1]
    for node in reversed(path[:-1]):
        # Above a shard, lengths are left out; here, a node maps single datapoints or is no part of a position.
        length = found["length"] if node["length"] is None else node["length"]
        found = {**node, "inputs": [found], "length": length}
    return found


class Change(NamedTuple):
    """Numbers of ranks and sizes of batches, before and now; and what else has changed."""

    old_world_size: int
    old_sizes: Sequence[int]
    world_size: int
    sizes: Sequence[int]
    other: str | None  # the first difference of another kind, as of `fingerprints.difference`
    code: Sequence[str] = ()  # as of `fingerprints.changed_code`

    @property
    def old_per_step(self) -> int:
        """How many datapoints all ranks had together in one step."""
        return self.old_world_size * prod(self.old_sizes)

    def __str__(self) -> str:
        old, new = self.old_per_step, self.world_size * prod(self.sizes)
        before = "as before" if old == new else f"instead of {old}"
        ranks = f"{self.world_size} rank{'s' * (self.world_size > 1)}"
        there = " × ".join([ranks, *map(str, self.sizes)])
        then = " × ".join([str(self.old_world_size), *map(str, self.old_sizes)])
        return f"{there} instead of {then}: {new} datapoints per step, {before}"


def division_of(ds: DataFlow) -> Division:
    """How the ranks divide the passes of `ds`."""
    above: list[DataFlow] = []
    broken: DataFlow | None = None
    node = without_workers(ds)
    while not isinstance(node, ShardData):
        if len(node._df_inputs) != 1:
            has_shards = any(below._df_is_share for below in walk(node, everywhere=True))
            return Division(*_with_batches(ds), None, (broken or node) if has_shards else None)
        if node._df_takes is None or node._df_user_written:
            broken = broken or node
        above.append(node)
        node = without_workers(node._df_inputs[0])
    nodes, unit = _with_batches(node.ds)
    num_batched = len(nodes)
    for taker in reversed(above):
        if num_batched and taker._df_draws:
            broken = taker
        num_batched += isinstance(taker, GroupedData)
    inner = unit
    while inner._df_takes is not None and not inner._df_is_share and inner._df_inputs:
        inner = inner._df_inputs[0]
    if inner._df_is_share:
        broken = broken or node  # of its positions, each rank of the inner shard has others
    return Division([*above, *nodes], unit, node, broken)


def has_dropped_above(unit: DataFlow, ds: DataFlow) -> bool:
    """Whether steps of `ds`, a sequence of passes, may have been made of more datapoints of `unit` than theirs.

    Where a flow can be addressed, dropped datapoints keep their positions.
    """
    in_workers = False  # where what a node drops is known to the worker only
    while ds is not unit:
        may_drop = ds._df_calls or getattr(ds, "max_failures", None) is not None
        if ds._df_may_have_dropped or (in_workers and may_drop):
            return True
        in_workers = in_workers or ds._df_reports_below
        ds = ds._df_inputs[0]
    return False


def _with_batches(ds: DataFlow) -> tuple[list[DataFlow], DataFlow]:
    """The nodes down to the batches that `ds` passes on, and the input of the batches; `ds` if there are none."""
    nodes: list[DataFlow] = []
    if batches_of(ds) is None:
        return nodes, ds
    while not nodes or not isinstance(nodes[-1], GroupedData):
        nodes.append(without_workers(ds))
        ds = nodes[-1]._df_inputs[0]
    return nodes, ds


def _number(text: Any) -> int:
    """A parameter in a description, as an integer; 0 if it is none."""
    return int(text) if isinstance(text, str) and text.isdecimal() and text.isascii() and len(text) < 20 else 0
