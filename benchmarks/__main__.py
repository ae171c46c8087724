"""Compare this library with its peers: ``python -m benchmarks --help``."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import contenders, machine, plot, report, suite
from benchmarks.environments import python_of
from benchmarks.figures import Figures
from benchmarks.workloads import TRAINING, WORKLOADS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"


def names(known: Sequence[str]) -> Any:
    """A parser of comma-separated names."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = set(chosen) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return chosen

    return parse


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workloads", type=names(list(WORKLOADS)), default=list(WORKLOADS), metavar="A,B")
    parser.add_argument(
        "--contenders",
        type=names(contenders.ALL),
        default=list(contenders.QUICK),
        metavar="A,B",
        help=f"of {', '.join(contenders.ALL)}; by default those that are installed within a minute",
    )
    parser.add_argument("--all", action="store_true", help="every contender")
    parser.add_argument("--training", action="store_true", help="the training loops, with the contenders that have one")
    parser.add_argument(
        "--runs", type=int, default=5, help="number of runs of every job, each in a fresh process (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a run (%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers (1 2)")
    parser.add_argument(
        "--touch",
        choices=["ends", "all"],
        default="ends",
        help="what the consumer reads of every array: its first and last element, or, by copying it, every byte",
    )
    parser.add_argument("--silence", type=float, default=1.0, help="seconds of silence after a burst (%(default)s)")
    parser.add_argument("--bursts", type=int, default=20, help="number of bursts (%(default)s)")
    parser.add_argument("--no-probes", action="store_true", help="measure only speed, not bursts and failures")
    parser.add_argument(
        "--no-plot", action="store_true", help="no plot, so matplotlib is not installed; not with --publish"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results", help="output folder (benchmarks/results)"
    )
    parser.add_argument("--report", type=Path, metavar="RESULTS.json", help="report these results without measuring")
    parser.add_argument("--publish", action="store_true", help="put the figures into docs/benchmarks.md and README.md")
    chosen = parser.parse_args(arguments)
    if chosen.publish and chosen.no_plot:
        parser.error("--publish needs the plot: leave out --no-plot")
    chosen.contenders = list(contenders.ALL) if chosen.all else chosen.contenders
    if chosen.training:
        chosen.workloads, chosen.contenders = list(TRAINING), list(contenders.TRAINING)
    return chosen


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    jobs = suite.plan(chosen.contenders, chosen.workloads, chosen.workers, seconds=chosen.seconds, touch=chosen.touch)
    runs = list(suite.run_rounds(jobs, chosen.runs, say))
    if not chosen.no_probes:
        probes = suite.probe_plan(chosen.contenders, bursts=chosen.bursts, silence=chosen.silence)
        runs += suite.run_rounds(probes, 1, say)
    versions = {name: version for run in runs for name, version in run.pop("versions", {}).items() if name != "python"}
    settings = {key: getattr(chosen, key) for key in ("runs", "seconds", "workers", "touch", "silence", "bursts")}
    return {"machine": machine.description(), "settings": settings, "versions": versions, "runs": runs}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def publish(results: dict[str, Any]) -> Path:
    """Put the ratios into the page and the README; training loops alone have places of their own. Return the plot."""
    figures, ratios = Figures(results["runs"]), report.markdown(results, only_ratios=True)
    overview = report.overview_table(figures)
    marks, drawing = (report.BEGIN, report.END), PAGE.with_suffix(".svg")
    link = "![Datapoints per second of every contender, for each workload]({})\n\n"
    if set(figures.workloads) <= set(TRAINING):
        marks, drawing = report.LOOP_MARKS, PAGE.with_name("training-loops.svg")
        link = "![Samples per second of every library, for both training loops]({})\n\n"
        overview += "\n\n" + link.format(drawing.relative_to(README.parent)).rstrip()
    for page, text in ((PAGE, link.format(drawing.name) + ratios), (README, overview)):
        page.write_text(report.insert(page.read_text("utf-8"), text, marks), "utf-8")
    return drawing


def main() -> None:
    chosen = parse_arguments()
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.report or chosen.out / "results.json"
    if not chosen.report:
        path.write_text(json.dumps(measure(chosen), indent=1) + "\n", "utf-8")
    results = json.loads(path.read_text("utf-8"))
    text = report.markdown(results)
    print(text)
    (chosen.out / "report.md").write_text(text, "utf-8")
    drawings = [] if chosen.no_plot else [chosen.out / "speed.svg", chosen.out / "speed.png"]
    if chosen.publish:
        drawings.append(publish(results))
    if drawings:
        python = python_of("plot", plot.REQUIRES)
        subprocess.run([python, "-m", "benchmarks.plot", path, *drawings], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
