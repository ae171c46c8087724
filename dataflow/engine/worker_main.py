"""What runs in a worker, from its first step to its last: where a job meets its channel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dataflow.channel.batching_sender import BatchingSender, Stopped
from dataflow.channel.flow_control import Line, Window
from dataflow.channel.protocols import ConsumerGone, Port
from dataflow.channel.task_queue import TaskQueuePort
from dataflow.codec.protocols import EncoderPort
from dataflow.datapoint import allocating
from dataflow.engine.jobs import Job
from dataflow.engine.memory_limit import memory_share
from dataflow.failures import Budget, FailureReporter, reporting_to
from dataflow.seeding import derived, seed
from dataflow.workers.exit_reasons import end_if_forked, exit_code
from dataflow.workers.native_threads import ThreadLimit, limit_threads
from dataflow.workers.place import WorkerInfo

__all__ = ["WorkerSpec"]

_FLUSH_SECONDS: Final = 30.0


@dataclass
class WorkerSpec:
    """All that one worker needs, as a description. Calling it is the worker's life.

    Attributes:
        worker: Index of the worker.
        payload: The job, as something with ``load()``.
        port: Its end of the channel.
        encoder: Its end of the codec.
        credit: Counters that bound how far it runs ahead.
        window: How far that is.
        place: Which worker of how many, at every level.
        seed: Words from which the worker process seeds what is not ours to seed: `random` and `numpy.random`.
        reseed: Whether flows that the user's code makes in the worker are seeded too: the user has called `seed`.
        memory: Bytes that runners inside this worker may use, each; None where the worker has no limit of its own.
        note: What to add to an exception: whose worker raised it.
        task_queue: Its end of the tray from which it takes tasks; None where it needs none.
        budget: How many failures of single items are borne above, for nodes that have no budget of their own.
        threads: How many threads native libraries get in its process; None leaves them alone.
    """

    worker: int
    payload: Any
    port: Port
    encoder: EncoderPort
    credit: Line
    window: Window
    place: WorkerInfo
    seed: tuple[int, ...]
    reseed: bool
    memory: int | None
    note: str
    task_queue: TaskQueuePort | None = None
    budget: Budget | None = None
    threads: ThreadLimit | None = None

    def __call__(self) -> None:
        encoder = self.encoder.open_encoder()
        sender = BatchingSender(self.worker, self.port.open(), encoder, self.credit.quota(self.window))
        try:
            sender.hello()
            sender.rehearse()
            reporter = FailureReporter(self.budget, self.place.path, partial(sender.report, note=self.note))
            with allocating(encoder.allocate), memory_share(self.memory), reporting_to(reporter):
                self._work(sender)
        except ConsumerGone:
            pass
        finally:
            sender.close(_FLUSH_SECONDS)

    def _work(self, sender: BatchingSender) -> None:
        job: Job | None = None
        pid = os.getpid()
        try:
            try:
                if self.threads is not None:
                    limit_threads(self.threads)
                if self.reseed:
                    seed(derived(self.seed))
                job = self.payload.load()
                job.run(sender, None if self.task_queue is None else self.task_queue.open())
            except BaseException as error:
                end_if_forked(pid, error)
                raise
            end_if_forked(pid, None)
        except (Stopped, ConsumerGone):
            pass
        except SystemExit as exit:
            sender.left(exit, self.note, exit_code(exit))
        except BaseException as error:
            sender.failed(error, self.note)
        finally:
            if job is not None:
                job.close()
