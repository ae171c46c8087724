"""Nodes that run outside of the workers have shares while a report is asked for."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiThreadMapData,
    MultiThreadRunner,
    ProxyDataFlow,
)
from dataflow.observe.verdict import verdict_of
from dataflow.runners.supervisor import Supervisor
from tests.support.waits import wait_until


def numbers(n=100_000):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def same(dp):
    return dp


def slow(dp):
    # Of the processor: while other processes have it, all else that the consumer does takes longer, too.
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass
    return dp


IMAGE = np.zeros((256, 256, 4))


def image(_):
    return [IMAGE]


class Slow(ProxyDataFlow):
    def __iter__(self):
        for dp in self.ds:
            yield slow(dp)


def threads():
    return MultiThreadRunner(lambda: MapData(numbers(), same), 10, 2, strict=True)


def samplers():
    return [thread for thread in threading.enumerate() if thread.name == "dataflow-sampler"]


def step_until(condition, steps):
    """Make steps until `condition` holds. Without pauses, which would count as the consumer's time."""
    for _ in range(500):
        for _ in range(4):  # the figures themselves take time, too
            next(steps)
        if condition():
            return
    raise AssertionError("2,000 steps did not suffice")


def node_named(df, text):
    return next(node for node in df.statistics().nodes if text in node.node)


FLOWS = {
    "a map above processes": lambda: MapData(MultiProcessRunner(MapData(numbers(), same), 50, 1, strict=True), slow),
    "a map above threads": lambda: MapData(threads(), slow),
    "one map of two": lambda: MapData(MapData(threads(), same), slow),
    "a user's node": lambda: BatchData(Slow(threads()), 2),
    "a batch": lambda: BatchData(MultiThreadRunner(lambda: MapData(numbers(), image), 50, 1, strict=True), 16),
    "below a map of processes": lambda: MultiProcessMapData(MapData(numbers(), slow), 1, same, strict=True),
}


@pytest.mark.parametrize("name", FLOWS)
def test_the_node_that_takes_the_consumers_time_has_the_share(name):
    text = {"a user's node": "Slow()", "a batch": "BatchData"}.get(name, "func=slow")
    with FLOWS[name]() as df:
        steps = iter(df)

        step_until(lambda: (node_named(df, text).share or 0) > 0.6, steps)
        assert node_named(df, text).runner is None
        statistics = df.statistics()
        others = [node.share for node in statistics.nodes if node.runner is None and text not in node.node]
        assert all((share or 0) < 0.4 for share in others)
    assert not samplers()


def test_the_verdict_names_the_node_above_the_runner():
    with MapData(threads(), slow) as df:
        steps = iter(df)
        step_until(lambda: verdict_of(df.statistics()).bottleneck == "consumer", steps)
        step_until(lambda: "MapData(func=slow) takes" in df.report(), steps)
    assert "MapData(func=slow) takes" in df.report()  # after it was closed


@pytest.mark.parametrize("name", ["a map above threads", "below a map of processes"])
def test_figures_of_a_closed_flow_are_no_less_than_before_and_closing_does_not_count(name, monkeypatch):
    stop = Supervisor.stop
    # The workers take long to end: for the sampler longer than all steps before.
    monkeypatch.setattr(Supervisor, "stop", lambda *args: (threading.Event().wait(2), stop(*args)))
    with FLOWS[name]() as df:
        steps = iter(df)
        step_until(lambda: (node_named(df, "func=slow").share or 0) > 0.7, steps)
        before = df.statistics().runners[0]
    after = df.statistics().runners[0]
    assert after.working_seconds >= before.working_seconds
    assert after.consumer_seconds < before.consumer_seconds + 1
    assert node_named(df, "func=slow").share > 0.6


def test_without_a_report_nothing_is_sampled():
    with MapData(threads(), same) as df:
        steps = iter(df)
        next(steps)
        assert not samplers()
        df.statistics()
        assert samplers()
        df.close()
        assert not samplers()
        assert df.statistics() and not samplers()  # nobody iterates it


def test_a_runner_without_nodes_above_it_is_not_sampled():
    with threads() as df:
        steps = iter(df)
        next(steps)
        df.report()
        assert not samplers()
        assert all(node.share is None for node in df.statistics().nodes if node.runner is None)


def test_a_thread_that_does_not_iterate_waits_for_samples():
    gate, goes_on = threading.Event(), threading.Event()

    def stops(dp):
        gate.set()
        goes_on.wait(30)
        return dp

    with MapData(threads(), stops) as df:
        consumer = threading.Thread(target=lambda: next(iter(df)), daemon=True)
        consumer.start()
        assert gate.wait(30)
        wait_until(lambda: "100%" in df.report().splitlines()[1], 30, "the first report may find too few samples")
        goes_on.set()
        consumer.join(30)


def test_the_thread_ends_with_the_flow():
    df = MapData(MultiThreadMapData(numbers(), 1, same, strict=True), same)
    steps = iter(df)
    next(steps)
    df.statistics()
    assert samplers()
    gone = weakref.ref(df)
    del df, steps
    gc.collect()
    wait_until(lambda: gone() is None, 30, "the sampler holds it for a moment")
    wait_until(lambda: not samplers(), 30, "the thread ends")


def test_no_datapoint_is_kept_alive():
    class Source(DataFlow):
        def __iter__(self):
            for _ in range(100_000):
                yield [np.zeros(8)]

    with MapData(MultiThreadRunner(Source, 10, 1, strict=True), slow) as df:
        steps = iter(df)
        step_until(lambda: node_named(df, "func=slow").share, steps)
        dp = next(steps)
        array = weakref.ref(dp[0])
        del dp
        step_until(lambda: array() is None, steps)
        assert samplers()


def test_samples_begin_again_with_new_workers():
    with MapData(threads(), slow) as df:
        steps = iter(df)
        step_until(lambda: node_named(df, "func=slow").share, steps)
        df.reset_state()
        steps = iter(df)
        next(steps)
        assert node_named(df, "func=slow").share is None


def test_statistics_have_no_shares_where_no_thread_can_be_started(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    with MapData(threads(), slow) as df:
        steps = iter(df)
        next(steps)
        monkeypatch.setattr(threading.Thread, "start", refused)
        assert all(node.share is None for node in df.statistics().nodes if node.runner is None)
        monkeypatch.undo()
