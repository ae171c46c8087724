"""The two ends of a connection, message by message: what each of them does, and what is ignored."""

import os
from collections import deque
from types import SimpleNamespace

import pytest
import zmq

from dataflow import DataFlowTerminated, SenderLost, TimeoutError, send_dataflow_zmq
from dataflow.remote import receiving, sending
from dataflow.remote.frames import FrameEncoder
from dataflow.remote.peer_messages import NO_ID, ORDERLY, Hello, PeerMessage, PeerMessageKind, SendLimits, pack
from dataflow.remote.peer_options import PeerOptions
from dataflow.transport.messages import Kind, Message
from tests.support.faults import is_interrupted_at
from tests.support.forks import in_child
from tests.support.senders import numbers

PEER, OTHER, RUN = b"peer", b"other", b"r" * 16
LIMITS = SendLimits(0, 1 << 20)
HELLO = Hello("host (pid 1)", "source", 1.0, None)


class FakeRouter:
    """A socket whose messages a test reads and writes."""

    def __init__(self, options, keys, **limits):
        self.addresses, self.peers = (), (PEER,)
        self.socket = SimpleNamespace(closed=False, getsockopt=lambda _: 0)
        self.sent, self.incoming, self.connected = [], deque(), deque()
        self.is_reachable = True

    def send(self, peer, message, begun=None):
        if self.is_reachable:
            self.sent.append((peer, message.kind))
        return self.is_reachable

    def receive_nowait(self):
        return self.incoming.popleft() if self.incoming else None

    def events(self):
        return [self.connected.popleft() for _ in range(len(self.connected))]

    def wait(self, timeout):
        pass

    def close(self, flush):
        self.socket.closed = True


@pytest.fixture
def connect(monkeypatch):
    """Makes the sender's end."""
    made = []
    monkeypatch.setattr(sending, "Router", FakeRouter)

    def make(bind=False, timeout=None):
        options = PeerOptions("send_dataflow_zmq", ("tcp://x",), bind, LIMITS, 1.0, timeout)
        made.append(sending.Connection(options, HELLO, None))
        return made[-1]

    yield make
    for connection in made:
        connection.close(0)


def tell(connection, kind, number=0, body=(), peer=PEER, run=RUN, sender=None):
    message = PeerMessage(kind, run, connection._sender if sender is None else sender, number, body=body)
    connection._handle(peer, message)


