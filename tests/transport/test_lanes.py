"""Lanes: order, wrap-around, what does not fit, what is half written, who wakes whom."""

import os
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.descriptors import handing_over
from dataflow.transport import lanes, vigil
from dataflow.transport.lanes import LaneChannel, with_lanes
from dataflow.transport.messages import Kind, Message
from dataflow.transport.queues import PipeChannel
from dataflow.transport.sockets import SocketChannel
from tests.support.fakes import receive

LIMIT = 60.0  # seconds after which something hangs
CHANNELS = pytest.mark.parametrize("channel", [PipeChannel, SocketChannel])
LANE = 256 << 10

pytestmark = pytest.mark.skipif(not lanes._POSSIBLE, reason="lanes are for x86")


class Lanes:
    """Both ends in this process, and every worker has said hello."""

    def __init__(self, channel=PipeChannel, num_workers=1, hello=True):
        self.channel = LaneChannel(channel(num_workers), num_workers)
        ports = [self.channel.port(k) for k in range(num_workers)]
        self.senders = [port.open() for port in ports]
        self.receiver = self.channel.open_receiver()
        if hello:
            for k, sender in enumerate(self.senders):
                sender.send(Message(Kind.HELLO, k))
            for _ in self.senders:
                assert receive(self.receiver, LIMIT).kind is Kind.HELLO

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.receiver.close()
        self.channel.close()
        for sender in self.senders:
            sender.close(0)

    def heard(self, count):
        return [content(receive(self.receiver, LIMIT)) for _ in range(count)]


def data(*frames, worker=0):
    return Message(Kind.DATA, worker, 1, sum(map(len, frames)), list(frames))


def content(message):
    return message.worker, [bytes(frame) for frame in message.body]


@CHANNELS
def test_messages_are_taken_without_a_call_of_the_channel(channel, monkeypatch):
    with Lanes(channel) as both:
        calls = []
        receiver = both.receiver._receiver
        monkeypatch.setattr(receiver, "take", lambda: calls.append("take"))
        for k in range(5):
            both.senders[0].send(data(b"%d" % k, b""))
        assert [content(both.receiver.take()) for _ in range(5)] == [(0, [b"%d" % k, b""]) for k in range(5)]
        assert not calls


