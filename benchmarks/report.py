"""Markdown tables of the results. Pure functions: results in, text out."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.figures import Figure, Figures
from benchmarks.targets import LIMITS, LOADER, OF_LOOPS, SLOTS, Verdict, verdicts
from benchmarks.workloads import IMAGES_PER_BATCH, TRAINING, WORKLOADS

__all__ = [
    "insert",
    "markdown",
    "overview_table",
    "probes_table",
    "rates_table",
    "ratios_table",
    "rounded",
    "table",
    "targets_table",
    "training_table",
]

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
LOOP_MARKS = "<!-- training loops: begin -->", "<!-- training loops: end -->"
"""Of the figures of a run with nothing but training loops."""

OVERVIEW = {
    "small": ("`[int, float]`", "of the generator alone"),
    "image": ("`[uint8 (224, 224, 3), int]`", "of memcpy speed"),
    "batch": ("`[float32 (32, 224, 224, 3), int64 (32,)]`", "of memcpy speed"),
}
"""The rows of the table in the README: the workload, its datapoint, and the limit of the machine in words."""


def markdown(results: dict[str, Any], *, only_ratios: bool = False) -> str:
    """All results as sections of a page; or only the ratios, which carry over to other machines."""
    figures, probes = Figures(results["runs"]), [run for run in results["runs"] if run["measurement"] != "throughput"]
    sections = [
        ("A training loop", training_table(figures)),
        ("Against the best peer and the limit of the machine", ratios_table(figures)),
        ("Datapoints (images, samples) per second", rates_table(figures)),
        ("Costs of the consumer", costs_table(figures)),
        ("Latency and failures", probes_table(probes)),
        ("Targets", targets_table(verdicts(figures, probes))),
        ("Failed measurements", errors_list(results["runs"])),
    ]
    if only_ratios:
        sections = [sections[0], sections[1], sections[4]]
    return f"{conditions(results)}\n" + "".join(f"\n### {title}\n\n{text}\n" for title, text in sections if text)


def conditions(results: dict[str, Any]) -> str:
    machine, settings = results["machine"], results["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(results["versions"].items()))
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}; {versions}. Medians of {settings['runs']} interleaved runs of "
        f"{settings['seconds']:g} s; the better of {' and '.join(map(str, settings['workers']))} workers."
    )


def ratios_table(figures: Figures) -> str:
    """The speed of this library's runner, relative to the others. Training loops have a table of their own."""

    def row(workload: str) -> list[str]:
        ours = figures.best_of(workload, "ours/zmq")
        peer = figures.best_peer(workload)
        limit = figures.best_of(workload, LIMITS[workload])
        return [
            workload,
            quotient(ours, figures.best_of(workload, "tensorpack/zmq")),
            quotient(ours, peer) + (f" ({peer.label})" if peer else ""),
            percentage(ours, limit) + (f" of {limit.label.partition('/')[2]}" if limit else ""),
        ]

    header = ["workload", "vs tensorpack", "vs best peer", "vs limit of the machine"]
    return table(header, [row(workload) for workload in figures.workloads if figures.best_of(workload, "ours/zmq")])


def overview_table(figures: Figures) -> str:
    """The table in the README: three workloads, relative to tensorpack, SPDL and the machine.

    Above it stands that of training loops, if they were measured.
    """

    def row(workload: str, datapoint: str, limit: str) -> list[str]:
        ours = figures.best_of(workload, "ours/zmq")
        spdl = figures.best(workload, lambda figure: figure.label.startswith("spdl_arena/"))
        return [
            datapoint,
            f"{quotient(ours, figures.best_of(workload, 'tensorpack/zmq'))} tensorpack",
            f"{quotient(ours, spdl)} SPDL",
            f"{percentage(ours, figures.best_of(workload, LIMITS[workload]))} {limit}",
        ]

    header = ["datapoint", "vs tensorpack", "vs SPDL", "vs the machine"]
    rows = [row(name, *words) for name, words in OVERVIEW.items() if figures.best_of(name, "ours/zmq")]
    return "\n\n".join(filter(None, [training_overview(figures), table(header, rows)]))


LOOPS = {
    "training": "JPEG files, decoded, cropped, mirrored, normalised",
    "tokens": "lists of tokens, padded",
}


def training_overview(figures: Figures) -> str:
    """Training loops in the README: the better of the two kinds of runner, relative to the others."""

    def row(workload: str) -> list[str]:
        ours = figures.best(workload, lambda figure: figure.label in OF_LOOPS[:2])
        peers = {
            name: figures.best(workload, lambda figure, name=name: figure.label.startswith(f"training_{name}/"))
            for name in ("torch", "spdl", "grain", "tensorpack")
        }
        limit = figures.best_of(workload, LIMITS[workload])
        return [
            f"{LOOPS[workload]} ({WORKLOADS[workload].unit[1]}s/s: {rounded(ours.rate) if ours else ''})",
            *(quotient(ours, peer) for peer in peers.values()),
            f"{percentage(ours, limit)} of one core" if limit else "",
        ]

    header = [f"training loop, batches of {IMAGES_PER_BATCH}", "vs DataLoader", "vs SPDL", "vs grain", "vs tensorpack"]
    rows = [row(workload) for workload in figures.workloads if workload in TRAINING]
    return table([*header, "vs the work alone"], rows)


