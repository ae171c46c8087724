"""The sampler attributes what a thread executes to the innermost node."""

import functools
import pickle
import sys
import threading
import time

import numpy as np
import pytest

from dataflow import BatchData, DataFlow, DataFromList, MapData, MapDataComponent, ProxyDataFlow, RandomMapData
from dataflow.observe.node_sampler import NodeSampler
from dataflow.protocol.passes import open_flow, root_stream, walk
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.worker_counters import WorkerActivity, totals_of


class Reached(Exception):
    """Ends the flow when the sample was taken."""


class Probe:
    """Takes a sample in the middle of a flow's step: a fake for the second thread, which would come at any time."""

    def __init__(self):
        self.sampler = None

    def __call__(self):
        if self.sampler is not None:
            second = threading.Thread(target=self.tick)
            second.start()
            second.join()
            raise Reached

    def tick(self):
        for _ in range(2):  # the second one takes a sample
            self.sampler.tick()


PROBE = Probe()


def calls_probe(dp):
    PROBE()
    return dp


def other(dp):
    return dp


def through_helper(dp):
    return helper(dp)


def helper(dp):
    return calls_probe(dp)


class Callable:
    def __call__(self, dp):
        PROBE()
        return dp

    def method(self, dp):
        PROBE()
        return dp


def with_rng(dp, rng):
    PROBE()
    return dp


class Source(DataFlow):
    def __iter__(self):
        for k in range(4):
            PROBE()
            yield [k]


class Passes(ProxyDataFlow):
    def __init__(self, ds, probes=False):
        super().__init__(ds)
        self.probes = probes

    def __iter__(self):
        for dp in self.ds:
            if self.probes:
                PROBE()
            yield dp


def numbers():
    return DataFromList([[k] for k in range(8)], shuffle=False)


CHAINS = {  # a flow, and which of its nodes runs the probe
    "a function": (lambda: MapData(MapData(numbers(), calls_probe), other), 1),
    "the outer function": (lambda: MapData(MapData(numbers(), other), calls_probe), 0),
    "a function that calls others": (lambda: MapData(MapData(numbers(), through_helper), other), 1),
    "a partial function": (lambda: MapData(MapData(numbers(), functools.partial(calls_probe)), other), 1),
    "a callable object": (lambda: MapData(MapData(numbers(), Callable()), other), 1),
    "a method": (lambda: MapData(MapData(numbers(), Callable().method), other), 1),
    "a lambda": (lambda: MapData(MapData(numbers(), lambda dp: calls_probe(dp) or dp), other), 1),
    "with random numbers": (lambda: MapData(RandomMapData(numbers(), with_rng), other), 1),
    "a component": (lambda: BatchData(MapDataComponent(numbers(), calls_probe, 0), 2), 1),
    "a user's source": (lambda: BatchData(MapData(Source(), other), 2), 2),
    "one of two of a user's class": (lambda: Passes(Passes(numbers(), probes=True)), 1),
    "the other of two": (lambda: Passes(Passes(numbers()), probes=True), 0),
}


def sampled(df, by_index):
    """Samples of each node after one sample, taken in another thread while a step is under way."""
    credit = Credit(1, shared=False)
    counters = credit.port(0).quota(Window(1)).counters
    counters.enter(WorkerActivity.BUSY, time.perf_counter())
    stream = root_stream(df)
    open_flow(df, stream)
    PROBE.sampler = NodeSampler(df, counters, lambda: 0.5)
    try:
        with pytest.raises(Reached):
            list(df._df_at([np.arange(4)], stream) if by_index else df._df_run_pass(0, stream))
    finally:
        PROBE.sampler = None
    return totals_of(credit.counters_of(0))


@pytest.mark.parametrize("name", CHAINS)
def test_a_sample_counts_for_the_node_that_runs(name):
    make, node = CHAINS[name]
    df = make()
    for by_index in (False, True) if df.addressable else (False,):
        totals = sampled(make(), by_index)
        assert [k for k, num in enumerate(totals.nodes) if num] == [node], (by_index, totals)
        assert not totals.other


def test_two_nodes_with_the_same_function_are_told_apart():
    totals = sampled(MapData(BatchData(MapData(numbers(), calls_probe), 2), calls_probe), True)
    assert [k for k, num in enumerate(totals.nodes) if num] == [2]


def test_a_flow_with_a_sampler_is_pickled_as_before():
    df = Passes(Passes(MapData(numbers(), other)))
    list(df)
    counters = Credit(1, shared=False).port(0).quota(Window(1)).counters
    sampler = NodeSampler(df, counters, lambda: 0.0)
    assert list(pickle.loads(pickle.dumps(df))) == list(df)
    assert len(list(walk(df))) == 4
    del sampler


def test_the_switch_interval_is_restored():
    before = sys.getswitchinterval()
    sampled(MapData(numbers(), calls_probe), False)
    assert sys.getswitchinterval() == before


def test_the_processor_time_of_a_new_worker_is_added_to_that_of_the_one_before():
    credit = Credit(1, shared=False)
    quota = credit.port(0).quota(Window(1))
    quota.counters.set_processor_times(3.0, 2.0)  # by the worker that has died
    sampler = NodeSampler(numbers(), quota.counters, lambda: 0.5)
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    sampler.tick()
    found = totals_of(credit.counters_of(0))
    assert found.cpu > 3.005 and found.delayed >= 2.0


def test_a_processor_time_that_cannot_be_read_is_none(monkeypatch):
    def refuse(clock):
        raise OSError

    df = MapData(DataFromList([[1]]), other)
    with_counters = Credit(1, shared=False)
    sampler = NodeSampler(df, with_counters.port(0).quota(Window(1)).counters, lambda: 0.5)
    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert sampler._processor_times()[0] == 0.0
    with_counters.close()
