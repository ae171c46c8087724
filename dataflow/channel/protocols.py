"""How messages move, seen from both ends. `queues` and `sockets` have the channels themselves.

A channel is made by the consumer. What goes to a worker is a `Port`, a description; the worker opens its own end, and
the consumer opens its own after the workers were started, so that no child inherits an open end in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dataflow.channel.messages import Message
from dataflow.descriptors import Descriptor

__all__ = ["Channel", "ConsumerGone", "Port", "Receiver", "Sender"]


class ConsumerGone(Exception):
    """Nobody reads any more; the worker ends without a word."""


class Sender(Protocol):
    """A worker's end. One thread at a time."""

    def send(self, message: Message) -> None:
        """Send; may wait for the consumer. Raises `ConsumerGone`."""

    def close(self, flush: float) -> None:
        """Close, after what was sent has left this process, or after `flush` seconds."""


class Port(Protocol):
    """A worker's end, as a description; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""

    def open(self) -> Sender:
        """Open the end, in the worker."""

    def hand_over(self) -> None:
        """The worker was started: close what only it may hold."""


class Receiver(Protocol):
    """The consumer's end. One thread at a time."""

    def take(self) -> Message | None:
        """The next message that has come, or None. Whoever is interrupted in here may have lost one."""

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        """Wait until something comes: True; False after `timeout` seconds, or if only a watched descriptor is readable.

        Takes nothing: an interrupt in here does no harm.
        """

    def readmit(self, worker: int) -> Port:
        """The description for a worker that takes the place of `worker`, which has ended and was heard to its end."""

    def everyone_connected(self) -> None:
        """Every worker has said hello: nobody else may connect from now on."""

    def stop(self) -> None:
        """Let go of workers that wait to be read; nothing is received after this."""

    def close(self) -> None:
        """Close the end and remove what it left on disk. Idempotent."""


class Channel(Protocol):
    """The consumer's handle."""

    def port(self, worker: int) -> Port:
        """The description for one worker."""

    def open_receiver(self) -> Receiver:
        """Open the consumer's end; to be called after the workers were started."""

    def close(self) -> None:
        """Close what was never opened. Idempotent."""
