"""Scaling: how many workers of a strict runner or map get work.

`WorkerCount` decides, from the load of an interval; it is pure. `Scaling` measures the load. The engine starts workers,
and tells the schedule.

More workers are tried while the consumer waits and the workers are busy, and fewer when they idle or crowd each other.
A trial lasts one interval, after some in which the workers start; it is kept if it pays:

                     wanted() differs                      it pays
     ┌────────► STEADY ──────────────► STARTING ──► TRIAL ─────────► STEADY at the new number
     │            ▲                                   │
     │ wait       │          it does not              │
     └────────────┴───────────────────────────────────┘

Guarantees:

- The number is between 1 and the maximum.
- Workers that compute are at most as many as there are cores; beyond that, they are added while they wait for
  something else: a disk, a network, a sleep. Threads that do not compute while their process uses one core wait for
  the interpreter's lock, which counts as waiting for a core.
- A number that did not pay is not tried again for a while, which grows from trial to trial; unless the rate of the
  workers changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Final

from dataflow.observe.observer import RunnerMetrics
from dataflow.system.machine import memory_is_short
from dataflow.transport.worker_counters import WorkerActivity

__all__ = ["Load", "Scaling", "WorkerCount"]


# -- Decision ----------------------------------------------------------------------------------------------------------


_HARDLY: Final = 0.1  # of its time: a consumer that waits less is the bottleneck
_BUSY: Final = 0.7  # of their time: with workers that are less busy, more of them would not help
_IDLE: Final = 0.5  # of their time: with workers that are less busy, fewer of them may do
_COMPUTING: Final = 0.5  # of their busy time, with or without a core: those that do less wait for something else
_CROWDED: Final = 0.35  # of their busy time: workers wait for a core
_MEMORY: Final = 0.25  # of their time: workers wait for room within the memory limit
_SPARE: Final = 1.25  # workers kept for each that is needed
_PAYS: Final = 1.1  # rate with more workers, beside the rate before
_KEEPS: Final = 0.95  # rate with fewer workers, beside the rate before
_STARTING: Final = 2  # intervals after a change, in which workers start and the tasks under way are shared out
_LOCK: Final = (0.9, 1.2)  # cores that a process uses whose threads wait for the interpreter's lock
_PATIENCE: Final = 16  # intervals until the next trial after one that did not pay; doubled each time
_MAX_PATIENCE: Final = 256
_CHANGED: Final = 2.0  # factor between the rates of two intervals: the work has changed


@dataclass(frozen=True, slots=True)
class Load:
    """What happened in an interval; all but the number of datapoints in seconds.

    Attributes:
        seconds: Of the consumer, between its first and its last datapoint.
        datapoints: Received.
        waiting: The consumer waited for a datapoint.
        busy: All workers together made and sent datapoints.
        computing: ... of which on a core.
        delayed: ... of which ready to run, without a core.
        memory: All workers waited for room within the memory limit.
        idle: All workers waited for tasks, or for room in their windows.
        process: This process was on a core, with all its threads.
        memory_is_short: Whether the machine or the container has hardly any free memory.
    """

    seconds: float
    datapoints: int
    waiting: float
    busy: float
    computing: float
    delayed: float
    memory: float
    idle: float
    process: float = 0.0
    memory_is_short: bool = False


class WorkerCount:
    """Decides how many workers get work.

    Args:
        first: The number at the start.
        most: The maximum.
        cores: Cores that this process may use.
        are_threads: Whether the workers share this process, and so the interpreter's lock.

    Attributes:
        num: The current number.
        most: The maximum.
        reason: Why it is the current one.
    """

    def __init__(self, first: int, most: int, cores: int, *, are_threads: bool = False) -> None:
        self.num = first
        self.most = most
        self.reason = "to begin with"
        self._cores = cores
        self._are_threads = are_threads
        self._starting = 1  # intervals that tell nothing
        self._former: tuple[int, float] | None = None  # during a trial: the number before, and its rate
        self._left = 0  # intervals until the next trial
        self._patience = _PATIENCE
        self._steady_rate = 0.0  # when the last trial ended

    def next(self, load: Load) -> int:
        """Return the number of workers from now on, after an interval."""
        if self._starting:
            self._starting -= 1
            return self.num
        if load.memory_is_short:
            self._former = None
            return self._set(max(1, self.num // 2), "there is hardly any free memory")
        rate = load.datapoints / load.seconds
        if self._former is not None:
            former, former_rate = self._former
            self._former = None
            if rate < former_rate * (_PAYS if self.num > former else _KEEPS):
                self._left, self._patience = self._patience, min(2 * self._patience, _MAX_PATIENCE)
                self._steady_rate = former_rate
                return self._set(former, "more were not faster" if self.num > former else "fewer were slower")
            self._patience = _PATIENCE
            self._steady_rate = rate
        if not self._steady_rate / _CHANGED <= rate <= self._steady_rate * _CHANGED:
            self._left, self._patience, self._steady_rate = 0, _PATIENCE, rate
        if self._left:
            self._left -= 1
            return self.num
        low, high = _LOCK
        # To the kernel, a thread that waits for the interpreter's lock is asleep, as one that waits for a disk is.
        if self._are_threads and low * load.seconds <= load.process <= high * load.seconds:
            load = replace(load, delayed=max(load.delayed, load.busy - load.computing))
        wanted, reason = self.wanted(load)
        wanted = max(1, min(wanted, self.most))
        if wanted != self.num:
            self._former = self.num, rate
        return self._set(wanted, reason)

    def limit(self, most: int) -> None:
        """Set the maximum, to at most the current one: no more workers can be started."""
        self.most = min(self.most, most)
        self.num = min(self.num, self.most)

    def wanted(self, load: Load) -> tuple[int, str]:
        """Return the number of workers that this load suggests trying, and why."""
        total = load.busy + load.memory + load.idle
        if not total:
            return self.num, self.reason
        busy = load.busy / total
        if load.memory >= _MEMORY * total:
            return self.num // 2, "they wait for room within max_bytes"
        if load.waiting < _HARDLY * load.seconds:
            busy -= load.delayed / total  # with a core each, they would be done earlier
            needed = ceil(_SPARE * busy * self.num) if busy < _IDLE else self.num
            return min(self.num, needed), "the consumer hardly waits"
        if busy < _BUSY:
            return self.num, self.reason
        if load.computing + load.delayed < _COMPUTING * load.busy:
            return 2 * self.num, "they wait for something other than a core"
        if self.num < self._cores:
            return min(2 * self.num, self._cores), "the consumer waits, and there are free cores"
        if self.num > self._cores and load.delayed >= _CROWDED * load.busy:
            return max(self._cores, self.num // 2), "they wait for a core"
        return self.num, self.reason

    def _set(self, num: int, reason: str) -> int:
        if num != self.num:
            self.num, self.reason, self._starting = num, reason, _STARTING
        return num


# -- Measurement -------------------------------------------------------------------------------------------------------


_SECONDS: Final = 0.15  # least length of an interval, and of the time between two looks
_MAX_SECONDS: Final = 10.0
_DATAPOINTS: Final = 4  # of each worker with work, at least, before the rate of an interval is known


class Scaling:
    """Measures the load of a runner's workers, and has a `WorkerCount` decide.

    Args:
        count: Decides.
        metrics: Of the engine.
        processor_times: Returns the seconds that worker `k` was on a core, and ready without one; None if only its
            counters know them.

    Attributes:
        due: When to call `next`; a time of ``time.monotonic()``.
    """

    def __init__(
        self, count: WorkerCount, metrics: RunnerMetrics, processor_times: Callable[[int], tuple[float, float] | None]
    ) -> None:
        self.count = count
        self.due = 0.0
        self._metrics = metrics
        self._processor_times = processor_times
        self._before: Load | None = None  # totals at the beginning of the interval; None if it has not begun

    def next(self, now: float, *, ready: bool) -> int:
        """Return the number of workers from now on.

        Args:
            now: The time.
            ready: Whether all workers with work have begun. Before that, no interval begins.
        """
        self.due = now + _SECONDS
        if not ready:
            self._before = None
            return self.count.num
        totals = self._totals()
        if self._before is None:
            self._before = totals
            return self.count.num
        load = _difference(totals, self._before)
        enough = load.datapoints >= _DATAPOINTS * self.count.num or load.seconds >= _MAX_SECONDS
        if load.seconds < _SECONDS or not enough:
            return self.count.num
        self._before = totals
        return self.count.next(load)

    def _totals(self) -> Load:
        figures, workers = self._metrics.statistics()
        computing = delayed = 0.0
        for k, worker in enumerate(workers):
            # The kernel's numbers of now, if they are to be had: a worker writes its own every second or so.
            times = self._processor_times(k) or (worker.cpu, worker.delayed)
            computing += times[0]
            delayed += times[1]
        seconds = [sum(worker.seconds[state] for worker in workers) for state in WorkerActivity]
        return Load(
            seconds=figures.consumer_seconds,
            datapoints=figures.datapoints,
            waiting=figures.waiting_seconds,
            busy=seconds[WorkerActivity.BUSY],
            computing=computing,
            delayed=delayed,
            memory=seconds[WorkerActivity.MEMORY],
            idle=seconds[WorkerActivity.STARVED] + seconds[WorkerActivity.BLOCKED],
            process=time.process_time(),
        )


def _difference(after: Load, before: Load) -> Load:
    # A worker that was replaced has less than before.
    amounts = {f.name: max(0, getattr(after, f.name) - getattr(before, f.name)) for f in fields(Load)}
    return Load(**amounts | {"memory_is_short": memory_is_short()})
