"""The report as one HTML page that contains everything it shows: no network, no scripts.

The figures are in the page, too, as JSON in the element with the id ``statistics``.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

from dataflow.reports.figures import FlowStatistics, Moment, NodeStatistics, RunnerStatistics
from dataflow.reports.text import report_text
from dataflow.reports.tracing import STATES, intervals
from dataflow.reports.verdict import verdict_of

__all__ = ["Sample", "page_of", "png_of"]

_WIDTH: Final = 760  # pixels of a chart
_HEIGHT: Final = 120
_ROW: Final = 18  # of a worker's timeline
_MAX_SIDE: Final = 192  # pixels of a picture
_MIN_SIDE: Final = 4
_MAX_VALUES: Final = 6  # components of a datapoint that are shown
_MAX_INTERVALS: Final = 300
_COLOURS: Final = dict(zip(STATES.values(), ("#2f7d4f", "#c9c9c9", "#d08a2e", "#8fb4d9"), strict=True))

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60em; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
.verdict { background: #eef4ee; border-left: 4px solid #2f7d4f; padding: .7em 1em; }
table { border-collapse: collapse; } td, th { padding: .15em .8em .15em 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { border-bottom: 1px solid #bbb; font-weight: 600; }
code, pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre; } pre { overflow-x: auto; }
svg { display: block; margin: .4em 0; background: #fafafa; } figure { display: inline-block; margin: 0 1em 1em 0; }
figcaption { font-size: .85em; color: #555; } img { image-rendering: pixelated; border: 1px solid #ccc; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
"""


class Sample(NamedTuple):
    """One component of a sample datapoint.

    Attributes:
        name: Its key or index.
        text: What it is, in one line.
        png: A picture of it, if it looks like one.
    """

    name: str
    text: str
    png: bytes | None = None


def page_of(statistics: FlowStatistics, samples: Sequence[Sequence[Sample]] = ()) -> str:
    """The page.

    Args:
        statistics: The figures, as `DataFlow.statistics` returns them.
        samples: The components of a few datapoints.
    """
    figures = json.dumps(dataclasses.asdict(statistics)).replace("<", "\\u003c")  # no end tag inside
    parts = [
        f'<p class="verdict">{escape(verdict_of(statistics).text)}</p>',
        *_tree(statistics),
        *(part for runner in statistics.runners for part in _runner(runner)),
        *_samples(samples),
        "<h2>As text</h2>",
        f"<pre>{escape(report_text(statistics))}</pre>",
        f'<script type="application/json" id="statistics">{figures}</script>',
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>dataflow report</title>'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head>\n<body>\n<h1>Where the time goes</h1>\n'
        f"{body}\n</body></html>\n"
    )


# -- Tables ------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its cells are HTML."""
    first = "".join(f"<th>{cell}</th>" for cell in head)
    made = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return f"<table><tr>{first}</tr>{''.join(f'<tr>{row}</tr>' for row in made)}</table>"


def _tree(statistics: FlowStatistics) -> Iterator[str]:
    rates = {runner.node: f"{runner.datapoints_per_second:,.4g}" for runner in statistics.runners}
    rows = [_node_row(node, rates.get(k, "")) for k, node in enumerate(statistics.nodes)]
    yield "<h2>The chain</h2>"
    yield _table(["node", "share", "datapoints/s", "length", "workers"], rows)


def _node_row(node: NodeStatistics, rate: str) -> list[str]:
    return [
        f"<code>{escape(node.prefix + node.node)}</code>",
        "" if node.share is None else f"{node.share:.0%}",
        rate,
        "" if node.length is None else f"{node.length:,}",
        escape(node.note),
    ]


def _runner(runner: RunnerStatistics) -> Iterator[str]:
    total = runner.consumer_seconds or 1.0
    yield f"<h2>{escape(runner.name)}</h2>"
    consumer = [
        f"{runner.datapoints:,}",
        *(
            f"{seconds / total:.0%}"
            for seconds in (
                runner.waiting_seconds,
                runner.receiving_seconds,
                runner.source_seconds,
                runner.working_seconds,
            )
        ),
        f"{runner.failures:,}",
        f"{runner.restarts:,}",
    ]
    yield _table(
        ["datapoints", "consumer waits", "receives", "reads the input", "is elsewhere", "failures", "restarts"],
        [consumer],
    )
    rows = [
        [
            str(worker.index),
            "" if worker.pid is None else str(worker.pid),
            f"{worker.datapoints:,}",
            *(f"{getattr(worker, field) / (worker.seconds or 1.0):.0%}" for field in STATES),
            f"{worker.delayed_seconds / (worker.seconds or 1.0):.0%}",
        ]
        for worker in runner.workers
    ]
    yield _table(["worker", "pid", "datapoints", *STATES.values(), "no processor"], rows)
    if len(runner.history) > 1:
        rates = [
            (after.seconds, (after.datapoints - before.datapoints) / (after.seconds - before.seconds))
            for before, after in pairwise(runner.history)
            if after.seconds > before.seconds
        ]
        yield _chart("datapoints per second", rates)
        yield _chart("windows in use", [(moment.seconds, moment.window) for moment in runner.history], 1.0)
        yield _timeline(runner.history)


