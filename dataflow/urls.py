"""URLs as paths: files and folders of other file systems, through fsspec.

A path with a scheme, such as ``s3://bucket/file`` or ``https://host/file``, is a URL. fsspec reads its options, such as
credentials, from its own configuration (files in ``~/.config/fsspec``, environment variables).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from dataflow.errors import DataFlowError, MissingExtra
from dataflow.extras import optional

__all__ = ["change_of", "filesystem_of", "files_below", "is_url", "reporting_url", "states_below"]

_CHANGED: Final = ("ETag", "etag", "mtime", "LastModified", "created")  # what file systems say of a file's state
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")


def is_url(path: str) -> bool:
    """Whether a path is a URL.

    Example:
        >>> is_url("s3://bucket/rows.parquet"), is_url("rows.parquet"), is_url("C:/rows.parquet")
        (True, False, False)
    """
    return _SCHEME.match(path) is not None


def filesystem_of(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, an fsspec object, and the path in it. Each process asks for its own.

    Raises:
        MissingExtra: fsspec, or the package that it needs for this scheme, is not installed.
        ValueError: fsspec does not know the scheme.
    """
    optional("fsspec", "fsspec", "URLs need")
    core = optional("fsspec.core", "fsspec", "URLs need")
    with reporting_url(url):
        found: tuple[Any, str] = core.url_to_fs(url)
        return found


def files_below(url: str) -> dict[str, str]:
    """Return the URLs of all files below a folder, sorted, with their paths inside it; of a file, only itself.

    Raises:
        FileNotFoundError: There is no such folder, or no file in it.
    """
    system, path = filesystem_of(url)
    with reporting_url(url):
        names = sorted(system.find(path))
        if not names:
            raise FileNotFoundError(path)
        if names == [path]:
            return {url: ""}
        start = len(path.rstrip("/")) + 1
        return {system.unstrip_protocol(name): name[start:] for name in names}


def states_below(url: str) -> list[tuple[int | None, str]]:
    """Return size and state of a file, or of all files below a folder, sorted by name.

    Raises:
        FileNotFoundError: There is no such file or folder, or no file in it.
    """
    system, path = filesystem_of(url)
    with reporting_url(url):
        about = system.info(path)
        found = system.find(path, detail=True) if about.get("type") == "directory" else {path: about}
        if not found:
            raise FileNotFoundError(path)
        return [(about.get("size"), change_of(about)) for _, about in sorted(found.items())]


def change_of(about: Mapping[str, Any]) -> str:
    """Return what differs when a file was changed, of what a file system says about it; empty if it says nothing."""
    return next((str(about[name]) for name in _CHANGED if about.get(name)), "")


@contextmanager
def reporting_url(url: str) -> Iterator[None]:
    """Inside the block, errors of a file system become errors that name the URL.

    Raises:
        FileNotFoundError: There is no such file.
        MissingExtra: A package is not installed.
        ValueError: The scheme is unknown.
        OSError: Anything else, for example that the host cannot be reached.
    """
    try:
        yield
    except DataFlowError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "there is nothing at this URL", url) from error
    except ImportError as error:
        raise MissingExtra(f"{url}: fsspec needs another package for this scheme: {error}") from error
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from error
    except Exception as error:
        raise OSError(f"{url} cannot be read: {type(error).__name__}: {error}") from error
