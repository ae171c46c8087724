"""RunnerMetrics: where the time of a runner's consumer goes, and the counters of its workers over time.

The engine calls it when the consumer enters and leaves, per chunk of datapoints. Reading is safe from any thread, also
after the engine was closed: then the last figures stay. `figures_of` returns what statistics and reports show.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from dataflow.observe.figures import Moment, RunnerStatistics, WorkerMoment, WorkerStatistics
from dataflow.system.machine import processor_times
from dataflow.transport.worker_counters import InnerTotals, WorkerActivity, WorkerTotals, totals_of

__all__ = ["RunnerMetrics", "figures_of"]

_MOMENT_SECONDS: Final = 0.1  # between two moments of the history, at first
_MAX_MOMENTS: Final = 400  # then every second one is dropped, and the distance doubled
_WAITING: Final = frozenset({WorkerActivity.BLOCKED, WorkerActivity.MEMORY, WorkerActivity.STARVED})
_now: Final = time.perf_counter


class RunnerMetrics:
    """Observes one engine.

    Args:
        read: Returns a copy of the counters of a worker by its index; an empty list if there are none.
        num_workers: How many workers are started at first.
        bytes_in_use: Returns the bytes of shared memory in use for arrays.

    Attributes:
        restarts: Workers that died and were replaced.
        datapoints: Datapoints received. The engine updates this and the next two.
        nbytes: Bytes of these datapoints.
        waiting: Seconds of waiting, between `enter` and `leave`.
        num_with_work: How many workers get work; None for all.
        take_turns: Whether the workers take turns.
        consumer: The thread that iterates, by its ident; None between two iterations.
    """

    def __init__(
        self, read: Callable[[int], Sequence[int]], num_workers: int, bytes_in_use: Callable[[], int] = int
    ) -> None:
        self.restarts = self.datapoints = self.nbytes = 0
        self.waiting = 0.0
        self.num_with_work: int | None = None
        self.take_turns = False
        self._is_inside = False
        self.consumer: int | None = None
        self._bytes_in_use = bytes_in_use
        self._last_bytes = 0
        self._read = read
        self._num_workers = num_workers
        self._started = _now()
        self._receiving = self._source = self._elsewhere = 0.0
        self._inside_since = self._started  # when the consumer entered last
        self._accounted = 0.0  # seconds of waiting and reading the source until then
        # Processor time of the consumer's thread, and how long it was ready without a processor: until `_times`.
        self._cpu = self._delayed = 0.0
        self._times: tuple[float, float] | None = None  # of this thread when it was read last; None between iterations
        self._left: float | None = None  # since when the consumer is elsewhere; None before its first datapoint
        # The workers' seconds when the consumer ended its last iteration: what they wait until the next does not count.
        self._idle_since: list[tuple[float, ...]] | None = [(0.0,) * len(WorkerActivity)] * num_workers
        self._idle = [[0.0] * len(WorkerActivity) for _ in range(num_workers)]  # seconds that do not count
        self._last: tuple[WorkerTotals, ...] | None = None  # after the end
        self._ended: float | None = None
        self._history: list[Moment] = []
        self._interval = _MOMENT_SECONDS
        self._next_moment = self._started

    def add_worker(self) -> None:
        """One more worker is started."""
        # Before the lists below grow: a reader in another thread pairs what there is, and leaves the new worker out.
        self._num_workers += 1
        none = (0.0,) * len(WorkerActivity)
        self._idle.append(list(none))
        if self._idle_since is not None:
            self._idle_since.append(none)

    def enter(self) -> None:
        """The consumer asks for datapoints. No-op if it has already entered."""
        if not self._is_inside:
            now = _now()
            left = self._left  # read once: another thread may close the flow, and so end the iteration
            if left is not None:
                self._elsewhere += now - left
            elif self._idle_since is not None:
                self._idle = self._idle_until(now)
                self._idle_since = None
            self._inside_since, self._accounted = now, self.waiting + self._source
            self._is_inside = True
            if self.consumer != threading.get_ident():
                self.consumer, self._times = threading.get_ident(), None
                self._read_times()

    def leave(self) -> None:
        """The consumer leaves with datapoints. No-op if it has not entered."""
        if self._is_inside:
            now = _now()
            accounted = self.waiting + self._source - self._accounted
            self._receiving += max(0.0, now - self._inside_since - accounted)
            self._left, self._is_inside = now, False
            if now >= self._next_moment:
                self._read_times()
                self._record(now)

    def end_iteration(self) -> None:
        """End the iteration: the time that follows does not count as the consumer's."""
        self.leave()
        left = self._left  # once, as above
        if left is not None:  # no figure is less than it was while the iteration went on
            self._elsewhere += _now() - left
        self._read_times()  # before `consumer` is cleared: only that thread can read its own times
        self._left = self.consumer = None
        if self._idle_since is None and self._last is None:
            self._idle_since = [worker.seconds for worker in self._counted(_now())]

    def _read_times(self) -> None:
        """Add the times of the consumer's thread since the last call. No-op in another thread, which may close."""
        if self.consumer == threading.get_ident():
            now = processor_times("thread-self") or (time.thread_time(), 0.0)
            if self._times is not None:
                self._cpu += now[0] - self._times[0]
                self._delayed += now[1] - self._times[1]
            self._times = now

    def read_source(self, seconds: float) -> None:
        """Add seconds of reading the input of a map, between `enter` and `leave`."""
        self._source += seconds

    def freeze(self) -> None:
        """Read the counters for the last time: their memory is about to be released."""
        if self._last is None:
            self.end_iteration()
            now = _now()
            self._record(now)
            self._last = self._workers(now)
            self._last_bytes = self._bytes_in_use()
            self._ended = now

    def statistics(self) -> tuple[RunnerStatistics, tuple[WorkerTotals, ...]]:
        """The figures until now, and the totals of each worker; no totals if they cannot be read here.

        The figures are those of the consumer: without `workers`, `sending`, and what only the node knows.
        """
        now = self._ended or _now()
        # Each is read once: the consumer's thread may change them meanwhile, which shifts a moment from one to another.
        waiting, receiving, elsewhere, left = self.waiting, self._receiving, self._elsewhere, self._left
        if self._ended is None and self._is_inside:  # it may be waiting at this moment
            accounted = waiting + self._source - self._accounted
            waiting += max(0.0, now - self._inside_since - accounted)
        elif self._ended is None and left is not None:
            elsewhere += max(0.0, now - left)
        workers = self._workers(now) if self._last is None else self._last
        num_with_work = self.num_with_work
        if self.take_turns and (seconds := waiting + receiving + elsewhere):
            at_a_time = round(sum(sum(worker.seconds) for worker in workers) / seconds)
            num_with_work = max(1, min(at_a_time, len(workers)))
        figures = RunnerStatistics(
            0,
            "",
            "process",
            seconds=now - self._started,
            datapoints=self.datapoints,
            nbytes=self.nbytes,
            waiting_seconds=waiting,
            receiving_seconds=receiving,
            source_seconds=self._source,
            working_seconds=elsewhere,
            consumer_cpu_seconds=self._cpu,
            consumer_delayed_seconds=self._delayed,
            restarts=self.restarts,
            arena_bytes=self._bytes_in_use() if self._last is None else self._last_bytes,
            num_with_work=num_with_work,
            history=tuple(self._history),
        )
        return figures, workers

    def totals(self, node: int) -> InnerTotals:
        """What a worker around this runner reports of it; it is the worker's node number `node`."""
        found, _ = self.statistics()
        return InnerTotals(node, found.datapoints, found.nbytes, found.consumer_seconds)

    def _counted(self, now: float) -> list[WorkerTotals]:
        """The totals of the workers, as they have counted them."""
        copies = [self._read(k) for k in range(self._num_workers)]  # empty once the memory was released
        return [totals_of(words, now) for words in copies if words]

    def _idle_until(self, now: float) -> list[list[float]]:
        """The seconds of each worker that do not count: those of waiting between two iterations."""
        idle_since = self._idle_since  # once, as above
        if idle_since is None:
            return self._idle
        pairs = zip(self._idle, idle_since, self._counted(now), strict=False)
        return [
            [
                seconds + (worker.seconds[state] - before[state] if state in _WAITING else 0.0)
                for state, seconds in enumerate(idle)
            ]
            for idle, before, worker in pairs
        ]

    def _workers(self, now: float) -> tuple[WorkerTotals, ...]:
        """The totals of the workers, without what they waited between two iterations."""
        pairs = zip(self._counted(now), self._idle_until(now), strict=False)
        return tuple(
            replace(worker, seconds=tuple(max(0.0, s - i) for s, i in zip(worker.seconds, idle, strict=True)))
            for worker, idle in pairs
        )

    def _record(self, now: float) -> None:
        """Add a moment to the history."""
        workers = self._workers(now)
        states = (WorkerActivity.BUSY, WorkerActivity.BLOCKED, WorkerActivity.MEMORY, WorkerActivity.STARVED)
        moments = tuple(WorkerMoment(*(worker.seconds[state] for state in states)) for worker in workers)
        window = sum(worker.window for worker in workers) / len(workers) if workers else 0.0
        self._history.append(Moment(now - self._started, self.datapoints, self.waiting, window, moments))
        if len(self._history) >= _MAX_MOMENTS:
            del self._history[1::2]  # one step of the interpreter, as is the copy that a reader makes
            self._interval *= 2
        self._next_moment = now + self._interval


