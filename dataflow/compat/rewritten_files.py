"""Migration of files: reads a program, shows the changes as a diff, and writes them."""

from __future__ import annotations

import difflib
import os
import shutil
from dataclasses import dataclass
from typing import Final

from dataflow.compat.rewriting import Finding, rewritten
from dataflow.formats.saving import replacing

__all__ = ["Migrated", "migrate"]

_ROOT_MARKS: Final = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_MAX_NAMES: Final = 4  # in one line of the notes


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

    def notes(self) -> list[str]:
        """The findings as lines of text: one for all that say the same, with the other lines of the file."""
        same: dict[str, list[Finding]] = {}
        for finding in self.findings:
            same.setdefault(finding.text, []).append(finding)
        return [f"{self.path}:{_note(findings)}" for findings in same.values()]


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
        done = rewritten(source, own=_own_module(name))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if write and done.source != source:
        target = os.path.realpath(name)
        with replacing(target, overwrite=True) as part:
            with open(part, "wb") as file:
                file.write(done.source)
            shutil.copymode(target, part)
    return Migrated(name, _diff(name, done.before, done.after), done.findings)


def _note(findings: list[Finding]) -> str:
    first = findings[0]
    names = list(dict.fromkeys(finding.name for finding in findings))
    if len(names) > _MAX_NAMES:
        names[_MAX_NAMES:] = ["…"]
    lines = [str(line) for line in dict.fromkeys(finding.line for finding in findings) if line != first.line]
    also = f" (also line{'s' * (len(lines) > 1)} {', '.join(lines)})" if lines else ""
    return f"{first.line}:{first.column}: {', '.join(names)}: {first.text}{also}"


def _own_module(path: str) -> str | None:
    """A module or package `dataflow` of the project of a file, which the file would import in the place of this one.

    It is looked for in the directory of the file, in those above up to the root of its project, and in ``src`` there.
    """
    ours = os.path.realpath(os.path.dirname(os.path.dirname(__file__)))
    for directory in _import_directories(os.path.dirname(os.path.realpath(path))):
        for found in (os.path.join(directory, "dataflow.py"), os.path.join(directory, "dataflow", "__init__.py")):
            if os.path.isfile(found) and os.path.dirname(os.path.realpath(found)) != ours:
                return found.removesuffix(f"{os.sep}__init__.py")
    return None


def _import_directories(directory: str) -> list[str]:
    above = [directory]
    while (parent := os.path.dirname(above[-1])) != above[-1]:
        above.append(parent)
    for number, root in enumerate(above):
        if any(os.path.exists(os.path.join(root, mark)) for mark in _ROOT_MARKS):
            return [*above[: number + 1], os.path.join(root, "src")]
    packages = 0  # without such a mark: up to the directory that holds the outermost package
    while packages + 1 < len(above) and os.path.isfile(os.path.join(above[packages], "__init__.py")):
        packages += 1
    return above[: packages + 1]


def _diff(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
