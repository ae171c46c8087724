"""Planted bottlenecks: does the verdict name them? ``python -m benchmarks.bottlenecks [--repeat N] [NAME ...]``

Each case makes one part of a flow slow on purpose, runs it, and compares the verdict and the shares with what was
planted. It prints one line per case, and exits with 1 if a verdict was wrong.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    FakeData,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ProxyDataFlow,
)
from dataflow.observe.verdict import verdict_of

SECONDS = 2.0  # of each run
LARGE = 2 << 20  # bytes


def burn(seconds: float) -> None:
    """Use the processor for as long as it takes to use `seconds` of it on an idle core."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def dear(dp: Any) -> Any:
    burn(0.003)
    return dp


def cheap(dp: Any) -> Any:
    burn(0.0005)
    return dp


def waits(dp: Any) -> Any:
    time.sleep(0.004)
    return dp


class SlowSource(ProxyDataFlow):
    """A source that costs more than all that follows."""

    def __iter__(self) -> Any:
        for dp in self.ds:
            burn(0.003)
            yield dp


class SlowByIndex(MapData):
    """A slow source that can be addressed."""

    def __init__(self, ds: DataFlow) -> None:
        super().__init__(ds, dear)


class SlowBatch(BatchData):
    """A batch whose stacking takes long."""


def images(_: Any) -> list[Any]:
    return [IMAGE]


IMAGE = np.zeros((256, 256, 4), np.float64)
HUGE = np.zeros(LARGE * 4, np.uint8)


def huge(_: Any) -> list[Any]:
    return [HUGE]


def half_mib(_: Any) -> list[Any]:
    time.sleep(0.004)
    return [HUGE[: 1 << 19]]


def half_mib_slowly(_: Any) -> list[Any]:
    time.sleep(0.008)
    return [HUGE[: 1 << 19]]


def rows(n: int = 100_000) -> DataFlow:
    return DataFromList([[k] for k in range(n)], shuffle=False)


@dataclass(frozen=True)
class Case:
    """A planted bottleneck.

    Attributes:
        make: Makes the flow.
        expected: The bottleneck that the verdict should name.
        dearest: Text in the verdict, such as the node that takes most of the time.
        share: Share of that node, 0 to 1; None to leave it.
        step: Seconds that the consumer takes for each datapoint.
    """

    make: Callable[[], DataFlow]
    expected: str
    dearest: str = ""
    share: float | None = None
    step: float = 0.0


