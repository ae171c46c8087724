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
from collections.abc import Callable
from typing import Any, Final

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

__all__ = ["CheckedCalls", "warn"]

_LOG: Final = logging.getLogger(__name__)


class CheckedCalls:
    """A user's function; its first calls are checked.

    Args:
        func: The function.
        owner: The name of the node's class, for messages.
        calls: What all users of this function in this process share.
        done: Called after the last check, with the function itself.
        given: What the user has passed, if `func` is something that calls it.
        seeds: Whether the global generators are seeded for each datapoint.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        owner: str,
        calls: FirstCalls,
        done: Callable[[Callable[..., Any]], object],
        *,
        given: object = None,
        seeds: bool = False,
    ) -> None:
        self._func = func
        self._given = func if given is None else given
        self._owner = owner
        self._calls = calls
        self._done = done
        self._seeds = seeds
        self.__qualname__ = getattr(func, "__qualname__", None) or repr(func)

    def __call__(self, *args: Any) -> Any:
        calls = self._calls
        calls.num_left -= 1
        if calls.promise is None:
            out = self._check_returned(self._func(*args))
        else:
            out = self._call_watched(calls, calls.promise, args)
        if calls.num_left <= 0:
            self._done(self._func)
        return out

    def _call_watched(self, calls: FirstCalls, promise: Promise, args: tuple[Any, ...]) -> Any:
        generators = {} if self._seeds or calls.has_warned else global_generators()
        if promise.shares_process and not mentions_globals(self._given):
            generators = {}  # other threads draw from them meanwhile
        held = held_generators(self._given)
        before, held_before = states_of(generators), states_of(held)
        numbers = held_numbers(self._given) if calls.counting is None or calls.counting else {}
        out = self._check_returned(self._func(*args))
        names, held_names = drawn_from(before, states_of(generators)), drawn_from(held_before, states_of(held))
        if names:
            calls.has_warned = True
            warn(self._text_of_globals(promise, names))
        if numbers:
            self._look_for_counters(calls, promise, numbers)
        if held:
            calls.suspects = {*held_names} if calls.suspects is None else calls.suspects & {*held_names}
            held_names = [name for name in held_names if name in calls.suspects]
            if held_names and (calls.num_left <= 0 or not may_seed(self._given)):
                self._break(calls, promise, self._text_of_held(promise, held_names))
        return out

    def _look_for_counters(self, calls: FirstCalls, promise: Promise, before: dict[str, Any]) -> None:
        after = held_numbers(self._given)
        changed = {name for name, number in before.items() if after.get(name, number) != number}
        if calls.counting is None:
            calls.counting = changed  # in the first call it may have been prepared
        else:
            changed &= calls.counting
            if changed:
                warn(self._text_of_counter(promise, min(changed)))
            calls.counting = set()

    def _check_returned(self, out: Any) -> Any:
        if (found := deferred_result(out)) is not None:
            raise TypeError(f"{self.__qualname__}, the function of {self._owner}, has returned {found}")
        return out

    def _break(self, calls: FirstCalls, promise: Promise, text: str) -> None:
        if promise.refuses:
            calls.restart()  # the next loop raises, too
            raise NotReproducible(text)
        if not calls.broken:
            calls.broken = text
            warn(text)

    def _text_of_held(self, promise: Promise, names: list[str]) -> str:
        return (
            f"{promise.owner}: {self.__qualname__}, the function of {self._owner}, draws random numbers from a "
            f"generator that it holds ({' and '.join(names)}): each worker has a copy of it, which repeats the numbers "
            "of the others, and a resumed run begins it again. Draw from the generator of the datapoint: "
            "RandomMapData, or with_rng=True of a parallel map, calls func(dp, rng)"
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
            "number of workers. Pass seed_globals=True to the map, which then seeds it for each datapoint; or draw "
            "from the generator that RandomMapData passes: func(dp, rng)"
        )


def warn(text: str) -> None:
    """Log a warning; in a worker, through the runner above."""
    reporter = failure_reporter()
    if reporter is None:
        _LOG.warning("%s", text)
    else:
        reporter.report_warning(text)
