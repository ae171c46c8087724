"""Import times, compared with numpy and pyzmq: ``python -m benchmarks.imports``.

Each run is a fresh interpreter, and the statements take turns. The start time of the interpreter is subtracted. All
bytecode is compiled in advance, into a folder of this measurement, so that environments without bytecode files have no
disadvantage. CPU time (user and system) is shown beside wall time; on a busy machine it is more reliable.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

__all__ = ["main", "seconds"]

ROOT = Path(__file__).parents[1]
START = "pass"
PEERS = "import numpy, zmq"
STATEMENTS = {
    PEERS: PEERS,
    "import dataflow": "import dataflow",
    "… and three nodes": "import dataflow; dataflow.DataFromList, dataflow.MapData, dataflow.BatchData",
    "… and a runner": "import dataflow; dataflow.DataFromList, dataflow.MultiProcessRunnerZMQ",
    "… and all names": "from dataflow import *",
}


def seconds(code: str, environment: dict[str, str]) -> tuple[float, float]:
    """(wall, CPU) seconds of a fresh interpreter that runs `code`."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True)
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return end - begin, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(runs: int) -> dict[str, list[tuple[float, float]]]:
    """The seconds of every run of every statement, above those of an interpreter that only starts."""
    codes = [START, *STATEMENTS.values()]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        for code in codes:
            seconds(code, environment)
        times = [[seconds(code, environment) for code in codes] for _ in range(runs)]
    wall, cpu = (median(row[0][kind] for row in times) for kind in (0, 1))
    return {
        name: [(row[place][0] - wall, row[place][1] - cpu) for row in times]
        for place, name in enumerate(STATEMENTS, start=1)
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--runs", type=int, default=21, help="of each statement (%(default)s)")
    times = measure(parser.parse_args().runs)
    medians = {name: [median(run[kind] for run in runs) for kind in (0, 1)] for name, runs in times.items()}
    print(f"{'':20}{'wall':>10}{'CPU':>10}{'wall /':>10}{'CPU /':>10}   ({PEERS})")
    for name, (wall, cpu) in medians.items():
        ratios = f"{wall / medians[PEERS][0]:10.2f}{cpu / medians[PEERS][1]:10.2f}"
        print(f"{name:20}{wall * 1e3:7.1f} ms{cpu * 1e3:7.1f} ms{ratios}")


if __name__ == "__main__":
    main()