def training_table(figures: Figures) -> str:
    """All figures of training loops, with the most workers: absolute, and relative to DataLoader."""

    def row(workload: str, label: str) -> list[str]:
        found = figures.select(workload, label)
        figure = max(found, key=lambda figure: figure.workers)
        loader = next(iter(figures.select(workload, LOADER, figure.workers)), None)
        return [
            workload,
            f"{label.removeprefix('training_')} ({figure.workers})",
            rounded(figure.rate),
            quotient(figure, loader),
            percentage(figure, figures.best_of(workload, LIMITS[workload])),
            rounded(figure.consumer_cpu * 1e6),
            f"{figure.memory / 2**20:.0f}",
            rounded(figure.startup * 1e3),
        ]

    header = ["workload", "contender (workers)", "per second", "vs DataLoader", "of one core's work"]
    rows = [
        row(workload, label)
        for workload in figures.workloads
        for label in figures.labels
        if workload in TRAINING and figures.select(workload, label)
    ]
    return table([*header, "consumer CPU, µs", "memory, MiB", "first batch, ms"], rows)


def rates_table(figures: Figures) -> str:
    def cell(workload: str, label: str) -> str:
        figure = figures.best_of(workload, label)
        return f"{rounded(figure.rate)} ({figure.workers})" if figure else ""

    rows = [[label, *(cell(workload, label) for workload in figures.workloads)] for label in figures.labels]
    return table(["contender (workers)", *figures.workloads], rows)


def costs_table(figures: Figures) -> str:
    """CPU per datapoint with one worker; start and close with two."""

    def row(workload: str, label: str) -> list[str]:
        one, two = figures.select(workload, label, workers=1), figures.select(workload, label, workers=2)
        return [
            workload,
            label,
            rounded(one[0].consumer_cpu * 1e6) if one else "",
            rounded(two[0].startup * 1e3) if two else "",
            rounded(two[0].close * 1e3) if two else "",
        ]

    rows = [
        row(workload, label)
        for workload in figures.workloads
        for label in figures.labels
        if (label == SLOTS or not label.startswith("references/")) and figures.best_of(workload, label)
    ]
    return table(["workload", "contender", "consumer CPU, µs", "start-up, ms", "close, ms"], rows)


def probes_table(probes: Iterable[dict[str, Any]]) -> str:
    """The worst run of each contender."""
    found: dict[str, dict[str, str]] = {}
    for record in sorted(probes, key=lambda record: record.get("wait") or record.get("after") or 0.0):
        if "error" not in record:
            found.setdefault(record["label"], {})[record["measurement"]] = probe_cell(record)
    rows = [[label, *(cells.get(name, "") for name in ("burst", "killed", "raises"))] for label, cells in found.items()]
    header = ["contender", "latency of a burst, median (worst), ms", "worker killed", "source raises"]
    return table(header, sorted(rows))


def probe_cell(record: dict[str, Any]) -> str:
    if record["measurement"] == "burst":
        return f"{rounded(record['wait'] * 1e3)} ({rounded(record['worst'] * 1e3)})"
    return f"{record['exception']} after {rounded(record['after'] * 1e3)} ms" if record["exception"] else "not reported"


def targets_table(found: Sequence[Verdict]) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [
        [
            verdict.workload,
            verdict.promise,
            "" if verdict.found is None else f"{verdict.found:.3g}{verdict.unit}",
            f"{'≤' if verdict.is_upper else '≥'} {verdict.limit:g}{verdict.unit}",
            words[verdict.is_kept],
        ]
        for verdict in found
    ]
    return table(["workload", "measured", "found", "target", "met"], rows)


def errors_list(runs: Iterable[dict[str, Any]]) -> str:
    lines = {
        f"- {run.get('workload', run['measurement'])} {run['label']}, {run.get('workers', 1)} workers: {run['error']}"
        for run in runs
        if "error" in run
    }
    return "\n".join(sorted(lines))


def insert(page: str, text: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """Replace the text between two marks of a page."""
    before, begin, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"the page has no lines {marks[0]} and {marks[1]} to put the figures between")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    numeric = ["---"] + [
        "--:" if any(row[column][:1].isdigit() for row in rows) else "---" for column in range(1, len(header))
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, numeric, *rows])


def quotient(figure: Figure | None, other: Figure | None) -> str:
    return f"{figure.rate / other.rate:.2g}×" if figure and other else ""


def percentage(figure: Figure | None, other: Figure | None) -> str:
    return f"{float(f'{100 * figure.rate / other.rate:.2g}'):g} %" if figure and other else ""


def rounded(number: float) -> str:
    """Three significant digits, with separators between thousands."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"
