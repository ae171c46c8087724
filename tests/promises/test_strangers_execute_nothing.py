"""Strangers write what they like: nothing is executed, the receiver lives, and honest senders are served."""

import logging
import os
import pickle

import msgpack
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataflow import RemoteDataZMQ
from dataflow.remote.peer_messages import PeerMessage, PeerMessageKind, pack
from tests.formats.hostile import Hostile
from tests.support.senders import LOOPBACK, Sending, Stranger, look, numbers
from tests.support.waits import LIMIT, wait_until

EVIL = pickle.dumps(Hostile())
NUMPY = {b"nd": True, b"type": b"O", b"kind": b"O", b"shape": [1], b"data": EVIL}


def knocking(stranger):
    stranger.write([b""])
    stranger.write([EVIL])
    stranger.write([msgpack.packb(NUMPY), EVIL])
    stranger.write([os.urandom(1000)] * 5)


def as_if_it_were_known(stranger):
    for kind in PeerMessageKind:
        stranger.say(kind, 5, 5, [msgpack.packb(NUMPY), EVIL])


def with_a_broken_hello(stranger):
    for body in ([], [b""], [EVIL], [msgpack.packb(NUMPY)], [b"\xdd\xff\xff\xff\xff"], [bytes(10**6)]):
        stranger.say(PeerMessageKind.HELLO, body=body)


def cut_off(stranger):
    for head in (pack(PeerMessage(PeerMessageKind.DATA))[0], pack(PeerMessage(PeerMessageKind.HELLO))[0]):
        for end in range(0, len(head), 7):
            stranger.write([head[:end]])


ATTACKS = {attack.__name__: attack for attack in (knocking, as_if_it_were_known, with_a_broken_hello, cut_off)}


@pytest.fixture
def df():
    with RemoteDataZMQ(LOOPBACK, num_senders=1, timeout=LIMIT) as df:
        df.reset_state()
        yield df


def is_refused(caplog):
    return any("refused a message" in record.getMessage() for record in caplog.records)


def serve(df, n=100):
    """An honest sender is served as if nothing were."""
    sending = Sending(numbers(n), df.addresses[0])
    assert [k for (k,) in df] == list(range(n))
    assert sending.wait_result() == n
    assert not Hostile.harmed


@pytest.mark.parametrize("attack", ATTACKS)
def test_messages_of_a_stranger_are_refused_and_logged_once(attack, df, caplog):
    iter(df)
    with Stranger(df.addresses[0]) as stranger:
        ATTACKS[attack](stranger)
        wait_until(lambda: look(df) or is_refused(caplog), LIMIT, "nothing was refused")
        serve(df)
        ATTACKS[attack](stranger)
        serve(df)
    refused = [record for record in caplog.records if record.name == "dataflow.remote.receiving"]
    assert len(refused) == 1
    assert refused[0].levelno == logging.WARNING


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [msgpack.packb([NUMPY]), EVIL],
        [msgpack.packb([msgpack.ExtType(9, EVIL)]), b""],
        [b"\x91\x01", b"", b"more"],
        [b"\x91" * 10_000, b""],
    ],
)
def test_a_stranger_that_says_hello_and_then_nonsense_gives_up_its_seat(frames, df, caplog):
    iter(df)
    df._df_state.resource.begin_pass()
    with Stranger(df.addresses[0]) as stranger:
        stranger.join(lambda: look(df))
        stranger.say(PeerMessageKind.DATA, 0, 1, frames)
        answer = stranger.answer(lambda: look(df))
        assert answer.kind is PeerMessageKind.BYE
        assert "no datapoints" in answer.text
        serve(df)
    assert is_refused(caplog)


def test_frames_of_an_earlier_run_are_refused(df, caplog):
    with Stranger(df.addresses[0]) as stranger:
        iter(df)
        df._df_state.resource.begin_pass()
        stranger.join(lambda: look(df))
        address = df.addresses[0]
        df.close()
        with RemoteDataZMQ(address, num_senders=1, timeout=LIMIT) as again:
            again.reset_state()

            def answered():
                # Said again and again: what is written to a connection before its end is noticed goes with it.
                stranger.say(PeerMessageKind.DATA, 0, 1, [b"\x91\x91\x01", b""])
                list(again._df_state.resource.receive())
                return stranger.socket.poll(10) and stranger.answer().text

            texts = []
            wait_until(lambda: texts.append(answered()) or "was restarted" in str(texts), LIMIT, f"{texts}")
            serve(again)
    assert is_refused(caplog)


def test_a_stranger_that_knows_a_sender_cannot_speak_for_it(df):
    iter(df)
    df._df_state.resource.begin_pass()
    with Stranger(df.addresses[0]) as honest, Stranger(df.addresses[0]) as thief:
        honest.join(lambda: look(df))
        thief.run = honest.run
        thief.say(PeerMessageKind.DATA, 0, 1, [b"\x91\x91\x66", b""])
        thief.say(PeerMessageKind.END, 0)
        thief.hello()
        assert thief.answer(lambda: look(df)).kind is PeerMessageKind.WAIT
        honest.say(PeerMessageKind.DATA, 0, 1, [b"\x91\x91\x01", b""])
        honest.say(PeerMessageKind.END, 1)
        assert list(df) == [[1]]


def test_a_sender_that_comes_and_goes_without_a_word_changes_nothing(df):
    sending = Sending(numbers(2000), df.addresses[0])
    stream = iter(df)
    for _ in range(5):
        next(stream)
        with Stranger(df.addresses[0]) as stranger:
            stranger.write([b"x"])
    assert len(list(stream)) == 1995
    assert sending.wait_result() == 2000


def test_a_frame_longer_than_agreed_is_not_read():
    with RemoteDataZMQ(LOOPBACK, num_senders=1, hwm_bytes=1 << 16, timeout=LIMIT) as df:
        df.reset_state()
        with Stranger(df.addresses[0]) as stranger:
            monitor = stranger.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            stranger.socket.setsockopt(zmq.LINGER, 0)
            stranger.write([bytes(4 << 20)])
            assert monitor.poll(LIMIT * 1000), "the connection is still there"
            stranger.socket.disable_monitor()
            monitor.close()
        serve(df)


@pytest.fixture
def bombarded():
    with RemoteDataZMQ(LOOPBACK, timeout=LIMIT) as df:
        df.reset_state()
        iter(df)
        with Stranger(df.addresses[0]) as stranger:
            yield df, stranger


FRAMES = st.binary(max_size=60) | st.builds(
    lambda kind, body: pack(PeerMessage(kind, body=[body]))[0], st.sampled_from(PeerMessageKind), st.binary()
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(messages=st.lists(st.lists(FRAMES, min_size=1, max_size=3), min_size=1, max_size=5))
def test_no_bytes_at_all_harm_the_receiver(messages, bombarded):
    df, stranger = bombarded
    for frames in messages:
        stranger.write(frames)
    receiver = df._df_state.resource
    for _ in messages:
        assert list(receiver.receive()) == []
    assert receiver.usable
    assert not Hostile.harmed
