"""The books: what each message means for the worker, and when nothing more can come."""

import pytest

from dataflow.parallel.ledger import Ledger, State
from dataflow.transport.messages import Kind


def heard(num, *messages):
    ledger = Ledger(num)
    for message in messages:
        ledger.heard(*message)
    return ledger


@pytest.mark.parametrize(
    ("kind", "state", "missed"),
    [
        (Kind.HELLO, State.CONNECTED, True),
        (Kind.DATA, State.CONNECTED, True),
        (Kind.ENDED, State.ENDED, False),
        (Kind.ERROR, State.FAILED, False),
        (Kind.LEFT, State.LEFT, False),
    ],
)
def test_a_message_tells_the_state_and_whether_the_worker_owes_more(kind, state, missed):
    ledger = heard(2, (1, kind))
    assert ledger.states == [State.STARTED, state]
    assert [ledger.missed(0), ledger.missed(1)] == [True, missed]
    assert ledger.over == (set() if missed else {1})


def test_all_are_connected_when_each_was_heard_of():
    assert not heard(2, (0, Kind.HELLO)).all_connected
    assert heard(2, (0, Kind.HELLO), (1, Kind.HELLO)).all_connected
    assert heard(2, (0, Kind.HELLO), (1, Kind.ERROR)).all_connected


def test_datapoints_are_counted_for_each_worker():
    assert heard(2, (0, Kind.HELLO), (0, Kind.DATA, 3), (1, Kind.DATA, 4), (0, Kind.DATA, 5)).received == [8, 4]
    assert heard(1, (0, Kind.LEFT, 7)).received == [0]  # an exit code is no number of datapoints


def test_nothing_more_can_come_when_all_have_ended_well():
    assert heard(2, (0, Kind.ENDED), (1, Kind.ENDED)).exhausted
    assert not heard(2, (0, Kind.ENDED)).exhausted
    assert not heard(2, (0, Kind.ENDED), (1, Kind.ERROR)).exhausted


@pytest.mark.parametrize("last", [Kind.ENDED, Kind.ERROR, Kind.LEFT])
def test_a_worker_is_silent_after_its_last_words(last):
    with pytest.raises(AssertionError):
        heard(1, (0, last), (0, Kind.DATA, 1))
