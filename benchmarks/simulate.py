"""Throughput beyond this machine: ``python -m benchmarks.simulate --help``.

A discrete-event model of a consumer, its workers and their messages. A worker makes a message when it has credit and a
core; the consumer takes messages in the order of their arrival; memory moves their bytes. The costs are measured by
probes, the model is compared with real runs on this machine's cores, and then it predicts larger machines. What it
leaves out: caches that many workers share, NUMA, frequencies that fall with the number of busy cores.
"""

import argparse
import heapq
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, report, suite
from benchmarks.memory import in_new_process
from benchmarks.workloads import JPEGS_VARIABLE, Workload, by_name
from dataflow.runners import runners

__all__ = ["Costs", "Observed", "Prediction", "Probes", "first_full", "separate", "simulate", "tables"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
MARKS = "<!-- simulation: begin -->", "<!-- simulation: end -->"

WORKLOADS = ("small", "mnist", "image", "jpeg")
VALIDATED = (1, 2, 4, 8)  # workers
PREDICTED = (8, 16, 32, 64, 128, 256)  # cores, each with a worker
TRIED = (*range(2, 16), *range(16, 64, 4), *range(64, 257, 16))  # cores, for where a ceiling begins
TOLERANCE = 0.15
BUSY = 0.95  # of its time: a resource that is busier is the ceiling

SLICE = 3e-3  # seconds for which Linux lets a process keep its core while others wait for one


# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """What one workload costs: seconds of CPU, and bytes.

    Attributes:
        worker_message: Of the worker, for a message; `worker_datapoint`: in addition, for each datapoint in it.
        worker_behind: Of the worker, in addition for a message while the consumer is behind: the memory that it takes
            is not in a cache, and it may have to wait until it has credit.
        consumer_message: Of the consumer, for a message; `consumer_datapoint`: in addition, for each datapoint in it.
        consumer_wakeup: Of the consumer, in addition for a message that it had to wait for.
        contention: How many times longer work takes while other processes wait for the same cores.
        datapoint_bytes: Bytes of the arrays of a datapoint. They are written once, and read once.
        per_message: Datapoints in a message.
    """

    worker_message: float
    worker_datapoint: float
    worker_behind: float
    consumer_message: float
    consumer_datapoint: float
    consumer_wakeup: float
    contention: float
    datapoint_bytes: int
    per_message: int

    @property
    def most_ahead(self) -> int:
        """Messages that a worker makes ahead."""
        return max(1, window_of(self.datapoint_bytes) // self.per_message)

    def of_worker(self, behind: bool) -> float:
        """Seconds for a message; `behind`, while the consumer is behind."""
        return self.worker_message + self.per_message * self.worker_datapoint + behind * self.worker_behind

    def of_consumer(self, waited: bool) -> float:
        """Seconds for a message."""
        return self.consumer_message + self.per_message * self.consumer_datapoint + waited * self.consumer_wakeup


def window_of(datapoint_bytes: int) -> int:
    """Datapoints that a worker makes ahead by default. One without arrays has about 20 bytes."""
    window = runners.window_of(None, "benchmarks.simulate", "hwm")
    return max(window.count, window.nbytes // (datapoint_bytes or 20))


@dataclass(frozen=True)
class Prediction:
    """What the model says.

    Attributes:
        rate: Datapoints per second.
        consumer, cores, memory: How busy each is, from 0 to 1.
    """

    rate: float
    consumer: float
    cores: float
    memory: float

    @property
    def ceiling(self) -> str:
        """What limits the rate."""
        if self.consumer >= BUSY:
            return "consumer"
        if self.memory >= BUSY:
            return "memory"
        return "cores" if self.cores >= BUSY else "workers"


def simulate(
    costs: Costs, workers: int, cores: int, *, bandwidth: float = float("inf"), messages: int = 4000
) -> Prediction:
    """Run the model until so many messages were consumed; the first tenth is not counted.

    The process that has used the least CPU time gets the next free core, as in Linux, and keeps it for a `SLICE`. One
    that has waited for something else counts as at most that much behind the others.

    Args:
        costs: Of the workload.
        workers: Number of workers.
        cores: Number of cores, which the consumer shares with them.
        bandwidth: Bytes per second that memory moves.
        messages: Number of messages; every worker sends at least ten.
    """
    messages = max(messages, 10 * workers)
    per_message = costs.per_message
    moving = 2 * per_message * costs.datapoint_bytes / bandwidth

    CONSUMER = workers
    ahead = [0] * workers  # messages that each worker has made, or is making, which are not yet consumed
    waiting = [False] * workers  # for credit
    arrived: deque[int] = deque()  # whose messages lie with the consumer
    used = [0.0] * (workers + 1)  # CPU time that each has had
    slice_end = [0.0] * (workers + 1)  # when each has to leave its core, if another waits for it
    ready = [(0.0, who) for who in range(workers)]  # a heap: who waits for a core
    level = 0.0  # CPU time of the process that got the last core
    events: list[tuple[float, int, int]] = []  # when, serial number, who ends
    consumer_waits, free, now, memory_free = True, cores, 0.0, 0.0
    waited = True  # whether the consumer was waiting for the message that it takes
    busy_consumer = busy_cores = busy_memory = 0.0
    count, began = 0, 0.0
    serial = itertools.count()

    def awake(who: int) -> None:
        used[who] = max(used[who], level - SLICE)
        heapq.heappush(ready, (used[who], who))

    def run(who: int) -> None:
        """Let a process that has a core make, or receive, a message."""
        nonlocal busy_consumer, busy_cores, busy_memory, memory_free
        if who == CONSUMER:
            seconds = costs.of_consumer(waited)
        else:
            ahead[who] += 1
            seconds = costs.of_worker(behind=len(arrived) > 1)
        if ready and not free:
            seconds *= costs.contention
        end = now + seconds
        if who == CONSUMER:
            busy_consumer += seconds
        else:
            # Memory moves one message after another: it delays who finds it busy.
            memory_free = max(memory_free, now) + moving
            end = max(end, memory_free)
            busy_memory += moving
        busy_cores += end - now
        used[who] += end - now
        heapq.heappush(events, (end, next(serial), who))

    while count < messages:
        while free and ready:
            level, who = heapq.heappop(ready)
            free -= 1
            slice_end[who] = now + SLICE
            run(who)
        now, _, who = heapq.heappop(events)
        if who == CONSUMER:
            sender = arrived.popleft()
            ahead[sender] -= 1
            count += 1
            if count == messages // 10:
                began, busy_consumer, busy_cores, busy_memory = now, 0.0, 0.0, 0.0
            if waiting[sender]:
                waiting[sender] = False
                awake(sender)
            goes_on, waited = bool(arrived), False
            consumer_waits = not goes_on
        else:
            arrived.append(who)
            goes_on = ahead[who] < costs.most_ahead
            waiting[who] = not goes_on
            if consumer_waits:
                consumer_waits, waited = False, True
                awake(CONSUMER)
        if goes_on and (now < slice_end[who] or not ready):
            run(who)
        else:
            free += 1
            if goes_on:
                heapq.heappush(ready, (used[who], who))
    elapsed = now - began
    return Prediction(
        rate=(messages - messages // 10) * per_message / elapsed,
        consumer=min(1.0, busy_consumer / elapsed),
        cores=min(1.0, busy_cores / elapsed / cores),
        memory=min(1.0, busy_memory / elapsed),
    )


def first_full(predict: Callable[[int], Prediction], numbers: Sequence[int]) -> tuple[int | None, str]:
    """The first number of cores from which on more of them do not help, and what the ceiling is there.

    The number is None if all help.
    """
    for number in numbers:
        ceiling = predict(number).ceiling
        if ceiling in {"consumer", "memory"}:
            return number, ceiling
    return None, predict(numbers[-1]).ceiling


# -- what the costs are found from -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """A real run: datapoints per second, seconds of CPU per datapoint, and datapoints in a message."""

    rate: float
    worker: float
    consumer: float
    per_message: float


@dataclass(frozen=True)
class Probes:
    """What the costs of a workload are found from: runs of one worker, on cores enough.

    Attributes:
        alone: With messages of one datapoint, each of which is waited for.
        together: With those of the default.
        held_back: The same, while the consumer takes half as much as the worker could make: its window is full, and the
            consumer waits for nothing.
        contended: As `together`, with as many consumers at the same time as there are cores, each with a worker.
    """

    alone: Observed
    together: Observed
    held_back: Observed
    contended: Observed

    def costs(self, datapoint_bytes: int) -> Costs:
        """Tell apart what a message, a datapoint, a wake-up and a consumer that is behind cost."""
        alone, together, held_back, contended = self.alone, self.together, self.held_back, self.contended
        per_message = max(1, round(together.per_message))
        message, datapoint = separate(alone.worker, together.worker, per_message)
        behind = (held_back.worker - datapoint) * held_back.per_message - message
        waited_for, of_consumer = (
            separate(alone.consumer, together.consumer, per_message) if per_message > 1 else (together.consumer, 0.0)
        )
        received = min(waited_for, max(0.0, (held_back.consumer - of_consumer) * held_back.per_message))
        contention = (contended.worker + contended.consumer) / (together.worker + together.consumer)
        return Costs(
            worker_message=message,
            worker_datapoint=datapoint,
            worker_behind=max(0.0, behind),
            consumer_message=received,
            consumer_datapoint=of_consumer,
            consumer_wakeup=waited_for - received,
            contention=max(1.0, contention),
            datapoint_bytes=datapoint_bytes,
            per_message=per_message,
        )


def separate(alone: float, together: float, per_message: int) -> tuple[float, float]:
    """Seconds for a message and for a datapoint, from those for a datapoint sent alone and sent with others."""
    if per_message == 1:
        return 0.0, together
    message = max(0.0, (alone - together) * per_message / (per_message - 1))
    return message, max(0.0, together - message / per_message)


# -- probes ------------------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@contextmanager
def running(workload: Workload, workers: int, hwm: int | None) -> Iterator[Any]:
    from benchmarks.contenders.ours import flow
    from dataflow import MultiProcessRunnerZMQ

    with MultiProcessRunnerZMQ(flow(workload), workers, hwm) as df:
        yield df


def sent(df: Any) -> tuple[int, int]:
    """Datapoints that the workers have sent, and messages."""
    workers = df.statistics().runners[0].workers
    return sum(one.datapoints for one in workers), sum(one.messages for one in workers)


def observe(name: str, workers: int, hwm: int | None, seconds: float, held_back: bool = False) -> Observed:
    """A real run; `held_back`, its consumer takes datapoints at half the rate, so that the workers wait for credit."""
    workload = by_name(name)
    workload.pool  # noqa: B018 — prepared now, and inherited by the workers
    with running(workload, workers, hwm) as df:
        stream = iter(df)

        def take(seconds: float, least: float) -> tuple[int, float, float]:
            """Take datapoints, ten in at least so many seconds: their number, the seconds, and the CPU time spent."""
            done, spun = 0, 0.0
            began = now = time.perf_counter()
            while not done or now - began < seconds:
                due = now + least
                workload.consume(itertools.islice(stream, 10))
                done += 10
                now = time.perf_counter()
                if now < due:
                    spun -= time.thread_time()
                    while (now := time.perf_counter()) < due:
                        pass
                    spun += time.thread_time()
            return done, now - began, spun

        take(0.0, 0.0)  # until the workers have begun
        done, elapsed, _ = take(seconds / 4, 0.0)
        least = 2 * 10 * elapsed / done if held_back else 0.0
        if held_back:
            take(seconds / 4, least)
        pids = [process.pid for process in multiprocessing.active_children()]
        before = sum(map(cpu_seconds, pids)), cpu_seconds(os.getpid())
        sent_before = sent(df)
        done, elapsed, spun = take(seconds, least)
        after = sum(map(cpu_seconds, pids)), cpu_seconds(os.getpid()) - spun
        datapoints, messages = (stop - start for start, stop in zip(sent_before, sent(df), strict=True))
    worker, consumer = ((stop - start) / done for start, stop in zip(before, after, strict=True))
    return Observed(done / elapsed, worker, consumer, datapoints / max(1, messages))


def probe(name: str, seconds: float) -> Probes:
    def run(hwm: int | None = None, held_back: bool = False, consumers: int = 1) -> Observed:
        with ThreadPoolExecutor(consumers) as pool:
            runs = [pool.submit(in_new_process, observe, name, 1, hwm, seconds, held_back) for _ in range(consumers)]
        return middle([run.result() for run in runs])

    return Probes(run(hwm=1), run(), run(held_back=True), run(consumers=machine.description()["cores"]))


def middle(runs: Sequence[Observed]) -> Observed:
    """The median of each figure."""
    return Observed(*(statistics.median(figures) for figures in zip(*map(astuple, runs), strict=True)))


# -- the report --------------------------------------------------------------------------------------------------------

Results = dict[str, Any]
LIFTS = {
    "consumer": "fewer, larger datapoints for it to receive (batches made in the workers), or several consumers",
    "memory": "smaller dtypes, or conversion after the transport",
}


def measure(names: Sequence[str], seconds: float, runs: int, bandwidth: float) -> Results:
    os.environ.setdefault(JPEGS_VARIABLE, os.pathsep.join(suite.photographs()))
    found: Results = {"machine": machine.description(), "bandwidth": bandwidth, "workloads": {}}
    for name in names:
        probes, real = [], []
        for _ in range(runs):
            probes.append(probe(name, seconds))
            real.append([in_new_process(observe, name, workers, None, seconds) for workers in VALIDATED])
        found["workloads"][name] = {
            "bytes": sum(part.nbytes for part in by_name(name).make(0) if isinstance(part, np.ndarray)),
            "probes": {
                field.name: asdict(middle([getattr(one, field.name) for one in probes])) for field in fields(Probes)
            },
            "real": {
                number: asdict(middle(observed))
                for number, observed in zip(VALIDATED, zip(*real, strict=True), strict=True)
            },
        }
        print(name, found["workloads"][name], file=sys.stderr, flush=True)
    return found


def tables(found: Results) -> str:
    """Markdown: the measured costs, the model beside real runs, and what it predicts."""
    cores, bandwidth = found["machine"]["cores"], found["bandwidth"]
    costs = {
        name: Probes(**{key: Observed(**run) for key, run in one["probes"].items()}).costs(one["bytes"])
        for name, one in found["workloads"].items()
    }
    measured = [
        [
            name,
            *(
                report.rounded(1e6 * seconds)
                for key, seconds in asdict(cost).items()
                if key not in {"contention", "datapoint_bytes", "per_message"}
            ),
            f"{cost.contention:.2f}",
            f"{cost.per_message}",
        ]
        for name, cost in costs.items()
    ]
    compared = [
        [name, *(cell(costs[name], int(number), cores, run["rate"]) for number, run in one["real"].items())]
        for name, one in found["workloads"].items()
    ]
    predicted: list[list[str]] = []
    lifted: dict[str, list[str]] = {}  # by ceiling: the workloads that reach it with few cores
    for name, cost in costs.items():
        predict = _predictor(cost, bandwidth)
        rates = [predict(number) for number in PREDICTED]
        full, ceiling = first_full(predict, TRIED)
        words = f"{ceiling}, from {full} on" if full else "cores"
        predicted.append([name, *(report.rounded(one.rate) for one in rates), words])
        if full and full < 64 and ceiling in LIFTS:
            lifted.setdefault(ceiling, []).append(f"`{name}`")
    remarks = [
        f"What lifts the ceiling of the {ceiling} ({', '.join(names)}): {LIFTS[ceiling]}."
        for ceiling, names in lifted.items()
    ]
    head = [
        "workload",
        "worker: message, µs",
        "datapoint, µs",
        "consumer behind, µs",
        "consumer: message, µs",
        "datapoint, µs",
        "wake-up, µs",
        "contention",
        "datapoints in a message",
    ]
    return "\n\n".join(
        [
            f"**Measured** on {found['machine']['cpu']}, {cores} cores: CPU time, by probes.",
            report.table(head, measured),
            f"**Measured and predicted** on these {cores} cores: datapoints per second, and how far the model is from "
            f"it. More than {100 * TOLERANCE:g} % are marked.",
            report.table(
                ["workload", *(f"{number} worker{'s' if number > 1 else ''}" for number in VALIDATED)], compared
            ),
            "**Predicted**: datapoints per second with as many workers as cores, if memory moves "
            f"{bandwidth / 1e9:g} GB/s.",
            report.table(["workload", *(f"{number} cores" for number in PREDICTED), "ceiling"], predicted),
            *remarks,
        ]
    )


def _predictor(cost: Costs, bandwidth: float) -> Callable[[int], Prediction]:
    known: dict[int, Prediction] = {}

    def predict(cores: int) -> Prediction:
        if cores not in known:
            known[cores] = simulate(cost, cores, cores, bandwidth=bandwidth)
        return known[cores]

    return predict


def cell(cost: Costs, workers: int, cores: int, real: float) -> str:
    predicted = simulate(cost, workers, cores).rate
    text = f"{report.rounded(real)} ({predicted / real - 1:+.0%})"
    return text if abs(predicted / real - 1) <= TOLERANCE else f"**{text}**"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__.partition(":")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a probe or a run (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of each, of which the median counts (%(default)s)")
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=200.0,
        help="GB/s that the memory of the larger machine moves (%(default)s: an assumption)",
    )
    parser.add_argument("--report", type=Path, metavar="RESULTS.json", help="predict from these without measuring")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="output folder")
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    chosen = parser.parse_args()
    path = chosen.report or chosen.out / "simulation.json"
    if not chosen.report:
        chosen.out.mkdir(parents=True, exist_ok=True)
        found = measure(chosen.workloads, chosen.seconds, chosen.runs, 1e9 * chosen.bandwidth)
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    text = tables(json.loads(path.read_text("utf-8")))
    print(text)
    if chosen.publish:
        PAGE.write_text(report.insert(PAGE.read_text("utf-8"), text, MARKS), "utf-8")


if __name__ == "__main__":
    main()
