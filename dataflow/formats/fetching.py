"""`FetchData`: the bytes of many files at a time, by path or URL, with retries and a cache on disk."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import os
import random
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from dataflow.formats.async_files import AsyncFileSystems
from dataflow.formats.file_cache import CachedFile, FileCache
from dataflow.formats.loading import PathLike
from dataflow.formats.saving import has_locks
from dataflow.protocol.base import DataFlow
from dataflow.protocol.datapoint import component, replaced
from dataflow.protocol.failures import Budget
from dataflow.protocol.parameters import flag, keyword_arguments, whole_number
from dataflow.system.urls import (
    causes_of,
    change_of,
    filesystem_of,
    is_url,
    reporting_url,
    retry_after,
    status_of,
    transient_cause,
)
from dataflow.transforms.awaiting import AsyncMapData

__all__ = ["FetchData"]

_LOG: Final = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05  # seconds before the second attempt, at least; twice as many before the third, and so on
_MAX_PAUSE: Final = 10.0
_MAX_ASKED: Final = 60.0  # seconds that a server may ask to wait for
_MAX_THREADS: Final = 128
_GRACE: Final = 2.0  # seconds that threads get to end
_RESERVED: Final = frozenset({"asynchronous", "loop", "skip_instance_cache"})  # options that the node sets

T = TypeVar("T")


class FetchData(AsyncMapData[Any]):
    """Replace the path or URL of a file, one component of each datapoint, by its bytes, many files at a time.

    It is an `AsyncMapData` whose function fetches: passes are in order and exact, the node can be addressed if `ds`
    can, and it may stand below runners, shards, batches and resuming. Up to ``4 * num_concurrent`` files may be in
    memory; take fewer if they are large. Shuffle the list of files below, and decode above.

    URLs need the extra ``fsspec``, and the package of their scheme, such as ``s3fs`` or ``gcsfs``. File systems of
    fsspec that are asynchronous run on the event loop, all others and local files in up to 128 threads.

    What another attempt may mend is repeated: lost connections, truncated bodies, and the statuses 408, 425, 429 and
    500 to 504. The pauses between the attempts grow from 50 ms, or last as long as the server asks for with
    ``Retry-After``, up to a minute. File systems' own retries are switched off. What fails for good raises, with the
    URL, or counts for `max_failures`.

    Args:
        ds: The input.
        key: Position of the component with the path or URL, or its key in a dict.
        num_concurrent: How many files are fetched at a time.
        retries: How often a file is tried again after the first attempt.
        cache: A folder in which files are kept for later passes and runs, by URL and options. Several processes and
            ranks may share it. None keeps none.
        cache_bytes: Upper bound of the sizes of all files in the folder: those that were not used for the longest time
            are removed first. None for none.
        validate: Compare each file in the cache with the one at its URL, by ETag, time of change or size, as far as
            the server tells: one small request for each. Otherwise a file in the cache is never fetched again, which a
            WARNING says.
        storage_options: Options for fsspec's file systems, such as credentials. Those of fsspec's own configuration
            need not be repeated.
        ordered: As in `AsyncMapData`.
        item_timeout: Seconds that one file may take, with all attempts.
        timeout: As in `AsyncMapData`.
        max_failures: As in `AsyncMapData`.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: A file cannot be read; names its URL, and what went wrong.
        MissingExtra: fsspec, or a package that it needs for a scheme, is not installed; names it.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> paths = [os.path.join(folder.name, name) for name in ("a", "b")]
        >>> for path in paths:
        ...     with open(path, "w") as file:
        ...         _ = file.write("content of " + os.path.basename(path))
        >>> with FetchData(DataFromList([[path, k] for k, path in enumerate(paths)], shuffle=False)) as df:
        ...     list(df)
        [[b'content of a', 0], [b'content of b', 1]]
        >>> folder.cleanup()
    """

    _df_run_settings = AsyncMapData._df_run_settings | {
        "cache",
        "cache_bytes",
        "retries",
        "storage_options",
        "validate",
    }

    def __init__(
        self,
        ds: DataFlow,
        key: Any = 0,
        num_concurrent: int = 64,
        *,
        retries: int = 3,
        cache: PathLike | None = None,
        cache_bytes: int | None = None,
        validate: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        ordered: bool = True,
        item_timeout: float | None = None,
        timeout: float | None = None,
        max_failures: Budget | None = None,
    ) -> None:
        function: Any = _Fetch(key)
        super().__init__(
            ds,
            function,
            num_concurrent,
            ordered=ordered,
            item_timeout=item_timeout,
            timeout=timeout,
            max_failures=max_failures,
        )
        del self.func, self.setup  # which follow from the parameters
        self.key = key
        self.retries = whole_number(self, "retries", retries, 0)
        self.cache = _checked_cache(cache)
        self.cache_bytes = None if cache_bytes is None else whole_number(self, "cache_bytes", cache_bytes, 1)
        self.validate = flag(self, "validate", validate)
        self.storage_options = _checked_options(storage_options)
        self._options = _hash_of(self.storage_options)  # for the descriptions of caches, which may not hold secrets
        if self.cache is None:
            if self.cache_bytes is not None or self.validate:
                name = "validate=True" if self.validate else "cache_bytes"
                raise ValueError(f"FetchData: {name} concerns the files in a cache: give its folder as cache")
            return
        if self._options is None:
            raise ValueError(
                "FetchData: with cache, storage_options are part of what identifies a file, and must be text, numbers, "
                f"lists and dicts, got {sorted(self.storage_options)}. Set others in fsspec's configuration"
            )
        if not self.validate:
            _LOG.warning(
                "FetchData: a file in the cache %s is never compared with the one at its URL: if that changes, it is "
                "still read as it was. Pass validate=True to compare, or delete the folder",
                self.cache,
            )

    @property
    def _df_func(self) -> Callable[..., Any]:
        return _Fetch(self.key)

    @property
    def _df_setup(self) -> Callable[[], Any]:
        return _Opening(
            self.num_concurrent, self.retries, self.cache, self.cache_bytes, self.validate, self.storage_options
        )

    @property
    def _df_files(self) -> Sequence[str]:
        raise TypeError(
            "FetchData reads files, and whether they have changed since is not compared. Give DiskCacheData a "
            "fingerprint= of your own, and change it when the files change"
        )

    @property
    def _df_parameters(self) -> dict[str, Any]:
        # The values may be secret.
        return {**super()._df_parameters, "storage_options": sorted(self.storage_options) or None}


def _checked_cache(cache: Any) -> str | None:
    if cache is None:
        return None
    if not isinstance(cache, str | os.PathLike) or not isinstance(os.fspath(cache), str):
        raise TypeError(f"FetchData: cache is the path of a folder, got {type(cache).__name__}")
    path: str = os.fspath(cache)
    if not path or is_url(path):
        raise ValueError(f"FetchData: cache is the path of a folder on this machine, got {path!r}")
    if not has_locks():
        raise ValueError("FetchData: cache needs file locks that this platform lacks (flock). Leave it out")
    return os.path.abspath(path)


def _checked_options(options: Any) -> dict[str, Any]:
    found = keyword_arguments("FetchData", "storage_options", options)
    if reserved := sorted(_RESERVED.intersection(found)):
        raise ValueError(f"FetchData sets {', '.join(reserved)} by itself: leave it out of storage_options")
    return found


def _hash_of(options: Mapping[str, Any]) -> str | None:
    """A text that options share only if they are equal; None if there is none."""
    try:
        return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
    except (TypeError, ValueError):
        return None


# -- fetching ----------------------------------------------------------------------------------------------------------


class _Fetch:
    """The function of the node."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "fetch"

    async def __call__(self, dp: Any, client: Any) -> Any:
        path = component(dp, self._key)
        if isinstance(path, os.PathLike):
            path = os.fspath(path)
        if not isinstance(path, str):
            raise TypeError(
                f"FetchData: component {self._key!r} is a path or a URL, got {type(path).__name__}. Give its position "
                "or key as key"
            )
        return replaced(dp, self._key, await client.fetch(str(path)))


