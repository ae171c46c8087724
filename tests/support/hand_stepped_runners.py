"""A runner and a map over workers that are stepped by hand, what these answer, and a clock for both."""

from dataflow import DataFromList
from dataflow.runners.maps import ParallelMap
from dataflow.runners.options import WorkerOptions
from dataflow.runners.runners import Runner
from dataflow.transport.flow_control import Window

__all__ = ["N", "Clock", "HandMap", "HandRunner", "answer", "double", "expected", "idle", "numbers"]

N = 12


class HandRunner(Runner):
    def __init__(self, ds, num, backend, **options):
        super().__init__([ds], WorkerOptions.of(self, num, options), backend, Window(4), 4)


class HandMap(ParallelMap):
    def __init__(self, ds, num, backend, **options):
        super().__init__(ds, double, WorkerOptions.of(self, num, options), backend, 6)


def double(dp):
    return [2 * dp[0]]


def numbers(n=N):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def answer(worker, kind):
    """All results that a task asks for: of a runner, a range of indexes; of a map, its datapoints."""
    task = worker.task
    if kind is HandMap:
        return [double(dp) for dp in task.datapoints[task.start : task.stop]]
    (count,) = task.datapoints
    return [[(task.first + k) % N] for k in range(count)[task.start : task.stop]]


def expected(kind):
    return [double([k]) if kind is HandMap else [k] for k in range(N)]


def idle(backend):
    raise AssertionError("the consumer waits, and no worker has anything to do")


class Clock:
    """Stands for `time`: between two looks at it, as much time passes as the test says."""

    def __init__(self, step):
        self.now = 0.0
        self.step = step

    def monotonic(self):
        self.now += self.step
        return self.now

    perf_counter = monotonic
