"""Runners: nodes that run a whole flow in each of N workers and yield the datapoints that they make.

`Runner` holds what all runners share. Each public class adds a choice of worker and channel; its docstring defines what
a pass is.
"""

from __future__ import annotations

import logging
import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dataflow.base import Blocks, DataFlow, require_flow
from dataflow.channel.flow_control import Credit, Window
from dataflow.channel.local import ThreadChannel
from dataflow.channel.protocols import Channel
from dataflow.channel.shared_task_queue import SharedTaskQueue
from dataflow.channel.task_queue import TaskQueue, ThreadTaskQueue
from dataflow.codec.protocols import Codec, ObjectCodec
from dataflow.engine.engine import Engine, NodeEngine, PassEngine, Plan
from dataflow.engine.jobs import Address, Produce, WholePasses
from dataflow.engine.schedules import IndexRanges, OnePass, Schedule
from dataflow.engine.worker_main import WorkerSpec
from dataflow.errors import NotAddressable
from dataflow.failures import Budget
from dataflow.parallel.passes_of_workers import WorkerPasses, is_consecutive, until_over
from dataflow.parallel.worker_setup import UNBOUNDED, ProcessSetup, ThreadLimitOption, queued_bytes, tolerance_of
from dataflow.parameters import flag, hinting, whole_number
from dataflow.passes import known_length, open_flow, until_closed
from dataflow.seeding import Stream
from dataflow.state import state_of
from dataflow.workers.pool import Worker
from dataflow.workers.thread import ThreadWorker

__all__ = [
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "MultiThreadRunner",
    "ProcessRunner",
    "Runner",
    "queued_bytes",
    "window_of",
]


# -- Base classes of the runners ---------------------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)
_DEFAULT_COUNT: Final = 50
_DEFAULT_BYTES: Final = 256 << 10
_QUEUE_BYTES: Final = 1 << 20
_STEP_SECONDS: Final = 0.2
_LONGEST_STEP: Final = 128


