"""Exit hooks: close resources that hold workers before the interpreter ends."""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from multiprocessing import util
from typing import Protocol

from dataflow.system.interrupts import signals_deferred

__all__ = ["Closeable", "close_at_exit"]


class Closeable(Protocol):
    """A resource that holds workers."""

    def close(self) -> None:
        """Stop the workers. Idempotent."""


_open: dict[int, weakref.WeakSet[Closeable]] = {}
"""What is to be closed when a process ends, by its id: what a forked child inherits is its parent's to close."""


def close_at_exit(resource: Closeable) -> None:
    """Close `resource` when this process ends, unless it was collected before.

    A finaliser of `multiprocessing.util` runs in the main process and in processes started by `multiprocessing`, and
    before that module joins the remaining processes. An `atexit` hook of our own would run too late if it was
    registered before that module's, and would not run at all in a child.
    """
    pid = os.getpid()
    if pid not in _open:
        mine = weakref.WeakSet[Closeable]()
        if _open.setdefault(pid, mine) is mine:  # of two threads that meet here, one registers for both
            util.Finalize(None, _close_all, exitpriority=100)
    _open[pid].add(resource)


def _close_all() -> None:
    with signals_deferred(), ExitStack() as last:  # each is closed even if another raises
        for resource in list(_open[os.getpid()]):
            last.callback(resource.close)
