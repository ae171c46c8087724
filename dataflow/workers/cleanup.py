"""What must be closed before the interpreter ends."""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from multiprocessing import util
from typing import Protocol

from dataflow.interrupts import signals_deferred

__all__ = ["close_at_exit"]


class Closeable(Protocol):
    """Whatever holds workers."""

    def close(self) -> None:
        """Stop them. Idempotent."""


class _AtExit:
    """What this process closes when it ends."""

    def __init__(self) -> None:
        self.pid = -1
        self.open: weakref.WeakSet[Closeable] = weakref.WeakSet()


_AT_EXIT = _AtExit()


def close_at_exit(resource: Closeable) -> None:
    """Close `resource` when this process ends, unless it has gone before.

    A finaliser of `multiprocessing.util` runs in the main process and in processes started by `multiprocessing`, and
    before that module joins the processes that are left. An `atexit` hook of our own would come too late where it was
    registered before that module's, and would not run at all in a child.
    """
    if _AT_EXIT.pid != os.getpid():
        # A forked child starts an empty list: what it inherited is its parent's to close.
        _AT_EXIT.pid = os.getpid()
        _AT_EXIT.open = weakref.WeakSet()
        util.Finalize(None, _close_all, exitpriority=100)
    _AT_EXIT.open.add(resource)


def _close_all() -> None:
    with signals_deferred(), ExitStack() as last:  # each is closed even if another raises
        for resource in list(_AT_EXIT.open):
            last.callback(resource.close)
