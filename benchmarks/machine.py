"""Description of the machine, without names of hosts, users or folders."""

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["description"]


def description() -> dict[str, Any]:
    return {
        "cpu": field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
    }


def field(path: Path, name: str) -> str | None:
    """The value of the first line ``name : value`` of a file in /proc; None if it is missing."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)
