"""The event loop of this process, and what runs on it: it ends with its last user, whatever its coroutines do."""

import asyncio
import contextvars
import logging
import threading
from functools import partial
from weakref import WeakSet

import pytest

from dataflow import AsyncMapData, DataFlowTerminated, DataFromAsyncIterable, DataFromList
from dataflow.protocol import event_loop
from dataflow.protocol.event_loop import AsyncSteps, LoopUser, loop_user
from dataflow.protocol.passes import RunningPass
from dataflow.protocol.seeding import Stream
from dataflow.system.session import Session
from tests.support.interrupts import act_at_each_line
from tests.support.waits import LIMIT, wait_until


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


class Part:
    is_stopped = False

    def stop(self):
        self.is_stopped = True


class Announcing:
    """A lock that says when a thread is about to take it."""

    def __init__(self, lock):
        self.lock = lock
        self.num_entering = 0

    def __enter__(self):
        self.num_entering += 1
        self.lock.acquire()

    def __exit__(self, *args):
        self.lock.release()


def test_another_thread_may_begin_an_iteration_while_a_user_is_closed():
    user, parts, late = LoopUser("Owner"), [Part(), Part()], Part()
    user._lock = Announcing(getattr(user, "_lock", None))
    threads = []

    class Interrupted(WeakSet):
        def __iter__(self):
            for part in super().__iter__():
                yield part
                if not threads:
                    threads.append(threading.Thread(target=user.add, args=(late,)))
                    threads[0].start()
                    wait_until(lambda: user._lock.num_entering > 1 or not threads[0].is_alive(), LIMIT, "it adds")

    user._stoppable = Interrupted(parts)
    user.close()
    threads[0].join(LIMIT)
    assert all(part.is_stopped for part in parts)
    assert late in set(user._stoppable)


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


async def three():
    for k in range(3):
        yield [k]


async def same(dp):
    return dp


def iterable():
    return DataFromAsyncIterable(three)


def mapped():
    return AsyncMapData(DataFromList([[0], [1], [2]], shuffle=False), same, 2)


@pytest.mark.parametrize(
    ("make", "file"),
    [
        (iterable, "sources/iterating.py"),
        (mapped, "transforms/awaiting.py"),
        pytest.param(iterable, "protocol/event_loop.py", marks=pytest.mark.full),
        pytest.param(mapped, "protocol/event_loop.py", marks=pytest.mark.full),
    ],
)
def test_another_thread_may_close_the_flow_at_any_line_of_a_loop(make, file):
    """Then the loop is over, or the message says so, whether the event loop has ended by then or not."""

    def run(traced):
        df = make()
        closing = threading.Thread(target=df.close)
        try:
            with traced(partial(close_in, closing)):
                assert list(df) == [[0], [1], [2]]
        except DataFlowTerminated:
            pass
        if closing.ident is not None:
            closing.join(LIMIT)
            assert not closing.is_alive()
        with df:
            assert list(df) == [[0], [1], [2]]

    def close_in(closing):
        closing.start()
        closing.join(0.1)  # it may have to wait for a lock that this thread holds here

    act_at_each_line(run, file, 6)


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


# -- cancel scopes around a yield --------------------------------------------------------------------------------------


def steps_of(user, begin, monkeypatch):
    """The steps of an async iterable; one that is never answered fails the test instead of hanging."""
    is_done = event_loop.wait_until_done

    def wait(future, seconds=0):
        return is_done(future, LIMIT) or pytest.fail("a request was not answered")

    monkeypatch.setattr(event_loop, "wait_until_done", wait)
    return AsyncSteps(user, begin, RunningPass(DataFromAsyncIterable(begin), 0, Stream(1))).elements()


def between_steps(user, do):
    """Call `do` on the loop, and let what it begins come to its end there."""

    async def run_it():
        do()
        for _ in range(50):  # turns of the loop
            await asyncio.sleep(0)

    run(user, run_it())


def test_a_timeout_around_a_yield_that_ends_between_two_steps_is_raised_at_the_next(user, monkeypatch):
    scopes = []

    async def elements():
        async with asyncio.timeout(None) as scope:
            scopes.append(scope)
            yield 1
            yield 2

    steps = steps_of(user, elements, monkeypatch)
    assert next(steps) == 1
    between_steps(user, lambda: scopes[0].reschedule(user.loop.time()))
    with pytest.raises(TimeoutError):
        next(steps)


async def beside_a_task_that_fails(failing):
    async def fail():
        await failing.wait()
        raise ValueError("in the background")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        yield 1
        yield 2


def test_the_error_of_a_task_that_fails_between_two_steps_is_raised_at_the_next(user, monkeypatch):
    failing = asyncio.Event()
    steps = steps_of(user, partial(beside_a_task_that_fails, failing), monkeypatch)
    assert next(steps) == 1
    between_steps(user, failing.set)
    with pytest.raises(ExceptionGroup) as caught:
        next(steps)
    assert caught.group_contains(ValueError, match="in the background")


@pytest.mark.parametrize("ends", [False, True])
def test_what_a_generator_yields_on_cancellations_between_two_steps_comes_in_order(user, monkeypatch, ends):
    tasks = []

    async def elements():
        tasks.append(asyncio.current_task())
        for k in range(4):
            try:
                yield k
            except asyncio.CancelledError:
                tasks[0].uncancel()
                if ends and k == 2:
                    return

    steps = steps_of(user, elements, monkeypatch)
    assert next(steps) == 0
    for _ in range(3):
        between_steps(user, tasks[0].cancel)
    assert list(steps) == ([1, 2] if ends else [1, 2, 3])


def test_a_request_that_comes_while_a_cancellation_is_handled_is_answered(user, monkeypatch):
    scopes, handling, requested = [], threading.Event(), asyncio.Event()

    async def elements():
        try:
            async with asyncio.timeout(None) as scope:
                scopes.append(scope)
                yield 1
        finally:
            handling.set()
            await requested.wait()

    steps = steps_of(user, elements, monkeypatch)
    assert next(steps) == 1
    user.loop.call_soon_threadsafe(lambda: scopes[0].reschedule(user.loop.time()))
    assert handling.wait(LIMIT)
    is_done = event_loop.wait_until_done

    def wait(future, seconds=0):
        user.loop.call_soon_threadsafe(requested.set)  # after the request
        return is_done(future, seconds)

    monkeypatch.setattr(event_loop, "wait_until_done", wait)
    with pytest.raises(TimeoutError):
        next(steps)


def test_an_iterable_that_is_no_generator_raises_a_cancellation_that_comes_between_two_steps(user, monkeypatch):
    class Elements:
        def __aiter__(self):
            return self

        async def __anext__(self):
            self.task = asyncio.current_task()
            return 1

    made = Elements()
    steps = steps_of(user, lambda: made, monkeypatch)
    assert next(steps) == 1
    between_steps(user, made.task.cancel)
    with pytest.raises(asyncio.CancelledError) as caught:
        next(steps)
    assert "cancelled between two steps" in caught.value.__notes__[0]


def test_an_error_between_two_steps_is_logged_if_the_loop_is_left(user, monkeypatch, caplog):
    failing = asyncio.Event()
    steps = steps_of(user, partial(beside_a_task_that_fails, failing), monkeypatch)
    assert next(steps) == 1
    between_steps(user, failing.set)
    with caplog.at_level(logging.WARNING, "dataflow"):
        steps.close()
    assert "raised after the last step that was requested" in caplog.text and "in the background" in caplog.text
