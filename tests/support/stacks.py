"""Where a thread is: for tests that must act while it waits, and not before."""

import threading
from collections.abc import Callable
from typing import Any

from dataflow.system.thread_frames import current_frames


def is_inside(thread: threading.Thread, function: Callable[..., Any]) -> bool:
    """Whether `thread` is in a call of `function`, which is written in Python, or in one made from there."""
    frame = current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None
