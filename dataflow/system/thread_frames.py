"""The frames that a thread of this process is executing, read by another one.

Before Python 3.12 the garbage collector may run wherever an object is made, and so wherever a frame object is made:

- `sys._current_frames` makes them while it holds a lock of the interpreter. Collecting a `threading.local` takes this
  lock, too, and the process hangs (https://github.com/python/cpython/issues/106883).
- ``f_back`` makes one for a frame that the other thread executes. Collecting runs code of Python, which gives the other
  thread the interpreter. If it leaves that frame meanwhile, the new object points to memory that is no longer the
  frame's, and the next look at it may end the process by SIGSEGV.

So the collector is off until the last frame object is made. Guarantees:

- While one thread is in there, no other switches the collector on. A signal handler may enter within it.
- No process is forked meanwhile: the child would have no collector.
- If a program switches the collector off in another thread at that moment, it is on again afterwards.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Final

__all__ = ["stack_of"]

if sys.version_info >= (3, 12):
    _collector_off = nullcontext
else:
    _inside: Final = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_inside.acquire, after_in_parent=_inside.release, after_in_child=_inside.release)

    @contextmanager
    def _collector_off() -> Iterator[None]:
        with _inside:
            was_on = gc.isenabled()
            try:
                gc.disable()
                yield
            finally:
                if was_on:
                    gc.enable()


def stack_of(thread: int, limit: int = sys.maxsize) -> list[FrameType]:
    """The frames of a thread, the innermost first; none if it has ended.

    Args:
        thread: Its identifier.
        limit: No more frames than that. They keep their variables alive.
    """
    stack: list[FrameType] = []
    with _collector_off():
        frame = sys._current_frames().get(thread)
        while frame is not None and len(stack) < limit:
            stack.append(frame)
            # If the thread has left this frame since, the frame has got a reference to the one that called it.
            frame = frame.f_back
    return stack
