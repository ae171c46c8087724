"""Queue source: datapoints that other code puts into a queue."""

from __future__ import annotations

import queue as standard_queue
import time
from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeVar, final

from dataflow.errors import TimeoutError
from dataflow.protocol.base import T_co
from dataflow.protocol.parameters import seconds
from dataflow.protocol.pauses import Pause, pausing
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import require_continuing, state_of
from dataflow.sources.source import Source
from dataflow.system.session import Session, terminated

__all__ = ["DataFromQueue"]

_SLICE = 0.1  # seconds between checks, while waiting, whether the flow was closed


@final
class _Unset:
    """No sentinel: every value in the queue is a datapoint."""

    def __reduce__(self) -> str:
        return "_UNSET"


_UNSET: Final = _Unset()


V_co = TypeVar("V_co", covariant=True)


class Queue(Protocol[V_co]):
    """What `DataFromQueue` reads."""

    def get(self, *, timeout: float) -> V_co: ...


class DataFromQueue(Source[T_co]):
    """The datapoints of a queue, endlessly or until a sentinel arrives.

    A pass ends with the sentinel; the next pass continues after it. Several iterations share the queue: each datapoint
    goes to one of them.

    Args:
        queue: A `queue.Queue`, a `multiprocessing.Queue`, or anything with their ``get(timeout=…)``.
        sentinel: The value that ends a pass. A value from another process is a copy, so choose one that equals its
            copies: None or a string, not ``object()``.
        timeout: Seconds to wait for a datapoint; None waits as long as the flow is open.

    Raises:
        TimeoutError: Nothing arrived for `timeout` seconds. The same iterator waits again.
        DataFlowTerminated: The flow was closed, possibly by another thread, while a step waited for a datapoint.
        NotReproducible: A loop was left early after a node above had read ahead, and what it had read is lost.

    Example:
        >>> import queue
        >>> q = queue.Queue()
        >>> for value in ([1], [2], None):
        ...     q.put(value)
        >>> list(DataFromQueue(q, sentinel=None))
        [[1], [2]]
    """

    _df_reproducible = False

    def __init__(self, queue: Queue[T_co], *, sentinel: Any = _UNSET, timeout: float | None = None) -> None:
        if not callable(getattr(queue, "get", None)) or isinstance(queue, dict):
            raise TypeError(
                f"DataFromQueue expects a queue, got {type(queue).__name__}: pass a queue.Queue, a "
                "multiprocessing.Queue, or anything with their get(timeout=…)"
            )
        if timeout is not None:
            timeout = seconds(self, "timeout", timeout, cure="; None waits as long as the flow is open")
        self.queue: Queue[Any] = queue
        self.sentinel = sentinel
        self.timeout = timeout

    @property
    def _df_endless(self) -> bool:
        return self.sentinel is _UNSET

    @property
    def _df_waits(self) -> bool:
        return self.timeout is not None

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        require_continuing(stream, type(self).__name__)
        return pausing(self._receive(state_of(self).session), self._df_waits)

    def _receive(self, session: Session) -> Iterator[Any]:
        while True:
            deadline = None if self.timeout is None else time.monotonic() + self.timeout
            while True:
                wait = _SLICE if deadline is None else min(_SLICE, max(0.0, deadline - time.monotonic()))
                try:
                    dp = self.queue.get(timeout=wait)
                    break
                except standard_queue.Empty:
                    if session.closed:
                        raise terminated(type(self).__name__) from None
                    if deadline is not None and time.monotonic() >= deadline:
                        text = (
                            f"DataFromQueue received no datapoint for {self.timeout} seconds. Check that its producer "
                            "is running, or raise timeout"
                        )
                        dp = Pause(TimeoutError(text))
                        break
            if type(dp) is not Pause and self._ends(dp):
                return
            yield dp

    def _ends(self, dp: Any) -> bool:
        if dp is self.sentinel:
            return True
        if type(dp) is not type(self.sentinel):
            return False
        try:
            return bool(dp == self.sentinel)
        except ValueError:  # arrays cannot be converted to bool, and are not sentinels
            return False
