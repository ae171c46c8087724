"""Writer of an LMDB file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgpack

from dataflow.formats.checksums import ALGORITHM
from dataflow.formats.lmdb_reader import MARK, VERSION, numbered

__all__ = ["LMDBWriter"]

_FIRST_MAP = 1 << 26  # bytes of the map at the beginning
_PENDING = 1 << 24  # bytes after which a commit is due, at the latest
_NUM_ORDERED = 10**8
_DISK_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


class LMDBWriter:
    """Context manager that writes numbered values; at the end of the block the file is complete.

    Guarantees:

    - A full map grows without loss: values put since the last commit are kept until the next one, and
      put again if LMDB drops them.
    - Every version of the file that a reader could find if the last page were lost states how many values it must
      have: the mark is committed before the first value.

    Args:
        lmdb: The package.
        path: The file, which is created or emptied.
        frequency: Values after which a commit is due, at the latest.
    """

    def __init__(self, lmdb: Any, path: str, frequency: int) -> None:
        self._lmdb = lmdb
        self._path = path
        self._frequency = max(1, frequency)
        self._pending: list[tuple[bytes, bytes, bool]] = []  # since the last commit: key, value, whether to append
        self._num_bytes = 0  # bytes of the pending values
        self._num = 0

    def __enter__(self) -> Self:
        os.truncate(self._path, 0)
        self._environment = self._lmdb.open(
            self._path, subdir=False, lock=False, map_size=_FIRST_MAP, sync=False, meminit=False, max_readers=1
        )
        self._transaction: Any = None
        try:
            self._mark(-1)
            self.commit()
        except BaseException:
            self._environment.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
                self._mark(self._num)
                self.commit()
                self._tried(lambda: self._environment.sync(True))
        finally:
            if self._transaction is not None:
                self._transaction.abort()
            self._environment.close()

    def put(self, number: int, value: bytes) -> None:
        """Put one value."""
        self._put(numbered(number), value, append=number < _NUM_ORDERED)
        self._num += 1
        if len(self._pending) >= self._frequency or self._num_bytes >= _PENDING:
            self.commit()

    def commit(self) -> None:
        """Commit the pending values; the map grows until it has room."""
        while True:
            try:
                self._tried(self._commit)
            except self._lmdb.MapFullError:
                self._grow()
            else:
                self._pending.clear()
                self._num_bytes = 0
                return

    def _commit(self) -> None:
        if self._transaction is None and self._pending:
            self._again()
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()

    def _mark(self, size: int) -> None:
        said = {"version": VERSION, "size": size, "checksum": ALGORITHM}
        self._put(MARK, msgpack.packb(said), append=False)

    def _put(self, key: bytes, value: bytes, *, append: bool) -> None:
        self._pending.append((key, value, append))
        self._num_bytes += len(value)
        try:
            if self._transaction is None:
                self._transaction = self._environment.begin(write=True)
            self._tried(lambda: self._transaction.put(key, value, append=append))
        except self._lmdb.MapFullError:
            self._grow()
            self.commit()

    def _grow(self) -> None:
        """Make the map larger. LMDB drops the transaction; `commit` puts the pending values again."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def _again(self) -> None:
        self._transaction = self._environment.begin(write=True)
        for key, value, append in self._pending:
            self._transaction.put(key, value, append=append)

    def _tried(self, act: Callable[[], Any]) -> None:
        """Call `act`; an error of the system becomes an `OSError` again."""
        try:
            act()
        except self._lmdb.MapFullError:
            raise
        except self._lmdb.Error as error:
            for code in _DISK_ERRORS:
                if os.strerror(code) in str(error):
                    code = self._cause() if code == errno.EIO else code
                    raise OSError(code, os.strerror(code), self._path) from error
            raise

    def _cause(self) -> int:
        """Return the cause of the EIO that LMDB reports for a short write: request more room directly."""
        try:
            with open(self._path, "r+b") as file:
                os.posix_fallocate(file.fileno(), os.path.getsize(self._path), 1 << 20)
        except OSError as error:
            return error.errno or errno.EIO
        except AttributeError:  # no such call on this system
            pass
        return errno.EIO
