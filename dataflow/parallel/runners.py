"""The runners. Each public class is a choice of worker and channel; what a pass of it means is in its docstring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import SupportsIndex

from dataflow.base import DataFlow, require_flow
from dataflow.channel.flow_control import Credit, Window
from dataflow.channel.local import ThreadChannel
from dataflow.channel.protocols import Channel
from dataflow.codec.protocols import Codec, ObjectCodec
from dataflow.engine.worker_main import WorkerSpec
from dataflow.failures import Budget
from dataflow.keywords import hinting
from dataflow.parallel.runner import ProcessRunner, Runner, window_of
from dataflow.parallel.worker_options import ThreadLimitOption
from dataflow.workers.pool import Worker
from dataflow.workers.thread import ThreadWorker

__all__ = ["MultiProcessRunner", "MultiProcessRunnerZMQ", "MultiThreadRunner"]


class MultiProcessRunnerZMQ(ProcessRunner):
    """Run a flow in `num_proc` processes, which send their datapoints over ZeroMQ.

    Every worker repeats the whole of `ds`, for ever and independently, each with random numbers of its own; the
    consumer gets the mixture. A pass is ``len(ds)`` datapoints of it, and never ends where `ds` has no length. With
    ``num_proc=1`` it is `ds`'s own data in its own order. The workers stay, and go on where they are, when a loop is
    left with `break`; what they had made ahead belongs to the next pass.

    With ``strict=True`` the workers share each pass by index instead: it is exactly the datapoints of that pass of
    `ds`, in order, with the random numbers of `ds` itself, however many workers there are; and passes end. What is
    under way when a pass is broken off is thrown away. It needs a flow that can be addressed (``ds.addressable``), or
    one worker.

    Runners may be nested in every combination: the number of leaf workers is the product.

    Args:
        ds: The flow. It is reset once inside every worker, and not in this process.
        num_proc: Processes. 0 runs the flow in the consumer, for a debugger.
        hwm: How far each worker runs ahead: at most ``2 * hwm + 2`` of its datapoints are made and not yet handed out.
            None means 50, or as many as make up 256 KiB if that is more.
        strict: Whether a pass is exactly one of `ds`.
        ordered: With `strict`, whether the order is kept, too.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the workers are alive.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``. Lambdas and
            closures may be sent under each.
        max_bytes: Bytes of all datapoints under way, in shared memory and in messages, at least 1 MiB; None means a
            quarter of the memory of the machine or container, at most 1 GiB, and inside a worker that worker's share.
        max_restarts: How many workers may die (be killed, crash, exit) and are replaced, in all. What a dead worker had
            sent is handed out; its successor joins in and begins with the first of its passes, so that with one worker
            datapoints come again. With `strict` what it had been asked for is made anew, so that nothing is lost or
            doubled. The next death is a `WorkerDied`.
        max_failures: How many datapoints the maps below may skip because their function raised, those aside that have a
            `max_failures` of their own: a number for each pass of a worker (with `strict`, for each pass), or a
            fraction of all that were seen by all workers together, judged once there are 100. What was skipped is
            logged here, and listed by `failures`.
        worker_init: Called without arguments once in each worker, before the flow is reset there.
        thread_limit: Threads that BLAS, OpenMP and OpenCV may use in each worker: a number; "share" for an equal part
            of the cores, or fewer where fewer were set before; None to leave them alone. For libraries that are loaded
            before the worker has its limit it needs the package `threadpoolctl` (the extra `threads`). OpenCV that was
            imported before a fork uses one thread.

    Raises:
        WorkerDied: A worker was killed, crashed or exited; says which, how, and what to do.
        WorkerError: A worker raised an exception that cannot be pickled. Any other arrives as its own type, with the
            worker's traceback as its cause, after all datapoints that the worker had made before.
        TimeoutError: No datapoint came for `timeout` seconds.
        NotPicklable: The start method is not fork, and a node cannot be sent; names the node and the attribute.
        NotReentrant: A later iteration of the same runner took over.
        NotAddressable: With `strict`, several workers shall share the passes of a flow that cannot be addressed.
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

    It means the same as `MultiProcessRunnerZMQ`, raises the same, and needs no socket.

    Args:
        ds: The flow. It is reset once inside every worker, and not in this process.
        num_prefetch: Datapoints that each worker may have sent and the consumer has not yet handed out; at most
            ``2 * num_prefetch + 2`` are computed ahead for each worker.
        num_proc: Processes. 0 runs the flow in the consumer, for a debugger.
        strict: Whether a pass is exactly one of `ds`, as for `MultiProcessRunnerZMQ`.
        ordered: With `strict`, whether the order is kept, too.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the workers are alive.
        context: Start method, or a multiprocessing context; None is ``multiprocessing.get_context()``.
        max_bytes: Bytes of all datapoints under way, as for `MultiProcessRunnerZMQ`.
        max_restarts: How many workers that died are replaced, as for `MultiProcessRunnerZMQ`.
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

    Every thread repeats its own flow for ever; the consumer gets the mixture, of which a pass is the length of one
    flow. Datapoints are passed on as they are: nothing is copied or pickled, so a flow must not change what it has
    yielded.

    A thread cannot be killed. One that does not return when the runner is closed is left behind and named in the log.

    Args:
        get_df: Makes a flow; called once for each thread, here. The flow is reset inside its thread.
        num_prefetch: Datapoints that each thread may have made and the consumer has not yet handed out; at most
            ``2 * num_prefetch + 2`` are computed ahead for each thread.
        num_thread: Threads. 0 runs one flow in the consumer.
        strict: Whether a pass is exactly one of these flows, as for `MultiProcessRunnerZMQ`: `get_df` makes equal ones.
        ordered: With `strict`, whether the order is kept, too.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the threads are alive.
        max_restarts: How many threads that have called `sys.exit` are replaced, as for `MultiProcessRunnerZMQ`.
        max_failures: How many datapoints may be skipped, as for `MultiProcessRunnerZMQ`.
        worker_init: Called without arguments once in each thread, before its flow is reset there.

    Raises:
        TypeError: `get_df` is a flow instead of a function that makes one.
        ValueError: `get_df` gave the same flow twice.

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
        count = window_of(num_prefetch, self, "num_prefetch").count  # objects have no bytes that could be counted
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
    return ThreadWorker(spec.place, spec)
