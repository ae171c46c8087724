"""The HTML report in a headless Chromium. Needs PyQt6-WebEngine: ``make test-browser``."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dataflow import BatchData, DataFromList, MapData, MultiProcessRunner
from dataflow.reports.verdict import verdict_of
from tests.support.waits import LIMIT

pytest.importorskip("PyQt6.QtWebEngineCore", exc_type=ImportError)

BROWSER = Path(__file__).with_name("browser.py")


def opened(path):
    """What a browser without a network shows of a page."""
    command = [sys.executable, str(BROWSER), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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
    chain, consumer, workers = map(cells, content["tables"])
    (runner,) = statistics.runners
    assert [row["node"] for row in chain] == [node.prefix + node.node for node in statistics.nodes]
    assert chain[runner.node]["datapoints/s"] == f"{runner.datapoints_per_second:,.4g}"
    assert consumer[0]["datapoints"] == "200"
    assert consumer[0]["consumer waits"] == f"{runner.waiting_seconds / runner.consumer_seconds:.0%}"
    assert [row["pid"] for row in workers] == [str(worker.pid or "") for worker in runner.workers]
    assert sum(int(row["datapoints"]) for row in workers) == sum(worker.datapoints for worker in runner.workers)
    assert all(content["drawn"])
    assert content["images"] == [True] * 3


def test_the_browser_blocks_the_network_and_reports_errors(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<img src="http://127.0.0.1:9/picture.png"><p class="verdict"></p><p id="statistics"></p>'
        "<script>console.error('an error')</script>"
    )
    found = opened(page)
    assert "an error" in found["console"]
    assert found["blocked"] == ["http://127.0.0.1:9/picture.png"]
    assert found["content"]["images"] == [False]
