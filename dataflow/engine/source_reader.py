"""Source reader of a map: reads one pass of its input, or consecutive passes, many datapoints at a time.

Taking a lock costs as much as a step of a user's node, so it is taken once for many steps.

Guarantees:

- A datapoint is encoded before the input takes its next step.
- Only one thread reads at a time.
- A pass begins only when its first datapoint is asked for. An empty pass or an exception ends the reading.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

from dataflow.base import DataFlow
from dataflow.channel.task_queue import PlainEncoder
from dataflow.codec.message_layout import NO_ROOM
from dataflow.seeding import Stream

__all__ = ["SourceReader", "as_one_pass", "one_pass", "passes_from"]


def one_pass(ds: DataFlow, p: int, stream: Stream) -> Iterator[Iterator[Any]]:
    """Pass `p` alone."""
    yield ds._df_run_pass(p, stream)


def as_one_pass(datapoints: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """A pass that has already begun, alone."""
    return iter([datapoints])


def passes_from(ds: DataFlow, p: int, stream: Stream) -> Iterator[Iterator[Any]]:
    """Pass `p`, and all that follow it."""
    return (ds._df_run_pass(q, stream) for q in count(p))


class SourceReader:
    """Passes that are being read.

    It is an iterator that returns itself as long as datapoints may be left, so wrappers that guard the steps of
    iterators guard reading too.
    """

    def __init__(self, passes: Iterator[Iterator[Any]]) -> None:
        self._passes = passes
        self._lock = threading.Lock()
        self._current: Iterator[Any] | None = None  # None between two passes
        self._is_empty = True  # no datapoint of the current pass was read so far
        self._is_over = False

    def __iter__(self) -> SourceReader:
        return self

    def __next__(self) -> SourceReader:
        if self._is_over:
            raise StopIteration
        return self

    def read(self, max_count: int, encode_plain: PlainEncoder | None, plain: list[Any]) -> Any:
        """Read up to `max_count` datapoints, and append them to `plain`, encoded by `encode_plain`.

        Returns:
            A datapoint that `encode_plain` does not encode, or any datapoint if it is None; otherwise `NO_ROOM`.
        """
        with self._lock:
            if self._is_over:  # another thread has read to the end
                return NO_ROOM
            return self._read(max_count, encode_plain, plain)

    # A function of its own: in CPython 3.11, what a tracer raises at a `try` within a `with` leaves the `with` unended.
    def _read(self, max_count: int, encode_plain: PlainEncoder | None, plain: list[Any]) -> Any:
        try:
            current = self._current = self._current or next(self._passes, None)
            if current is None:
                self._is_over = True
                return NO_ROOM
            other = next(current, NO_ROOM) if encode_plain is None else encode_plain(islice(current, max_count), plain)
        except BaseException:
            self._is_over = True
            raise
        if other is not NO_ROOM or plain:
            self._is_empty = False
        if other is NO_ROOM and (encode_plain is None or len(plain) < max_count):
            self._current, self._is_over, self._is_empty = None, self._is_empty, True
        return other
