"""Worker setup: base classes of nodes with workers, which decide how many, of which kind, and how they are started.

`WorkerOptions` keeps the options of all runners and maps (failure budget, worker_init, limits of native threads).
`WorkerSetup` holds the hooks that a subclass implements and keeps the engine; `ProcessSetup` implements them for
processes. A class with workers must do the following:

- in its constructor: ``self._df_set_options(max_failures, worker_init, thread_limit)``;
- where it runs without workers: call ``initialise(self.worker_init)`` before the reset, and wrap the stepped iterator
  in ``partial(reported_steps, begin, self)``, both as in `Runner`;
- if any worker may do any item: let `_df_shares_items` be true, so that an item that is done again counts once, and
  call ``tolerance_of(self).begin_pass()`` where a pass begins, after ``_df_engine_at``.

In the worker, `MapData` and its subclasses do the rest, in `_df_run_pass` and in `_df_at`: they call
`failures.failure_reporter()`, yield `HOLE` for an item that failed, and report it under the index that they were asked
for, which must be its position in the pass. A job calls `limit_threads_again()` after it has opened its flow. Wherever
it steps a flow, it lets `Stopped` and `ConsumerGone` pass: a report may raise them in the middle of a step.
"""

from __future__ import annotations

import multiprocessing
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, SupportsIndex

from dataflow.base import ProxyDataFlow
from dataflow.channel.flow_control import Credit, Window
from dataflow.channel.local import PipeChannel
from dataflow.channel.protocols import Channel
from dataflow.channel.task_queue import TaskQueue
from dataflow.codec.protocols import ArrayCodec, Codec
from dataflow.descriptors import closed_on_error, counted
from dataflow.engine.engine import Engine, NodeEngine, Plan
from dataflow.engine.memory_limit import default_max_bytes
from dataflow.engine.schedules import MixedSchedule, Schedule
from dataflow.engine.worker_main import FlowPayload, WorkerSpec, prepared
from dataflow.failures import (
    Budget,
    Failure,
    FailureReporter,
    Report,
    Tolerance,
    failure_reporter,
    reporting_to,
)
from dataflow.interrupts import signals_deferred
from dataflow.parameters import (
    chosen_start_method,
    count_or_fraction,
    function,
    seconds,
    start_method,
    whole_number,
)
from dataflow.seeding import Stream, current_root
from dataflow.state import state_of
from dataflow.workers.info import worker_info_of
from dataflow.workers.native_threads import ThreadLimit, limit_of, share_of_cores
from dataflow.workers.pool import Worker
from dataflow.workers.process import ProcessWorker, end_if_main_is_imported

if TYPE_CHECKING:
    from dataflow.channel.zeromq import SocketChannel

__all__ = [
    "ProcessSetup",
    "ThreadLimitOption",
    "UNBOUNDED",
    "WorkerOptions",
    "WorkerSetup",
    "context_of",
    "queued_bytes",
    "reported_steps",
    "tolerance_of",
]


# -- Options of all nodes with workers ---------------------------------------------------------------------------------


ThreadLimitOption = SupportsIndex | Literal["share"] | None
"""`thread_limit`: threads of each native library, "share" for a worker's share of the cores, None to leave them."""


