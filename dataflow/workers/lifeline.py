"""A worker process ends when its parent is gone, whatever it is doing.

The parent holds the write end of a pipe and never writes. The worker asks the kernel for SIGKILL when its read end
becomes readable, that is, at end-of-file. This works while a C extension holds the interpreter's lock, and under fork,
forkserver and spawn alike. Not PR_SET_PDEATHSIG: it follows the *thread* that forked, and misses forkserver. Not
getppid: under forkserver the parent is the server.

A worker that starts when its parent is gone already removes first what that has left in the temporary directory.
"""

from __future__ import annotations

import os
import select
import signal
import threading

from dataflow.descriptors import Descriptor
from dataflow.temporary import sweep

__all__ = ["hold_on"]


def hold_on(lifeline: Descriptor) -> None:
    """From now on this process is killed when the other end of `lifeline` is closed."""
    import fcntl  # does not exist on Windows, where the package can still be imported

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline.fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline.fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline.fd, fcntl.F_GETFL)
        fcntl.fcntl(lifeline.fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        # The parent may have gone before the kernel was asked: whoever is second sees the other.
        ended = select.poll()  # not select, which knows no descriptor above 1023
        ended.register(lifeline.fd, select.POLLIN)
        if ended.poll(0):
            sweep()
            os.kill(os.getpid(), signal.SIGKILL)
    else:  # other systems than Linux: a thread, which needs the interpreter's lock
        threading.Thread(target=_watch, args=(lifeline,), name="dataflow-lifeline", daemon=True).start()


def _watch(lifeline: Descriptor) -> None:
    os.read(lifeline.fd, 1)
    os._exit(1)
