"""The event loop of this process, and what runs on it: it ends with its last user, whatever its coroutines do."""

import asyncio
import contextvars
import logging
import threading

import pytest

from dataflow import DataFlowTerminated, DataFromAsyncIterable
from dataflow.protocol import event_loop
from dataflow.protocol.event_loop import AsyncSteps, LoopUser, loop_user
from dataflow.protocol.passes import RunningPass
from dataflow.protocol.seeding import Stream
from dataflow.system.session import Session
from tests.support.waits import LIMIT


@pytest.fixture
def user():
    made = LoopUser("Owner")
    yield made
    made.close()


def run(user, coroutine):
    assert user.spawn(coroutine, contextvars.copy_context()).has_ended(LIMIT)


def test_a_user_that_is_closed_twice_leaves_once():
    first, second = LoopUser("First"), LoopUser("Second")
    first.close()
    first.close()
    assert second.loop.is_running()
    second.close()
    assert second.loop.is_closed()


def test_a_user_may_be_closed_on_the_loop_itself():
    """As a flow that a coroutine drops."""
    user, closed = LoopUser("Owner"), threading.Event()

    async def close():
        user.close()
        closed.set()

    user.spawn(close(), contextvars.copy_context())
    assert closed.wait(LIMIT)
    user._thread.join(LIMIT)
    assert user.loop.is_closed()


def test_a_generator_that_does_not_end_is_logged_and_left(user, caplog, monkeypatch):
    monkeypatch.setattr(event_loop, "_GRACE", 0.02)

    async def unending():
        try:
            yield 1
        finally:
            await asyncio.sleep(LIMIT)

    generator = unending()

    async def step():
        await anext(generator)

    run(user, step())
    with caplog.at_level(logging.ERROR, "dataflow"):
        user.close()
    assert "the event loop of dataflow has ended with an error" in caplog.text
    assert user.loop.is_closed()


def test_an_iteration_that_was_closed_gets_no_loop():
    session = Session("DataFromAsyncIterable")
    session.closed = True
    df = DataFromAsyncIterable(lambda: None)
    with pytest.raises(DataFlowTerminated, match="DataFromAsyncIterable"):
        loop_user(df, session)


class Elements:
    def __init__(self):
        self.num = 0

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.num += 1
        return self.num

    async def aclose(self):
        raise ValueError("not now")


def test_what_an_iterable_raises_as_it_is_closed_is_logged(user, caplog, monkeypatch):
    def begin():
        return Elements()

    df = DataFromAsyncIterable(begin)
    elements = AsyncSteps(user, begin, RunningPass(df, 0, Stream(1))).elements()
    is_done, seconds = event_loop.wait_until_done, []

    def wait_less(future, seconds_to_wait=0):
        seconds.append(seconds_to_wait)
        return len(seconds) > 1 and is_done(future, LIMIT)  # the first look comes too early

    monkeypatch.setattr(event_loop, "wait_until_done", wait_less)
    assert next(elements) == 1 and len(seconds) > 1
    with caplog.at_level(logging.WARNING, "dataflow"):
        elements.close()
    assert "Owner: the async iterable raised as it was closed" in caplog.text
    assert "ValueError: not now" in caplog.text
