"""A session: who may use something that runs, and which error says that it is over."""

import os
from copy import copy

import pytest

from dataflow.errors import DataFlowTerminated, NotReentrant
from dataflow.system.session import Session, forked_off, terminated
from tests.support.forks import in_child


class Unlike(Exception):
    """It cannot be copied."""

    def __init__(self, one, other):
        super().__init__("unlike")


def raised(text):
    """An error that was raised, with a traceback."""
    try:
        raise KeyError(text)
    except KeyError as error:
        return error


def test_an_open_session_lets_its_process_and_its_latest_iteration_through():
    session = Session("Owner")
    session.check_process()
    session.check()
    first = session.supersede()
    session.check(first)
    second = session.supersede()
    session.check(second)
    session.check()
    with pytest.raises(NotReentrant, match="a later iteration of Owner took over"):
        session.check(first)


def test_an_iteration_that_must_not_disturb_another_begins_only_after_the_one_that_it_knows():
    session = Session("Owner")
    first = session.supersede_if(None)
    session.check(first)
    assert session.supersede_if(None) is None
    session.check(first)
    session.check(session.supersede_if(first))


def test_a_closed_flow_can_be_iterated_again_and_another_owner_says_what_to_do():
    session = Session("Owner")
    session.closed = True
    with pytest.raises(DataFlowTerminated, match=r"^Owner was closed while it was being iterated; iterate it again"):
        session.check()
    session = Session("Queue", closed_text="is shut down. Make a new one")
    session.closed = True
    with pytest.raises(DataFlowTerminated, match=r"^Queue is shut down. Make a new one$"):
        session.check(session.supersede())
    assert str(terminated("Owner")).startswith("Owner was closed")


def test_a_failed_session_says_with_what_it_has_failed_and_how_to_restart_it():
    session = Session("Owner", restart="Call reset() of it")
    assert not session.failed
    error = raised("mine")
    session.fail(error)
    session.closed = True  # whoever fails is closed, too: the failure says more
    assert session.failed and session.failure is error and not session.interrupted
    with pytest.raises(
        DataFlowTerminated, match=r"Owner has failed before, with KeyError: 'mine'. Call reset\(\)"
    ) as e:
        session.check()
    assert e.value.__cause__ is error


def test_of_an_interrupt_the_frames_are_not_kept():
    session = Session("Owner")
    error = raised("mine")
    session.fail(error, interrupted=True)
    assert session.interrupted and session.failed
    assert session.failure is not error and session.failure.args == error.args
    assert session.failure.__traceback__ is None and error.__traceback__ is not None


def test_an_interrupt_that_cannot_be_copied_is_kept_itself():
    session = Session("Owner")
    error = Unlike(1, 2)
    with pytest.raises(TypeError):
        copy(error)
    session.fail(error, interrupted=True)
    assert session.failure is error and session.interrupted


def test_a_forked_child_is_told_to_whom_the_session_belongs():
    session = Session("Owner", begun="the workers of", fork_cure="start your own")
    assert session.is_own
    told = in_child(lambda: session.is_own or session.check_process())
    assert "DataFlowTerminated" in told
    assert f"the workers of Owner belongs to process {os.getpid()}, from which this process was forked" in told
    assert "start your own" in told
    session.check_process()


def test_a_child_that_was_forked_off_is_told_of_its_parent():
    error = forked_off(123)
    assert isinstance(error, DataFlowTerminated)
    assert "only its parent (pid 123) may continue with the flow" in str(error) and "os._exit" in str(error)
