"""Figures of a flow, gathered from its nodes; `statistics`, `report` and `trace` of flows at any time."""

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    JoinData,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ProxyDataFlow,
    WorkerDied,
)
from dataflow.observe.figures import Figures
from dataflow.observe.gathering import statistics_of
from dataflow.observe.verdict import verdict_of
from dataflow.protocol.state import state_of
from dataflow.system.session import Session
from tests.observe.made_up import runner, workers
from tests.support.waits import wait_until


def numbers(n=60):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def work(dp):
    return [dp[0] + sum(range(2000))]


RUNNERS = {
    "processes over ZeroMQ": lambda: MultiProcessRunnerZMQ(MapData(numbers(), work), 2, strict=True),
    "processes over pipes, default": lambda: MultiProcessRunner(MapData(numbers(), work), 10, 1),
    "spawned": lambda: MultiProcessRunner(MapData(numbers(), work), 10, 1, strict=True, context="spawn"),
    "threads": lambda: MultiThreadRunner(lambda: MapData(numbers(), work), 10, 2, strict=True),
    "map of processes": lambda: MultiProcessMapData(numbers(), 2, work, strict=True),
    "map of threads": lambda: MultiThreadMapData(numbers(), 2, work, strict=True),
}

each_runner = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name == "spawned")) for name in RUNNERS]
)


@each_runner
def test_figures_add_up_after_a_pass(name):
    with BatchData(RUNNERS[name](), 4) as df:
        assert df.statistics().runners == ()  # before the first pass
        assert len(list(df)) == 15
        statistics = df.statistics()
    (runner,) = statistics.runners
    assert statistics.nodes[runner.node].node.startswith(runner.name)
    assert runner.backend == ("thread" if "thread" in name else "process")
    assert runner.reads_input == ("map" in name)
    assert runner.datapoints >= 60
    assert sum(worker.datapoints for worker in runner.workers) >= 60
    assert all((worker.pid == os.getpid()) == (runner.backend == "thread") for worker in runner.workers)
    # 0 if every result is there when the consumer comes to it: where it was not run for a moment.
    assert 0 <= runner.waiting_seconds <= runner.consumer_seconds
    assert 0 < runner.consumer_seconds <= runner.seconds + 1e-3
    assert all(worker.busy_seconds > 0 for worker in runner.workers if worker.datapoints)
    assert statistics.nodes[-1].runner == (None if runner.reads_input else 0)
    assert json.loads(json.dumps(dataclasses.asdict(statistics)))["runners"][0]["datapoints"] == runner.datapoints
    after = df.statistics().runners[0]  # the last figures stay
    assert after.datapoints >= 60
    assert df.report()


def test_no_second_of_the_consumer_counts_twice(monkeypatch):
    check = Session.check

    def check_late(session, *arguments):
        if not state_of(df).metrics._is_inside:  # the first thing that the consumer does when it asks
            threading.Event().wait(0.02)
        check(session, *arguments)

    def work_late(dp):
        threading.Event().wait(0.05)
        return dp

    with MultiThreadRunner(lambda: MapData(numbers(20), work_late), 1, 1, strict=True) as df:
        datapoints = iter(df)
        next(datapoints)
        monkeypatch.setattr(Session, "check", check_late)
        began = time.perf_counter()
        before = df.statistics().runners[0].consumer_seconds
        assert len(list(datapoints)) == 19
        seconds = df.statistics().runners[0].consumer_seconds - before
        assert seconds <= time.perf_counter() - began


class Gate(ProxyDataFlow):
    """Stops before datapoint 3, until it is closed."""

    def __iter__(self):
        for k, dp in enumerate(self.ds):
            if k == 3:
                threading.Event().wait(60)
            yield dp


def test_figures_are_read_while_the_flow_runs():
    with MultiProcessRunner(Gate(numbers()), 10, 1) as df:
        steps = iter(df)
        found = []

        def read():
            taken = [next(steps) for _ in range(3)]
            with contextlib.suppress(WorkerDied):
                next(steps, taken)

        other = threading.Thread(target=read, daemon=True)
        other.start()
        wait_until(lambda: df.statistics().runners and df.statistics().runners[0].datapoints == 3, 30, "3 datapoints")
        wait_until(lambda: df.statistics().runners[0].workers[0].busy_seconds > 0.2, 30, "what is under way counts")
        wait_until(lambda: df.statistics().runners[0].waiting_seconds > 0.1, 30, "the consumer waits")
        found.append(df.report())
        os.kill(df.statistics().runners[0].workers[0].pid, signal.SIGKILL)
        other.join(30)
        assert df.statistics().runners[0].workers[0].datapoints == 3  # the figures of a killed worker survive
        assert "MultiProcessRunner" in df.report()


