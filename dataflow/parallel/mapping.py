"""Parallel maps: one source, read by the consumer, and many workers for the function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow, require_flow
from dataflow.channel.task_queue import TaskQueue
from dataflow.engine.map_engine import MapEngine
from dataflow.engine.map_tasks import MapTasks
from dataflow.engine.plan import Plan
from dataflow.engine.schedule import Schedule
from dataflow.engine.source_reader import Reading, as_one_pass, one_pass, passes_from
from dataflow.engine.task_jobs import Apply, Handed
from dataflow.parallel.addressing import is_consecutive
from dataflow.parallel.passes_of_workers import Looped, until_over
from dataflow.parallel.worker_options import tolerance_of
from dataflow.parallel.worker_setup import Placed
from dataflow.parameters import flag, function, whole_number
from dataflow.passes import known_length
from dataflow.seeding import IndexRngs, Stream
from dataflow.state import state_of
from dataflow.transforms.augmenting import RandomMapData
from dataflow.transforms.indexing import consecutive, onwards
from dataflow.transforms.mapping import MapData

__all__ = ["ParallelMap"]

_LOG = logging.getLogger(__name__)


_LONGEST_PASS: Final = 1 << 40  # datapoints of a pass whose length nobody knows
_BLOCK: Final = 256


class _Drawn(RandomMapData):
    """In a worker: the generators are those of the map in the consumer, where the whole chain is known."""

    def __init__(self, ds: DataFlow, func: Callable[..., Any], rngs: IndexRngs) -> None:
        super().__init__(ds, func)
        self._rngs = rngs

    def _df_index_rngs(self, stream: Stream, n: int | None) -> IndexRngs:
        return self._rngs


class ParallelMap(Looped, MapData):
    """What all parallel maps share: without workers it is a `MapData`."""

    def __init__(
        self,
        ds: DataFlow,
        num_workers: SupportsIndex | None,
        map_func: Callable[[Any], Any] | None,
        buffer_size: SupportsIndex,
        strict: bool,
        ordered: bool,
        with_rng: bool = False,
    ) -> None:
        name = self._df_title
        require_flow(ds, name)
        self.num_workers = self._df_checked_workers(num_workers)
        use = f"is called with a datapoint, as in {name}(ds, 4, lambda dp: dp)"
        super().__init__(ds, function(name, "map_func", map_func, use))
        self.buffer_size = whole_number(
            self._df_title, "buffer_size", buffer_size, 1, ": it is the number of datapoints that may be under way"
        )
        self.strict = flag(self._df_title, "strict", strict)
        self.ordered = flag(self._df_title, "ordered", ordered) and self.strict
        self.with_rng = self._df_draws = flag(self._df_title, "with_rng", with_rng)

    # -- the choices ---------------------------------------------------------------------------------------------------

    @property
    def _df_shares_items(self) -> bool:
        return True

    def _df_worked(self, ds: DataFlow) -> DataFlow:
        """The node that does, over `ds`, what this one does, without workers."""
        return RandomMapData(ds, self.func) if self.with_rng else MapData(ds, self.func)

    def _df_jobs(self, stream: Stream) -> Sequence[Apply]:
        jobs = []
        for k in range(self.num_workers):
            handed = Handed(self._stride)
            node: DataFlow = self._df_worked(handed)
            if self.with_rng:
                rngs = self._df_index_rngs(stream, None if self.ds._df_endless else self._stride)
                node = _Drawn(handed, self.func, rngs)
            jobs.append(self._df_job(node, stream, self._df_note(k), handed))
        return jobs

    @property
    def _stride(self) -> int:
        """From the index of a datapoint to that of the same one in the next pass."""
        return known_length(self.ds) or _LONGEST_PASS

    def _df_make_schedule(self, task_queue: TaskQueue | None) -> Schedule:
        assert task_queue is not None, "a map has a tray"
        return MapTasks(
            task_queue,
            self.num_workers,
            self.buffer_size,
            ordered=self.ordered,
            continues=not self.strict,
            per_task=self._df_per_task(),
        )

    def _df_per_task(self) -> int | None:
        """How many datapoints every task has; None for what pays."""
        return None

    def _df_job(self, node: DataFlow, stream: Stream, note: str, handed: Handed) -> Apply:
        """What a worker does."""
        return Apply(node, stream, note, handed)

    def _df_make_engine(self, plan: Plan, stream: Stream) -> Placed:
        return MapEngine(plan, stream)

    # -- the node ------------------------------------------------------------------------------------------------------

    @property
    def _df_endless(self) -> bool:
        return not self.strict or self.ds._df_endless

    def _df_warn_of_default(self) -> None:
        _LOG.warning(
            "%s with strict=False (the default): its passes never end, as in tensorpack, since those of its input "
            "follow one another. Pass strict=True for passes that end and have exactly the datapoints of MapData; or "
            "leave the loop with break, or cut it with FixedSizeData",
            self._df_title,
        )

    @property
    def _df_continues(self) -> bool:
        return not self.strict

    @property
    def _df_reproducible(self) -> bool:
        return self.ordered or self.num_workers == 0

    @property
    def _df_stands_for(self) -> Any:
        return self._df_worked(self.ds)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return (
            self._df_at_work(blocks, stream) if self.num_workers and self.strict else self._df_at_home(blocks, stream)
        )

    def _df_at_home(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return (
            self._df_worked(self.ds)._df_at(blocks, stream) if self.with_rng else MapData._df_at(self, blocks, stream)
        )

    def _df_steps_of_block(self, engine: Any, block: NDArray[np.int64], stream: Stream) -> Iterator[Any] | None:
        if not is_consecutive(block):
            return None  # tasks of a map are consecutive: what is told of failures, and drawn, depends on the index
        generation = engine.begin_pass(int(block[0]), holes=True)
        steps = engine.steps(generation, Reading(as_one_pass(self.ds._df_at([block], stream))), self.timeout)
        return until_over(steps, engine, generation, state_of(self), self)

    def _df_strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            if not self.with_rng:
                return MapData._df_run_pass(self, p, stream)
            return self._df_reported_here(partial(self._df_worked(self.ds)._df_run_pass, p, stream))()
        engine: MapEngine = self._df_engine_at(stream)
        tolerance_of(self).begin_pass()
        first = p * self._stride
        generation = engine.begin_pass(first)
        if not self.with_rng or not self.ds._df_addressable:
            source = Reading(one_pass(self.ds, p, stream))
        else:
            # What was dropped below keeps its position, and so do the random numbers of those after it.
            blocks = onwards(first, _BLOCK) if self.ds._df_endless else consecutive(first, first + len(self.ds))
            source = Reading(as_one_pass(self.ds._df_at(blocks, stream)))
        steps = engine.steps(generation, source, self.timeout)
        held = None if self.ds._df_endless else self
        return until_over(steps, engine, generation, state_of(self), held)

    def _df_mixed_pass(self, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            return self._df_passes_here(self._df_worked(self.ds), stream)
        source = self._df_continued_by(lambda p: Reading(passes_from(self.ds, p, stream)), stream)
        engine: MapEngine = self._df_engine_at(stream)
        tolerance_of(self).begin_pass()
        return self._datapoints(engine, engine.go_on(), source)

    def _datapoints(self, engine: MapEngine, generation: object, source: Iterator[Reading]) -> Iterator[Any]:
        """A generator that several threads may step, as `until_over`."""
        try:
            for chunk in engine.steps(generation, source, self.timeout):
                yield from chunk
        finally:
            if engine.failed:
                state_of(self).settle()
        _LOG.warning("%s has ended: a pass of its input was empty", type(self).__name__)
