"""Progress bars: over flows, and a text that says who waits."""

import itertools
import re

import pytest

from dataflow import DataFromList, MultiThreadRunner
from dataflow.observe.progress import Bar
from dataflow.observe.speed import TestDataSpeed
from tests.observe.made_up import Endless, Passes


@pytest.mark.parametrize(("make", "total"), [(lambda: Passes(4), 4), (Endless, None)])
def test_tqdm_takes_a_flow(make, total, capsys):
    with Bar(make(), unit="dp") as bar:
        for _ in itertools.islice(bar, 4):
            bar.set_postfix_str(bar.iterable.statistics().waits, refresh=False)
    assert bar.total == total
    assert "dp/s" in capsys.readouterr().err


def test_the_bar_shows_who_waits(capsys):
    def make():
        return DataFromList([[k] for k in range(40)])

    with MultiThreadRunner(make, 10, 1, strict=True) as ds:
        TestDataSpeed(ds).start()
    assert re.search(r"40/40.*dp/s, consumer waits \d+%, workers wait \d+%", capsys.readouterr().err)


def test_the_bar_of_a_flow_without_workers_shows_the_speed_only(capsys):
    TestDataSpeed(Passes(5)).start()
    assert "waits" not in capsys.readouterr().err