# -- Figures -----------------------------------------------------------------------------------------------------------


def figures_of(
    metrics: RunnerMetrics, nodes: Sequence[Any]
) -> tuple[RunnerStatistics, list[int], list[RunnerStatistics]]:
    """The figures of a runner, the samples of the nodes of its workers, and the figures of runners inside of these.

    Args:
        metrics: The metrics of its engine.
        nodes: The nodes of its workers; runners inside are among them.

    Returns:
        The first without what only the node knows: name, backend and limits.
    """
    figures, workers = metrics.statistics()
    num_nodes = min(len(nodes), len(workers[0].nodes)) if workers else 0
    own = [sum(worker.nodes[j] for worker in workers) for j in range(num_nodes)]
    sending, other = sum(worker.sending for worker in workers), sum(worker.other for worker in workers)
    inner_nodes = {inner.node for worker in workers for inner in worker.inner}
    total = sum(own) + sending + other
    statistics = replace(
        figures,
        sending=sending / total if total else None,
        workers=tuple(_worker(k, worker) for k, worker in enumerate(workers)),
    )
    inner = [
        _inner(nodes[j], j, [inner for worker in workers for inner in worker.inner if inner.node == j])
        for j in sorted(inner_nodes)
        if j < len(nodes)
    ]
    return statistics, own, inner


def _worker(index: int, totals: WorkerTotals) -> WorkerStatistics:
    return WorkerStatistics(
        index,
        totals.pid or None,
        totals.datapoints,
        totals.nbytes,
        totals.messages,
        totals.seconds[WorkerActivity.BUSY],
        totals.cpu,
        totals.delayed,
        totals.seconds[WorkerActivity.BLOCKED],
        totals.seconds[WorkerActivity.MEMORY],
        totals.seconds[WorkerActivity.STARVED],
        totals.window,
    )


def _inner(node: Any, position: int, found: Sequence[InnerTotals]) -> RunnerStatistics:
    """What the runners at one node of all workers have received."""
    return RunnerStatistics(
        node=position,
        name=type(node).__name__,
        backend=node._df_backend.name,
        reads_input=not node._df_remote_inputs,
        seconds=sum(inner.seconds for inner in found),
        datapoints=sum(inner.datapoints for inner in found),
        nbytes=sum(inner.nbytes for inner in found),
        num_outer=len(found),
    )
