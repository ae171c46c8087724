"""Worker main: the worker spec, and what a worker runs from start to exit.

`FlowPayload` carries a job and its flow to a worker process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dataflow.observe.node_sampler import NodeSampler
from dataflow.protocol.base import DataFlow
from dataflow.protocol.datapoint import allocating
from dataflow.protocol.failures import Budget, FailureReporter, reporting_to
from dataflow.protocol.passes import walk
from dataflow.protocol.seeding import derived, seed
from dataflow.protocol.state import holds_only_inputs
from dataflow.runners.jobs import Job
from dataflow.system.machine import memory_share
from dataflow.system.native_threads import ThreadLimit, limit_threads
from dataflow.system.pickling import dumps, imported_main
from dataflow.system.worker_errors import ending_if_forked, exit_code
from dataflow.system.worker_info import WorkerInfo
from dataflow.system.worker_process import Payload as AnyPayload
from dataflow.transport.batching_sender import BatchingSender, SenderFailed, Stopped
from dataflow.transport.codec import EncoderPort
from dataflow.transport.flow_control import CreditPort, Quota, Window
from dataflow.transport.messages import ConsumerGone, Port
from dataflow.transport.task_queue import TaskQueuePort, TaskReader

if TYPE_CHECKING:
    from dataflow.system.stacks import StackFile

__all__ = ["FlowPayload", "WorkerSpec"]


# -- Payload: a flow on its way to a worker process --------------------------------------------------------------------


class FlowPayload(AnyPayload):
    """Payload of a job with flows in it; its error message names the node that cannot be sent."""

    otherwise: ClassVar[str] = ', or start workers by fork (context=multiprocessing.get_context("fork"))'

    def complaint(self, value: Any, error: Exception) -> str:
        worker_init = getattr(value, "worker_init", None)
        try:
            dumps(worker_init, main=imported_main())
        except Exception as reason:
            return (
                f"worker_init ({worker_init!r:.200}) cannot be sent to a worker process: {reason}. Make what it needs "
                f"inside it{self.otherwise}"
            )
        for node in _nodes(value):
            below = set(map(id, node._df_inputs))  # they have their own turn
            # One step of the interpreter: the thread of another worker may make an attribute meanwhile.
            for name, attribute in vars(node).copy().items():
                if holds_only_inputs(attribute, below) or name == "_df_state":
                    continue
                try:
                    dumps(attribute, main=imported_main())
                except Exception as reason:
                    return (
                        f"{type(node).__name__}.{name} (a {type(attribute).__name__}) cannot be sent to a worker "
                        f"process: {reason}. Make it in reset_state, which runs inside the worker{self.otherwise}"
                    )
        return f"the flow cannot be sent to a worker process: {error}"


def _nodes(value: Any) -> Iterator[DataFlow]:
    for flow in getattr(value, "__dict__", {}).copy().values():
        if isinstance(flow, DataFlow):
            yield from walk(flow, everywhere=True)


# -- Worker spec -------------------------------------------------------------------------------------------------------


_FLUSH_SECONDS: Final = 30.0  # that a worker which ends by itself waits until its last messages have left
_SAMPLE_INTERVAL: Final = 0.008  # minimum seconds between two samples of any worker


@dataclass
class WorkerSpec:
    """Worker spec: a description of everything that one worker needs. Calling it runs the worker until it exits.

    Attributes:
        worker: Index of the worker.
        payload: The job, as an object with ``load()``.
        port: Its end of the channel.
        encoder: Its end of the codec.
        credit: Credit counters, which limit how far it runs ahead.
        window: How far that is.
        info: Which worker of how many, at every level.
        seed: Words from which the worker process seeds the generators outside this library: `random` and
            `numpy.random`.
        reseed: Whether flows that the user's code makes in the worker are seeded too, because the user has called
            `seed`.
        memory: Bytes that each runner inside this worker may use; None if the worker has no limit of its own.
        note: Added to an exception: names the runner and the worker that raised it.
        task_queue: Its end of the task queue; None if its job takes no tasks.
        budget: How many failures of single items the runner tolerates, for nodes without a budget of their own.
        threads: How many threads native libraries get in its process; None leaves them unchanged.
        check_imports: Raises if what its process has imported differs from what the consumer has; None if it inherits
            all.
        item_timeout: Seconds that it may spend on one datapoint, which somebody watches; None for no limit.
        stacks: Where it writes the stacks of its threads when it is asked; None if it is not asked.
    """

    worker: int
    payload: Any
    port: Port
    encoder: EncoderPort
    credit: CreditPort
    window: Window
    info: WorkerInfo
    seed: tuple[int, ...]
    reseed: bool
    memory: int | None
    note: str
    task_queue: TaskQueuePort | None = None
    budget: Budget | None = None
    threads: ThreadLimit | None = None
    check_imports: Callable[[], None] | None = None
    item_timeout: float | None = None
    stacks: StackFile | None = None

    def __call__(self) -> None:
        encoder = self.encoder.open_encoder()
        quota = self.credit.quota(self.window)
        item = None if self.item_timeout is None else quota.current_item()
        sender = BatchingSender(self.worker, self.port.open(), encoder, quota, note=self.note, item=item)
        if self.stacks is not None:
            self.stacks.register()
        try:
            sender.hello()
            tasks = None if self.task_queue is None else self.task_queue.open()
            if not sender.wait_for_start():
                return
            # A worker that gets no work yet leaves the cores to the others: it opens its flow when it gets some.
            if tasks is not None and not tasks.wait_until_may_take():
                return
            sender.calibrate_encoder()
            reporter = FailureReporter(self.budget, self.info.path, sender.report)
            with allocating(encoder.allocate), memory_share(self.memory), reporting_to(reporter):
                self._work(sender, tasks, quota)
        except ConsumerGone:  # there is nobody to report to
            pass
        finally:
            sender.close(_FLUSH_SECONDS)

    def _watch(self, job: Job, sender: BatchingSender, quota: Quota) -> None:
        """Let the sender's second thread sample where this thread spends its time."""
        quota.counters.begin(time.perf_counter())
        sampler = NodeSampler(job.flow, quota.counters, quota.window_in_use)
        _, num_workers = self.info.path[-1]
        sender.watch(sampler.tick, _SAMPLE_INTERVAL * num_workers)

    def _work(self, sender: BatchingSender, tasks: TaskReader | None, quota: Quota) -> None:
        job: Job | None = None
        try:
            with ending_if_forked():  # a child that the user's code forks sends nothing
                if self.threads is not None:
                    limit_threads(self.threads)  # before `load`: libraries that it imports read the environment
                if self.reseed:
                    seed(derived(self.seed))
                job = self.payload.load()
                if self.check_imports is not None:
                    self.check_imports()  # after `load`, which has imported what the job needs
                self._watch(job, sender, quota)
                job.run(sender, tasks)
        except (Stopped, ConsumerGone):  # asked to end: the consumer expects no last message
            pass
        except SenderFailed as failure:
            sender.failed(failure.__cause__ or failure)
        except SystemExit as exit:
            sender.left(exit, exit_code(exit))
        except BaseException as error:
            sender.failed(error)
        finally:
            if job is not None:
                job.close()
