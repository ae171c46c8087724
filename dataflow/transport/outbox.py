"""Where a worker puts what it makes: encoded at once, collected in messages, bounded by its window.

Guarantees:

- A datapoint is encoded before the flow takes its next step.
- The worker never runs ahead of the consumer by more than its window, plus the datapoint in its hands.
- A datapoint that was put never waits for a later one for more than `_FLUSH_INTERVAL` (while the flow gives other
  threads a chance to run): the flusher thread sends what has been collected.
- Messages leave in the order in which their datapoints were put: both threads take them from one end of one deque,
  under one lock, and only the worker's own thread puts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dataflow.transport.channel import Sender
from dataflow.transport.codec import Codec
from dataflow.transport.credit import Allowance
from dataflow.transport.messages import Kind, Message

__all__ = ["Outbox", "Stopped"]

_FLUSH_INTERVAL: Final = 0.008
_SHORT: Final = 0.0005  # a message that fills up faster may be longer
_LONG: Final = 0.002


class Stopped(Exception):
    """The consumer wants nothing more."""


class Outbox:
    """One worker's way to the consumer."""

    def __init__(self, worker: int, sender: Sender, codec: Codec, allowance: Allowance) -> None:
        self._worker = worker
        self._sender = sender
        self._codec = codec
        self._allowance = allowance
        self._collected: deque[Any] = deque()
        self._put_bytes = 0  # written by the worker's thread alone
        self._sent_bytes = 0  # written under `_sending`
        self._target = 1  # datapoints per message, at present
        self._began = 0.0  # when the first collected datapoint was put
        self._sending = threading.Lock()
        self._flusher: threading.Thread | None = None
        self._closed = threading.Event()

    def hello(self) -> None:
        """The worker is connected."""
        self._send(Message(Kind.HELLO, self._worker))

    def put_all(self, datapoints: Iterable[Any]) -> int:
        """Put the datapoints of one pass, and say how many there were.

        Raises:
            Stopped: The consumer wants nothing more.
            TypeError: A datapoint cannot be encoded; a note names its position and component.
        """
        count = 0
        encode, nbytes_of = self._codec.encode, self._codec.nbytes
        allowance, collected, chunk_bytes = self._allowance, self._collected, self._allowance.chunk_bytes
        for dp in datapoints:
            try:
                encoded = encode(dp)
            except Exception as error:
                _explain(error, dp, count, encode)
                raise
            if allowance.used_up:
                self.flush()
                if not allowance.wait_for_credit():
                    raise Stopped
            elif allowance.stopped:
                raise Stopped
            nbytes = nbytes_of(encoded)
            if not collected:
                self._began = time.perf_counter()
            self._put_bytes += nbytes
            collected.append((encoded, nbytes))
            allowance.spend(1, nbytes)
            count += 1
            if len(collected) >= self._target or self._put_bytes - self._sent_bytes >= chunk_bytes:
                self._flush_full()
        return count

    def ended(self) -> None:
        """A pass had nothing in it."""
        self.flush()
        self._send(Message(Kind.ENDED, self._worker))

    def failed(self, error: BaseException, note: str) -> None:
        """The flow raised; what it made before goes first."""
        self.flush()
        self._send(Message(Kind.ERROR, self._worker, body=self._codec.encode_failure(error, note)))

    def left(self, error: SystemExit, note: str, exitcode: int) -> None:
        """The flow called sys.exit; what it made before goes first."""
        self.flush()
        self._send(Message(Kind.LEFT, self._worker, count=exitcode, body=self._codec.encode_failure(error, note)))

    def flush(self) -> None:
        """Send what is collected."""
        with self._sending:
            self._send_collected(len(self._collected))

    def close(self, flush: float) -> None:
        """Close the sender, after what was sent has left, or after `flush` seconds; none if the consumer stopped us."""
        self._closed.set()
        if self._flusher is not None:
            self._flusher.join()
        self._sender.close(0.0 if self._allowance.stopped else flush)

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _flush_full(self) -> None:
        took = time.perf_counter() - self._began
        self.flush()
        if took < _SHORT:
            self._target = min(2 * self._target, self._allowance.chunk_count)
        elif took > _LONG:
            self._target = max(1, self._target // 2)
        if self._target > 1 and self._flusher is None:
            self._flusher = threading.Thread(target=self._keep_flushing, name="dataflow-flusher", daemon=True)
            self._flusher.start()

    def _keep_flushing(self) -> None:
        while not self._closed.wait(_FLUSH_INTERVAL):
            if self._collected:
                try:
                    self.flush()
                except Exception:
                    continue  # if it lasts, the worker's own thread meets it at its next message

    def _send_collected(self, count: int) -> None:
        """Send the first `count` collected datapoints; the worker's thread may append meanwhile."""
        if count:
            taken = [self._collected.popleft() for _ in range(count)]
            nbytes = sum(n for _, n in taken)
            try:
                body = self._codec.join([encoded for encoded, _ in taken])
                self._sender.send(Message(Kind.DATA, self._worker, count, nbytes, body))
            except BaseException:
                self._collected.extendleft(reversed(taken))  # nothing may be missing in front of what comes next
                raise
            self._sent_bytes += nbytes

    def _send(self, message: Message) -> None:
        with self._sending:
            self._sender.send(message)


def _explain(error: Exception, dp: Any, position: int, encode: Any) -> None:
    """Note which component of which datapoint cannot travel."""
    parts: Sequence[tuple[Any, Any]] = ()
    if isinstance(dp, dict):
        parts = list(dp.items())
    elif isinstance(dp, list | tuple):
        parts = list(enumerate(dp))
    guilty = ""
    for key, value in parts:
        try:
            encode(value)
        except Exception:
            guilty = f", component {key!r} of type {type(value).__name__}"
            break
    error.add_note(
        f"datapoint {position} of the pass{guilty} cannot be sent to another process. Yield arrays, numbers, text and "
        "containers of them, or use MultiThreadRunner, which sends nothing"
    )
