"""Wire format of messages from workers to the consumer.

There are six kinds of message. Token and header are checked before anything is unpickled.
"""

from __future__ import annotations

import enum
import hmac
import secrets
import struct
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["TOKEN_BYTES", "Kind", "Message", "new_token", "pack", "unpack"]

TOKEN_BYTES: Final = 16
_HEADER: Final = struct.Struct("<BIIQI")  # kind, worker, count, nbytes, number of frames
_LENGTH: Final = struct.Struct("<Q")  # bytes of a frame


class Kind(enum.IntEnum):
    """The kind of a message."""

    HELLO = 1  # the worker is connected and about to begin
    DATA = 2  # `count` datapoints
    ENDED = 3  # a pass of the worker's flow was empty; the worker sends nothing more
    ERROR = 4  # an exception, serialized; the worker's last message
    LEFT = 5  # the worker's code called sys.exit; an exception with `count` as exit code; the worker's last message
    REPORT = 6  # an item that was skipped because its function raised, or how many were seen

    __hash__ = int.__hash__  # kinds are keys of tables, and the hash of an Enum is slower


_KINDS: Final = {int(kind): kind for kind in Kind}


@dataclass(slots=True)
class Message:
    """One message of one worker."""

    kind: Kind
    worker: int
    count: int = 0  # datapoints, or an exit code
    nbytes: int = 0  # what the sender counted against its window
    body: Any = ()  # a list of frames of bytes; or, between threads, a tuple of objects

    @property
    def queued(self) -> int:
        """Bytes that the message occupies until it is processed."""
        return sum(map(len, self.body)) if type(self.body) is list and self.kind is Kind.DATA else 0


def new_token() -> bytes:
    """Create the secret of one run; messages without it are rejected."""
    return secrets.token_bytes(TOKEN_BYTES)


def pack(token: bytes, message: Message) -> list[Any]:
    """Pack a message as consecutive buffers: the token, a header with the lengths of the frames, the body."""
    body = [memoryview(frame).cast("B") for frame in message.body]
    head = _HEADER.pack(message.kind, message.worker, message.count, message.nbytes, len(body))
    return [token + head + b"".join([_LENGTH.pack(len(frame)) for frame in body]), *body]


def unpack(token: bytes, num_workers: int, data: bytes | memoryview) -> Message | None:
    """Parse the message in `data`. Return None unless it comes from a worker of this run. Unpickles nothing."""
    view = memoryview(data)
    if not hmac.compare_digest(view[:TOKEN_BYTES], token):
        return None
    # A sender that knows the token is a worker of this run. It sends only output of `pack`, but possibly truncated.
    view = view[TOKEN_BYTES:]
    if len(view) < _HEADER.size:
        return None
    kind, worker, count, nbytes, num_frames = _HEADER.unpack_from(view)
    start = _HEADER.size + num_frames * _LENGTH.size
    if worker >= num_workers or start > len(view) or kind not in _KINDS:
        return None
    frames = []
    for (length,) in _LENGTH.iter_unpack(view[_HEADER.size : start]):
        frames.append(view[start : start + length])
        start += length
    return Message(_KINDS[kind], worker, count, nbytes, frames) if start == len(view) else None
