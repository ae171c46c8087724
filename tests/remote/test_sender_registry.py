"""Who sends, and what they owe."""

import pytest

from dataflow.remote import sender_registry
from dataflow.remote.peer_messages import Hello
from dataflow.remote.sender_registry import SenderRegistry


def hello(source):
    return Hello("somebody", repr(source), 2.0, None)


def begun(num_senders, *senders):
    registry = SenderRegistry(num_senders)
    registry.begin_pass()
    for sender in senders:
        assert registry.register(sender, sender, hello(sender), 0.0)
        registry.record_message(registry.find(sender, sender), 0.0)
    return registry


def test_a_pass_is_complete_when_as_many_as_agreed_have_ended():
    registry = begun(2, b"a", b"b")
    registry.end(registry.find(b"a", b"a"))
    assert not registry.complete
    registry.end(registry.find(b"b", b"b"))
    assert registry.complete
    registry.end_pass()
    assert not registry.complete


def test_who_comes_too_early_waits_for_the_next_pass():
    registry = begun(1, b"a")
    assert not registry.register(b"b", b"b", hello(b"b"), 0.0)
    registry.end(registry.find(b"a", b"a"))
    assert not registry.register(b"b", b"b", hello(b"b"), 0.0)
    registry.end_pass()
    assert not registry.register(b"b", b"b", hello(b"b"), 0.0)  # between two passes
    assert [entry.sender for entry in registry.begin_pass()] == [b"b"]
    assert registry.register(b"b", b"b", hello(b"b"), 0.0)  # it asks again, as the answer was on its way


def test_a_source_that_is_fast_does_not_send_two_passes_in_one():
    registry = begun(2, b"a")
    registry.end(registry.find(b"a", b"a"))
    assert not registry.register(b"its next call", b"p", hello(b"a"), 0.0)
    assert registry.register(b"b", b"b", hello(b"b"), 0.0)
    registry.end(registry.find(b"b", b"b"))
    registry.end_pass()
    assert [entry.sender for entry in registry.begin_pass()] == [b"its next call"]


def test_without_a_number_everybody_is_welcome_and_no_pass_ends():
    registry = begun(None, b"a", b"b", b"c")
    registry.end(registry.find(b"a", b"a"))
    assert not registry.complete
    assert registry.find(b"a", b"a") is None
    assert registry.register(b"d", b"d", hello(b"d"), 0.0)


def test_nobody_speaks_for_somebody_else():
    registry = begun(None, b"a")
    assert registry.find(b"a", b"another peer") is None
    assert not registry.register(b"a", b"another peer", hello(b"a"), 0.0)
    assert registry.find(b"a", b"a") is not None


def test_who_is_silent_for_three_heartbeats_is_lost():
    registry = begun(2, b"a", b"b")
    registry.record_message(registry.find(b"a", b"a"), 5.0)
    assert registry.find_lost(6.0) is None
    assert registry.find_lost(6.1).sender == b"b"


def test_who_never_began_is_forgotten_and_gives_up_its_seat():
    registry = begun(1)
    assert registry.register(b"a", b"a", hello(b"a"), 0.0)
    assert registry.find_lost(6.1) is None
    assert registry.register(b"b", b"b", hello(b"b"), 6.1)


def test_who_has_ended_need_not_give_a_sign_of_life():
    registry = begun(2, b"a", b"b")
    registry.end(registry.find(b"a", b"a"))
    registry.record_message(registry.find(b"b", b"b"), 100.0)
    assert registry.find_lost(100.0) is None


@pytest.mark.parametrize("num", [1, 2, 50])
def test_a_sender_that_lives_is_received_before_it_counts_as_lost(num):
    """However long the consumer stays away: one look for each sender suffices."""
    senders = [bytes([k]) for k in range(num)]
    registry = begun(None, *senders)
    now = 0.0
    for _ in range(10):
        for sender in senders:
            now += registry.longest_pause()
            registry.record_message(registry.find(sender, sender), now)
            assert registry.find_lost(now) is None


def test_all_senders_are_iterated_those_that_wait_too():
    registry = begun(1, b"a")
    registry.register(b"b", b"b", hello(b"b"), 0.0)
    assert [entry.sender for entry in registry] == [b"a", b"b"]


def test_a_pass_is_open_from_its_beginning_to_its_end_only():
    registry = SenderRegistry(1)
    assert registry.complete is False
    assert not registry.register(b"a", b"a", hello(b"a"), 0.0)
    registry.begin_pass()
    registry.end(registry.find(b"a", b"a"))
    assert registry.complete is True
    registry.end_pass()
    assert registry.complete is False


def test_of_two_that_wait_with_one_source_the_last_to_come_is_welcome():
    registry = SenderRegistry(2)
    for sender in (b"first", b"second"):
        assert not registry.register(sender, sender, hello("the same"), 0.0)
    assert [entry.sender for entry in registry.begin_pass()] == [b"second"]


def test_a_sender_that_waited_and_is_welcome_does_not_wait_any_more():
    registry = begun(1, b"a")
    assert not registry.register(b"b", b"b", hello(b"b"), 0.0)
    registry.remove(registry.find(b"a", b"a"))
    assert registry.register(b"b", b"b", hello(b"b"), 0.0)
    assert [entry.sender for entry in registry] == [b"b"]


def test_strangers_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(sender_registry, "_MAX_SENDERS", 2)
    registry = begun(None, b"a", b"b")
    for sender in (b"c", b"d", b"e"):
        assert not registry.register(sender, sender, hello(sender), 0.0)
    assert [entry.sender for entry in registry] == [b"a", b"b", b"c", b"d"]


def test_one_that_is_removed_is_not_found_any_more_and_may_be_removed_again():
    registry = begun(None, b"a")
    entry = registry.find(b"a", b"a")
    registry.remove(entry)
    registry.remove(entry)
    assert registry.find(b"a", b"a") is None


def test_only_senders_that_are_confirmed_and_have_not_ended_shorten_the_longest_pause():
    registry = begun(3)
    assert registry.longest_pause() == 1 / 4
    for sender, heartbeat in ((b"a", 2.0), (b"b", 0.1), (b"c", 0.2)):
        registry.register(sender, sender, Hello("somebody", repr(sender), heartbeat, None), 0.0)
    for sender in (b"a", b"c"):
        registry.record_message(registry.find(sender, sender), 0.0)
    registry.end(registry.find(b"c", b"c"))
    assert registry.longest_pause() == 6.0 / 4


def test_the_state_tells_who_is_there():
    registry = begun(3, b"a", b"b")
    registry.find(b"a", b"a").received = 7
    registry.end(registry.find(b"b", b"b"))
    assert registry.describe() == "2 of 3 senders have come, 1 have ended; somebody: 7 datapoints"
    registry.register(b"c", b"c", registry.find(b"a", b"a").hello, 0.0)  # another call of the same sender
    assert registry.describe().endswith("; somebody: 7 datapoints; 1 wait for the next pass")
    assert SenderRegistry(None).describe() == "0 senders have come, 0 have ended"
