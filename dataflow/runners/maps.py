"""Parallel maps: nodes that apply a function to every datapoint in a pool of worker threads or processes.

The consumer reads the single source; idle workers take its datapoints as tasks and apply the function. `ParallelMap`
holds what all maps share. A public class is its parameters, a backend, and a docstring that defines what a pass is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count, tee
from typing import Any, Final, Literal, SupportsIndex, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, T_co, T_in
from dataflow.protocol.kept import reading_ahead
from dataflow.protocol.parameters import flag, function, whole_number
from dataflow.protocol.passes import known_length, until_closed, walk
from dataflow.protocol.pauses import paused, pausing, side_by_side
from dataflow.protocol.seeding import Rng, Stream
from dataflow.protocol.state import Drops, FirstCalls, Taken, state_of
from dataflow.runners.backends import Backend, Links, ProcessBackend, Tasks, ThreadBackend
from dataflow.runners.engine import Engine
from dataflow.runners.feeding import Feeder, SourceReader, passes_of
from dataflow.runners.jobs import Apply, ApplyAndBatch, TaskInput
from dataflow.runners.options import NumWorkers, ProcessKeywords, WorkerKeywords, WorkerOptions, takes
from dataflow.runners.schedules import MapTasks
from dataflow.runners.worker_node import UNBOUNDED, WorkerNode, is_consecutive
from dataflow.transforms.applying import keeps_positions
from dataflow.transforms.augmenting import RandomMapData
from dataflow.transforms.grouping import MemoryWatch, may_reuse_memory
from dataflow.transforms.indexing import consecutive, onwards
from dataflow.transforms.mapping import MapData
from dataflow.transport.flow_control import Window
from dataflow.transport.task_queue import PAIRED

__all__ = ["MultiProcessMapData", "MultiProcessMapDataZMQ", "MultiThreadMapData", "ParallelMap"]


# -- Base class of the parallel maps -----------------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)


_LONGEST_PASS: Final = 1 << 40  # datapoints; stands for the length of a pass of unknown length
_BLOCK: Final = 256


class ParallelMap(WorkerNode[T_co]):
    """Base class of the parallel maps. Without workers it does what `MapData` does.

    Args:
        ds: The input.
        func: The function.
        options: The user's options.
        backend: What a worker is, and how its datapoints come.
        buffer_size: Datapoints that may be read and not yet handed out.
        with_rng: Whether the function is called with a generator, too.
        seed_globals: Whether the global generators are seeded for each datapoint.
        batch_size: If more than 1, each task is so many datapoints, whose results come as one batch where possible.
    """

    seed_globals: bool = False

    _df_calls = True
    _df_takes = 1

    def __init__(
        self,
        ds: DataFlow,
        func: Callable[..., Any] | None,
        options: WorkerOptions,
        backend: Backend,
        buffer_size: SupportsIndex,
        *,
        with_rng: bool = False,
        seed_globals: bool = False,
        batch_size: int = 1,
    ) -> None:
        name = options.owner
        if options.auto and backend.adds_workers:
            options = options.adapting(backend.memory(options))
        super().__init__(ds, options, backend)
        self.func = function(name, "map_func", func, f"is called with a datapoint, as in {name}(ds, 4, lambda dp: dp)")
        under_way = ": it is the number of datapoints that may be under way"
        self.buffer_size = whole_number(name, "buffer_size", buffer_size, 1, under_way)
        self._batch_size = batch_size
        self.with_rng = self._df_draws = flag(name, "with_rng", with_rng)
        if flag(name, "seed_globals", seed_globals):
            if self.with_rng:
                raise ValueError(f"{name}: with_rng and seed_globals are two ways to draw; choose one")
            if not backend.own_process and options.num_workers:
                raise ValueError(
                    f"{name}: seed_globals=True seeds generators that all threads share, so a thread would draw the "
                    "numbers of another one. Use processes (MultiProcessMapData), or with_rng=True"
                )
            self.seed_globals = self._df_draws = True

    # -- hook for subclasses -------------------------------------------------------------------------------------------

    def _df_node_in_worker(self, ds: DataFlow) -> MapData:
        """The node that applies the same function to `ds` without workers."""
        if self.with_rng:
            return RandomMapData(ds, self.func)
        return MapData(ds, self.func, seed_globals=self.seed_globals)

    # -- starting workers ----------------------------------------------------------------------------------------------

    def _df_nodes_of_workers(self) -> Iterable[DataFlow]:
        # The input is read in the consumer; the workers have the function, and know the length.
        return [self]

    def _df_tasks(self) -> Tasks:
        return Tasks.DATAPOINTS

    def _df_window(self) -> Window:
        return UNBOUNDED

    def _df_jobs(self, stream: Stream) -> Sequence[Apply]:
        jobs: list[Apply] = []
        for _ in range(self.num_workers):
            task_input = TaskInput(self.ds, self._stride(stream), stream.begin)
            node = self._df_node_in_worker(task_input)
            if self._batch_size > 1:
                jobs.append(ApplyAndBatch(node, stream, task_input, self._batch_size))
            else:
                jobs.append(Apply(node, stream, task_input))
        return jobs

    def _stride(self, stream: Stream) -> int:
        """Distance between the indexes of the same position in two consecutive passes."""
        return known_length(self.ds, stream.begin) or _LONGEST_PASS

    def _df_schedule(self, links: Links, stream: Stream) -> MapTasks:
        assert links.task_queue is not None, "a map has a task queue"
        return MapTasks(
            links.task_queue,
            self.num_workers,
            self.buffer_size,
            ordered=self.ordered,
            continues=not self.strict,
            per_task=self._batch_size if self._batch_size > 1 else None,
            length=self._stride(stream),
        )

    # -- node protocol -------------------------------------------------------------------------------------------------

    @property
    def _df_endless(self) -> bool:
        return not self.strict or self.ds._df_endless

    @property
    def _df_may_have_dropped(self) -> bool:
        engine = state_of(self).resource
        return super()._df_may_have_dropped or (isinstance(engine, Engine) and engine.schedule.has_dropped)

    def _df_warn_of_default(self) -> None:
        _LOG.warning(
            "%s with strict=False (the default): its passes never end, as in tensorpack, since those of its input "
            "follow one another. Pass strict=True for passes that end and have exactly the datapoints of MapData; or "
            "leave the loop with break, or cut it with FixedSizeData",
            self.options.owner,
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

    def _map_here(self) -> DataFlow:
        """The same map, in the calling process: what it drops counts as dropped by this node."""
        node = self._df_node_in_worker(self.ds)
        for kind in (Drops, FirstCalls):
            state_of(node).share(kind, state_of(self))
        return node

    def _df_at_in_consumer(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return self._df_reported_here(partial(self._map_here()._df_at, blocks, stream))()

    def _watched(self) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """What looks at the datapoints of the input, which wait for workers: threads get them as they are."""
        if self._df_backend.own_process or not may_reuse_memory(self.ds):
            return iter
        # `SourceReader` steps them under its lock.
        return partial(state_of(self).part(MemoryWatch).over, waits=self.ds._df_waits, is_guarded=True)

    def _df_steps_of_block(
        self,
        engine: Engine[MapTasks],
        block: NDArray[np.int64],
        following: Iterator[NDArray[np.int64]],
        stream: Stream,
    ) -> Iterator[Any] | None:
        first, waits_below = PAIRED, self.ds._df_waits
        if self.ordered:
            # Only one thread may step the two: `SourceReader` reads both under its lock.
            blocks, here = tee(chain([block], following))
            indexes = chain.from_iterable(map(np.ndarray.tolist, here))
            datapoints = side_by_side([indexes, self.ds._df_at(blocks, stream)], waits_below)
        elif is_consecutive(block) and self._batch_size == 1:
            first, datapoints = int(block[0]), self.ds._df_at([block], stream)
        else:
            return None  # positions that are not consecutive are paired with datapoints by ordered maps only
        generation = engine.begin_pass_if_free(partial(engine.schedule.begin_pass, first, holes=True))
        if generation is None:
            return None  # nothing was taken from `following` so far
        feeder = Feeder(engine, generation, SourceReader([self._watched()(datapoints)], waits=waits_below))
        chunks = feeder.chunks(self.options.timeout, self._df_waits)
        return self._df_steps_of_pass(chunks, engine, generation, self)

    def _df_strict_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            return until_closed(self._df_reported_here(partial(self._map_here()._df_run_pass, p, stream))(), self)
        engine: Engine[MapTasks] = self._df_engine_at(stream)
        engine.tolerance.begin_pass()
        first = p * self._stride(stream)
        taken: Taken | None = None
        generation = engine.begin_pass(partial(engine.schedule.begin_pass, first))
        if not self._reads_by_index:
            stream, taken = reading_ahead(self, stream, self.options.owner)
            source = SourceReader(map(self._watched(), passes_of(self.ds, [p], stream)), waits=self.ds._df_waits)
        else:
            # A datapoint dropped below keeps its position, so what is drawn for later ones does not change.
            state_of(self).continued.require_same_weights(stream, self)
            length = None if self.ds._df_endless else self.ds._df_num_from(stream.begin)
            blocks = onwards(first, _BLOCK) if length is None else consecutive(first, first + length)
            source = SourceReader([self._watched()(self.ds._df_at(blocks, stream))], waits=self.ds._df_waits)
        chunks = Feeder(engine, generation, source).chunks(self.options.timeout, self._df_waits)
        return self._df_steps_of_pass(chunks, engine, generation, None if self.ds._df_endless else self, taken)

    @property
    def _reads_by_index(self) -> bool:
        if self._df_draws:
            return self.ds._df_addressable
        return any(node._df_calls for node in walk(self.ds, everywhere=True)) and keeps_positions(self.ds)

    def _df_mixed_pass(self, stream: Stream) -> Iterator[Any]:
        if self.num_workers == 0:
            return until_closed(self._df_passes_here(self._df_node_in_worker(self.ds), stream), self)
        below = self.ds._df_waits

        def read_from(p: int) -> SourceReader:
            return SourceReader(map(self._watched(), passes_of(self.ds, count(p), stream)), waits=below)

        source = self._df_continued_by(read_from, stream)
        engine: Engine[MapTasks] = self._df_engine_at(stream)
        engine.tolerance.begin_pass()
        generation = engine.take_over(engine.schedule.resume)
        waits = self._df_waits
        chunks = Feeder(engine, generation, source).chunks(self.options.timeout, waits)
        return pausing(self._datapoints(engine, chunks, waits), waits)

    def _datapoints(self, engine: Engine[MapTasks], chunks: Iterator[Iterator[Any]], waits: bool) -> Iterator[Any]:
        """Yield the datapoints of one pass. A generator, so that several threads may step it, as in a strict pass."""
        try:
            while True:
                try:
                    for chunk in chunks:
                        yield from chunk
                    break
                except TimeoutError as error:
                    pause = paused(error, waits and not engine.session.failed)
                yield pause  # outside of `except`, which would keep the error and its frames until the next step
        finally:
            if engine.session.failed:  # no call: it may be dropped after a break, or as the interpreter ends
                state_of(self).settle()
        _LOG.warning("%s has ended: a pass of its input was empty", type(self).__name__)


# -- Public classes ----------------------------------------------------------------------------------------------------


class MultiThreadMapData(ParallelMap[T_co]):
    """Apply a function to every datapoint, in `num_thread` threads, for work that releases the interpreter's lock.

    The consumer reads `ds` itself, and idle threads take the next datapoints. Datapoints are passed on without copying:
    the function gets a shallow copy, as in `MapData`, so changing an array in place changes it in the source, too. A
    source that yields one array again and again, with other values, is an error.

    By default passes never end, as in tensorpack: the passes of `ds` follow one another and mix, and results are
    yielded in the order in which they are completed. Datapoints that the function drops (by returning None) are left
    out. ``len`` is that of `ds`. When a loop is left with `break`, the datapoints under way belong to the next one.

    With ``strict=True`` a pass is exactly that of `MapData`, in the same order, for any `ds`: without a length, empty,
    or shorter than the buffer. When a pass is abandoned, the datapoints under way are discarded; if a pass of `ds`
    continues where the last one stopped, the next one then raises `NotReproducible`. Such a map can be
    addressed if `ds` can: ``df[i]`` calls the function in the calling process, while a node above uses the workers.

    A thread cannot be killed. One that does not return when the map is closed is left behind and named in the log.

    Args:
        ds: The input. It is reset and read in this process.
        num_thread: Threads, or "auto" for as many as pay. 0 calls the function in the consumer, for a debugger.
        map_func: Takes a datapoint and returns one; returns None to drop it.
        num_workers: The same as `num_thread`, under the name that all runners and maps know.
        buffer_size: Datapoints that may be read and not yet handed out, at least 1. With `strict`, this includes those
            that wait for a slower one before them.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict`, the random numbers do not depend on which worker does the work.
        seed_globals: As for `MapData`; refused here if there are threads, which share these generators.
        options: `strict`, `ordered`, `timeout`, `max_restarts` (of threads that call `sys.exit`; their work is done
            again), `max_failures` (of all threads together) and `worker_init`: see `WorkerOptions`.

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

    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        num_thread: NumWorkers | None = None,
        map_func: Callable[[T_in], T_co | None] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: Literal[False] = False,
        seed_globals: bool = False,
        **options: Unpack[WorkerKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        num_thread: NumWorkers | None = None,
        map_func: Callable[[T_in, Rng], T_co | None] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: Literal[True],
        seed_globals: bool = False,
        **options: Unpack[WorkerKeywords],
    ) -> None: ...
    @takes(WorkerKeywords)
    def __init__(
        self,
        ds: DataFlow,
        num_thread: NumWorkers | None = None,
        map_func: Callable[..., Any] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: bool = False,
        seed_globals: bool = False,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        checked = WorkerOptions.of(self, num_workers, options, ("num_thread", num_thread))
        super().__init__(
            ds, map_func, checked, ThreadBackend(), buffer_size, with_rng=with_rng, seed_globals=seed_globals
        )


class MultiProcessMapData(ParallelMap[T_co]):
    """Apply a function to every datapoint, in `num_proc` processes, which send their results over ZeroMQ.

    The consumer reads `ds` itself, and idle processes take the next datapoints from a shared task queue. So this node
    parallelises work on a source that only one process can read. Arrays go through shared memory, in both directions.
    Each process has its own copy of the datapoints that it takes, and may change them.

    `MultiThreadMapData` describes what a pass is, with and without `strict`.

    Args:
        ds: The input. It is reset and read in this process.
        num_proc: Processes, or "auto" for as many as pay. 0 calls the function in the consumer, for a debugger.
        map_func: Takes a datapoint and returns one; returns None to drop it. Lambdas and closures may be sent.
        num_workers: The same as `num_proc`, under the name that all runners and maps know.
        buffer_size: Datapoints that may be read and not yet handed out, at least 1. With `strict`, this includes those
            that wait for a slower one before them.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict`, the random numbers do not depend on which worker does the work.
        seed_globals: Seed `random`, `np.random` and torch before each call, as for `MapData`.
        options: `strict`, `ordered`, `timeout`, `max_restarts` (the tasks that a failed worker had taken are done
            again: with `strict`, the output is that of an undisturbed run), `max_failures` (of all workers together),
            `worker_init`, `context`, `max_bytes` and `thread_limit`: see `WorkerOptions`.

    Raises:
        WorkerDied: A worker was killed, crashed or exited; the message says which, how, and what to do.
        WorkerError: The function raised an exception that cannot be pickled. Any other arrives as its own type, with
            the worker's traceback as its cause.
        TimeoutError: No datapoint came for `timeout` seconds.
        NotPicklable: The start method is not fork, and the function cannot be sent.
        NotReentrant: A later iteration of the same map took over.

    Example:
        >>> df = DataFromGenerator(lambda: ([k] for k in range(5)))
        >>> with MultiProcessMapData(df, 2, lambda dp: [dp[0] ** 2], strict=True) as squares:
        ...     list(squares)
        [[0], [1], [4], [9], [16]]

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        num_proc: NumWorkers | None = None,
        map_func: Callable[[T_in], T_co | None] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: Literal[False] = False,
        seed_globals: bool = False,
        **options: Unpack[ProcessKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        num_proc: NumWorkers | None = None,
        map_func: Callable[[T_in, Rng], T_co | None] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: Literal[True],
        seed_globals: bool = False,
        **options: Unpack[ProcessKeywords],
    ) -> None: ...
    @takes(ProcessKeywords)
    def __init__(
        self,
        ds: DataFlow,
        num_proc: NumWorkers | None = None,
        map_func: Callable[..., Any] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: bool = False,
        seed_globals: bool = False,
        **options: Unpack[ProcessKeywords],
    ) -> None:
        checked = WorkerOptions.of(self, num_workers, options, ("num_proc", num_proc))
        super().__init__(
            ds, map_func, checked, ProcessBackend(), buffer_size, with_rng=with_rng, seed_globals=seed_globals
        )


MultiProcessMapDataZMQ = MultiProcessMapData
