"""Files for positional reads from any thread, without a shared position: on this machine, or behind a URL."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import numpy as np

from dataflow.errors import DataFlowTerminated, FileDamaged
from dataflow.formats.checksums import file_damaged
from dataflow.system.descriptors import Descriptor
from dataflow.system.urls import change_of, filesystem_of, is_url, reporting_url, require_end

__all__ = ["Identity", "OpenFiles", "PositionalFile", "UrlFile", "changed_since", "identity_of", "open_positional"]

Identity = list[int | str]
"""The state of a file: its size in bytes, and its time of change in nanoseconds, or what a server says about that."""

_MAX_OPEN: Final = 64  # files, of one source


def open_positional(path: str) -> PositionalFile:
    """Open a file, or a URL."""
    return UrlFile(path) if is_url(path) else PositionalFile(path)


def identity_of(status: os.stat_result) -> Identity:
    """Return the state of a file on this machine."""
    return [status.st_size, status.st_mtime_ns]


def changed_since(path: str) -> FileDamaged:
    """Return the error about a file that is not what was opened."""
    return FileDamaged(f"{path} has changed since it was opened: call close() to read it anew", path=path)


class _KeptOpen:
    """A descriptor that is closed when nothing holds it any more: neither its file nor a read that is under way.

    So its number stays that of the file while a read uses it, without a lock, even if another thread closes the file.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, descriptor.close).atexit = False


class PositionalFile:
    """An open file.

    A read that is under way when another thread closes the file is completed; the next one raises `DataFlowTerminated`.
    Reads copy from the system's cache into fresh memory: memory use stays flat, and a file that is cut off
    while it is open gives an error.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        held = _KeptOpen(Descriptor(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))))
        self._file: _KeptOpen | None = held
        self._lock = threading.Lock()  # used if a read needs a position (Windows)
        status = os.fstat(held.descriptor.fd)
        self.size = status.st_size
        self.identity = identity_of(status)
        """The state in which it was opened."""

    def read(self, offset: int, size: int, place: str = "") -> Any:
        """Return `size` bytes from `offset` on, in memory of their own: an array uint8 (size,).

        Raises:
            FileDamaged: The file ends before; `place` names in the message what was being read.
        """
        self._check(offset, size, place)  # before memory is allocated for it
        data = np.empty(size, np.uint8)
        self.read_into(data, offset, place)
        return data

    def require_unchanged(self) -> None:
        """Check that the file is what was opened: a copy that is written over it, for example, changes it in place.

        It takes a microsecond. A file that was put in its place under the same name does not matter to the open one.

        Raises:
            FileDamaged: It has changed.
        """
        held = self._held()
        if identity_of(os.fstat(held.descriptor.fd)) != self.identity:
            raise changed_since(self.path)

    def read_into(self, buffer: Any, offset: int, place: str) -> None:
        """Fill a writable buffer with the bytes from `offset` on. Raises as `read` does."""
        view, done = memoryview(buffer).cast("B"), 0
        self._check(offset, len(view), place)
        while done < len(view):
            count = self._read_at(view[done:], offset + done)
            if not count:
                raise self._too_short(place, len(view) - done, offset + done)
            done += count

    def _check(self, offset: int, size: int, place: str) -> None:
        """Check that these bytes exist. A damaged file may claim any; the system's error would be about an argument."""
        if offset < 0:
            raise file_damaged(self.path, place, f"it would begin {-offset} bytes before the file does")
        if size < 0:
            raise file_damaged(self.path, place, f"it would have {size} bytes", offset)
        if offset + size > self.size:
            raise self._too_short(place, offset + size - max(offset, self.size), max(offset, self.size))

    def _too_short(self, place: str, num_missing: int, offset: int) -> FileDamaged:
        return file_damaged(self.path, place, f"the file ends, {num_missing} bytes too early,", offset)

    def stream(self, buffering: int = -1) -> IO[bytes]:
        """Return the same open file as an object with a position, at its beginning; the caller closes it.

        Two such objects of one file share the position: use one after the other.

        Args:
            buffering: Bytes of its buffer; -1 means the default of `open`.
        """
        held = self._held()
        file = open(os.dup(held.descriptor.fd), "rb", buffering)  # noqa: SIM115 (the caller closes it)
        file.seek(0)
        return file

    def _held(self) -> _KeptOpen:
        """What the caller keeps in a variable until it has used the descriptor."""
        held = self._file
        if held is None or held.descriptor.fd < 0:  # the latter in a forked child
            raise DataFlowTerminated(f"{self.path} was closed while it was being read")
        return held

    def _read_at(self, view: memoryview, offset: int) -> int:
        held = self._held()
        return _read_fd(held.descriptor.fd, view, offset, self._lock)

    def close(self) -> None:
        """Close it. Idempotent."""
        self._file = None


