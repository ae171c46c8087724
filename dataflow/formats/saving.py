"""Atomic saves: the path has either the old file or the complete new one, whatever happens meanwhile.

The new file grows under another name beside the old one, and replaces it when all of it is on the disk. The writer
holds a lock on it; the next save under the same name removes unlocked ones, which killed programs have left.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no such locks on Windows: files of killed programs stay there
    fcntl = None  # type: ignore[assignment]

from dataflow.errors import NotStorable, TimeoutError
from dataflow.formats.loading import PathLike
from dataflow.protocol.base import DataFlow, require_flow
from dataflow.protocol.passes import known_length
from dataflow.protocol.pauses import Pause, paused
from dataflow.system.descriptors import Descriptor, closed_on_error, no_fork
from dataflow.transforms.arguments import require_end

__all__ = ["alone", "has_locks", "replacing", "save_pass", "try_lock", "writing_all"]

_INTERVAL = 0.1  # seconds between two attempts at a lock that is held elsewhere
_log = logging.getLogger("dataflow.formats")


def save_pass(df: Any, owner: str, write: Callable[[int, Any], None]) -> None:
    """Write one pass of a flow.

    Args:
        df: The flow.
        owner: The class that saves it, for messages.
        write: Called with the number of each datapoint, and the datapoint.

    Raises:
        TypeError: `df` is not a dataflow.
        ValueError: A pass of it never ends.
        NotStorable: Raised by `write`; names the datapoint.
    """
    flow: DataFlow = require_flow(df, f"{owner}.save", "df")
    require_end(flow, f"{owner}.save", "writes one pass")
    list(writing_all(iter(flow), write, total=known_length(flow), label="saving", waits=False))  # which yields nothing


def writing_all(
    datapoints: Iterator[Any], write: Callable[[int, Any], None], *, total: int | None, label: str, waits: bool
) -> Iterator[Pause]:
    """Call `write` with number and datapoint, under a progress bar, which appears after a second; yields only pauses.

    Raises:
        NotStorable: Raised by `write`; names the datapoint.
    """
    from dataflow.observe.progress import Bar

    numbered = enumerate(datapoints)
    with Bar(total=total, unit="dp", delay=1, desc=label) as bar:
        while True:
            try:
                for number, dp in numbered:
                    try:
                        write(number, dp)
                    except NotStorable as error:
                        raise NotStorable(f"datapoint {number}: {error}") from error.__cause__
                    bar.update()
                return
            except TimeoutError as late:
                pause = paused(late, waits)
            yield pause


@contextmanager
def replacing(path: PathLike, *, overwrite: bool) -> Iterator[str]:
    """Yield a path for a new file, which becomes `path` at the end of the block; if that raises, the file is removed.

    Raises:
        FileExistsError: The file exists, and `overwrite` is false.
        FileNotFoundError: There is no such folder.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to save in: make it first", folder)
    if os.path.lexists(target) and not overwrite:
        raise _exists(target)
    _remove_abandoned(folder, name)
    part = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part")
    with _locked(part):
        try:
            yield part
            # Before it gets its name: after a crash of the machine, the name could otherwise stand for a file without
            # content.
            _flush(part)
            _publish(part, target, overwrite)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    _flush(folder)  # the name itself is on the disk only now


def _exists(target: str) -> FileExistsError:
    return FileExistsError(
        errno.EEXIST, "there is such a file already: choose another name, or save with overwrite=True", target
    )


@contextmanager
def _locked(part: str) -> Iterator[None]:
    # The lock ends with this process, however it ends. A forked child closes its copy of the descriptor.
    with no_fork:
        lock = Descriptor(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        if fcntl is not None:
            fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        lock.close()


@contextmanager
def alone(path: str, waiting: str) -> Iterator[None]:
    """Context manager: exclude all other processes and threads that enter with the same `path`.

    The lock ends with the process that holds it, so a waiting process always waits for a live one.

    Args:
        path: The file to protect. The lock is a file beside it, which is removed.
        waiting: Logged if the lock is held elsewhere.
    """
    if not has_locks():
        yield
        return
    said = False
    while (lock := try_lock(path + ".lock")) is None:
        if not said:
            said = True
            _log.info("%s", waiting)
        time.sleep(_INTERVAL)
    try:
        yield
    finally:
        # Before the lock is released: afterwards it might be the file that another process has locked by now.
        Path(path + ".lock").unlink(missing_ok=True)
        lock.close()


def has_locks() -> bool:
    """Whether this platform has the locks of `try_lock`."""
    return fcntl is not None


def try_lock(path: str) -> Descriptor | None:
    """Lock the file at `path`, which is made if there is none; return None if another process or thread has locked it.

    The lock ends when the descriptor is closed, or with this process.
    """
    try:
        while True:
            with closed_on_error():
                with no_fork:
                    lock = Descriptor(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
                fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(lock.fd, path):
                    return lock
            lock.close()  # it was removed before it was locked: there may be a new one
    except BlockingIOError:
        return None


def _is_still(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: str, name: str) -> None:
    if not has_locks():
        return
    for part in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(name)}.*.part")):
        try:
            # A writer that has made it, and not locked it yet, finds it gone and fails: that takes two programs that
            # save under one name at one moment.
            lock = try_lock(part)
        except OSError:
            continue  # it is owned by another user
        if lock is not None:  # it is not being written
            _log.info("removing %s, which a killed program has left", part)
            Path(part).unlink(missing_ok=True)
            lock.close()


def _publish(part: str, target: str, overwrite: bool) -> None:
    if overwrite:
        os.replace(part, target)
        return
    try:
        os.link(part, target)  # fails where a rename would replace a file that was created meanwhile
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without links
        os.replace(part, target)
    else:
        os.unlink(part)  # a death before this leaves a second name, which the next save removes


def _flush(path: str) -> None:
    if os.path.isdir(path) and fcntl is None:
        return  # on Windows, folders cannot be opened
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
