"""Memory limit: how much memory a runner may use for datapoints that are under way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["default_max_bytes", "memory_share"]

_MAX: Final = 1 << 30

_share: ContextVar[int | None] = ContextVar("memory_share", default=None)


def default_max_bytes() -> int:
    """A quarter of this container's memory, at most 1 GiB; in a worker, its share of its runner's limit."""
    share = _share.get()
    if share is not None:
        return share
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):  # the cgroup does not exist, or its limit is "max"
            continue
    return min(min(limits) // 4, _MAX)


@contextmanager
def memory_share(nbytes: int | None) -> Iterator[None]:
    """Set `default_max_bytes` to `nbytes` inside the block, in this thread; None changes nothing."""
    token = _share.set(_share.get() if nbytes is None else nbytes)
    try:
        yield
    finally:
        _share.reset(token)
