"""The commands `report`, `profile` and `top`."""

import json
import re
import sys
import time
import types

import pytest

from dataflow import DataFromList, MapData, MultiThreadRunner
from dataflow.__main__ import main


def make_flow():
    return MultiThreadRunner(lambda: MapData(DataFromList([[k] for k in range(50)]), list), 10, 1, strict=True)


@pytest.fixture(autouse=True)
def module(monkeypatch):
    made = types.ModuleType("feeding_of_a_test")
    made.__spec__ = types.SimpleNamespace(name="feeding_of_a_test", parent="", origin=None)
    made.make_flow, made.number, made.empty = make_flow, 3, DataFromList([])
    monkeypatch.setitem(sys.modules, "feeding_of_a_test", made)
    return made


def test_report_prints_the_verdict_and_writes_files(capsys, tmp_path):
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    arguments = ["--seconds", "0.2", "--html", str(page), "--trace", str(trace)]
    assert main(["report", "feeding_of_a_test:make_flow", *arguments]) == 0
    out = capsys.readouterr().out
    assert "MultiThreadRunner" in out
    assert str(page) in out
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]


def slow(dp):
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    return dp


def test_report_has_the_shares_of_nodes_above_the_workers(capsys, module):
    module.make_flow = lambda: MapData(make_flow(), slow)
    assert main(["report", "feeding_of_a_test:make_flow", "--seconds", "3"]) == 0
    assert re.search(r"^MapData\(func=slow\) +\d+%", capsys.readouterr().out, re.MULTILINE)


def test_profile_prints_a_table(capsys):
    assert main(["profile", "feeding_of_a_test:make_flow", "--seconds", "0.1"]) == 0
    assert "predicted datapoints/s" in capsys.readouterr().out


def test_top_shows_the_report(capsys):
    pytest.importorskip("rich")
    assert main(["top", "feeding_of_a_test:make_flow", "--seconds", "0.2"]) == 0
    assert "MultiThreadRunner" in capsys.readouterr().out


def test_top_names_the_extra_that_is_missing(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.live", None)
    assert main(["top", "feeding_of_a_test:make_flow"]) == 1
    assert "dataflow-runners[top]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "profile", "top", "speed", "send"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_at_all:flow", "there is no module 'no_such_module_at_all'"),
        ("feeding_of_a_test:missing", "there is no 'missing' in feeding_of_a_test"),
        ("feeding_of_a_test:number", "is a int, not a dataflow"),
        ("feeding_of_a_test", "name a flow as MODULE:FLOW"),
    ],
)
def test_a_flow_that_is_not_there_is_a_sentence(command, name, message, capsys):
    address = ["tcp://127.0.0.1:1"] if command == "send" else []
    assert main([command, name, *address]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_an_empty_flow_is_a_sentence(capsys):
    assert main(["report", "feeding_of_a_test:empty", "--seconds", "0.1"]) == 1
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "top"])
def test_a_time_in_which_nothing_can_be_measured_is_refused(command, capsys):
    if command == "top":
        pytest.importorskip("rich")
    for seconds in ("0", "-1", "nan"):
        assert main([command, "feeding_of_a_test:make_flow", "--seconds", seconds]) == 1
        assert "--seconds must be a number of seconds > 0" in capsys.readouterr().err