class Runner(WorkerPasses):
    """Base class of the runners: N workers, each of which repeats its whole flow endlessly."""

    _df_remote_inputs = True

    def __init__(self, ds: DataFlow, num_workers: SupportsIndex, window: Window, timeout: float | None) -> None:
        super().__init__(ds)
        self._df_set_workers(num_workers, window, timeout)

    def _df_set_strict(self, strict: bool, ordered: bool) -> None:
        """Check and keep the user's options; must be called last.

        Raises:
            NotAddressable: Several workers would have to share each pass, but a flow cannot be addressed.
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
        """Whether the workers are asked for indexes."""
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
        """The task queue that carries index ranges to the workers."""
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

    def _df_make_engine(self, plan: Plan, stream: Stream) -> NodeEngine:
        return PassEngine(plan, stream) if self.strict else super()._df_make_engine(plan, stream)

    def _df_window_of_worker(self) -> Window:
        return UNBOUNDED if self._df_by_index else self._df_window

    # -- node protocol -------------------------------------------------------------------------------------------------

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
        return self._df_at_in_workers(blocks, stream) if self.num_workers else self._df_at_in_consumer(blocks, stream)

    def _df_at_in_consumer(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
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
        """Yield the datapoints of one pass. A generator, so that several threads may step it, as `until_over`."""
        left = sys.maxsize if length is None else length
        step = 1  # datapoints between two checks of the engine, which looks at the workers: about `_STEP_SECONDS`
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


class ProcessRunner(ProcessSetup, Runner):
    """Base class of the runners whose workers are processes."""

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
        self._df_set_process_options(context, max_bytes)

    def _df_make_strict_task_queue(self) -> TaskQueue:
        return SharedTaskQueue(_QUEUE_BYTES, _QUEUE_BYTES)


def _first_of(datapoints: Iterator[Any], num: int | None) -> Iterator[Any]:
    """The first `num` datapoints. A generator, as `until_over`: `islice` counts as ended once a thread lost a step."""
    yield from islice(datapoints, num)


def window_of(given: SupportsIndex | None, owner: object, name: str) -> Window:
    """How far a worker may run ahead, from the user's argument: `h` datapoints, or by default 50 or 256 KiB.

    At most `2 * h + 2` datapoints may be made and not yet handed out. These are the window, the message being handed
    out (half a window), and the datapoint that the worker is making: so the window is a third more than `h`.
    """
    if given is None:
        return Window(_and_a_third(_DEFAULT_COUNT), _and_a_third(_DEFAULT_BYTES))
    h = whole_number(owner, name, given, 0, ": it is a number of datapoints, or None for a default")
    return Window(_and_a_third(max(1, h)))


def _and_a_third(amount: int) -> int:
    return amount + amount // 3


# -- Public classes ----------------------------------------------------------------------------------------------------


class MultiProcessRunnerZMQ(ProcessRunner):
    """Run a flow in `num_proc` processes, which send their datapoints over ZeroMQ.

    Every worker repeats the whole of `ds`, endlessly and independently, each with random numbers of its own; the
    consumer receives the mixture. A pass is ``len(ds)`` datapoints of it, and never ends if `ds` has no length. With
    ``num_proc=1`` it is `ds`'s own data in its own order. When a loop is left with `break`, the workers keep running;
    the datapoints that they have made ahead belong to the next pass.

    With ``strict=True`` the workers share each pass by index instead: it is exactly the datapoints of that pass of
    `ds`, in order, with the random numbers of `ds` itself, for any number of workers; and passes end. When a pass is
    abandoned, the datapoints under way are discarded. This requires a flow that can be addressed (``ds.addressable``),
    or one worker.

    Runners may be nested in every combination: the number of leaf workers is the product.

    Args:
        ds: The flow. It is reset once inside every worker, and not in this process.
        num_proc: ProcessSetup. 0 runs the flow in the consumer, for a debugger.
        hwm: How far each worker runs ahead: at most ``2 * hwm + 2`` of its datapoints are made and not yet handed out.
            None means 50, or as many as make up 256 KiB if that is more.
        strict: Whether a pass is exactly one of `ds`.
        ordered: With `strict`, whether the order is kept, too.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the workers are alive.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``. Lambdas and
            closures may be sent under each.
        max_bytes: Bytes of all datapoints under way, in shared memory and in messages, at least 1 MiB; None means a
            quarter of the memory of the machine or container, at most 1 GiB, and inside a worker that worker's share.
        max_restarts: How many workers, in total, may fail (be killed, crash, exit) and be replaced. Datapoints that a
            failed worker had sent are handed out; its successor begins with the first of its passes, so with one worker
            datapoints are repeated. With `strict`, the datapoints that it had been asked for are made again, so that
            nothing is lost or doubled. The next failure raises `WorkerDied`.
        max_failures: How many datapoints the maps below may skip because their function raised, apart from maps with a
            `max_failures` of their own: a number for each pass of a worker (with `strict`, for each pass), or a
            fraction of all datapoints seen by all workers together, judged once there are 100. Skipped datapoints are
            logged here, and listed by `failures`.
        worker_init: Called without arguments once in each worker, before the flow is reset there.
        thread_limit: Threads that BLAS, OpenMP and OpenCV may use in each worker: a number; "share" for an equal part
            of the cores, or fewer where fewer were set before; None to leave them alone. Libraries that are loaded
            before the limit is set need the package `threadpoolctl` (the extra `threads`). OpenCV that was imported
            before a fork uses one thread.

    Raises:
        WorkerDied: A worker was killed, crashed or exited; the message says which, how, and what to do.
        WorkerError: A worker raised an exception that cannot be pickled. Any other arrives as its own type, with the
            worker's traceback as its cause, after all datapoints that the worker had made before.
        TimeoutError: No datapoint came for `timeout` seconds.
        NotPicklable: The start method is not fork, and a node cannot be sent; the message names the node and the
            attribute.
        NotReentrant: A later iteration of the same runner took over.
        NotAddressable: With `strict`, several workers would have to share the passes of a flow that cannot be
            addressed.
        TooManyFailures: `max_failures` is used up; the last error is the cause.

    Example:
        >>> df = MapData(DataFromList([[k] for k in range(4)], shuffle=False), lambda dp: [dp[0] ** 2])
        >>> with MultiProcessRunnerZMQ(df, num_proc=1) as runner:
        ...     list(runner), list(runner)
        ([[0], [1], [4], [9]], [[0], [1], [4], [9]])
        >>> with MultiProcessRunnerZMQ(df, num_proc=3, strict=True) as runner:
        ...     list(runner), list(runner)
        ([[0], [1], [4], [9]], [[0], [1], [4], [9]])

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    @hinting
    def __init__(
        self,
        ds: DataFlow,
        num_proc: SupportsIndex = 1,
        hwm: int | None = None,
        *,
        strict: bool = False,
        ordered: bool = True,
        timeout: float | None = None,
        context: BaseContext | str | None = None,
        max_bytes: SupportsIndex | None = None,
        max_restarts: SupportsIndex = 0,
        max_failures: Budget | None = None,
        worker_init: Callable[[], object] | None = None,
        thread_limit: ThreadLimitOption = "share",
    ) -> None:
        super().__init__(ds, num_proc, window_of(hwm, self, "hwm"), timeout, context, max_bytes)
        self._df_set_strict(strict, ordered)
        self._df_set_restarts(max_restarts)
        self._df_set_options(max_failures, worker_init, thread_limit)


