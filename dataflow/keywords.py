"""Keyword hints: the right parameter name for keywords of other classes, other libraries and older tensorpack versions.

The error for an unexpected keyword argument also names the parameter to which it corresponds.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, ParamSpec

__all__ = ["hinting"]

P = ParamSpec("P")

_SYNONYMS: Final = (
    (
        "num_proc",
        "num_thread",
        "n_proc",
        "nr_proc",
        "nr_process",
        "nr_thread",
        "nr_worker",
        "num_process",
        "num_processes",
        "num_threads",
        "num_worker",
        "num_workers",
        "n_jobs",
        "workers",
    ),
    ("num_prefetch", "hwm", "buffer_size", "nr_prefetch", "prefetch", "prefetch_factor", "prefetch_size"),
    ("map_func", "func", "function", "mapper"),
    ("num_reuse", "nr_reuse"),
    ("num", "nr", "num_repeat", "repeat"),
    ("context", "mp_context", "multiprocessing_context", "start_method"),
)
"""Groups of synonyms. If a class has several parameters of a group, the first one is suggested."""


def hinting(init: Callable[P, None]) -> Callable[P, None]:
    """Wrap a constructor so that its error for an unknown keyword names the corresponding parameter."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if not _ALL.isdisjoint(kwargs):
            _check(init, type(args[0]).__name__, kwargs)
        init(*args, **kwargs)

    return checked


_ALL: Final = frozenset(name for names in _SYNONYMS for name in names)


def _check(init: Callable[..., None], owner: str, kwargs: dict[str, Any]) -> None:
    parameters = inspect.signature(init).parameters
    for given in kwargs:
        if given in parameters:
            continue
        for names in _SYNONYMS:
            here = next((name for name in names if name in parameters), None)
            if given in names and here is not None:
                raise TypeError(f"{owner} got an unexpected keyword argument {given!r}: here it is called {here}")
