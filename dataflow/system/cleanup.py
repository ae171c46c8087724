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


class _AtExit:
    """The resources that this process closes when it ends."""

    def __init__(self) -> None:
        self.pid = -1
        self.open: weakref.WeakSet[Closeable] = weakref.WeakSet()


_AT_EXIT = _AtExit()


def close_at_exit(resource: Closeable) -> None:
    """Close `resource` when this process ends, unless it was collected before.

    A finaliser of `multiprocessing.util` runs in the main process and in processes started by `multiprocessing`, and
    before that module joins the remaining processes. An `atexit` hook of our own would run too late if it was
    registered before that module's, and would not run at all in a child.
    """
    if _AT_EXIT.pid != os.getpid():
        # A forked child starts with an empty list: resources that it inherited are its parent's to close.
        _AT_EXIT.pid = os.getpid()
        _AT_EXIT.open = weakref.WeakSet()
        util.Finalize(None, _close_all, exitpriority=100)
    _AT_EXIT.open.add(resource)


def _close_all() -> None:
    with signals_deferred(), ExitStack() as last:  # each is closed even if another raises
        for resource in list(_AT_EXIT.open):
            last.callback(resource.close)