CASES = {
    "source, processes": Case(
        lambda: MultiProcessRunnerZMQ(MapData(SlowByIndex(rows()), cheap), 2, strict=True),
        "workers",
        "SlowByIndex",
        3 / 3.5,
    ),
    "source, a user's node": Case(
        lambda: MultiProcessRunnerZMQ(MapData(SlowSource(rows()), cheap), 2), "workers", "SlowSource", 3 / 3.5
    ),
    "source, threads": Case(
        lambda: MultiThreadRunner(lambda: MapData(MapData(rows(), waits), cheap), 50, 2), "workers", "waits", 4 / 4.5
    ),
    "source, a map": Case(
        lambda: MultiProcessMapData(SlowByIndex(rows()), 2, cheap, strict=True), "source", "reads its input"
    ),
    "map, processes": Case(
        lambda: MultiProcessRunner(MapData(MapData(rows(), cheap), dear), 50, 2, strict=True),
        "workers",
        "MapData(func=dear)",
        3 / 3.5,
    ),
    "map, threads": Case(
        lambda: MultiThreadRunner(lambda: MapData(MapData(rows(), cheap), dear), 50, 2, strict=True),
        "workers",
        "MapData(func=dear)",
        3 / 3.5,
    ),
    "map, a parallel map": Case(lambda: MultiProcessMapData(rows(), 2, dear, strict=True), "workers", "dear"),
    "map, a parallel map of threads": Case(
        lambda: MultiThreadMapData(rows(), 2, waits, strict=True), "workers", "waits"
    ),
    "batch, in workers": Case(
        lambda: MultiProcessRunnerZMQ(SlowBatch(MapData(rows(), images), 8), 2, strict=True), "workers", "SlowBatch"
    ),
    "transport": Case(lambda: MultiProcessRunnerZMQ(MapData(rows(), huge), 2, strict=True), "transport", "sending"),
    "transport, a map": Case(lambda: MultiProcessMapData(rows(), 2, huge, strict=True), "transport", "sending"),
    "consumer, processes": Case(
        lambda: BatchData(MultiProcessRunnerZMQ(MapData(rows(), cheap), 2, strict=True), 2),
        "consumer",
        "training step",
        step=0.01,
    ),
    "consumer, a node above the runner": Case(
        lambda: MapData(MultiProcessRunnerZMQ(MapData(rows(), cheap), 1, strict=True), dear),
        "consumer",
        "MapData(func=dear)",
        0.9,  # the engine has the rest
    ),
    "consumer, a batch above threads": Case(
        lambda: BatchData(MultiThreadRunner(lambda: MapData(rows(), images), 50, 1, strict=True), 8),
        "consumer",
        "BatchData(batch_size=8)",
    ),
    "consumer, threads": Case(
        lambda: MultiThreadRunner(lambda: MapData(rows(), cheap), 50, 2), "consumer", "training step", step=0.005
    ),
    "consumer, a map": Case(
        lambda: MultiThreadMapData(rows(), 2, cheap, strict=True), "consumer", "training step", step=0.005
    ),
    # Without the limit, the workers would make the next batch during a step.
    "memory, 1 worker": Case(
        lambda: BatchData(MultiProcessRunnerZMQ(MapData(rows(), half_mib), 1, max_bytes=1 << 20), 8),
        "memory",
        "max_bytes",
        step=0.032,
    ),
    "memory, 2 workers": Case(
        lambda: BatchData(MultiProcessRunnerZMQ(MapData(rows(), half_mib_slowly), 2, max_bytes=1 << 20), 8),
        "memory",
        "max_bytes",
        step=0.032,
    ),
    "too many workers": Case(
        lambda: MultiProcessRunnerZMQ(MapData(rows(), dear), 8, strict=True), "too many workers", "8 share"
    ),
    "nested": Case(
        lambda: MultiProcessRunner(MultiThreadMapData(rows(), 2, waits, strict=True), 50, 2),
        "workers",
        "waits",
    ),
    "nested, consumer": Case(
        lambda: MultiProcessRunner(MultiThreadMapData(FakeData([[8]], 1000), 2, cheap, strict=True), 50, 2),
        "consumer",
        "training step",
        step=0.005,
    ),
}


def run(case: Case, seconds: float = SECONDS) -> tuple[bool, str]:
    """Run one case. Return whether the verdict is right, and what it is."""
    with case.make() as df:
        end = None
        for dp in df:
            del dp
            if end is None:  # begins with the first datapoint
                end = time.monotonic() + seconds
                df.statistics()  # from now on the consumer is sampled, too
            if case.step:
                time.sleep(case.step)
            if time.monotonic() > end:
                break
        statistics = df.statistics()
    verdict = verdict_of(statistics)
    right = verdict.bottleneck == case.expected and case.dearest in verdict.text
    text = f"{verdict.bottleneck}: {verdict.text}"
    if case.share is not None:
        found = [node.share for node in statistics.nodes if case.dearest in node.node and node.share is not None]
        share = found[0] if found else 0.0
        right = right and abs(share - case.share) <= 0.1
        text = f"{text} (share {share:.0%}, planted {case.share:.0%})"
    return right, text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bottlenecks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases; all by default")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each case")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="seconds of each run")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.names or CASES:
        results = [run(CASES[name], options.seconds) for _ in range(options.repeat)]
        num_right = sum(right for right, _ in results)
        failed += num_right < len(results)
        text = next((text for right, text in results if not right), results[0][1])
        print(f"{name:<32} {num_right} of {len(results)}  {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
