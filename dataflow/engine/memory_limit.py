"""Memory limit: how much memory a runner may use for datapoints that are under way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["default_max_bytes", "memory_is_short", "memory_share"]

_MAX: Final = 1 << 30
_SHORT: Final = 0.05  # of the memory

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


def memory_is_short() -> bool:
    """Whether less than 5 % of the memory of this machine, or of its container, is available; False if unknown."""
    try:
        with open("/proc/meminfo") as file:
            values = {name: int(value.split()[0]) for name, value in (line.split(":") for line in file)}
        if values["MemAvailable"] < _SHORT * values["MemTotal"]:
            return True
        limit, used = (int(_read(f"/sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
        statistics = dict(line.split() for line in _read("/sys/fs/cgroup/memory.stat").splitlines())
        cached = int(statistics["inactive_file"])  # counts as used, and can be had at once
    except (OSError, ValueError, KeyError):  # the system does not tell, or there is no limit
        return False
    return limit - used + cached < _SHORT * limit


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
