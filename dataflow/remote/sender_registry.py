"""Registry of the senders of a receiver, with their counts and deadlines. Pure: no socket and no clock.

Time is *attended* time, in seconds: it stands still while the consumer requests no datapoints, because then
heartbeats may be unread. A sender is identified by a valid HELLO, not by its connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dataflow.remote.peer_messages import Hello

__all__ = ["Entry", "SenderRegistry"]

_MAX_MISSED: Final = 3  # heartbeats that may be missed
_MAX_SENDERS: Final = 10_000  # in a pass, and as many waiting ones: strangers must not fill the memory


@dataclass(slots=True)
class Entry:
    """State of one sender."""

    sender: bytes
    peer: bytes  # routing id for ZeroMQ
    hello: Hello
    last_message: float  # attended time
    confirmed: bool = False  # it knows that it is welcome
    ended: bool = False
    received: int = 0  # datapoints

    @property
    def max_silence(self) -> float:
        """Seconds without a message after which it is lost."""
        return _MAX_MISSED * self.hello.heartbeat


class SenderRegistry:
    """The senders of one pass, and those that wait for the next.

    Args:
        num_senders: Number of senders in a pass; None if passes never end.
    """

    def __init__(self, num_senders: int | None) -> None:
        self._num = num_senders
        self._open = False  # a pass has begun, and is not over
        self._entries: dict[bytes, Entry] = {}
        self._waiting: dict[bytes, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter([*self._entries.values(), *self._waiting.values()])

    @property
    def complete(self) -> bool:
        """Whether all senders of the pass have ended."""
        return self._open and len(self._entries) == self._num and all(entry.ended for entry in self._entries.values())

    def begin_pass(self) -> list[Entry]:
        """Continue the pass, or begin one; return the senders that become welcome by that."""
        self._open = True
        welcome = []
        for sender, entry in reversed(self._waiting.copy().items()):  # the last to come is most likely still there
            if self._has_room(entry):
                self._entries[sender] = self._waiting.pop(sender)
                welcome.append(entry)
        return welcome

    def end_pass(self) -> None:
        """End the pass."""
        self._open = False
        self._entries.clear()

    def _has_room(self, entry: Entry) -> bool:
        """Whether it can join the pass: one per source, so that a fast one does not send two passes in one."""
        if not self._open or len(self._entries) >= (_MAX_SENDERS if self._num is None else self._num):
            return False
        return self._num is None or all(entry.hello.source != other.hello.source for other in self._entries.values())

    def register(self, sender: bytes, peer: bytes, hello: Hello, now: float) -> bool:
        """Register a sender, or a repeated HELLO; return whether it is welcome now."""
        known = self._entries.get(sender)
        if known is not None:
            # A repeated HELLO, if it comes over the same connection. Nobody else may take the place of a sender.
            return known.peer == peer and not known.ended
        entry = Entry(sender, peer, hello, now)
        self._waiting.pop(sender, None)
        if self._has_room(entry):
            self._entries[sender] = entry
            return True
        if len(self._waiting) < _MAX_SENDERS:
            self._waiting[sender] = entry
        return False

    def find(self, sender: bytes, peer: bytes) -> Entry | None:
        """Return the sender of this pass with that id, if it belongs to `peer`, and has not ended."""
        entry = self._entries.get(sender)
        return entry if entry is not None and entry.peer == peer and not entry.ended else None

    def record_message(self, entry: Entry, now: float) -> None:
        """Record a heartbeat or other message."""
        entry.last_message, entry.confirmed = now, True

    def end(self, entry: Entry) -> None:
        """Record that it has sent everything."""
        entry.ended = True
        if self._num is None:
            del self._entries[entry.sender]

    def remove(self, entry: Entry) -> None:
        """Remove it: it is not one of our senders."""
        self._entries.pop(entry.sender, None)

    def longest_pause(self) -> float:
        """Return the longest interval between two reads that counts in full: after a longer one, heartbeats are unread.

        ZeroMQ returns the messages of its peers in turn. So a message of every live sender is read within as many reads
        as there are senders, which together count for a quarter of any sender's `max_silence` at most.
        """
        entries = [entry for entry in self._entries.values() if entry.confirmed and not entry.ended]
        return min((entry.max_silence for entry in entries), default=1.0) / (4 * max(1, len(entries)))

    def find_lost(self, now: float) -> Entry | None:
        """Return a lost sender, or None; one that was not confirmed is dropped: no datapoints of it are outstanding."""
        for entries in (self._entries, self._waiting):
            for sender, entry in list(entries.items()):
                if not entry.ended and now - entry.last_message > entry.max_silence:
                    if entry.confirmed:
                        return entry
                    del entries[sender]
        return None

    def describe(self) -> str:
        """Describe the senders, in words."""
        entries = list(self._entries.values())
        wanted = "" if self._num is None else f" of {self._num}"
        active = "; ".join(f"{entry.hello.name}: {entry.received} datapoints" for entry in entries if not entry.ended)
        num_ended = sum(entry.ended for entry in entries)
        waiting = f"{len(self._waiting)} wait for the next pass" if self._waiting else ""
        come = f"{len(entries)}{wanted} senders have come, {num_ended} have ended"
        return "; ".join(filter(None, [come, active, waiting]))
