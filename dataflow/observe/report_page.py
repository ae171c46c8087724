"""The report as one HTML page that contains everything it shows, and needs no network: a chart for each question.

The only script copies the text. The figures are in the page, too, as JSON in the element with the id ``statistics``.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import struct
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

from dataflow.observe.figures import FlowStatistics, NodeStatistics, RunnerStatistics
from dataflow.observe.report_text import answer_of, report_text
from dataflow.observe.tracing import STATES, intervals
from dataflow.observe.verdict import verdict_of

__all__ = ["Sample", "page_of", "png_of", "ticks"]

_MAX_SIDE: Final = 192  # pixels of a picture
_MIN_SIDE: Final = 4
_MAX_VALUES: Final = 6  # components of a datapoint that are shown
_MAX_INTERVALS: Final = 300
_LINE: Final = 100  # characters of the text
_VERDICTS: Final = {True: "good", False: "bad", None: "unknown"}
_COLOURS: Final = dict(zip(STATES.values(), ("good", "idle", "bad", "empty"), strict=True))

_STYLE: Final = """
:root { color-scheme: light dark; --text: #222; --soft: #5c5c5c; --page: #fff; --plot: #f6f6f6; --line: #d4d4d4;
  --good: #2f7d4f; --good-page: #e9f4ec; --bad: #b4541a; --bad-page: #fcf0e6; --unknown: #5f6b7a;
  --unknown-page: #eef1f4; --idle: #b9b9b9; --empty: #7fabd6; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e4e4; --soft: #a8a8a8; --page: #16181b; --plot: #202327;
  --line: #3b4046; --good: #58b07c; --good-page: #1b2c22; --bad: #e08a4c; --bad-page: #33241a; --unknown: #93a1b3;
  --unknown-page: #22272e; --idle: #6d7278; --empty: #5286b8; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 60em;
  margin: 2em auto; padding: 0 1em; overflow-wrap: anywhere; }
h1 { font-size: 1.4em } h2 { font-size: 1.15em; margin: 2em 0 .4em } h3 { font-size: 1em; margin: 1.6em 0 .3em }
.verdict { padding: .5em 1em; margin: 0; } .good, .bad, .unknown { border-left: 4px solid; padding: .2em 0; }
.good { background: var(--good-page); border-color: var(--good); }
.bad { background: var(--bad-page); border-color: var(--bad); }
.unknown { background: var(--unknown-page); border-color: var(--unknown); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } td, th { padding: .15em .8em .15em 0; text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; } .note { text-align: left; white-space: normal; min-width: 12em; }
th { border-bottom: 1px solid var(--line); font-weight: 600; }
@media (max-width: 500px) { table { font-size: 13px; } body { margin: 1em auto; } }
code, pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre; } pre { overflow-x: auto; margin: .5em 0; }
button { font: inherit; padding: .2em .8em; }
.bar { display: inline-block; height: .7em; background: var(--good); margin-left: .5em; }
.bars { display: inline-block; width: 6em; text-align: left; }
.chart { display: grid; grid-template-columns: auto 1fr; column-gap: .5em; font-size: 12px; color: var(--soft); }
.unit { grid-column: 2; } .x { grid-column: 2; position: relative; height: 1.5em; } .x + .unit { text-align: center; }
.y { position: relative; text-align: right; } .y span { display: block; height: 0; line-height: 0; }
.plot { position: relative; background: var(--plot); border: solid var(--line); border-width: 0 0 1px 1px; }
.plot svg { display: block; width: 100%; height: 100%; } .lines .plot { height: 110px; margin: .5em 0 0; }
.lines .y { margin: .5em 0 0; } .lines .y span { position: absolute; right: 0; } .lines .y i { visibility: hidden; }
.x span { position: absolute; transform: translateX(-50%); white-space: nowrap; } .x span:last-child { transform:
  translateX(-100%); } .x span:first-child { transform: none; }
