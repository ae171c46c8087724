"""What is logged while the other side is none of ours, or is not there: one warning that says what it may be."""

import logging
import pickle
import threading

import pytest
import zmq

from dataflow import DataFlowTerminated, RemoteDataZMQ, TimeoutError, send_dataflow_zmq
from dataflow.remote import receiving, sending
from tests.support.senders import LOOPBACK, Sending, numbers
from tests.support.waits import LIMIT, wait_until

SOON = 0.2  # seconds


def warnings_of(caplog, module):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == module.__name__
        and record.levelno == logging.WARNING
        and "refused a message" not in record.getMessage()
    ]


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(receiving, "_WARN_AFTER", SOON)
    monkeypatch.setattr(sending, "_WARN_AFTER", SOON)


class Consuming:
    """A loop over a receiver in a thread of its own."""

    def __init__(self, df):
        self.found = []
        self._thread = threading.Thread(target=self._run, args=(df,))
        self._thread.start()

    def _run(self, df):
        try:
            for (k,) in df:
                self.found.append(k)
        except DataFlowTerminated:
            pass

    def join(self):
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "the receiver hangs"


@pytest.mark.parametrize("kind", [zmq.PUSH, zmq.PUB, zmq.REQ, None], ids=["push", "pub", "req", "nobody"])
def test_a_receiver_logs_once_that_no_sender_of_ours_has_come(kind, soon, caplog):
    with RemoteDataZMQ(LOOPBACK) as df, zmq.Context() as context:
        df.reset_state()
        peer = None
        if kind is not None:
            peer = context.socket(kind)
            peer.setsockopt(zmq.LINGER, 0)
            peer.setsockopt(zmq.SNDTIMEO, 1000)
            peer.connect(df.addresses[0])
            peer.send(pickle.dumps([1, 2]))  # as tensorpack's sender does
        consuming = Consuming(df)
        wait_until(lambda: warnings_of(caplog, receiving), LIMIT, "nothing was logged")
        sending = Sending(numbers(5), df.addresses[0])
        wait_until(lambda: len(consuming.found) == 5, LIMIT, "an honest sender is not served")
        assert sending.wait_result() == 5
        if peer is not None:
            peer.close()
        address = df.addresses[0]
        df.close()
        consuming.join()
    (message,) = warnings_of(caplog, receiving)
    for part in (address, "0.2 seconds", "send_dataflow_zmq", "tensorpack", "curve=", "timeout="):
        assert part in message


def test_a_receiver_of_ours_that_has_met_a_sender_logs_nothing(soon, caplog):
    with RemoteDataZMQ(LOOPBACK, timeout=3 * SOON) as df:
        df.reset_state()
        sending = Sending(numbers(3), df.addresses[0])
        found = []
        with pytest.raises(TimeoutError):
            found.extend(df)
        assert sending.wait_result() == 3
    assert not warnings_of(caplog, receiving)


def test_a_receiver_that_is_given_time_logs_nothing(caplog):
    with RemoteDataZMQ(LOOPBACK, timeout=SOON) as df, pytest.raises(TimeoutError):
        next(iter(df))
    assert not warnings_of(caplog, receiving)


@pytest.mark.parametrize("bind", [False, True])
def test_a_sender_logs_once_that_no_receiver_of_ours_has_come(bind, soon, caplog):
    with zmq.Context() as context, context.socket(zmq.PULL) as peer:  # as tensorpack's receiver is
        peer.setsockopt(zmq.LINGER, 0)
        if bind:
            address = "tcp://127.0.0.1:*"
        else:
            peer.bind("tcp://127.0.0.1:*")
            address = peer.getsockopt_string(zmq.LAST_ENDPOINT)
        with pytest.raises(TimeoutError):
            send_dataflow_zmq(numbers(3), address, bind=bind, timeout=4 * SOON)
    (message,) = warnings_of(caplog, sending)
    for part in ("tcp://127.0.0.1:", "RemoteDataZMQ", "tensorpack", "timeout="):
        assert part in message
