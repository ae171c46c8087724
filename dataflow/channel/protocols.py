"""Channel interface: message passing as seen from both ends. Implementations are in `local` and `zeromq`.

The consumer creates a channel. A worker receives a `Port`, a description, and opens its own end; the consumer opens its
end after the workers were started, so that no child inherits an open end in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dataflow.channel.messages import Message
from dataflow.descriptors import Descriptor

__all__ = ["Channel", "ConsumerGone", "Port", "Receiver", "Sender"]


class ConsumerGone(Exception):
    """The consumer no longer reads messages; the worker exits silently."""


class Sender(Protocol):
    """A worker's end. One thread at a time."""

    def send(self, message: Message) -> None:
        """Send a message; may wait for the consumer. Raises `ConsumerGone`."""

    def close(self, flush: float) -> None:
        """Close the end once all messages have left this process, or after `flush` seconds."""


class Port(Protocol):
    """Description of a worker's end; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""

    def open(self) -> Sender:
        """Open the end, in the worker."""

    def close_in_parent(self) -> None:
        """Close what only the worker may hold. Called once the worker was started."""


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

    def stop_accepting(self) -> None:
        """Refuse further connections: every worker has said hello."""

    def stop(self) -> None:
        """Release workers that are blocked in `send`. Nothing is received after this."""

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
