"""Receiver's socket: receives the messages of all senders, and tracks the senders.

Guarantees:

- Every wait has a limit: a sender that is silent for three of its heartbeats is lost, and the consumer gets an
  error, after what the sender had sent.
- At most once: datapoints that arrive are handed out once, in their sender's order; a gap is an error.
- A message that is invalid, or whose writer is not a sender of this run, is dropped unread and logged once. Other
  senders lose no datapoint by it.
- No datapoint is lost between two iterations: what was taken from the socket is in a list iterator, which is
  stepped under the interpreter's lock, and the next iteration continues with it.

Threads: everything runs under one lock, held for at most `_POLL` seconds at a time while waiting.
"""

from __future__ import annotations

import logging
import operator
import os
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from dataflow.errors import DataFlowTerminated, SenderLost
from dataflow.interrupts import signals_deferred
from dataflow.remote.agreement import longest_frame
from dataflow.remote.frame_decoder import FrameReader, Unreadable
from dataflow.remote.keys import Keys
from dataflow.remote.messages import ID_BYTES, ORDERLY, Hello, PeerMessage, PeerMessageKind, SendLimits, parse
from dataflow.remote.router import Router
from dataflow.remote.sender_registry import Entry, SenderRegistry
from dataflow.state import terminated
from dataflow.workers.cleanup import close_at_exit

__all__ = ["ReceivingSocket"]

_LOG = logging.getLogger(__name__)
_POLL: Final = 0.1  # seconds that one wait may last
_FLUSH: Final = 0.2  # seconds for the final messages
_MAX_UNSENT: Final = 1000
_ALONE: Final = 10.0  # seconds of waiting after which it is logged that no sender has sent a HELLO

_from_parent: list[ReceivingSocket] = []
"""Receiving sockets that came through a fork: kept, so that nothing in them is finalised in the child."""


