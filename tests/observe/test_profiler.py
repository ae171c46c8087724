"""The profiler: costs of nodes, and predicted speeds, which are a pure function of these costs."""

import dataclasses
import itertools
import sys
import threading
import time
import types

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    JoinData,
    MapData,
    MixData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    ProxyDataFlow,
    ShuffleData,
)
from dataflow.observe import profiler
from dataflow.observe.profiler import Costs, predict, profile
from dataflow.protocol.datapoint import HOLE

SHORT = 0.08  # seconds
SIZED = object()


def numbers(n=40):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def heavy(dp):
    sum(range(50_000))
    return dp


def light(dp):
    return dp


def waits(dp):
    time.sleep(0.002)
    return dp


# -- prediction --------------------------------------------------------------------------------------------------------


def busy(seconds, **more):
    """A flow that computes in Python."""
    return Costs(seconds, seconds, seconds, **more)


def test_processes_scale_with_the_cores_and_threads_do_not():
    costs = busy(1e-2)
    assert predict(costs, 4, 4, "process") == pytest.approx(400, rel=0.1)
    assert predict(costs, 4, 8, "process") == pytest.approx(400, rel=0.05)
    assert predict(costs, 4, 4, "thread") == pytest.approx(100, rel=0.05)


def test_threads_scale_if_the_work_releases_the_lock():
    assert predict(Costs(1e-2, 1e-2, 1e-3), 4, 4, "thread") == pytest.approx(400, rel=0.05)


def test_work_that_waits_needs_more_workers_than_cores():
    costs = Costs(1e-2, 1e-4, 1e-4)
    for backend in ("process", "thread"):
        assert predict(costs, 2, 32, backend) == pytest.approx(3200, rel=0.1)


def test_work_that_costs_more_in_several_threads_is_predicted_slower_there_only():
    costs = Costs(1e-2, 1e-2, 5e-3)  # four threads take 20 ms each
    assert predict(costs, 4, 4, "thread") == pytest.approx(200, rel=0.05)
    assert predict(costs, 4, 4, "process") == pytest.approx(400, rel=0.05)


def test_messages_cost_most_where_each_datapoint_is_one():
    for backend, most in (("process", 1 / 130e-6), ("thread", 1 / 20e-6)):
        assert predict(Costs(5e-3, 1e-5, 1e-5), 2, 1000, backend) < most
    many = Costs(1e-6, 1e-6, 1e-6)  # hundreds of these are in a message
    assert predict(many, 2, 1, "process") > 400_000


def test_what_stays_in_the_consumer_and_what_is_sent_limits_the_speed():
    assert predict(busy(1e-2, consumer=5e-3), 64, 64, "process") == pytest.approx(200, rel=0.05)
    assert predict(busy(1e-3, send=1e-3, receive=1e-2), 64, 64, "process") == pytest.approx(100, rel=0.05)


def test_more_workers_are_never_predicted_to_be_slower():
    for costs in (busy(1e-3), Costs(1e-2, 1e-4, 1e-4), busy(1e-6, consumer=1e-6)):
        for backend in ("process", "thread"):
            rates = [predict(costs, 8, n, backend) for n in range(1, 33)]
            assert rates == sorted(rates)


# -- measurement -------------------------------------------------------------------------------------------------------


def test_the_costs_of_nodes_are_told_apart():
    df = BatchData(MapData(MapData(numbers(), heavy), light), 4)
    measured = profile(df, 5 * SHORT)  # enough samples for a share
    names = [node.node.partition("(")[0] for node in measured.nodes]
    assert names == ["BatchData", "MapData", "MapData", "DataFromList"]
    costs = {node.node: node for node in measured.nodes}
    assert costs["MapData(func=heavy)"].share > 0.7  # a sampler: less on a busy machine
    assert costs["MapData(func=light)"].share < 0.2
    assert sum(node.share for node in measured.nodes) == pytest.approx(1)
    assert sum(node.seconds for node in measured.nodes) == pytest.approx(measured.seconds_per_datapoint)
    assert costs["MapData(func=heavy)"].count == pytest.approx(4, abs=0.5)
    assert costs["MapData(func=heavy)"].nbytes == 8
    assert measured.datapoints > 0
    for text in ("MapData(func=heavy)", "predicted datapoints/s", "processes", "threads"):
        assert text in str(measured)


def test_a_map_that_also_batches_has_the_costs_of_its_function():
    measured = profile(MultiProcessMapAndBatchData(numbers(), 2, heavy, 4), SHORT)
    assert [node.node.partition("(")[0] for node in measured.nodes] == ["MultiProcessMapAndBatchData", "DataFromList"]
    assert sum(node.share for node in measured.nodes) == pytest.approx(1)
    assert measured.nodes[0].share > 0.5


