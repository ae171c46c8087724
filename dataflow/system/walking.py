"""Folders and the files below them, through symbolic links."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["walk"]


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder from `folder` down, the names of its folders, and those of its files, as `os.walk` does.

    Links to folders are followed, and a folder that two links lead to is yielded twice, under both names; so what is
    found depends on the links, and not on the order in which a directory lists them. A link that leads back to a folder
    above it ends there.

    Args:
        folder: Where to begin. Names that are removed from a list of folders are not entered.

    Raises:
        OSError: A folder may not be read; names it.
    """
    above: dict[str, frozenset[tuple[int, int]]] = {folder: frozenset()}  # the folders on the way to each
    for inner, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        status, passed = os.stat(inner), above.pop(inner)
        identity = status.st_dev, status.st_ino
        if identity in passed:
            folders.clear()
            continue
        passed |= {identity}
        yield inner, folders, names
        above.update((os.path.join(inner, name), passed) for name in folders)


def _raise(error: OSError) -> None:
    """Raise an error that `os.walk` would ignore: it would leave out a folder that may not be read."""
    raise error