@dataclass(frozen=True, repr=False)
class _Opening:
    """Makes the client of a process: the setup of the node."""

    num_concurrent: int
    retries: int
    cache: str | None
    cache_bytes: int | None
    validate: bool
    options: dict[str, Any]

    def __repr__(self) -> str:
        return "the cache and the connections"  # the options may be secret

    def __call__(self) -> _Client:
        return _Client(self)


class _Source(NamedTuple):
    """One file, and how it is read."""

    name: str  # under which it is kept in the cache
    read: Callable[[], Awaitable[bytes]]
    state: Callable[[], Awaitable[str]]  # returns what differs if the file has changed; empty if that is unknown


class _Client:
    """What fetches files in one process: an async context manager, on the event loop."""

    def __init__(self, settings: _Opening) -> None:
        self._settings = settings
        self._options = _hash_of(settings.options)
        self._random = random.Random()
        self._threads = _Threads(min(settings.num_concurrent, _MAX_THREADS))
        self._systems = AsyncFileSystems(settings.num_concurrent, settings.options)
        self._cache: FileCache | None = None

    async def __aenter__(self) -> _Client:
        if self._settings.cache is not None:
            try:
                self._cache = await self._threads.run(self._open_cache, self._settings.cache)
            except BaseException:
                await self._threads.close()  # `__aexit__` is not called after an error here
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._systems.close()
        finally:
            await self._threads.close()

    def _open_cache(self, folder: str) -> FileCache:
        try:
            return FileCache(folder, self._settings.cache_bytes)
        except OSError as error:
            error.add_note(f"the cache {folder} cannot be made: give another folder as cache=, or leave it out")
            raise

    async def fetch(self, path: str) -> bytes:
        """The bytes of a file."""
        try:
            if not is_url(path):
                return await self._fetch(self._local(path))
            source = self._remote(path)
            with reporting_url(path):
                return await self._fetch(source)
        except OSError as error:
            error.add_note(f"{_cure(error)}. max_failures= leaves out files that cannot be read")
            raise

    async def _fetch(self, source: _Source) -> bytes:
        cache, validates = self._cache, self._settings.validate
        if cache is None:
            return await self._repeating(source.read)
        name = hashlib.sha256(f"{self._options} {source.name}".encode("utf-8", "surrogatepass")).hexdigest()
        kept = await self._threads.run(cache.get, name)
        if kept is not None and not validates:
            return kept.data
        # Asked for first: if the file changes in between, new bytes are kept under the old state, and fetched again.
        state = await self._repeating(source.state) if validates else ""
        if kept is not None and state and kept.state == state:
            return kept.data
        data = await self._repeating(source.read)
        await self._threads.run(cache.put, name, CachedFile(data, state))
        return data

    async def _repeating(self, attempt: Callable[[], Awaitable[T]]) -> T:
        pause = _FIRST_PAUSE
        for num_attempts in range(1, self._settings.retries + 2):
            try:
                return await attempt()
            except Exception as error:
                if transient_cause(error) is None:
                    raise
                asked = retry_after(error)
                if asked > _MAX_ASKED:
                    error.add_note(f"the server asks to wait for {asked:.0f} seconds before the next attempt")
                    raise
                if num_attempts > self._settings.retries:
                    error.add_note(f"number of attempts: {num_attempts}")
                    raise
            await asyncio.sleep(max(pause, asked) + pause * self._random.random())
            pause = min(2 * pause, _MAX_PAUSE)
        raise AssertionError("the last attempt returns or raises")

    def _local(self, path: str) -> _Source:
        run = self._threads.run
        return _Source(f"file {os.path.abspath(path)}", partial(run, _read, path), partial(run, _state, path))

    def _remote(self, url: str) -> _Source:
        found = self._systems.find(url)
        if found is None:
            run, options = self._threads.run, self._settings.options
            return _Source(url, partial(run, _read_url, url, options), partial(run, _state_of_url, url, options))
        system, path = found

        async def state() -> str:
            return _state_text(await system._info(path))

        return _Source(url, partial(system._cat_file, path), state)


