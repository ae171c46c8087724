"""The page of a report: of made-up figures, and in a headless Chromium if there is one (``make test-browser``)."""

import dataclasses
import html.parser
import json
import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from dataflow import BatchData, DataFromList, MapData, MultiProcessRunner
from dataflow.observe.figures import FlowStatistics, NodeStatistics
from dataflow.observe.report_page import Sample, page_of, png_of, ticks
from dataflow.observe.report_text import report_text
from dataflow.observe.verdict import verdict_of
from tests.observe.made_up import MADE, flow, runner, workers
from tests.support.browser import open_pages
from tests.support.waits import LIMIT


class Tags(html.parser.HTMLParser):
    VOID = {"meta", "link", "img", "rect", "polyline", "path"}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.open, self.found, self.figures, self.texts = [], [], "", []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and not self.figures:
            self.figures = data
        self.texts.append(data.strip())


def test_the_page_contains_its_figures_and_needs_no_network():
    odd = FlowStatistics((NodeStatistics("MapData(func=</script><b>)"), *MADE.nodes[1:]), MADE.runners)
    png = png_of(np.zeros((8, 8), np.uint8))
    page = page_of(odd, [[Sample("0", "uint8 (8, 8)", png), Sample("<1>", "text")]])
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert json.loads(tags.figures) == json.loads(json.dumps(dataclasses.asdict(odd)))
    addresses = [value for _, attrs in tags.found for name, value in attrs.items() if name in {"src", "href"}]
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert not re.search("https?://", page)
    assert "<b>" not in page.split("<script", maxsplit=1)[0]
    assert html.escape(verdict_of(odd).text) in page


def read(statistics, samples=()):
    tags = Tags()
    tags.feed(page_of(statistics, samples))
    return tags


def test_each_chart_has_its_answer_as_title_axes_with_units_and_names_of_workers():
    texts = read(MADE).texts
    for text in (
        "MapData(func=decode) takes 84% of the workers' time",
        "The consumer waited 90% of the time",
        "It received 2,000 datapoints in 10 seconds, 200 per second",
        "datapoints per second",
        "The 2 workers were busy 90% of the time",
        "worker 0",
        "worker 1",
        "50% of the workers' windows were in use, on average",
        "seconds since the workers were started",
        "3 failures, 1 restarts",
        "waits 90%",
    ):
        assert text in texts
    marks = [text for text in texts if text in {"0", "2", "4", "6", "8", "10"}]
    assert marks.count("10") == 3  # seconds below each chart over time
    assert {"0", "2", "4", "6", "8", "10"} == set(marks)


def test_columns_and_charts_of_zeros_are_left_out():
    unused = replace(MADE.runners[0], history=tuple(replace(at, window=0.0) for at in MADE.runners[0].history))
    texts = read(flow(unused)).texts
    assert "window full" in texts
    assert not {"memory full", "no task", "no processor", "reads the input 0%"} & set(texts)
    assert "% in use" not in texts


@pytest.mark.parametrize(
    ("waiting", "colour"), [(0.9, "bad"), (0.02, "good"), (None, "unknown")], ids=["bad", "good", "unknown"]
)
def test_the_colour_of_the_verdict_says_good_or_bad(waiting, colour):
    made = MADE if waiting == 0.9 else flow(runner(workers(2, busy=0.4, blocked=0.6), waiting=waiting or 0.0))
    if waiting is None:
        made = FlowStatistics(made.nodes)
    boxes = [attrs["class"] for tag, attrs in read(made).found if tag == "div" and "class" in attrs]
    assert boxes[0] == colour


def test_the_text_is_in_the_page_with_lines_that_are_not_cut_off():
    texts = "\n".join(read(MADE).texts)
    (text,) = [part for part in page_of(MADE).split("<pre") if part.startswith(' id="text"')]
    lines = html.unescape(text.partition(">")[2].partition("</pre>")[0]).splitlines()
    assert max(map(len, lines)) <= 110
    assert " ".join(lines).split() == report_text(MADE).split()
    assert "Copy" in texts


@pytest.mark.parametrize("top", [1e-9, 0.3, 1.0, 2.99, 3.0, 7.2, 10.0, 99.9, 1250.0, 8e12])
def test_ticks_are_round_numbers_up_to_the_top(top):
    marks = ticks(top)
    assert 4 <= len(marks) <= 8
    assert marks[0] == 0 and marks[-1] <= top * (1 + 1e-9) and top - marks[-1] < marks[1]
    assert f"{marks[1]:.0e}"[0] in "125" and f"{marks[1]:.6e}"[2:8] == "000000"


# -- pictures ----------------------------------------------------------------------------------------------------------


