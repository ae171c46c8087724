"""Peer messages: what is written is read, and invalid ones are None."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.remote.peer_messages import Hello, PeerMessage, PeerMessageKind, SendLimits, pack, parse, readable

IDS = st.binary(min_size=16, max_size=16)


@given(
    st.sampled_from(PeerMessageKind),
    IDS,
    IDS,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.binary()),
)
def test_a_message_is_read_as_it_was_written(kind, run, sender, number, count, body):
    peer_message = PeerMessage(kind, run, sender, number, count, body)
    assert parse(pack(peer_message)) == peer_message


@given(st.lists(st.binary(max_size=80), max_size=3))
def test_any_bytes_are_a_message_or_none(frames):
    peer_message = parse(frames)
    assert peer_message is None or isinstance(peer_message.kind, PeerMessageKind)
    for kind in (Hello, SendLimits):
        kind.parse(frames)


def test_a_message_of_another_version_or_kind_is_none():
    head = pack(PeerMessage(PeerMessageKind.BEAT))[0]
    assert parse([head]) is not None
    assert parse([b"DFR2" + head[4:]]) is None
    assert parse([head[:4] + b"\0" + head[5:]]) is None
    assert parse([head[:4] + b"\x63" + head[5:]]) is None
    assert parse([head + b"\0"]) is None
    assert parse([head[:-1]]) is None
    assert parse([]) is None


@pytest.mark.parametrize("hello", [Hello("me (pid 7)", "x", 2.0, None), Hello("ü", "", 0.5, 10**6)])
def test_a_hello_is_read_as_it_was_written(hello):
    assert Hello.parse([hello.pack()]) == hello


@pytest.mark.parametrize("heartbeat", [0.0, -1.0, 1e-9, 1e9, float("inf"), float("nan")])
def test_a_hello_with_a_heartbeat_that_would_never_end_says_nothing(heartbeat):
    assert Hello.parse([Hello("me", "x", heartbeat, None).pack()]) is None


def test_text_from_elsewhere_holds_no_control_characters_and_has_an_end():
    assert readable("a\x1b[2J\nb\u202e") == "a [2J b "
    assert len(readable("x" * 10**6)) == 1000
    assert PeerMessage(PeerMessageKind.BYE, body=[b"\xff\n"]).text == "\ufffd "
    assert PeerMessage(PeerMessageKind.BYE).text == ""