def _cure(error: OSError) -> str:
    """What to do about a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "check the path or URL"
    if any(status_of(cause) in {401, 403} for cause in causes_of(error)) or isinstance(error, PermissionError):
        return "check whether this process may read it, and pass credentials by storage_options="
    if any(type(cause).__name__ == "TooManyRedirects" for cause in causes_of(error)):
        return "the server redirects in a circle: give the URL of the file itself"
    if transient_cause(error) is not None:
        return "it may be temporary: raise retries=, or lower num_concurrent= if the server cannot keep up"
    return "the error that it was raised from says what the file system has met with"


def _state_text(about: Mapping[str, Any]) -> str:
    size, change = about.get("size"), change_of(about)
    return "" if size is None and not change else f"{size} {change}"


def _read_url(url: str, options: Mapping[str, Any]) -> bytes:
    system, path = filesystem_of(url, options)  # fsspec keeps one for each thread
    data: bytes = system.cat_file(path)
    return data


def _state_of_url(url: str, options: Mapping[str, Any]) -> str:
    system, path = filesystem_of(url, options)
    return _state_text(system.info(path))


def _read(path: str) -> bytes:
    # Without blocking: a named pipe would wait for a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "this is not a regular file", path)
        return file.read()


def _state(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns}"


# -- threads -----------------------------------------------------------------------------------------------------------


class _Threads:
    """Threads for what blocks, started as they are needed.

    They are daemons: a call that never returns, such as one for a file on a dead mount, would otherwise keep the
    interpreter from ending.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._num_calls = 0  # that have not returned; counted on the loop

    async def run(self, func: Callable[..., T], *args: Any) -> T:
        """What ``func(*args)`` returns, in a thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._num_calls >= len(self._threads) < self._max_threads:
            thread = threading.Thread(target=self._work, name="dataflow-files", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._num_calls += 1
        self._calls.put(partial(self._call, loop, future, func, args))
        return await future

    async def close(self) -> None:
        """End the threads; those that do not end are named, and left behind."""
        for _ in self._threads:
            self._calls.put(None)
        end = time.monotonic() + _GRACE
        while any(thread.is_alive() for thread in self._threads):
            if time.monotonic() > end:
                _LOG.warning(
                    "FetchData: a thread that reads a file did not end within %g seconds, and is left behind: a disk "
                    "or a mount does not respond",
                    _GRACE,
                )
                return
            await asyncio.sleep(0.001)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # which holds what was read

    def _call(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]
    ) -> None:
        result: T | None = None
        raised: BaseException | None = None
        try:
            result = func(*args)
        except BaseException as error:
            raised = error
        try:
            loop.call_soon_threadsafe(self._returned, future, result, raised)
        except RuntimeError:  # the loop is closed, and nobody waits
            pass
        finally:
            raised = None  # whose traceback holds this frame

    def _returned(self, future: asyncio.Future[Any], result: Any, raised: BaseException | None) -> None:
        self._num_calls -= 1  # also if it was cancelled: the thread was busy until now
        if future.done():  # cancelled
            return
        if raised is None:
            future.set_result(result)
        elif isinstance(raised, StopIteration):
            future.set_exception(RuntimeError(f"StopIteration was raised: {raised}"))
        else:
            future.set_exception(raised)
