"""The plot: ``python -m benchmarks.plot RESULTS.json FIGURE.svg``, in the environment that has matplotlib."""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.figures import Figures, is_ours, is_peer
from benchmarks.targets import LIMITS
from benchmarks.workloads import TRAINING, WORKLOADS

__all__ = ["REQUIRES", "draw"]

REQUIRES = ("matplotlib>=3.9",)

OURS, PEER, LIMIT = "#1f6f8b", "#8d959c", "#c8553d"


def draw(results: dict[str, Any], path: Path) -> None:
    """One panel per workload: every contender's best variant, as datapoints per second, fastest above."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "benchmarks", "font.size": 8}
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    figures = Figures(results["runs"])
    workloads = figures.workloads
    columns = min(2, len(workloads))
    rows = -(-len(workloads) // columns)
    drawing, axes = pyplot.subplots(
        rows, columns, figsize=(4.6 * columns, 2.3 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(workloads) :]:
        axis.axis("off")
    for axis, workload in zip(axes.flat, workloads, strict=False):
        found = rates(figures, workload)
        for height, (name, rate) in enumerate(found):
            axis.plot(rate, height, "o", color=OURS if name == "ours" else PEER)
            axis.annotate(report.rounded(rate), (rate, height), (6, 0), textcoords="offset points", va="center")
        axis.set_yticks(range(len(found)), [name for name, _ in found])
        limit = figures.best_of(workload, LIMITS[workload])
        if limit:
            axis.axvline(limit.rate, color=LIMIT, linestyle="--", linewidth=1)
            axis.set_title(f"{workload}   (dashed: {limit.label.partition('/')[2]})", loc="left", fontsize=9)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=8))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.margins(x=0.15, y=0.15)
        axis.grid(axis="y", linewidth=0.4)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_xlabel(f"{WORKLOADS[workload].unit[1]}s per second, logarithmic")
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def rates(figures: Figures, workload: str) -> list[tuple[str, float]]:
    """The fastest variant of each contender that works in processes, the slowest contender first.

    Of training loops, also those that work in threads.
    """
    best: dict[str, float] = {}
    for label in figures.labels:
        figure = figures.best_of(workload, label)
        if figure and (figure.in_processes or workload in TRAINING) and (is_peer(label) or is_headline(label)):
            name = label.partition("/")[0].removeprefix("training_")
            best[name] = max(best.get(name, 0.0), figure.rate)
    return sorted(best.items(), key=lambda item: item[1])


def is_headline(label: str) -> bool:
    """Whether the variant of this library is the one that is shown; of training loops, the best of all."""
    return is_ours(label) and (label == "ours/zmq" or label.startswith("training_"))


def main() -> None:
    source, *targets = map(Path, sys.argv[1:])
    results = json.loads(source.read_text("utf-8"))
    for target in targets:
        draw(results, target)


if __name__ == "__main__":
    main()
