"""Checks of the first calls of a user's function in each process: what it returns, and from what it draws.

Guarantees:

- After `NUM_CHECKED` calls, the function is called as if there were no checks.
- Random numbers are looked at only where a node promises the same datapoints (`passes.promise`).
- A draw from a global generator, which `seed_globals=True` would seed, is logged once. A draw from a generator that the
  function holds raises, in every loop.
- A number that the function holds and changes in each call, such as a counter, is logged once: what it returns may
  depend on that, or not.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dataflow.errors import NotReproducible
from dataflow.protocol.failures import failure_reporter
from dataflow.protocol.generators import (
    drawn_from,
    global_generators,
    held_generators,
    held_numbers,
    may_seed,
    mentions_globals,
    states_of,
)
from dataflow.protocol.parameters import deferred_result
from dataflow.protocol.state import FirstCalls, Promise

__all__ = ["OF_COROUTINES", "OF_SEQUENCES", "CheckedCalls", "warn"]

_LOG: Final = logging.getLogger(__name__)


class CallKind(NamedTuple):
    """What is called, and what to do about random numbers that do not belong to the datapoint."""

    if_held: str  # the cure if they come from a generator that the function holds
    if_global: str
    is_map: bool = False  # what it returns is checked, and numbers in objects of libraries count as its own


OF_FUNCTIONS: Final = CallKind(
    "Draw from the generator of the datapoint: RandomMapData, or with_rng=True of a parallel map, calls func(dp, rng)",
    "Pass seed_globals=True to the map, which then seeds it for each datapoint; or draw from the generator that "
    "RandomMapData passes: func(dp, rng)",
    is_map=True,
)
_BELOW: Final = "Draw in a RandomMapData below it, which calls func(dp, rng), and put the numbers into the datapoint"
OF_COROUTINES: Final = CallKind(_BELOW, _BELOW)
OF_SEQUENCES: Final = CallKind(
    "Draw above it, in a RandomMapData, which calls func(dp, rng)",
    "Read it by a map, which seeds it for each datapoint: MapData(DataFromList(range(n)), lst.__getitem__, "
    "seed_globals=True)",
)


class _Look(NamedTuple):
    """What a call may change, before it."""

    generators: dict[str, Any]  # the global ones
    states: dict[str, Any]
    held: dict[str, Any]  # those that the function holds
    held_states: dict[str, Any]
    numbers: dict[str, Any]


class CheckedCalls:
    """A user's function; its first calls are checked.

    Args:
        func: The function.
        owner: The name of the node's class, for messages.
        calls: What all users of this function in this process share.
        done: Called after the last check, with the function itself; None for a coroutine function.
        given: What the user has passed, if `func` is something that calls it.
        seeds: Whether the global generators are seeded for each datapoint.
        kind: What the function is.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        owner: str,
        calls: FirstCalls,
        done: Callable[[Callable[..., Any]], object] | None = None,
        *,
        given: object = None,
        seeds: bool = False,
        kind: CallKind = OF_FUNCTIONS,
    ) -> None:
        self._func = func
        self._given = func if given is None else given
        self._owner = owner
        self._calls = calls
        self._done = done
        self._seeds = seeds
        self._kind = kind
        self._warn: Callable[[str], object] = warn
        self.__qualname__ = getattr(func, "__qualname__", None) or repr(func)

    def __call__(self, *args: Any) -> Any:
        calls = self._calls
        # Before the call, without a lock: threads that meet here may check a call more, which does no harm.
        calls.num_left -= 1
        if calls.promise is None:
            out = self._check_returned(self._func(*args))
        else:
            out = self._call_watched(calls, calls.promise, args)
        if calls.num_left <= 0 and self._done is not None:
            self._done(self._func)
        return out

    async def awaited(self, warnings: deque[str], *args: Any) -> Any:
        """What the function, a coroutine function, makes of `args`: other calls of it run meanwhile, and other code.

        Warnings are appended to `warnings`, for the thread of the consumer: only that may report.
        """
        calls, promise = self._calls, self._calls.promise
        self._warn = warnings.append
        calls.num_left -= 1
        if promise is None:
            return await self._func(*args)
        promise = promise._replace(shares_process=True)
        before = self._look(calls, promise)
        out = await self._func(*args)
        self._compare(calls, promise, before)
        return out

    def _call_watched(self, calls: FirstCalls, promise: Promise, args: tuple[Any, ...]) -> Any:
        before = self._look(calls, promise)
        out = self._check_returned(self._func(*args))
        self._compare(calls, promise, before)
        return out

    def _look(self, calls: FirstCalls, promise: Promise) -> _Look:
        """What a call may change, before it."""
        generators = {} if self._seeds or calls.has_warned else global_generators()
        if promise.shares_process and not mentions_globals(self._given):
            generators = {}  # other threads draw from them meanwhile
        held = held_generators(self._given)
        counts = calls.counting is None or bool(calls.counting)
        numbers = held_numbers(self._given, in_libraries=self._kind.is_map) if counts else {}
        return _Look(generators, states_of(generators), held, states_of(held), numbers)

    def _compare(self, calls: FirstCalls, promise: Promise, look: _Look) -> None:
        """Warn or raise if the call has drawn, or counted."""
        generators, before, held, held_before, numbers = look
        names, held_names = drawn_from(before, states_of(generators)), drawn_from(held_before, states_of(held))
        if names:
            calls.has_warned = True
            self._warn(self._text_of_globals(promise, names))
        if numbers:
            after = held_numbers(self._given, in_libraries=self._kind.is_map)
            self._look_for_counters(calls, promise, numbers, after)
        if held:
            # A generator that the function draws from changes in every call; one from which something else has drawn
            # does not.
            calls.suspects = {*held_names} if calls.suspects is None else calls.suspects & {*held_names}
            held_names = [name for name in held_names if name in calls.suspects]
            if held_names and (calls.num_left <= 0 or not may_seed(self._given)):
                self._break(calls, promise, self._text_of_held(promise, held_names))

    def _look_for_counters(
        self, calls: FirstCalls, promise: Promise, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        changed = {name for name, number in before.items() if after.get(name, number) != number}
        if calls.counting is None:
            calls.counting = changed  # in the first call it may have been prepared
        else:
            changed &= calls.counting
            if changed:
                self._warn(self._text_of_counter(promise, min(changed)))
            calls.counting = set()

    def _check_returned(self, out: Any) -> Any:
        if self._kind.is_map and (found := deferred_result(out)) is not None:
            raise TypeError(f"{self.__qualname__}, the function of {self._owner}, has returned {found}")
        return out

    def _break(self, calls: FirstCalls, promise: Promise, text: str) -> None:
        if promise.refuses:
            calls.restart()  # the next loop raises, too
            raise NotReproducible(text)
        if not calls.broken:
            calls.broken = text
            self._warn(text)

    def _text_of_held(self, promise: Promise, names: list[str]) -> str:
        return (
            f"{promise.owner}: {self.__qualname__}, the function of {self._owner}, draws random numbers from a "
            f"generator that it holds ({' and '.join(names)}): each worker has a copy of it, which repeats the numbers "
            f"of the others, and a resumed run begins it again. {self._kind.if_held}"
        )

    def _text_of_counter(self, promise: Promise, name: str) -> str:
        return (
            f"{promise.owner}: {self.__qualname__}, the function of {self._owner}, changes {name} in each call: every "
            "worker counts for itself, and a resumed run begins anew. If what it returns depends on that, put the "
            "number into the datapoint instead, such as with DataFromList(list(enumerate(data)))"
        )

    def _text_of_globals(self, promise: Promise, names: list[str]) -> str:
        return (
            f"{promise.owner}: {self.__qualname__}, the function of {self._owner}, draws random numbers from the "
            f"global generator of {' and '.join(names)}: its datapoints are others in every run, and with another "
            f"number of workers. {self._kind.if_global}"
        )


def warn(text: str) -> None:
    """Log a warning; in a worker, through the runner above."""
    reporter = failure_reporter()
    if reporter is None:
        _LOG.warning("%s", text)
    else:
        reporter.report_warning(text)