class MultiProcessRunner(ProcessRunner):
    """Run a flow in `num_proc` processes, each of which has a pipe to the consumer.

    It behaves like `MultiProcessRunnerZMQ`, raises the same errors, and needs no socket.

    Args:
        ds: The flow. It is reset once inside every worker, and not in this process.
        num_prefetch: Datapoints that each worker may have sent and the consumer has not yet handed out; at most
            ``2 * num_prefetch + 2`` are computed ahead for each worker.
        num_proc: ProcessSetup. 0 runs the flow in the consumer, for a debugger.
        strict: Whether a pass is exactly one of `ds`, as for `MultiProcessRunnerZMQ`.
        ordered: With `strict`, whether the order is kept, too.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the workers are alive.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``.
        max_bytes: Bytes of all datapoints under way, as for `MultiProcessRunnerZMQ`.
        max_restarts: How many workers may fail and be replaced, as for `MultiProcessRunnerZMQ`.
        max_failures: How many datapoints may be skipped, as for `MultiProcessRunnerZMQ`.
        worker_init: Called without arguments once in each worker, before the flow is reset there.
        thread_limit: Threads of native libraries in each worker, as for `MultiProcessRunnerZMQ`.

    Example:
        >>> df = DataFromList([[k] for k in range(4)], shuffle=False)
        >>> with MultiProcessRunner(df, num_prefetch=10, num_proc=1) as runner:
        ...     list(runner)
        [[0], [1], [2], [3]]
    """

    _df_over_zmq = False

    @hinting
    def __init__(
        self,
        ds: DataFlow,
        num_prefetch: int,
        num_proc: SupportsIndex,
        *,
        strict: bool = False,
        ordered: bool = True,
        timeout: float | None = None,
        context: BaseContext | str | None = None,
        max_bytes: SupportsIndex | None = None,
        max_restarts: SupportsIndex = 0,
        max_failures: Budget | None = None,
        worker_init: Callable[[], object] | None = None,
        thread_limit: ThreadLimitOption = "share",
    ) -> None:
        super().__init__(ds, num_proc, window_of(num_prefetch, self, "num_prefetch"), timeout, context, max_bytes)
        self._df_set_strict(strict, ordered)
        self._df_set_restarts(max_restarts)
        self._df_set_options(max_failures, worker_init, thread_limit)


class MultiThreadRunner(Runner):
    """Run `num_thread` flows in threads, for work that releases the interpreter's lock: reading, decoding, numpy.

    Every thread repeats its own flow endlessly; the consumer receives the mixture. A pass has the length of one flow.
    Datapoints are passed on without copying or pickling, so a flow must not change a datapoint that it has yielded.

    A thread cannot be killed. One that does not return when the runner is closed is left behind and named in the log.

    Args:
        get_df: Makes a flow; called once for each thread, here. The flow is reset inside its thread.
        num_prefetch: Datapoints that each thread may have made and the consumer has not yet handed out; at most
            ``2 * num_prefetch + 2`` are computed ahead for each thread.
        num_thread: Threads. 0 runs one flow in the consumer.
        strict: Whether a pass is exactly one of these flows, as for `MultiProcessRunnerZMQ`: `get_df` makes equal ones.
        ordered: With `strict`, whether the order is kept, too.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the threads are alive.
        max_restarts: How many threads may call `sys.exit` and be replaced, as for `MultiProcessRunnerZMQ`.
        max_failures: How many datapoints may be skipped, as for `MultiProcessRunnerZMQ`.
        worker_init: Called without arguments once in each thread, before its flow is reset there.

    Raises:
        TypeError: `get_df` is a flow instead of a function that makes one.
        ValueError: `get_df` returned the same flow twice.

    Example:
        >>> with MultiThreadRunner(lambda: DataFromList([[1], [2]], shuffle=False), 10, num_thread=1) as runner:
        ...     list(runner)
        [[1], [2]]
    """

    _df_workers_name = "num_thread"

    @hinting
    def __init__(
        self,
        get_df: Callable[[], DataFlow],
        num_prefetch: int,
        num_thread: SupportsIndex,
        *,
        strict: bool = False,
        ordered: bool = True,
        timeout: float | None = None,
        max_restarts: SupportsIndex = 0,
        max_failures: Budget | None = None,
        worker_init: Callable[[], object] | None = None,
    ) -> None:
        if isinstance(get_df, DataFlow) or not callable(get_df):
            raise TypeError(
                f"MultiThreadRunner calls get_df once for each thread to make a flow, got {type(get_df).__name__}: "
                "pass a function, for example lambda: MapData(...)"
            )
        num_thread = self._df_checked_workers(num_thread)
        made = [require_flow(get_df(), "get_df", "what it returns") for _ in range(max(1, num_thread))]
        if len({id(ds) for ds in made}) < len(made):
            raise ValueError("get_df gave the same flow twice; threads need one each. Make the flow inside get_df")
        count = window_of(num_prefetch, self, "num_prefetch").count  # objects have no size in bytes
        super().__init__(made[0], num_thread, Window(count), timeout)
        self.dataflows = made
        self._df_set_strict(strict, ordered)
        self._df_set_restarts(max_restarts)
        self._df_set_options(max_failures, worker_init)

    @property
    def _df_inputs(self) -> Sequence[DataFlow]:
        return self.dataflows

    def _df_flows(self) -> Sequence[DataFlow]:
        return self.dataflows

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        return ThreadChannel(), ObjectCodec(), Credit(self.num_workers, shared=False)

    def _df_starter(self) -> Callable[[WorkerSpec], Worker]:
        return _start_thread


def _start_thread(spec: WorkerSpec) -> Worker:
    return ThreadWorker(spec.info, spec)
