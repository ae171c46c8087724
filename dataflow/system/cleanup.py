"""Exit hooks: close resources that hold workers before the interpreter ends."""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from multiprocessing import util
from typing import Protocol, TypeVar

from dataflow.errors import DataFlowTerminated
from dataflow.system.interrupts import signals_deferred

__all__ = ["Closeable", "close_at_exit", "members", "program_ending"]

_T = TypeVar("_T")


class Closeable(Protocol):
    """A resource that holds workers."""

    def close(self) -> None:
        """Stop the workers. Idempotent."""


_open: dict[int, weakref.WeakSet[Closeable]] = {}
"""What is to be closed when a process ends, by its id: what a forked child inherits is its parent's to close."""

_ending: set[int] = set()
"""The ids of processes that close what is open: this one, or those from which it was forked meanwhile."""


def members(weak_set: weakref.WeakSet[_T]) -> list[_T]:
    """The members of a weak set to which another thread may add meanwhile: iterating it would raise an error then."""
    while True:
        try:
            return list(weak_set)
        except RuntimeError:  # it has changed during the iteration
            continue


def close_at_exit(resource: Closeable) -> None:
    """Close `resource` when this process ends, unless it was collected before.

    A finaliser of `multiprocessing.util` runs in the main process and in processes started by `multiprocessing`, and
    before that module joins the remaining processes. An `atexit` hook of our own would run too late if it was
    registered before that module's, and would not run at all in a child.

    Raises:
        DataFlowTerminated: The process is ending: it would wait for workers that another thread has just started, and
            nothing would stop them.
    """
    pid = os.getpid()
    if pid not in _open:
        mine = weakref.WeakSet[Closeable]()
        if _open.setdefault(pid, mine) is mine:  # of two threads that meet here, one registers for both
            # With a priority from 0 on, it runs before `multiprocessing` joins what is left; otherwise after that.
            util.Finalize(None, _close_all, exitpriority=100)
    _open[pid].add(resource)
    if pid in _ending:  # looked at after the resource was added, and set before they are listed: one of both finds it
        _open[pid].discard(resource)
        raise program_ending()


def program_ending() -> DataFlowTerminated:
    """The error for what begins while the program ends."""
    return DataFlowTerminated("the program is ending: no workers are started, and no sockets opened, any more")


def _close_all() -> None:
    _ending.add(os.getpid())
    with signals_deferred(), ExitStack() as last:  # each is closed even if another raises
        for resource in members(_open[os.getpid()]):
            last.callback(resource.close)
