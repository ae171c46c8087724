"""Messages: there and back, and what is refused unread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.transport.messages import NO_TASK, TOKEN_BYTES, Kind, Message, new_token, pack, unpack

TOKEN = bytes(range(TOKEN_BYTES))


@given(
    st.sampled_from(Kind),
    st.integers(0, 6),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(st.binary(max_size=20), max_size=5),
    st.integers(NO_TASK, 2**63 - 1),
    st.floats(0, 1e9),
)
def test_a_message_comes_back_as_it_was(kind, worker, count, nbytes, body, task, pace):
    message = Message(kind, worker, count, nbytes, body, task, pace)
    assert unpack(TOKEN, 7, packed(message)) == message


def packed(message, token=TOKEN):
    return b"".join(pack(token, message))


GOOD = packed(Message(Kind.DATA, 1, 2, 3, [b"body"]))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"body", id="a body alone"),
        pytest.param(TOKEN, id="the token alone"),
        pytest.param(GOOD[:32], id="a short header"),
        pytest.param(GOOD[:-1], id="a short body"),
        pytest.param(GOOD + b"x", id="a byte too many"),
        pytest.param(b"x" + GOOD[1:], id="another first byte"),
        pytest.param(packed(Message(Kind.DATA, 1), new_token()), id="another token"),
        pytest.param(packed(Message(Kind.DATA, 2)), id="a worker too many"),
        pytest.param(GOOD[TOKEN_BYTES:] + TOKEN, id="the token at the end"),
    ],
)
def test_a_message_that_no_worker_sent_is_refused(data):
    assert unpack(TOKEN, 2, data) is None


def test_a_message_may_come_as_any_buffer():
    assert unpack(TOKEN, 2, memoryview(GOOD)).count == 2


def test_tokens_differ():
    assert len({new_token() for _ in range(100)}) == 100
