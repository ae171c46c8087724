"""URLs as paths: files and folders of other file systems, through fsspec.

A path with a scheme, such as ``s3://bucket/file`` or ``https://host/file``, is a URL. fsspec reads its options, such as
credentials, from its own configuration (files in ``~/.config/fsspec``, environment variables).
"""

from __future__ import annotations

import builtins
import errno
import glob
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Final

from dataflow.errors import DataFlowError, MissingExtra
from dataflow.system.extras import optional
from dataflow.system.walking import walk

__all__ = [
    "causes_of",
    "change_of",
    "filesystem_of",
    "files_below",
    "files_matching",
    "is_url",
    "reporting_url",
    "require_end",
    "retry_after",
    "states_below",
    "status_of",
    "transient_cause",
]

# What file systems say of a file's state.
_CHANGED: Final = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "created")
_TRANSIENT_STATUS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_MISSING_STATUS: Final = frozenset({None, 404, 410})
_TRANSIENT_ERRNO: Final = frozenset(
    {errno.EAGAIN, errno.EINTR, errno.EIO, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET}
    | {errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.EPIPE, errno.ETIMEDOUT}
    | {getattr(errno, name) for name in ("EHOSTDOWN", "EREMOTEIO", "ESTALE") if hasattr(errno, name)}
)
_TRANSIENT_NAMES: Final = frozenset(  # exceptions of aiohttp, botocore, azure, requests and urllib3, not imported here
    {"ClientConnectionError", "ClientPayloadError"}
    | {"ConnectionClosedError", "EndpointConnectionError", "HTTPClientError", "ResponseStreamingError"}
    | {"IncompleteReadError", "ServiceRequestError", "ServiceResponseError"}
    | {"ChecksumError", "ChunkedEncodingError", "ContentDecodingError", "IncompleteRead", "ProtocolError", "ProxyError"}
)
_LASTING_NAMES: Final = frozenset({"ClientSSLError", "SSLError", "SSLCertVerificationError"})
_CACHES: Final = frozenset({"blockcache", "cached", "filecache", "simplecache"})  # file systems of fsspec
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")


def is_url(path: str) -> bool:
    """Whether a path is a URL.

    Example:
        >>> is_url("s3://bucket/rows.parquet"), is_url("rows.parquet"), is_url("C:/rows.parquet")
        (True, False, False)
    """
    return _SCHEME.match(path) is not None


