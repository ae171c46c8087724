"""Does "auto" find the number of workers? ``python -m benchmarks.auto [--repeat N] [--seconds S] [NAME ...]``

Each case runs with fixed numbers of workers and with "auto", one after the other, several times. Only the time after
the start counts, in which "auto" tries numbers. It prints the median rate of "auto" beside the best median of all fixed
numbers, and exits with 1 if one is below `TARGET`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np

from dataflow import DataFlow, DataFromList, MapData, MultiProcessMapData, ParallelData

T = TypeVar("T")

TARGET = 0.9
START = 6.0  # seconds of each run that do not count
SECONDS = 2.0

POOL = [np.random.default_rng(k).integers(0, 255, (224, 224, 3), np.uint8) for k in range(16)]


def small(dp: Any) -> Any:
    return [dp[0], 0.5]


def image(dp: Any) -> Any:
    return [POOL[dp[0] % len(POOL)].copy(), dp[0]]


def waits(dp: Any) -> Any:
    time.sleep(5e-3)
    return dp


def waits_long(dp: Any) -> Any:
    time.sleep(30e-3)
    return dp


class Jpeg:
    """Decodes one photograph again and again."""

    def __init__(self) -> None:
        import cv2

        smooth = cv2.GaussianBlur(np.tile(POOL[0], (2, 2, 1)), (15, 15), 0)
        self.data = cv2.imencode(".jpg", smooth)[1]

    def __call__(self, dp: Any) -> Any:
        import cv2

        return [cv2.imdecode(self.data, cv2.IMREAD_COLOR), dp[0]]


class Changing:
    """Costs a little for the first datapoints, and thirty times as much from then on."""

    def __init__(self, num_cheap: int) -> None:
        self.num_cheap = num_cheap

    def __call__(self, dp: Any) -> Any:
        end = time.thread_time() + (1e-4 if dp[0] < self.num_cheap else 3e-3)
        while time.thread_time() < end:
            pass
        return dp


@dataclass(frozen=True)
class Case:
    """One flow.

    Attributes:
        make: Makes the function of the map.
        num: Datapoints of a pass.
        fixed: Numbers of workers to compare with.
    """

    make: Callable[[], Callable[[Any], Any]]
    num: int = 10_000_000
    fixed: tuple[int, ...] = (1, 2, 3, 4)


CASES = {
    "small": Case(lambda: small),
    "image": Case(lambda: image),
    "jpeg": Case(Jpeg),
    "waits": Case(lambda: waits, fixed=(1, 4, 16, 32)),
    "waits long": Case(lambda: waits_long, fixed=(1, 4, 16, 32)),
    "changing": Case(lambda: Changing(10_000)),
}
NODES: dict[str, Callable[[DataFlow, Callable[[Any], Any], Any], DataFlow]] = {
    "runner": lambda ds, func, num: ParallelData(MapData(ds, func), num),
    "threads": lambda ds, func, num: ParallelData(MapData(ds, func), num, backend="thread"),
    "map": lambda ds, func, num: MultiProcessMapData(ds, num, func, strict=True),
}


def numbers(case: Case) -> DataFlow:
    """The input of the map: a number for each datapoint."""
    return MapData(DataFromList(range(case.num), shuffle=False), lambda k: [k])


def interleaved(run: Callable[[Any], T], numbers: Iterable[Any], repeat: int) -> dict[Any, list[T]]:
    """What `run` returns for each number of workers: all of them once, then all of them again."""
    found: dict[Any, list[T]] = {num: [] for num in numbers}
    for _ in range(repeat):
        for num, results in found.items():
            results.append(run(num))
    return found


def rate(flow: DataFlow, seconds: float, start: float = START) -> float:
    """Datapoints per second, after the first `start` seconds. Closes the flow."""
    with flow as df:
        begun, num, end = time.monotonic() + start, 0, 0.0
        for dp in df:
            del dp
            num += 1
            if not end and time.monotonic() > begun:
                begun, num = time.monotonic(), 0
                end = begun + seconds
            elif end and time.monotonic() > end:
                break
        return num / (time.monotonic() - begun)


def measure(case: Case, node: str, seconds: float, num_workers: Any) -> float:
    """Datapoints per second with this number of workers."""
    return rate(NODES[node](numbers(case), case.make(), num_workers), seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--nodes", default=",".join(NODES), metavar="A,B", help="of %(default)s (all)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each number (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="of each run (%(default)s)")
    options = parser.parse_args(arguments)
    below = 0
    for name in options.names or CASES:
        case = CASES[name]
        for node in options.nodes.split(","):
            rates = interleaved(partial(measure, case, node, options.seconds), (*case.fixed, "auto"), options.repeat)
            medians = {num: median(found) for num, found in rates.items()}
            auto = medians.pop("auto")
            best = max(medians, key=medians.__getitem__)
            part = auto / medians[best]
            below += part < TARGET
            print(f"{name:<10} {node:<7} {part:.2f} of {best} workers ({auto:,.0f}/s)", flush=True)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
