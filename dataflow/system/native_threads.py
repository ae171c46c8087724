"""Limits of native threads: how many threads BLAS, OpenMP and OpenCV use in a worker process.

Each of these libraries starts one thread per core, in every process; N workers would run N times as many. Libraries
that are loaded when the worker starts are limited through `threadpoolctl`, if it is installed, and through
``cv2.setNumThreads``; libraries that are loaded later read the environment. No library is imported only to limit it.

Guarantees:

- Only a process that asked for it is limited, never the main process.
- A forked worker does not search for libraries: it knows what its parent has found when the runner started.
- A child that is forked while another thread searches does not wait for a lock that nobody in it holds.
- A share (`exact` is false) only lowers: a smaller number set before, in the program or the environment, is kept.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dataflow.system.machine import available_cores

__all__ = ["ThreadLimit", "find_pools", "limit_for", "limit_threads", "share_of_cores"]


# -- Thread limits -----------------------------------------------------------------------------------------------------


_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


@dataclass(frozen=True, slots=True)
class ThreadLimit:
    """The thread limit of native libraries in a worker process.

    Attributes:
        count: Threads of each library.
        exact: Whether `count` is set even if fewer are set already.
    """

    count: int
    exact: bool


class _Process:
    """The limit in this process, and in processes forked from it until they set their own."""

    limit: ThreadLimit | None = None
    pools: Sequence[Any] = ()  # of threads: the controllers that threadpoolctl has found


_here = _Process()


def limit_for(option: int | Literal["share"] | None, share: int) -> ThreadLimit | None:
    """The limit for worker processes that start now, from the user's `thread_limit`; None to leave the threads alone.

    Loads here, once, what forked workers need for it.

    Args:
        option: A number, or "share" for `share`.
        share: Threads for each worker; fewer where fewer were set before.
    """
    if option is None:
        return None
    find_pools()
    return ThreadLimit(share, exact=False) if option == "share" else ThreadLimit(option, exact=True)


def share_of_cores(num_workers: int) -> int:
    """Threads for each of `num_workers` processes: the cores that this one may use, divided among them, at least 1."""
    cores = available_cores() if _here.limit is None else _here.limit.count
    return max(1, cores // num_workers)


def limit_threads(limit: ThreadLimit) -> None:
    """Limit the threads of native libraries in this process; called when it starts."""
    _here.limit = limit
    is_forked = _is_forked()
    for name in _VARIABLES:
        if limit.exact or not 1 <= _number(os.environ.get(name)) <= limit.count:
            os.environ[name] = str(limit.count)
    for library in _here.pools if is_forked else find_pools():
        if _is_other(limit, library.num_threads):
            library.set_num_threads(limit.count)
    _limit_cv2(limit, is_inherited=is_forked)


def find_pools() -> Sequence[Any]:
    """The controllers of the loaded libraries' thread pools; none if `threadpoolctl` is not installed."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return ()
    with _searching:
        _here.pools = ThreadpoolController().lib_controllers
    return _here.pools


# The search holds a lock of the dynamic linker, which a child forked meanwhile would find taken: no fork until its end.
_searching: Final = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_searching.acquire, after_in_parent=_searching.release, after_in_child=_searching.release
    )


def _limit_cv2(limit: ThreadLimit, *, is_inherited: bool) -> None:
    cv2 = sys.modules.get("cv2")
    get: Callable[[], int] | None = getattr(cv2, "getNumThreads", None)
    set_: Callable[[int], Any] | None = getattr(cv2, "setNumThreads", None)
    if get is None or set_ is None:  # not imported, or only partly
        return
    if is_inherited or limit.count == 1:
        # Use no pool at all. The threads of a pool that was used before the fork do not exist here, and
        # setting any other number, 1 included, would wait endlessly for them to end.
        set_(0)
    elif _is_other(limit, get()):
        set_(limit.count)


def _is_forked() -> bool:
    """Whether this process began as a copy of another one, with its loaded libraries."""
    here = multiprocessing.current_process()
    return "fork" in multiprocessing.get_all_start_methods() and isinstance(
        here, multiprocessing.get_context("fork").Process
    )


def _is_other(limit: ThreadLimit, count: int) -> bool:
    return count != limit.count if limit.exact else count > limit.count


def _number(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        return 0