sizes = st.one_of(st.integers(0, 200), st.integers(0, LANE // 2), st.integers(LANE - 200, LANE + 200))


@given(st.lists(st.tuples(sizes, st.integers(0, 3)), max_size=30))
@settings(deadline=None, max_examples=60)
def test_order_holds_whatever_fits_and_however_fast_it_is_taken(steps):
    with Lanes() as both:
        sent, heard = [], []
        for k, (size, taken) in enumerate(steps):
            if sum(len(message) for message in sent[len(heard) :]) + size < 3 * LANE:  # a pipe holds no more
                sent.append(bytes([k]) * size)
                both.senders[0].send(data(sent[-1]))
            heard += [frames[0] for _, frames in both.heard(min(taken, len(sent) - len(heard)))]
        heard += [frames[0] for _, frames in both.heard(len(sent) - len(heard))]
        assert heard == sent
        assert both.receiver.take() is None
        assert not both.receiver.wait(0)


@CHANNELS
def test_what_finds_no_room_is_heard_in_its_turn(channel):
    with Lanes(channel) as both:
        frames = [b"a" * (LANE - 1000), b"b" * 2000, b"c"]  # the second finds no room; the third would find some
        for frame in frames:
            both.senders[0].send(data(frame))
        assert both.heard(3) == [(0, [frame]) for frame in frames]


def test_a_lane_that_was_emptied_is_used_from_its_beginning_again():
    with Lanes() as both:
        lane = both.senders[0]._lane
        for _ in range(200):
            both.senders[0].send(data(b"x" * 5000))
            assert both.heard(1) == [(0, [b"x" * 5000])]
            assert lane._head % LANE < 11_000  # two messages


def test_a_message_that_was_half_written_is_not_seen():
    with Lanes() as both:
        with pytest.raises((TypeError, ValueError)):
            both.senders[0]._lane.write([b"first", ["no", "buffer"]], 1)
        assert both.receiver.take() is None
        both.senders[0].send(data(b"whole"))
        assert both.heard(1) == [(0, [b"whole"])]


def test_after_a_lost_message_nothing_of_its_worker_is_heard():
    """A killed worker may take one with it that the channel's own thread had in hand; later ones do not follow it."""
    with Lanes(num_workers=2) as both:
        sender = both.senders[0]
        sender._number += 1  # sent, and lost
        sender.send(data(b"later"))
        assert both.receiver.take() is None
        assert not both.receiver.wait(0)
        both.senders[1].send(data(b"other", worker=1))
        assert both.heard(1) == [(1, [b"other"])]


def test_one_that_came_through_the_channel_is_heard_while_another_lane_is_never_empty():
    with Lanes(num_workers=2) as both:
        both.senders[1].send(data(b"z" * (LANE + 1), worker=1))
        for _ in range(1000):
            both.senders[0].send(data(b"a"))
            worker, _ = content(receive(both.receiver, LIMIT))
            if worker == 1:
                return
        raise AssertionError("it was never heard")


def test_the_successor_of_a_worker_begins_anew():
    with Lanes(SocketChannel) as both:
        both.senders[0]._number += 1  # lost, as the worker was killed
        both.senders[0].send(data(b"in the lane"))
        both.senders[0].send(data(b"z" * (LANE + 1)))
        while not both.receiver._early[0]:
            assert both.receiver.take() is None
        port = both.receiver.readmit(0)
        successor = port.open()
        port.hand_over()
        successor.send(Message(Kind.HELLO, 0))
        successor.send(data(b"new"))
        kinds = []
        while not kinds or kinds[-1] is not Kind.DATA:
            message = receive(both.receiver, LIMIT)
            kinds.append(message.kind)
        assert content(message) == (0, [b"new"])
        successor.close(0)


def _send_now_and_then(port, count, seed):
    rng = random.Random(seed)
    sender = port.open()
    sender.send(Message(Kind.HELLO, 0))
    for k in range(count):
        sender.send(data(b"%d" % k))
        if rng.random() < 0.2:
            time.sleep(rng.random() * 3e-4)
    sender.close(LIMIT)


@CHANNELS
@pytest.mark.parametrize("awake", [False, True])
def test_no_message_is_slept_over(channel, awake, monkeypatch):
    """The consumer goes to sleep as often as it can, for so long that one that is slept over is seen."""
    if not awake:
        monkeypatch.setattr(vigil, "_SHORT", 0.0)
    count = 3000
    both = LaneChannel(channel(1), 1)
    port = both.port(0)
    with handing_over(*port.descriptors()):
        pid = os.fork()
    if not pid:
        try:
            _send_now_and_then(port, count, 3)
        finally:
            os._exit(0)
    port.hand_over()
    receiver = both.open_receiver()
    heard = []
    try:
        while len(heard) < count:
            message = receiver.take()
            if message is None:
                assert receiver.wait(LIMIT), f"after {len(heard)} messages"
            elif message.kind is Kind.DATA:
                heard.append(int(bytes(message.body[0])))
    finally:
        receiver.close()
        both.close()
        os.waitpid(pid, 0)
    assert heard == list(range(count))


def rings(both):
    """Whether the bell has rung; it is quiet then."""
    return both.receiver._bell.quiet()


def test_a_consumer_that_sleeps_is_woken_and_only_once():
    with Lanes() as both:
        sender, rung = both.senders[0], []
        for k, asleep in enumerate([False, True, None, None, True]):
            if asleep is not None:
                sender._lane.words[lanes._ASLEEP] = asleep
            sender.send(data(b"%d" % k))
            rung.append(rings(both))
        assert rung == [False, True, False, False, True]
        assert both.heard(5) == [(0, [b"%d" % k]) for k in range(5)]


def test_a_consumer_that_falls_asleep_while_a_message_is_written_is_woken(monkeypatch):
    with Lanes() as both:
        lane = both.senders[0]._lane
        write = lane.write

        def written(*args):
            done = write(*args)
            lane.words[lanes._ASLEEP] = True
            return done

        monkeypatch.setattr(lane, "write", written)
        both.senders[0].send(data(b"a"))
        assert rings(both)
        assert both.heard(1) == [(0, [b"a"])]


def test_a_bell_that_was_rung_too_late_does_not_end_the_wait(monkeypatch):
    """Its worker has seen the consumer asleep, and the consumer has found the message before it rang."""
    monkeypatch.setattr(vigil, "_SHORT", 0.0)
    with Lanes() as both:
        receiver, waits = both.receiver._receiver, []

        def wait(timeout, watched):
            waits.append(timeout)
            if len(waits) == 2:
                both.senders[0].send(data(b"a"))
            return False

        monkeypatch.setattr(receiver, "wait", wait)
        both.receiver._bell.ring()
        assert both.receiver.wait(LIMIT)
        assert len(waits) == 2
        assert 0 < waits[1] <= waits[0] == LIMIT
        both.heard(1)
        assert not both.receiver.wait(0)


@CHANNELS
def test_what_is_watched_may_change_from_wait_to_wait(channel):
    with Lanes(channel) as both:
        quiet, still_open = os.pipe()
        ended, write = os.pipe()
        os.close(write)
        watched = [quiet]
        assert not both.receiver.wait(0.05, watched)
        watched.append(ended)
        began = time.monotonic()
        assert not both.receiver.wait(LIMIT, watched)
        assert time.monotonic() - began < LIMIT / 2
        for fd in (quiet, still_open, ended):
            os.close(fd)
        both.senders[0].send(data(b"a"))
        assert both.receiver.wait(LIMIT) and both.heard(1) == [(0, [b"a"])]


def test_one_that_goes_through_the_channel_wakes_too(monkeypatch):
    monkeypatch.setattr(vigil, "_SHORT", 0.0)
    with Lanes() as both:
        both.senders[0].send(data(b"a" * (LANE + 1)))
        assert both.receiver.wait(LIMIT)


def test_where_stores_may_be_seen_in_another_order_or_there_is_no_bell_there_are_no_lanes(monkeypatch):
    channel = PipeChannel(1)
    monkeypatch.setattr(lanes, "_POSSIBLE", False)
    assert with_lanes(channel, 1) is channel
    channel.close()
