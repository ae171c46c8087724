"""Many more workers than cores: ``python -m benchmarks.oversubscription [--repeat N] [--seconds S] [NAME ...]``

Each case runs with a few workers, and with 16 and 64, in turn, several times. It prints the median rate with many
workers beside the best median of all numbers, and the medians of the seconds until the first datapoint and of `close`;
and exits with 1 if one misses its target, on two cores. The workers are forked.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.auto import CASES, interleaved, numbers
from dataflow import DataFlow, MapData, MultiProcessMapData, MultiProcessRunnerZMQ

FEW = (1, 2, 4)
TARGETS = {16: 0.8, 64: 0.5}  # of the best rate
MAX_FIRST, MAX_CLOSE = 1.0, 0.5  # seconds, with the most workers
START = 2.0  # seconds of each run that do not count

WORK = ("small", "image", "jpeg")
NODES: dict[str, Callable[[DataFlow, Callable[[Any], Any], int], DataFlow]] = {
    "default": lambda ds, func, num: MultiProcessRunnerZMQ(MapData(ds, func), num, context="fork"),
    "strict": lambda ds, func, num: MultiProcessRunnerZMQ(MapData(ds, func), num, strict=True, context="fork"),
    "map": lambda ds, func, num: MultiProcessMapData(ds, num, func, strict=True, context="fork"),
}


def measure(work: str, node: str, seconds: float, num_workers: int) -> tuple[float, float, float]:
    """Datapoints per second, seconds until the first, and seconds of `close`."""
    case = CASES[work]
    df = NODES[node](numbers(case), case.make(), num_workers)
    began = time.perf_counter()
    first, num, counted = 0.0, 0, 0.0
    for dp in df:
        del dp
        now = time.perf_counter()
        num += 1
        if not first:
            first = now - began
        if not counted and now - began > first + START:
            counted, num = now, 0
        elif counted and now - counted > seconds:
            break
    rate = num / (time.perf_counter() - counted)
    began = time.perf_counter()
    df.close()
    return rate, first, time.perf_counter() - began


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.oversubscription", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORK)}; all by default")
    parser.add_argument("--nodes", default=",".join(NODES), metavar="A,B", help="of %(default)s (all)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each number (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each run (%(default)s)")
    options = parser.parse_args(arguments)
    logging.getLogger("dataflow").setLevel(logging.ERROR)  # what default runners say of their passes is known here
    missed = 0
    for work in options.names or WORK:
        for node in options.nodes.split(","):
            run = partial(measure, work, node, options.seconds)
            found = interleaved(run, (*FEW, *TARGETS), options.repeat)
            medians = {num: tuple(map(median, zip(*runs, strict=True))) for num, runs in found.items()}
            best = max(medians, key=lambda num: medians[num][0])
            parts = {num: medians[num][0] / medians[best][0] for num in TARGETS}
            _, first, close = medians[max(TARGETS)]
            bad = [num for num, part in parts.items() if part < TARGETS[num]]
            missed += len(bad) + (first > MAX_FIRST) + (close > MAX_CLOSE)
            shown = ", ".join(f"{num}: {part:.2f}" for num, part in parts.items())
            print(
                f"{work:<6} {node:<8} of {best} workers ({medians[best][0]:,.0f}/s), {shown}; "
                f"first after {first:.2f} s, close in {close:.2f} s",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
