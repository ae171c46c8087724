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
from itertools import islice
from typing import Any, Final

from dataflow.transport.channel import Sender
from dataflow.transport.codec import Encoder
from dataflow.transport.credit import Allowance
from dataflow.transport.messages import Kind, Message
from dataflow.transport.parcels import NO_ROOM

__all__ = ["Outbox", "Stopped"]

_FLUSH_INTERVAL: Final = 0.008
_SHORT: Final = 0.0005  # a message that fills up faster may be longer
_LONG: Final = 0.002
_MOST: Final = 4096
_NAP: Final = 50e-6
_LONGEST_NAP: Final = 2e-3


class Stopped(Exception):
    """The consumer wants nothing more."""


class Outbox:
    """One worker's way to the consumer."""

    def __init__(self, worker: int, sender: Sender, encoder: Encoder, allowance: Allowance) -> None:
        self._worker = worker
        self._sender = sender
        self._encoder = encoder
        self._allowance = allowance
        self._collected: deque[Any] = deque()  # encoded; the worker's thread appends, whoever sends takes
        self._target = 1  # datapoints per message, at present
        self._sending = threading.Lock()
        self._flusher: threading.Thread | None = None
        self._closed = threading.Event()

    def hello(self) -> None:
        """The worker is connected."""
        self._send(Message(Kind.HELLO, self._worker))

    def rehearse(self) -> None:
        """Let the encoder see what a datapoint looks like on this path, with nobody listening."""
        nobody = Outbox(self._worker, _Nobody(), self._encoder, self._allowance.without_end())
        self._encoder.calibrate(nobody.put_all)
        nobody.close(0)

    def put_all(self, datapoints: Iterable[Any]) -> int:
        """Put the datapoints of one pass, and say how many there were.

        Raises:
            Stopped: The consumer wants nothing more.
            TypeError: A datapoint cannot be encoded; a note names its position and component.
        """
        steps = iter(datapoints)
        encoder = self._encoder
        encode, append = encoder.encode, self._collected.append
        total = 0
        while True:
            room = self._allowance.wait_for_room()
            if room is None:
                raise Stopped
            began = time.perf_counter()
            most, least_bytes, most_bytes = room.count, min(room.nbytes, room.most_bytes), room.most_bytes
            count = nbytes = 0
            for dp in islice(steps, self._target):
                try:
                    item = encode(dp)
                    if item is NO_ROOM:
                        # What is sent before the wait is counted before: whoever waits compares the counts.
                        self._allowance.spend(count, nbytes)
                        total += count
                        count = nbytes = most = least_bytes = 0
                        item = self._encode_when_there_is_room(dp)
                except Stopped:
                    raise
                except Exception as error:
                    _explain(error, dp, total + count, encode)
                    raise
                append(item)
                count += 1
                nbytes += encoder.nbytes
                if nbytes >= least_bytes and (count >= most or nbytes >= most_bytes):
                    break
            if not count:
                return total
            total += count
            self._allowance.spend(count, nbytes)
            self.flush()
            self._adapt(count, time.perf_counter() - began)

    def ended(self) -> None:
        """A pass had nothing in it."""
        self.flush()
        self._send(Message(Kind.ENDED, self._worker))

    def failed(self, error: BaseException, note: str) -> None:
        """The flow raised; what it made before goes first."""
        self.flush()
        self._send(Message(Kind.ERROR, self._worker, body=self._encoder.encode_failure(error, note)))

    def left(self, error: SystemExit, note: str, exitcode: int) -> None:
        """The flow called sys.exit; what it made before goes first."""
        self.flush()
        self._send(Message(Kind.LEFT, self._worker, count=exitcode, body=self._encoder.encode_failure(error, note)))

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

    def _adapt(self, count: int, took: float) -> None:
        if took < _SHORT:
            if count == self._target:
                self._target = min(2 * self._target, _MOST)
        elif took > _LONG:
            self._target = max(1, count // 2)
        if self._flusher is None and (self._target > 1 or self._encoder.keeps_memory):
            self._flusher = threading.Thread(target=self._keep_flushing, name="dataflow-flusher", daemon=True)
            self._flusher.start()

    def _encode_when_there_is_room(self, dp: Any) -> Any:
        """The arena is full. While the consumer has anything of ours, it will give blocks back: wait.

        Once it has handed out all and blocks are still missing, it keeps them. Then the arrays travel in the message,
        of which there is then one for each worker at a time: what is queued stays bounded.
        """
        self.flush()
        nap = _NAP
        while not self._allowance.stopped:
            hoarding = self._allowance.nothing_left()
            item = self._encoder.encode(dp)
            if item is not NO_ROOM:
                return item
            if hoarding:
                return self._encoder.encode_inline(dp)
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        raise Stopped

    def _keep_flushing(self) -> None:
        while not self._closed.wait(_FLUSH_INTERVAL):
            try:
                if self._collected:
                    self.flush()
                self._encoder.tidy()
            except Exception:
                continue  # if it lasts, the worker's own thread meets it at its next message

    def _send_collected(self, count: int) -> None:
        """Send the first `count` collected datapoints; the worker's thread may append meanwhile."""
        if count:
            taken = [self._collected.popleft() for _ in range(count)]
            try:
                body, nbytes = self._encoder.join(taken)
                message = Message(Kind.DATA, self._worker, count, nbytes, body)
                self._sender.send(message)
                self._allowance.queue(message.queued)
            except BaseException:
                self._collected.extendleft(reversed(taken))  # nothing may be missing in front of what comes next
                raise

    def _send(self, message: Message) -> None:
        with self._sending:
            self._sender.send(message)


class _Nobody:
    """A sender that throws everything away."""

    def send(self, message: Message) -> None:
        pass

    def close(self, flush: float) -> None:
        pass


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