.rows .y span { height: 18px; line-height: 18px; } .grid { stroke: var(--line); } .curve { stroke: var(--good); }
.grid, .curve { fill: none; vector-effect: non-scaling-stroke; } .curve { stroke-width: 1.5; }
.fill-good { fill: var(--good); background: var(--good); } .fill-idle { fill: var(--idle); background: var(--idle); }
.fill-bad { fill: var(--bad); background: var(--bad); } .fill-empty { fill: var(--empty); background: var(--empty); }
.fill-unknown { fill: var(--unknown); background: var(--unknown); }
.key { white-space: nowrap; margin-right: 1em; } .key i { display: inline-block; width: .8em; height: .8em;
  margin-right: .3em; }
.samples { display: flex; flex-wrap: wrap; gap: 1em; } .samples > div { border: 1px solid var(--line); padding: .6em; }
figure { margin: 0 0 .5em; max-width: 20em; } figcaption { font-size: .85em; color: var(--soft); }
img { image-rendering: pixelated; border: 1px solid var(--line); max-width: 100%; }
"""

_SCRIPT: Final = """
document.getElementById("copy").addEventListener("click", event => {
    const area = document.createElement("textarea");  // not navigator.clipboard, which frames and http may not use
    area.value = document.getElementById("text").textContent;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    event.target.textContent = copied ? "Copied" : "Not copied: select the text below";
});
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
    answer = answer_of(statistics)
    text = report_text(statistics).removesuffix("\n".join(answer)) + "\n".join(
        textwrap.fill(sentence, _LINE) for sentence in answer
    )
    parts = [
        f'<div class="{_VERDICTS[verdict_of(statistics).is_good]}">',
        *(f'<p class="verdict">{escape(sentence)}</p>' for sentence in answer),
        "</div>",
        *_chain(statistics),
        *(part for runner in statistics.runners if runner.outer is None for part in _runner(runner)),
        *_samples(samples),
        "<h2>As text</h2>",
        '<button id="copy" type="button">Copy</button>',
        f'<details><summary>Show</summary><pre id="text">{escape(text)}</pre></details>',
        f'<script type="application/json" id="statistics">{figures}</script>',
        f"<script>{_SCRIPT}</script>",
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>dataflow report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head>\n<body>\n<h1>Where the time goes</h1>\n'
        f"{body}\n</body></html>\n"
    )


# -- Tables ------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, without the columns that are empty or zero everywhere; its cells are HTML."""
    kept = [k for k in range(len(head)) if k == 0 or any(row[k] not in {"", "0", "0%"} for row in rows)]
    first = "".join(f"<th>{head[k]}</th>" for k in kept)
    made = ["".join(f"<td>{row[k]}</td>" for k in kept) for row in rows]
    return f'<div class="wide"><table><tr>{first}</tr>{"".join(f"<tr>{row}</tr>" for row in made)}</table></div>'


def _chain(statistics: FlowStatistics) -> Iterator[str]:
    rates = {runner.node: f"{runner.datapoints_per_second:,.4g}" for runner in statistics.runners}
    rows = [_node_row(node, rates.get(k, "")) for k, node in enumerate(statistics.nodes)]
    yield f"<h2>{escape(_of_chain(statistics))}</h2>"
    yield _table(["node", "share", "datapoints/s", "length", '<div class="note">workers</div>'], rows)


def _of_chain(statistics: FlowStatistics) -> str:
    """Which node takes most time, as a title."""
    known = [node for node in statistics.nodes if node.share]
    if not known:
        return "The chain"
    dearest = max(known, key=lambda node: node.share or 0.0)
    whose = "the consumer's" if dearest.runner is None else "the workers'"
    return f"{dearest.node} takes {dearest.share:.0%} of {whose} time"


