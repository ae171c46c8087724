"""Number of cores: those that this process may use, by its affinity and by the CPU quota of its control groups.

A container on a machine of 64 cores may be allowed two of them. The affinity says nothing of that; the quota does: CPU
time per period, in control groups of version 2 (``cpu.max``) and of version 1 (``cpu.cfs_quota_us``). The strictest of
the process's own group and the groups around it counts.

Source:
    The kernel's documentation: ``admin-guide/cgroup-v2.rst`` and ``scheduler/sched-bwc.rst``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["WORKERS_PER_CORE", "available_cores", "log_oversubscription", "processor_times"]

_LOG = logging.getLogger(__name__)
_MOUNTED: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")

WORKERS_PER_CORE: Final = 4
"""More workers than this for each core are worth a line in the log."""


def available_cores(mounted: Path = _MOUNTED, own: Path = _OWN) -> int:
    """Cores that this process may use, at least 1.

    Args:
        mounted: Directory where the control groups are mounted.
        own: File that names the groups of this process.

    Example:
        >>> available_cores() >= 1
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in _groups(mounted, own) if (quota := _quota(group)) is not None]
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
    except (OSError, ValueError):  # it has ended, or the system does not tell
        return None
    return int(on_core) * 1e-9, int(delayed) * 1e-9


def _groups(mounted: Path, own: Path) -> Iterator[Path]:
    """The directories of this process's groups, and of those around them; the root is the container's, as a rule."""
    paths = {(mounted, "/"), (mounted / "cpu", "/")}
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:  # "4:cpu,cpuacct:/path" in version 1, "0::/path" in version 2
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths |= {(mounted, path), (mounted / "unified", path)}
        elif "cpu" in controllers.split(","):
            paths |= {(mounted / "cpu", path), (mounted / controllers, path)}
    for root, path in paths:
        group = root / path.strip("/")
        yield group
        while group != root:
            group = group.parent
            yield group


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
