"""Checks of the first calls of a user's function in each process: what it returns, and from what it draws.

Guarantees:

- After `NUM_CHECKED` calls, the function is called as if there were no checks.
- Random numbers are looked at only where somebody promises the same datapoints (`passes.promise`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from dataflow.failures import failure_reporter
from dataflow.parameters import deferred_result
from dataflow.state import FirstCalls
from dataflow.transforms.generators import drawn_from, global_generators, held_generators, mentions_globals, states_of

__all__ = ["CheckedCalls"]

_LOG: Final = logging.getLogger(__name__)


class CheckedCalls:
    """A user's function; its first calls are checked.

    Args:
        func: The function.
        owner: The name of the node's class, for messages.
        calls: What all users of this function in this process share.
        done: Called after the last check, with the function itself.
        seeds: Whether the global generators are seeded for each datapoint.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        owner: str,
        calls: FirstCalls,
        done: Callable[[Callable[..., Any]], object],
        *,
        seeds: bool = False,
    ) -> None:
        self._func = func
        self._owner = owner
        self._calls = calls
        self._done = done
        self._seeds = seeds
        self.__qualname__ = getattr(func, "__qualname__", None) or repr(func)

    def __call__(self, *args: Any) -> Any:
        calls = self._calls
        calls.num_left -= 1
        if calls.num_left <= 0:
            self._done(self._func)
        if calls.promise is None or calls.has_warned:
            return self._returned(self._func(*args))
        generators = {} if self._seeds else global_generators()
        if calls.promise.shares_process and not mentions_globals(self._func):
            generators = {}  # other threads draw from them meanwhile
        held = held_generators(self._func)
        before = states_of({**generators, **held})
        out = self._returned(self._func(*args))
        names = drawn_from(before, states_of({**generators, **held}))
        if names and not calls.has_warned:
            calls.has_warned = True
            self._warn([name for name in names if name in generators] or names, is_held=names[0] in held)
        return out

    def _returned(self, out: Any) -> Any:
        if (found := deferred_result(out)) is not None:
            raise TypeError(f"{self.__qualname__}, the function of {self._owner}, has returned {found}")
        return out

    def _warn(self, names: list[str], *, is_held: bool) -> None:
        assert self._calls.promise is not None
        what = " and ".join(names)
        text = f"{self._calls.promise.owner}: {self.__qualname__}, the function of {self._owner}, draws random numbers "
        if is_held:
            text += (
                f"from a generator of its own ({what}): each worker has a copy of it, which repeats the numbers of the "
                "others, and a resumed run begins it again. Draw from the generator that RandomMapData passes with "
                "each datapoint: func(dp, rng)"
            )
        else:
            text += (
                f"from the global generator of {what}: its datapoints are others in every run, and with another number "
                "of workers. Pass seed_globals=True to the map, which then seeds it for each datapoint; or draw from "
                "the generator that RandomMapData passes: func(dp, rng)"
            )
        reporter = failure_reporter()
        if reporter is None:
            _LOG.warning("%s", text)
        else:
            reporter.report_warning(text)
