"""Parallel maps: nodes that apply a function to every datapoint in a pool of worker threads or processes.

The consumer reads the single source; idle workers take its datapoints as tasks and apply the function. `ParallelMap`
holds what all maps share. Each public class adds a choice of worker and channel; its docstring defines what a pass is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow, require_flow
from dataflow.channel.flow_control import Credit
from dataflow.channel.local import ThreadChannel
from dataflow.channel.protocols import Channel
from dataflow.channel.shared_task_queue import SharedTaskQueue
from dataflow.channel.task_queue import TaskQueue, ThreadTaskQueue
from dataflow.codec.nested_arrays import ToWorkers
from dataflow.codec.protocols import ArrayCodec, Codec, ObjectCodec
from dataflow.engine.engine import NodeEngine, Plan
from dataflow.engine.jobs import Apply, TaskInput
from dataflow.engine.map_engine import MapEngine
from dataflow.engine.schedules import MapTasks, Schedule
from dataflow.engine.source_reader import SourceReader, as_one_pass, one_pass, passes_from
from dataflow.engine.worker_main import WorkerSpec
from dataflow.failures import Budget
from dataflow.parallel.passes_of_workers import WorkerPasses, is_consecutive, until_over
from dataflow.parallel.worker_setup import (
    UNBOUNDED,
    ProcessSetup,
    ThreadLimitOption,
    context_of,
    queued_bytes,
    tolerance_of,
)
from dataflow.parameters import flag, function, hinting, whole_number
from dataflow.passes import known_length
from dataflow.pickling import imported_main
from dataflow.seeding import IndexRngs, Stream
from dataflow.state import state_of
from dataflow.transforms.augmenting import RandomMapData
from dataflow.transforms.indexing import consecutive, onwards
from dataflow.transforms.mapping import MapData
from dataflow.workers.pool import Worker
from dataflow.workers.thread import ThreadWorker

__all__ = ["MultiProcessMapData", "MultiProcessMapDataZMQ", "MultiThreadMapData", "ParallelMap"]


# -- Base class of the parallel maps -----------------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)


_LONGEST_PASS: Final = 1 << 40  # datapoints; stands for the length of a pass of unknown length
_BLOCK: Final = 256


class _Drawn(RandomMapData):
    """The map inside a worker: it uses the generators of the consumer's map, where the whole chain is known."""

    def __init__(self, ds: DataFlow, func: Callable[..., Any], rngs: IndexRngs) -> None:
        super().__init__(ds, func)
        self._rngs = rngs

    def _df_index_rngs(self, stream: Stream, n: int | None) -> IndexRngs:
        return self._rngs