class WorkerOptions:
    """Mixin of nodes with workers: keeps the user's options for them."""

    _df_own_process: ClassVar[bool]
    num_workers: int
    max_failures: Budget | None = None
    worker_init: Callable[[], object] | None = None
    thread_limit: int | Literal["share"] | None = None

    def _df_set_options(
        self, max_failures: Any, worker_init: Callable[[], object] | None, thread_limit: ThreadLimitOption = None
    ) -> None:
        """Check and keep the user's options.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: A number is out of range.
        """
        name = self._df_title
        self.max_failures = count_or_fraction(name, "max_failures", max_failures)
        if worker_init is not None:
            function(name, "worker_init", worker_init, "is called without arguments in each worker")
        self.worker_init = worker_init
        if thread_limit is None or (isinstance(thread_limit, str) and thread_limit == "share"):
            self.thread_limit = thread_limit
            return
        alternatives = ', "share", or None for no limit'
        self.thread_limit = whole_number(name, "thread_limit", thread_limit, 1, alternatives=alternatives)

    @property
    def _df_title(self) -> str:
        """The node's name in messages."""
        return type(self).__name__

    @property
    def _df_shares_items(self) -> bool:
        """Whether any worker may do any item: then a failed item counts once, whichever worker does it."""
        return False

    @property
    def failures(self) -> list[Failure]:
        """The last 1,000 items that were skipped in all workers since they were started."""
        tolerance = state_of(self).tolerance
        return [] if tolerance is None else tolerance.failures

    def _df_begin_failures(self) -> Tolerance:
        """Make the `Tolerance` that counts the failures of the workers about to be started."""
        tolerance = Tolerance(self._df_title, self.max_failures, failure_reporter(), shared=self._df_shares_items)
        state_of(self).tolerance = tolerance
        return tolerance

    def _df_threads_of_worker(self) -> ThreadLimit | None:
        """The limit of native threads in each worker; None if a worker is not a process of its own."""
        if self.thread_limit is None or not self._df_own_process:
            return None
        if self.thread_limit == "share":
            return limit_of(share_of_cores(self.num_workers), exact=False)
        return limit_of(self.thread_limit, exact=True)


def tolerance_of(owner: WorkerOptions) -> Tolerance:
    """The `Tolerance` that counts the failures of the workers that `owner` has started."""
    tolerance = state_of(owner).tolerance
    assert tolerance is not None, "_df_begin_failures comes first"
    return tolerance


def reported_steps(begin: Callable[[], Iterator[Any]], owner: WorkerOptions) -> Iterator[Any]:
    """Iterate a flow in the consumer, reporting failures of its nodes as in a worker of `owner`.

    Its steps raise `TooManyFailures` when the budget is used up.
    """
    # Not `owner` itself, which keeps this iterator; nor the tolerance, which a reset replaces.
    state_ref = weakref.ref(state_of(owner))

    def process(report: Report) -> None:
        state = state_ref()
        too_many = None if state is None or state.tolerance is None else state.tolerance.process_report(report)
        if too_many is not None:
            raise too_many

    return _steps(begin, FailureReporter(tolerance_of(owner).inherited, (), process))


def _steps(begin: Callable[[], Iterator[Any]], reporter: FailureReporter) -> Iterator[Any]:
    with reporting_to(reporter):
        steps = begin()
    try:
        while True:
            with reporting_to(reporter):
                dp = next(steps)
            yield dp
    except StopIteration:
        return


# -- Setup -------------------------------------------------------------------------------------------------------------


