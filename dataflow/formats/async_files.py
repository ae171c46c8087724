"""Whole files of fsspec's asynchronous file systems, with one attempt for each request.

A file system repeats a request that fails by rules of its own. Whoever repeats it here would multiply them, so they are
switched off; and its client may open as many connections as there are requests at a time. What a server sends instead
of the file is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any, Final

from dataflow.system.extras import optional
from dataflow.system.urls import reporting_url, require_end

__all__ = ["AsyncFileSystems"]

_CLIENTS: Final = ("_session", "_s3", "service_client")  # attributes of file systems that hold a client with close()


class AsyncFileSystems:
    """The asynchronous file systems that were needed, on the event loop that runs.

    Args:
        num_connections: How many requests may run at a time.
        options: For all of them.
    """

    def __init__(self, num_connections: int, options: Mapping[str, Any]) -> None:
        self._num_connections = num_connections
        self._options = options
        self._opened: dict[str, Any] = {}

    def find(self, url: str) -> tuple[Any, str] | None:
        """The file system of a URL and the path in it; None if it is not asynchronous.

        Raises:
            MissingExtra: fsspec, or the package that it needs for this scheme, is not installed.
            ValueError: fsspec does not know the scheme.
        """
        if "::" in url:
            return None  # a chain of several
        protocol = url.partition("://")[0].lower()
        with reporting_url(url):
            kind = optional("fsspec", "fsspec", "URLs need").get_filesystem_class(protocol)
            if not kind.async_impl:
                return None
            of_url = kind._get_kwargs_from_urls(url)
            key = f"{protocol} {sorted(of_url.items())}"
            system = self._opened.get(key)
            if system is None:
                system = self._opened[key] = self._open(kind, {**of_url, **self._options})
            return system, kind._strip_protocol(url)

    async def close(self) -> None:
        """Close their connections."""
        while self._opened:
            _, system = self._opened.popitem()
            for name in _CLIENTS:
                close = getattr(getattr(system, name, None), "close", None)
                if close is not None:
                    await close()

    def _open(self, kind: Any, options: dict[str, Any]) -> Any:
        names = {base.__name__ for base in kind.__mro__}
        prepare = next((prepare for name, prepare in _PREPARED.items() if name in names), None)
        if prepare is not None:
            options = prepare(options, self._num_connections)
        system = kind(**options, asynchronous=True, skip_instance_cache=True)
        tell = next((tell for name, tell in _TOLD.items() if name in names), None)
        if tell is not None:
            tell(system)
        return system


# -- HTTP --------------------------------------------------------------------------------------------------------------


def _prepare_http(options: dict[str, Any], num_connections: int) -> dict[str, Any]:
    if "get_client" in options or "connector" in options.get("client_kwargs", {}):
        return options
    import aiohttp

    async def client(loop: Any = None, **more: Any) -> Any:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=num_connections), **more)

    return {**options, "get_client": client}


def _tell_http(system: Any) -> None:
    check = getattr(system, _CHECKED, None)
    if check is not None:
        setattr(system, _CHECKED, partial(_require_file, check))


def _require_file(check: Callable[[Any, str], None], response: Any, url: str) -> None:
    """Check the response for a file. fsspec takes the body of any that is no error: also an empty one, or a part.

    aiohttp checks that a body is complete, where the response says how long it is.
    """
    check(response, url)
    is_asked = response.status == 206 and "Range" in response.request_info.headers  # by the user's options
    if response.status not in _WHOLE and not is_asked:
        raise OSError(
            f"the server has answered with status {response.status} ({response.reason}), and not with the file as a "
            "whole. Check the URL, and headers in storage_options="
        )
    require_end(response)


_CHECKED: Final = "_raise_not_found_for_status"  # the method that fsspec calls with each response for a file
_WHOLE: Final = (200, 203)

# -- S3, Google, Azure -------------------------------------------------------------------------------------------------


def _prepare_s3(options: dict[str, Any], num_connections: int) -> dict[str, Any]:
    config = {"max_pool_connections": num_connections, **options.get("config_kwargs", {})}
    config["retries"] = {"total_max_attempts": 1, "mode": "standard"}
    return {"max_concurrency": 1, **options, "config_kwargs": config}  # no request for the size before that for a file


def _tell_s3(system: Any) -> None:
    system.retries = 1  # attempts


def _prepare_google(options: dict[str, Any], num_connections: int) -> dict[str, Any]:
    import aiohttp

    session = {"connector": aiohttp.TCPConnector(limit=num_connections), **options.get("session_kwargs", {})}
    return {**options, "session_kwargs": session}


def _tell_google(system: Any) -> None:
    once = getattr(getattr(type(system), _REPEATED, None), "__wrapped__", None)
    if once is not None:
        setattr(system, _REPEATED, MethodType(once, system))


def _tell_azure(system: Any) -> None:
    setattr(system, _OF_EACH_REQUEST, {**getattr(system, _OF_EACH_REQUEST, {}), "retry_total": 0})


_REPEATED: Final = "_request"  # the method of gcsfs that is decorated to be repeated
_OF_EACH_REQUEST: Final = "_timeout_kwargs"  # the arguments that adlfs passes to its client


_PREPARED: Final[dict[str, Callable[[dict[str, Any], int], dict[str, Any]]]] = {
    "HTTPFileSystem": _prepare_http,
    "S3FileSystem": _prepare_s3,
    "GCSFileSystem": _prepare_google,
}
_TOLD: Final[dict[str, Callable[[Any], None]]] = {
    "HTTPFileSystem": _tell_http,
    "S3FileSystem": _tell_s3,
    "GCSFileSystem": _tell_google,
    "AzureBlobFileSystem": _tell_azure,
}
