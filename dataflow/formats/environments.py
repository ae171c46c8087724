"""LMDB files that are open in this process.

LMDB must not open one file twice in a process, and flows may: so they share. A forked process opens its own.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import Any, Final

from dataflow.extras import optional
from dataflow.formats.damage import file_damaged
from dataflow.formats.positional import PositionalFile
from dataflow.formats.windows import Windows, address_of, file_offset

__all__ = ["AT_RANDOM", "Environment", "lmdb_package"]

_SYSTEM = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
_LOOK_AFTER = 8 << 20  # bytes that were read, after which is looked how much of files is mapped
_MOST_MAPPED = 48 << 20  # bytes; above, the pages are given back

AT_RANDOM: Final = 64 << 10
"""Bytes around a place that the system maps, at least, when that is touched."""


def lmdb_package() -> Any:
    """The package lmdb.

    Raises:
        MissingExtra: It is not installed.
    """
    return optional("lmdb", "lmdb", "LMDB files need")


class _Open:
    """What this process has open."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.environments: dict[tuple[int, int], _Shared] = {}  # by device and inode


class _Shared:
    """One open file, and how many use it."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.transaction = environment.begin(buffers=True)
        self.users = 0


class _Current:
    """The registry of this process; a forked child replaces that of its parent."""

    def __init__(self) -> None:
        self.open = _Open()

    def here(self) -> _Open:
        if self.open.pid != os.getpid():
            inherited, self.open = self.open, _Open()
            # LMDB would take them for open in this process. Only the mapping and the descriptor of this process go.
            for shared in list(inherited.environments.values()):
                shared.environment.close()
        return self.open


_current = _Current()


class Environment:
    """An LMDB file, open for reading, with one view of it that does not change.

    Args:
        path: The file, or a folder with a ``data.mdb`` in it.

    Raises:
        FileDamaged: It is shorter than it says, or no LMDB file.
        MissingExtra: lmdb is not installed.
    """

    def __init__(self, path: str) -> None:
        self.lmdb = lmdb_package()
        self.path = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
        self.lock = threading.RLock()
        """Held while something that lies in the file is looked at: `close` must not unmap it meanwhile."""
        self._opened = _current.here()
        self._file = PositionalFile(self.path)
        try:
            self._share()
        except BaseException:
            self._file.close()
            raise

    def _share(self) -> None:
        self._key = self._file.inode
        self._base: tuple[int, int] | None = None  # where the file is mapped, and which place of it
        self._read = 0  # bytes since it was looked how much is mapped
        self._least = _mapped()  # bytes of files that are mapped without this one
        with self._opened.lock:
            shared = self._opened.environments.get(self._key)
            if shared is None:
                shared = self._opened.environments[self._key] = self._open(self._file.size)
            shared.users += 1
        self._shared: _Shared | None = shared

    def _open(self, size: int) -> _Shared:
        lmdb = self.lmdb
        options = {"subdir": False, "readonly": True, "lock": False, "readahead": True, "create": False}
        try:
            environment = lmdb.open(self.path, max_readers=1, **options)
        except lmdb.Error as error:
            code = next((code for code in _SYSTEM if os.strerror(code) in str(error)), None)
            if code is not None:
                raise OSError(code, os.strerror(code), self.path) from error
            if "already open" in str(error):
                raise
            raise file_damaged(self.path, "", f"this is no whole LMDB file ({error}); it ends", size) from error
        # A short file is mapped as long as it should be, and reading behind its end would be a SIGBUS.
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if size < needed:
            environment.close()
            raise file_damaged(self.path, "", f"the file ends after {size} of {needed} bytes,", size)
        try:
            return _Shared(environment)
        except BaseException:
            environment.close()
            raise

    @property
    def transaction(self) -> Any:
        """The view; None once this is closed."""
        return None if self._shared is None else self._shared.transaction

    def entries(self) -> int:
        """How many keys there are."""
        return 0 if self._shared is None else int(self._shared.transaction.stat()["entries"])

    def note_read(self, value: Any, num_bytes: int) -> None:
        """Count the bytes that were read, `value` last; now and then, give back the pages of the file that are mapped.

        They stay in the system's cache; but here they would count as memory of this process.
        """
        self._read += num_bytes
        if self._read < _LOOK_AFTER:
            return
        self._read = 0
        if _mapped() > self._least + _MOST_MAPPED:
            _forget_pages(value)
            self._least = _mapped()

    def place_of(self, value: Any) -> int:
        """Where in the file a value of the view begins; 0 if the system does not say."""
        if self._base is None:
            self._base = file_offset(value) or (0, 0)
        begin, place = self._base
        return address_of(value) - begin + place if begin else 0

    def copied(self, place: int, size: int) -> Any:
        """The bytes at a place of the file, in memory of their own."""
        with self.lock:
            return self._file.read(place, size)

    def windows(self) -> Windows:
        """The pieces of a new reading."""
        return Windows(self._file, self.lock)

    def close(self) -> None:
        """Close it, unless others use the file. Idempotent."""
        with self.lock, self._opened.lock:
            shared, self._shared = self._shared, None
            self._file.close()
            if shared is None or self._opened is not _current.here():
                return
            shared.users -= 1
            if not shared.users:
                del self._opened.environments[self._key]
                shared.environment.close()


def _mapped() -> int:
    """Bytes of files that are mapped, and in memory, in this process; 0 where that is not known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


def _forget_pages(value: Any) -> None:
    """Unmap the pages of the mapping in which `value` lies; what is touched again is mapped again."""
    found = file_offset(value)
    if found is None:
        return
    import ctypes

    begin = found[0]
    with open("/proc/self/maps") as lines:
        end = next(int(line.split(maxsplit=1)[0].split("-")[1], 16) for line in lines if line.startswith(f"{begin:x}-"))
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
