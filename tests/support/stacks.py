"""Where a thread is: for tests that must act while it waits, and not before."""

import threading
from collections.abc import Callable
from typing import Any

from dataflow.system.thread_frames import stack_of


def is_inside(thread: threading.Thread, function: Callable[..., Any]) -> bool:
    """Whether `thread` is in a call of `function`, which is written in Python, or in one made from there."""
    return any(frame.f_code is function.__code__ for frame in stack_of(thread.ident or 0))
