"""Sockets: an address for one user that goes away, forgeries that are refused unread, what was sent last arrives."""

import errno
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest
import zmq

from dataflow.transport import zeromq
from dataflow.transport.messages import Kind, Message, new_token, pack
from dataflow.transport.zeromq import SocketChannel
from tests.support.fakes import Trap, receive
from tests.support.faults import is_interrupted_at
from tests.support.waits import LIMIT, wait_until


class Sockets:
    """A channel with both ends in this process."""

    def __init__(self, num_workers=1):
        self.channel = SocketChannel(num_workers)
        self.address = self.channel.port(0)._url
        self.receiver = self.channel.open_receiver()
        self.senders = [self.channel.port(k).open() for k in range(num_workers)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for sender in self.senders:
            sender.close(0)
        self.receiver.close()
        self.channel.close()


def data(worker, count, *frames):
    return Message(Kind.DATA, worker, count, 0, list(frames))


def test_messages_arrive_in_order_and_whole():
    with Sockets(2) as sockets:
        big = os.urandom(zmq.COPY_THRESHOLD - 1)  # from there on pyzmq permanently keeps a thread of its own
        for k in range(100):
            sockets.senders[1].send(data(1, k, b"x", b""))
        sockets.senders[1].send(data(1, 100, big))
        messages = [receive(sockets.receiver, LIMIT) for _ in range(101)]
        assert [(message.worker, message.count) for message in messages] == [(1, k) for k in range(101)]
        assert [bytes(frame) for frame in messages[3].body] == [b"x", b""]
        assert bytes(messages[100].body[0]) == big


def test_wherever_a_handler_raises_a_message_is_sent_and_counts_as_sent_or_neither():
    k, is_interrupted = 0, True
    with Sockets() as sockets:
        while is_interrupted:
            begun = []
            is_interrupted = is_interrupted_at(k, lambda: sockets.senders[0].send(data(0, 1, b"x"), begun))  # noqa: B023
            sockets.senders[0].send(data(0, 2, b"y"))
            expected = [1] * bool(begun) + [2]
            assert [receive(sockets.receiver, LIMIT).count for _ in expected] == expected
            k += 1
        assert begun and sockets.receiver.receive_nowait() is None


def listens(url):
    """Whether a process of this user can connect."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect("\0" + url.removeprefix("ipc://@"))
        except ConnectionRefusedError:
            return False
    return True


STRANGER = """
import os, sys, zmq
os.setgroups([]), os.setgid(65534), os.setuid(65534)
with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
    monitor = stranger.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
    stranger.connect(sys.argv[1])
    stranger.send(bytes.fromhex(sys.argv[2]))
    while int.from_bytes(monitor.recv_multipart()[0][:2], sys.byteorder) != zmq.EVENT_DISCONNECTED:
        pass
    print("disconnected")
    stranger.close(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_disconnected_before_anything_is_read_even_if_it_knows_the_token():
    with Sockets() as sockets:
        secret = b"".join(pack(_token_of(sockets), data(0, 66))).hex()
        done = subprocess.run(
            [sys.executable, "-c", STRANGER, sockets.address, secret],
            capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip
        assert done.stdout == "disconnected\n", done.stderr
        sockets.senders[0].send(data(0, 5))
        assert receive(sockets.receiver, LIMIT).count == 5


def test_a_worker_does_not_connect_to_whoever_takes_the_name_of_a_consumer_that_is_gone():
    with Sockets() as sockets:
        sockets.senders[0].send(Message(Kind.HELLO, 0))
        assert receive(sockets.receiver, LIMIT).kind is Kind.HELLO
        sockets.receiver.close()
        wait_until(lambda: not listens(sockets.address), LIMIT, "still listening")
        with socket.socket(socket.AF_UNIX) as impostor:
            impostor.bind("\0" + sockets.address.removeprefix("ipc://@"))
            impostor.listen()
            impostor.settimeout(0.3)  # ZeroMQ would connect again after a millisecond
            with pytest.raises(TimeoutError):
                impostor.accept()


def test_a_later_worker_connects_too():
    with Sockets() as sockets:
        sockets.senders[0].send(Message(Kind.HELLO, 0))
        assert receive(sockets.receiver, LIMIT).kind is Kind.HELLO
        sockets.senders.append(sockets.receiver.port_of_successor(0).open())
        sockets.senders[-1].send(data(0, 5))
        assert receive(sockets.receiver, LIMIT).count == 5


def test_more_workers_than_the_kernel_lets_wait_connect_before_the_consumer_accepts():
    """The kernel holds at most `somaxconn` connections: 128 on older systems."""
    num = 129
    channel = SocketChannel(num)
    with closing(channel):
        urls = {channel.port(k)._url for k in range(num)}
        assert len(urls) == 2
        probes = []
        for k in range(num):
            probes.append(socket.socket(socket.AF_UNIX))
            probes[-1].setblocking(False)
            probes[-1].connect("\0" + channel.port(k)._url.removeprefix("ipc://@"))
        for probe in probes:
            probe.close()


def test_a_worker_that_must_wait_long_for_the_consumer_to_accept_is_still_received(monkeypatch):
    """ZeroMQ would give up after 30 seconds."""
    asked = []
    setsockopt = zmq.Socket.setsockopt
    monkeypatch.setattr(zmq.Socket, "setsockopt", lambda self, *args: (asked.append(args), setsockopt(self, *args))[1])
    with Sockets():
        assert asked.count((zmq.HANDSHAKE_IVL, 0)) == 2


def test_a_channel_that_was_never_opened_leaves_nothing():
    channel = SocketChannel(1)
    assert listens(channel.port(0)._url)
    channel.close()
    channel.close()
    assert not listens(channel.port(0)._url)


def test_a_worker_may_connect_before_the_consumer_has_opened_its_end():
    channel = SocketChannel(1)
    sender = channel.port(0).open()
    sender.send(Message(Kind.HELLO, 0))
    receiver = channel.open_receiver()
    assert receive(receiver, LIMIT).kind is Kind.HELLO
    sender.close(0)
    receiver.close()


def test_what_was_sent_last_arrives_though_the_sender_has_closed():
    with Sockets() as sockets:
        sockets.senders[0].send(data(0, 7, bytes(60_000)))
        sockets.senders.pop().close(LIMIT)
        assert receive(sockets.receiver, LIMIT).count == 7


def test_closing_without_patience_does_not_wait_for_a_consumer_that_never_comes():
    channel = SocketChannel(1)
    sender = channel.port(0).open()
    sender.send(data(0, 1, bytes(60_000)))
    began = time.monotonic()
    sender.close(0)
    channel.close()
    assert time.monotonic() - began < LIMIT / 2


def forgeries(token, path):
    trap = pickle.dumps(Trap(path))
    other = new_token()
    return {
        "no token": [trap],
        "an empty frame": [b""],
        "another token": [b"".join(pack(other, data(0, 1, trap)))],
        "a short header": [b"".join(pack(token, data(0, 1)))[:-1], trap],
        "a worker that does not exist": [b"".join(pack(token, data(9, 1, trap)))],
        "garbage": [os.urandom(5), os.urandom(300), trap],
        "an exception with another token": [b"".join(pack(other, Message(Kind.ERROR, 0, body=[trap])))],
        "half a token": [token[:8], trap],
    }


@pytest.mark.parametrize("name", forgeries(b"x" * 16, ""))
def test_a_forged_message_is_refused_unread_and_the_next_honest_one_is_received(name, tmp_path, caplog):
    path = tmp_path / "written"
    with Sockets() as sockets, zmq.Context() as context, context.socket(zmq.PUSH) as forger:
        forger.connect(sockets.address)
        honest = sockets.senders[0]
        token = bytes(pack(_token_of(sockets), Message(Kind.HELLO, 0))[0][:16])

        def refused():
            assert sockets.receiver.receive_nowait() is None
            return caplog.records

        with caplog.at_level(logging.WARNING, "dataflow"):
            for _ in range(3):
                forger.send_multipart(forgeries(token, str(path))[name])
            wait_until(refused, LIMIT, "nothing was refused")
            honest.send(data(0, 5, b"honest"))
            assert receive(sockets.receiver, LIMIT).count == 5
        assert [record.getMessage().partition(" that ")[0] for record in caplog.records] == ["refused a message"]
        assert not path.exists()
        forger.close(0)


def _token_of(sockets):
    """The token, as a worker's port carries it."""
    return next(value for value in vars(sockets.channel.port(0)).values() if isinstance(value, bytes))


def test_many_forgeries_do_not_keep_an_honest_message_back():
    with Sockets() as sockets, zmq.Context() as context, context.socket(zmq.PUSH) as forger:
        forger.connect(sockets.address)
        for _ in range(500):
            forger.send(b"forged")
        sockets.senders[0].send(data(0, 5, b"honest"))
        found = []
        wait_until(
            lambda: (m := sockets.receiver.receive_nowait()) and found.append(m.count) is None, LIMIT, "not received"
        )
        assert found == [5]
        forger.close(0)


def test_after_many_forgeries_the_receiver_looks_at_something_else(monkeypatch):
    unpack, num_read = zeromq.unpack, []
    monkeypatch.setattr(zeromq, "unpack", lambda *args: num_read.append(1) or unpack(*args))
    monkeypatch.setattr(zeromq, "_READ_AT_ONCE", 2)
    with Sockets() as sockets, zmq.Context() as context, context.socket(zmq.PUSH) as forger:
        forger.connect(sockets.address)
        for _ in range(5):
            forger.send(b"forged")
        assert sockets.receiver.wait(LIMIT)
        assert sockets.receiver.receive_nowait() is None
        assert len(num_read) <= 2
        sockets.senders[0].send(data(0, 5, b"honest"))
        while (message := sockets.receiver.receive_nowait()) is None:
            assert sockets.receiver.wait(LIMIT)
        assert message.count == 5
        forger.close(0)


@pytest.mark.parametrize(("error", "kind"), [(zmq.ZMQError(errno.EMFILE), OSError), (MemoryError(), MemoryError)])
def test_a_channel_that_cannot_be_opened_leaves_no_descriptor(error, kind, monkeypatch):
    channel = SocketChannel(1)
    port = channel.port(0)

    def refuse(*_):
        raise error

    monkeypatch.setattr(zeromq._SocketSender, "_open", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind, match="ZeroMQ says" if kind is OSError else None):
        port.open()
    assert len(os.listdir("/proc/self/fd")) == before
    channel.close()


def test_what_comes_after_nothing_was_there_is_noticed_however_that_was_found():
    with Sockets() as sockets:
        receiver, sender = sockets.receiver, sockets.senders[0]
        for k, finds_nothing in enumerate([lambda: receiver.wait(0.01), receiver.receive_nowait] * 20):
            assert not finds_nothing()
            sender.send(data(0, k, b"x"))
            sender.send(data(0, k, b"y"))
            for frame in (b"x", b"y"):
                assert receiver.wait(LIMIT)
                assert receiver.wait(0)  # until it is taken
                message = receiver.receive_nowait()
                assert (message.count, bytes(message.body[0])) == (k, frame)


def test_a_socket_in_which_nothing_was_is_not_asked_again_before_its_descriptor_tells(monkeypatch):
    with Sockets() as sockets:
        assert sockets.receiver.receive_nowait() is None
        asked = []
        inquire = zmq.Socket.get
        monkeypatch.setattr(zmq.Socket, "get", lambda *args: asked.append(args[1]) or inquire(*args))
        for _ in range(3):
            assert not sockets.receiver.wait(0.01)
        quiet = len(asked)
        sockets.senders[0].send(data(0, 5, b"x"))
        assert sockets.receiver.wait(LIMIT)
        assert len(asked) > quiet
        assert quiet <= 1  # the connection was news, or not yet


def test_a_descriptor_that_tells_of_nothing_does_not_make_the_wait_longer(monkeypatch):
    with Sockets() as sockets:
        receiver, waits = sockets.receiver, []
        while receiver.wait(0.05) or receiver.receive_nowait():
            pass

        class Poll:
            def poll(self, milliseconds):
                waits.append(milliseconds)
                time.sleep(0.01)
                return [(receiver._fd, select.POLLIN)] if len(waits) < 3 else []

        monkeypatch.setattr(receiver, "_poll", Poll())
        assert not receiver.wait(LIMIT)
        assert LIMIT * 1000 == waits[0] > waits[1] > waits[2]


def test_a_watched_descriptor_wakes_the_receiver_and_is_forgotten_afterwards():
    read, write = os.pipe()
    os.close(write)
    with Sockets() as sockets:
        began = time.monotonic()
        assert not sockets.receiver.wait(LIMIT, [read])
        assert time.monotonic() - began < LIMIT / 2
        os.close(read)
        assert not sockets.receiver.wait(0.05)


def test_closing_gives_every_descriptor_back():
    before = len(os.listdir("/proc/self/fd"))
    with Sockets(3) as sockets:
        for k, sender in enumerate(sockets.senders):
            sender.send(Message(Kind.HELLO, k))
            assert receive(sockets.receiver, LIMIT)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, LIMIT, "descriptors are left")


@pytest.mark.parametrize("times", [20, pytest.param(60, marks=pytest.mark.full)])
def test_a_signal_while_it_closes_leaves_no_descriptor(times):
    """Also one with a handler of a C library, which nothing here can defer."""
    before, arrived = len(os.listdir("/proc/self/fd")), []
    handler = signal.signal(signal.SIGALRM, lambda *_: arrived.append(None))
    try:
        for _ in range(times):
            channel = SocketChannel(1)
            with closing(channel.open_receiver()):
                sender = channel.port(0).open()
                sender.send(data(0, 5, b"x"))
                signal.setitimer(signal.ITIMER_REAL, 2e-5, 2e-5)
                sender.close(LIMIT)
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.05)  # the last signal may still be on its way, and Python would have no function to call for it
        signal.signal(signal.SIGALRM, handler)
    assert arrived
    assert len(os.listdir("/proc/self/fd")) == before