def _node_row(node: NodeStatistics, rate: str) -> list[str]:
    share = ""
    if node.share is not None:
        bar = f'<span class="bar" style="width:{5 * min(1.0, node.share):.2f}em"></span>'
        share = f'{node.share:.0%}<span class="bars">{bar}</span>'
    return [
        f"<code>{escape(node.prefix + node.node)}</code>",
        share,
        rate,
        "" if node.length is None else f"{node.length:,}",
        f'<div class="note">{escape(node.note)}</div>' if node.note else "",
    ]


def _runner(runner: RunnerStatistics) -> Iterator[str]:
    total = runner.consumer_seconds or 1.0
    parts = {
        "waits": (runner.waiting_seconds / total, "bad"),
        "receives": (runner.receiving_seconds / total, "empty"),
        "reads the input": (runner.source_seconds / total, "unknown"),
        "is elsewhere": (runner.working_seconds / total, "good"),
    }
    yield f"<h2>{escape(runner.name)}</h2>"
    yield f"<h3>The consumer waited {parts['waits'][0]:.0%} of the time</h3>"
    yield _bar(parts)
    notes = [f"{num:,} {name}" for num, name in ((runner.failures, "failures"), (runner.restarts, "restarts")) if num]
    if notes:
        yield f"<p>{', '.join(notes)}</p>"
    history = [after for after in runner.history if after.seconds > 0]
    if len(runner.history) > 1 and history:
        steps = [(before, after) for before, after in pairwise(runner.history) if after.seconds > before.seconds]
        rates = [(b.seconds, (b.datapoints - a.datapoints) / (b.seconds - a.seconds)) for a, b in steps]
        title = (
            f"It received {runner.datapoints:,} datapoints in {runner.consumer_seconds:.3g} seconds, "
            f"{runner.datapoints_per_second:,.4g} per second"
        )
        yield _lines(title, "datapoints per second", rates)
    if runner.workers:
        seconds = sum(worker.seconds for worker in runner.workers)
        busy = sum(worker.busy_seconds for worker in runner.workers) / (seconds or 1.0)
        who = "The worker was" if len(runner.workers) == 1 else f"The {len(runner.workers)} workers were"
        yield f"<h3>{who} busy {busy:.0%} of the time</h3>"
        if len(runner.history) > 1:
            yield _timeline(runner)
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
    windows = [(moment.seconds, 100 * moment.window) for moment in runner.history]
    if len(windows) > 1 and any(value for _, value in windows):
        mean = sum(value for _, value in windows) / len(windows)
        yield _lines(f"{mean:.0f}% of the workers' windows were in use, on average", "% in use", windows, 100.0)


# -- Charts ------------------------------------------------------------------------------------------------------------


