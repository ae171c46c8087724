"""The HTML report in a headless Chromium. Needs PyQt6-WebEngine: ``make test-browser``."""

import dataclasses
import json
import re

import numpy as np
import pytest

from dataflow import BatchData, DataFromList, MapData, MultiProcessRunner
from dataflow.observe.report_page import page_of
from dataflow.observe.verdict import verdict_of
from tests.observe.made_up import flow, runner, workers
from tests.support.browser import open_pages
from tests.support.waits import LIMIT

pytest.importorskip("PyQt6.QtWebEngineCore", exc_type=ImportError)

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


def opened(path, width=1000, scheme="light"):
    """What a browser without a network shows of a page, after a click on the button that copies the text."""
    (found,) = open_pages([path.as_uri()], READ, width=width, scheme=scheme, click="copy", timeout=LIMIT)
    return found


def cells(table):
    """The cells of a table, by the head of their column."""
    head, *rows = table
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.slow
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


@pytest.mark.slow
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
