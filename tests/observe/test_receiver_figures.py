"""Figures of a receiver and of its senders."""

import struct
from itertools import islice

import pytest

from dataflow import BatchData, MapData, RemoteDataZMQ
from dataflow.observe.receiver_figures import ReceiverFigures
from tests.support.senders import LOOPBACK, Sending, numbers
from tests.support.waits import LIMIT, wait_until


def work(dp):
    sum(range(2000))
    return dp


def test_a_pass_over_tcp_has_figures():
    with BatchData(RemoteDataZMQ(LOOPBACK, num_senders=2, timeout=LIMIT), 5) as df:
        assert df.statistics().runners == ()
        df.reset_state()
        senders = [Sending(MapData(numbers(50), work), df.ds.addresses[0]) for _ in range(2)]
        assert len(list(df)) == 20
        statistics = df.statistics()
        assert [sender.wait_result() for sender in senders] == [50, 50]
        (runner,) = statistics.runners
        assert "RemoteDataZMQ" in df.report()
    assert statistics.nodes[runner.node].node.startswith("RemoteDataZMQ")
    assert (runner.backend, runner.datapoints) == ("remote", 100)
    assert runner.nbytes > 100
    assert runner.waiting_seconds > 0
    assert [worker.datapoints for worker in runner.workers] == [50, 50]
    assert all(worker.busy_seconds > 0 for worker in runner.workers)
    assert df.statistics().runners[0].datapoints == 100  # after it was closed


def test_a_sender_reports_while_it_sends():
    with RemoteDataZMQ(LOOPBACK, timeout=LIMIT) as df:
        df.reset_state()
        sender = Sending(MapData(numbers(1_000_000), work), df.addresses[0], heartbeat=0.5)
        steps = iter(df)
        wait_until(
            lambda: list(islice(steps, 1000)) and df.statistics().runners[0].workers[0].busy_seconds > 0,
            LIMIT,
            "counters",
        )
    assert sender.wait_result() < 1_000_000


def test_the_passes_of_one_sender_are_added():
    figures = ReceiverFigures()
    for name, seconds in ((b"1", 1.0), (b"1", 2.0), (b"2", 4.0)):
        figures.counted("source", name, [struct.pack("<3d", seconds, 0.5, 0.0)])
    figures.received("source", 3, 40)
    (worker,) = figures.statistics("RemoteDataZMQ").workers
    assert (worker.busy_seconds, worker.blocked_seconds) == (6.0, 1.0)
    assert (worker.datapoints, worker.nbytes, worker.messages) == (3, 40, 1)


@pytest.mark.parametrize("body", [[], [b"short"], [b"", b""], [struct.pack("<3d", -1, 0, 0)], [b"\xff" * 24]])
def test_counters_that_are_malformed_are_ignored(body):
    figures = ReceiverFigures()
    figures.counted("source", b"1", body)
    assert figures.statistics("RemoteDataZMQ").workers[0].busy_seconds == 0


def test_only_so_many_senders_are_shown_one_by_one():
    figures = ReceiverFigures()
    for k in range(1000):
        figures.received(str(k), 1, 1)
    statistics = figures.statistics("RemoteDataZMQ")
    assert (len(statistics.workers), statistics.datapoints) == (64, 1000)
