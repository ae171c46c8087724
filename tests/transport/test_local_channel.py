"""Pipes and queues: messages in pieces, torn messages, big ones, many frames, several writers."""

import fcntl
import os
import signal
import struct
import termios
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.transport.local_channel import PipeChannel, ThreadChannel
from dataflow.transport.messages import ConsumerGone, Kind, Message
from tests.support.fakes import receive
from tests.support.faults import Interrupted, is_interrupted_at, raise_interrupted
from tests.support.waits import LIMIT, wait_until


class Pipes:
    """A channel of several pipes, with both ends in this process."""

    def __init__(self, num_workers=1):
        self.channel = PipeChannel(num_workers)
        self.ports = [self.channel.port(k) for k in range(num_workers)]
        self.ends = [port.descriptors()[0] for port in self.ports]
        self.senders = [port.open() for port in self.ports]
        self.receiver = self.channel.open_receiver()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.receiver.close()
        self.channel.close()

    def drain(self, count=None, timeout=LIMIT):
        """What arrives until there is silence, or until there are `count` messages."""
        found = []
        while count is None or len(found) < count:
            message = receive(self.receiver, timeout if count else 0.02)
            if message is None:
                break
            found.append((message.kind, message.worker, message.count, [bytes(frame) for frame in message.body]))
        return found


def data(worker, count, *frames):
    return Message(Kind.DATA, worker, count, sum(map(len, frames)), list(frames))


def sent(message):
    return (message.kind, message.worker, message.count, [bytes(frame) for frame in message.body])


def _read_end(pipes):
    """The number of the read end: the other descriptor of the same pipe."""
    inode = os.fstat(pipes.ends[0].fd).st_ino
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    for number in numbers:
        try:
            if number != pipes.ends[0].fd and os.fstat(number).st_ino == inode:
                return number
        except OSError:
            continue
    raise AssertionError("no read end")


@pytest.mark.parametrize(
    "messages",
    [
        [Message(Kind.HELLO, 0)],
        [data(0, 1, b"")],
        [data(0, 2, b"a", b"bc"), Message(Kind.ENDED, 0)],
        [data(0, 500, *[b"x" * (k % 20) for k in range(500)])],
        [data(0, 1, b"y" * 3), data(0, 1, b""), Message(Kind.ERROR, 0, body=[b"z"])],
    ],
    ids=["hello", "empty frame", "two", "many frames", "three"],
)
def test_messages_arrive_as_they_were_sent(messages):
    with Pipes() as pipes:
        for message in messages:
            pipes.senders[0].send(message)
        assert pipes.drain() == [sent(message) for message in messages]


def test_any_buffer_can_be_a_frame():
    import array

    with Pipes() as pipes:
        pipes.senders[0].send(Message(Kind.DATA, 0, 1, 0, [memoryview(b"ab"), bytearray(b"c"), array.array("i", [1])]))
        assert pipes.drain() == [(Kind.DATA, 0, 1, [b"ab", b"c", (1).to_bytes(4, "little")])]


def test_messages_larger_than_the_pipe_arrive_whole():
    frames = [os.urandom(3 << 20), b"", os.urandom(700_001)]
    with Pipes() as pipes:
        writer = threading.Thread(daemon=True, target=lambda: pipes.senders[0].send(data(0, 3, *frames)))
        writer.start()
        assert pipes.drain(1) == [(Kind.DATA, 0, 3, frames)]
        writer.join()


@given(st.lists(st.lists(st.binary(max_size=30), max_size=3), max_size=5), st.data())
@settings(max_examples=40)
def test_a_message_may_come_in_any_pieces(bodies, draw):
    messages = [data(0, k, *body) for k, body in enumerate(bodies)]
    pipes, stream = Pipes(), b""
    with pipes:
        for message in messages:
            pipes.senders[0].send(message)
        if messages:
            stream = os.read(_read_end(pipes), 1 << 16)
        cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        found = []
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            os.write(pipes.ends[0].fd, stream[begin:end])
            while (message := receive(pipes.receiver, 0)) is not None:
                found.append(sent(message))
        assert found == [sent(message) for message in messages]


def test_a_message_torn_at_any_byte_is_neither_delivered_nor_waited_for():
    whole, torn, cut, length = data(0, 1, b"whole"), data(0, 2, b"never", b"seen"), 0, 1
    while cut < length:
        with Pipes(2) as pipes:
            pipes.senders[0].send(torn)
            stream = os.read(_read_end(pipes), 1 << 16)
            length = len(stream)
            pipes.senders[0].send(whole)
            os.write(pipes.ends[0].fd, stream[:cut])
            pipes.senders[0].close(0)
            pipes.senders[1].send(data(1, 3, b"other"))
            assert sorted(pipes.drain(2)) == [sent(whole), (Kind.DATA, 1, 3, [b"other"])]
            began = time.monotonic()
            assert receive(pipes.receiver, 0.001) is None
            assert time.monotonic() - began < LIMIT / 2
        cut += 1


def test_a_message_that_a_signal_handler_interrupts_is_completed_before_the_next():
    """The handler raises while the writer is blocked by a full pipe, with a part of the message in it."""
    large, last = data(0, 3, os.urandom(3 << 20), b"end"), Message(Kind.LEFT, 0, body=[b"bye"])
    begun, found = [], []
    with Pipes() as pipes:
        read_end, capacity = _read_end(pipes), fcntl.fcntl(pipes.ends[0].fd, fcntl.F_GETPIPE_SZ)
        interrupted = threading.Event()

        def consume():
            wait_until(lambda: _num_readable(read_end) == capacity, LIMIT, "the pipe is not full")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            interrupted.wait(LIMIT)
            found.extend(pipes.drain(2))

        before = signal.signal(signal.SIGUSR1, raise_interrupted)
        consumer = threading.Thread(daemon=True, target=consume)
        try:
            consumer.start()
            with pytest.raises(Interrupted):
                pipes.senders[0].send(large, begun)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert sum(begun) == capacity  # the message counts as sent
        interrupted.set()
        pipes.senders[0].send(last)
        consumer.join(LIMIT)
    assert found == [sent(large), sent(last)]


