"""Worker info: in which worker, of how many, code runs, at every level of nesting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["WorkerInfo", "entering", "is_first_worker", "place_words", "worker_info", "worker_info_of"]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker in which the calling code runs.

    Attributes:
        index: Which worker, from 0, at the innermost level.
        count: How many workers there are at that level.
        path: Pairs (index, count) of every level, the outermost first.
    """

    index: int
    count: int
    path: tuple[tuple[int, int], ...]


_here: ContextVar[WorkerInfo | None] = ContextVar("worker_info", default=None)


def worker_info() -> WorkerInfo | None:
    """The worker in which this code runs; None in the main process.

    Example:
        >>> worker_info() is None
        True
        >>> df = MapData(DataFromList([[0]]), lambda dp: [worker_info().index, worker_info().count])
        >>> with MultiProcessRunnerZMQ(df, 1) as runner:
        ...     list(runner)
        [[0, 1]]
    """
    return _here.get()


def worker_info_of(index: int, count: int) -> WorkerInfo:
    """The info of worker `index` of `count` that is started from here."""
    here = _here.get()
    return WorkerInfo(index, count, (*(() if here is None else here.path), (index, count)))


def is_first_worker() -> bool:
    """Whether to log here what happens in every worker: true in the main process and in the first worker."""
    return not any(place_words()[::2])


def place_words() -> tuple[int, ...]:
    """Return the indexes and counts of the workers around the caller, outermost first; nothing outside of workers."""
    here = _here.get()
    return () if here is None else tuple(word for pair in here.path for word in pair)


@contextmanager
def entering(info: WorkerInfo) -> Iterator[None]:
    """Inside the block, in this thread, `worker_info` returns `info`."""
    token = _here.set(info)
    try:
        yield
    finally:
        _here.reset(token)