class ParallelMap(WorkerPasses, MapData):
    """Base class of the parallel maps. Without workers it is a `MapData`."""

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

    # -- hooks for subclasses ------------------------------------------------------------------------------------------

    @property
    def _df_shares_items(self) -> bool:
        return True

    def _df_node_in_worker(self, ds: DataFlow) -> DataFlow:
        """The node that applies the same function to `ds` without workers."""
        return RandomMapData(ds, self.func) if self.with_rng else MapData(ds, self.func)

    def _df_jobs(self, stream: Stream) -> Sequence[Apply]:
        jobs = []
        for k in range(self.num_workers):
            task_input = TaskInput(self._stride)
            node: DataFlow = self._df_node_in_worker(task_input)
            if self.with_rng:
                rngs = self._df_index_rngs(stream, None if self.ds._df_endless else self._stride)
                node = _Drawn(task_input, self.func, rngs)
            jobs.append(self._df_job(node, stream, self._df_note(k), task_input))
        return jobs

    @property
    def _stride(self) -> int:
        """Distance between the indexes of the same position in two consecutive passes."""
        return known_length(self.ds) or _LONGEST_PASS

    def _df_make_schedule(self, task_queue: TaskQueue | None) -> Schedule:
        assert task_queue is not None, "a map has a task queue"
        return MapTasks(
            task_queue,
            self.num_workers,
            self.buffer_size,
            ordered=self.ordered,
            continues=not self.strict,
            per_task=self._df_per_task(),
        )

    def _df_per_task(self) -> int | None:
        """Datapoints per task; None chooses a number that keeps the overhead small."""
        return None

    def _df_job(self, node: DataFlow, stream: Stream, note: str, task_input: TaskInput) -> Apply:
        """The job that a worker runs."""
        return Apply(node, stream, note, task_input)

    def _df_make_engine(self, plan: Plan, stream: Stream) -> NodeEngine:
        return MapEngine(plan, stream)

    # -- node protocol -------------------------------------------------------------------------------------------------

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
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "map_func": self.func}

    @property
    def _df_stands_for(self) -> Any:
        return self._df_node_in_worker(self.ds)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return (
            self._df_at_in_workers(blocks, stream)
            if self.num_workers and self.strict
            else self._df_at_in_consumer(blocks, stream)
        )

    def _df_at_in_consumer(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return (
            self._df_node_in_worker(self.ds)._df_at(blocks, stream)
            if self.with_rng
            else MapData._df_at(self, blocks, stream)
        )

    def _df_steps_of_block(self, engine: Any, block: NDArray[np.int64], stream: Stream) -> Iterator[Any] | None:
        if not is_consecutive(block):
            return None  # tasks of a map are consecutive: reported failures and random numbers depend on the index
        generation = engine.begin_pass(int(block[0]), holes=True)
        steps = engine.steps(generation, SourceReader(as_one_pass(self.ds._df_at([block], stream))), self.timeout)
        return until_over(steps, engine, generation, state_of(self), self)

    def _df_strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            if not self.with_rng:
                return MapData._df_run_pass(self, p, stream)
            return self._df_reported_here(partial(self._df_node_in_worker(self.ds)._df_run_pass, p, stream))()
        engine: MapEngine = self._df_engine_at(stream)
        tolerance_of(self).begin_pass()
        first = p * self._stride
        generation = engine.begin_pass(first)
        if not self.with_rng or not self.ds._df_addressable:
            source = SourceReader(one_pass(self.ds, p, stream))
        else:
            # A datapoint dropped below keeps its position, so the random numbers of later ones do not change.
            blocks = onwards(first, _BLOCK) if self.ds._df_endless else consecutive(first, first + len(self.ds))
            source = SourceReader(as_one_pass(self.ds._df_at(blocks, stream)))
        steps = engine.steps(generation, source, self.timeout)
        held = None if self.ds._df_endless else self
        return until_over(steps, engine, generation, state_of(self), held)

    def _df_mixed_pass(self, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            return self._df_passes_here(self._df_node_in_worker(self.ds), stream)
        source = self._df_continued_by(lambda p: SourceReader(passes_from(self.ds, p, stream)), stream)
        engine: MapEngine = self._df_engine_at(stream)
        tolerance_of(self).begin_pass()
        return self._datapoints(engine, engine.resume(), source)

    def _datapoints(self, engine: MapEngine, generation: object, source: Iterator[SourceReader]) -> Iterator[Any]:
        """Yield the datapoints of one pass. A generator, so that several threads may step it, as `until_over`."""
        try:
            for chunk in engine.steps(generation, source, self.timeout):
                yield from chunk
        finally:
            if engine.failed:
                state_of(self).settle()
        _LOG.warning("%s has ended: a pass of its input was empty", type(self).__name__)


# -- Public classes ----------------------------------------------------------------------------------------------------


class MultiThreadMapData(ParallelMap):
    """Apply a function to every datapoint, in `num_thread` threads, for work that releases the interpreter's lock.

    The consumer reads `ds` itself, and idle threads take the next datapoints. Datapoints are passed on without copying:
    the function gets a shallow copy, as in `MapData`, so changing an array in place changes it in the source, too.

    By default passes never end, as in tensorpack: the passes of `ds` follow one another and mix, and results are
    yielded in the order in which they are completed. Datapoints that the function drops (by returning None) are left
    out. ``len`` is that of `ds`. When a loop is left with `break`, the datapoints under way belong to the next one.

    With ``strict=True`` a pass is exactly that of `MapData`, in the same order, for any `ds`: without a length, empty,
    or shorter than the buffer. When a pass is abandoned, the datapoints under way are discarded. Such a map can be
    addressed if `ds` can: ``df[i]`` calls the function in the calling process, while a node above uses the workers.

    A thread cannot be killed. One that does not return when the map is closed is left behind and named in the log.

    Args:
        ds: The input. It is reset and read in this process.
        num_thread: Threads. 0 calls the function in the consumer, for a debugger.
        map_func: Takes a datapoint and returns one; returns None to drop it.
        buffer_size: Datapoints that may be read and not yet handed out, at least 1. With `strict`, this includes those
            that wait for a slower one before them.
        strict: Whether a pass is exactly one of `MapData`.
        ordered: With `strict`, whether the order is kept, too.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict`, the random numbers do not depend on which worker does the work.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the threads are alive.
        max_restarts: How many threads may call `sys.exit` and be replaced. Their work is done again.
        max_failures: How many datapoints may fail: a number in each pass, or a fraction of all seen as soon as these
            are 100. All workers count together. Skipped datapoints are logged here, and listed by `failures`.
        worker_init: Called without arguments once in each thread, before the first datapoint.

    Raises:
        TypeError: `num_thread` or `map_func` is missing or has the wrong type.
        TimeoutError: No datapoint came for `timeout` seconds.
        Exception: The function or the input raised it. With `strict`, after every datapoint before it.

    Example:
        >>> df = DataFromList([[k] for k in range(5)], shuffle=False)
        >>> with MultiThreadMapData(df, 2, lambda dp: [dp[0] ** 2], strict=True) as squares:
        ...     list(squares), squares[3]
        ([[0], [1], [4], [9], [16]], [9])

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    _df_workers_name = "num_thread"

    @hinting
    def __init__(
        self,
        ds: DataFlow,
        num_thread: SupportsIndex | None = None,
        map_func: Callable[[Any], Any] | None = None,
        *,
        buffer_size: int = 200,
        strict: bool = False,
        ordered: bool = True,
        with_rng: bool = False,
        timeout: float | None = None,
        max_restarts: SupportsIndex = 0,
        max_failures: Budget | None = None,
        worker_init: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(ds, num_thread, map_func, buffer_size, strict, ordered, with_rng)
        self._df_set_workers(self.num_workers, UNBOUNDED, timeout)
        self._df_set_restarts(max_restarts)
        self._df_set_options(max_failures, worker_init)

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        return ThreadChannel(), ObjectCodec(), Credit(self.num_workers, shared=False)

    def _df_make_task_queue(self) -> TaskQueue:
        return ThreadTaskQueue()

    def _df_starter(self) -> Callable[[WorkerSpec], Worker]:
        return _start_thread


class MultiProcessMapDataZMQ(ProcessSetup, ParallelMap):
    """Apply a function to every datapoint, in `num_proc` processes, which send their results over ZeroMQ.

    The consumer reads `ds` itself, and idle processes take the next datapoints from a shared task queue. So this node
    parallelises work on a source that only one process can read. Arrays go through shared memory, in both directions.
    Each process has its own copy of the datapoints that it takes, and may change them.

    `MultiThreadMapData` describes what a pass is, with and without `strict`.

    Args:
        ds: The input. It is reset and read in this process.
        num_proc: ProcessSetup. 0 calls the function in the consumer, for a debugger.
        map_func: Takes a datapoint and returns one; returns None to drop it. Lambdas and closures may be sent.
        buffer_size: Datapoints that may be read and not yet handed out, at least 1. With `strict`, this includes those
            that wait for a slower one before them.
        strict: Whether a pass is exactly one of `MapData`.
        ordered: With `strict`, whether the order is kept, too.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict`, the random numbers do not depend on which worker does the work.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the workers are alive.
        max_restarts: How many workers, in total, may fail (be killed, crash, exit) and be replaced. The tasks that a
            failed worker had taken are done again: with `strict`, the output is that of an undisturbed run. The next
            failure raises `WorkerDied`.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``.
        max_bytes: Bytes of all datapoints under way, as for `MultiProcessRunnerZMQ`: a quarter for the input of the
            workers, the rest for their results.
        max_failures: How many datapoints may fail: a number in each pass, or a fraction of all seen as soon as these
            are 100. All workers count together. Skipped datapoints are logged here, and listed by `failures`.
        worker_init: Called without arguments once in each worker, before the first datapoint.
        thread_limit: Threads of native libraries in each worker, as for `MultiProcessRunnerZMQ`.

    Raises:
        WorkerDied: A worker was killed, crashed or exited; the message says which, how, and what to do.
        WorkerError: The function raised an exception that cannot be pickled. Any other arrives as its own type, with
            the worker's traceback as its cause.
        TimeoutError: No datapoint came for `timeout` seconds.
        NotPicklable: The start method is not fork, and the function cannot be sent.
        NotReentrant: A later iteration of the same map took over.

    Example:
        >>> df = DataFromGenerator(lambda: ([k] for k in range(5)))
        >>> with MultiProcessMapDataZMQ(df, 2, lambda dp: [dp[0] ** 2], strict=True) as squares:
        ...     list(squares)
        [[0], [1], [4], [9], [16]]

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    @hinting
    def __init__(
        self,
        ds: DataFlow,
        num_proc: SupportsIndex | None = None,
        map_func: Callable[[Any], Any] | None = None,
        *,
        buffer_size: int = 200,
        strict: bool = False,
        ordered: bool = True,
        with_rng: bool = False,
        timeout: float | None = None,
        max_restarts: SupportsIndex = 0,
        context: BaseContext | str | None = None,
        max_bytes: SupportsIndex | None = None,
        max_failures: Budget | None = None,
        worker_init: Callable[[], object] | None = None,
        thread_limit: ThreadLimitOption = "share",
    ) -> None:
        super().__init__(ds, num_proc, map_func, buffer_size, strict, ordered, with_rng)
        self._df_set_workers(self.num_workers, UNBOUNDED, timeout)
        self._df_set_restarts(max_restarts)
        self._df_set_process_options(context, max_bytes)
        self._df_set_options(max_failures, worker_init, thread_limit)

    def _df_make_codec(self) -> ArrayCodec:
        memory = self._df_memory()
        return ArrayCodec(self.num_workers, memory - queued_bytes(memory) - _given_bytes(memory))

    def _df_make_task_queue(self) -> TaskQueue:
        forked = context_of(self.context).get_start_method() == "fork"
        direction = ToWorkers(forked=forked, main=None if forked else imported_main())
        return SharedTaskQueue(_given_bytes(self._df_memory()), direction=direction)


MultiProcessMapData = MultiProcessMapDataZMQ


def _given_bytes(max_bytes: int) -> int:
    """The part of `max_bytes` that is for the workers' input."""
    return max_bytes // 4


def _start_thread(spec: WorkerSpec) -> Worker:
    return ThreadWorker(spec.info, spec)