def _num_readable(fd):
    (num,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return num


def test_wherever_a_handler_raises_a_message_is_sent_whole_and_counts_as_sent_or_neither():
    first, second, k, is_interrupted = data(0, 1, b"first", b""), data(0, 2, b"second"), 0, True
    while is_interrupted:
        begun = []
        with Pipes() as pipes:
            is_interrupted = is_interrupted_at(k, lambda: pipes.senders[0].send(first, begun))  # noqa: B023
            pipes.senders[0].send(second)
            assert pipes.drain() == [sent(first)] * bool(begun) + [sent(second)]
        k += 1
    assert begun


def test_writers_do_not_tear_each_others_messages():
    num, each = 4, 200
    frames = [os.urandom(1000 * (k + 1)) for k in range(num)]
    with Pipes(num) as pipes:

        def write(k):
            for n in range(each):
                pipes.senders[k].send(data(k, n, frames[k], b"end"))

        writers = [threading.Thread(daemon=True, target=write, args=(k,)) for k in range(num)]
        for writer in writers:
            writer.start()
        found = pipes.drain(num * each)
        for writer in writers:
            writer.join()
    for k in range(num):
        mine = [message for message in found if message[1] == k]
        assert mine == [(Kind.DATA, k, n, [frames[k], b"end"]) for n in range(each)]


def test_a_message_of_another_run_is_passed_over_and_the_next_is_received():
    with Pipes() as pipes, Pipes() as others:
        others.senders[0].send(data(0, 1, b"forged"))
        os.write(pipes.ends[0].fd, os.read(_read_end(others), 1 << 16))
        pipes.senders[0].send(data(0, 2, b"honest"))
        assert pipes.drain(1) == [(Kind.DATA, 0, 2, [b"honest"])]


def test_the_end_of_a_pipe_is_signalled_once():
    with Pipes(2) as pipes:
        pipes.senders[0].close(0)
        assert pipes.receiver.wait(LIMIT)
        assert pipes.receiver.receive_nowait() is None
        assert not pipes.receiver.wait(0.05)
        pipes.senders[1].send(Message(Kind.HELLO, 1))
        assert receive(pipes.receiver, LIMIT).worker == 1


def test_receiving_waits_no_longer_than_it_is_told_when_all_pipes_have_ended():
    with Pipes() as pipes:
        pipes.senders[0].close(0)
        receive(pipes.receiver, 0.01)
        began = time.monotonic()
        assert receive(pipes.receiver, 0.1) is None
        assert 0.05 < time.monotonic() - began < LIMIT / 2


def test_a_watched_descriptor_wakes_the_receiver():
    read, write = os.pipe()
    os.close(write)
    with Pipes() as pipes:
        began = time.monotonic()
        assert receive(pipes.receiver, LIMIT, [read]) is None
        assert time.monotonic() - began < LIMIT / 2
        pipes.senders[0].send(Message(Kind.HELLO, 0))
        assert receive(pipes.receiver, LIMIT, [read]).kind is Kind.HELLO  # what is there goes before what is watched
    os.close(read)


def test_a_writer_that_waits_is_let_go_when_nobody_reads_any_more():
    with Pipes() as pipes:
        ended = []

        def write():
            try:
                while True:
                    pipes.senders[0].send(data(0, 1, bytes(100_000)))
            except ConsumerGone:
                ended.append(True)

        writer = threading.Thread(daemon=True, target=write)
        writer.start()
        receive(pipes.receiver, LIMIT)
        pipes.receiver.stop()
        writer.join(LIMIT)
        assert ended
        pipes.senders[0].close(0)


def test_closing_gives_every_descriptor_back_and_may_be_repeated():
    before = len(os.listdir("/proc/self/fd"))
    with Pipes(3) as pipes:
        assert len(os.listdir("/proc/self/fd")) == before + 6
        pipes.ports[0].close_in_parent()
        pipes.receiver.close()
        pipes.receiver.close()
        pipes.channel.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_receiver_gives_nothing_more():
    with Pipes() as pipes:
        pipes.senders[0].send(Message(Kind.HELLO, 0))
        pipes.receiver.stop()
        assert receive(pipes.receiver, 0) is None


# -- between threads ---------------------------------------------------------------------------------------------------


def test_between_threads_messages_keep_their_order_and_their_objects():
    channel = ThreadChannel()
    sender, receiver = channel.port(0).open(), channel.open_receiver()
    body = [object()]
    for k in range(3):
        sender.send(Message(Kind.DATA, 0, k, 0, body))
    assert [receive(receiver, 0.1).count for _ in range(3)] == [0, 1, 2]
    assert receive(receiver, 0.001) is None
    sender.send(Message(Kind.DATA, 0, 9, 0, body))
    assert receive(receiver, 0.1).body is body
    receiver.close()


def test_a_thread_channel_holds_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    channel = ThreadChannel()
    assert channel.port(1).descriptors() == ()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_that_an_interrupted_wait_has_left_behind_is_ignored():
    read, write = os.pipe()
    with Pipes() as pipes:
        pipes.receiver._poll.register(read)  # as `wait` does for the end of a worker
        os.close(write)
        assert pipes.receiver.receive_nowait() is None
        assert not pipes.receiver.wait(0.0), "it would be ready at once, again and again"
    os.close(read)
