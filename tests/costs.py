"""Measure what each test costs, and write down which are slow: ``python -m tests.costs [LOG …]``.

`make test` leaves out what ``slow.txt`` names, and `make test-slow` runs it. A test is slow if it takes a second; a
case of a test with several, if it takes a fifth of a second and another one stays: the cheapest of those that start
processes, since most faults need one, or else the cheapest of all. What a test has waited counts a quarter, since four
parts of the suite run at a time.

The first test that needs a fixture pays for it, and the order is another in each run: of several runs the cheapest
counts. With files that were written by runs before (by pytest with ``-p tests.costs``, to the file that the variable
TEST_COSTS names), nothing is run.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

SLOW = Path(__file__).with_name("slow.txt")
NUM_RUNS = 2
LIMIT, LIMIT_OF_CASE = 1.0, 0.2  # seconds
STARTS_PROCESSES = re.compile("process|zmq|fork|spawn", re.IGNORECASE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    used, began = processor_seconds(), time.monotonic()
    result = yield
    cost = max(processor_seconds() - used, (time.monotonic() - began) / 4)
    with open(os.environ["TEST_COSTS"], "a", encoding="utf-8") as log:
        log.write(f"{cost:.3f} {item.nodeid}\n")
    return result


def processor_seconds() -> float:
    """Of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def measured(logs: Iterable[Path]) -> dict[str, float]:
    """The seconds of each test, by its name; the least of several."""
    costs: dict[str, float] = {}
    for log in logs:
        for line in log.read_text("utf-8").splitlines():
            cost, name = line.split(" ", 1)
            costs[name] = min(float(cost), costs.get(name, float(cost)))
    return costs


def slow_ones(costs: dict[str, float]) -> list[str]:
    cases = defaultdict(list)
    for name in costs:
        cases[name.partition("[")[0]].append(name)
    found = []
    for test, names in cases.items():
        starting = [name for name in names if STARTS_PROCESSES.search(name.removeprefix(test))]
        stays = min(starting or names, key=costs.__getitem__)
        found += [name for name in names if costs[name] >= (LIMIT if name == stays else LIMIT_OF_CASE)]
    return sorted(found)


def main(logs: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = [Path(log) for log in logs] or [Path(folder, f"{k}.txt") for k in range(NUM_RUNS)]
        for log in () if logs else written:
            command = [sys.executable, "-m", "tests", "-p", "tests.costs", "-m", "not full"]
            subprocess.run(command, env={**os.environ, "TEST_COSTS": str(log)}, check=True)
        found = slow_ones(measured(written))
    SLOW.write_text("".join(f"{name}\n" for name in found), "utf-8")
    print(f"{len(found)} tests are slow: {SLOW}")


if __name__ == "__main__":
    main(sys.argv[1:])