class ReceivingSocket:
    """Socket on which the datapoints of all senders arrive.

    Args:
        owner: Name of the node, for messages.
        addresses: One or two addresses.
        bind: Whether to bind to the addresses; otherwise connect to them.
        num_senders: Number of senders in a pass; None if passes never end.
        terms: How far each sender may run ahead.
        heartbeat: Seconds between two CALLs to addresses that have not answered.
        keys: Keys of this side, or None.
    """

    def __init__(
        self,
        owner: str,
        addresses: Sequence[str],
        *,
        bind: bool,
        num_senders: int | None,
        terms: SendLimits,
        heartbeat: float,
        keys: Keys | None,
    ) -> None:
        self._pid = os.getpid()
        self._owner = owner
        self._addresses = tuple(addresses)  # as given by the user
        self._terms = terms
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._run = secrets.token_bytes(ID_BYTES)
        self._registry = SenderRegistry(num_senders)
        self._reader = FrameReader()
        self._chunk: Iterator[Any] = iter(())
        self._closing = False
        self._failure: BaseException | None = None  # what was raised in the consumer; everything is closed then
        self._verdict: SenderLost | None = None  # to be raised when the chunk has been handed out
        self._warned = False
        self._awaits_first = True  # no sender has sent a HELLO, and that was not logged yet
        self._now = 0.0  # attended time
        self._looked = time.monotonic()
        self._called = -heartbeat  # attended time of the last CALL
        self._router = Router(
            owner,
            addresses,
            bind=bind,
            keys=keys,
            heartbeat=heartbeat,
            max_bytes=longest_frame(terms),
            max_unsent=_MAX_UNSENT,
        )
        close_at_exit(self)
        _inboxes.add(self)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The bound addresses, with the ports that the system has chosen."""
        return self._router.addresses

    @property
    def usable(self) -> bool:
        """Whether it is open and has not failed."""
        return not self._closing and self._failure is None

    def begin(self) -> None:
        """Begin a pass, or continue where the consumer left it."""
        self._check_process()
        with self._lock:
            self._check()
            for entry in self._registry.begin():
                self._welcome(entry.sender, entry.peer)

    def chunk(self) -> Iterator[Any] | None:
        """Return an iterator of datapoints, which may be left half-way; empty if none came in time; None after a pass.

        Raises:
            SenderLost: A sender is lost, has failed, or some of its datapoints are missing.
            DataFlowTerminated: The flow was closed, or has failed before.
        """
        self._check_process()
        with self._lock:
            self._check()
            if operator.length_hint(self._chunk):
                return self._chunk
            if self._verdict is not None:
                self._fail(self._verdict)
            if self._registry.complete:
                self._registry.turn()
                return None
            try:
                if not self._step():
                    self._router.socket.poll(int(_POLL * 1000))
            except BaseException as error:  # messages taken from the socket may not be counted yet
                self._fail(error)
            return self._chunk

    def state(self) -> str:
        """Describe the senders, in words."""
        return self._registry.state()

    def close(self) -> None:
        """Send BYE to all senders, and close the socket. Idempotent; no-op in a forked child."""
        if os.getpid() != self._pid:
            _from_parent.append(self)
            return
        self._closing = True
        with signals_deferred(), self._lock:
            self._close("it was closed", ORDERLY)

    def leave(self) -> None:
        """In a child forked from this process: drop the received datapoints, which belong to the parent."""
        list(self._chunk)

    def _check_process(self) -> None:
        """Check the process before taking the lock, which a thread of the parent may have held at the fork."""
        if os.getpid() != self._pid:
            raise DataFlowTerminated(
                f"this iteration of {self._owner} belongs to process {self._pid}, of which this process was forked; "
                "iterate the flow again"
            )

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            before = traceback.format_exception_only(self._failure)[0].strip()
            raise DataFlowTerminated(
                f"{self._owner} has failed before, with {before}. Call reset_state() to restart it"
            ) from self._failure
        if self._closing:
            raise terminated(self._owner)

    def _step(self) -> bool:
        """Handle one message, if one has come, and look for lost senders; return whether there was a message."""
        now = time.monotonic()
        self._now += min(now - self._looked, self._registry.longest_pause())
        self._looked = now
        if self._router.peers and self._now - self._called >= self._heartbeat:
            self._call()
        message = self._router.receive()
        if message is not None:
            self._hear(*message)
        if self._awaits_first and self._now >= _ALONE:
            self._awaits_first = False
            self._log_alone()
        lost = self._registry.silent(self._now)
        if lost is not None:
            self._verdict = self._lost(lost, f"nothing was heard of it for {lost.patience:g} seconds")
        return message is not None

    def _call(self) -> None:
        """Send CALL where we connect, because the other side waits for it."""
        self._called = self._now
        for peer in self._router.peers:
            self._router.send(peer, PeerMessage(PeerMessageKind.CALL, self._run))

    def _welcome(self, sender: bytes, peer: bytes) -> None:
        self._router.send(peer, PeerMessage(PeerMessageKind.WELCOME, self._run, sender, body=[self._terms.pack()]))

    def _hear(self, peer: bytes, frames: Sequence[Any]) -> None:
        peer_message = parse(frames)
        if peer_message is None:
            self._refuse("it is no letter of dataflow")
        elif peer_message.kind is PeerMessageKind.HELLO:
            hello = Hello.parse(peer_message.body)
            if hello is None:
                self._refuse("it is a hello that says nothing")
                return
            self._awaits_first = False
            if self._registry.hello(peer_message.sender, peer, hello, self._now):
                self._welcome(peer_message.sender, peer)
            else:
                self._router.send(peer, PeerMessage(PeerMessageKind.WAIT, self._run, peer_message.sender))
        elif peer_message.run != self._run:
            self._refuse("it belongs to an earlier run, or to another receiver")
            self._bye(peer, peer_message.sender, "this receiver has started anew, and knows nothing of this sender")
        else:
            entry = self._registry.find(peer_message.sender, peer)
            if entry is None:
                self._refuse("it comes from somebody who is no sender")
            else:
                self._hear_sender(entry, peer_message)

    def _hear_sender(self, entry: Entry, peer_message: PeerMessage) -> None:
        self._registry.heard(entry, self._now)
        match peer_message.kind:
            case PeerMessageKind.DATA:
                self._hear_datapoints(entry, peer_message)
            case PeerMessageKind.BEAT:
                self._compare(entry, peer_message.number)
            case PeerMessageKind.END:
                self._compare(entry, peer_message.number)
                self._router.send(
                    entry.peer, PeerMessage(PeerMessageKind.DONE, self._run, entry.sender, entry.received)
                )
                self._registry.ended(entry)
            case PeerMessageKind.FAILED:
                self._fail(self._lost(entry, f"its flow raised {peer_message.text}"))
            case _:
                self._refuse("it is a letter that only a receiver writes")

    def _hear_datapoints(self, entry: Entry, peer_message: PeerMessage) -> None:
        self._compare(entry, peer_message.number)
        try:
            datapoints = self._reader.read(peer_message.body, peer_message.count)
        except Unreadable as error:
            why = f"it sent bytes that are no datapoints ({error})"
            if entry.received:
                self._fail(self._lost(entry, why))
            # An announced count is complete without it. A sender of ours, of another version, raises.
            self._refuse(why)
            self._bye(entry.peer, entry.sender, why)
            self._registry.expel(entry)
            return
        entry.received += peer_message.count
        # The sender may continue while the consumer takes these.
        self._router.send(entry.peer, PeerMessage(PeerMessageKind.ACK, self._run, entry.sender, entry.received))
        self._chunk = iter(datapoints)

    def _compare(self, entry: Entry, sent: int) -> None:
        if sent != entry.received:
            self._fail(
                self._lost(entry, f"it says that it has sent {sent} datapoints, so {sent - entry.received} are missing")
            )

    def _log_alone(self) -> None:
        # ZeroMQ itself rejects sockets of another kind, such as tensorpack's: nothing of them arrives here.
        _LOG.warning(
            "%s has waited for %g seconds at %s, and no sender has introduced itself. If one is running: it must be "
            "send_dataflow_zmq of this library (tensorpack's, which sends pickles, is turned away), it must reach this "
            "address, and both sides must use keys (curve=) or neither. This is logged once; timeout= raises",
            self._owner,
            _ALONE,
            ", ".join(self._router.addresses or self._addresses),
        )

    def _refuse(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("%s refused a message: %s; others are not reported", self._owner, why)

    def _bye(self, peer: bytes, sender: bytes, why: str, number: int = 0) -> None:
        self._router.send(
            peer, PeerMessage(PeerMessageKind.BYE, self._run, sender, number, body=[why.encode("utf-8", "replace")])
        )

    def _lost(self, entry: Entry, why: str) -> SenderLost:
        announced, name = entry.hello.announced, entry.hello.name
        of = "; it had announced no number" if announced is None else f" of the {announced} that it had announced"
        return SenderLost(
            f"sender {name} is lost: {why}. {entry.received} datapoints came from it{of}. Each datapoint is sent once, "
            "so what is missing does not come again: see what happened to that process, and start both sides afresh "
            "(reset_state() here)",
            sender=name,
            announced=announced,
            received=entry.received,
        )

    def _fail(self, error: BaseException) -> NoReturn:
        if self._failure is not None:
            raise error
        self._failure = error
        self._close(f"it has failed with {type(error).__name__}: {error}")
        raise error

    def _close(self, why: str, number: int = 0) -> None:
        with signals_deferred():
            list(self._chunk)  # an iteration in the middle of it finds it empty, and asks for the next
            if self._router.socket.closed:
                return
            try:
                for entry in self._registry:
                    if not entry.ended:
                        self._bye(entry.peer, entry.sender, why, number)
            finally:
                self._router.close(_FLUSH)


_inboxes: Final[weakref.WeakSet[ReceivingSocket]] = weakref.WeakSet()


def _leave_all() -> None:
    for inbox in list(_inboxes):
        inbox.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
