"""Concurrent maps: a coroutine function applied to many datapoints at a time, on the event loop of this process."""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import inspect
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from copy import copy
from functools import partial
from typing import Any, Final, TypeVar, overload

from dataflow.errors import DataFlowTerminated, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co, T_in
from dataflow.protocol.datapoint import HOLE, present
from dataflow.protocol.event_loop import SLICE, LoopUser, loop_user, wait_until_done
from dataflow.protocol.failures import Budget
from dataflow.protocol.first_calls import OF_COROUTINES, CheckedCalls, warn
from dataflow.protocol.kept import reading_ahead
from dataflow.protocol.parameters import (
    coroutine_function,
    count_or_fraction,
    deferred_kind,
    flag,
    seconds,
    whole_number,
)
from dataflow.protocol.passes import RunningCall, calls_code, known_length
from dataflow.protocol.pauses import Pause, pausing
from dataflow.protocol.seeding import Rng, Stream
from dataflow.protocol.state import FirstCalls, Taken, state_of
from dataflow.system.interrupts import signals_deferred
from dataflow.system.session import Session, terminated
from dataflow.transforms.applying import (
    Applied,
    Place,
    RequestedBlocks,
    ToleratesFailures,
    keeps_positions,
    name_of,
    shared_rng,
)
from dataflow.transforms.grouping import MemoryWatch, may_reuse_memory
from dataflow.transforms.indexing import consecutive, onwards

__all__ = ["AsyncMapData"]

_LOG: Final = logging.getLogger(__name__)

_AHEAD: Final = 4  # times the number of calls: datapoints that are running, or finished ahead of the next in order
_READING: Final = 0.01  # seconds that a result waits while the input is read, if fewer calls are running than may be
_GRACE: Final = 5.0  # seconds that a call gets to end after it was cancelled


Value = TypeVar("Value")


