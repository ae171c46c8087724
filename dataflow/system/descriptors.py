"""File descriptors with one owner, which reach other processes on purpose and never by accident.

A forked child inherits every descriptor of its parent: write ends that hide the parent's exit, read ends that hide the
consumer's. Guarantees:

- A `Descriptor` of this process is closed in every child that is forked from it (by any code, with `os.fork`), except
  in the child to which it is handed over (`passing_to_child`): also while another thread opens it (within `no_fork`) or
  closes it.
- Under spawn and forkserver a `Descriptor` travels with the process object, and nothing else does.
- Memory that was mapped from a `Descriptor` (`shared_mapping`) is private in every child that is forked, except in the
  child to which the descriptor is handed over: the parent never sees what the child writes there, as with any other
  memory. (On Linux; elsewhere as far as the system allows.) With `own`, it is private in that child too.
- Mappings need no descriptor beside the `Descriptor`, however many there are. Those that are in use when it is closed
  keep one open, together. (On Linux; elsewhere each mapping keeps one.)
- A failure within `closed_on_error` leaves no `Descriptor` open: code that makes several need not undo the first ones.
- Too few descriptors raise an `OSError` with `EMFILE` that says how many are needed (`counted`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from multiprocessing import reduction
from typing import Any, Final

from dataflow.system.cleanup import members

__all__ = [
    "Descriptor",
    "closed_on_error",
    "counted",
    "discard",
    "no_fork",
    "passing_to_child",
    "pipe",
    "shared_mapping",
    "shared_memory_file",
    "soft_limit",
]

no_fork: Final = threading.RLock()
"""Held by a thread while it opens a descriptor and makes a `Descriptor` of it: no other thread forks meanwhile.

Only for calls that do not wait. Closing needs no lock, which matters for finalisers: they may run within any call.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0  # Python 3.11 has no name for it


class Descriptor:
    """An open file descriptor with one owner, which closes it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_mapped = False  # whether there is, or was, memory mapped from it
        try:
            self._number, self._file = fd, _file_of(fd)
            _open.add(self)
            made = _made.get()
            if made is not None:
                made.append(self)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close it. Idempotent."""
        # First: the system may give the number to another file at once, so it must not be closed a second time.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            try:
                if self.is_mapped:
                    # Before the descriptor is closed, through which the file is mapped once more.
                    _keep_open(fd, [mapping for mapping in members(_mapped) if mapping.source is self])
            finally:
                try:
                    os.close(fd)
                finally:
                    _open.discard(self)  # last: a child that another thread forks before this closes it

    def close_inherited(self) -> None:
        """Close it in a forked child: a thread of the parent may have been closing it, or just have closed it."""
        if self.fd < 0:
            with suppress(OSError):
                if _file_of(self._number) == self._file:  # otherwise another file has the number by now
                    self.fd = self._number
        self.close()
        _open.discard(self)

    def disown(self) -> None:
        """Leave it open: it belongs to another owner from here on, which closes it."""
        self.fd = -1
        _open.discard(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (reduction.DupFd(self.fd),)


# Adding and discarding are atomic under the interpreter's lock, which the forking thread holds.
_open: set[Descriptor] = set()
_passed_to_child: ContextVar[tuple[Descriptor, ...]] = ContextVar("passed_to_child", default=())


_made: ContextVar[list[Descriptor] | None] = ContextVar("descriptors_made", default=None)


def _receive(duplicate: Any) -> Descriptor:
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
    # Before the descriptors are closed: the memory is mapped again through them.
    shared = [mapping for mapping in members(_mapped) if mapping.own or mapping.source not in kept]
    if shared:
        files = _open_files()
        for mapping in shared:
            with suppress(Exception):  # its file is closed, or the system refuses: a hook cannot report errors
                _map_over(mapping, mmap.MAP_PRIVATE | _MAP_NORESERVE, files[mapping.file], mapping.offset)
                _mapped.discard(mapping)  # a child of this one inherits what is written here
    for descriptor in list(_open):
        if descriptor not in kept:
            descriptor.close_inherited()


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
        # Also after an error: closing them again does nothing. A block around this one closes them if it raises later.
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
    # RLIM_INFINITY is negative in Python.
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
    with no_fork, closed_on_error():
        read, write = os.pipe()
        try:
            # It closes `read` itself if it raises; of `write`, only this function knows so far.
            end = Descriptor(read)
        except BaseException:
            os.close(write)
            raise
        return end, Descriptor(write)


def shared_memory_file(name: str, size: int) -> Descriptor:
    """Anonymous shared memory of `size` bytes, zeroed, to be mapped through the descriptor.

    A memfd if the system has them, otherwise a file without a name: nothing can be left behind.
    """
    with no_fork:
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


_PUNCH_HOLE: Final = 0x03  # of `fallocate`: free the pages, and keep the size of the file


def discard(memory: Descriptor, offset: int, size: int) -> None:
    """Return whole pages of shared memory to the system, mapped or not; they are zero afterwards.

    A hint: some systems keep them until all of the memory is closed.
    """
    if memory.fd >= 0 and sys.platform == "linux":
        # Offset and size as `c_long`: ctypes passes a Python number as an int of 32 bits. A file system may refuse:
        # this is a hint.
        _library().fallocate(memory.fd, _PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size))


