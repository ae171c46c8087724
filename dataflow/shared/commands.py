"""Commands from the consumer to one worker: short messages, each with an optional file descriptor of shared memory."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dataflow.descriptors import Descriptor

__all__ = ["MAX_BYTES", "Command", "CommandSender"]

MAX_BYTES: Final = 64 << 10
"""Maximum size of one command: the socket buffer takes that many bytes from a sender, so sending never blocks."""

_PREFIX: Final = struct.Struct("<I")


@dataclass(frozen=True)
class Command:
    """One command, as the worker receives it.

    Attributes:
        data: What to do.
        memory: Shared memory that came with it, or None; the receiver must close it.
    """

    data: bytes
    memory: Descriptor | None


class CommandSender:
    """Socket for commands from the consumer to one worker. Picklable while a process is started: the worker's end.

    Guarantees:

    - A worker that waits for a command uses no CPU, and stops waiting when the consumer closes its end or dies.
    - A command is received whole or not at all.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._ours: Descriptor | None = Descriptor(ours.detach())
        self._theirs = Descriptor(theirs.detach())

    # -- the consumer --------------------------------------------------------------------------------------------------

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Return the descriptors that a forked worker must inherit."""
        return (self._theirs,)

    def close_in_parent(self) -> None:
        """Called once the worker was started: close what only the worker may hold."""
        self._theirs.close()

    def give(self, data: bytes, memory: Descriptor | None = None) -> None:
        """Send a command. No-op if the worker has ended: the wait for its acknowledgement detects that."""
        assert self._ours is not None and len(data) <= MAX_BYTES, "an order is short, and comes from the consumer"
        message = _PREFIX.pack(len(data)) + data
        with socket.socket(fileno=os.dup(self._ours.fd)) as end, suppress(BrokenPipeError, ConnectionResetError):
            sent = socket.send_fds(end, [message], [] if memory is None else [memory.fd])
            end.sendall(message[sent:])

    def close(self) -> None:
        """Close the consumer's end: no more commands. Idempotent."""
        if self._ours is not None:
            self._ours.close()
        self._theirs.close()

    # -- the worker ----------------------------------------------------------------------------------------------------

    def receive(self) -> Command | None:
        """Wait for the next command; None when the consumer has closed its end."""
        # Duplicate the descriptor for each wait: the socket object must not close the original.
        with socket.socket(fileno=os.dup(self._theirs.fd)) as end, suppress(ConnectionResetError):
            data, fds, _, _ = socket.recv_fds(end, _PREFIX.size, 1)
            memory = Descriptor(fds[0]) if fds else None
            prefix = _rest(end, data, _PREFIX.size)
            body = None if prefix is None else _rest(end, b"", _PREFIX.unpack(prefix)[0])
            if body is not None:
                return Command(body, memory)
            if memory is not None:
                memory.close()
        return None

    def __getstate__(self) -> dict[str, object]:
        return {"_ours": None, "_theirs": self._theirs}


def _rest(end: socket.socket, data: bytes, wanted: int) -> bytes | None:
    """Return `data` and the bytes after it, `wanted` in all; None if the other end was closed before."""
    parts = bytearray(data)
    while len(parts) < wanted:
        more = end.recv(wanted - len(parts))
        if not more:
            return None
        parts += more
    return bytes(parts)