def test_restarts_and_failures_are_counted(tmp_path):
    def fails(dp):
        if dp[0] == 5 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return [1 // (dp[0] % 10)]

    flag = str(tmp_path / "killed")
    df = MultiProcessRunner(MapData(numbers(), fails), 10, 1, strict=True, max_restarts=1, max_failures=10)
    with df:
        assert len(list(df)) == 54
        runner = df.statistics().runners[0]
    assert runner.restarts == 1
    assert runner.failures == 6


def test_a_runner_inside_of_workers_is_summed():
    inner = MultiThreadMapData(MapData(numbers(400), work), 2, work, strict=True)
    with MultiProcessRunner(inner, 10, 2) as df:
        steps = iter(df)

        def found():
            next(steps)
            runners = df.statistics().runners
            return len(runners) == 2 and runners[1].num_outer == 2 and runners[1].datapoints > 20

        wait_until(found, 30, "figures of both inner runners")
        outer, inside = df.statistics().runners
        assert inside.outer == 0
        assert inside.name == "MultiThreadMapData"
        assert inside.node == 1
        assert inside.datapoints_per_second > 0 and inside.workers == ()
        assert "MultiThreadMapData" in df.report()
        assert outer.outer is None


def long_work(dp):
    return [dp[0] + sum(range(30_000))]


class Own(ProxyDataFlow):
    def __iter__(self):
        for dp in self.ds:
            yield long_work(dp)


WITHOUT_WORKERS = {
    "a map": lambda: BatchData(MapData(numbers(), long_work), 2),
    "a runner without workers": lambda: MultiProcessRunner(MapData(numbers(), long_work), 5, 0),
    "a user's node": lambda: Own(numbers()),
}


@pytest.mark.parametrize("name", WITHOUT_WORKERS)
def test_a_flow_without_workers_is_sampled_in_the_loop_and_judged(name, tmp_path):
    df = WITHOUT_WORKERS[name]()
    dearest = "Own()" if name == "a user's node" else "MapData(func=long_work)"

    def found():
        for k, _ in enumerate(df):
            if k == 0:
                df.statistics()  # from now on it is sampled
        shares = {node.node: node.share for node in df.statistics().nodes}
        return shares[dearest]

    wait_until(found, 30, "shares")
    df.close()
    shares = {node.node: node.share or 0 for node in df.statistics().nodes}  # they stay
    assert max(shares, key=shares.get) == dearest
    assert sum(shares.values()) <= 1.001
    assert f"{dearest} takes {shares[dearest]:.0%}" in df.report()
    assert verdict_of(df.statistics()).bottleneck == "flow"
    df.report(tmp_path / "report.html")
    assert (
        f"{dearest} takes {shares[dearest]:.0%} of the consumer&#x27;s time" in (tmp_path / "report.html").read_text()
    )


def test_only_the_loop_is_sampled():
    df = MapData(numbers(10), work)
    state = state_of(df)
    iterator = iter(df)
    next(iterator)
    assert state.session.iterating == (threading.get_ident(),)
    other = iter(df)
    next(other)
    del iterator  # an earlier iteration that ends
    assert state.session.iterating == (threading.get_ident(),)
    del other
    assert state.session.iterating is None
    list(df)
    assert state.session.iterating is None


def test_a_flow_without_workers_says_what_to_do():
    df = MapData(numbers(), work)
    list(df)
    assert df.statistics().runners == ()
    assert "dataflow.profile(df)" in df.report()
    assert MultiProcessRunner(numbers(), 5, 0).report()
    assert BatchData.__new__(BatchData).report()


def test_a_page_and_a_trace_are_written(tmp_path):
    images = DataFromList([[np.full((8, 8, 3), k, np.uint8), k] for k in range(20)], shuffle=False)
    with MultiThreadRunner(lambda: images.__class__(images.lst, shuffle=False), 10, 1, strict=True) as df:
        list(df)
        page = tmp_path / "report.html"
        assert df.report(page) == str(page)
        df.trace(tmp_path / "trace.json")
        statistics = df.statistics()
    text = page.read_text("utf-8")
    figures = json.loads(text.partition('id="statistics">')[2].partition("</script>")[0].replace("\\u003c", "<"))
    assert figures["runners"][0]["datapoints"] == statistics.runners[0].datapoints
    assert text.count("<img") == 3
    assert json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]


def test_a_page_of_a_closed_flow_starts_no_worker(tmp_path):
    with BatchData(MultiProcessRunner(MapData(numbers(), work), 10, 1, strict=True), 4) as df:
        list(df)
    before = df.statistics()
    df.report(tmp_path / "report.html")
    assert df.statistics() == before
    assert "<h2>Sample datapoints</h2>" in (tmp_path / "report.html").read_text("utf-8")


def asked(df, folder):
    """All that can be asked for, from a thread that does not iterate. Return the text of the report."""
    found = []

    def ask():
        dataclasses.asdict(df.statistics())
        df.report(folder / "report.html")
        df.trace(folder / "trace.json")
        json.loads((folder / "trace.json").read_text("utf-8"))
        found.append(df.report())

    other = threading.Thread(target=ask)
    other.start()
    other.join(60)
    assert found, "the other thread raised"
    return found[0]


@each_runner
def test_a_report_is_given_at_any_time(name, tmp_path):
    df = BatchData(RUNNERS[name](), 4)
    assert "Nothing was measured" in asked(df, tmp_path)
    assert next(iter(df))
    assert df.statistics().runners[0].name in asked(df, tmp_path)  # in the middle of a pass
    df.close()
    assert df.statistics().runners[0].name in asked(df, tmp_path)