class AsyncMapData(ToleratesFailures[T_co], ProxyDataFlow[T_co]):
    """Apply a coroutine function to datapoints, many at a time: for work that waits, such as requests to a server.

    An event loop, in a thread of this process that all such nodes share, keeps up to `num_concurrent` calls running
    while the consumer does something else. A pass is exactly that of `MapData`, in the same order, for any `ds`. The
    function gets a shallow copy of the datapoint. If it raises, the pass ends with that exception, after all datapoints
    before it, with a note that names the datapoint; or, with `max_failures`, the datapoint is left out.

    The node can be addressed if `ds` can, so it may stand below runners, shards, batches and resuming. In a runner each
    worker keeps `num_concurrent` calls running, and gets as many datapoints at a time as that takes. When a loop is
    left, the calls that are running are cancelled, and waited for, for up to five seconds. If a pass of `ds` continues
    where the last one stopped, the pass after one that was left raises `NotReproducible`.

    The function must not block: a call that computes, or waits without ``await``, holds up all others. Call such code
    with `asyncio.to_thread`, or use `MultiThreadMapData`.

    Args:
        ds: The input. It is read in the thread of the consumer, at most ``4 * num_concurrent`` datapoints ahead.
        func: A coroutine function (``async def``), called as ``await func(dp)``, or ``await func(dp, value)`` with
            `setup`. Returns a datapoint, or None to drop it.
        num_concurrent: How many calls may run at a time.
        ordered: Whether the datapoints of a pass are yielded in the order of the input, instead of the order in which
            they are completed. Read by index, they always are.
        setup: A function that returns an async context manager, such as the session of a client. It is entered once in
            each process, before the first call, and kept between passes; `close` leaves it.
        item_timeout: Seconds that one call may take. One that takes longer is cancelled, and has failed with a
            ``TimeoutError``. None for any time.
        timeout: Seconds that the consumer waits for a datapoint. None waits as long as it takes.
        max_failures: How many datapoints may fail, as for `MapData`.

    Raises:
        TypeError: `func` is no coroutine function; or `setup` does not return an async context manager.
        TimeoutError: No datapoint came for `timeout` seconds. The same iterator waits again.
        TooManyFailures: The budget `max_failures` is used up, if there is one; the last error is the cause.

    Example:
        >>> import asyncio
        >>> async def square(dp):
        ...     await asyncio.sleep(0.01)
        ...     return [dp[0] ** 2]
        >>> with AsyncMapData(DataFromList([[k] for k in range(5)], shuffle=False), square) as df:
        ...     list(df), df[3]
        ([[0], [1], [4], [9], [16]], [9])

    Source:
        ``torchdata`` and SPDL have pipelines of coroutines; exact passes that can be addressed are our own.
    """

    _df_calls = True
    _df_takes = 1
    _df_run_settings = ToleratesFailures._df_run_settings | {"num_concurrent", "ordered", "item_timeout", "timeout"}

    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        func: Callable[[T_in], Coroutine[Any, Any, T_co | None]],
        num_concurrent: int = 64,
        *,
        ordered: bool = True,
        setup: None = None,
        item_timeout: float | None = None,
        timeout: float | None = None,
        max_failures: Budget | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        func: Callable[[T_in, Value], Coroutine[Any, Any, T_co | None]],
        num_concurrent: int = 64,
        *,
        ordered: bool = True,
        setup: Callable[[], AbstractAsyncContextManager[Value]],
        item_timeout: float | None = None,
        timeout: float | None = None,
        max_failures: Budget | None = None,
    ) -> None: ...
    def __init__(
        self,
        ds: DataFlow,
        func: Callable[..., Coroutine[Any, Any, Any]],
        num_concurrent: int = 64,
        *,
        ordered: bool = True,
        setup: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        item_timeout: float | None = None,
        timeout: float | None = None,
        max_failures: Budget | None = None,
    ) -> None:
        super().__init__(ds)
        self.func = coroutine_function(self, "func", func)
        self.num_concurrent = whole_number(self, "num_concurrent", num_concurrent, 1)
        self.ordered = flag(self, "ordered", ordered)
        self.setup = _check_setup(self, setup)
        self.item_timeout = None if item_timeout is None else seconds(self, "item_timeout", item_timeout)
        self.timeout = None if timeout is None else seconds(self, "timeout", timeout)
        self.max_failures = count_or_fraction(self, "max_failures", max_failures)

    @property
    def _df_func(self) -> Callable[..., Any]:
        return self.func

    @property
    def _df_setup(self) -> Callable[[], Any] | None:
        setup: Callable[[], Any] | None = self.setup
        return setup

    @property
    def _df_reproducible(self) -> bool:
        return self.ordered

    @property
    def _df_waits(self) -> bool:
        return self.timeout is not None or super()._df_waits

    @property
    def _df_least_task(self) -> int:
        return max(_AHEAD * self.num_concurrent, super()._df_least_task)

    def reset_state(self) -> None:
        """Leave what `setup` has returned; the next pass enters it anew."""
        super().reset_state()
        state_of(self).own(self, None)

    # -- passes --------------------------------------------------------------------------------------------------------

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if not keeps_positions(self.ds):
            below, taken = reading_ahead(self, stream, type(self).__name__)
            calls = _Calls(self, stream, lambda k: (p, k), ordered=self.ordered)
            return self._results(calls, self.ds._df_run_pass(p, below), stream, taken)
        # A datapoint dropped below keeps its position, as in a pass that is read by index.
        if self.ds._df_endless:
            return state_of(self).continued.take(stream, partial(self._pass_by_index, onwards(0), stream), self)
        state_of(self).continued.require_same_weights(stream, self)
        n = self.ds._df_num_from(stream.begin)
        return self._pass_by_index(consecutive(p * n, (p + 1) * n), stream)

    def _pass_by_index(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return present(self._read(blocks, stream, ordered=self.ordered))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return self._read(blocks, stream, ordered=True)

    def _read(self, blocks: Blocks, stream: Stream, *, ordered: bool) -> Iterator[Any]:
        requested = RequestedBlocks(blocks, partial(known_length, self.ds, stream.begin))
        calls = _Calls(self, stream, requested.place, ordered=ordered)
        # Separate from the budget of a pass that is not read by index, as in `MapData`.
        return self._results(calls, self.ds._df_at(requested.recorded(calls), stream), (stream, RequestedBlocks))

    def _results(
        self, calls: _Calls, datapoints: Iterator[Any], scope: Any, taken: Taken | None = None
    ) -> Iterator[Any]:
        """The results of `calls` for all datapoints; with `taken`, without holes."""
        waits = self._df_waits
        if may_reuse_memory(self.ds):
            datapoints = state_of(self).part(MemoryWatch).over(datapoints, waits)
        outcomes = _Outcomes(type(self).__name__, self._df_func, calls.place, self._df_tolerance(), scope)
        outcomes.on_drop = self._df_note_drop
        outcomes.caller = self, scope[0] if isinstance(scope, tuple) else scope
        steps = self._steps(calls, datapoints, waits, state_of(self).session, outcomes)
        return pausing(steps if taken is None else _count(steps, taken), waits)

    def _steps(
        self, calls: _Calls, datapoints: Iterator[Any], waits: bool, session: Session, outcomes: _Outcomes
    ) -> Iterator[Any]:
        """The results, and pauses. A generator: it stops the calls as it is left."""
        ended: list[Any] = []  # an error of the input, or None at its end; until what was read before is handed out
        try:
            user = loop_user(self, session, self._df_setup)
            since = time.monotonic()  # when the consumer has asked for a datapoint
            while True:
                if session.closed or user.session.closed:
                    raise terminated(type(self).__name__)
                user.check()
                pause: Pause | None = None
                moment = SLICE if self.timeout is None else since + self.timeout - time.monotonic()
                moment = max(0.0, min(SLICE, moment))
                if self._is_set_up(calls, user, moment):
                    while not ended and calls.have_room:
                        try:
                            calls.add(next(datapoints))
                        except StopIteration:
                            ended.append(None)
                        except Exception as error:
                            ended.append(error)
                        if calls.are_ready and (calls.are_enough or time.monotonic() - since > _READING):
                            break
                    if calls.num_outstanding:
                        calls.wait(moment)
                    elif ended[0] is None:
                        return
                    elif isinstance(ended[0], TimeoutError) and waits:  # the input continues afterwards
                        pause = Pause(ended.pop())
                    else:
                        raise ended.pop()
                    # In this order: a call that was cancelled by a close ends after `is_stopped` is set.
                    if calls.are_ready and not calls.is_stopped:
                        made = [calls.hand_out(outcomes.outcome)]
                        yield made.pop()
                        since = time.monotonic()
                        continue
                if pause is None and self.timeout is not None and time.monotonic() - since >= self.timeout:
                    pause = Pause(TimeoutError(calls.late_text(self.timeout)))
                if pause is not None:
                    yield pause
                    since = time.monotonic()
        finally:
            with signals_deferred(later=True):  # it may be dropped, after a break
                calls.stop()

    def _is_set_up(self, calls: _Calls, user: LoopUser, seconds: float) -> bool:
        """Whether calls can be made; waits for what `setup` returns."""
        if calls.user is not None:
            return True
        if not wait_until_done(user.arguments, seconds) or user.session.closed:
            return False
        try:
            arguments = user.arguments.result()
        except BaseException:
            state = state_of(self)
            with state.lock:
                if state.resource is user:
                    state.own(self, None)  # the next iteration tries again
            raise
        calls.begin(user, arguments)
        return True


def _count(results: Iterator[Any], taken: Taken) -> Iterator[Any]:
    """The results that are not dropped, counted as they are handed out."""
    try:
        for result in results:
            if result is not HOLE:
                if type(result) is not Pause:
                    taken.add_one()
                yield result
        taken.is_over = True
    finally:
        taken.stop()


class _Calls:
    """The calls of the function for one pass, or one sequence of indexes.

    The consumer adds datapoints and takes results; the event loop calls the function. They share:

    - `_waiting`: the consumer appends, the loop takes. The consumer wakes the loop if fewer calls are running than may
      be. If one ends at that moment, the loop looks at `_waiting` after it has counted it, and the consumer counts
      after it has appended, so one of them sees the other.
    - `is_done` of a call, set by the loop, and `_awaited`, set by the consumer before it looks at `is_done`: likewise.
    """

    def __init__(self, node: AsyncMapData, stream: Stream, place: Place, *, ordered: bool) -> None:
        self.owner = type(node).__name__
        self.node = weakref.ref(node)  # calls that were left behind must not keep it
        self.stream, self.place = stream, place
        self.func, self.item_timeout = node._df_func, node.item_timeout
        self.first_calls = state_of(node).part(FirstCalls)
        self.warnings: deque[str] = deque()  # of the first calls, for the consumer to log
        self.results = MemoryWatch()  # of the loop alone: another pass has another
        self.arguments: tuple[Any, ...] = ()
        self.user: LoopUser | None = None
        self._is_ordered = ordered
        self._num_concurrent = node.num_concurrent
        self._num_added = 0
        self._outstanding: dict[_Call, None] = {}  # added and not handed out, in order
        self._completed: deque[_Call] = deque()  # in the order of completion, if that is the order
        self._waiting: deque[_Call] = deque()  # not begun
        self._running: dict[_Call, None] = {}
        self._is_waking = False  # whether the loop is about to look at `_waiting`
        self.is_stopped = False
        self._changed = threading.Condition()
        self._awaited: _Call | None = None  # the one that the consumer waits for
        self._context = contextvars.Context()

    def begin(self, user: LoopUser, arguments: tuple[Any, ...]) -> None:
        """Use the loop of `user`, and call the function with `arguments` after the datapoint."""
        self.arguments, self._context = arguments, contextvars.copy_context()
        self.user = user
        user.add(self)

    # -- the consumer --------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> int:
        """For `RequestedBlocks`: the number of the first datapoint whose position may still be asked for."""
        return next(iter(self._outstanding)).number if self._outstanding else self._num_added

    @property
    def num_outstanding(self) -> int:
        return len(self._outstanding)

    @property
    def have_room(self) -> bool:
        return len(self._outstanding) < _AHEAD * self._num_concurrent

    @property
    def are_ready(self) -> bool:
        """Whether there is a result to hand out."""
        if not self._is_ordered:
            return bool(self._completed)
        return bool(self._outstanding) and next(iter(self._outstanding)).is_done

    @property
    def are_enough(self) -> bool:
        """Whether there are as many as may run, so that a result may be handed out before more is read."""
        return len(self._outstanding) >= self._num_concurrent

    def add(self, dp: Any) -> None:
        """Have the function called for `dp`, the next datapoint."""
        call = _Call(self, self._num_added, dp)
        self._num_added += 1
        self._outstanding[call] = None
        if dp is HOLE:
            call.is_done = True
            if not self._is_ordered:
                self._completed.append(call)
            return
        self._waiting.append(call)
        if not self._is_waking and len(self._running) < self._num_concurrent:
            # Before the call: the loop may run it at once, and clears this.
            self._is_waking = True
            assert self.user is not None, "begin() was called"
            self.user.call(self._begin_waiting)

    def wait(self, seconds: float) -> None:
        """Wait until there is a result, or something else may have ended the wait."""
        if self.are_ready:
            return
        with self._changed:
            self._awaited = next(iter(self._outstanding))  # before it looks: see the docstring of the class
            if not (self.are_ready or self.is_stopped):
                self._changed.wait(seconds)
            self._awaited = None

    def hand_out(self, outcome: Callable[[_Call], Any]) -> Any:
        """What `outcome` makes of the call whose result is next."""
        while self.warnings:
            warn(self.warnings.popleft())
        call = next(iter(self._outstanding)) if self._is_ordered else self._completed.popleft()
        made = outcome(call)
        del self._outstanding[call]  # only now: until then its place can be asked for
        return made

    def late_text(self, timeout: float) -> str:
        running = tuple(self._running)  # in one step under the interpreter's lock: the loop changes it
        text = f"{self.owner} received no datapoint for {timeout:g} seconds: "
        if self.user is None:
            return f"{text}its setup has not returned. Look for what it waits for, or raise timeout"
        if not running:
            return f"{text}a call blocks the event loop. Call what blocks with asyncio.to_thread, or raise timeout"
        p, position = self.place(running[0].number)
        took = time.monotonic() - running[0].began
        return (
            f"{text}of the running calls of {name_of(self.func)}, {len(running)} in number, the first, for datapoint "
            f"{position} of pass {p}, has taken {took:.3g} seconds. Look for what it waits for, set item_timeout, or "
            "raise timeout; what blocks the event loop belongs into asyncio.to_thread"
        )

    def stop(self) -> None:
        """Cancel the calls, and wait for their end; the consumer's wait ends."""
        user = self.user
        if self.is_stopped or (user is not None and not user.session.is_own):
            return
        self.is_stopped = True
        with self._changed:
            self._changed.notify_all()
        if user is not None and self._outstanding:
            with suppress(DataFlowTerminated):  # the loop has ended, and the calls with it
                user.finish(user.spawn(self._cancel(), contextvars.Context()), f"calls of {name_of(self.func)}")

    # -- the event loop ------------------------------------------------------------------------------------------------

    def _begin_waiting(self) -> None:
        # Before it looks: what the consumer appends from here on wakes the loop again.
        self._is_waking = False
        while self._waiting and len(self._running) < self._num_concurrent and not self.is_stopped:
            call = self._waiting.popleft()
            self._running[call] = None
            call.begin(self._context.copy())

    def ended(self, call: _Call) -> None:
        if call.is_done:
            return  # it was given up before
        # Counted before `_begin_waiting` looks: see the docstring of the class.
        del self._running[call]
        call.is_done = True
        if not self._is_ordered:
            self._completed.append(call)
        self._begin_waiting()
        if self._awaited is not None and (self._awaited is call or not self._is_ordered):
            with self._changed:
                self._changed.notify()

    async def _cancel(self) -> None:
        tasks = [call.task for call in tuple(self._running) if call.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Call:
    """A call of the function for one datapoint.

    Attributes:
        number: Of the datapoint, in the order of the input.
        dp: The datapoint, until the call has ended.
        result: What the function has returned; `HOLE` for None, and for a datapoint that was dropped below.
        error: What it has raised.
        is_done: Whether it has ended.
        began: When it began, in seconds of ``time.monotonic()``.
        task: On the event loop, once it has begun.
    """

    __slots__ = (
        "_code",
        "_has_expired",
        "_timer",
        "began",
        "calls",
        "dp",
        "error",
        "is_done",
        "number",
        "result",
        "task",
    )

    def __init__(self, calls: _Calls, number: int, dp: Any) -> None:
        self.calls = calls
        self.number = number
        self.dp = dp
        self.result: Any = HOLE
        self.error: BaseException | None = None
        self.is_done = False
        self.began = 0.0
        self.task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_expired = False
        self._code: RunningCall | None = None

    def begin(self, context: contextvars.Context) -> None:
        """Begin the call, on the loop."""
        self.began = time.monotonic()
        self.task = asyncio.get_running_loop().create_task(self.make(), context=context)

    async def make(self) -> None:
        """Call the function."""
        calls, dp = self.calls, self.dp
        if calls.item_timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(calls.item_timeout, self._expire)
        try:
            dp = dp[:] if type(dp) is list else copy(dp)
            if calls.first_calls.num_left > 0:
                checked = CheckedCalls(calls.func, calls.owner, calls.first_calls, kind=OF_COROUTINES)
                out = await checked.awaited(calls.warnings, dp, *calls.arguments)
                _require_result(out, calls)
            else:
                out = await calls.func(dp, *calls.arguments)
            # Results wait for those before them: the function may not use their memory for others.
            if calls.results.num_left > 0:
                calls.results.num_left -= 1
            else:
                calls.results.look_at(out)
            self.result = HOLE if out is None else out
        except BaseException as error:  # includes CancelledError
            self.error = error
        self._end()

    def _expire(self) -> None:
        assert self.task is not None, "it has begun"
        self._has_expired = True
        self.task.cancel()
        self._timer = asyncio.get_running_loop().call_later(_GRACE, self._give_up)

    def _give_up(self) -> None:
        _LOG.warning(
            "%s: a call of %s was cancelled after item_timeout=%g seconds, did not end within %g more, and is left "
            "behind. See whether it catches asyncio.CancelledError",
            self.calls.owner,
            name_of(self.calls.func),
            self.calls.item_timeout,
            _GRACE,
        )
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._has_expired and not self.is_done:
            late = builtins.TimeoutError(f"the call took longer than item_timeout={self.calls.item_timeout:g} seconds")
            late.__cause__ = None if isinstance(self.error, asyncio.CancelledError) else self.error
            self.error = late
        self.dp = None
        self.calls.ended(self)

    def running_call(self) -> RunningCall | None:
        """The code that runs, if a flow begins in it."""
        node = self.calls.node()
        if self._code is None and node is not None:
            self._code = RunningCall(node, self.calls.stream, *self.calls.place(self.number))
        return self._code

    def rng_of(self, node: object) -> Rng:
        """For `RNGDataFlow.rng`: no node's generator can be read in the function."""
        raise shared_rng(node, self.calls.func, self.calls.owner)


calls_code(_Call.make, _Call.running_call)


class _Outcomes(Applied):
    """What the node yields for each call, in the order of completion: its result, a hole, or an exception."""

    _number = 0  # of the datapoint of the present call

    @property
    def begun(self) -> int:
        return self._number + 1

    def outcome(self, call: _Call) -> Any:
        if call.task is None:  # the datapoint was dropped below
            return HOLE
        self._number = call.number
        return self.chosen_step(call, None)

    def step(self, call: _Call, _: None) -> Any:
        error, call.error = call.error, None  # its traceback holds frames that hold the call
        if isinstance(error, Exception | asyncio.CancelledError):  # whose text is empty
            self.explain(error)
        if error is not None:
            raise error
        return self.drop() if call.result is HOLE else call.result


def _require_result(out: object, calls: _Calls) -> None:
    if inspect.isawaitable(out) or isinstance(out, AsyncGenerator | Generator):
        raise TypeError(
            f"{name_of(calls.func)}, the function of {calls.owner}, has returned a {type(out).__name__}, which has not "
            "run yet: await it in the function, or return a list of what it yields"
        )


def _check_setup(owner: object, setup: Any) -> Any:
    """Return `setup` if it may be a function that returns an async context manager, or None."""
    if setup is None:
        return None
    name = type(owner).__name__
    wanted = (
        "a function that returns an async context manager, such as one decorated with contextlib.asynccontextmanager"
    )
    if not callable(setup):
        raise TypeError(f"{name}: setup is {wanted}, got {type(setup).__name__}")
    if (kind := deferred_kind(setup)) is not None:
        raise TypeError(f"{name}: setup is {wanted}, got {kind}")
    return setup
