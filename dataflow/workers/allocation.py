"""How the C library of a process treats memory that was freed.

An array of some megabytes that is made and dropped for every datapoint, as a decoder's, would be given back to the
system and mapped anew each time: page by page, which takes longer than to fill it. A worker keeps what it will need
again, and so does a process that receives from others over TCP. Of the benchmarks `jpeg` shows it, where a photograph
would take 1.45 times the CPU time, and `image` by `tcp/ours`, at half its speed without.
"""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD: Final = -1  # as in glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20  # at the end of the heap
_MAPPED_BYTES: Final = 32 << 20  # what is larger is mapped by itself, and given back, as ever


def keep_freed_memory() -> None:
    """Let this process keep up to 64 MiB of freed memory. Where the user has set malloc's variables, these hold."""
    is_set = "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ)
    if is_set or platform.libc_ver()[0] != "glibc":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