# -- Charts ------------------------------------------------------------------------------------------------------------


def _chart(title: str, points: Sequence[tuple[float, float]], top: float | None = None) -> str:
    """A line chart over seconds."""
    end = max([seconds for seconds, _ in points] + [1e-9])
    highest = top or max([value for _, value in points] + [1e-9])
    places = " ".join(
        f"{_WIDTH * seconds / end:.1f},{_HEIGHT - (_HEIGHT - 16) * value / highest:.1f}" for seconds, value in points
    )
    label = f"{title}: up to {highest:,.4g}, over {end:.3g} s"
    return (
        f'<svg role="img" aria-label="{label}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><polyline points="{places}" fill="none" stroke="#2f7d4f" '
        f'stroke-width="1.5"/><text x="4" y="12" font-size="11" fill="#555">{label}</text></svg>'
    )


def _timeline(history: Sequence[Moment]) -> str:
    """A row per worker with its states over time."""
    step = max(1, -(-len(history) // _MAX_INTERVALS))
    moments = [*history[:-1:step], history[-1]]
    end = max(moments[-1].seconds, 1e-9)
    rectangles = []
    for before, after in pairwise(moments):
        for k, parts in enumerate(intervals(before, after)):
            start = before.seconds
            for name, seconds in parts:
                width = _WIDTH * seconds / end
                if width >= 0.05:
                    rectangles.append(
                        f'<rect x="{_WIDTH * start / end:.2f}" y="{k * _ROW}" width="{width:.2f}" '
                        f'height="{_ROW - 3}" fill="{_COLOURS[name]}"/>'
                    )
                start += seconds
    height = _ROW * max(1, *(len(moment.workers) for moment in moments))
    keys = "".join(f'<span class="key" style="background:{colour}"></span>{name}' for name, colour in _COLOURS.items())
    return (
        f'<svg role="img" aria-label="workers over time" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}">{"".join(rectangles)}</svg><p>One row per worker:{keys}</p>'
    )


# -- Samples -----------------------------------------------------------------------------------------------------------


def _samples(samples: Sequence[Sequence[Sample]]) -> Iterator[str]:
    if not samples:
        return
    yield "<h2>Sample datapoints</h2>"
    for datapoint in samples:
        figures = []
        for sample in datapoint[:_MAX_VALUES]:
            caption = f"<figcaption>{escape(sample.name)}: {escape(sample.text)}</figcaption>"
            picture = ""
            if sample.png is not None:
                data = base64.b64encode(sample.png).decode()
                picture = f'<img alt="{escape(sample.name)}" src="data:image/png;base64,{data}">'
            figures.append(f"<figure>{picture}{caption}</figure>")
        yield f"<div>{''.join(figures)}</div>"


def png_of(array: Any) -> bytes | None:
    """A PNG of an array that looks like an image, at most 192 pixels wide and high; None for any other.

    Args:
        array: numpy array: uint8 or bool, or floats of finite values, of shape (H, W), (H, W, 1), (H, W, 3), (H, W, 4)
            or, with channels first, (1, H, W) or (3, H, W). Floats are scaled to the range of their values.
    """
    if array.dtype.kind not in "bf" and array.dtype.str != "|u1":
        return None
    if array.ndim == 3 and array.shape[0] in {1, 3} and array.shape[2] not in {1, 3, 4}:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in {2, 3} or (array.ndim == 3 and array.shape[2] not in {3, 4}):
        return None
    height, width = array.shape[:2]
    if min(height, width) < _MIN_SIDE:
        return None
    step = -(-max(height, width) // _MAX_SIDE)
    array = array[::step, ::step]
    if array.dtype.kind == "b":
        array = array.astype("u1") * 255
    elif array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not high - low < float("inf"):  # NaN or infinite
            return None
        array = ((array - low) * (255 / ((high - low) or 1.0))).astype("u1")
    colour = {2: 0, 3: 2, 4: 6}[array.ndim if array.ndim == 2 else array.shape[2]]
    height, width = array.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in array)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(rows)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
