"""Waiting awake, for the moment that falling asleep and being woken would take.

A thread that sleeps costs whoever wakes it some microseconds, and comes back after some more; on a virtual machine it
may be a hundred. Two processes that hand each other a message every fifty would spend their time on that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Vigil", "let_others_run"]

_AWAKE: Final = 150e-6  # seconds
_SHORT: Final = 300e-6  # after a longer wait, the next one is slept through from the beginning

let_others_run: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)
"""Gives this processor to whoever waits for it, for a moment; if nobody does, nothing happens."""


class Vigil:
    """Somebody who waits again and again, and stays awake for a moment if the last wait was short."""

    def __init__(self) -> None:
        self._awake = False

    def wait(self, has_come: Callable[[], bool], sleep: Callable[[], bool]) -> bool:
        """Wait until `has_come()`: awake at first, then by `sleep()`, whose answer is given."""
        began = time.perf_counter()
        try:
            while self._awake:
                let_others_run()
                if has_come():
                    return True
                self._awake = time.perf_counter() - began < _AWAKE
            return sleep()
        finally:
            self._awake = time.perf_counter() - began < _SHORT
