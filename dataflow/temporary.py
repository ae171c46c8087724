"""Private temporary directories, which are removed even if their owner is killed.

Guarantees:

- A directory has mode 0700 and is newly created.
- It is removed by `PrivateDirectory.close`; if its owner was killed before, by the first process that notices: the
  process that started the owner (`remove_leftovers`), or the next process of this user that makes such a directory, or
  starts as a worker and finds its parent gone (`sweep`).
- A directory in use is never removed. Its owner holds a lock (`flock`) on it, which the kernel releases when the owner
  ends, however it ends, and which holds across containers of one machine; a sweep removes directories that it can lock.
  On a shared file system, each machine touches only its own directories: a name ends with that of the machine.
- The name begins with the prefix of the process that made the directory, and this with the prefix of the process that
  started that one: so the leftovers of a killed worker, at any depth of nesting, are recognised by name.

Race of owner and sweep, between making a directory and locking it: when it has the lock, the owner checks whether its
directory still exists, and makes another if not.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from functools import cache
from typing import Final

from dataflow.descriptors import Descriptor

__all__ = ["PrivateDirectory", "adopt_prefix", "new_prefix", "remove_leftovers", "sweep"]

_COMMON: Final = "dataflow-"
_ATTEMPTS: Final = 20


class _CurrentPrefix:
    prefix = _COMMON


_current: Final = _CurrentPrefix()  # of this process


def new_prefix() -> str:
    """A new prefix for a process that is started from here."""
    return f"{_current.prefix}{secrets.token_hex(3)}-"


def adopt_prefix(prefix: str) -> None:
    """Set the prefix of the directories that this process makes from now on."""
    _current.prefix = prefix


class PrivateDirectory(Descriptor):
    """A new directory, locked by this process until it is closed.

    Args:
        name: Name of a file that will be in it.
        max_bytes: Maximum length of the path of this file.

    Raises:
        OSError: It can be made neither in the temporary directory nor in /tmp; the message says why.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        sweep()
        self._pid = os.getpid()
        self._name = name
        errors: list[str] = []
        number = 0
        for parent in _parents():
            for _ in range(_ATTEMPTS):
                try:
                    self.path = tempfile.mkdtemp(f".{_machine()}", _current.prefix, parent)
                except OSError as error:
                    number = number or error.errno or 0
                    errors.append(f"{parent}: {error.strerror}")
                    break
                if len(os.fsencode(os.path.join(self.path, name))) > max_bytes:
                    os.rmdir(self.path)
                    number = number or errno.ENAMETOOLONG
                    errors.append(
                        f"{parent}: the path of a file there has more than the {max_bytes} bytes of a socket's"
                    )
                    break
                try:
                    fd = _locked(self.path)
                    if fd is not None:
                        super().__init__(fd)
                        return
                except BaseException:
                    os.rmdir(self.path)
                    raise
        raise OSError(
            number,
            f"cannot make a directory for a socket ({'; '.join(errors) or 'others remove it'}). Set TMPDIR to a "
            "shorter path, of a directory that exists and can be written",
        )

    def close(self) -> None:
        """Remove it, with the file of that name. Idempotent; a forked child only closes its inherited descriptor."""
        if self.fd >= 0 and os.getpid() == self._pid:
            # Before the lock is released; and not by `shutil.rmtree`, which needs descriptors: there may be none.
            with suppress(OSError):
                os.unlink(os.path.join(self.path, self._name))
            with suppress(OSError):
                os.rmdir(self.path)
        super().close()


def _parents() -> tuple[str, ...]:
    """Candidates for the parent directory; the first that works is used."""
    return tuple(dict.fromkeys([tempfile.gettempdir(), "/tmp"]))


def _locked(path: str) -> int | None:
    """A descriptor of the directory, with the lock on it; None if another process has locked or removed it."""
    import fcntl  # not available on Windows, where the package can still be imported

    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        return fd  # a file system without locks: no sweep removes anything there
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def sweep() -> None:
    """Remove directories that killed processes of this user have left on this machine."""
    for parent in _parents():
        for path in glob.glob(os.path.join(glob.escape(parent), f"{_COMMON}*.{_machine()}")):
            with suppress(OSError):
                _remove_unlocked(path)


def _remove_unlocked(path: str) -> None:
    import fcntl

    found = os.lstat(path)
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its owner is alive
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)


def remove_leftovers(prefix: str) -> None:
    """Remove the directories of the process with this prefix, and of all that it had started; all have ended."""
    for parent in _parents():
        for directory in glob.glob(os.path.join(glob.escape(parent), f"{prefix}*")):
            shutil.rmtree(directory, ignore_errors=True)


@cache
def _machine() -> str:
    """A short name of this machine since its boot, shared by the processes that can lock each other's directories."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            name = file.read()
    except OSError:
        name = socket.gethostname()
    return hashlib.blake2s(name.encode(), digest_size=3).hexdigest()