UNBOUNDED: Final = Window(sys.maxsize // 4)
"""The window of a worker that makes only what it is asked for."""

_MIN_BYTES: Final = 1 << 20
_NO_TIMEOUT: Final = "; None waits as long as the workers are alive"
_DESCRIPTORS: Final = 24  # for the pool itself: a ZeroMQ context, a task queue, a directory
_PER_WORKER: Final = 10  # for each worker


class WorkerSetup(WorkerOptions, ProxyDataFlow):
    """Base class of nodes with workers: their options, their hooks, and the start of the engine."""

    _df_own_process: ClassVar[bool] = False  # whether each worker has its own global state
    _df_run_settings = frozenset(
        {
            "buffer_size",
            "context",
            "max_bytes",
            "max_failures",
            "max_restarts",
            "num_workers",
            "ordered",
            "strict",
            "thread_limit",
            "timeout",
            "_df_window",
            "worker_init",
        }
    )

    _df_workers_name: ClassVar[str] = "num_proc"  # name of the parameter for the number of workers

    num_workers: int
    _df_window: Window
    timeout: float | None
    max_restarts: int = 0

    def _df_set_workers(self, num_workers: SupportsIndex, window: Window, timeout: float | None) -> None:
        """Check and keep the user's options."""
        self.num_workers = self._df_checked_workers(num_workers)
        self._df_window = window
        self.timeout = None if timeout is None else seconds(self._df_title, "timeout", timeout, cure=_NO_TIMEOUT)

    def _df_checked_workers(self, num_workers: Any) -> int:
        """The number of workers, as an integer."""
        name = self._df_workers_name
        cure = f". Give the number of workers, for example {name}=4"
        return whole_number(self._df_title, name, num_workers, 0, cure, alternatives=" (run in the consumer)")

    def _df_set_restarts(self, max_restarts: SupportsIndex) -> None:
        """Check and keep `max_restarts`."""
        self.max_restarts = whole_number(
            self._df_title,
            "max_restarts",
            max_restarts,
            0,
            ": it is the number of workers that may die and are replaced",
        )

    # -- text ----------------------------------------------------------------------------------------------------------

    @property
    def _df_worker_kind(self) -> tuple[str, str]:
        """For `repr`: what a worker is, and by which way its datapoints come."""
        return "thread", ""

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, self._df_workers_name: self.num_workers}

    # -- hooks for subclasses ------------------------------------------------------------------------------------------

    def _df_jobs(self, stream: Stream) -> Sequence[Any]:
        """The job of each worker."""
        raise NotImplementedError

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        """How the workers send datapoints: channel, codec, and flow-control allowance."""
        raise NotImplementedError

    def _df_make_task_queue(self) -> TaskQueue | None:
        """The queue through which workers receive tasks; None if they need none."""
        return None

    def _df_make_schedule(self, task_queue: TaskQueue | None) -> Schedule:
        """The schedule: issued tasks, and results that wait to be handed out."""
        return MixedSchedule()

    def _df_make_engine(self, plan: Plan, stream: Stream) -> NodeEngine:
        """Start the workers."""
        return NodeEngine(plan, stream)

    def _df_window_of_worker(self) -> Window:
        """How far a worker may run ahead."""
        return self._df_window

    def _df_memory(self) -> int | None:
        """Bytes that may be under way; None if nothing is copied."""
        return None

    def _df_starter(self) -> Callable[[WorkerSpec], Worker]:
        """The function that starts a worker. It must not hold the node, which could then never be collected."""
        raise NotImplementedError

    # -- starting workers ----------------------------------------------------------------------------------------------

    def _df_engine_at(self, stream: Stream) -> Any:
        """The engine for this place in the chain, started if necessary."""
        state = state_of(self)
        with state.lock:  # of two threads that begin, one starts the workers
            engine = state.resource
            if isinstance(engine, NodeEngine) and engine.stream == stream:
                return engine
            # Another seed or another place in the chain: other random numbers, so other workers.
            return self._df_start(stream)

    def _df_start(self, stream: Stream) -> Engine:
        """Stop the workers, if there are any, and start new ones. A failed or interrupted start leaves nothing behind.

        Raises:
            OSError: There are too few descriptors, processes or threads, or there is too little memory.
        """
        state = state_of(self)
        with signals_deferred(), closed_on_error():
            state.own(self, None)
            start = self._df_starter()  # may raise, so before there is anything to close
            with counted(self._df_title, self._df_num_descriptors()):
                engine = self._df_started(stream, start)
            state.own(self, engine)
            return engine

    def _df_num_descriptors(self) -> int:
        """How many file descriptors the workers need in this process while they start, at least 1."""
        return 1

    def _df_started(self, stream: Stream, start: Callable[[WorkerSpec], Worker]) -> Engine:
        n, memory, window = self.num_workers, self._df_memory(), self._df_window_of_worker()
        infos = [worker_info_of(k, n) for k in range(n)]
        jobs = self._df_jobs(stream)
        channel, codec, credit = self._df_make_channel()
        task_queue = self._df_make_task_queue()
        tolerance = self._df_begin_failures()
        specs = [
            WorkerSpec(
                worker=k,
                payload=FlowPayload(prepared(job, self.worker_init)),
                port=channel.port(k),
                encoder=codec.port(k),
                credit=credit.port(k),
                window=window if memory is None else replace(window, max_queued=queued_bytes(memory) // n),
                info=infos[k],
                seed=(stream.root, *(word for pair in infos[k].path for word in pair), *self._df_shard_ranks),
                reseed=self._df_own_process and current_root() is not None,
                memory=None if memory is None else memory // n,
                note=self._df_note(k),
                task_queue=None if task_queue is None else task_queue.port(k),
                budget=tolerance.inherited,
                threads=self._df_threads_of_worker(),
            )
            for k, job in enumerate(jobs)
        ]
        plan = Plan(
            self._df_title,
            channel,
            codec,
            credit,
            specs,
            start,
            self._df_make_schedule(task_queue),
            self.max_restarts,
            tolerance,
        )
        return self._df_make_engine(plan, stream)

    def _df_note(self, worker: int) -> str:
        """The note that is added to an exception of a worker."""
        return f"raised in worker {worker} of {self.num_workers} of {self._df_title}"


class ProcessSetup(WorkerSetup):
    """Base class of nodes whose workers are processes, with `context` and `max_bytes`."""

    _df_own_process = True
    _df_over_zmq: ClassVar[bool] = True  # false: over pipes
    context: BaseContext | str | None
    max_bytes: int | None

    def _df_set_process_options(self, context: BaseContext | str | None, max_bytes: SupportsIndex | None) -> None:
        """Check and keep the user's options for processes."""
        self.context = start_method(self._df_title, context)
        cure = ": it is a number of bytes, at least 1 MiB, or None for a share of the memory"
        self.max_bytes = (
            None if max_bytes is None else whole_number(self._df_title, "max_bytes", max_bytes, _MIN_BYTES, cure)
        )

    @property
    def _df_worker_kind(self) -> tuple[str, str]:
        start = chosen_start_method(self.context)
        return "process", f" over {'ZeroMQ' if self._df_over_zmq else 'pipes'}{start and f' ({start})'}"

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "context": chosen_start_method(self.context) or None}

    def _df_memory(self) -> int:
        return max(_MIN_BYTES, default_max_bytes()) if self.max_bytes is None else self.max_bytes

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        n = self.num_workers
        return self._df_open_channel(n), self._df_make_codec(), Credit(n, shared=True)

    def _df_open_channel(self, n: int) -> SocketChannel | PipeChannel:
        if not self._df_over_zmq:
            return PipeChannel(n)
        from dataflow.channel.zeromq import SocketChannel  # imports ZeroMQ, which no other channel needs

        return SocketChannel(n)

    def _df_num_descriptors(self) -> int:
        return _DESCRIPTORS + _PER_WORKER * self.num_workers

    def _df_make_codec(self) -> ArrayCodec:
        """Arrays in shared memory, everything else in messages; both together stay within `max_bytes`."""
        memory = self._df_memory()
        return ArrayCodec(self.num_workers, memory - queued_bytes(memory))

    def _df_starter(self) -> Callable[[WorkerSpec], Worker]:
        if sys.platform == "win32":
            raise NotImplementedError(
                f"{type(self).__name__} needs the pipes and signals of POSIX. On Windows use MultiThreadRunner or "
                "MultiThreadMapData, or WSL"
            )
        end_if_main_is_imported()
        return partial(_start_process, context_of(self.context))


def context_of(context: BaseContext | str | None) -> BaseContext:
    """The multiprocessing context that the user's argument stands for."""
    return context if isinstance(context, BaseContext) else multiprocessing.get_context(context)


def queued_bytes(max_bytes: int) -> int:
    """The part of `max_bytes` that is for messages; the rest is for arrays in shared memory."""
    return max_bytes // 8


def _start_process(context: BaseContext, spec: WorkerSpec) -> Worker:
    descriptors = (
        *spec.port.descriptors(),
        *spec.encoder.descriptors(),
        *spec.credit.descriptors(),
        *(() if spec.task_queue is None else spec.task_queue.descriptors()),
    )
    return ProcessWorker(context, spec.info, spec.seed, spec, descriptors, partial(_close_in_parent, spec))


def _close_in_parent(spec: WorkerSpec) -> None:
    spec.payload.close_in_parent()
    spec.port.close_in_parent()
