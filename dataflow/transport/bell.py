"""A bell: whoever sleeps beside it is woken, for the price of one call of the system.

A ring is remembered until `quiet`; several before that are one. What it is about stands elsewhere, in shared memory:
the sleeper says there that it sleeps, and then looks once more; who rings writes first, and then looks whether anybody
sleeps. Between the two steps of either a `Fence` is needed.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import Final

from dataflow.descriptors import Descriptor

__all__ = ["HAS_BELLS", "Bell", "Fence"]

HAS_BELLS: Final = sys.platform == "linux"


class Bell:
    """One descriptor for all who ring it and the one who hears it; picklable while a process is started."""

    def __init__(self) -> None:
        self.descriptor = Descriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def fileno(self) -> int:
        """The descriptor, which is readable while it rings."""
        return self.descriptor.fd

    def ring(self) -> None:
        """Wake whoever sleeps beside it."""
        os.eventfd_write(self.descriptor.fd, 1)

    def wait(self, timeout: float) -> None:
        """Sleep until it rings, for `timeout` seconds at most; then it is quiet."""
        poll = select.poll()
        poll.register(self.descriptor.fd, select.POLLIN)
        if poll.poll(timeout * 1000):
            self.quiet()

    def quiet(self) -> bool:
        """Stop the ringing; whether it has rung."""
        try:
            os.eventfd_read(self.descriptor.fd)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close what this process holds. Idempotent."""
        self.descriptor.close()


Fence: Final = threading.Lock
"""To take it lets no load that follows be done before the stores that precede it, on x86.

Nobody contends for it, and no fork finds it taken: one of these belongs to one thread at a time.
"""
