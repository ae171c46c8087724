"""Counters of workers: words that any process can read, while the worker runs and after it was killed."""

import os

import pytest

from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.worker_counters import (
    NUM_NODES,
    InnerTotals,
    WorkerActivity,
    settle_counters,
    sums_of,
    totals_of,
)


def open_counters(worker=0, credit=None):
    credit = credit or Credit(2, shared=False)
    return credit, credit.port(worker).quota(Window(10, 1000)).counters


def test_what_a_worker_adds_is_read():
    credit, counters = open_counters(1)
    counters.begin(10.0)
    counters.add_message(5, 100)
    counters.add_message(2, 50)
    counters.add_step(11.0, 0.5)
    for state, seconds in zip(list(WorkerActivity)[2:], (0.25, 0.125, 1.0), strict=True):
        counters.add_wait(state, 12.0, seconds)
    counters.set_processor_times(0.375, 0.0625)
    counters.set_window(0.5)
    counters.sample_node(3)
    counters.sample_node(NUM_NODES)  # one too many
    counters.sample_sending()
    totals = totals_of(credit.counters_of(1))
    assert (totals.pid, totals.datapoints, totals.nbytes, totals.messages) == (os.getpid(), 7, 150, 2)
    assert totals.seconds == pytest.approx((0, 0.5, 0.25, 0.125, 1.0))
    assert (totals.cpu, totals.delayed, totals.window) == pytest.approx((0.375, 0.0625, 0.5))
    assert (totals.nodes[3], totals.sending, totals.other) == (1, 1, 1)
    assert totals_of(credit.counters_of(0)).datapoints == 0


@pytest.mark.parametrize("state", list(WorkerActivity)[1:])
def test_what_is_under_way_counts_before_it_is_done(state):
    credit, counters = open_counters()
    counters.enter(state, 10.0)
    assert totals_of(credit.counters_of(0), 12.5).seconds[state] == pytest.approx(2.5)
    assert totals_of(credit.counters_of(0)).seconds[state] == 0
    counters.end()
    assert sum(totals_of(credit.counters_of(0), 20.0).seconds) == 0


def test_a_replacement_goes_on_with_the_counts():
    credit, counters = open_counters()
    counters.add_message(5, 100)
    _, successor = open_counters(credit=credit)
    successor.add_message(1, 10)
    assert totals_of(credit.counters_of(0)).datapoints == 6


def test_counters_of_a_worker_do_not_touch_those_of_the_credit_or_of_another():
    credit, counters = open_counters()
    for k in range(NUM_NODES):
        counters.sample_node(k)
    for slot in range(5):  # more than there is room for
        counters.set_inner(slot, InnerTotals(slot, 3, 4, 1.5))
    assert credit.port(0).quota(Window(1)).wait_for_room().count == 1
    assert not any(credit.counters_of(1))
    totals = totals_of(credit.counters_of(0))
    assert totals.inner == tuple(InnerTotals(slot, 3, 4, 1.5) for slot in range(4))
    assert totals.nodes == (1,) * NUM_NODES


def test_counters_are_gone_when_the_memory_is():
    credit, _ = open_counters()
    credit.close()
    assert credit.counters_of(0) == []


def test_settled_words_can_be_read_at_any_time():
    credit = Credit(1, shared=False)
    counters = credit.port(0).quota(Window(1)).counters
    counters.begin(10.0)
    words = settle_counters(credit.counters_of(0), 12.5)
    assert totals_of(words).seconds[WorkerActivity.BUSY] == pytest.approx(2.5)
    assert totals_of(words, 99.0) == totals_of(words)


def test_a_successor_that_begins_at_zero_is_added():
    words = []
    for pid in (1, 2):
        credit = Credit(1, shared=False)
        counters = credit.port(0).quota(Window(1)).counters
        counters.add_message(10 * pid, 100)
        counters.add_step(5.0, 1.0)
        counters.add_wait(WorkerActivity.BLOCKED, 5.0, 0.5)
        counters.sample_node(3)
        counters.set_window(0.25 * pid)
        words.append(settle_counters(credit.counters_of(0), 5.0))
    totals = totals_of(sums_of(*words))
    assert (totals.datapoints, totals.nbytes, totals.messages, totals.nodes[3]) == (30, 200, 2, 2)
    assert totals.seconds[WorkerActivity.BLOCKED] == pytest.approx(1.0)
    assert totals.window == 0.5
