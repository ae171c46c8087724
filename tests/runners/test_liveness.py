"""Liveness: what each message means for its worker, when nothing more can come, and when a worker has died."""

import itertools

import pytest

from dataflow.runners.liveness import WorkerState, WorkerStates, has_died
from dataflow.transport.messages import Kind


def after_messages(num, *messages):
    worker_states = WorkerStates(num)
    for message in messages:
        worker_states.record_message(*message)
    return worker_states


@pytest.mark.parametrize(
    ("kind", "state", "awaits_last_message"),
    [
        (Kind.HELLO, WorkerState.CONNECTED, True),
        (Kind.DATA, WorkerState.CONNECTED, True),
        (Kind.ENDED, WorkerState.ENDED, False),
        (Kind.ERROR, WorkerState.FAILED, False),
        (Kind.LEFT, WorkerState.LEFT, False),
    ],
)
def test_a_message_decides_the_state_and_whether_the_last_one_is_outstanding(kind, state, awaits_last_message):
    worker_states = after_messages(2, (1, kind))
    assert worker_states.states == [WorkerState.STARTED, state]
    assert [worker_states.awaits_last_message(0), worker_states.awaits_last_message(1)] == [True, awaits_last_message]
    assert worker_states.unwatched == (set() if awaits_last_message else {1})


def test_datapoints_are_counted_for_each_worker():
    assert after_messages(2, (0, Kind.HELLO), (0, Kind.DATA, 3), (1, Kind.DATA, 4), (0, Kind.DATA, 5)).received == [
        8,
        4,
    ]
    assert after_messages(1, (0, Kind.LEFT, 7)).received == [0]  # an exit code is no number of datapoints


def test_a_message_counts_no_datapoints_and_comes_at_the_time_zero_unless_it_says_so():
    states = WorkerStates(1)
    states.quiet_seconds(0, -1.0)
    states.record_message(0, Kind.DATA)
    assert states.received == [0] and states.quiet_since == {0: 0.0}


def test_a_worker_that_has_died_stays_dead_whatever_was_under_way():
    states = after_messages(1, (0, Kind.HELLO))
    states.record_death(0)
    assert states.states == [WorkerState.DEAD] and not states.awaits_last_message(0)
    states.record_message(0, Kind.DATA, 2)
    assert states.states == [WorkerState.DEAD] and states.received == [2]


def test_nothing_more_can_come_when_all_have_ended_well():
    assert after_messages(2, (0, Kind.ENDED), (1, Kind.ENDED)).exhausted
    assert not after_messages(2, (0, Kind.ENDED)).exhausted
    assert not after_messages(2, (0, Kind.ENDED), (1, Kind.ERROR)).exhausted


@pytest.mark.parametrize("last", [Kind.ENDED, Kind.ERROR, Kind.LEFT])
def test_a_worker_is_silent_after_its_last_words(last):
    with pytest.raises(AssertionError):
        after_messages(1, (0, last), (0, Kind.DATA, 1))


def test_a_worker_that_has_ended_is_judged_by_its_exit_code_and_its_silence():
    """All exit codes × silences × channels × messages that are unread: it has died if nothing of it can still come."""
    seen = set()
    for case in itertools.product([None, 0, 3, -9], [0.0, 0.09, 0.1, 0.49, 0.5, 9.0], [False, True], [False, True]):
        exitcode, quiet, late, unread = case
        silent_for_long = not late or quiet >= (0.1 if exitcode is not None and exitcode < 0 else 0.5)
        found = has_died(exitcode=exitcode, quiet_seconds=quiet, may_arrive_late=late, has_unread=unread)
        assert found is (silent_for_long and not unread), case
        seen.add(found)
    assert seen == {False, True}


@pytest.mark.parametrize("last", [Kind.ENDED, Kind.ERROR, Kind.LEFT])
def test_a_last_message_that_comes_after_the_end_was_seen_ends_the_settling(last):
    states = after_messages(1, (0, Kind.HELLO))
    assert not states.is_settling
    assert states.quiet_seconds(0, 5.0) == 0 and states.quiet_seconds(0, 5.25) == 0.25
    assert states.is_settling and states.unwatched == {0}
    states.record_message(0, Kind.DATA, 1, 5.5)
    assert states.quiet_seconds(0, 5.75) == 0.25 and states.is_settling
    states.record_message(0, last, 0, 6.0)
    assert not states.is_settling


def test_a_replaced_worker_begins_from_the_start():
    states = after_messages(1, (0, Kind.DATA, 4))
    states.quiet_seconds(0, 5.0)
    states.record_death(0)
    states.record_start(0)
    assert (states.states, states.received, states.is_settling, states.unwatched) == (
        [WorkerState.STARTED],
        [0],
        False,
        set(),
    )


def test_a_worker_that_may_be_started_later_is_not_waited_for():
    states = WorkerStates(3, num_reserved=2)
    states.record_message(0, Kind.HELLO)
    assert states.connected(0) and not states.connected(1)
    assert [states.awaits_last_message(k) for k in range(3)] == [True, False, False]
    states.record_start(1)
    assert states.awaits_last_message(1)
