"""The parallel maps: each is a choice of worker and channel; what a pass of it means is in its docstring."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any, SupportsIndex

from dataflow.base import DataFlow
from dataflow.channel.flow_control import Credit
from dataflow.channel.local import ThreadChannel
from dataflow.channel.protocols import Channel
from dataflow.channel.shared_task_queue import SharedTaskQueue
from dataflow.channel.task_queue import TaskQueue, ThreadTaskQueue
from dataflow.codec.nested_arrays import ToWorkers
from dataflow.codec.protocols import ArrayCodec, Codec, ObjectCodec
from dataflow.engine.worker_main import WorkerSpec
from dataflow.failures import Budget
from dataflow.keywords import hinting
from dataflow.parallel.mapping import ParallelMap
from dataflow.parallel.worker_options import ThreadLimitOption
from dataflow.parallel.worker_setup import UNBOUNDED, Processes, context_of, queued_bytes
from dataflow.pickling import imported_main
from dataflow.workers.pool import Worker
from dataflow.workers.thread import ThreadWorker

__all__ = ["MultiProcessMapData", "MultiProcessMapDataZMQ", "MultiThreadMapData"]


class MultiThreadMapData(ParallelMap):
    """Apply a function to every datapoint, in `num_thread` threads: for work that releases the interpreter's lock.

    The consumer reads `ds` itself; whichever thread is idle takes the next datapoints. Datapoints are passed on as they
    are: the function gets a shallow copy, as that of `MapData` does, so an array that it changes in place is changed in
    the source, too.

    By default passes never end, as in tensorpack: those of `ds` follow one another and mix, and results come in the
    order in which they are done. What the function drops (by returning None) is left out. ``len`` is that of `ds`. When
    a loop is left with `break`, what is under way belongs to the next.

    With ``strict=True`` a pass is exactly what `MapData` would give, in the same order, of whatever `ds`: one without a
    length, an empty one, one shorter than the buffer. What is under way when a pass is broken off is thrown away. Such
    a map can be addressed if `ds` can: ``df[i]`` calls the function in the calling process; what stands above it has
    its workers do it.

    A thread cannot be killed. One that does not return when the map is closed is left behind and named in the log.

    Args:
        ds: The input. It is reset and read in this process.
        num_thread: Threads. 0 calls the function in the consumer, for a debugger.
        map_func: Takes a datapoint and returns one; returns None to drop it.
        buffer_size: Datapoints that may be read and not yet handed out, at least 1. With `strict`, those that wait for
            a slower one before them are among these.
        strict: Whether a pass is exactly one of `MapData`.
        ordered: With `strict`, whether the order is kept, too.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict` the random numbers do not depend on which worker does the work.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the threads are alive.
        max_restarts: How many threads that have called `sys.exit` are replaced. Their work is done again.
        max_failures: How many datapoints may fail: a number in each pass, or a fraction of all seen as soon as these
            are 100. All workers count together. What was skipped is logged here, and listed by `failures`.
        worker_init: Called without arguments once in each thread, before the first datapoint.

    Raises:
        TypeError: `num_thread` or `map_func` is missing, or cannot be what it should.
        TimeoutError: No datapoint came for `timeout` seconds.
        Exception: Whatever the function or the input raised. With `strict`, after every datapoint before it.

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
        self._df_set_staff(self.num_workers, UNBOUNDED, timeout)
        self._df_set_restarts(max_restarts)
        self._df_set_options(max_failures, worker_init)

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        return ThreadChannel(), ObjectCodec(), Credit(self.num_workers, shared=False)

    def _df_make_task_queue(self) -> TaskQueue:
        return ThreadTaskQueue()

    def _df_starter(self) -> Callable[[WorkerSpec], Worker]:
        return _start_thread


class MultiProcessMapDataZMQ(Processes, ParallelMap):
    """Apply a function to every datapoint, in `num_proc` processes, which send their results over ZeroMQ.

    The consumer reads `ds` itself, and puts its datapoints where whichever process is idle takes the next: so this is
    the way to be parallel for a source that only one process can read. Arrays go through shared memory, in both
    directions. Each process has a copy of its own of what it takes, and may change it.

    What a pass is, with and without `strict`, is told for `MultiThreadMapData`.

    Args:
        ds: The input. It is reset and read in this process.
        num_proc: Processes. 0 calls the function in the consumer, for a debugger.
        map_func: Takes a datapoint and returns one; returns None to drop it. Lambdas and closures may be sent.
        buffer_size: Datapoints that may be read and not yet handed out, at least 1. With `strict`, those that wait for
            a slower one before them are among these.
        strict: Whether a pass is exactly one of `MapData`.
        ordered: With `strict`, whether the order is kept, too.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict` the random numbers do not depend on which worker does the work.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the workers are alive.
        max_restarts: How many workers may die (be killed, crash, exit) and are replaced, in all. What a dead worker had
            taken is done again: with `strict` the output is that of an undisturbed run. The next death is a
            `WorkerDied`.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``.
        max_bytes: Bytes of all datapoints under way, as for `MultiProcessRunnerZMQ`: a quarter for those that go to the
            workers, the rest for what they send.
        max_failures: How many datapoints may fail: a number in each pass, or a fraction of all seen as soon as these
            are 100. All workers count together. What was skipped is logged here, and listed by `failures`.
        worker_init: Called without arguments once in each worker, before the first datapoint.
        thread_limit: Threads of native libraries in each worker, as for `MultiProcessRunnerZMQ`.

    Raises:
        WorkerDied: A worker was killed, crashed or exited; says which, how, and what to do.
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
        self._df_set_staff(self.num_workers, UNBOUNDED, timeout)
        self._df_set_restarts(max_restarts)
        self._df_set_processes(context, max_bytes)
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
    """The part of `max_bytes` that is for what goes to the workers."""
    return max_bytes // 4


def _start_thread(spec: WorkerSpec) -> Worker:
    return ThreadWorker(spec.place, spec)
