"""The frames that the threads of this process are executing.

Before Python 3.12 `sys._current_frames` may hang the process (https://github.com/python/cpython/issues/106883). It
makes objects while it holds a lock of the interpreter, so the garbage collector may run, and collecting a
`threading.local` takes this lock, too. So the collector is off meanwhile. Guarantees:

- While one thread is in there, no other switches the collector on. A signal handler may enter within it.
- No process is forked meanwhile: the child would have no collector.
- If a program switches the collector off in another thread at that moment, it is on again afterwards.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import FrameType
from typing import Final

__all__ = ["current_frames"]

if sys.version_info >= (3, 12):
    current_frames = sys._current_frames
else:
    _inside: Final = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_inside.acquire, after_in_parent=_inside.release, after_in_child=_inside.release)

    def current_frames() -> dict[int, FrameType]:
        """The innermost frame of each thread, by its identifier."""
        with _inside:
            was_on = gc.isenabled()
            try:
                gc.disable()
                return sys._current_frames()
            finally:
                if was_on:
                    gc.enable()
