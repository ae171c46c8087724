"""What starting workers takes: the first datapoint of a first and of a second runner, and `close`, by start method.

``python -m benchmarks.starts`` prints a table of medians. Every run is an interpreter of its own, whose main program
imports what a program does that decodes and batches; the start methods take turns.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["measure", "table"]

METHODS = ("fork", "forkserver", "spawn")
COLUMNS = ("first runner", "second runner", "close")
PROGRAM = """
import json, sys, time
import numpy as np
from dataflow import BatchData, DataFromList, MapData, ParallelData

def work(dp):
    return [np.full((8, 8), dp[0])]

def start(method):
    df = ParallelData(MapData(DataFromList([[k] for k in range(100)], shuffle=False), work), 2, context=method)
    began = time.perf_counter()
    next(iter(df))
    return df, time.perf_counter() - began

if __name__ == "__main__":
    one, first = start(sys.argv[1])
    other, second = start(sys.argv[1])
    began = time.perf_counter()
    other.close()
    closed = time.perf_counter() - began
    one.close()
    print(json.dumps([first, second, closed]))
"""


def measure(runs: int) -> dict[str, list[list[float]]]:
    """By start method: for each run the seconds of `COLUMNS`. The methods take turns."""
    found: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM, encoding="utf-8")
        for _ in range(runs):
            for method in METHODS:
                command = [sys.executable, str(program), method]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
                found[method].append(json.loads(done.stdout))
    return found


def table(found: dict[str, list[list[float]]]) -> str:
    """Medians in milliseconds, and how many times that of fork, as rows of a Markdown table."""
    medians = {method: [statistics.median(run[k] for run in runs) for k in range(3)] for method, runs in found.items()}
    lines = [f"| Python | start method | {' | '.join(f'{name}, ms (vs fork)' for name in COLUMNS)} |"]
    lines.append(f"| --- | --- |{' --: |' * len(COLUMNS)}")
    for method, seconds in medians.items():
        cells = [f"{s * 1e3:.0f} ({s / fork:.1f}×)" for s, fork in zip(seconds, medians["fork"], strict=True)]
        lines.append(f"| {platform.python_version()} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="of each start method (default: 9)")
    print(table(measure(parser.parse_args(arguments).runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
