"""Sockets: a private address that goes away, forgeries that are refused unread, what was sent last arrives."""

import logging
import os
import pickle
import select
import signal
import stat
import sys
import tempfile
import time
from contextlib import closing, contextmanager, nullcontext

import pytest
import zmq

from dataflow.channel import zeromq
from dataflow.channel.messages import Kind, Message, new_token, pack
from dataflow.channel.zeromq import SocketChannel
from tests.support.fakes import Trap, receive
from tests.support.leaks import socket_directories
from tests.support.waits import LIMIT, wait_until


class Sockets:
    """A channel with both ends in this process."""

    def __init__(self, num_workers=1):
        before = socket_directories()
        self.channel = SocketChannel(num_workers)
        (self.directory,) = socket_directories().keys() - before.keys()
        self.address = f"ipc://{self.directory}/s"
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


def test_the_directory_belongs_to_the_user_alone_and_goes_away_once_all_have_connected():
    with Sockets() as sockets:
        assert stat.S_IMODE(os.stat(sockets.directory).st_mode) == 0o700
        sockets.senders[0].send(Message(Kind.HELLO, 0))
        assert receive(sockets.receiver, LIMIT).kind is Kind.HELLO
        sockets.receiver.stop_accepting()
        assert not sockets.directory.exists()
        sockets.senders[0].send(data(0, 1, b"still received"))
        assert receive(sockets.receiver, LIMIT).count == 1


@contextmanager
def no_proc():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zeromq, "_path_of", lambda file: "/nowhere")
        yield


@pytest.mark.parametrize("where", [nullcontext, no_proc])
@pytest.mark.parametrize("have_connected", [False, True])
def test_a_later_worker_connects_though_the_directory_is_gone(where, have_connected):
    with where(), Sockets() as sockets:
        if have_connected:
            sockets.senders[0].send(Message(Kind.HELLO, 0))
            assert receive(sockets.receiver, LIMIT).kind is Kind.HELLO
            sockets.receiver.stop_accepting()
            assert not sockets.directory.exists()
        sockets.senders.append(sockets.receiver.port_of_successor(0).open())
        sockets.senders[-1].send(data(0, 5))
        assert receive(sockets.receiver, LIMIT).count == 5
        sockets.receiver.stop_accepting()
        assert not sockets.directory.exists()
        sockets.senders[-1].send(data(0, 6))
        assert receive(sockets.receiver, LIMIT).count == 6


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the consumer listens once more for each")
def test_later_workers_need_no_other_socket_to_connect_to():
    with Sockets() as sockets:
        sockets.senders[0].send(Message(Kind.HELLO, 0))
        assert receive(sockets.receiver, LIMIT).kind is Kind.HELLO
        before = len(os.listdir("/proc/self/fd"))
        sockets.receiver.stop_accepting()
        for _ in range(3):
            sockets.receiver.port_of_successor(0)
        # The directory's descriptor was closed, and one that stands for the socket's file opened.
        wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, LIMIT, "there are others")


def test_a_channel_that_was_never_opened_leaves_nothing():
    before = socket_directories()
    channel = SocketChannel(1)
    assert socket_directories() != before
    channel.close()
    channel.close()
    assert socket_directories() == before


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


def test_a_long_temporary_directory_is_passed_over(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    before = set(os.listdir("/tmp"))
    channel = SocketChannel(1)
    receiver = channel.open_receiver()
    sender = channel.port(0).open()
    sender.send(Message(Kind.HELLO, 0))
    assert receive(receiver, LIMIT).kind is Kind.HELLO
    assert not list(long.iterdir())
    sender.close(0)
    receiver.close()
    assert not [name for name in set(os.listdir("/tmp")) - before if name in channel_names(channel)]


def channel_names(channel):
    return [os.path.basename(os.path.dirname(channel.port(0)._address.removeprefix("ipc://")))]


def test_where_no_path_is_short_enough_the_message_names_the_cure(monkeypatch):
    monkeypatch.setattr(zmq, "IPC_PATH_MAX_LEN", 10)
    before = socket_directories()
    with pytest.raises(OSError, match=r"10 bytes.*Set TMPDIR to a shorter path"):
        SocketChannel(1)
    assert socket_directories() == before


def test_closing_gives_every_descriptor_back():
    before = len(os.listdir("/proc/self/fd"))
    with Sockets(3) as sockets:
        for k, sender in enumerate(sockets.senders):
            sender.send(Message(Kind.HELLO, k))
            assert receive(sockets.receiver, LIMIT)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, LIMIT, "descriptors are left")


@pytest.mark.slow
def test_a_signal_while_it_closes_leaves_no_descriptor():
    """Also one with a handler of a C library, which nothing here can defer."""
    before, arrived = len(os.listdir("/proc/self/fd")), []
    handler = signal.signal(signal.SIGALRM, lambda *_: arrived.append(None))
    try:
        for _ in range(200):
            channel = SocketChannel(1)
            with closing(channel.open_receiver()):
                sender = channel.port(0).open()
                sender.send(data(0, 5, b"x"))
                signal.setitimer(signal.ITIMER_REAL, 2e-5, 2e-5)
                sender.close(LIMIT)
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert arrived
    assert len(os.listdir("/proc/self/fd")) == before
