"""Where the processor time of a datapoint goes, between two nodes of a Ray cluster: ``python -m benchmarks.ray_costs``.

`RayRunner` and the hand-written loop over equal actors run in turn, several times; both nodes are on this machine
(`contenders/ray_nodes.py`). So all processes share its cores, and a datapoint takes as long as what they spend on it.
The workers' part is making, encoding and storing datapoints; the consumer's part is decoding and reading them; the two
raylets copy objects from one node to the other. ``--draw FIGURE.svg`` draws the bars.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import plot
from benchmarks.environments import python_of
from benchmarks.report import table

__all__ = ["PARTS", "draw", "main", "percentages", "shown"]

ROOT = Path(__file__).parents[1]
WORKLOADS = ("small", "image", "batch")
VARIANTS = ("loop", "runner")
PARTS = ("workers", "Ray on the workers' node", "Ray on the consumer's node", "consumer", "no process")
COLORS = ("#1f6f8b", "#8d959c", "#c3c8cc", "#c8553d", "#f1efe9")
START = 3.0  # seconds of each run that do not count: actors start, the object stores fill

Costs = dict[str, float]
"""Microseconds per datapoint of one core, by part; "no process" is the time in which a core had nothing to do."""


def measure(name: str, variant: str, workers: int, seconds: float) -> Costs:
    """One run, in this process."""
    import psutil

    from benchmarks.contenders import ray_nodes
    from benchmarks.workloads import by_name

    def spent() -> Costs:
        """Seconds of all processes of the cluster so far."""
        own = psutil.Process()
        costs = dict.fromkeys(PARTS, 0.0) | {"consumer": sum(own.cpu_times()[:2])}
        processes = own.children(recursive=True)
        actors = [process for process in processes if is_actor(process.cmdline())]
        away = {process.ppid() for process in actors}  # the raylet that has started them
        for process in processes:
            if process in actors:
                part = PARTS[0]
            else:
                part = PARTS[1] if away & {process.pid, process.ppid()} else PARTS[2]
            costs[part] += sum(process.cpu_times()[:2])
        return costs

    workload = by_name(name)
    with ray_nodes.VARIANTS[variant].open(workload, workers) as stream:
        read_for(START, stream, workload)
        before, began = spent(), time.perf_counter()
        num = read_for(seconds, stream, workload)
        elapsed = time.perf_counter() - began
        costs = {part: cost - before[part] for part, cost in spent().items()}
    costs[PARTS[-1]] = max(0.0, len(os.sched_getaffinity(0)) * elapsed - sum(costs.values()))
    return {part: 1e6 * cost / num for part, cost in costs.items()}


def is_actor(command: Sequence[str]) -> bool:
    """Whether a process of Ray is an actor: it has the name of the actor's class."""
    name = command[0] if command else ""
    return name.startswith("ray::") and not name.startswith("ray::IDLE") and not name.endswith("Agent")


def read_for(seconds: float, stream: Any, workload: Any) -> int:
    """Read datapoints for some seconds; return how many."""
    num, count, began = 0, 1, time.perf_counter()
    while time.perf_counter() - began < seconds:
        workload.consume(itertools.islice(stream, count))
        num += count
        count = max(1, num // 20)
    return num


def percentages(runs: Sequence[tuple[str, str, Costs]]) -> dict[tuple[str, str], Costs]:
    """The medians of all runs of a workload and a variant, as percentages of the time that the loop takes for it."""
    found: dict[tuple[str, str], list[Costs]] = {}
    for name, variant, costs in runs:
        found.setdefault((name, variant), []).append(costs)
    costs = {key: {part: median(run[part] for run in several) for part in PARTS} for key, several in found.items()}
    whole = {name: sum(parts.values()) for (name, variant), parts in costs.items() if variant == "loop"}
    return {key: {part: 100 * cost / whole[key[0]] for part, cost in parts.items()} for key, parts in costs.items()}


def shown(runs: Sequence[tuple[str, str, Costs]]) -> str:
    """A table: a line for each workload and variant, a column for each part."""
    rows = [
        [f"{name}, {variant}", *(f"{share:.0f}" for share in (*parts.values(), sum(parts.values())))]
        for (name, variant), parts in percentages(runs).items()
    ]
    return table(["% of the loop's time", *PARTS, "together"], rows)


def draw(runs: Sequence[tuple[str, str, Costs]], path: Path) -> None:
    """Bars: the parts of each variant, one below the other for each workload."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "benchmarks", "font.size": 8}
    from matplotlib import pyplot

    bars = percentages(runs)
    drawing, axis = pyplot.subplots(figsize=(8, 0.5 + 0.35 * len(bars)), layout="constrained")
    for height, parts in enumerate(bars.values()):
        left = 0.0
        for (part, width), color in zip(parts.items(), COLORS, strict=True):
            axis.barh(height, width, 0.7, left, color=color, label=None if height else part)
            left += width
    axis.set_yticks(range(len(bars)), [f"{name}, {variant}" for name, variant in bars])
    axis.invert_yaxis()
    axis.set_xlabel("time of the cores per datapoint, % of the hand-written loop's")
    axis.spines[["top", "right", "left"]].set_visible(False)
    drawing.legend(loc="outside upper left", ncols=len(PARTS), frameon=False)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_costs", description=__doc__.partition(":")[0])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--workers", type=int, default=1, help="actors (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each run (%(default)s)")
    parser.add_argument("--draw", type=Path, metavar="FIGURE.svg", help="draw the parts into this file")
    parser.add_argument("--results", type=Path, metavar="RUNS.json", help="draw these results without measuring")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.workloads) - set(WORKLOADS):
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if chosen.results and not chosen.draw:
        parser.error("--results needs --draw: say which file to draw into")
    if chosen.results:
        draw(json.loads(chosen.results.read_text("utf-8")), chosen.draw)
        return
    from benchmarks.contenders import ray_nodes  # not in the environment that draws
    from benchmarks.memory import in_new_process

    os.environ.update(ray_nodes.ENVIRONMENT)
    runs = []
    for _ in range(chosen.repeat):
        for name, variant in itertools.product(chosen.workloads, VARIANTS):
            runs.append((name, variant, in_new_process(measure, name, variant, chosen.workers, chosen.seconds)))
            print(*runs[-1][:2], {part: round(cost, 1) for part, cost in runs[-1][2].items()}, file=sys.stderr)
    print(shown(runs))
    if chosen.draw:
        with TemporaryDirectory() as folder:
            results = Path(folder, "runs.json")
            results.write_text(json.dumps(runs), "utf-8")
            command = ["-m", "benchmarks.ray_costs", "--results", str(results), "--draw", str(chosen.draw.absolute())]
            subprocess.run([python_of("plot", plot.REQUIRES), *command], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