def test_a_flow_that_waits_gets_many_workers():
    measured = profile(MapData(numbers(), waits), 0.2)
    assert measured.waiting > 0.3
    assert measured.recommended.num_workers >= 8
    assert {p.backend for p in measured.predictions} == {"process", "thread"}
    assert measured.recommended.kind == "runner"
    assert ('backend="thread"' in measured.recommended.code) == (measured.recommended.backend == "thread")


def test_workers_are_advised_against_only_if_none_of_the_predictions_is_faster():
    measured = profile(numbers(), SHORT)
    assert measured.recommended.kind == "none"
    best = max(p.datapoints_per_second for p in measured.predictions) * measured.seconds_per_datapoint
    assert f"{best:.2f} times the speed without workers is predicted" in str(measured)
    assert best < 1.1


@pytest.mark.parametrize("rate", [1.09, 1.11, 1.14, 1.28])
def test_what_is_predicted_and_what_is_recommended_agree(rate, monkeypatch):
    """The recommended number need not be the fastest: almost the best is enough."""
    fewest = 0.96 * rate

    def made_up(costs, cores, num_workers, backend):
        return (rate if num_workers > 1 else fewest) / costs.worker

    monkeypatch.setattr("dataflow.observe.profiler.predict", made_up)
    monkeypatch.setattr("dataflow.observe.profiler.available_cores", lambda: 2)
    measured = profile(numbers(), SHORT)
    assert (measured.recommended.kind == "none") == (rate < 1.1)


class Clock(threading.local):
    """A clock for each thread, which goes on as it is read; half of the time belongs to other programs."""

    seconds = 0.0

    def now(self):
        self.seconds += 1e-4
        return self.seconds

    def delayed(self):
        return self.seconds / 2


