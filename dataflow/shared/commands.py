"""What the consumer tells one worker: short orders, each with a piece of shared memory if it needs one."""

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
"""Bytes of one order: the system takes that many from a sender whose receiver waits, so that nobody waits to send."""

_PREFIX: Final = struct.Struct("<I")


@dataclass(frozen=True)
class Command:
    """One order, as the worker gets it.

    Attributes:
        data: What to do.
        memory: Shared memory that came with it, None without; whoever receives it closes it.
    """

    data: bytes
    memory: Descriptor | None


class CommandSender:
    """Orders from the consumer to one worker. Picklable while a process is started: that is the worker's end.

    Guarantees:

    - A worker that waits for an order uses no CPU, and ends its wait when the consumer has closed its end or died.
    - No order is seen in part.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._ours: Descriptor | None = Descriptor(ours.detach())
        self._theirs = Descriptor(theirs.detach())

    # -- the consumer --------------------------------------------------------------------------------------------------

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""
        return (self._theirs,)

    def hand_over(self) -> None:
        """The worker was started: close what only it may hold."""
        self._theirs.close()

    def give(self, data: bytes, memory: Descriptor | None = None) -> None:
        """Give an order. To a worker that has ended it is given in vain: whoever waits for the answer sees that."""
        assert self._ours is not None and len(data) <= MAX_BYTES, "an order is short, and comes from the consumer"
        message = _PREFIX.pack(len(data)) + data
        with socket.socket(fileno=os.dup(self._ours.fd)) as end, suppress(BrokenPipeError, ConnectionResetError):
            sent = socket.send_fds(end, [message], [] if memory is None else [memory.fd])
            end.sendall(message[sent:])

    def close(self) -> None:
        """No more orders. Idempotent."""
        if self._ours is not None:
            self._ours.close()
        self._theirs.close()

    # -- the worker ----------------------------------------------------------------------------------------------------

    def receive(self) -> Command | None:
        """Wait for the next order; None when there will be no more."""
        # A copy of the descriptor for each wait: the socket object must not close the one that stays.
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
    """`data` and what follows, `wanted` bytes in all; None if the other end was closed before."""
    parts = bytearray(data)
    while len(parts) < wanted:
        more = end.recv(wanted - len(parts))
        if not more:
            return None
        parts += more
    return bytes(parts)
