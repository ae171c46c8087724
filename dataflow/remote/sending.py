"""`send_dataflow_zmq`: sends one pass of a flow to a receiver.

Guarantees:

- A heartbeat leaves at every interval, also while the flow computes: from a thread, as long as that is scheduled.
- What the receiver has not yet acknowledged is limited to the window (`BatchingSender` waits), at both ends together.
- A broken connection ends the run on this side: datapoints on the way may be lost, and are not sent again.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import zmq

from dataflow.errors import DataFlowError, ReceiverLost, TimeoutError
from dataflow.observe.receiver_figures import pack_counters
from dataflow.protocol.base import DataFlow, require_flow
from dataflow.protocol.parameters import flag
from dataflow.protocol.passes import known_length
from dataflow.remote.frames import FrameEncoder
from dataflow.remote.keys import SENDER, Keys
from dataflow.remote.peer_messages import (
    ID_BYTES,
    NO_ID,
    ORDERLY,
    Hello,
    PeerMessage,
    PeerMessageKind,
    SendLimits,
    parse,
)
from dataflow.remote.peer_options import HEARTBEAT, HWM_BYTES, PeerOptions, check_options
from dataflow.remote.router import Router
from dataflow.system.interrupts import signals_deferred
from dataflow.transport.batching_sender import BatchingSender, Stopped
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.messages import ConsumerGone, Kind, Message
from dataflow.transport.worker_counters import settle_counters

__all__ = ["Connection", "send_dataflow_zmq"]

_LOG = logging.getLogger(__name__)
_OWNER: Final = "send_dataflow_zmq"
_HWM: Final = 50  # datapoints under way, if neither side has given a number: tensorpack's default
_FEW_BYTES: Final = 8 << 20  # always allowed under way in that case
_POLL: Final = 0.05  # seconds
_FLUSH: Final = 0.5  # seconds for the final messages
_WARN_AFTER: Final = 10.0  # seconds of waiting after which a missing receiver is logged
# Datapoints are collected for so long. With twice that, images come at 0.9 times the rate (the benchmark `tcp`): the
# connection and the receiver have nothing to do meanwhile.
_MESSAGE_SECONDS: Final = 5e-4
_MAX_BYTES: Final = 1 << 16  # of a message from a receiver
_MAX_MISSED: Final = 3  # heartbeats after which another receiver may call
_REFUSED: Final = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not know the key of this side: copy our public *.key into its directory",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "only one of both sides uses keys: give both curve=, or none",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "its key is not the public key that this side has of it, or it uses none",
}


def send_dataflow_zmq(
    df: DataFlow,
    addr: str,
    hwm: int | None = None,
    format: str | None = None,
    bind: bool = False,
    *,
    hwm_bytes: int = HWM_BYTES,
    heartbeat: float = HEARTBEAT,
    timeout: float | None = None,
    curve: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    name: str | None = None,
) -> int:
    """Send one pass of a flow to a `RemoteDataZMQ`, and its end. Send ``RepeatedData(df, -1)`` to send endlessly.

    Arrays, numbers, text, bytes and containers of them arrive with their types. Nothing is pickled, so other types
    cannot be sent.

    Args:
        df: The flow; it stays open.
        addr: Address, ``tcp://HOST:PORT`` or ``ipc://PATH``.
        hwm: Datapoints that may be under way. None leaves it to the receiver.
        format: None. Tensorpack's other formats are not supported.
        bind: Bind to the address. If false, connect to a receiver that is bound there.
        hwm_bytes: Bytes that may be under way in any case; the smaller number of both sides applies.
        heartbeat: Seconds between heartbeats. After three without one, the receiver raises. Increase it if the flow
            calls native code that keeps the interpreter's lock for as long as that.
        timeout: Seconds to wait for a receiver, and later for its progress; None waits without limit.
        curve: A directory that ``python -m dataflow keys`` has made, or the file ``sender.key_secret`` in it;
            see `RemoteDataZMQ`.
        insecure: Bind to an address that other machines can reach without `curve`.
        name: Identity of the sender, as the receiver counts `num_senders`: calls with one name are passes of one
            sender, each of which takes part in another pass of the receiver. None stands for the calling thread, which
            is right unless each pass is sent by a process of its own.

    Returns:
        Number of datapoints that the receiver has taken: all of them; or fewer, if it was closed before.

    Raises:
        ReceiverLost: The connection broke, the receiver has failed, or it refuses our key.
        TimeoutError: No receiver had room, or took anything, for `timeout` seconds.
        NotStorable: A datapoint cannot be sent without pickling; the message names the component.
        ValueError: An address is malformed, or can be reached from other machines without keys.

    Source:
        `send_dataflow_zmq` of tensorpack.dataflow, which sends endlessly.
    """
    require_flow(df, _OWNER, "df")
    bind, insecure = flag(_OWNER, "bind", bind), flag(_OWNER, "insecure", insecure)
    if format is not None:
        raise ValueError(f"{_OWNER}: format is None, got {format!r}: there is one format, which RemoteDataZMQ reads")
    options = check_options(
        _OWNER,
        [addr],
        bind=bind,
        hwm=hwm,
        hwm_bytes=hwm_bytes,
        heartbeat=heartbeat,
        timeout=timeout,
        curve=curve,
        insecure=insecure,
    )
    keys = options.keys(SENDER)
    process = f"{socket.gethostname()} (pid {os.getpid()})"  # a forked child has another one
    _this_thread.token = _this_thread.token or secrets.token_hex(8)
    source = name or f"{process} {_this_thread.token}"
    # The pass begins before a socket is open: workers that the flow starts inherit none, and start working at once.
    datapoints = iter(df)
    hello = Hello(process, source, options.heartbeat, None if df._df_endless else known_length(df))
    connection = Connection(options, hello, keys)
    try:
        return _send(datapoints, connection, encrypted=keys is not None)
    except ReceiverLost as lost:
        if not lost.closed:
            raise
        _LOG.info("%s", lost)
        return lost.taken
    finally:
        connection.close()


class _ThisThread(threading.local):
    token = ""  # distinguishes the threads of a process; Python may reuse an ident


_this_thread = _ThisThread()


def _send(datapoints: Iterator[Any], connection: Connection, *, encrypted: bool) -> int:
    window, max_bytes = connection.wait_welcome()
    encoder = FrameEncoder(max_bytes, encrypted=encrypted)
    quota = connection.credit.port(0).quota(window)
    sender = BatchingSender(0, connection, encoder, quota, seconds=_MESSAGE_SECONDS)
    sender.counters.begin(time.perf_counter())
    try:
        sender.put_all(datapoints)
        connection.wait_done()
    except (Stopped, ConsumerGone):
        # There is a reason: `_end` records it before it sets the flag that has stopped this thread.
        connection.check()
        raise
    except Exception as error:
        with suppress(ConsumerGone):
            sender.failed(error)
        raise
    finally:
        sender.close(_FLUSH)
    return connection.taken


class Connection:
    """A sender's connection to its receiver, as the `Sender` of a `BatchingSender`: one socket, and the heartbeats.

    The lock holder owns the socket. The thread wakes up when ZeroMQ signals an event; each thread reads what has come
    after it has sent, because an event that is signalled while the other thread works is not signalled twice.

    Args:
        options: Of this side; there is one address.
        hello: How this sender introduces itself.
        keys: Keys of this side, or None.
    """

    def __init__(self, options: PeerOptions, hello: Hello, keys: Keys | None) -> None:
        self._options = options
        self._hello = hello
        self._timeout = options.timeout
        self._sender = secrets.token_bytes(ID_BYTES)
        self._run = NO_ID  # of the receiver, after its WELCOME
        self._peer: bytes | None = None  # the receiver that we are connected to; None before its first CALL
        self._theirs: SendLimits | None = None
        self._lost: DataFlowError | None = None  # why the run has ended
        self._progress = "no answer has come"  # for the message of a timeout
        self._ending = False  # all datapoints and the END were sent
        self._done = False  # the receiver has confirmed the end
        self._sent = 0  # datapoints
        self.taken = 0  # datapoints that the receiver has begun to return
        self._under_way: deque[tuple[int, int, int, int]] = deque()  # messages: sum of datapoints; count, bytes, queued
        self._greeted = 0.0  # time of the last HELLO
        self._called = 0.0  # time of the last CALL or answer of the peer
        self._last_beat = self._last_counted = time.monotonic()
        self._last_progress = time.monotonic()  # time of the receiver's last sign of progress
        self._lock = threading.Lock()
        self._over = threading.Event()  # set when the run is done or lost
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.credit = Credit(1, shared=False)
        self._router = Router(options, keys, max_bytes=_MAX_BYTES, max_unsent=0, monitored=not options.bind)
        self._wakeup = int(self._router.socket.getsockopt(zmq.FD))

    @property
    def address(self) -> str:
        """The bound address, with the port that the system has chosen; otherwise the address it connects to."""
        return (*self._router.addresses, *self._options.addresses)[0]

    def wait_welcome(self) -> tuple[Window, int]:
        """Wait for a WELCOME; return the window, and the maximum size of a datapoint.

        Raises:
            ReceiverLost: The connection broke, or the receiver refuses us.
            TimeoutError: There was no room within `timeout` seconds.
        """
        warn_at: float | None = time.monotonic() + _WARN_AFTER
        while self._theirs is None:
            if warn_at is not None and time.monotonic() >= warn_at:
                warn_at = None
                _LOG.warning(
                    "%s has waited for %g seconds for a receiver at %s: %s. The receiver must be a RemoteDataZMQ of "
                    "this library (tensorpack's, which reads pickles, rejects this sender). This is logged once; "
                    "timeout= raises",
                    _OWNER,
                    _WARN_AFTER,
                    self.address,
                    self._progress,
                )
            with self._lock:
                self._read()
                if self._theirs is None and self._lost is None:
                    self._greet()
                # With the lock held: there is no other thread yet.
                self._router.wait(_POLL)
            self.check()
        with signals_deferred():
            # An interrupt between start and assignment would leave a thread that `close` does not join.
            thread = threading.Thread(target=self._keep_alive, name="dataflow-heartbeat", daemon=True)
            thread.start()
            self._thread = thread
        return _agree(self._options.limits, self._theirs), self._theirs.hwm_bytes

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        """Send the datapoints of a message, or report that the flow has raised. For `BatchingSender`."""
        # If a signal handler of the user raised in between, what is counted here would not be what was sent.
        with signals_deferred():
            self._send(message)
            if begun is not None:
                begun.append(None)

    def _send(self, message: Message) -> None:
        with self._lock:
            if self._lost is not None:
                raise ConsumerGone
            if message.kind is Kind.ERROR:
                self._write(PeerMessageKind.FAILED, self._sent, body=message.body)
            if message.kind is not Kind.DATA:
                return  # the HELLO has introduced us already
            if not self._under_way:
                self._last_progress = time.monotonic()  # from now on an answer of the receiver is due
            first, self._sent = self._sent, self._sent + message.count
            # Before it is sent: what is acknowledged is looked up here.
            self._under_way.append((self._sent, message.count, message.nbytes, message.queued))
            self._write(PeerMessageKind.DATA, first, message.count, message.body)
            self._read()

    def wait_done(self) -> None:
        """Send the END, and wait until the receiver has returned everything.

        Raises:
            ReceiverLost: The receiver is gone, or refuses.
            TimeoutError: The receiver took nothing for `timeout` seconds.
        """
        with self._lock:
            self.check()
            self._ending = True
            self._last_progress = time.monotonic()
            self._write_counted(PeerMessageKind.END)
        while not self._done:
            self.check()
            self._over.wait(_POLL)

    def check(self) -> None:
        """Raise the error that has ended the run, if any."""
        if self._lost is not None:
            raise self._lost

    def close(self, flush: float = _FLUSH) -> None:
        """Close the socket. Idempotent."""
        with signals_deferred():
            # The thread ends before the socket is closed: ZeroMQ's sockets must not be used by two threads at a time.
            self._closed.set()
            if self._thread is not None:
                self._thread.join()
            self._router.close(flush)
            self.credit.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _keep_alive(self) -> None:
        wakeup = zmq.Poller()
        wakeup.register(self._wakeup, zmq.POLLIN)
        interval = self._options.heartbeat
        while not self._closed.is_set():  # also after the run: the events must still be read
            wakeup.poll(int(min(_POLL, interval / 4) * 1000))
            with self._lock:
                self._read()
                # Also while datapoints are sent: a heartbeat has the counters.
                last = min(self._last_beat, self._last_counted)
                if not self._ending and self._lost is None and time.monotonic() - last >= interval:
                    self._write_counted(PeerMessageKind.BEAT)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _write(self, kind: PeerMessageKind, number: int = 0, count: int = 0, body: Any = ()) -> None:
        assert self._peer is not None
        self._last_beat = time.monotonic()
        if not self._router.send(self._peer, PeerMessage(kind, self._run, self._sender, number, count, body)):
            self._lose("the connection has broken")

    def _write_counted(self, kind: PeerMessageKind) -> None:
        """Send a message with the number of datapoints, and what this sender has done."""
        self._last_counted = time.monotonic()
        words = settle_counters(self.credit.counters_of(0), time.perf_counter())
        self._write(kind, self._sent, body=[pack_counters(words)])

    def _greet(self) -> None:
        """Send a HELLO, repeatedly: a receiver that starts later, or has room later, must get one."""
        now = time.monotonic()
        if self._peer is not None and now - self._greeted >= self._options.heartbeat:
            self._greeted = now
            hello = PeerMessage(PeerMessageKind.HELLO, sender=self._sender, body=[self._hello.pack()])
            if not self._router.send(self._peer, hello):
                self._peer = None  # the receiver that called us is gone; another may call

    def _read(self) -> None:
        """Read all messages and events that have come, and check whether the receiver is late."""
        events = self._router.events()  # before the messages: those written before a connection ended are there then
        while (received := self._router.receive_nowait()) is not None:
            peer, frames = received
            message = parse(frames)
            if message is not None:
                self._handle(peer, message)
        for event in events:
            self._handle_event(event)
        if self._timeout is None or time.monotonic() - self._last_progress < self._timeout:
            return
        if self._theirs is None:
            self._end(
                TimeoutError(
                    f"{_OWNER}: no receiver at {self.address} had room for this sender within {self._timeout:g} "
                    f"seconds: {self._progress}. See whether it runs and takes datapoints, or raise timeout"
                )
            )
        elif self._under_way or self._ending:
            self._end(
                TimeoutError(
                    f"{_OWNER}: the receiver at {self.address} has taken nothing for {self._timeout:g} seconds; "
                    f"{self.taken} of the {self._sent} datapoints that were sent are taken. See what its program does, "
                    "or raise timeout"
                )
            )

    def _handle_event(self, event: int) -> None:
        """Handle an event of the connection that we make; there is only one."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._theirs is None:
            self._peer, self._greeted = self._router.peers[0], 0.0
            self._progress = "it is connected, but has not answered"
        elif event == zmq.EVENT_DISCONNECTED:
            if self._theirs is not None:
                self._lose("the connection has broken")
            elif self._peer is not None:
                self._peer, self._progress = None, "the connection broke before an answer came"
        elif event in _REFUSED and self._theirs is None:
            self._progress = _REFUSED[zmq.Event(event)]
            if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # which also stands for a broken connection
                self._lose(self._progress)

    def _handle(self, peer: bytes, message: PeerMessage) -> None:
        if message.kind is PeerMessageKind.CALL and self._theirs is None and self._options.bind:
            now = time.monotonic()
            if self._peer is None or now - self._called > _MAX_MISSED * self._options.heartbeat:
                self._peer, self._greeted = peer, 0.0
            if self._peer == peer:
                self._called = now
        elif peer != self._peer or message.sender != self._sender:
            return  # a stranger, or meant for another sender
        elif self._theirs is None:
            if message.kind is PeerMessageKind.WELCOME:
                self._theirs = SendLimits.parse(message.body)
                if self._theirs is not None:
                    self._run = message.run
                    self._last_progress = time.monotonic()
                    self._write(PeerMessageKind.BEAT)
            elif message.kind is PeerMessageKind.WAIT:
                self._called = time.monotonic()
                self._progress = (
                    "it lets this call wait for the next pass: this one has all its senders, or had a call of the same "
                    "sender (calls of one thread are passes of one sender, unless name= tells them apart)"
                )
            elif message.kind is PeerMessageKind.BYE:
                self._peer = None  # it has closed; it may come back
        elif message.run == self._run:
            if message.kind is PeerMessageKind.ACK:
                self._acknowledge(message.number)
            elif message.kind is PeerMessageKind.DONE:
                self._done = True
                self._over.set()
            elif message.kind is PeerMessageKind.BYE:
                self._lose(message.text, closed=message.number == ORDERLY)

    def _acknowledge(self, num_taken: int) -> None:
        while self._under_way and self._under_way[0][0] <= num_taken:
            _, count, nbytes, queued = self._under_way.popleft()
            self.taken += count
            self.credit.grant(0, count, nbytes, queued)
            self.credit.done(0, count)
        self._last_progress = time.monotonic()

    def _lose(self, why: str, *, closed: bool = False) -> None:
        self._end(
            ReceiverLost(
                f"{_OWNER}: the receiver at {self.address} is lost: {why}. It has taken {self.taken} of the "
                f"{self._sent} datapoints that were sent; those after them are not sent again",
                taken=self.taken,
                closed=closed,
            )
        )

    def _end(self, error: DataFlowError) -> None:
        # Once the end is confirmed, the receiver may close the connection.
        if not self._done:
            # Before the stop: the thread that stops raises this error.
            self._lost = self._lost or error
            self.credit.stop()
            self._over.set()


def _agree(ours: SendLimits, theirs: SendLimits) -> Window:
    """Return the stricter limits; a side that has given no number of datapoints sets no limit on it."""
    given = [limits.hwm for limits in (ours, theirs) if limits.hwm > 0]
    hwm_bytes = min(ours.hwm_bytes, theirs.hwm_bytes)
    return Window(min(given, default=_HWM), 0 if given else min(_FEW_BYTES, hwm_bytes), hwm_bytes)
