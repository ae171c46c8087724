"""A cache of whole files in a folder that several processes share: of a bounded size, least recently used first.

Guarantees, also if a process is killed at any moment:

- A file is there as a whole or not at all: it is written under the lock of the folder, and then renamed. What is read
  is verified, so a file that a crash of the machine has cut counts as missing.
- The sizes of all files together never exceed the bound: the total, which the lock file holds, is raised before a file
  appears, and lowered after one has gone. A process that is killed in between leaves a total that is too high; it is
  counted anew whenever files are removed.
- What a killed process has half written has one fixed name, so the next one that begins or writes removes it.
- Reading takes no lock. Nothing waits for the lock for more than some seconds: then a file is not kept.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from dataflow.formats.saving import try_lock

__all__ = ["CachedFile", "FileCache"]

_LOG: Final = logging.getLogger(__name__)

_PATIENCE: Final = 10.0  # seconds that a writer waits for the lock
_MAX_INTERVAL: Final = 0.002  # seconds between two attempts at it
_FREED: Final = 0.1  # of the bound: room that is made at a time, because finding the oldest files reads the folder
_TOTAL: Final = struct.Struct("<Q")
_HEADER: Final = struct.Struct("<8sIIQ")  # magic, CRC-32 of all that follows, sizes of state and data
_MAGIC: Final = b"dfcache1"
_NAME: Final = re.compile("[0-9a-f]{64}")
_FOLDER: Final = re.compile("[0-9a-f]{2}")  # the first two characters of the names in it


class CachedFile(NamedTuple):
    """A file in the cache.

    Attributes:
        data: Its bytes.
        state: What was known of its version as it was stored.
    """

    data: bytes
    state: str


class FileCache:
    """The cache in one folder, for the threads of one process.

    Args:
        folder: The folder, which is made if there is none.
        max_bytes: Upper bound of the sizes of all files in it; None for none.

    Raises:
        OSError: The folder cannot be made, or files in it cannot be locked.
    """

    def __init__(self, folder: str, max_bytes: int | None) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._thread_lock = threading.Lock()
        self._has_warned = False
        os.makedirs(folder, exist_ok=True)
        self._lock_path = os.path.join(folder, "lock")
        self._incoming = os.path.join(folder, "incoming")
        with self._locked() as is_locked:
            if is_locked:
                Path(self._incoming).unlink(missing_ok=True)
                self._make_room(0)

    def get(self, name: str) -> CachedFile | None:
        """The file `name`, 64 hexadecimal digits; None if it is not there, or cannot be read, which is logged once."""
        try:
            with open(self._path(name), "rb") as file:
                content = file.read()  # whole, also if another process removes or replaces the file meanwhile
                found = _decode(content)
                if found is not None:
                    now = time.time_ns()
                    with suppress(OSError):  # of another user, or on a disk that can only be read
                        # The time of change serves as the time of the last use: many disks do not record when a file
                        # was read.
                        os.utime(file.fileno(), ns=(now, now))
                return found
        except FileNotFoundError:
            return None
        except OSError as error:  # such as a file that another user has made for himself, or a damaged disk
            self._warn(f"{type(error).__name__}: {error}")
            return None

    def put(self, name: str, file: CachedFile) -> None:
        """Keep a file, and remove those that were not used for the longest time. A failure is logged, once."""
        content = _encode(file)
        if self._max_bytes is not None and len(content) > self._max_bytes:
            return
        try:
            with self._locked() as is_locked:
                if is_locked:
                    self._store(self._path(name), content)
                else:
                    self._warn(f"another process has held its lock for {_PATIENCE:g} seconds")
        except OSError as error:
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("files cannot be kept in the cache %s, and are fetched again: %s", self._folder, reason)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _store(self, path: str, content: bytes) -> None:
        total = self._make_room(len(content))
        # Before the file appears: a death in between leaves a total that is too high.
        self._set_total(total + len(content))
        try:
            with open(self._incoming, "wb") as file:
                file.write(content)
            replaced = _size_of(path)
            try:
                os.replace(self._incoming, path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.replace(self._incoming, path)
        except BaseException:
            Path(self._incoming).unlink(missing_ok=True)
            self._set_total(total)
            raise
        if replaced:
            self._set_total(total + len(content) - replaced)

    def _make_room(self, num_bytes: int) -> int:
        """Remove files until there is room for `num_bytes` more; return the total of the others."""
        total = self._total()
        bound = self._max_bytes
        if total is not None and (bound is None or total + num_bytes <= bound):
            return total
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        if bound is not None and total + num_bytes > bound:
            goal = min(bound - num_bytes, int(bound * (1 - _FREED)))
            for _, size, path in files:
                if total <= goal:
                    break
                Path(path).unlink(missing_ok=True)
                total -= size
        self._set_total(total)
        return total

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """When each file was used last, its size and its path. Files of other names are not ours."""
        for folder in os.scandir(self._folder):
            if _FOLDER.fullmatch(folder.name) and folder.is_dir():
                for entry in os.scandir(folder.path):
                    if _NAME.fullmatch(entry.name):
                        with suppress(FileNotFoundError):  # removed by hand
                            status = entry.stat(follow_symlinks=False)
                            yield status.st_mtime_ns, status.st_size, entry.path

    def _total(self) -> int | None:
        content = Path(self._lock_path).read_bytes()  # empty if the lock has just made it
        return int(_TOTAL.unpack(content)[0]) if len(content) == _TOTAL.size else None

    def _set_total(self, total: int) -> None:
        with open(self._lock_path, "r+b") as file:
            file.write(_TOTAL.pack(total))

    # -- the lock ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock inside the block; yields whether it could be had in time."""
        end = time.monotonic() + _PATIENCE
        if not self._thread_lock.acquire(timeout=_PATIENCE):
            yield False
            return
        try:
            interval = 0.0001
            while (lock := try_lock(self._lock_path)) is None and time.monotonic() <= end:
                time.sleep(interval)
                interval = min(2 * interval, _MAX_INTERVAL)
            try:
                yield lock is not None
            finally:
                if lock is not None:
                    lock.close()
        finally:
            self._thread_lock.release()

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name[:2], name)


def _encode(file: CachedFile) -> bytes:
    state = file.state.encode("utf-8", "surrogatepass")
    crc = zlib.crc32(file.data, zlib.crc32(state))
    return b"".join((_HEADER.pack(_MAGIC, crc, len(state), len(file.data)), state, file.data))


def _decode(content: bytes) -> CachedFile | None:
    """The file that was stored; None if this is not all of it."""
    if len(content) < _HEADER.size:
        return None
    magic, crc, num_state, num_data = _HEADER.unpack_from(content)
    begin = _HEADER.size + num_state
    if magic != _MAGIC or len(content) != begin + num_data:
        return None
    if zlib.crc32(memoryview(content)[_HEADER.size :]) != crc:
        return None
    return CachedFile(content[begin:], content[_HEADER.size : begin].decode("utf-8", "surrogatepass"))


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
