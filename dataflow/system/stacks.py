"""Stacks: what the threads of a worker process are doing, written by the process itself when a signal asks for it.

The handler runs in C, so it needs neither the interpreter's lock nor a thread that listens: it also writes while a
thread waits for ever, or computes without end in a C library. It does not run in a process that is stopped, or while
the kernel waits for a device.

Processes take turns: only one is asked at a time, because all write to the same file.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from contextlib import suppress
from typing import Final

from dataflow.system.descriptors import Descriptor, shared_memory_file

__all__ = ["StackFile"]

# Of the signals for real time, the last but one: neither users nor libraries are likely to need it.
_SIGNAL: Final = None if not hasattr(signal, "SIGRTMAX") else signal.SIGRTMAX - 1
_MAX_BYTES: Final = 64 << 10
_LAST_FRAME: Final = re.compile(r"/dataflow/system/worker_process\.py\", line \d+ in _main$")  # of a worker


class StackFile:
    """The file in which worker processes write their stacks. Picklable while a process is started."""

    def __init__(self) -> None:
        self._file = shared_memory_file("dataflow-stacks", 0)

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return (self._file,)

    def register(self) -> None:
        """Let this process, a worker, write its stacks when it is asked."""
        if _SIGNAL is not None and hasattr(faulthandler, "register"):
            faulthandler.register(_SIGNAL, file=self._file.fd, all_threads=True, chain=False)

    def ask(self, pid: int) -> None:
        """Ask a worker that has registered. What another one has written is gone."""
        if _SIGNAL is not None and self._file.fd >= 0:
            # The descriptors of all workers refer to one open file, and so share its offset: the worker writes at the
            # beginning.
            os.ftruncate(self._file.fd, 0)
            os.lseek(self._file.fd, 0, os.SEEK_SET)
            with suppress(ProcessLookupError):
                os.kill(pid, _SIGNAL)  # without a handler, which `register` installs, it would end the process

    def read(self) -> str:
        """What the worker has written that was asked last."""
        if self._file.fd < 0:
            return ""
        # `pread`: it does not move the offset at which a worker may be writing.
        return _own_frames(os.pread(self._file.fd, _MAX_BYTES, 0).decode(errors="replace"))

    def close(self) -> None:
        """Close it. Idempotent."""
        self._file.close()


def _own_frames(text: str) -> str:
    """Leave out the frames that have started the worker: those of `multiprocessing`, and under fork of its parent."""
    kept, is_own = [], True
    for line in text.strip().splitlines():
        is_own = is_own or not line.startswith("  ")
        if is_own:
            kept.append(line)
        is_own = is_own and _LAST_FRAME.search(line) is None
    return "\n".join(kept)
