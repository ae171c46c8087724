"""Who sends, and what they owe."""

import pytest

from dataflow.remote.messages import Hello
from dataflow.remote.sender_registry import SenderRegistry


def hello(source):
    return Hello("somebody", repr(source), 2.0, None)


def begun(num_senders, *senders):
    roll = SenderRegistry(num_senders)
    roll.begin()
    for sender in senders:
        assert roll.hello(sender, sender, hello(sender), 0.0)
        roll.heard(roll.find(sender, sender), 0.0)
    return roll


def test_a_pass_is_complete_when_as_many_as_agreed_have_ended():
    roll = begun(2, b"a", b"b")
    roll.ended(roll.find(b"a", b"a"))
    assert not roll.complete
    roll.ended(roll.find(b"b", b"b"))
    assert roll.complete
    roll.turn()
    assert not roll.complete


def test_who_comes_too_early_waits_for_the_next_pass():
    roll = begun(1, b"a")
    assert not roll.hello(b"b", b"b", hello(b"b"), 0.0)
    roll.ended(roll.find(b"a", b"a"))
    assert not roll.hello(b"b", b"b", hello(b"b"), 0.0)
    roll.turn()
    assert not roll.hello(b"b", b"b", hello(b"b"), 0.0)  # between two passes
    assert [entry.sender for entry in roll.begin()] == [b"b"]
    assert roll.hello(b"b", b"b", hello(b"b"), 0.0)  # it asks again, as the answer was on its way


def test_a_source_that_is_fast_does_not_send_two_passes_in_one():
    roll = begun(2, b"a")
    roll.ended(roll.find(b"a", b"a"))
    assert not roll.hello(b"its next call", b"p", hello(b"a"), 0.0)
    assert roll.hello(b"b", b"b", hello(b"b"), 0.0)
    roll.ended(roll.find(b"b", b"b"))
    roll.turn()
    assert [entry.sender for entry in roll.begin()] == [b"its next call"]


def test_without_a_number_everybody_is_welcome_and_no_pass_ends():
    roll = begun(None, b"a", b"b", b"c")
    roll.ended(roll.find(b"a", b"a"))
    assert not roll.complete
    assert roll.find(b"a", b"a") is None
    assert roll.hello(b"d", b"d", hello(b"d"), 0.0)


def test_nobody_speaks_for_somebody_else():
    roll = begun(None, b"a")
    assert roll.find(b"a", b"another peer") is None
    assert not roll.hello(b"a", b"another peer", hello(b"a"), 0.0)
    assert roll.find(b"a", b"a") is not None


def test_who_is_silent_for_three_heartbeats_is_lost():
    roll = begun(2, b"a", b"b")
    roll.heard(roll.find(b"a", b"a"), 5.0)
    assert roll.silent(6.0) is None
    assert roll.silent(6.1).sender == b"b"


def test_who_never_began_is_forgotten_and_gives_up_its_seat():
    roll = begun(1)
    assert roll.hello(b"a", b"a", hello(b"a"), 0.0)
    assert roll.silent(6.1) is None
    assert roll.hello(b"b", b"b", hello(b"b"), 6.1)


def test_who_has_ended_need_not_give_a_sign_of_life():
    roll = begun(2, b"a", b"b")
    roll.ended(roll.find(b"a", b"a"))
    roll.heard(roll.find(b"b", b"b"), 100.0)
    assert roll.silent(100.0) is None


@pytest.mark.parametrize("num", [1, 2, 50])
def test_whoever_lives_is_heard_before_it_counts_as_lost(num):
    """However long the consumer stays away: one look for each sender suffices."""
    senders = [bytes([k]) for k in range(num)]
    roll = begun(None, *senders)
    now = 0.0
    for _ in range(10):
        for sender in senders:
            now += roll.longest_pause()
            roll.heard(roll.find(sender, sender), now)
            assert roll.silent(now) is None


def test_the_state_tells_who_is_there():
    roll = begun(3, b"a", b"b")
    roll.find(b"a", b"a").received = 7
    roll.ended(roll.find(b"b", b"b"))
    assert roll.state() == "2 of 3 senders have come, 1 have ended; somebody: 7 datapoints"
