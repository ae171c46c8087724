"""The trace of made-up figures: tracks, states and rates."""

import json
from dataclasses import replace

import pytest

from dataflow.observe.figures import Moment, WorkerMoment
from dataflow.observe.tracing import intervals, trace_of
from tests.observe.made_up import MADE, flow, runner, workers


def test_the_trace_has_a_track_for_each_worker():
    events = json.loads(json.dumps(trace_of(MADE)))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["MultiProcessRunnerZMQ", "worker 0 (pid 4711)", "worker 1 (pid 4712)"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in slices} == {1, 2}
    busy = sum(event["dur"] for event in slices if event["name"] == "busy" and event["tid"] == 1)
    assert busy == pytest.approx(9e6)
    ends = {event["ts"] + event["dur"] for event in slices}
    assert max(ends) == pytest.approx(10e6)


def test_states_fit_between_two_moments():
    before = Moment(1.0, 0, workers=(WorkerMoment(0.0), WorkerMoment(1.0)))
    after = Moment(2.0, 5, workers=(WorkerMoment(3.0, 1.0), WorkerMoment(0.5), WorkerMoment(1.0)))
    assert intervals(before, after) == [[("busy", 0.75), ("window full", 0.25)], []]


def test_two_moments_at_the_same_time_have_no_rate_between_them():
    made = runner(workers(1, busy=0.5))
    twice = replace(made, history=(*made.history, made.history[-1]))
    assert trace_of(flow(twice)) == trace_of(flow(made))
