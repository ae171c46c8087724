"""What workers tell the consumer: six kinds of message. Token and header are checked before anything is unpickled."""

from __future__ import annotations

import enum
import hmac
import secrets
import struct
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["TOKEN_BYTES", "Kind", "Message", "new_token", "pack", "unpack"]

TOKEN_BYTES: Final = 16
_HEADER: Final = struct.Struct("<BIIQI")  # kind, worker, count, nbytes, how many frames
_LENGTH: Final = struct.Struct("<Q")  # bytes of a frame


class Kind(enum.IntEnum):
    """What a message means."""

    HELLO = 1  # the worker is connected and about to begin
    DATA = 2  # `count` datapoints
    ENDED = 3  # a pass of the worker's flow had nothing in it: it will send nothing more
    ERROR = 4  # an exception, as data; the worker's last message
    LEFT = 5  # the worker's code called sys.exit, told as an exception; `count` is the exit code; its last message
    REPORT = 6  # an item that was skipped because its function raised, or how many were seen

    __hash__ = int.__hash__  # what it stands for in tables; an enumeration's own is slower


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
        """Bytes that the message holds until it is heard."""
        return sum(map(len, self.body)) if type(self.body) is list and self.kind is Kind.DATA else 0


def new_token() -> bytes:
    """The secret of one run: who does not know it is not heard."""
    return secrets.token_bytes(TOKEN_BYTES)


def pack(token: bytes, message: Message) -> list[Any]:
    """A message as buffers, one after the other: the token, a header with the lengths of what follows, the body."""
    body = [memoryview(frame).cast("B") for frame in message.body]
    head = _HEADER.pack(message.kind, message.worker, message.count, message.nbytes, len(body))
    return [token + head + b"".join([_LENGTH.pack(len(frame)) for frame in body]), *body]


def unpack(token: bytes, num_workers: int, data: bytes | memoryview) -> Message | None:
    """The message in `data`; None where it does not come from a worker of this run. Unpickles nothing."""
    view = memoryview(data)
    if not hmac.compare_digest(view[:TOKEN_BYTES], token):
        return None
    # Who knows the token is one of ours, and sends nothing but what `pack` makes, if not always all of it.
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
