"""Connection of a sender: one socket, the state of its receiver, and the heartbeats.

Guarantees:

- A heartbeat leaves at every interval, also while the flow computes: from a thread, as long as that is scheduled.
- What the receiver has not yet taken is limited to the window (`BatchingSender` waits), at both ends together.
- A broken connection ends the run on this side: datapoints on the way may be lost, and are not sent again.

The lock holder owns the socket. The thread wakes up when ZeroMQ signals an event; each thread reads what has come
after it has sent, because an event that is signalled while the other thread works is not signalled twice.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from typing import Any, Final

import zmq

from dataflow.channel.flow_control import Credit, Window
from dataflow.channel.messages import Kind as Told
from dataflow.channel.messages import Message
from dataflow.channel.protocols import ConsumerGone
from dataflow.errors import DataFlowError
from dataflow.interrupts import signals_deferred
from dataflow.remote.agreement import agreed
from dataflow.remote.keys import Keys
from dataflow.remote.messages import ID_BYTES, ORDERLY, Hello, PeerMessage, PeerMessageKind, SendLimits, parse
from dataflow.remote.peer_errors import gone, no_room, nothing_taken
from dataflow.remote.router import Router

__all__ = ["Connection"]

_LOG = logging.getLogger(__name__)
_POLL: Final = 0.05  # seconds
_FLUSH: Final = 0.5  # seconds for the final messages
_ALONE: Final = 10.0  # seconds of waiting after which a missing receiver is logged
_MAX_BYTES: Final = 1 << 16  # of a message from a receiver
_MISSED: Final = 3  # heartbeats after which another receiver may call
_REFUSED: Final = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not know the key of this side: copy our public *.key into its directory",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "only one of both sides uses keys: give both curve=, or none",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "its key is not the public key that this side has of it, or it uses none",
}


class Connection:
    """One sender's connection to its receiver; the `Sender` of a `BatchingSender`.

    Args:
        owner: Name of the function, for messages.
        address: Address of the receiver, or the one to bind to.
        bind: Whether to bind to the address; otherwise connect to it.
        terms: The limits that this side wants.
        timeout: Seconds to wait for an outstanding answer of the receiver; None waits without limit.
        hello: The body of the HELLO message.
        keys: Keys of this side, or None.
    """

    def __init__(
        self,
        owner: str,
        address: str,
        *,
        bind: bool,
        terms: SendLimits,
        hello: Hello,
        timeout: float | None,
        keys: Keys | None,
    ) -> None:
        self._owner = owner
        self._address = address
        self._terms = terms
        self._heartbeat = hello.heartbeat
        self._timeout = timeout
        self._hello = hello.pack()
        self._sender = secrets.token_bytes(ID_BYTES)
        self._run = b""  # of the receiver, after its WELCOME
        self._peer: bytes | None = None  # the receiver we talk to; None before its first CALL
        self._theirs: SendLimits | None = None
        self._lost: DataFlowError | None = None  # why the run has ended
        self._said = "nobody has answered"  # for the message of a timeout
        self._ending = False  # all datapoints and the END were sent
        self._done = False  # the receiver has confirmed the end
        self._sent = 0  # datapoints
        self._taken = 0  # datapoints that the receiver has begun to hand out
        self._under_way: deque[tuple[int, int, int, int]] = deque()  # messages: sum of datapoints; count, bytes, queued
        self._greeted = 0.0  # time of the last HELLO
        self._called = 0.0  # time of the last CALL or answer of the peer
        self._beaten = time.monotonic()  # time of the last heartbeat
        self._heard = time.monotonic()  # time of the receiver's last sign of progress
        self._lock = threading.Lock()
        self._news = threading.Event()  # set when the run is done or lost
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.credit = Credit(1, shared=False)
        self._router = Router(
            owner,
            [address],
            bind=bind,
            keys=keys,
            heartbeat=hello.heartbeat,
            max_bytes=_MAX_BYTES,
            max_unsent=0,
            monitored=not bind,
        )
        self._connects = not bind
        self._wakeup = int(self._router.socket.getsockopt(zmq.FD))

    @property
    def address(self) -> str:
        """The bound address, with the port that the system has chosen; otherwise the address it connects to."""
        return (*self._router.addresses, self._address)[0]

    @property
    def taken(self) -> int:
        """How many datapoints the receiver has begun to hand out."""
        return self._taken

    def wait_welcome(self) -> tuple[Window, int]:
        """Wait for a WELCOME; return the window, and the maximum size of a datapoint.

        Raises:
            ReceiverLost: The connection broke, or the receiver refuses us.
            TimeoutError: There was no room within `timeout` seconds.
        """
        warn_at: float | None = time.monotonic() + _ALONE
        while self._theirs is None:
            if warn_at is not None and time.monotonic() >= warn_at:
                warn_at = None
                _LOG.warning(
                    "%s has waited for %g seconds for a receiver at %s: %s. The receiver must be a RemoteDataZMQ of "
                    "this library (tensorpack's, which reads pickles, turns this sender away). This is logged once; "
                    "timeout= raises",
                    self._owner,
                    _ALONE,
                    self.address,
                    self._said,
                )
            with self._lock:
                self._attend()
                if self._theirs is None and self._lost is None:
                    self._greet()
                self._router.wait(_POLL)
            self._check()
        with signals_deferred():
            thread = threading.Thread(target=self._keep_alive, name="dataflow-heartbeat", daemon=True)
            thread.start()
            self._thread = thread
        return agreed(self._terms, self._theirs), self._theirs.hwm_bytes

    def send(self, message: Message) -> None:
        """Send the datapoints of a message, or report that the flow has raised. For `BatchingSender`."""
        with self._lock:
            if self._lost is not None:
                raise ConsumerGone
            if message.kind is Told.ERROR:
                self._write(PeerMessageKind.FAILED, self._sent, body=message.body)
            if message.kind is not Told.DATA:
                return  # the HELLO has introduced us already
            if not self._under_way:
                self._heard = time.monotonic()  # from now on an answer of the receiver is due
            first, self._sent = self._sent, self._sent + message.count
            self._under_way.append((self._sent, message.count, message.nbytes, message.queued))
            self._write(PeerMessageKind.DATA, first, message.count, message.body)
            self._attend()

    def wait_done(self) -> None:
        """Send the END, and wait until the receiver has handed everything out.

        Raises:
            ReceiverLost: The receiver is gone, or refuses.
            TimeoutError: The receiver took nothing for `timeout` seconds.
        """
        with self._lock:
            self._check()
            self._ending = True
            self._heard = time.monotonic()
            self._write(PeerMessageKind.END, self._sent)
            self._attend()
        while not self._done:
            self._check()
            self._news.wait(_POLL)

    def raise_lost(self) -> None:
        """Raise the error that has ended the run, if any."""
        self._check()

    def close(self, flush: float) -> None:
        """Close the socket. Idempotent."""
        with signals_deferred():
            self._closed.set()
            if self._thread is not None:
                self._thread.join()
            if not self._router.socket.closed:
                self._router.close(min(flush, _FLUSH))
            self.credit.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        wakeup = zmq.Poller()
        wakeup.register(self._wakeup, zmq.POLLIN)
        while not self._closed.is_set():  # also after the run: the events must still be read
            wakeup.poll(int(min(_POLL, self._heartbeat / 4) * 1000))
            with self._lock:
                self._attend()
                if not self._ending and self._lost is None and time.monotonic() - self._beaten >= self._heartbeat:
                    self._write(PeerMessageKind.BEAT, self._sent)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _write(self, kind: PeerMessageKind, number: int = 0, count: int = 0, body: Any = ()) -> None:
        assert self._peer is not None
        self._beaten = time.monotonic()
        if not self._router.send(
            self._peer, PeerMessage(kind, self._run or bytes(ID_BYTES), self._sender, number, count, body)
        ):
            self._lose("the connection has broken")

    def _greet(self) -> None:
        """Send a HELLO, repeatedly: a receiver that starts later, or has room later, must get one."""
        now = time.monotonic()
        if self._peer is not None and now - self._greeted >= self._heartbeat:
            self._greeted = now
            if not self._router.send(
                self._peer, PeerMessage(PeerMessageKind.HELLO, sender=self._sender, body=[self._hello])
            ):
                self._peer = None  # the receiver that called us is gone; another may call

    def _attend(self) -> None:
        """Read all messages and events that have come."""
        events = self._router.events()  # before the messages: those written before a connection ended are there then
        while (message := self._router.receive()) is not None:
            peer, frames = message
            peer_message = parse(frames)
            if peer_message is not None:
                self._hear(peer, peer_message)
        for event in events:
            self._notice(event)
        self._judge()

    def _judge(self) -> None:
        """Check whether the receiver is late."""
        if self._timeout is None or time.monotonic() - self._heard < self._timeout:
            return
        if self._theirs is None:
            self._lose_to(no_room(self._owner, self.address, self._timeout, self._said))
        elif self._under_way or self._ending:
            late = nothing_taken(self._owner, self.address, self._timeout, taken=self._taken, sent=self._sent)
            self._lose_to(late)

    def _notice(self, event: int) -> None:
        """Handle an event of the connection that we make; there is only one."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._theirs is None:
            self._peer, self._greeted = self._router.peers[0], 0.0
            self._said = "it is connected, but has not answered"
        elif event == zmq.EVENT_DISCONNECTED:
            if self._theirs is None:
                self._peer = None
            else:
                self._lose("the connection has broken")
        elif event in _REFUSED and self._theirs is None:
            self._said = _REFUSED[zmq.Event(event)]
            if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # which also stands for a broken connection
                self._lose(self._said)

    def _hear(self, peer: bytes, peer_message: PeerMessage) -> None:
        if peer_message.kind is PeerMessageKind.CALL and self._theirs is None and not self._connects:
            now = time.monotonic()
            if self._peer is None or now - self._called > _MISSED * self._heartbeat:
                self._peer, self._greeted = peer, 0.0
            if self._peer == peer:
                self._called = now
        elif peer != self._peer or peer_message.sender != self._sender:
            return  # a stranger, or meant for another sender
        elif self._theirs is None:
            if peer_message.kind is PeerMessageKind.WELCOME:
                self._theirs = SendLimits.parse(peer_message.body)
                if self._theirs is not None:
                    self._run = peer_message.run
                    self._heard = time.monotonic()
                    self._write(PeerMessageKind.BEAT, 0)
            elif peer_message.kind is PeerMessageKind.WAIT:
                self._called = time.monotonic()
                self._said = "it has as many senders as make a pass, and lets this one wait for the next"
            elif peer_message.kind is PeerMessageKind.BYE:
                self._peer = None  # it has closed; it may come back
        elif peer_message.run == self._run:
            self._hear_receiver(peer_message)

    def _hear_receiver(self, peer_message: PeerMessage) -> None:
        if peer_message.kind is PeerMessageKind.ACK:
            while self._under_way and self._under_way[0][0] <= peer_message.number:
                _, count, nbytes, queued = self._under_way.popleft()
                self._taken += count
                self.credit.grant(0, count, nbytes, queued)
                self.credit.done(0, count)
            self._heard = time.monotonic()
        elif peer_message.kind is PeerMessageKind.DONE:
            self._done = True
            self._news.set()
        elif peer_message.kind is PeerMessageKind.BYE:
            self._lose(peer_message.text, closed=peer_message.number == ORDERLY)

    def _lose(self, why: str, *, closed: bool = False) -> None:
        self._lose_to(gone(self._owner, self.address, why, taken=self._taken, sent=self._sent, closed=closed))

    def _lose_to(self, error: DataFlowError) -> None:
        if not self._done:
            self._lost = self._lost or error
            self.credit.stop()
            self._news.set()