def decoded(png):
    """Width, height, colour type and rows of a PNG without filters."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    (size,) = struct.unpack(">I", png[33:37])
    data = zlib.decompress(png[41 : 41 + size])
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = np.frombuffer(data, np.uint8).reshape(height, 1 + width * channels)
    assert depth == 8
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


def test_arrays_that_look_like_images_become_pictures():
    image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    assert (decoded(png_of(image)) == image).all()
    assert (decoded(png_of(image.transpose(2, 0, 1))) == image).all()
    assert (decoded(png_of(image[:, :, 0]))[:, :, 0] == image[:, :, 0]).all()
    assert decoded(png_of(image[:, :, :1])).shape == (5, 6, 1)
    assert decoded(png_of(image / 255.0)).max() == 255
    assert decoded(png_of(image[:, :, 0] > 3)).min() == 0
    assert decoded(png_of(np.zeros((1000, 500, 4), np.uint8))).shape == (167, 84, 4)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 100)),
        np.zeros(100),
        np.zeros((5, 5, 5, 5)),
        np.zeros((8, 8, 2)),
        np.zeros((8, 8), "i8"),
        np.full((8, 8), np.nan),
        np.full((8, 8), "a"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_other_arrays_do_not(array):
    assert png_of(array) is None


# -- in a browser ------------------------------------------------------------------------------------------------------


READ = """
(() => ({
    figures: document.getElementById("statistics").textContent,
    verdict: document.querySelector(".verdict").textContent,
    tables: [...document.querySelectorAll("table")].map(
        table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))),
    labels: [...document.querySelectorAll("svg")].map(svg => svg.getAttribute("aria-label")),
    drawn: [...document.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().width > 0),
    titles: [...document.querySelectorAll("h2, h3")].map(title => title.textContent),
    label: document.getElementById("copy").textContent,
    width: innerWidth,
    scrolled: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor,
    images: [...document.images].map(image => image.complete && image.naturalWidth > 0),
}))()
"""


@pytest.fixture
def browser():
    """There is a browser: PyQt6-WebEngine is installed."""
    pytest.importorskip("PyQt6.QtWebEngineCore", exc_type=ImportError)


def opened(path, width=1000, scheme="light"):
    """What a browser without a network shows of a page, after a click on the button that copies the text."""
    (found,) = open_pages([path.as_uri()], READ, width=width, scheme=scheme, click="copy", timeout=LIMIT)
    return found


def cells(table):
    """The cells of a table, by the head of their column."""
    head, *rows = table
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.usefixtures("browser")
def test_a_report_of_a_real_run_opens_without_network_and_errors(tmp_path):
    images = DataFromList([[np.full((8, 8, 3), k, np.uint8), "</script>"] for k in range(200)], shuffle=False)
    page = tmp_path / "report.html"
    with BatchData(MultiProcessRunner(MapData(images, list), 10, 2, strict=True), 4) as df:
        list(df)
    df.report(page)  # closed: the figures no longer change
    statistics = df.statistics()
    found = opened(page)
    assert found["console"] == []
    assert found["blocked"] == []
    content = found["content"]
    assert json.loads(content["figures"]) == json.loads(json.dumps(dataclasses.asdict(statistics)))
    assert content["verdict"] == verdict_of(statistics).text
    chain, workers = map(cells, content["tables"])
    (runner,) = statistics.runners
    assert [row["node"] for row in chain] == [node.prefix + node.node for node in statistics.nodes]
    assert chain[runner.node]["datapoints/s"] == f"{runner.datapoints_per_second:,.4g}"
    waited = f"{runner.waiting_seconds / runner.consumer_seconds:.0%}"
    assert f"The consumer waited {waited} of the time" in content["titles"]
    assert [row["pid"] for row in workers] == [str(worker.pid or "") for worker in runner.workers]
    assert sum(int(row["datapoints"]) for row in workers) == sum(worker.datapoints for worker in runner.workers)
    assert all(content["drawn"])
    assert content["images"] == [True] * 3
    assert content["label"] == "Copied"
    assert found["clipboard"].split() == df.report().split()


@pytest.mark.usefixtures("browser")
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_follows_the_colours_of_the_system(width, scheme, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(page_of(flow(runner(workers(8, busy=0.9, blocked=0.1), waiting=0.9))))
    content = opened(page, width, scheme)["content"]
    assert content["width"] == width
    assert content["scrolled"] <= width
    brightness = sum(map(int, re.findall(r"\d+", content["background"])[:3])) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60


@pytest.mark.usefixtures("browser")
def test_the_browser_blocks_the_network_and_reports_errors(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<img src="http://127.0.0.1:9/picture.png"><p class="verdict"></p><p id="statistics"></p>'
        '<button id="copy"></button>'
        "<script>console.error('an error')</script>"
    )
    found = opened(page)
    assert "an error" in found["console"]
    assert found["blocked"] == ["http://127.0.0.1:9/picture.png"]
    assert found["content"]["images"] == [False]
