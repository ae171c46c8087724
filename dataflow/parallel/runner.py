"""What all runners share: a whole flow, in each of N workers, and the mixture of what they make."""

from __future__ import annotations

import logging
import operator
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow
from dataflow.channel.flow_control import Window
from dataflow.channel.shared_task_queue import SharedTaskQueue
from dataflow.channel.task_queue import TaskQueue, ThreadTaskQueue
from dataflow.engine.engine import Engine
from dataflow.engine.index_ranges import IndexRanges, OnePass
from dataflow.engine.jobs import Produce
from dataflow.engine.pass_engine import PassEngine
from dataflow.engine.plan import Plan
from dataflow.engine.schedule import Schedule
from dataflow.engine.task_jobs import Address, WholePasses
from dataflow.errors import NotAddressable
from dataflow.parallel.addressing import is_consecutive
from dataflow.parallel.passes_of_workers import Looped, until_over
from dataflow.parallel.worker_options import tolerance_of
from dataflow.parallel.worker_setup import UNBOUNDED, Placed, Processes, queued_bytes
from dataflow.parameters import flag, whole_number
from dataflow.passes import known_length, open_flow, until_closed
from dataflow.seeding import Stream
from dataflow.state import state_of

__all__ = ["ProcessRunner", "Runner", "queued_bytes", "window_of"]

_LOG = logging.getLogger(__name__)
_DEFAULT_COUNT: Final = 50
_DEFAULT_BYTES: Final = 256 << 10
_QUEUE_BYTES: Final = 1 << 20
_STEP_SECONDS: Final = 0.2
_LONGEST_STEP: Final = 128