class _Mapping(mmap.mmap):
    """Memory mapped from a `Descriptor`."""

    source: Descriptor
    file: tuple[int, int]  # device and inode
    offset: int  # where the memory begins in the file
    own: bool
    kept_open: mmap.mmap | None = None  # refers to the file as long as this mapping is used; None while `source` does


_mapped: weakref.WeakSet[_Mapping] = weakref.WeakSet()


def shared_mapping(descriptor: Descriptor, size: int, *, offset: int = 0, own: bool = False) -> mmap.mmap:
    """Map shared memory.

    Args:
        descriptor: Refers to the memory.
        size: Bytes.
        offset: Where they begin: a multiple of the page size.
        own: Whether the mapping is private in every forked child, also in one to which `descriptor` is handed over.
    """
    mapping = _mapping_without_descriptor(descriptor.fd, size, offset) or _Mapping(descriptor.fd, size, offset=offset)
    mapping.source, mapping.file, mapping.offset, mapping.own = descriptor, _file_of(descriptor.fd), offset, own
    descriptor.is_mapped = True
    _mapped.add(mapping)
    return mapping


def _mapping_without_descriptor(fd: int, size: int, offset: int) -> _Mapping | None:
    """Map a file over reserved addresses: Python's own mapping of a file keeps a duplicate of the descriptor.

    (From Python 3.13 on, `trackfd` lets it keep none.) None where that is impossible: on other systems, and on a Linux
    that counts reserved addresses as memory.
    """
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        mapping = _Mapping(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        # The object unmaps these addresses when it is closed, whatever is mapped there by then.
        _map_over(mapping, mmap.MAP_SHARED, fd, offset)
        return mapping
    return None


def _map_over(mapping: mmap.mmap, flags: int, fd: int, offset: int) -> None:
    """Map a file at the addresses of `mapping`, instead of what is there."""
    # The exported buffer ends with this line: while there is one, Python refuses to close the mapping.
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if _map_memory()(address, len(mapping), protection, flags | _MAP_FIXED, fd, offset) != address:
        raise OSError(ctypes.get_errno(), "cannot map shared memory")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _map_memory() -> Any:
    function = _library().mmap
    function.restype = ctypes.c_void_p  # an int, the default, would cut the address
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return function


def _keep_open(fd: int, mappings: Sequence[_Mapping]) -> None:
    """Keep a file open for mappings that are in use: a forked child needs it to make them private."""
    if mappings:
        with suppress(OSError):  # there are no more descriptors
            # Python's own mapping of a file keeps a duplicate of the descriptor: one page suffices for that.
            kept_open = mmap.mmap(fd, 1)
            for mapping in mappings:
                mapping.kept_open = kept_open


def _file_of(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _open_files() -> dict[tuple[int, int], int]:
    """A descriptor for each open file: those that Python's mappings keep have numbers that it does not expose."""
    files = {}
    for directory in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            for name in os.listdir(directory):
                with suppress(OSError):  # the directory's own descriptor is closed by now
                    files[_file_of(int(name))] = int(name)
            break
    return files
