"""Registry of the LMDB files that are open in this process.

LMDB must not open one file twice in a process, and flows may: so they share it. A forked process opens its own.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

from dataflow.extras import optional
from dataflow.formats.damage import file_damaged

__all__ = ["Environment", "lmdb_package"]

_SYSTEM = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)


def lmdb_package() -> Any:
    """Return the package lmdb.

    Raises:
        MissingExtra: The package lmdb is not installed.
    """
    return optional("lmdb", "lmdb", "LMDB files need")


class _Open:
    """The open files of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.environments: dict[tuple[int, int], _Shared] = {}  # by device and inode


class _Shared:
    """One open file, and its number of users."""

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
            # LMDB would treat them as open in this process. Only the mapping and the descriptor of this process go.
            for shared in list(inherited.environments.values()):
                shared.environment.close()
        return self.open


_current = _Current()


class Environment:
    """An LMDB file, open for reading, with one snapshot of it.

    Args:
        path: The file, or a folder with a ``data.mdb`` in it.

    Raises:
        FileDamaged: It is shorter than its header says, or is not an LMDB file.
        MissingExtra: lmdb is not installed.
    """

    def __init__(self, path: str) -> None:
        self.lmdb = lmdb_package()
        self.path = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
        self.lock = threading.RLock()
        """Context manager: keep the file mapped while its memory is read; `close` must not unmap it meanwhile."""
        self._opened = _current.here()
        self._shared: _Shared | None = None
        with self._opened.lock:
            status = os.stat(self.path)
            self._key = status.st_dev, status.st_ino
            shared = self._opened.environments.get(self._key)
            if shared is None:
                shared = self._open()
                self._opened.environments[self._key] = shared
            shared.users += 1
            self._shared = shared

    def _open(self) -> _Shared:
        """Open the file; if it is replaced meanwhile, open the new one."""
        while True:
            status = os.stat(self.path)
            shared = self._opened_of_size(status.st_size)
            now = os.stat(self.path)
            if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
                self._key = status.st_dev, status.st_ino
                return shared
            shared.environment.close()

    def _opened_of_size(self, size: int) -> _Shared:
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
        try:
            # A short file is mapped to its claimed length, and reading behind its end would be a SIGBUS.
            needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            if size < needed:
                raise file_damaged(self.path, "", f"the file ends after {size} of {needed} bytes,", size)
            return _Shared(environment)
        except BaseException:
            environment.close()
            raise

    @property
    def transaction(self) -> Any:
        """The snapshot; None after `close`."""
        return None if self._shared is None else self._shared.transaction

    def entries(self) -> int:
        """Number of keys."""
        return 0 if self._shared is None else int(self._shared.transaction.stat()["entries"])

    def close(self) -> None:
        """Close it, unless other flows use the file. Idempotent."""
        with self.lock, self._opened.lock:
            shared, self._shared = self._shared, None
            if shared is None or self._opened is not _current.here():
                return
            shared.users -= 1
            if not shared.users:
                del self._opened.environments[self._key]
                shared.environment.close()
