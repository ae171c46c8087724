"""Waiting in tests: for a condition, with a limit. Nothing else in the tests sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

LIMIT = 120.0  # seconds after which something hangs, however slow the machine: nothing that works takes so long

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float, message: str | Callable[[], str]) -> T:
    """Ask `condition` again and again until its answer is true, and return that answer.

    Args:
        condition: Asked at once, then at intervals that grow from 1 to 50 milliseconds.
        timeout: Seconds.
        message: What to say when the time is over; a function is called then.

    Raises:
        AssertionError: The time is over. Holds `message` and the seconds waited.
    """
    start = time.monotonic()
    interval = 0.001
    while not (answer := condition()):
        left = start + timeout - time.monotonic()
        if left <= 0:
            text = message() if callable(message) else message
            raise AssertionError(f"{text} (waited {time.monotonic() - start:.1f} s)")
        time.sleep(min(interval, left))
        interval = min(2 * interval, 0.05)
    return answer
