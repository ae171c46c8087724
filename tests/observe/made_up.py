"""Made-up flows, and made-up figures of flows."""

import itertools
from dataclasses import replace

from dataflow.observe.figures import (
    FlowStatistics,
    Moment,
    NodeStatistics,
    RunnerStatistics,
    WorkerMoment,
    WorkerStatistics,
)
from dataflow.protocol.base import DataFlow

SECONDS = 10.0


def worker(index=0, *, busy=0.0, cpu=None, delayed=0.0, blocked=0.0, memory=0.0, starved=0.0):
    """A worker, from the parts of its time."""
    return WorkerStatistics(
        index,
        pid=4711 + index,
        datapoints=1000,
        nbytes=1 << 20,
        messages=100,
        busy_seconds=busy * SECONDS,
        cpu_seconds=(busy - delayed if cpu is None else cpu) * SECONDS,
        delayed_seconds=delayed * SECONDS,
        blocked_seconds=blocked * SECONDS,
        memory_seconds=memory * SECONDS,
        starved_seconds=starved * SECONDS,
        window=0.5,
    )


def workers(num, **parts):
    return tuple(worker(k, **parts) for k in range(num))


def runner(workers_of_it, *, waiting=0.0, receiving=0.0, source=0.0, **more):
    """A runner, from the parts of the consumer's time."""
    history = tuple(
        Moment(
            seconds,
            int(200 * seconds),
            waiting * seconds,
            0.5,
            tuple(
                WorkerMoment(
                    *(
                        getattr(one, name) * seconds / SECONDS
                        for name in ("busy_seconds", "blocked_seconds", "memory_seconds", "starved_seconds")
                    )
                )
                for one in workers_of_it
            ),
        )
        for seconds in (0.0, 2.5, 5.0, SECONDS)
    )
    made = RunnerStatistics(
        1,
        "MultiProcessRunnerZMQ",
        "process",
        cores=8,
        seconds=SECONDS,
        datapoints=2000,
        nbytes=2 << 20,
        waiting_seconds=waiting * SECONDS,
        receiving_seconds=receiving * SECONDS,
        source_seconds=source * SECONDS,
        working_seconds=(1 - waiting - receiving - source) * SECONDS,
        sending=0.02,
        workers=workers_of_it,
        history=history,
    )
    return replace(made, **more)


def flow(made, shares=(0.84, 0.12), above=None):
    """BatchData, with a share of `above`, over a runner over MapData over DataFromList."""
    return FlowStatistics(
        (
            NodeStatistics("BatchData(batch_size=32)", length=31, share=above),
            NodeStatistics(f"{made.name}(num_proc=2)", note="2 processes", length=1000),
            NodeStatistics("MapData(func=decode)", "  ", length=1000, runner=0, share=shares[0]),
            NodeStatistics("DataFromList([…] of 1,000)", "  ", length=1000, runner=0, share=shares[1]),
        ),
        (made,),
    )


MADE = flow(runner(workers(2, busy=0.9, blocked=0.1), waiting=0.9, failures=3, restarts=1))
"""Two workers are busy, and the consumer waits for them."""


class Passes(DataFlow):
    """Passes of `n` datapoints, which counts those that were taken."""

    def __init__(self, n):
        self.n = n
        self.taken = 0

    def __len__(self):
        return self.n

    def _df_run_pass(self, p, stream):
        for k in range(self.n):
            self.taken += 1
            yield [p, k]


class Endless(DataFlow):
    """A pass without end, which counts the datapoints that were taken."""

    def __init__(self):
        self.taken = 0

    def _df_run_pass(self, p, stream):
        for k in itertools.count():
            self.taken += 1
            yield [p, k]