class Runner(Looped):
    """What all runners share: N workers, each of which repeats its whole flow for ever."""

    _df_remote_inputs = True

    def __init__(self, ds: DataFlow, num_workers: SupportsIndex, window: Window, timeout: float | None) -> None:
        super().__init__(ds)
        self._df_set_staff(num_workers, window, timeout)

    def _df_set_strict(self, strict: bool, ordered: bool) -> None:
        """Check and keep what the user gave; to be called last.

        Raises:
            NotAddressable: Several workers shall share each pass, and a flow cannot be addressed.
        """
        self.strict, self.ordered = flag(self, "strict", strict), flag(self, "ordered", ordered) and bool(strict)
        broken = next((node for ds in self._df_flows() if (node := ds._df_unaddressable()) is not None), None)
        if strict and self.num_workers > 1 and broken is not None:
            raise NotAddressable(
                f"{type(self).__name__} with strict=True and {self.num_workers} workers shares each pass by index, and "
                f"{type(broken).__name__} cannot be addressed. Use one worker, or leave this flow in one process and "
                f"move the work after it into workers: MultiProcessMapData(ds, {self.num_workers}, func, strict=True)"
            )

    @property
    def _df_shares_items(self) -> bool:
        return self.strict

    @property
    def _df_by_index(self) -> bool:
        """Whether its workers are asked for indexes."""
        return self.strict and all(ds._df_addressable for ds in self._df_flows())

    def _df_flows(self) -> Sequence[DataFlow]:
        """The flow of each worker."""
        return [self.ds] * self.num_workers

    def _df_jobs(self, stream: Stream) -> Sequence[Any]:
        if self.strict:
            kind = Address if self._df_by_index else WholePasses
            return [kind(ds, stream, self._df_note(k)) for k, ds in enumerate(self._df_flows())]
        begun = state_of(self).begun
        return [Produce(ds, stream.turn(self._df_level, k), begun) for k, ds in enumerate(self._df_flows())]

    def _df_make_strict_task_queue(self) -> TaskQueue:
        """How indexes go to the workers."""
        return ThreadTaskQueue()

    def _df_make_task_queue(self) -> TaskQueue | None:
        return self._df_make_strict_task_queue() if self.strict else None

    def _df_make_schedule(self, task_queue: TaskQueue | None) -> Schedule:
        if task_queue is None:
            return super()._df_make_schedule(task_queue)
        if not self._df_by_index:
            return OnePass(task_queue)
        ahead = None if self._df_window.nbytes else self._df_window.count
        return IndexRanges(task_queue, self.num_workers, ahead, grain=self.ds._df_grain, ordered=self.ordered)

    def _df_make_engine(self, plan: Plan, stream: Stream) -> Placed:
        return PassEngine(plan, stream) if self.strict else super()._df_make_engine(plan, stream)

    def _df_window_of_worker(self) -> Window:
        return UNBOUNDED if self._df_by_index else self._df_window

    # -- the node ------------------------------------------------------------------------------------------------------

    @property
    def _df_endless(self) -> bool:
        return self.ds._df_endless if self.strict else known_length(self) is None

    def _df_warn_of_default(self) -> None:
        name, length = type(self).__name__, known_length(self)
        if length is None:
            _LOG.info(
                "%s over %s, which has no length: its passes never end. Pass strict=True for passes that end with "
                "those of its input, leave the loop with break, or give the input a length with FixedSizeData",
                name,
                type(self.ds).__name__,
            )
        if self.num_workers > 1:
            _LOG.warning(
                "%s with %d workers and strict=False (the default): each worker repeats the whole flow, and a pass is "
                "%s the mixture, so datapoints may repeat and be missing within a pass. That is good enough for "
                "training; pass strict=True for passes that have every datapoint once, in order",
                name,
                self.num_workers,
                "all of" if length is None else f"the next {length} datapoints of",
            )

    @property
    def _df_joins(self) -> bool:
        return self.num_workers > 1 and not self.strict

    @property
    def _df_reproducible(self) -> bool:
        return self.ordered if self.strict and self.num_workers > 1 else super()._df_reproducible

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if not self.strict:
            return DataFlow._df_at(self, blocks, stream)
        return self._df_at_work(blocks, stream) if self.num_workers else self._df_at_home(blocks, stream)

    def _df_at_home(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        open_flow(self.ds, stream)
        return self.ds._df_at(blocks, stream)

    def _df_steps_of_block(self, engine: Any, block: NDArray[np.int64], stream: Stream) -> Iterator[Any]:
        picked = None if is_consecutive(block) else block
        first = int(block[0]) if picked is None else 0
        generation = engine.begin_pass(first, len(block), picked, holes=True)
        return self._pass_of(engine, generation, self)

    def _pass_of(self, engine: PassEngine, generation: object, held: object) -> Iterator[Any]:
        chunks = iter(partial(engine.chunk, generation, self.timeout), None)
        return until_over(chunks, engine, generation, state_of(self), held)

    def _df_mixed_pass(self, stream: Stream) -> Iterator[Any]:
        length = known_length(self)
        if self.num_workers == 0:
            return _first_of(self._df_passes_here(self.ds, stream), length)
        engine = self._df_engine_at(stream)
        state_of(self).begun += 1
        return self._datapoints(engine, engine.take_over(), length)

    def _df_strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            return until_closed(self._df_reported_here(partial(self.ds._df_run_pass, p, stream))(), self)
        engine: PassEngine = self._df_engine_at(stream)
        tolerance_of(self).begin_pass()
        if not self._df_by_index:
            generation = engine.begin_pass(p)
        elif self.ds._df_endless:
            generation = engine.begin_pass(0, None)
        else:
            length = len(self.ds)
            generation = engine.begin_pass(p * length, length)
        return self._pass_of(engine, generation, None if self.ds._df_endless else self)

    def _datapoints(self, engine: Engine, generation: object, length: int | None) -> Iterator[Any]:
        """A generator that several threads may step, as `until_over`."""
        left = sys.maxsize if length is None else length
        step = 1  # datapoints after which the engine is asked again, as it looks at the workers: about `_STEP_SECONDS`
        try:
            while left:
                chunk = engine.chunk(generation, self.timeout)
                if chunk is None:
                    _LOG.warning("%s has ended: in every worker, a pass of its flow was empty", type(self).__name__)
                    return
                here = min(left, step, operator.length_hint(chunk))
                left -= here
                began = time.monotonic()
                yield from islice(chunk, here)
                took = time.monotonic() - began
                if took > _STEP_SECONDS:
                    step = max(1, int(here * _STEP_SECONDS / took))
                elif here == step:
                    step = min(2 * step, _LONGEST_STEP)
            engine.end_pass(generation)
        finally:
            if engine.failed:
                state_of(self).settle()


class ProcessRunner(Processes, Runner):
    """Runners whose workers are processes."""

    def __init__(
        self,
        ds: DataFlow,
        num_proc: SupportsIndex,
        window: Window,
        timeout: float | None,
        context: BaseContext | str | None,
        max_bytes: SupportsIndex | None,
    ) -> None:
        super().__init__(ds, num_proc, window, timeout)
        self._df_set_processes(context, max_bytes)

    def _df_make_strict_task_queue(self) -> TaskQueue:
        return SharedTaskQueue(_QUEUE_BYTES, _QUEUE_BYTES)


def _first_of(datapoints: Iterator[Any], num: int | None) -> Iterator[Any]:
    """The first `num` datapoints. A generator, as `until_over`: `islice` counts as ended once a thread lost a step."""
    yield from islice(datapoints, num)


def window_of(given: SupportsIndex | None, owner: object, name: str) -> Window:
    """How far a worker may run ahead, from what the user gave: `h` datapoints, or 50 or 256 KiB.

    At most `2 * h + 2` datapoints may be made and not yet handed out. These are the window, the message that is handed
    out, which has half of a window, and the one in the worker's hands: so the window is a third more than `h`.
    """
    if given is None:
        return Window(_and_a_third(_DEFAULT_COUNT), _and_a_third(_DEFAULT_BYTES))
    h = whole_number(owner, name, given, 0, ": it is a number of datapoints, or None for a default")
    return Window(_and_a_third(max(1, h)))


def _and_a_third(amount: int) -> int:
    return amount + amount // 3
