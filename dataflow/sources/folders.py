"""Folders as sources: a folder for each class, with the files of that class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dataflow.protocol.parameters import flag
from dataflow.sources.in_memory import DataFromList
from dataflow.system.urls import files_below, is_url
from dataflow.system.walking import walk

__all__ = ["ImageFolderData"]

_EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolderData(DataFromList[list[Any]]):
    """The files in the subfolders of a folder, as datapoints ``[path, label]``.

    Each subfolder is a class; its label is its position among the sorted names, from 0. Files further down belong to it
    as well, also behind links to folders. They are not opened: decode them in a map, where workers can do it. Names
    that begin with a dot are left out.

    Args:
        path: The folder, or the URL of one.
        extensions: Endings of file names, case-insensitive; None takes all files.
        classes: Names of the subfolders to read, in the order of their labels; None reads all.
        allow_empty: Accept a class without files.
        shuffle: Draw a new order for every pass.
        seed: A root seed for this node's order, instead of the one of `dataflow.seed`.
        packed: Keep the list as bytes in shared memory, as for `DataFromList`: for millions of files.

    Attributes:
        classes: The names of the classes, by label.
        class_to_idx: The label of each class.

    Raises:
        FileNotFoundError: There is no such folder, it has no subfolders, or one has no such files; the message lists
            the empty classes.
        ValueError: `classes` names a subfolder twice.
        NotADirectoryError: `path` is a file.
        OSError: A folder may not be read; names it.
        MissingExtra: `path` is a URL, and fsspec is not installed.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> for name in ("dog/2.jpg", "cat/1.png", "cat/notes.txt"):
        ...     os.makedirs(os.path.join(folder.name, os.path.dirname(name)), exist_ok=True)
        ...     open(os.path.join(folder.name, name), "w").close()
        >>> df = ImageFolderData(folder.name)
        >>> df.classes, [(os.path.basename(path), label) for path, label in df]
        (['cat', 'dog'], [('1.png', 0), ('2.jpg', 1)])
        >>> folder.cleanup()

    Source:
        torchvision's ``ImageFolder``: the same classes, labels and order.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        extensions: Sequence[str] | None = _EXTENSIONS,
        classes: Sequence[str] | None = None,
        allow_empty: bool = False,
        shuffle: bool = False,
        seed: int | None = None,
        packed: bool = False,
    ) -> None:
        if isinstance(extensions, str):
            raise TypeError(f"ImageFolderData: extensions must be a list of ends of names, got {extensions!r}")
        if isinstance(classes, str):
            raise TypeError(f"ImageFolderData: classes must be a list of names of subfolders, got {classes!r}")
        text = os.fspath(path)
        ends = None if extensions is None else tuple(end.lower() for end in extensions)
        found = _files_behind(text, ends) if is_url(text) else _files_in(text, ends)
        if not found:
            raise FileNotFoundError(f"ImageFolderData: {text} has no subfolders; each class needs one, with its files")
        chosen = sorted(found) if classes is None else list(classes)
        if len(set(chosen)) < len(chosen):
            twice = next(name for name in chosen if chosen.count(name) > 1)
            raise ValueError(f"ImageFolderData: classes names the subfolder {twice!r} twice, and a class has one label")
        if missing := [name for name in chosen if name not in found]:
            raise FileNotFoundError(
                f"ImageFolderData: {text} has no subfolder {', '.join(missing)}; there are {', '.join(sorted(found))}"
            )
        if not flag(self, "allow_empty", allow_empty) and (empty := [name for name in chosen if not found[name]]):
            raise FileNotFoundError(
                f"ImageFolderData: {text} has no files for {', '.join(empty)}"
                + ("" if ends is None else f" that end in {' '.join(ends)}")
                + ". Add them, pass other extensions=, or allow_empty=True"
            )
        self.path = text
        self.extensions = extensions
        self.classes = chosen
        self.class_to_idx = {name: label for label, name in enumerate(chosen)}
        datapoints = [[file, label] for label, name in enumerate(chosen) for file in found[name]]
        super().__init__(datapoints, shuffle, seed=seed, packed=packed)

    @property
    def _df_files(self) -> Sequence[str]:
        # One listing tells the states of all files behind a URL.
        return [self.path] if is_url(self.path) else [file for file, _ in self.lst]

    @property
    def _df_parameters(self) -> dict[str, Any]:
        is_default = self.classes == sorted(self.classes)
        return {**super()._df_parameters, "classes": None if is_default else self.classes}

    @property
    def _df_compared(self) -> dict[str, Any]:
        return {name: value for name, value in super()._df_compared.items() if name not in {"path", "class_to_idx"}}


def _files_in(folder: str, ends: tuple[str, ...] | None) -> dict[str, list[str]]:
    """Return the files of each class of a folder."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return {name: list(_files_of_class(os.path.join(folder, name), ends)) for name in names}


def _files_of_class(folder: str, ends: tuple[str, ...] | None) -> Iterator[str]:
    found = []
    for inner, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found.append((inner, sorted(name for name in names if _is_wanted(name, ends))))
    for inner, names in sorted(found):
        for name in names:
            yield os.path.join(inner, name)


def _files_behind(url: str, ends: tuple[str, ...] | None) -> dict[str, list[str]]:
    """Return the files of each class of a folder behind a URL. Empty subfolders cannot be found."""
    found: dict[str, list[str]] = {}
    for file, inside in files_below(url).items():
        name, *rest = inside.split("/")
        if rest and not any(part.startswith(".") for part in (name, *rest)):
            files = found.setdefault(name, [])
            if _is_wanted(rest[-1], ends):
                files.append(file)
    return {name: sorted(files, key=lambda file: file.rsplit("/", 1)) for name, files in found.items()}


def _is_wanted(name: str, ends: tuple[str, ...] | None) -> bool:
    return not name.startswith(".") and (ends is None or name.lower().endswith(ends))
