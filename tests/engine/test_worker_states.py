"""Worker states: what each message means for its worker, and when nothing more can come."""

import pytest

from dataflow.channel.messages import Kind
from dataflow.engine.worker_states import WorkerState, WorkerStates


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
    assert worker_states.over == (set() if awaits_last_message else {1})


def test_all_are_connected_when_each_has_sent_a_message():
    assert not after_messages(2, (0, Kind.HELLO)).all_connected
    assert after_messages(2, (0, Kind.HELLO), (1, Kind.HELLO)).all_connected
    assert after_messages(2, (0, Kind.HELLO), (1, Kind.ERROR)).all_connected


def test_datapoints_are_counted_for_each_worker():
    assert after_messages(2, (0, Kind.HELLO), (0, Kind.DATA, 3), (1, Kind.DATA, 4), (0, Kind.DATA, 5)).received == [
        8,
        4,
    ]
    assert after_messages(1, (0, Kind.LEFT, 7)).received == [0]  # an exit code is no number of datapoints


def test_nothing_more_can_come_when_all_have_ended_well():
    assert after_messages(2, (0, Kind.ENDED), (1, Kind.ENDED)).exhausted
    assert not after_messages(2, (0, Kind.ENDED)).exhausted
    assert not after_messages(2, (0, Kind.ENDED), (1, Kind.ERROR)).exhausted


@pytest.mark.parametrize("last", [Kind.ENDED, Kind.ERROR, Kind.LEFT])
def test_a_worker_is_silent_after_its_last_words(last):
    with pytest.raises(AssertionError):
        after_messages(1, (0, last), (0, Kind.DATA, 1))
