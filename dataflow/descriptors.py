"""File descriptors with one owner, which reach other processes on purpose and never by accident.

A forked child inherits every descriptor of its parent: write ends that hide the parent's exit, read ends that hide the
consumer's. Guarantees:

- A `Descriptor` of this process is closed in every child that is forked from it (by any code, with `os.fork`), except
  in the child to which it is handed over (`passing_to_child`).
- Under spawn and forkserver a `Descriptor` travels with the process object, and nothing else does.
- Memory that was mapped from a `Descriptor` (`shared_mapping`) is private in every child that is forked, except in the
  child to which the descriptor is handed over: the parent never sees what the child writes there, as with any other
  memory. (On Linux; elsewhere as far as the system allows.)
- A failure within `closed_on_error` leaves no `Descriptor` open: code that makes several need not undo the first ones.
- Too few descriptors raise an `OSError` with `EMFILE` that says how many are needed (`counted`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from multiprocessing import reduction
from typing import Any, Final

__all__ = [
    "Descriptor",
    "closed_on_error",
    "counted",
    "passing_to_child",
    "pipe",
    "shared_mapping",
    "shared_memory_file",
    "soft_limit",
]

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0  # Python 3.11 has no name for it


class Descriptor:
    """An open file descriptor with one owner, which closes it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            _open.add(self)
            made = _made.get()
            if made is not None:
                made.append(self)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close it. Idempotent."""
        fd, self.fd = self.fd, -1
        _open.discard(self)
        if fd >= 0:
            os.close(fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.fd),)


# Adding and discarding are atomic under the interpreter's lock, which the forking thread holds. A lock of our own could
# be held by another thread at the moment of a fork.
_open: set[Descriptor] = set()
_passed_to_child: ContextVar[tuple[Descriptor, ...]] = ContextVar("passed_to_child", default=())


_made: ContextVar[list[Descriptor] | None] = ContextVar("descriptors_made", default=None)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


@contextmanager
def passing_to_child(*descriptors: Descriptor) -> Iterator[None]:
    """A child that this thread forks inside the block keeps `descriptors` open."""
    token = _passed_to_child.set(descriptors)
    try:
        yield
    finally:
        _passed_to_child.reset(token)


def _close_inherited() -> None:
    _made.set(None)
    kept = _passed_to_child.get()
    shared = [(mapping, file) for mapping, (owner, file) in list(_mapped.items()) if owner not in kept]
    if shared:
        files = _open_files()
        for mapping, file in shared:
            if file in files:
                _make_private(mapping, files[file])
    for descriptor in list(_open):
        if descriptor not in kept:
            descriptor.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


@contextmanager
def closed_on_error() -> Iterator[None]:
    """If the block raises, the descriptors that this thread has opened in it are closed. Blocks may be nested."""
    made: list[Descriptor] = []
    token = _made.set(made)
    try:
        yield
    except BaseException:
        for descriptor in made:
            descriptor.close()
        raise
    finally:
        _made.reset(token)
        outer = _made.get()
        if outer is not None:
            outer += made


@contextmanager
def counted(owner: str, num_needed: int) -> Iterator[None]:
    """Check that this process may open `num_needed` more descriptors for `owner`; the error explains what is needed.

    Raises:
        OSError: Too few descriptors: `EMFILE`, or `ENFILE` if the system limit is reached. The message holds the number
            that is needed, and the limit.
    """
    try:
        _try_to_open(num_needed)
        yield
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)}: {owner} needs about {num_needed} file descriptors, and {_limit()}. Raise the "
            "limit (ulimit -n, or resource.setrlimit in the program), use fewer workers, or close what is not in use",
        ) from error


def _try_to_open(num: int) -> None:
    """Open and close `num` descriptors: some libraries abort the process, or leak others, if they get none."""
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        while len(opened) < num:
            opened.append(os.dup(opened[0]))
    finally:
        for fd in opened:
            os.close(fd)


def soft_limit() -> int:
    """How many descriptors this process may have; a large number if unknown."""
    limits = _limits()
    return sys.maxsize if limits is None or limits[0] < 0 else limits[0]


def _limits() -> tuple[int, int] | None:
    try:
        import resource  # not available on Windows; and may need a descriptor itself

        return resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):
        return None


def _limit() -> str:
    limits = _limits()
    if limits is None:
        return "too few are left"
    soft, hard = limits
    return f"too few are left of the {soft} that this process may have (its hard limit is {hard})"


def pipe() -> tuple[Descriptor, Descriptor]:
    """A pipe: (read end, write end)."""
    read, write = os.pipe()
    with closed_on_error():
        try:
            end = Descriptor(read)
        except BaseException:
            os.close(write)
            raise
        return end, Descriptor(write)


def shared_memory_file(name: str, size: int) -> Descriptor:
    """Anonymous shared memory of `size` bytes, zeroed, to be mapped through the descriptor.

    A memfd if the system has them, otherwise a file without a name: nothing can be left behind.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return Descriptor(fd)


_File = tuple[int, int]  # device and inode
_mapped: weakref.WeakKeyDictionary[mmap.mmap, tuple[Descriptor, _File]] = weakref.WeakKeyDictionary()


def shared_mapping(descriptor: Descriptor, size: int) -> mmap.mmap:
    """Map the first `size` bytes of the shared memory to which `descriptor` refers."""
    mapping = mmap.mmap(descriptor.fd, size)
    _mapped[mapping] = descriptor, _file_of(descriptor.fd)
    return mapping


def _file_of(fd: int) -> _File:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _open_files() -> dict[_File, int]:
    """A descriptor for each open file: Python's mapping keeps a duplicate one, whose number it does not expose."""
    files = {}
    for directory in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            for name in os.listdir(directory):
                with suppress(OSError):  # the directory's own descriptor is closed by now
                    files[_file_of(int(name))] = int(name)
            break
    return files


def _make_private(mapping: mmap.mmap, fd: int) -> None:
    """Map the same bytes at the same address again, as copy-on-write. Best effort."""
    with suppress(Exception):  # closed meanwhile, or the system refuses: a hook cannot report errors
        map_memory = ctypes.CDLL(None).mmap
        map_memory.restype = ctypes.c_void_p
        map_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        map_memory(address, len(mapping), mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
