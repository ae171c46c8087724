"""Messages from workers to the consumer: their wire format, and the interface of channels, which carry them.

A message is a token, a header and a body of frames. The header has everything that is not a datapoint: the kind of the
message, its worker, the task that its results belong to. Token and header are checked before anything is unpickled.

    token (16 bytes) | kind | worker | count | nbytes | task | pace | number of frames | their lengths | frames

The consumer creates a channel. A worker receives a `Port`, a description, and opens its own end; the consumer opens its
end after the workers were started, so that no child inherits an open end in use. Channels are in `local` and `zeromq`.
"""

from __future__ import annotations

import enum
import hmac
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dataflow.system.descriptors import Descriptor

__all__ = [
    "DATA_KINDS",
    "NO_TASK",
    "RESULT_KINDS",
    "TOKEN_BYTES",
    "Channel",
    "ConsumerGone",
    "Kind",
    "Message",
    "Port",
    "Receiver",
    "Sender",
    "new_token",
    "pack",
    "unpack",
]


# -- Wire format -------------------------------------------------------------------------------------------------------


TOKEN_BYTES: Final = 16
_HEADER: Final = struct.Struct("<BIIQqdI")  # kind, worker, count, nbytes, task, pace, number of frames
_LENGTH: Final = struct.Struct("<Q")  # bytes of a frame


class Kind(enum.IntEnum):
    """The kind of a message."""

    HELLO = 1  # the worker is connected and about to begin
    DATA = 2  # `count` datapoints
    ENDED = 3  # a pass of the worker's flow was empty; the worker sends nothing more
    ERROR = 4  # an exception, serialized; the worker's last message
    LEFT = 5  # the worker's code called sys.exit; an exception with `count` as exit code; the worker's last message
    REPORT = 6  # an item that was skipped because its function raised, or how many were seen
    BATCH = 7  # one datapoint: all results of the task, stacked
    TASK_FAILED = 8  # an exception, serialized, in place of the next result; the rest of the task is not done
    PASS_ENDED = 9  # the task was a pass of unknown length, and is complete
    LATE = 10  # the worker spends too long on a datapoint, and goes on; from one that watches itself

    __hash__ = int.__hash__  # kinds are keys of tables, and the hash of an Enum is slower


_KINDS: Final = {int(kind): kind for kind in Kind}

DATA_KINDS: Final = (Kind.DATA, Kind.BATCH)  # tuples: to hash a member of an enumeration takes longer
"""Messages with datapoints, which count against the window."""

RESULT_KINDS: Final = (*DATA_KINDS, Kind.TASK_FAILED, Kind.PASS_ENDED)
"""Messages that a schedule receives."""

NO_TASK: Final = -1


@dataclass(slots=True)
class Message:
    """One message of one worker.

    Attributes:
        kind: What it says.
        worker: Index of the worker.
        count: Number of datapoints, or an exit code.
        nbytes: What the sender counted against its window.
        body: A list of frames of bytes; or, between threads, a tuple of objects.
        task: Number of the task that the results belong to.
        pace: Seconds per datapoint of this worker's last task, in the first message of a task; of a command pool, the
            seconds that the command took; otherwise 0.
    """

    kind: Kind
    worker: int
    count: int = 0
    nbytes: int = 0
    body: Any = ()
    task: int = NO_TASK
    pace: float = 0.0

    @property
    def queued(self) -> int:
        """Bytes that the message occupies until it is processed."""
        return sum(map(len, self.body)) if type(self.body) is list and self.kind in DATA_KINDS else 0


def new_token() -> bytes:
    """Create the secret of one run; messages without it are rejected."""
    return secrets.token_bytes(TOKEN_BYTES)


def pack(token: bytes, message: Message) -> list[Any]:
    """Pack a message as consecutive buffers: the token, a header with the lengths of the frames, the body."""
    body = [memoryview(frame).cast("B") for frame in message.body]
    head = _HEADER.pack(
        message.kind, message.worker, message.count, message.nbytes, message.task, message.pace, len(body)
    )
    return [token + head + b"".join([_LENGTH.pack(len(frame)) for frame in body]), *body]


def unpack(token: bytes, num_workers: int, data: bytes | memoryview) -> Message | None:
    """Parse the message in `data`. Return None unless it comes from a worker of this run. Unpickles nothing."""
    view = memoryview(data)
    # Takes the same time wherever the first wrong byte is, so a token cannot be guessed byte by byte.
    if not hmac.compare_digest(view[:TOKEN_BYTES], token):
        return None
    # A sender that knows the token is a worker of this run. It sends only output of `pack`, but possibly truncated.
    view = view[TOKEN_BYTES:]
    if len(view) < _HEADER.size:
        return None
    kind, worker, count, nbytes, task, pace, num_frames = _HEADER.unpack_from(view)
    start = _HEADER.size + num_frames * _LENGTH.size
    if worker >= num_workers or start > len(view) or kind not in _KINDS:
        return None
    frames = []
    for (length,) in _LENGTH.iter_unpack(view[_HEADER.size : start]):
        frames.append(view[start : start + length])
        start += length
    return Message(_KINDS[kind], worker, count, nbytes, frames, task, pace) if start == len(view) else None


# -- Interface of channels ---------------------------------------------------------------------------------------------


class ConsumerGone(Exception):
    """The consumer no longer reads messages; the worker exits silently."""


class Sender(Protocol):
    """A worker's end. One thread at a time."""

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        """Send a message; may wait for the consumer.

        Args:
            message: The message.
            begun: Gets an item as soon as a part of the message has left. If this call raises after that, as a signal
                handler may, the message counts as sent: its rest leaves before the next message. If it raises before
                that, nothing of the message is ever sent.

        Raises:
            ConsumerGone: Nobody reads the messages any more.
        """

    def close(self, flush: float) -> None:
        """Close the end once all messages have left this process, or after `flush` seconds."""


class Port(Protocol):
    """Description of a worker's end; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return ()

    def open(self) -> Sender:
        """Open the end, in the worker."""

    def close_in_parent(self) -> None:
        """Close what only the worker may hold. Called once the worker was started."""
        return


class Receiver(Protocol):
    """The consumer's end. One thread at a time."""

    may_arrive_late: bool
    """Whether a message can arrive after the end of its worker was seen; otherwise all are there to be received."""

    def receive_nowait(self) -> Message | None:
        """Return the next message that has arrived, or None. An interrupt in this method may lose a message."""

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        """Wait until a message arrives.

        Returns False after `timeout` seconds, or if only a watched descriptor is readable. Consumes no message, so an
        interrupt in this method is harmless.
        """

    def port_of_successor(self, worker: int) -> Port:
        """Return the description for the successor of `worker`.

        `worker` has ended, and all its messages were received.
        """

    def stop(self) -> None:
        """Release workers that are blocked in `send`. Nothing is received after this."""
        return

    def close(self) -> None:
        """Close the end and remove its files. Idempotent."""


class Channel(Protocol):
    """The consumer's handle of a channel."""

    def port(self, worker: int) -> Port:
        """The description for one worker."""

    def open_receiver(self) -> Receiver:
        """Open the consumer's end. Called after the workers were started."""

    def close(self) -> None:
        """Close what was never opened. Idempotent."""
