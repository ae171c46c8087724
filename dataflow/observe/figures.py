"""The figures of a flow while it runs: immutable dataclasses. ``dataclasses.asdict`` of them can be written as JSON.

Times are seconds since the workers of a runner were started, added up until now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = [
    "Figures",
    "FlowStatistics",
    "Moment",
    "NodeStatistics",
    "RunnerStatistics",
    "WorkerMoment",
    "WorkerStatistics",
    "size_text",
]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """What one worker has done.

    Attributes:
        index: Index of the worker.
        pid: Process id, on the worker's machine; None if it has not begun.
        datapoints: Datapoints sent to the consumer.
        nbytes: Bytes of these.
        messages: Messages with these.
        busy_seconds: Time in which it made and sent datapoints.
        cpu_seconds: Processor time, of `busy_seconds`; the rest is waiting in the flow, or for a processor.
        delayed_seconds: Time in which it was ready to run while others had the processors; 0 where unknown.
        blocked_seconds: Time in which it waited because the consumer had not taken what was made: the window was full.
        memory_seconds: Time in which it waited because the memory limit `max_bytes` was reached.
        starved_seconds: Time in which it waited for a task.
        window: Part of its window that is in use, 0 to 1.
    """

    index: int
    pid: int | None = None
    datapoints: int = 0
    nbytes: int = 0
    messages: int = 0
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    delayed_seconds: float = 0.0
    blocked_seconds: float = 0.0
    memory_seconds: float = 0.0
    starved_seconds: float = 0.0
    window: float = 0.0

    @property
    def seconds(self) -> float:
        """All its time."""
        return self.busy_seconds + self.blocked_seconds + self.memory_seconds + self.starved_seconds


@dataclass(frozen=True, slots=True)
class WorkerMoment:
    """Totals of one worker at one moment, as in `WorkerStatistics`."""

    busy_seconds: float = 0.0
    blocked_seconds: float = 0.0
    memory_seconds: float = 0.0
    starved_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Totals at one moment: the difference of two moments is what happened between them.

    Attributes:
        seconds: When, in seconds since the workers were started.
        datapoints: Datapoints received by then.
        waiting_seconds: Time in which the consumer waited.
        window: Part of the workers' windows in use at that moment, 0 to 1.
        workers: The totals of each worker.
    """

    seconds: float
    datapoints: int
    waiting_seconds: float = 0.0
    window: float = 0.0
    workers: tuple[WorkerMoment, ...] = ()


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """What a runner or parallel map and its workers have done since the workers were started.

    Attributes:
        node: Its position among the nodes of `FlowStatistics`.
        name: Its class.
        backend: What its workers are: "process", "thread" or "ray"; "remote" for the senders of a `RemoteDataZMQ`.
        reads_input: Whether it reads its input itself, as a parallel map does; a runner's workers read theirs.
        cores: Processor cores that this process may use.
        seconds: Time since the workers were started; for a runner inside of workers, the sum of all.
        datapoints: Datapoints received.
        nbytes: Bytes of these.
        waiting_seconds: Time in which the consumer waited for a datapoint.
        receiving_seconds: Time in which it decoded messages, and gave out tasks.
        source_seconds: Time in which a parallel map read its input.
        working_seconds: Time that the consumer spent elsewhere: in the loop's body, and in the nodes above.
        consumer_cpu_seconds: Processor time of the consumer's thread, in all four; read every tenth of a second.
        consumer_delayed_seconds: Time in which that thread was ready to run while others had the processors; 0 where
            unknown.
        failures: Items skipped because their function raised.
        restarts: Workers that died and were replaced.
        arena_bytes: Shared memory in use for arrays.
        max_bytes: The memory limit; None if there is none.
        num_with_work: How many of the workers get work at present, if more would not be faster; or if they take turns,
            how many work at a time, on average. None for all.
        adapts: Whether the number was left open by "auto".
        outer: Position of the runner in whose workers it runs, among the runners of `FlowStatistics`; None if it runs
            in the main process. Of a runner inside of workers, only what it has received is known.
        num_outer: For a runner inside of workers: how many of these are summed here; 1 otherwise.
        sending: Part of the workers' time in which they encode and send, 0 to 1; None if not known.
        workers: Each worker.
        history: Moments from the start until now, at most some hundred, equally far apart.
    """

    node: int
    name: str
    backend: Literal["process", "thread", "ray", "remote"]
    reads_input: bool = False
    cores: int = 1
    seconds: float = 0.0
    datapoints: int = 0
    nbytes: int = 0
    waiting_seconds: float = 0.0
    receiving_seconds: float = 0.0
    source_seconds: float = 0.0
    working_seconds: float = 0.0
    consumer_cpu_seconds: float = 0.0
    consumer_delayed_seconds: float = 0.0
    failures: int = 0
    restarts: int = 0
    arena_bytes: int = 0
    max_bytes: int | None = None
    num_with_work: int | None = None
    adapts: bool = False
    outer: int | None = None
    num_outer: int = 1
    sending: float | None = None
    workers: tuple[WorkerStatistics, ...] = ()
    history: tuple[Moment, ...] = ()

    @property
    def consumer_seconds(self) -> float:
        """All time of the consumer between its first and its last datapoint."""
        return self.waiting_seconds + self.receiving_seconds + self.source_seconds + self.working_seconds

    @property
    def datapoints_per_second(self) -> float:
        """Datapoints received per second of the consumer's time; for a runner inside of workers, by each of them."""
        seconds = self.consumer_seconds if self.outer is None else self.seconds
        return self.datapoints / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """One node of the chain.

    Attributes:
        node: The node as text, as in ``repr(df)``.
        prefix: Indentation and branches of the tree before it.
        note: Its workers.
        length: Datapoints per pass, if known.
        runner: Position of the runner in whose workers it runs, among `FlowStatistics.runners`; None if it runs in the
            consumer.
        share: Its part of the time in which these workers are busy, 0 to 1; in the consumer, of all the consumer's
            time, waiting included. None if not known, as in workers of a runner that is itself inside of workers.
    """

    node: str
    prefix: str = ""
    note: str = ""
    length: int | None = None
    runner: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class FlowStatistics:
    """Where the time of a flow goes.

    Attributes:
        nodes: The nodes, from the outside in, as in ``repr(df)``.
        runners: Runners and parallel maps that have started workers, and receivers, from the outside in.
    """

    nodes: tuple[NodeStatistics, ...]
    runners: tuple[RunnerStatistics, ...] = ()

    @property
    def waits(self) -> str:
        """Who waits for whom, in a few words for a progress bar; empty without workers.

        The part of its time in which the consumer waits for the outermost runner, and that in which its workers have
        nothing to do, or no room.
        """
        if not self.runners:
            return ""
        runner = self.runners[0]
        seconds = sum(worker.seconds for worker in runner.workers)
        busy = sum(worker.busy_seconds for worker in runner.workers)
        workers = f", workers wait {1 - busy / seconds:.0%}" if seconds else ""
        total = runner.consumer_seconds
        return f"consumer waits {runner.waiting_seconds / total if total else 0:.0%}{workers}"


class Figures(NamedTuple):
    """What a node knows of its workers, from which the statistics of a flow are gathered.

    Attributes:
        statistics: Of the runner or map; its `node` is not known here.
        nodes: The nodes that its workers run, as objects of this process.
        samples: Samples of each of these nodes; none if there were no samples.
        inner: What runners among these nodes have received, in all workers; `node` is the position in `nodes`.
    """

    statistics: RunnerStatistics
    nodes: Sequence[Any] = ()
    samples: Sequence[int] = ()
    inner: Sequence[RunnerStatistics] = ()


def size_text(nbytes: float) -> str:
    """A number of bytes, in the unit that suits it."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if nbytes >= 1000 else f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.3g} GiB"
