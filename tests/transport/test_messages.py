"""Messages: there and back, and what is refused unread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.transport.messages import TOKEN_BYTES, Kind, Message, new_token, pack, unpack

TOKEN = bytes(range(TOKEN_BYTES))


@given(
    st.sampled_from(Kind),
    st.integers(0, 6),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(st.binary(max_size=20), max_size=5),
)
def test_a_message_comes_back_as_it_was(kind, worker, count, nbytes, body):
    frames = [bytes(frame) for frame in pack(TOKEN, Message(kind, worker, count, nbytes, body))]
    assert unpack(TOKEN, 7, frames) == Message(kind, worker, count, nbytes, body)


GOOD = pack(TOKEN, Message(Kind.DATA, 1, 2, 3, [b"body"]))


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([], id="no frames"),
        pytest.param([b""], id="an empty header"),
        pytest.param([GOOD[0][:-1], b"body"], id="a short header"),
        pytest.param([GOOD[0] + b"x", b"body"], id="a long header"),
        pytest.param([TOKEN], id="the token alone"),
        pytest.param([b"x" + GOOD[0][1:], b"body"], id="another first byte"),
        pytest.param(pack(new_token(), Message(Kind.DATA, 1)), id="another token"),
        pytest.param(pack(TOKEN, Message(Kind.DATA, 2)), id="a worker too many"),
        pytest.param([b"body", GOOD[0]], id="frames in the wrong order"),
    ],
)
def test_a_message_that_no_worker_sent_is_refused(frames):
    assert unpack(TOKEN, 2, frames) is None


def test_a_header_may_come_as_any_buffer():
    assert unpack(TOKEN, 2, [memoryview(GOOD[0]), memoryview(b"body")]).count == 2


def test_tokens_differ():
    assert len({new_token() for _ in range(100)}) == 100
