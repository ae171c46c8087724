"""Directories in the temporary directory: whoever sees a process killed removes what it had no time to remove.

Guarantee: the name of a directory begins with the prefix of the process that has made it, and this with the prefix of
the process that has started that one. So what a killed worker leaves, at any depth of nesting, is known by its name.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import tempfile
from typing import Final

__all__ = ["adopt_prefix", "fresh_directory", "new_prefix", "remove_left"]


class _Own:
    prefix = "dataflow-"


_own: Final = _Own()  # of this process


def new_prefix() -> str:
    """A prefix for a process that is started from here."""
    return f"{_own.prefix}{secrets.token_hex(3)}-"


def adopt_prefix(prefix: str) -> None:
    """From now on this process names its directories so."""
    _own.prefix = prefix


def fresh_directory(parent: str | None = None) -> str:
    """A directory of mode 0700 that was not there before, in `parent` or in the temporary directory."""
    return tempfile.mkdtemp(prefix=_own.prefix, dir=parent)


def remove_left(prefix: str) -> None:
    """Remove what the process with this prefix has left, and whatever it had started: all of them have ended."""
    for parent in {tempfile.gettempdir(), "/tmp"}:
        for directory in glob.glob(os.path.join(glob.escape(parent), f"{prefix}*")):
            shutil.rmtree(directory, ignore_errors=True)
