"""The event loop of this process for nodes that run coroutines: in a thread of its own, while a node uses it.

Guarantees:

- There is one loop and one daemon thread for each process, from the first step of a node that uses it until the last of
  these nodes is closed or collected. The program's own event loop, as that of a notebook, is never touched.
- A forked child has a loop of its own: it closes its copies of the descriptors of the parent's loop, and never runs it.
- What `setup` returns is entered and left by one task, as cancel scopes need it: at the first use, and as the user of
  the loop is closed.
- A cancel scope around the `yield` of an async generator, as `asyncio.timeout` or a `TaskGroup`, may be cancelled
  between two steps: the cancellation is raised at the `yield`, and what comes of it is the consumer's next step.
- Every wait for the loop can be interrupted. Closing waits for at most five seconds at a time, and names in the log
  what does not end.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Final, Protocol
from weakref import WeakSet

from dataflow.errors import DataFlowTerminated, TimeoutError
from dataflow.protocol.passes import RunningCode, code_of, enter_code, leave_code
from dataflow.protocol.pauses import require_waiting
from dataflow.protocol.state import state_of
from dataflow.system.cleanup import members
from dataflow.system.interrupts import signals_deferred
from dataflow.system.session import Session, terminated

__all__ = ["SLICE", "AsyncSteps", "LoopUser", "Stoppable", "loop_user", "wait_until_done"]

_LOG: Final = logging.getLogger(__name__)

_GRACE: Final = 5.0  # seconds that cancelled tasks get to end
SLICE: Final = 0.5  # seconds between two looks at what else may end a wait


# -- The thread --------------------------------------------------------------------------------------------------------


class _Loop(getattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop)):  # type: ignore[misc]
    """An event loop that, if it could not be made for want of a descriptor, does not report that it was not closed."""

    _is_made = False

    def __init__(self) -> None:
        super().__init__()
        self._is_made = True

    def is_closed(self) -> bool:
        return not self._is_made or super().is_closed()


class _LoopThread:
    """An event loop, and the thread that runs it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = _Loop()
        self._is_ending = False
        self.thread = threading.Thread(target=self._run, name="dataflow-event-loop", daemon=True)
        # Before the thread runs: a child that is forked from here on has to close its copies.
        _begun.add(self)
        try:
            self.thread.start()
        except BaseException:
            self.loop.close()
            raise

    def _run(self) -> None:
        while not self._is_ending:  # code of the user's may stop the loop
            try:
                self.loop.run_forever()
            except BaseException:  # SystemExit or KeyboardInterrupt, of a callback that a coroutine has scheduled
                _LOG.exception("a callback on the event loop of dataflow raised; the loop continues")
        try:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_GRACE / 2))
            self.loop.run_until_complete(asyncio.wait_for(self.loop.shutdown_asyncgens(), _GRACE / 2))
        except BaseException:
            _LOG.exception("the event loop of dataflow has ended with an error")
        finally:
            self.loop.close()

    def end(self) -> None:
        """End the loop, and wait for the thread."""
        self._is_ending = True  # before the loop is stopped: `_run` would start it again
        with suppress(RuntimeError):  # closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        if self.thread is threading.current_thread():  # a finaliser that runs on the loop cannot wait for it
            return
        self.thread.join(2 * _GRACE)
        if self.thread.is_alive():
            _LOG.warning(
                "the event loop of dataflow did not end within %g seconds, because a coroutine blocks its thread: the "
                "thread is left behind. Call what blocks with asyncio.to_thread",
                2 * _GRACE,
            )

    def close_inherited(self) -> None:
        """In a forked child: close the child's copies of the loop's descriptors."""
        # Not `loop.close()`: that would take the parent's pipe off the epoll instance, which both processes share.
        for part in list(getattr(self.loop, "__dict__", {}).values()):
            if isinstance(part, socket.socket | selectors.BaseSelector):
                part.close()


