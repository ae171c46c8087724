"""What sender and receiver tell each other: eleven kinds of letter, with a header that is checked before anything else.

    sender                      receiver
      │ ◄──────── CALL ─────────── │   only where the sender is bound: somebody has to begin
      │ ───────── HELLO ─────────► │   who it is; again and again until it is welcomed
      │ ◄──── WELCOME or WAIT ──── │   the run, and how far it may run ahead; or: not in this pass
      │ ───────── BEAT ──────────► │   it lives, and so much was sent; at once, and then regularly
      │ ───────── DATA ──────────► │   datapoints, and the number of the first
      │ ◄──────── ACK ──────────── │   all that was taken so far
      │ ───── END or FAILED ─────► │   so much was sent in all; or: the flow has raised
      │ ◄──────── DONE ─────────── │   the count is right
      │ ◄──────── BYE ──────────── │   at any time: the receiver wants nothing more, and why

Nothing here is pickled, and nothing that arrives is trusted: `parse` gives None for what is no letter.
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
    "MIN_BEAT",
    "MAX_BEAT",
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
"""The number of a BYE that is no failure: the receiver was closed."""

MIN_BEAT: Final = 0.05
MAX_BEAT: Final = 600.0
"""Seconds from one sign of life to the next: what can be served, and what can be waited for."""

NOBODY: Final = bytes(ID_BYTES)
_MAGIC: Final = b"DFR1"
_HEADER: Final = struct.Struct(f"<4sB{ID_BYTES}s{ID_BYTES}sQI")
_MAX_INFO: Final = 4096  # bytes of what stands in a HELLO, WELCOME or BYE
_MAX_TEXT: Final = 1000


class PeerMessageKind(enum.IntEnum):
    """What a letter means."""

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
    """One letter, in either direction.

    Attributes:
        kind: What it means.
        run: The receiver's run, 16 bytes; zeros where the writer does not know it.
        sender: Who sends datapoints, 16 bytes; zeros where the writer does not know it.
        number: DATA: how many datapoints were sent before. BEAT, END, FAILED: how many were sent. ACK: how many taken.
        count: DATA: how many datapoints it holds.
        body: Frames.
    """

    kind: PeerMessageKind
    run: bytes = NOBODY
    sender: bytes = NOBODY
    number: int = 0
    count: int = 0
    body: Sequence[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What a FAILED or BYE says."""
        return readable(bytes(self.body[0][:_MAX_INFO]).decode("utf-8", "replace")) if self.body else ""


def pack(peer_message: PeerMessage) -> list[Any]:
    """A letter as frames."""
    head = _HEADER.pack(
        _MAGIC, peer_message.kind, peer_message.run, peer_message.sender, peer_message.number, peer_message.count
    )
    return [head, *peer_message.body]


def parse(frames: Sequence[Any]) -> PeerMessage | None:
    """The letter in these frames, which are buffers; None if there is none. Looks at nothing behind the header."""
    if not frames or len(frames[0]) != _HEADER.size:
        return None
    magic, kind, run, sender, number, count = _HEADER.unpack(frames[0])
    if magic != _MAGIC or not PeerMessageKind.CALL <= kind <= PeerMessageKind.BYE:
        return None
    return PeerMessage(PeerMessageKind(kind), run, sender, number, count, frames[1:])


class Hello(NamedTuple):
    """How a sender introduces itself."""

    name: str  # host and process, for messages
    source: str  # who sends: one source has one seat in a pass, and its next call is its next pass
    heartbeat: float  # seconds from one sign of life to the next
    announced: int | None  # datapoints of its pass; None where it cannot know

    def pack(self) -> bytes:
        """As the body of a letter."""
        return _packed(list(self))

    @classmethod
    def parse(cls, body: Sequence[Any]) -> Hello | None:
        """What the body of a HELLO says; None if it says nothing that makes sense."""
        match _unpacked(body):
            case [str(name), str(source), float(heartbeat), None | int() as announced] if (
                MIN_BEAT <= heartbeat <= MAX_BEAT
            ):
                return cls(readable(name), source, heartbeat, announced)
        return None


class SendLimits(NamedTuple):
    """How far a sender may run ahead, as one side wants it."""

    hwm: int  # datapoints; 0 if the user has not said
    hwm_bytes: int  # bytes, in any case; and the largest datapoint

    def pack(self) -> bytes:
        """As the body of a letter."""
        return _packed(list(self))

    @classmethod
    def parse(cls, body: Sequence[Any]) -> SendLimits | None:
        """What the body of a WELCOME says."""
        match _unpacked(body):
            case [int(hwm), int(hwm_bytes)]:
                return cls(hwm, hwm_bytes)
        return None


def readable(text: str) -> str:
    """Text from elsewhere, fit for a message: no control characters, and not too long."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_TEXT])


def _packed(values: list[Any]) -> bytes:
    data: bytes = msgpack.packb(values)
    return data


def _unpacked(body: Sequence[Any]) -> Any:
    if len(body) != 1 or len(body[0]) > _MAX_INFO:
        return None
    try:
        return msgpack.unpackb(body[0])
    except Exception:  # these are anybody's bytes
        return None
