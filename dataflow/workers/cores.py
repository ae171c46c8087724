"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["available_cores"]

_CGROUP: Final = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use, at least 1: by its affinity, and by the quota of its container.

    Args:
        cgroup: Where the container's limits stand.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Cores that the container may use, on average; None where nobody limits them."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return cores if cores > 0 else None  # -1
