"""Is `profile` right? ``python -m benchmarks.profiles [--repeat N] [--seconds S] [NAME ...]``

Each flow is profiled several times, and runs with the recommended class and each number of workers that `profile`
considers. It prints the recommended numbers beside the best one, and how far the predicted rates are from the measured
one. It exits with 1 if a number is more than one step of those considered away from the best, or a rate is wrong by
more than `TOLERANCE`.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from statistics import median

import dataflow
from benchmarks.auto import CASES, Case, interleaved, numbers, rate
from dataflow import DataFlow, MapData, ParallelData
from dataflow.observe.profiler import Placement

TOLERANCE = 0.25
ENOUGH = 0.95  # of the best rate: of the numbers that reach it, the smallest is the best
START = 1.0  # seconds of each run that do not count
NAMES = ("jpeg", "waits")


def with_workers(case: Case, placement: Placement, num_workers: int) -> DataFlow:
    """The flow with the class that was recommended."""
    if placement.kind == "runner":
        return ParallelData(MapData(numbers(case), case.make()), num_workers, backend=placement.backend)
    made: DataFlow = getattr(dataflow, placement.runner)(numbers(case), num_workers, case.make(), strict=True)
    return made


def measure(case: Case, placement: Placement, seconds: float, num_workers: int) -> float:
    """Datapoints per second with the recommended class and this number of workers."""
    return rate(with_workers(case, placement, num_workers), seconds, START)


def best_number(rates: dict[int, float]) -> int:
    """The fewest workers that are almost as fast as the best number."""
    return min(num for num, rate in rates.items() if rate >= ENOUGH * max(rates.values()))


def steps_between(one: int, other: int, considered: Sequence[int]) -> int:
    """How many steps two numbers are apart in those that were considered."""
    return abs(considered.index(one) - considered.index(other))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)} ({', '.join(NAMES)})")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="profiles, and runs (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each run (%(default)s)")
    parser.add_argument("--profiled", type=float, default=10.0, metavar="S", help="seconds of a profile (%(default)s)")
    options = parser.parse_args(arguments)
    missed = 0
    for name in options.names or NAMES:
        case = CASES[name]
        profiles = [
            dataflow.profile(MapData(numbers(case), case.make()), options.profiled) for _ in range(options.repeat)
        ]
        if not all(found.recommended.num_workers for found in profiles):
            missed += 1
            print(f"{name:<6} recommends no workers", flush=True)
            continue
        for runner, backend in sorted({(one.recommended.runner, one.recommended.backend) for one in profiles}):
            alike = [one for one in profiles if (one.recommended.runner, one.recommended.backend) == (runner, backend)]
            considered = sorted({one.num_workers for one in alike[0].predictions})
            run = partial(measure, case, alike[0].recommended, options.seconds)
            runs = interleaved(run, considered, options.repeat)
            rates = {num: median(found) for num, found in runs.items()}
            best = best_number(rates)
            advised = [one.recommended for one in alike]
            steps = max(steps_between(one.num_workers, best, considered) for one in advised)
            wrong = [one.datapoints_per_second / rates[one.num_workers] - 1 for one in advised]
            missed += steps > 1 or max(map(abs, wrong)) > TOLERANCE
            print(
                f"{name:<6} {runner}, {backend}: recommends {', '.join(str(one.num_workers) for one in advised)}"
                f" workers, the best is {best}; predicts {', '.join(f'{part:+.0%}' for part in wrong)}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
