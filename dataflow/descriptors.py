"""File descriptors that cross processes on purpose, and none that cross by accident.

A forked child inherits every descriptor of its parent: write ends that hide the parent's death, read ends that hide
the consumer's. Guarantees:

- A `Descriptor` of this process is closed in every child that is forked from it (by anyone, with `os.fork`), except in
  the child to which it is handed over (`handing_over`).
- Under spawn and forkserver a `Descriptor` travels with the process object, and nothing else does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import reduction
from typing import Any

__all__ = ["Descriptor", "handing_over", "pipe", "shared_memory_file"]


class Descriptor:
    """An open file descriptor with one owner, which closes it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _open.add(self)

    def close(self) -> None:
        """Close it; idempotent."""
        fd, self.fd = self.fd, -1
        _open.discard(self)
        if fd >= 0:
            os.close(fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.fd),)


# Adding and discarding are atomic under the interpreter's lock, which the forking thread holds: no lock of our own,
# which a fork could catch in the hands of another thread.
_open: set[Descriptor] = set()
_handed_over: ContextVar[tuple[Descriptor, ...]] = ContextVar("handed_over", default=())


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


@contextmanager
def handing_over(*descriptors: Descriptor) -> Iterator[None]:
    """A child that this thread forks inside the block keeps `descriptors` open."""
    token = _handed_over.set(descriptors)
    try:
        yield
    finally:
        _handed_over.reset(token)


def _close_inherited() -> None:
    kept = _handed_over.get()
    for descriptor in list(_open):
        if descriptor not in kept:
            descriptor.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def pipe() -> tuple[Descriptor, Descriptor]:
    """A pipe: (read end, write end)."""
    read, write = os.pipe()
    return Descriptor(read), Descriptor(write)


def shared_memory_file(name: str, size: int) -> Descriptor:
    """Anonymous shared memory of `size` bytes, zeroed, to be mapped by whoever holds the descriptor.

    A memfd where there is one, else a file without a name: nothing can be left behind.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
    os.ftruncate(fd, size)
    return Descriptor(fd)
