"""Messages between sender and receiver: eleven kinds, with a header that is checked before anything else.

    sender                      receiver
      │ ◄──────── CALL ─────────── │   only if the sender is bound: the connecting side starts
      │ ───────── HELLO ─────────► │   name and heartbeat of the sender; repeated until WELCOME
      │ ◄──── WELCOME or WAIT ──── │   the run, and how far it may run ahead; or: not in this pass
      │ ───────── BEAT ──────────► │   heartbeat, with counters and the number of datapoints sent; regularly
      │ ───────── DATA ──────────► │   datapoints, and the number of the first
      │ ◄──────── ACK ──────────── │   number of datapoints returned so far
      │ ───── END or FAILED ─────► │   number of all datapoints sent, and counters; or: the flow has raised
      │ ◄──────── DONE ─────────── │   the count is right
      │ ◄──────── BYE ──────────── │   at any time: the receiver is finished, and why

Nothing here is pickled, and nothing that arrives is trusted: `parse` returns None for invalid messages.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

__all__ = [
    "ID_BYTES",
    "NO_ID",
    "MIN_HEARTBEAT",
    "MAX_HEARTBEAT",
    "ORDERLY",
    "Hello",
    "PeerMessageKind",
    "PeerMessage",
    "SendLimits",
    "pack",
    "parse",
    "readable",
]

ID_BYTES: Final = 16
ORDERLY: Final = 1
"""Number of a BYE that is not a failure: the receiver was closed."""

MIN_HEARTBEAT: Final = 0.05
MAX_HEARTBEAT: Final = 600.0
"""Heartbeat limits in seconds: the shortest that can be served, and the longest that is worth waiting for."""

NO_ID: Final = bytes(ID_BYTES)
_MAGIC: Final = b"DFR1"
_HEADER: Final = struct.Struct(f"<4sB{ID_BYTES}s{ID_BYTES}sQI")
_MAX_BODY: Final = 4096  # bytes of the body of a HELLO, WELCOME or BYE
_MAX_TEXT: Final = 1000


class PeerMessageKind(enum.IntEnum):
    """Kind of a peer message."""

    CALL = 1
    HELLO = 2
    WELCOME = 3
    WAIT = 4
    BEAT = 5
    DATA = 6
    ACK = 7
    END = 8
    DONE = 9
    FAILED = 10
    BYE = 11


@dataclass(slots=True)
class PeerMessage:
    """One message, in either direction.

    Attributes:
        kind: Its kind.
        run: Id of the receiver's run, 16 bytes; zeros if the writer does not know it.
        sender: Id of the sender of datapoints, 16 bytes; zeros if the writer does not know it.
        number: DATA: datapoints sent before. BEAT, END, FAILED: datapoints sent. ACK: datapoints returned.
        count: DATA: datapoints in this message.
        body: Frames.
    """

    kind: PeerMessageKind
    run: bytes = NO_ID
    sender: bytes = NO_ID
    number: int = 0
    count: int = 0
    body: Sequence[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of a FAILED or BYE."""
        return readable(bytes(self.body[0][:_MAX_BODY]).decode("utf-8", "replace")) if self.body else ""


def pack(peer_message: PeerMessage) -> list[Any]:
    """Return the message as frames."""
    head = _HEADER.pack(
        _MAGIC, peer_message.kind, peer_message.run, peer_message.sender, peer_message.number, peer_message.count
    )
    return [head, *peer_message.body]


def parse(frames: Sequence[Any]) -> PeerMessage | None:
    """Return the message in these frames, which are buffers; None if it is invalid. Reads only the header."""
    if not frames or len(frames[0]) != _HEADER.size:
        return None
    magic, kind, run, sender, number, count = _HEADER.unpack(frames[0])
    if magic != _MAGIC or not PeerMessageKind.CALL <= kind <= PeerMessageKind.BYE:
        return None
    return PeerMessage(PeerMessageKind(kind), run, sender, number, count, frames[1:])


class Hello(NamedTuple):
    """How a sender introduces itself: the body of a HELLO."""

    name: str  # host and process, for messages
    source: str  # identity of the sender: one source has one place in a pass, and its next call is its next pass
    heartbeat: float  # seconds between heartbeats
    announced: int | None  # datapoints of its pass; None if it cannot know

    def pack(self) -> bytes:
        """Return the body of a message."""
        return bytes(msgpack.packb(self))

    @classmethod
    def parse(cls, body: Sequence[Any]) -> Hello | None:
        """Return the content of a HELLO; None if it is invalid."""
        match _unpack(body):
            case [str(name), str(source), float(heartbeat), None | int() as announced] if (
                MIN_HEARTBEAT <= heartbeat <= MAX_HEARTBEAT
            ):
                return cls(readable(name), source, heartbeat, announced)
        return None


class SendLimits(NamedTuple):
    """How far a sender may run ahead, as one side wants it."""

    hwm: int  # datapoints; 0 if the user gave none
    hwm_bytes: int  # bytes, in any case; also the largest datapoint

    def pack(self) -> bytes:
        """Return the body of a message."""
        return bytes(msgpack.packb(self))

    @classmethod
    def parse(cls, body: Sequence[Any]) -> SendLimits | None:
        """Return the content of a WELCOME; None if it is invalid."""
        match _unpack(body):
            case [int(hwm), int(hwm_bytes)]:
                return cls(hwm, hwm_bytes)
        return None


def readable(text: str) -> str:
    """Return text from a peer, made safe for a message: without control characters, and shortened."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_TEXT])


def _unpack(body: Sequence[Any]) -> Any:
    if len(body) != 1 or len(body[0]) > _MAX_BODY:
        return None
    try:
        return msgpack.unpackb(body[0])
    except Exception:  # the bytes are untrusted
        return None