def welcomed(connect, **options):
    connection = connect(**options)
    connection._router.connected.append(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    connection._read()
    tell(connection, PeerMessageKind.WELCOME, body=[LIMITS.pack()])
    return connection


def test_a_bound_sender_greets_the_first_that_calls_until_it_is_silent(connect):
    connection = connect(bind=True)
    for peer in (PEER, OTHER):
        tell(connection, PeerMessageKind.CALL, peer=peer, sender=NO_ID)
        connection._greet()
    assert connection._router.sent == [(PEER, PeerMessageKind.HELLO)]
    connection._called -= 100
    tell(connection, PeerMessageKind.CALL, peer=OTHER, sender=NO_ID)
    connection._greet()
    assert connection._router.sent[1:] == [(OTHER, PeerMessageKind.HELLO)]
    connection._router.is_reachable, connection._greeted = False, 0.0
    connection._greet()
    assert connection._peer is None  # another may call


def test_before_its_welcome_a_sender_waits_and_ignores_what_is_not_for_it(connect):
    connection = connect()
    connection._router.connected.extend([zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_ACCEPTED])
    connection._router.incoming.append((PEER, [b"no message"]))
    connection._read()
    tell(connection, PeerMessageKind.WELCOME, body=[LIMITS.pack()], peer=OTHER)
    tell(connection, PeerMessageKind.WELCOME, body=[LIMITS.pack()], sender=b"s" * 16)
    tell(connection, PeerMessageKind.WELCOME, body=[b"nonsense"])
    tell(connection, PeerMessageKind.ACK, 5)
    assert connection._theirs is None and "has not answered" in connection._progress
    assert connection._router.sent == []
    tell(connection, PeerMessageKind.WAIT)
    assert "lets this call wait for the next pass" in connection._progress and "name=" in connection._progress
    tell(connection, PeerMessageKind.BYE)
    assert connection._peer is None and connection._lost is None  # it may come back


def test_after_its_welcome_a_sender_obeys_that_run_only(connect):
    connection = welcomed(connect)
    assert connection._theirs == LIMITS and connection._router.sent == [(PEER, PeerMessageKind.BEAT)]
    for kind in (PeerMessageKind.DONE, PeerMessageKind.BYE):
        tell(connection, kind, run=b"x" * 16)
    tell(connection, PeerMessageKind.WAIT)
    assert not connection._done and connection._lost is None
    tell(connection, PeerMessageKind.BYE, ORDERLY, [b"it was closed"])
    assert connection._lost.closed and "it was closed" in str(connection._lost)


def test_wherever_a_signal_handler_raises_datapoints_are_counted_if_they_were_sent(connect):
    k, is_interrupted, num = 0, True, 0
    connection = welcomed(connect)
    message = Message(Kind.DATA, 0, 2, body=[b"ab"])
    while is_interrupted:
        begun = []
        before = len(connection._router.sent)
        is_interrupted = is_interrupted_at(k, lambda: connection.send(message, begun))  # noqa: B023
        assert len(connection._router.sent) - before == len(begun)
        num += 2 * len(begun)
        assert connection._sent == sum(count for _, count, *_ in connection._under_way) == num
        k += 1
    assert begun


def test_a_receiver_is_late_only_where_something_is_outstanding(connect):
    connection = welcomed(connect, timeout=5)
    connection._last_progress -= 100
    connection._read()
    assert connection._lost is None
    connection._ending = True
    connection._read()
    assert "has taken nothing for 5 seconds" in str(connection._lost)


@pytest.mark.parametrize("bind", [False, True])
def test_a_sender_logs_once_that_no_receiver_of_ours_has_come(bind, soon, warnings_of):
    with zmq.Context() as context, context.socket(zmq.PULL) as peer:  # as tensorpack's receiver is
        peer.setsockopt(zmq.LINGER, 0)
        if bind:
            address = "tcp://127.0.0.1:*"
        else:
            peer.bind("tcp://127.0.0.1:*")
            address = peer.getsockopt_string(zmq.LAST_ENDPOINT)
        with pytest.raises(TimeoutError):
            send_dataflow_zmq(numbers(3), address, bind=bind, timeout=4 * soon)
    (message,) = warnings_of(sending)
    for part in ("tcp://127.0.0.1:", "RemoteDataZMQ", "tensorpack", "timeout="):
        assert part in message


@pytest.fixture
def receiver(monkeypatch):
    """The receiver's end, with a sender that has introduced itself."""
    monkeypatch.setattr(receiving, "Router", FakeRouter)
    made = receiving.ReceivingSocket(PeerOptions("RemoteDataZMQ", ("tcp://x",), True, LIMITS, 1.0), 2, None)
    made.begin_pass()
    hear(made, PeerMessageKind.HELLO, body=[HELLO.pack()], run=NO_ID)
    assert made._router.sent == [(PEER, PeerMessageKind.WELCOME)]
    yield made
    made.close()


def hear(receiver, kind, number=0, count=0, body=(), run=None, sender=b"s" * 16):
    run = receiver._run if run is None else run
    receiver._handle(PEER, pack(PeerMessage(kind, run, sender, number, count, body)))


def frames_of(*datapoints):
    encoder = FrameEncoder(1 << 20)
    return encoder.join([encoder.encode(dp) for dp in datapoints])[0]


def test_what_only_a_receiver_says_is_refused(receiver, caplog):
    hear(receiver, PeerMessageKind.DONE)
    assert "refused a message: it is of a kind that only a receiver sends" in caplog.text and receiver.usable


def test_datapoints_that_were_not_taken_are_given_out_again(receiver):
    hear(receiver, PeerMessageKind.DATA, count=2, body=frames_of([1], [2]))
    first = receiver.receive()
    assert next(first) == [1]
    more = pack(PeerMessage(PeerMessageKind.DATA, receiver._run, b"s" * 16, 2, 1, frames_of([3])))
    receiver._router.incoming.append((PEER, more))
    assert next(receiver.receive()) == [2]
    assert next(receiver.receive()) == [3]


def test_unreadable_bytes_after_readable_ones_are_the_loss_of_their_sender(receiver):
    hear(receiver, PeerMessageKind.DATA, count=1, body=frames_of([1]))
    with pytest.raises(SenderLost, match=r"it sent bytes that are no datapoints .* 1 datapoints came from it"):
        hear(receiver, PeerMessageKind.DATA, number=1, count=1, body=[b"\xc1"])
    with pytest.raises(DataFlowTerminated):
        receiver.receive()


def test_who_has_ended_gets_no_goodbye(receiver):
    hear(receiver, PeerMessageKind.HELLO, body=[HELLO._replace(source="other").pack()], run=NO_ID, sender=b"o" * 16)
    words = [sending.pack_counters([0] * 64)]
    hear(receiver, PeerMessageKind.END, body=words)
    receiver._router.sent.clear()
    receiver.close()
    receiver.close()
    assert receiver._router.sent == [(PEER, PeerMessageKind.BYE)]  # to the other


def test_a_forked_child_closes_no_receiver(receiver):
    assert in_child(lambda: (receiver.close(), receiver._router.socket.closed)) == "returned (None, False)"
    assert os.getpid() and receiver.usable