def test_the_time_that_other_programs_take_does_not_count(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(profiler, "_now", clock.now)
    monkeypatch.setattr(profiler, "_delayed", clock.delayed)

    def takes_2_ms(dp):
        clock.seconds += 2e-3
        return dp

    measured = profile(MapData(numbers(), takes_2_ms), 0.2)
    assert measured.seconds_per_datapoint == pytest.approx(1.05e-3, rel=0.05)
    assert measured.thread_speedup == pytest.approx(measured.num_threads, rel=0.05)


def test_a_delay_that_had_begun_before_is_not_taken_for_speed(monkeypatch):
    monkeypatch.setattr(profiler, "_delayed", lambda: 2 * time.perf_counter())
    measured = profile(MapData(numbers(), heavy), 0.2)
    assert measured.seconds_per_datapoint >= 0.5 * measured.cpu_seconds > 1e-6


def test_what_cannot_be_addressed_gets_a_parallel_map():
    df = MapData(DataFromGenerator(lambda: ([k] for k in range(40))), waits)
    best = profile(df, 0.2).recommended
    assert (best.kind, best.node) == ("map", "MapData(func=waits)")
    assert best.code.startswith(best.runner)


def test_runners_in_the_chain_start_no_worker(monkeypatch):
    def start(*args):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("dataflow.runners.worker_node.WorkerNode._df_start", start)
    for df in (
        MultiProcessRunnerZMQ(MapData(numbers(), heavy), 2),
        MultiProcessMapData(numbers(), 2, heavy),
        MultiThreadRunner(numbers, 10, 2, strict=True),
    ):
        text = repr(df)
        assert profile(BatchData(df, 2), SHORT).datapoints > 0
        assert repr(df) == text


def test_the_flow_itself_counts_no_pass_and_keeps_its_data():
    class Own(ProxyDataFlow):
        def __iter__(self):
            for dp in self.ds:
                yield [dp[0] + 1]

    below = DataFromList([[k] for k in range(10)], seed=3)
    df = CacheData(JoinData([Own(below), below]), shuffle=True, seed=4)
    expected = list(CacheData(JoinData([Own(below), below]), shuffle=True, seed=4))
    assert profile(df, SHORT).datapoints > 0
    assert list(df) == expected
    assert "_df_run_pass" not in vars(df) | vars(below)


def test_a_users_node_and_a_node_in_two_places_are_measured():
    class Own(DataFlow):
        def __iter__(self):
            for k in range(20):
                for _ in range(10):  # long beside what the profiler does for each datapoint
                    heavy(k)
                yield [k]

    own = Own()
    measured = profile(JoinData([own, MapData(own, light)]), 5 * SHORT)  # enough samples for a share
    assert measured.nodes[1].node == "Own()"
    assert measured.nodes[1].share > 0.9
    twice = profile(JoinData([own, own]), SHORT).nodes
    assert sum(node.share for node in twice) == pytest.approx(1)
    assert twice[1].count == pytest.approx(2, abs=0.5) and twice[2].count == 0


@pytest.mark.parametrize("make", [ShuffleData, lambda df: MixData([df, numbers()], [1, 3])])
def test_a_pass_that_a_node_makes_by_index_is_counted_once(make):
    assert profile(make(numbers()), SHORT).nodes[0].count == pytest.approx(1, abs=0.1)


def test_an_error_of_the_flow_arrives():
    def fails(dp):
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        profile(MapData(numbers(), fails), SHORT)


@pytest.mark.parametrize(("df", "seconds", "error"), [(3, 1, TypeError), (None, 0, ValueError), (None, "1", TypeError)])
def test_wrong_arguments_are_named(df, seconds, error):
    with pytest.raises(error, match="profile"):
        profile(df or numbers(), seconds)


def test_a_flow_that_cannot_run_in_several_threads_is_measured_in_one(monkeypatch):
    run = profiler._run_copies

    def refuse(df, num_copies, *args):
        if num_copies > 1:
            raise RuntimeError("one thread only")
        return run(df, num_copies, *args)

    monkeypatch.setattr(profiler, "_run_copies", refuse)
    found = profile(MapData(numbers(), light), SHORT)
    assert found.num_threads == 0 and "threads at once" not in str(found)


def test_an_error_in_one_of_several_threads_arrives_and_keeps_none_waiting():
    calls = itertools.count()

    def fail_once(dp):
        if next(calls) == 0:
            raise ValueError("the first")
        return dp

    with pytest.raises((ValueError, threading.BrokenBarrierError)):
        profiler._run_copies(MapData(numbers(), fail_once), 3, 0, 0.01)


def test_what_cannot_be_sent_costs_nothing_here():
    for dps in ([[threading.Lock()]], []):
        assert profiler._transfer(dps, 0.01) == (0, 0)
    assert min(profiler._transfer([[b"1" * 100]], 0.01)) > 0


def test_where_nothing_can_be_moved_no_workers_are_advised(monkeypatch):
    monkeypatch.setattr(profiler, "_places", lambda *_: [])
    found = profile(numbers(), SHORT)
    assert found.predictions == () and found.recommended.kind == "none"
    assert str(found).endswith("Use no workers: nothing in this flow can be moved into them.")
    assert "predicted datapoints/s" not in str(found)
    one_kind = dataclasses.replace(found, predictions=(profiler.Prediction("process", 2, 100.0),))
    assert "processes" in str(one_kind) and "threads  " not in str(one_kind)


def test_dropped_datapoints_are_not_counted():
    seen = profiler._Seen()
    assert list(profiler._Meter(numbers())._steps(lambda: iter([[1], HOLE, [2]]), seen)) == [[1], HOLE, [2]]
    assert seen.num == 2 and seen.samples == [[1], [2]]


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (np.zeros(4, np.int32), 16),
        ("text", 4),
        (b"bytes", 5),
        (2.5, 8),
        ({"a": b"123", "b": [1, 2]}, 19),
        ([[[[[[1, 2, 3]]]]]], 8),
        (types.SimpleNamespace(nbytes=77), 77),
        (SIZED, sys.getsizeof(SIZED)),
    ],
    ids=str,
)
def test_the_size_of_a_datapoint_is_that_of_its_data(value, nbytes):
    assert profiler.size_of(value) == nbytes


@pytest.mark.parametrize("num", [0, 1, 3])
def test_a_flow_that_is_empty_or_used_up_cannot_be_measured(num):
    once = iter([[k] for k in range(num)])
    for df in (DataFromList([]), DataFromGenerator(lambda: once)):
        with pytest.raises(ValueError, match="is empty"):
            profile(df, SHORT)


class Recorded(ProxyDataFlow):
    """Records the ids of the copies that have begun, and were closed; one of them raises."""

    def __init__(self, ds, num_before):
        super().__init__(ds)
        self.num_before = num_before
        self.begun, self.closed = [], []  # shared by all copies

    def __iter__(self):
        if id(self) not in self.begun:
            self.begun.append(id(self))
        if len(self.begun) > self.num_before:
            raise LookupError("planted")
        yield from self.ds

    def close(self):
        self.closed.append(id(self))
        super().close()


@pytest.mark.parametrize("num_before", [0, 1])
def test_copies_are_closed_when_one_of_them_raises(num_before):
    df = Recorded(numbers(), num_before)
    with pytest.raises(LookupError, match="planted"):
        profile(df, SHORT)
    assert len(df.begun) == num_before + 1 and all(map(df.closed.__contains__, df.begun))


def test_it_is_a_public_name():
    assert dataflow.profile is profile
