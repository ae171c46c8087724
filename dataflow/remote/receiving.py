"""`RemoteDataZMQ`: the source that receives datapoints from other processes or machines.

Guarantees:

- Every wait has a limit: a sender that is silent for three of its heartbeats is lost, and the consumer gets an
  error, after what the sender had sent.
- At most once: datapoints that arrive are returned once, in their sender's order; a gap is an error.
- A message that is invalid, or whose writer is not a sender of this run, is dropped unread and logged once. Other
  senders lose no datapoint by it.
- No datapoint is lost between two iterations: what was read from the socket is in a list iterator, which is
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
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from dataflow.errors import SenderLost, TimeoutError
from dataflow.observe.figures import Figures
from dataflow.observe.receiver_figures import ReceiverFigures
from dataflow.protocol.base import DataFlow, T_co
from dataflow.protocol.parameters import flag, whole_number
from dataflow.protocol.pauses import Pause, pausing, resumed
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.remote.frames import FrameReader, Unreadable
from dataflow.remote.keys import RECEIVER, Keys
from dataflow.remote.peer_messages import (
    ID_BYTES,
    NO_ID,
    ORDERLY,
    Hello,
    PeerMessage,
    PeerMessageKind,
    parse,
)
from dataflow.remote.peer_options import HEARTBEAT, HWM_BYTES, PeerOptions, check_options
from dataflow.remote.router import Router
from dataflow.remote.sender_registry import Entry, SenderRegistry
from dataflow.sources.source import Source
from dataflow.system.cleanup import close_at_exit
from dataflow.system.interrupts import signals_deferred
from dataflow.system.session import Session

__all__ = ["ReceivingSocket", "RemoteDataZMQ"]

_LOG = logging.getLogger(__name__)
_OWNER: Final = "RemoteDataZMQ"
_POLL: Final = 0.1  # seconds that one wait may last
_FLUSH: Final = 0.2  # seconds for the final messages
_MAX_UNSENT: Final = 1000
_WARN_AFTER: Final = 10.0  # seconds of waiting after which it is logged that no sender has sent a HELLO
_SLACK_BYTES: Final = 1 << 20


class RemoteDataZMQ(Source[T_co]):
    """The datapoints that `send_dataflow_zmq` sends, from other processes or other machines.

    Senders come and go; their datapoints are mixed, those of each sender in order. With `num_senders` a pass ends
    when that many senders have ended, each with as many datapoints as it announces; a sender that comes too early
    waits for the next pass. Without it, a pass never ends. A pass that is left with `break` continues in the next
    loop.

    Every datapoint is returned at most once. A lost sender is an error, never a shorter pass.

    Args:
        addr1: Address, ``tcp://HOST:PORT`` or ``ipc://PATH``. With port ``*`` the system chooses; see `addresses`.
        addr2: A second such address.
        hwm: Datapoints that each sender may have under way. None: 50, or 8 MiB if that is more.
        bind: Bind to the address. If false, connect to senders that are bound there.
        num_senders: Number of senders in a pass, at least 1. None: passes never end.
        hwm_bytes: Bytes that each sender may have under way, at both ends together, in any case; also the largest
            datapoint.
        heartbeat: Seconds between heartbeats of the connections. Each sender announces its own heartbeat; it counts as
            lost after three of those.
        timeout: Seconds without a datapoint after which to raise; None waits without limit.
        curve: A directory that ``python -m dataflow keys`` has made, or the file ``receiver.key_secret`` in it: the
            connection is encrypted, and only senders whose public key is in the same directory are accepted.
        insecure: Bind to an address that other machines can reach without `curve`.

    Raises:
        SenderLost: A sender was silent for three heartbeats, its flow has failed, or datapoints of it are
            missing.
        TimeoutError: No datapoint came for `timeout` seconds. The same iterator waits again.
        DataFlowTerminated: The flow was closed, or has failed before.
        ValueError: An address is malformed, or can be reached from other machines without keys.
        OSError: The address is in use, when the flow is first iterated or reset.

    Example:
        >>> import threading
        >>> df = RemoteDataZMQ("tcp://127.0.0.1:*", num_senders=1)
        >>> df.reset_state()
        >>> sender = threading.Thread(target=send_dataflow_zmq, args=(DataFromIterable([[1], [2]]), df.addresses[0]))
        >>> sender.start()
        >>> list(df)
        [[1], [2]]
        >>> sender.join(); df.close()

    Source:
        `RemoteDataZMQ` of tensorpack.dataflow.
    """

    _df_run_settings = frozenset({"bind", "curve", "heartbeat", "hwm", "hwm_bytes", "insecure", "timeout"})
    _df_reproducible = False
    _df_continues = True

    def __init__(
        self,
        addr1: str,
        addr2: str | None = None,
        hwm: int | None = None,
        bind: bool = True,
        *,
        num_senders: int | None = None,
        hwm_bytes: int = HWM_BYTES,
        heartbeat: float = HEARTBEAT,
        timeout: float | None = None,
        curve: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None:
        self.addr1 = addr1
        self.addr2 = addr2
        self.hwm = hwm
        self.bind = flag(_OWNER, "bind", bind)
        if num_senders is not None:
            num_senders = whole_number(_OWNER, "num_senders", num_senders, 1, "; None makes passes that never end")
        self.num_senders = num_senders
        self.hwm_bytes = hwm_bytes
        self.heartbeat = heartbeat
        self.timeout = timeout
        self.curve = curve
        self.insecure = flag(_OWNER, "insecure", insecure)
        self._options()  # raises

    def _options(self) -> PeerOptions:
        """The options as they are now: the user may assign them before the socket is opened."""
        return check_options(
            type(self).__name__,
            (self.addr1,) if self.addr2 is None else (self.addr1, self.addr2),
            bind=self.bind,
            hwm=self.hwm,
            hwm_bytes=self.hwm_bytes,
            heartbeat=self.heartbeat,
            timeout=self.timeout,
            curve=self.curve,
            insecure=self.insecure,
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        """The bound addresses, with the ports that the system has chosen; empty before the first reset or iteration."""
        receiver = state_of(self).resource
        return receiver.addresses if isinstance(receiver, ReceivingSocket) else ()

    @property
    def _df_endless(self) -> bool:
        return self.num_senders is None

    def reset_state(self) -> None:
        """Open the socket, unless it is open: senders that are connected stay connected."""
        DataFlow.reset_state(self)
        self._open()

    def _open(self) -> ReceivingSocket:
        state = state_of(self)
        with signals_deferred(), state.lock:
            receiver = state.resource
            if isinstance(receiver, ReceivingSocket) and receiver.usable:
                return receiver
            options = self._options()
            keys = options.keys(RECEIVER)
            state.own(self, None)  # the old one is closed before the new one takes its address
            receiver = ReceivingSocket(options, self.num_senders, keys)
            state.own(self, receiver)
            state.metrics = receiver.figures
            return receiver

    def _df_figures(self) -> Figures | None:
        figures = state_of(self).metrics
        return None if figures is None else Figures(figures.statistics(type(self).__name__))

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        state = state_of(self)
        receiver = state.resource
        if not isinstance(receiver, ReceivingSocket):
            receiver = self._open()
        receiver.timeout, waits = self.timeout, self._df_waits
        return pausing(self._kept(state.continued.take(stream, partial(_receive, receiver), self), waits), waits)

    @property
    def _df_waits(self) -> bool:
        return self.timeout is not None

    def _kept(self, steps: Iterator[Any], waits: bool) -> Iterator[Any]:
        """Keep a reference to the flow while a loop runs; otherwise it could be collected, and so be closed."""
        yield from resumed(steps, waits)


def _receive(receiver: ReceivingSocket) -> Iterator[Any]:
    receiver.begin_pass()
    since = time.monotonic()
    while (datapoints := receiver.receive()) is not None:
        received = False
        for dp in datapoints:
            received = True
            yield dp
            del dp  # not kept while waiting for the next one
        now, timeout = time.monotonic(), receiver.timeout  # which a later loop may set
        if received:
            since = now
        elif timeout is not None and now - since >= timeout:
            text = (
                f"{_OWNER} received no datapoint for {timeout:g} seconds ({receiver.registry.describe()}). See whether "
                "the senders run and can reach this address, and whether their keys are those of this side; or raise "
                "timeout"
            )
            yield Pause(TimeoutError(text))
            since = time.monotonic()


class ReceivingSocket:
    """Socket on which the datapoints of all senders arrive.

    Args:
        options: Of this side; the heartbeat is also the interval of CALLs to addresses that have not answered.
        num_senders: Number of senders in a pass; None if passes never end.
        keys: Keys of this side, or None.
    """

    def __init__(self, options: PeerOptions, num_senders: int | None, keys: Keys | None) -> None:
        self._session = Session(options.owner, fork_cure="iterate the flow again")
        self._options = options
        self.timeout: float | None = None  # seconds without a datapoint after which the running loop raises
        self._lock = threading.Lock()
        self._run = secrets.token_bytes(ID_BYTES)
        self.registry = SenderRegistry(num_senders)
        self.figures = ReceiverFigures()
        self._reader = FrameReader()
        self._datapoints: Iterator[Any] = iter(())  # of the last message
        self._lost: SenderLost | None = None  # to be raised when the datapoints of the last message were returned
        self._has_refused = False  # a message was refused, and that was logged
        self._awaits_first = True  # no sender has sent a HELLO, and that was not logged yet
        self._now = 0.0  # attended time
        self._looked = time.monotonic()
        self._called = -options.heartbeat  # attended time of the last CALL
        # Many small datapoints share a frame, and one more may be added when it is full.
        max_bytes = 2 * options.limits.hwm_bytes + _SLACK_BYTES
        self._router = Router(options, keys, max_bytes=max_bytes, max_unsent=_MAX_UNSENT)
        try:
            close_at_exit(self)
        except BaseException:
            self.close()
            raise
        _sockets.add(self)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The bound addresses, with the ports that the system has chosen."""
        return self._router.addresses

    @property
    def usable(self) -> bool:
        """Whether it is open and has not failed."""
        return not self._session.closed and not self._session.failed

    def begin_pass(self) -> None:
        """Begin a pass, or continue where the consumer left it."""
        self._session.check_process()
        with self._lock:
            self._session.check()
            for entry in self.registry.begin_pass():
                self._welcome(entry.peer, entry.sender)

    def receive(self) -> Iterator[Any] | None:
        """Return an iterator of datapoints, which may be left half-way; empty if none came in time; None after a pass.

        Raises:
            SenderLost: A sender is lost, has failed, or some of its datapoints are missing.
            DataFlowTerminated: The flow was closed, or has failed before.
        """
        # Before the lock: in a forked child, it may be held by a thread that does not exist there.
        self._session.check_process()
        with self._lock:
            self._session.check()
            return self._observed_next()

    def close(self) -> None:
        """Send BYE to all senders, and close the socket. Idempotent; no-op in a forked child."""
        if self._session.is_own:
            # Before the lock, which a thread that waits for datapoints holds: it finds this at its next step, and lets
            # go.
            self._session.closed = True
            with signals_deferred(), self._lock:
                self._close("it was closed", ORDERLY)

    def drop_datapoints(self) -> None:
        """In a child forked from this process: drop the received datapoints, which belong to the parent."""
        list(self._datapoints)

    # -- under the lock ------------------------------------------------------------------------------------------------

    # A function of its own: in CPython 3.11, what a tracer raises at a `try` within a `with` leaves the `with` unended.
    def _observed_next(self) -> Iterator[Any] | None:
        metrics = self.figures.metrics
        metrics.enter()
        try:
            datapoints = self._next()
        finally:
            metrics.leave()
        if datapoints is None:
            metrics.end_iteration()
        return datapoints

    def _next(self) -> Iterator[Any] | None:
        # Tells what is left, and takes nothing: another iteration may be stepping the same iterator.
        if operator.length_hint(self._datapoints):
            return self._datapoints
        if self._lost is not None:
            self._fail(self._lost)
        if self.registry.complete:
            self.registry.end_pass()
            return None
        try:
            if not self._step():
                began = time.perf_counter()
                self._router.wait(_POLL)
                self.figures.metrics.waiting += time.perf_counter() - began
        except BaseException as error:  # messages read from the socket may not be counted yet
            self._fail(error)
        return self._datapoints

    def _step(self) -> bool:
        """Handle one message, if one has come, and look for lost senders; return whether there was a message."""
        now = time.monotonic()
        self._now += min(now - self._looked, self.registry.longest_pause())
        self._looked = now
        if self._router.peers and self._now - self._called >= self._options.heartbeat:
            self._called = self._now
            for peer in self._router.peers:  # where we connect, the other side waits for it
                self._send(peer, PeerMessageKind.CALL)
        message = self._router.receive_nowait()
        if message is not None:
            self._handle(*message)
        if self._awaits_first and self._now >= _WARN_AFTER:
            self._awaits_first = False
            # ZeroMQ itself rejects sockets of another kind, such as tensorpack's: nothing of them arrives here.
            _LOG.warning(
                "%s has waited for %g seconds at %s, and no sender has introduced itself. If one is running: it must "
                "be send_dataflow_zmq of this library (tensorpack's, which sends pickles, is rejected), it must reach "
                "this address, and both sides must use keys (curve=) or neither. This is logged once; timeout= raises",
                self._options.owner,
                _WARN_AFTER,
                ", ".join(self._router.addresses or self._options.addresses),
            )
        lost = self.registry.find_lost(self._now)
        if lost is not None:
            self._lost = self._sender_lost(lost, f"no message came from it for {lost.max_silence:g} seconds")
        return message is not None

    def _send(
        self, peer: bytes, kind: PeerMessageKind, sender: bytes = NO_ID, number: int = 0, body: Sequence[bytes] = ()
    ) -> None:
        self._router.send(peer, PeerMessage(kind, self._run, sender, number, body=body))

    def _welcome(self, peer: bytes, sender: bytes) -> None:
        self._send(peer, PeerMessageKind.WELCOME, sender, body=[self._options.limits.pack()])

    def _handle(self, peer: bytes, frames: Sequence[Any]) -> None:
        message = parse(frames)
        if message is None:
            self._refuse("it is not a message of this protocol")
        elif message.kind is PeerMessageKind.HELLO:
            hello = Hello.parse(message.body)
            if hello is None:
                self._refuse("it is a HELLO without valid content")
                return
            self._awaits_first = False
            if self.registry.register(message.sender, peer, hello, self._now):
                self._welcome(peer, message.sender)
            else:
                self._send(peer, PeerMessageKind.WAIT, message.sender)
        elif message.run != self._run:
            self._refuse("it belongs to an earlier run, or to another receiver")
            self._bye(peer, message.sender, "this receiver was restarted, and does not know this sender")
        elif (entry := self.registry.find(message.sender, peer)) is None:
            self._refuse("its writer is not a sender of this pass")
        else:
            self._handle_sender(entry, message)

    def _handle_sender(self, entry: Entry, message: PeerMessage) -> None:
        self.registry.record_message(entry, self._now)
        match message.kind:
            case PeerMessageKind.DATA:
                self._handle_datapoints(entry, message)
            case PeerMessageKind.BEAT | PeerMessageKind.END:
                self._compare(entry, message.number)
                self.figures.counted(entry.hello.source, entry.sender, message.body)
                if message.kind is PeerMessageKind.END:
                    self._send(entry.peer, PeerMessageKind.DONE, entry.sender, entry.received)
                    self.registry.end(entry)
            case PeerMessageKind.FAILED:
                self._fail(self._sender_lost(entry, f"its flow raised {message.text}"))
            case _:
                self._refuse("it is of a kind that only a receiver sends")

    def _handle_datapoints(self, entry: Entry, message: PeerMessage) -> None:
        self._compare(entry, message.number)
        try:
            datapoints = self._reader.read(message.body, message.count)
        except Unreadable as error:
            why = f"it sent bytes that are no datapoints ({error})"
            if entry.received:
                self._fail(self._sender_lost(entry, why))
            # An announced count is complete without it. A sender of ours, of another version, raises.
            self._refuse(why)
            self._bye(entry.peer, entry.sender, why)
            self.registry.remove(entry)
            return
        entry.received += message.count
        self.figures.received(entry.hello.source, message.count, sum(len(frame) for frame in message.body))
        # The sender may continue while the consumer handles these.
        self._send(entry.peer, PeerMessageKind.ACK, entry.sender, entry.received)
        self._datapoints = iter(datapoints)

    def _compare(self, entry: Entry, sent: int) -> None:
        if sent != entry.received:
            missing = sent - entry.received
            self._fail(self._sender_lost(entry, f"it has sent {sent} datapoints, so {missing} are missing"))

    def _refuse(self, why: str) -> None:
        if not self._has_refused:
            self._has_refused = True
            _LOG.warning("%s refused a message: %s; others are not reported", self._options.owner, why)

    def _bye(self, peer: bytes, sender: bytes, why: str, number: int = 0) -> None:
        self._send(peer, PeerMessageKind.BYE, sender, number, [why.encode("utf-8", "replace")])

    def _sender_lost(self, entry: Entry, why: str) -> SenderLost:
        announced, name = entry.hello.announced, entry.hello.name
        of = "; it had announced no number" if announced is None else f" of the {announced} that it had announced"
        return SenderLost(
            f"sender {name} is lost: {why}. {entry.received} datapoints came from it{of}. Each datapoint is sent once, "
            "so what is missing does not come again: see what happened to that process, and restart both sides "
            "(reset_state() here)",
            sender=name,
            announced=announced,
            received=entry.received,
        )

    def _fail(self, error: BaseException) -> NoReturn:
        if not self._session.failed:
            self._session.fail(error)
            self._close(f"it has failed with {type(error).__name__}: {error}")
        raise error

    def _close(self, why: str, number: int = 0) -> None:
        with signals_deferred():
            list(self._datapoints)  # an iteration in the middle of it finds it empty, and asks for the next
            self.figures.metrics.freeze()
            if self._router.socket.closed:
                return
            try:
                for entry in self.registry:
                    if not entry.ended:
                        self._bye(entry.peer, entry.sender, why, number)
            finally:
                self._router.close(_FLUSH)


_sockets: Final[weakref.WeakSet[ReceivingSocket]] = weakref.WeakSet()


def _drop_inherited() -> None:
    for receiver in list(_sockets):
        receiver.drop_datapoints()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
