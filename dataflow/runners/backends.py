"""Backends: what a worker is, and how its datapoints come. Threads and processes are here, Ray actors in `ray`.

A backend makes the parts between the consumer and its workers, and creates the workers. It does not know nodes. To add
one, implement `Backend` and derive a runner and a map that pass it to their base class.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from dataflow.protocol.parameters import chosen_start_method
from dataflow.runners.options import DESCRIPTORS_PER_WORKER, MIN_BYTES, WorkerOptions
from dataflow.runners.supervisor import DiedError
from dataflow.runners.worker_main import WorkerSpec
from dataflow.system.machine import default_max_bytes, log_oversubscription
from dataflow.system.native_threads import ThreadLimit, limit_for, share_of_cores
from dataflow.system.pickling import imported_main
from dataflow.system.worker_errors import died
from dataflow.system.worker_pool import Worker
from dataflow.system.worker_process import ProcessWorker, context_of, end_if_main_is_imported, keep_freed_memory
from dataflow.transport.codec import ArrayCodec, Codec, ObjectCodec
from dataflow.transport.flow_control import Credit
from dataflow.transport.local_channel import PipeChannel, ThreadChannel
from dataflow.transport.messages import Channel
from dataflow.transport.nested_arrays import ToWorkers
from dataflow.transport.shared_task_queue import SharedTaskQueue
from dataflow.transport.task_queue import TaskQueue, ThreadTaskQueue

if TYPE_CHECKING:
    from dataflow.system.stacks import StackFile

__all__ = ["Backend", "BackendName", "Links", "ProcessBackend", "Tasks", "ThreadBackend", "queued_bytes"]


BackendName = Literal["process", "thread", "ray"]


class Tasks(enum.Enum):
    """What the consumer sends to its workers."""

    NONE = "nothing"
    INDEXES = "ranges of indexes, or numbers of passes"
    DATAPOINTS = "datapoints"


@dataclass
class Links:
    """What lies between the consumer and its workers, made and not yet opened.

    Attributes:
        channel: How messages come from the workers.
        codec: How datapoints become the bodies of messages.
        credit: How far each worker may run ahead.
        task_queue: How tasks go to the workers; None if they need none.
        bytes_ahead: Bytes that a strict runner may ask for ahead of the consumer, for each worker; None for no limit.
        died: Makes the error for a worker that has died.
        longest_task: How many indexes a task of a strict runner may have. The default is below 700: after so many new
            objects, the garbage collector of Python 3.11 runs, and would find all datapoints of a task alive.
        stacks: Where workers write their stacks when they are asked; None if they cannot, or are never asked.
    """

    channel: Channel
    codec: Codec
    credit: Credit
    task_queue: TaskQueue | None
    bytes_ahead: int | None = None
    died: DiedError = died
    longest_task: int = 512
    stacks: StackFile | None = None


class Backend(Protocol):
    """What a worker is, and how its datapoints come."""

    @property
    def name(self) -> BackendName:
        """Its name in statistics."""

    own_process: bool
    """Whether each worker has its own global state."""

    @property
    def adds_workers(self) -> bool:
        """Whether workers may be started later than the others, and get work only while that pays."""

    def is_forked(self, options: WorkerOptions) -> bool:
        """Whether the workers have all global variables of this process, by a fork or as threads."""

    def describe(self, options: WorkerOptions) -> tuple[str, str]:
        """For `repr`: what a worker is, and by which way its datapoints come."""

    def parameters(self, options: WorkerOptions) -> dict[str, Any]:
        """For `repr`: the parameters of the constructor that are its own, and those that it knows in another form."""
        return {}

    def memory(self, options: WorkerOptions) -> int | None:
        """Bytes that may be under way for all workers; None if nothing is copied, or it is bounded otherwise."""
        return None

    def links(self, options: WorkerOptions, tasks: Tasks) -> Links:
        """Make what lies between the consumer and its workers."""

    def starter(self, options: WorkerOptions) -> Callable[[WorkerSpec], Worker]:
        """Return the function that creates a worker. Called first: it raises if there can be no such workers."""

    def num_descriptors(self, options: WorkerOptions) -> int:
        """How many file descriptors the workers need in this process while they start, at least 1."""
        return 1

    def thread_limit(self, options: WorkerOptions) -> ThreadLimit | None:
        """The limit of native threads in each worker; None to leave them alone."""
        return None


# -- Threads -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreadBackend(Backend):
    """Workers are threads, which pass on the datapoints themselves.

    Args:
        adds_workers: As in `Backend`; False if the user makes the flow of each.
    """

    adds_workers: bool = True
    name: ClassVar[BackendName] = "thread"
    own_process = False

    def is_forked(self, options: WorkerOptions) -> bool:
        return True

    def describe(self, options: WorkerOptions) -> tuple[str, str]:
        return "thread", ""

    def links(self, options: WorkerOptions, tasks: Tasks) -> Links:
        queue = None if tasks is Tasks.NONE else ThreadTaskQueue()
        credit = Credit(options.num_workers, shared=False)
        return Links(
            ThreadChannel(), ObjectCodec(), credit, queue, died=partial(died, workers_name=options.workers_name)
        )

    def starter(self, options: WorkerOptions) -> Callable[[WorkerSpec], Worker]:
        from dataflow.system.worker_thread import ThreadWorker  # no other backend needs it

        keep_freed_memory()  # without it, `thread` of the workload `jpeg` in the benchmarks is slower
        return lambda spec: ThreadWorker(spec.info, spec)


# -- Processes ---------------------------------------------------------------------------------------------------------


# At most 16 for the pool itself (a ZeroMQ context, shared memory, a task queue), and 4 while a worker is started, or
# for the servers of `multiprocessing`: ZeroMQ aborts the process if there is none for a connection.
_DESCRIPTORS: Final = 20
_QUEUE_BYTES: Final = 1 << 20  # of index ranges


@dataclass(frozen=True)
class ProcessBackend:
    """Workers are processes of this machine: arrays in shared memory, everything else in messages.

    Args:
        over_zmq: Whether messages go over ZeroMQ, where the system is Linux; otherwise over a pipe from each worker.
    """

    over_zmq: bool = True
    name: ClassVar[BackendName] = "process"
    own_process = True
    adds_workers = True

    def is_forked(self, options: WorkerOptions) -> bool:
        return context_of(options.context).get_start_method() == "fork"

    def describe(self, options: WorkerOptions) -> tuple[str, str]:
        start = chosen_start_method(options.context)
        return "process", f" over {'ZeroMQ' if self._uses_zmq else 'pipes'}{start and f' ({start})'}"

    def parameters(self, options: WorkerOptions) -> dict[str, Any]:
        return {"context": chosen_start_method(options.context) or None}

    def memory(self, options: WorkerOptions) -> int:
        return max(MIN_BYTES, default_max_bytes()) if options.max_bytes is None else options.max_bytes

    def links(self, options: WorkerOptions, tasks: Tasks) -> Links:
        memory, n = self.memory(options), options.num_workers
        given = memory // 4 if tasks is Tasks.DATAPOINTS else 0  # for the input of the workers
        # Messages and arrays together stay within the limit.
        channel = self._channel(n)
        codec = ArrayCodec(n, memory - queued_bytes(memory) - given)
        jobserver = None
        if tasks is Tasks.NONE and options.is_crowded:
            from dataflow.transport.turns import Jobserver  # few runners need it

            jobserver = Jobserver(share_of_cores(1))
        credit = Credit(n, shared=True, jobserver=jobserver)
        queue = None
        if tasks is Tasks.INDEXES:
            queue = SharedTaskQueue(_QUEUE_BYTES, _QUEUE_BYTES)
        elif tasks is Tasks.DATAPOINTS:
            forked = self.is_forked(options)
            direction = ToWorkers(forked=forked, main=None if forked else imported_main())
            queue = SharedTaskQueue(given, direction=direction)
        stacks = None
        if options.item_timeout is not None:
            from dataflow.system.stacks import StackFile  # few runners need it

            stacks = StackFile()
        return Links(
            channel, codec, credit, queue, died=partial(died, workers_name=options.workers_name), stacks=stacks
        )

    @property
    def _uses_zmq(self) -> bool:
        return self.over_zmq and sys.platform == "linux"  # which alone has sockets without a file

    def _channel(self, num_workers: int) -> Channel:
        if not self._uses_zmq:
            return PipeChannel(num_workers)
        from dataflow.transport.zeromq import SocketChannel  # imports ZeroMQ, which no other channel needs

        return SocketChannel(num_workers)

    def starter(self, options: WorkerOptions) -> Callable[[WorkerSpec], Worker]:
        if sys.platform == "win32":
            raise NotImplementedError(
                f"{options.owner} needs the pipes and signals of POSIX. On Windows use MultiThreadRunner or "
                "MultiThreadMapData, or WSL"
            )
        end_if_main_is_imported()
        if not options.adapts:
            log_oversubscription(options.owner, options.num_workers)
        return partial(_process, context_of(options.context))

    def num_descriptors(self, options: WorkerOptions) -> int:
        return _DESCRIPTORS + DESCRIPTORS_PER_WORKER * options.num_workers

    def thread_limit(self, options: WorkerOptions) -> ThreadLimit | None:
        return limit_for(options.thread_limit, share_of_cores(options.num_workers))


def queued_bytes(max_bytes: int) -> int:
    """The part of `max_bytes` that is for messages; the rest is for arrays in shared memory."""
    return max_bytes // 8


def _process(context: BaseContext, spec: WorkerSpec) -> Worker:
    # A forked worker closes all other descriptors that this library has opened here.
    descriptors = (
        *spec.port.descriptors(),
        *spec.encoder.descriptors(),
        *spec.credit.descriptors(),
        *(() if spec.task_queue is None else spec.task_queue.descriptors()),
        *(() if spec.stacks is None else spec.stacks.descriptors()),
    )
    return ProcessWorker(context, spec.info, spec.seed, spec, descriptors, partial(_close_in_parent, spec))


def _close_in_parent(spec: WorkerSpec) -> None:
    spec.payload.close_in_parent()
    # A pipe reports its end only when no process holds the write end any more.
    spec.port.close_in_parent()