class UrlFile(PositionalFile):
    """A file behind a URL, of which only the requested bytes are fetched.

    If its server cannot send parts of a file, the first read copies all of it to an unnamed temporary file.

    Args:
        url: Any URL that fsspec can open.

    Raises:
        FileNotFoundError: There is nothing at this URL.
        OSError: It cannot be reached.
        MissingExtra: fsspec is not installed.
    """

    def __init__(self, url: str) -> None:
        self.path = url
        self._lock = threading.Lock()
        self._system, self._inside = filesystem_of(url)
        self._file = None  # until all of it is copied
        self._closed = False
        with reporting_url(url):
            about = self._system.info(self._inside)
        if about.get("type") == "directory":
            raise IsADirectoryError(
                f"{url} is a folder, not a file; if you mean the files in it, end the URL with a slash"
            )
        if about.get("size") is None:
            self._fetch_all()
        else:
            self.size = int(about["size"])
        self.identity = [self.size, change_of(about)]

    def require_unchanged(self) -> None:
        """No-op: each call would be a request to the server."""

    def stream(self, buffering: int = -1) -> IO[bytes]:
        if self._file is not None:
            return super().stream(buffering)
        with reporting_url(self.path):
            file: IO[bytes] = self._system.open(self._inside, "rb")
            return file

    def _read_at(self, view: memoryview, offset: int) -> int:
        if self._file is None and not self._closed:
            with reporting_url(self.path):
                data = self._system.cat_file(self._inside, start=offset, end=offset + len(view))
            if len(data) <= len(view):
                view[: len(data)] = data
                return len(data)
            self._fetch_all()  # the server has sent the whole file instead
        return super()._read_at(view, offset)

    def _fetch_all(self) -> None:
        import shutil
        import tempfile

        with self._lock:
            if self._file is not None:
                return
            with tempfile.TemporaryFile() as file, reporting_url(self.path):
                with self._system.open(self._inside, "rb", block_size=0) as source:
                    response = getattr(source, "r", None)
                    if hasattr(response, "content_length"):  # of aiohttp
                        require_end(response)
                    shutil.copyfileobj(source, file, _PIECE)
                file.seek(0)
                self.size = os.fstat(file.fileno()).st_size
                if not self._closed:  # by another thread
                    self._file = _KeptOpen(Descriptor(os.dup(file.fileno())))

    def close(self) -> None:
        self._closed = True
        super().close()


class OpenFiles:
    """The files of one source, each opened when it is first read: many sources have more than a process may have open.

    Of files on this machine, those read last stay open; one that was closed, and has changed when it is opened again,
    is refused. URLs stay open, since they need no descriptor. `read` may be called by any thread.

    Args:
        paths: The files, or URLs.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._open: OrderedDict[int, PositionalFile] = OrderedDict()  # files on this machine, the last one read last
        self._urls: dict[int, UrlFile] = {}
        self._identities: dict[int, Identity] = {}  # of files that were open before
        self._is_closed = False

    def read(self, number: int, offset: int, size: int, place: str = "") -> Any:
        """Return `size` bytes of the file `number`, as `PositionalFile.read` does.

        Raises:
            FileDamaged: The file ends before, or has changed.
            OSError: It cannot be opened, or read.
        """
        with self._lock:
            file = self.open(number)
            if len(self._paths) > _MAX_OPEN:  # another thread would close it
                return file.read(offset, size, place)
        return file.read(offset, size, place)

    def open(self, number: int) -> PositionalFile:
        """Return the file `number`, which stays open until others are opened. For one thread only."""
        if self._is_closed:
            raise DataFlowTerminated(f"{self._paths[number]} was closed while it was being read")
        if (url := self._urls.get(number)) is not None:
            return url
        file = self._open.get(number)
        if file is None:
            file = open_positional(self._paths[number])
            if isinstance(file, UrlFile):
                self._urls[number] = file
                return file
            if self._identities.setdefault(number, file.identity) != file.identity:
                file.close()
                raise changed_since(file.path)
            self._open[number] = file
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return file

    def expect(self, number: int, identity: Identity) -> None:
        """Refuse the file `number` when it is opened, unless it is in this state."""
        self._identities.setdefault(number, identity)

    def require_unchanged(self, numbers: Iterable[int]) -> None:
        """Check those of the files that are open; the others are checked when they are opened again.

        Raises:
            FileDamaged: One has changed.
        """
        with self._lock:
            for file in filter(None, map(self._open.get, numbers)):
                file.require_unchanged()

    def close(self) -> None:
        """Close all files. Idempotent."""
        with self._lock:
            self._is_closed = True
            while self._open:
                self._open.popitem()[1].close()
            while self._urls:
                self._urls.popitem()[1].close()


_PIECE = 1 << 20  # bytes that are copied at a time


def _read_fd(fd: int, view: memoryview, offset: int, lock: threading.Lock) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [view], offset)
    with lock:
        os.lseek(fd, offset, os.SEEK_SET)
        data = os.read(fd, len(view))
    view[: len(data)] = data
    return len(data)
