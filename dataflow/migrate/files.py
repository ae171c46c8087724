"""Migration of files: reads a program, shows the changes as a diff, and writes them."""

from __future__ import annotations

import difflib
import os
import shutil
from dataclasses import dataclass

from dataflow.formats.saving import replacing
from dataflow.migrate.rewriting import Finding, rewritten

__all__ = ["Migrated", "migrate"]


@dataclass(frozen=True)
class Migrated:
    """What has become of one file.

    Attributes:
        path: The file, as it was given.
        diff: The changes as a unified diff; empty if there are none.
        findings: What the program does that was not rewritten.
    """

    path: str
    diff: str
    findings: tuple[Finding, ...]


def migrate(path: str | os.PathLike[str], *, write: bool = False) -> Migrated:
    """Rewrite the imports of one program.

    Args:
        path: A Python file. Its encoding, line ends and formatting are kept.
        write: Replace the file, at once and with its mode. A link stays a link.

    Raises:
        ValueError: The file is not a Python program; the message says what it is, and what to do.
        OSError: The file cannot be read or written.
        MissingExtra: libcst is not installed.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        raise ValueError(f"{name} is a directory: name its files, as in {os.path.join(name, '*.py')}")
    if name.endswith(".ipynb"):
        raise ValueError(f"{name} is a notebook: export it as a script first, or edit its imports by hand")
    with open(name, "rb") as file:
        source = file.read()
    try:
        done = rewritten(source)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if write and done.source != source:
        target = os.path.realpath(name)
        with replacing(target, overwrite=True) as part:
            with open(part, "wb") as file:
                file.write(done.source)
            shutil.copymode(target, part)
    return Migrated(name, _diff(name, done.before, done.after), done.findings)


def _diff(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