def test_a_report_is_given_after_a_kill(tmp_path):
    with BatchData(MultiProcessRunner(Gate(numbers()), 10, 1), 3) as df:
        steps = iter(df)
        next(steps)
        os.kill(df.statistics().runners[0].workers[0].pid, signal.SIGKILL)
        assert "MultiProcessRunner" in asked(df, tmp_path)
        with pytest.raises(WorkerDied):
            next(steps)
        assert "MultiProcessRunner" in asked(df, tmp_path)


@pytest.mark.parametrize("path", ["report.pdf", "report"])
def test_a_report_that_is_no_page_is_refused(path, tmp_path):
    with pytest.raises(ValueError, match=r"must end with \.html"):
        numbers().report(tmp_path / path)
    assert not list(tmp_path.iterdir())


def test_samples_that_cannot_be_made_are_left_out(tmp_path):
    def fails(dp):
        raise KeyError

    for ds in (MapData(numbers(), fails), DataFromGenerator(lambda: iter([[1]])), numbers(0)):
        ds.report(tmp_path / "report.html")


def test_a_users_node_may_use_these_names():
    class Own(DataFlow):
        statistics = report = trace = None

        def __iter__(self):
            yield [1]

    with MultiThreadRunner(Own, 5, 1) as df:
        next(iter(df))
        assert "Own()" in df.report()


def test_a_dead_worker_leaves_figures():
    def dies(dp):
        os._exit(3)

    with MultiProcessRunner(MapData(numbers(), dies), 10, 1) as df:
        with pytest.raises(WorkerDied):
            list(df)
        assert df.statistics().runners[0].datapoints == 0
        assert df.report()


def test_the_log_says_what_was_started_and_stopped(caplog):
    caplog.set_level("DEBUG", logger="dataflow")
    with MultiProcessRunner(numbers(), 10, 2, strict=True, max_bytes=1 << 20) as df:
        list(df)
        pids = [worker.pid for worker in df.statistics().runners[0].workers]
    texts = [(record.levelname, record.getMessage()) for record in caplog.records]
    started = next(text for level, text in texts if level == "INFO")
    assert started.startswith("MultiProcessRunner has started 2 processes over pipes")
    assert "pids" in started
    assert "1,048,576 bytes" in started
    assert any(pids) and all(str(pid) in started for pid in pids if pid)  # 0: a worker that has not begun
    assert any("has stopped its workers, after 60 datapoints" in text for _, text in texts)
    assert sum(level == "DEBUG" and text.startswith("worker ") for level, text in texts) == 2


# -- which runner a node runs in, and whose time it takes --------------------------------------------------------------


class Runs(ProxyDataFlow):
    """Stands for a node whose workers run what is below."""

    figures = None

    def _df_figures(self):
        return self.figures


@pytest.mark.parametrize("reads_input", [False, True])
def test_nodes_below_a_runner_in_a_worker_are_those_of_its_workers(reads_input):
    decode = MapData(numbers(2), list)
    inner = MultiProcessMapData(decode, 2, list) if reads_input else MultiProcessRunner(decode, 10, 2)  # never started
    other = MapData(numbers(2), list)
    joined = JoinData([inner, other])
    outer = Runs(joined)
    nodes = [joined, inner, decode, decode.ds, other, other.ds]
    inside = replace(runner(workers(2)), node=1, reads_input=reads_input, name="Inner")
    below = [3, 1] if reads_input else [0, 0]  # what runs in its workers is not seen from the outer one
    outer.figures = Figures(runner(workers(1)), nodes, [1, 1, *below, 2, 0], [inside])
    found = statistics_of(BatchData(outer, 2))
    assert [(one.name, one.node, one.outer) for one in found.runners] == [
        ("MultiProcessRunnerZMQ", 1, None),
        ("Inner", 3, 0),
    ]
    by_row = [(node.runner, node.share) for node in found.nodes[2:]]
    if reads_input:  # as a parallel map does, whose input stays outside of its workers
        assert by_row == [(0, 1 / 8), (0, 1 / 8), (0, 3 / 8), (0, 1 / 8), (0, 2 / 8), (0, 0)]
    else:
        assert by_row == [(0, 1 / 4), (0, 1 / 4), (1, None), (1, None), (0, 2 / 4), (0, 0)]


def test_rows_without_a_node_and_nodes_without_figures_have_none():
    class Broken(ProxyDataFlow):
        def _df_figures(self):
            raise AttributeError("before __init__")

    found = statistics_of(Broken(JoinData([numbers(2) for _ in range(100)])))
    assert found.runners == () and len(found.nodes) < 100


def test_a_runner_in_a_worker_that_the_chain_does_not_show_is_left_out():
    hidden = Runs(numbers(2))
    outer = Runs(numbers(2))
    inside = replace(runner(workers(1)), node=1)
    outer.figures = Figures(runner(workers(1)), [outer.ds, hidden], [1, 1], [inside])
    assert len(statistics_of(outer).runners) == 1