def filesystem_of(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the file system of a URL, an fsspec object, and the path in it. Each process asks for its own.

    Args:
        url: The URL.
        options: Of the file system, in addition to those of fsspec's configuration.

    Raises:
        MissingExtra: fsspec, or the package that it needs for this scheme, is not installed.
        ValueError: fsspec does not know the scheme, or the URL goes through a cache of fsspec.
    """
    if not _CACHES.isdisjoint(part.partition("://")[0].lower() for part in url.split("::")):
        raise ValueError(
            f"{url}: a cache of fsspec takes the part that a broken download has left for the file. Use FetchData with "
            "cache=, which keeps whole files only, or copy the file first"
        )
    optional("fsspec", "fsspec", "URLs need")
    core = optional("fsspec.core", "fsspec", "URLs need")
    with reporting_url(url):
        found: tuple[Any, str] = core.url_to_fs(url, **(options or {}))
        return found


def files_below(url: str) -> dict[str, str]:
    """Return the URLs of all files below a folder, sorted, with their paths inside it; of a file, only itself.

    Raises:
        FileNotFoundError: There is no such folder, or no file in it.
    """
    system, path = filesystem_of(url)
    with reporting_url(url):
        names = sorted(_walk(path) if _is_local(system) else system.find(path))
        if not names:
            raise FileNotFoundError(path)
        if names == [path]:
            return {url: ""}
        start = len(path.rstrip("/")) + 1
        return {system.unstrip_protocol(name): name[start:] for name in names}


def files_matching(url: str) -> list[str]:
    """Return the URLs of all files that a glob matches, sorted."""
    system, path = filesystem_of(url)
    with reporting_url(url):
        names = glob.glob(path, recursive=True) if _is_local(system) else system.glob(path)
        return sorted(map(system.unstrip_protocol, names))


def states_below(url: str) -> list[tuple[int | None, str]]:
    """Return size and state of a file, or of all files below a folder, sorted by name.

    Raises:
        FileNotFoundError: There is no such file or folder, or no file in it.
    """
    system, path = filesystem_of(url)
    with reporting_url(url):
        about = system.info(path)
        if about.get("type") != "directory":
            found = {path: about}
        elif _is_local(system):
            found = {name: _state_of(name) for name in _walk(path)}
        else:
            found = system.find(path, detail=True)
        if not found:
            raise FileNotFoundError(path)
        return [(about.get("size"), change_of(about)) for _, about in sorted(found.items())]


def _is_local(system: Any) -> bool:
    """Whether a file system is that of this machine, whose links to folders fsspec does not follow."""
    return isinstance(system, optional("fsspec.implementations.local", "fsspec", "URLs need").LocalFileSystem)


def _walk(path: str) -> list[str]:
    """Return the paths of all files below a folder of this machine; of a file, only itself."""
    if not os.path.isdir(path):
        return [path] if os.path.exists(path) else []
    return [os.path.join(folder, name) for folder, _, names in walk(path) for name in names]


def _state_of(path: str) -> Mapping[str, Any]:
    try:
        status = os.stat(path)
    except OSError:  # a link that leads nowhere
        return {}
    return {"size": status.st_size, "mtime": status.st_mtime}


def change_of(about: Mapping[str, Any]) -> str:
    """Return what differs when a file was changed, of what a file system says about it; empty if it says nothing."""
    return next((str(about[name]) for name in _CHANGED if about.get(name)), "")


def require_end(response: Any) -> None:
    """Check that a response of aiohttp says where its body ends: only then is a body that was cut off an error.

    Raises:
        OSError: It does not.
    """
    if response.content_length is None and "chunked" not in response.headers.get("Transfer-Encoding", "").lower():
        raise OSError(
            "the server does not say how long the file is: it sends neither Content-Length nor chunks, so if the "
            "connection broke, what had come would seem to be the file. Serve it by a server that does (nginx, "
            "python -m http.server), or fetch it by a function of your own, in AsyncMapData"
        )


# -- errors ------------------------------------------------------------------------------------------------------------


def transient_cause(error: BaseException) -> BaseException | None:
    """What another attempt may mend: `error`, or an exception that it was raised from; None if there is no such."""
    causes = list(causes_of(error))
    for cause in causes:  # of a connection; what it was raised from may be a status of the client's own
        names = {kind.__name__ for kind in type(cause).__mro__}
        if not names.isdisjoint(_LASTING_NAMES):
            return None
        if not names.isdisjoint(_TRANSIENT_NAMES):
            return cause
    for cause in causes:
        if (status := status_of(cause)) is not None:
            return cause if status in _TRANSIENT_STATUS else None
    for cause in causes:
        is_of_network = isinstance(cause, ConnectionError | builtins.TimeoutError)
        if is_of_network or getattr(cause, "errno", None) in _TRANSIENT_ERRNO:
            return cause
    return None


def retry_after(error: BaseException) -> float:
    """The seconds for which a server has asked not to be asked again; 0 if it has not."""
    for cause in causes_of(error):
        response = getattr(cause, "response", None)
        found = response.get("ResponseMetadata", {}).get("HTTPHeaders") if isinstance(response, Mapping) else None
        headers = found or getattr(cause, "headers", None) or getattr(response, "headers", None)
        text = headers.get("Retry-After") or headers.get("retry-after") if isinstance(headers, Mapping) else None
        if text is None:
            continue
        try:
            return max(0.0, float(text))
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except ValueError:
            continue
    return 0.0


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that it was raised from."""
    for _ in range(8):  # a bound: exceptions may be the causes of each other
        if error is None:
            return
        yield error
        error = error.__cause__


def status_of(error: BaseException) -> int | None:
    """The status of the server's response that an error is about; None if it is about none."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # of botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        name = next((name for name in ("status", "status_code", "code") if name in dir(error)), None)
        status = None if name is None else getattr(error, name)
    if isinstance(status, str) and status.isdecimal():
        status = int(status)
    return status if isinstance(status, int) and 100 <= status < 600 else None


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
        cause = error.__cause__  # fsspec says so of whatever keeps it from asking a server about a file
        if cause is not None and (transient_cause(cause) or status_of(cause) not in _MISSING_STATUS):
            raise OSError(f"{url} cannot be read: {type(cause).__name__}: {cause}") from error
        raise FileNotFoundError(errno.ENOENT, "there is nothing at this URL", url) from error
    except ImportError as error:
        raise MissingExtra(f"{url}: fsspec needs another package for this scheme: {error}") from error
    except ValueError as error:
        if str(error).startswith(url):  # of filesystem_of
            raise
        raise ValueError(f"{url}: {error}. Correct the scheme, or register its file system with fsspec") from error
    except Exception as error:
        raise OSError(f"{url} cannot be read: {type(error).__name__}: {error}") from error