class _OfThisProcess:
    """The loop of this process, while it has users."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finaliser may run within a section, and close a user
        self.running: _LoopThread | None = None
        self.num_users = 0

    def acquire(self) -> _LoopThread:
        with self.lock:
            self.running = self.running or _LoopThread()  # counted only then: it may fail for want of a descriptor
            self.num_users += 1
            return self.running

    def release(self) -> None:
        with self.lock:
            self.num_users -= 1
            if self.num_users or self.running is None:
                return
            ended, self.running = self.running, None
        # Outside of the lock: it may take seconds, and whoever needs a loop meanwhile gets a new one.
        ended.end()


_begun: Final[WeakSet[_LoopThread]] = WeakSet()
_here: Final = [_OfThisProcess()]  # replaced in a forked child: another thread may have held the lock
_inherited: Final[list[_LoopThread]] = []
"""Loops of parents: kept, so that nothing in them is finalised in the child."""


def _leave_to_parent() -> None:
    _here[0] = _OfThisProcess()
    _inherited.extend(_begun)
    _begun.clear()
    for inherited in _inherited:
        with suppress(Exception):  # a hook cannot report errors
            inherited.close_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


# -- Its users ---------------------------------------------------------------------------------------------------------


class Stoppable(Protocol):
    """What runs on the loop for one iteration."""

    def stop(self) -> None:
        """Cancel it, and wait for its end. Idempotent."""


class LoopTask:
    """A task on the loop, begun and cancelled from any thread.

    Args:
        call: Has the loop call a function, or raises.
        coroutine: What it runs, which must not raise.
        context: The context variables that it sees.
    """

    def __init__(
        self,
        call: Callable[..., object],
        coroutine: Coroutine[Any, Any, None],
        context: contextvars.Context,
    ) -> None:
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self._ended: Future[None] = Future()
        try:
            call(self._begin, coroutine, context)
        except DataFlowTerminated:
            coroutine.close()  # one that is dropped would be reported as never awaited
            raise

    def _begin(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        self._task = asyncio.get_running_loop().create_task(coroutine, context=context)
        self._task.add_done_callback(lambda _: self._ended.set_result(None))

    def cancel(self) -> None:
        """Have it cancelled."""
        with suppress(DataFlowTerminated):  # the loop has ended, and the task with it
            self._call(self._cancel)

    def _cancel(self) -> None:
        assert self._task is not None, "the loop calls `_begin` first"
        self._task.cancel()

    def has_ended(self, timeout: float) -> bool:
        """Wait for its end for `timeout` seconds; return whether it has come."""
        return wait_until_done(self._ended, timeout)


class LoopUser:
    """A node's use of the event loop, from its first step until it is closed.

    Args:
        owner: The class of the node, for messages.
        setup: Returns an async context manager, which is entered here and left by `close`; None for none.

    Attributes:
        session: Of this process; closed by `close`.
        loop: The event loop.
        arguments: The value of the context manager as a tuple, once it is entered; an empty tuple without `setup`.
    """

    def __init__(self, owner: str, setup: Callable[[], Any] | None = None) -> None:
        cure = "iterate the flow again, which starts an event loop of its own"
        self.session = Session(owner, fork_cure=cure)
        self.arguments: Future[tuple[Any, ...]] = Future()
        self._stoppable: WeakSet[Stoppable] = WeakSet()
        self._leave = asyncio.Event()  # made in another thread: it belongs to a loop only once something waits for it
        self._holding: LoopTask | None = None
        self._of_process = _here[0]
        running = self._of_process.acquire()
        self.loop, self._thread = running.loop, running.thread
        if setup is None:
            self.arguments.set_result(())
        else:
            self._holding = self.spawn(self._hold(setup), contextvars.copy_context())

    @property
    def is_here(self) -> bool:
        """Whether the calling code runs on the loop."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Raise where the loop must not be waited for.

        Raises:
            DataFlowTerminated: In a forked child.
            RuntimeError: On the loop itself.
        """
        self.session.check_process()
        if self.is_here:
            raise RuntimeError(
                f"{self.session.owner} was iterated by a coroutine that runs on the same event loop, which would wait "
                "for itself. Iterate it in a function that the coroutine calls with asyncio.to_thread"
            )

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop call a function.

        Raises:
            DataFlowTerminated: Another thread has closed the flow meanwhile, and the loop has ended.
        """
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            raise terminated(self.session.owner) from None

    def spawn(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> LoopTask:
        """Begin a task on the loop.

        Raises:
            DataFlowTerminated: As for `call`.
        """
        return LoopTask(self.call, coroutine, context)

    def add(self, part: Stoppable) -> None:
        """Stop `part` when this is closed, unless it was dropped before."""
        self._stoppable.add(part)

    def finish(self, task: LoopTask, what: str) -> None:
        """Wait for the end of a task, but not on the loop itself; log if it does not come, naming `what` it is."""
        if not self.is_here and not task.has_ended(_GRACE + SLICE):
            _LOG.warning(
                "%s: %s did not end within %g seconds after a cancellation: what still runs is left behind. See "
                "whether it catches asyncio.CancelledError, or blocks the event loop: such calls belong into "
                "asyncio.to_thread",
                self.session.owner,
                what,
                _GRACE,
            )

    def close(self) -> None:
        """Cancel what runs, leave the context manager, and release the loop. Idempotent; no-op in a forked child."""
        if self.session.closed or not self.session.is_own:
            return
        self.session.closed = True  # first: those that wait for an element or a call give way, within half a second
        try:
            for part in members(self._stoppable):  # another thread may add the part of an iteration that it begins
                part.stop()
            if self._holding is not None:
                if self.arguments.done():
                    self.loop.call_soon_threadsafe(self._leave.set)
                else:
                    self._holding.cancel()
                self.finish(self._holding, "the context manager of setup")
                self._holding = None  # which holds this, and so what setup has made, until garbage is collected
        finally:
            self._of_process.release()

    async def _hold(self, setup: Callable[[], Any]) -> None:
        owner = self.session.owner
        name = getattr(setup, "__qualname__", None) or repr(setup)
        try:
            manager = setup()
            if not hasattr(type(manager), "__aenter__"):
                raise TypeError(
                    f"{owner}: setup, {name}, has returned a {type(manager).__name__}, and an async context manager is "
                    "needed: an object with __aenter__ and __aexit__. Decorate an async generator function with "
                    "contextlib.asynccontextmanager"
                )
            async with manager as value:
                self.arguments.set_result((value,))
                await self._leave.wait()
        except BaseException as error:
            if not self.arguments.done():
                error.add_note(f"raised by setup of {owner}: {name}")
                self.arguments.set_exception(error)
            else:
                _LOG.warning("%s: the context manager of setup, %s, raised as it was left", owner, name, exc_info=error)


def loop_user(df: Any, session: Session, setup: Callable[[], Any] | None = None) -> LoopUser:
    """The `LoopUser` of the node `df`, made at its first use, for an iteration that belongs to `session`.

    Raises:
        DataFlowTerminated: The flow was closed since the iteration began.
    """
    state = state_of(df)
    with signals_deferred(), state.lock:
        if session.closed:
            raise terminated(type(df).__name__)
        user = state.resource
        if not isinstance(user, LoopUser):
            user = LoopUser(type(df).__name__, setup)
            state.own(df, user)
    user.check()
    return user


def wait_until_done(future: Future[Any], seconds: float = SLICE) -> bool:
    """Wait for a future for some seconds; return whether it is done."""
    return bool(wait((future,), seconds).done)


# -- Async iterables ---------------------------------------------------------------------------------------------------


class _End(Exception):
    """An async iterable has no more elements."""


class AsyncSteps:
    """One pass of an async iterable on the loop, element by element: each is requested when the consumer asks for it.

    All of it runs in one task, as cancel scopes need it.

    Args:
        user: The use of the loop.
        begin: Makes the async iterable, on the loop.
        code: The code that runs there.
    """

    def __init__(self, user: LoopUser, begin: Callable[[], AsyncIterable[Any]], code: RunningCode) -> None:
        self._user = user
        self._begin = begin
        self._code = code
        self._requests: asyncio.Queue[Future[Any]] = asyncio.Queue()
        self._early: deque[Any] = deque()  # elements that came before they were requested
        self._end: BaseException | None = None  # what was raised: the answer to each request from then on
        self._is_end_known = False  # to the consumer
        self._is_stopped = False
        with signals_deferred():  # a coroutine that is not handed over would be reported
            self._task = user.spawn(self._run(), contextvars.copy_context())
        user.add(self)

    def elements(self) -> Iterator[Any]:
        """The elements. A generator, which ends the pass on the loop as it is left."""
        user = self._user
        try:
            while True:
                user.check()
                reply: Future[Any] = Future()
                user.call(self._request, reply)
                while not (user.session.closed or wait_until_done(reply)):
                    pass
                if user.session.closed:
                    raise terminated(user.session.owner)
                try:
                    made = [reply.result()]
                except _End:
                    return
                except TimeoutError as error:  # of a flow that the code iterates
                    require_waiting(error, False, code_of(self._code.df))
                    raise
                del reply  # which holds the element
                yield made.pop()
        finally:
            with signals_deferred(later=True):
                self.stop()

    def stop(self) -> None:
        if self._is_stopped or not self._user.session.is_own:
            return
        self._is_stopped = True
        self._task.cancel()
        self._user.finish(self._task, "the async iterable")
        if isinstance(self._end, Exception) and not (self._is_end_known or isinstance(self._end, _End)):
            owner = self._user.session.owner
            _LOG.warning(
                "%s: the async iterable raised after the last step that was requested", owner, exc_info=self._end
            )

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _request(self, reply: Future[Any]) -> None:
        if self._early:
            reply.set_result(self._early.popleft())
        elif self._end is not None:
            self._is_end_known = True
            reply.set_exception(self._end)
        else:
            self._requests.put_nowait(reply)

    async def _run(self) -> None:
        frame = enter_code(self._code)
        reply: Future[Any] | None = None
        iterator: Any = None
        try:
            while True:
                reply = None
                try:
                    reply = await self._requests.get()
                except asyncio.CancelledError as error:
                    self._early.append(await self._cancelled(iterator, error))
                    continue
                iterator = aiter(self._begin()) if iterator is None else iterator
                reply.set_result(self._early.popleft() if self._early else await anext(iterator))
        except BaseException as error:  # includes CancelledError
            self._end = _End() if isinstance(error, StopAsyncIteration) else error
            if reply is None and not self._requests.empty():
                reply = self._requests.get_nowait()
            if reply is not None:
                self._request(reply)
        finally:
            try:
                if hasattr(iterator, "aclose"):
                    await iterator.aclose()
            except BaseException as error:
                _LOG.warning("%s: the async iterable raised as it was closed", self._user.session.owner, exc_info=error)
            leave_code(frame)

    async def _cancelled(self, iterator: Any, error: asyncio.CancelledError) -> Any:
        """Raise `error`, which has come between two steps, at the `yield` of a generator; return what it yields next.

        Only there does a cancel scope around the `yield` make an error of its own of it.
        """
        if self._is_stopped or self._user.session.closed:
            raise error
        if not hasattr(iterator, "athrow"):
            error.add_note(
                "the task that steps the async iterable was cancelled between two steps. Enter what cancels it in an "
                "async generator, which gets the cancellation at its yield"
            )
            raise error
        return await iterator.athrow(error)
