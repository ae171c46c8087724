"""What workers tell the consumer: five kinds of message, with a header that is checked before anything is unpickled."""

from __future__ import annotations

import enum
import hmac
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["TOKEN_BYTES", "Kind", "Message", "new_token", "pack", "unpack"]

TOKEN_BYTES: Final = 16
_HEADER: Final = struct.Struct(f"<{TOKEN_BYTES}sBIIQ")


class Kind(enum.IntEnum):
    """What a message means."""

    HELLO = 1  # the worker is connected and about to begin
    DATA = 2  # `count` datapoints
    ENDED = 3  # a pass of the worker's flow had nothing in it: it will send nothing more
    ERROR = 4  # an exception, as data; the worker's last message
    LEFT = 5  # the worker's code called sys.exit, told as an exception; `count` is the exit code; its last message


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
    """The frames of a message: a header, then its body."""
    return [_HEADER.pack(token, message.kind, message.worker, message.count, message.nbytes), *message.body]


def unpack(token: bytes, num_workers: int, frames: Sequence[Any]) -> Message | None:
    """The message in `frames`; None where it does not come from a worker of this run. Unpickles nothing."""
    header = bytes(frames[0]) if frames else b""
    if len(header) != _HEADER.size or not hmac.compare_digest(header[:TOKEN_BYTES], token):
        return None
    # Who knows the token is one of ours, and sends nothing but what `pack` makes.
    _, kind, worker, count, nbytes = _HEADER.unpack(header)
    if worker >= num_workers:
        return None
    return Message(Kind(kind), worker, count, nbytes, frames[1:])
