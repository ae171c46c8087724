"""What this process may use of its machine: cores and memory, by its affinity and its control groups.

A container or a batch job on a machine of 64 cores may be allowed two of them. The affinity says nothing of that; the
quota does: CPU time per period, in control groups of version 2 (``cpu.max``) and of version 1 (``cpu.cfs_quota_us``).
The limits of memory are beside them (``memory.max``, ``memory.limit_in_bytes``). The strictest of the process's own
group and the groups around it counts.

Source:
    The kernel's documentation: ``admin-guide/cgroup-v2.rst``, ``admin-guide/cgroup-v1/memory.rst`` and
    ``scheduler/sched-bwc.rst``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

__all__ = [
    "WORKERS_PER_CORE",
    "available_cores",
    "default_max_bytes",
    "log_oversubscription",
    "max_address_space",
    "memory_is_short",
    "memory_share",
    "processor_times",
]

_LOG = logging.getLogger(__name__)


_MOUNTED: Final = Path("/sys/fs/cgroup")  # where the control groups are mounted
_OWN: Final = Path("/proc/self/cgroup")  # names the groups of this process


def _groups(controller: str) -> Iterator[Path]:
    """The directories of this process's groups, and of those around them; the root is the container's, as a rule.

    Args:
        controller: "cpu" or "memory"; in version 1, each has groups of its own.
    """
    paths = {(_MOUNTED, "/"), (_MOUNTED / controller, "/")}
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:  # "4:cpu,cpuacct:/path" in version 1, "0::/path" in version 2
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths |= {(_MOUNTED, path), (_MOUNTED / "unified", path)}
        elif controller in controllers.split(","):
            paths |= {(_MOUNTED / controller, path), (_MOUNTED / controllers, path)}
    for root, path in paths:
        group = root / path.strip("/")
        yield group
        while group != root:
            group = group.parent
            yield group


# -- Cores -------------------------------------------------------------------------------------------------------------


WORKERS_PER_CORE: Final = 4
"""More workers than this for each core are worth a line in the log."""


def available_cores() -> int:
    """Cores that this process may use, at least 1.

    Example:
        >>> available_cores() >= 1
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in _groups("cpu") if (quota := _quota(group)) is not None]
    return max(1, min(cores, *map(int, quotas))) if quotas else cores


def log_oversubscription(title: str, num_workers: int) -> None:
    """Log one line, at INFO, if there are more than `WORKERS_PER_CORE` processes for each core."""
    cores = available_cores()
    if num_workers > WORKERS_PER_CORE * cores:
        _LOG.info(
            "%s has %d workers, and this process may use %d core%s (by its affinity and the quota of its container): "
            "more than %d workers per core make it slower, unless they wait for a disk or a network",
            title,
            num_workers,
            cores,
            "" if cores == 1 else "s",
            WORKERS_PER_CORE,
        )


def processor_times(thread: str | int) -> tuple[float, float] | None:
    """Seconds that a thread was on a core, and ready to run without one; None if unknown.

    Args:
        thread: Its place below ``/proc`` of Linux: a process id, for the first thread of that process; "thread-self";
            or "self/task/" and a thread id.

    Example:
        >>> processor_times("no such thread") is None
        True
    """
    try:
        with open(f"/proc/{thread}/schedstat") as file:
            on_core, delayed, _ = file.read().split()
    except (OSError, ValueError, MemoryError):  # it has ended, or the system does not tell: no figure is worth an error
        return None
    return int(on_core) * 1e-9, int(delayed) * 1e-9


def _quota(group: Path) -> float | None:
    """Cores that a group may use, on average; None if it has no limit, or does not exist."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return cores if cores > 0 else None  # -1: no limit


# -- Memory ------------------------------------------------------------------------------------------------------------


_MAX: Final = 1 << 30
_SHORT: Final = 0.05  # of the memory

_share: ContextVar[int | None] = ContextVar("memory_share", default=None)


def default_max_bytes() -> int:
    """A quarter of the memory of this container, and of the address space, at most 1 GiB; in a worker, its share."""
    share = _share.get()
    if share is not None:
        return share
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    if (most := max_address_space()) is not None:
        limits.append(most)
    limits += [limit for group in _groups("memory") if (limit := _memory_limit(group)) is not None]
    return min(min(limits) // 4, _MAX)


def max_address_space() -> int | None:
    """Bytes of address space that this process may have (`ulimit -v`); None if they are not limited, or unknown."""
    try:
        import resource  # not available on Windows

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError):
        return None
    return None if most == resource.RLIM_INFINITY else most


def _memory_limit(group: Path) -> int | None:
    """Bytes of memory that a group may use; None if it has no limit, or does not exist."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int((group / name).read_text())
        except (OSError, ValueError):  # another version of the groups, or "max"
            continue
    return None


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
    return _machine_is_short() or any(_group_is_short(group) for group in _groups("memory"))


def _machine_is_short() -> bool:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        values = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        return values["MemAvailable"] < _SHORT * values["MemTotal"]
    except (OSError, ValueError, KeyError):  # the system does not tell
        return False


def _group_is_short(group: Path) -> bool:
    """Whether a group of version 2 has used its memory up."""
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = int(statistics["inactive_file"])  # counts as used, and can be had at once
    except (OSError, ValueError, KeyError):  # it has no limit, or does not exist
        return False
    return limit - used + cached < _SHORT * limit