def ticks(top: float) -> list[float]:
    """Round numbers from 0 up to `top`: four to eight, equally far apart.

    Args:
        top: The highest value of an axis, above 0.
    """
    step = 10.0 ** math.floor(math.log10(top / 3))
    step *= next(factor for factor in (5, 2, 1) if top / (step * factor) >= 3 - 1e-9)
    return [k * step for k in range(int(top / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:,.6g}"


def _seconds_axis(end: float) -> str:
    marks = "".join(f'<span style="left:{100 * tick / end:.2f}%">{_number(tick)}</span>' for tick in ticks(end))
    return f'<div class="x">{marks}</div><div class="unit">seconds since the workers were started</div>'


def _lines(title: str, unit: str, points: Sequence[tuple[float, float]], top: float | None = None) -> str:
    """A line over seconds, between axes with ticks."""
    end = max([seconds for seconds, _ in points] + [1e-9])
    highest = top or 1.05 * max([value for _, value in points] + [1e-9])
    marks = ticks(highest)
    labels = "".join(f'<span style="bottom:{100 * tick / highest:.2f}%">{_number(tick)}</span>' for tick in marks)
    widest = max(map(_number, marks), key=len)
    grid = "".join(f"M0 {100 - 100 * tick / highest:.2f}H100" for tick in marks[1:])
    places = " ".join(f"{100 * seconds / end:.2f},{100 - 100 * value / highest:.2f}" for seconds, value in points)
    return (
        f'<h3>{escape(title)}</h3><div class="chart lines"><div class="unit">{unit}</div>'
        f'<div class="y"><i>{widest}</i>{labels}</div><div class="plot">'
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        f'<path class="grid" d="{grid}"/><polyline class="curve" points="{places}"/></svg></div>'
        f"{_seconds_axis(end)}</div>"
    )


def _bar(parts: dict[str, tuple[float, str]]) -> str:
    """The parts of the consumer's time, one beside the other, with a scale in percent."""
    rectangles, start = [], 0.0
    for part, colour in parts.values():
        rectangles.append(f'<rect class="fill-{colour}" x="{100 * start:.2f}" width="{100 * part:.2f}" height="1"/>')
        start += part
    marks = "".join(f'<span style="left:{k}%">{k}%</span>' for k in (0, 25, 50, 75, 100))
    return (
        '<div class="chart rows"><div class="y"><span>consumer</span></div><div class="plot" style="height:18px">'
        '<svg role="img" aria-label="the time of the consumer" viewBox="0 0 100 1" preserveAspectRatio="none">'
        f'{"".join(rectangles)}</svg></div><div class="x">{marks}</div></div>'
        f"{_keys({f'{name} {part:.0%}': colour for name, (part, colour) in parts.items() if part >= 0.005})}"
    )


def _timeline(runner: RunnerStatistics) -> str:
    """A row per worker with its states over time."""
    history = runner.history
    step = max(1, -(-len(history) // _MAX_INTERVALS))
    moments = [*history[:-1:step], history[-1]]
    end = max(moments[-1].seconds, 1e-9)
    rectangles, shown = [], set()
    for before, after in pairwise(moments):
        for k, parts in enumerate(intervals(before, after)):
            start = before.seconds
            for name, seconds in parts:
                width = 100 * seconds / end
                if width >= 0.005:
                    shown.add(name)
                    rectangles.append(
                        f'<rect class="fill-{_COLOURS[name]}" x="{100 * start / end:.3f}" y="{k + 0.08:.2f}" '
                        f'width="{width:.3f}" height=".84"/>'
                    )
                start += seconds
    num = max(1, len(runner.workers), *(len(moment.workers) for moment in moments))
    names = "".join(f"<span>worker {k}</span>" for k in range(num))
    return (
        f'<div class="chart rows"><div class="y">{names}</div><div class="plot" style="height:{18 * num}px">'
        f'<svg role="img" aria-label="workers over time" viewBox="0 0 100 {num}" preserveAspectRatio="none">'
        f"{''.join(rectangles)}</svg></div>{_seconds_axis(end)}</div>"
        f"{_keys({name: colour for name, colour in _COLOURS.items() if name in shown})}"
    )


def _keys(colours: dict[str, str]) -> str:
    keys = (f'<span class="key"><i class="fill-{colour}"></i>{name}</span>' for name, colour in colours.items())
    return f"<p>{''.join(keys)}</p>"


# -- Samples -----------------------------------------------------------------------------------------------------------


def _samples(samples: Sequence[Sequence[Sample]]) -> Iterator[str]:
    """The datapoints, side by side."""
    if not samples:
        return
    yield "<h2>Sample datapoints</h2>"
    shown = []
    for datapoint in samples:
        figures = []
        for sample in datapoint[:_MAX_VALUES]:
            caption = f"<figcaption>{escape(sample.name)}: {escape(sample.text)}</figcaption>"
            picture = ""
            if sample.png is not None:
                data = base64.b64encode(sample.png).decode()
                picture = f'<img alt="{escape(sample.name)}" src="data:image/png;base64,{data}">'
            figures.append(f"<figure>{picture}{caption}</figure>")
        shown.append(f"<div>{''.join(figures)}</div>")
    yield f'<div class="samples">{"".join(shown)}</div>'


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
