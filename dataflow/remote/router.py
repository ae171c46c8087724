"""ROUTER socket with CURVE authentication: addresses each peer individually, and accepts listed keys only.

Both ends use a ROUTER, the only socket that can answer one peer: PUSH would distribute datapoints to any peer.

Guarantees:

- With keys, only peers whose public key is listed are accepted: the authenticator runs before the socket is bound. It
  has a thread of its own, since a handshake must not wait until the next datapoint is read.
- A signal that arrives within start or close is raised when that is complete, or undone: nothing is left open.
- A forked child neither uses nor closes what it inherited; pyzmq itself ignores the inherited sockets there.
- The user's settings of malloc are respected.
- A file at the path of a local socket is replaced only if it is a socket that no program listens on any more.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import stat
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import zmq

from dataflow.remote.keys import Keys
from dataflow.remote.peer_messages import PeerMessage, pack
from dataflow.remote.peer_options import PeerOptions, socket_file
from dataflow.system.descriptors import counted
from dataflow.system.interrupts import signals_blocked, signals_deferred
from dataflow.system.worker_process import keep_freed_memory

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

__all__ = ["Router"]

_PROBES: Final = 3  # without an answer, after which the system closes a connection
_MAX_WAITING: Final = 1000  # messages of one peer that wait here; further bytes wait in the peer's machine
_RECONNECT_MAX_MS: Final = 1000
_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
_PEER_NAMES: Final = ("PEER-1", "PEER-2")  # of the peers that we connect to
_DESCRIPTORS: Final = 32  # descriptors that this process needs for a context, its sockets, and the first connections
_ZAP_DOMAIN: Final = "dataflow"


class Router:
    """One ROUTER in a context of its own. One thread at a time.

    Args:
        options: Of this side; the heartbeat is also the interval of TCP's probes of a connection, at least 1 second.
        keys: Keys of this side, or None.
        max_bytes: Maximum size of a received frame.
        max_unsent: Messages queued to one peer; 0 for any number.
        monitored: Whether `events` is read regularly: ZeroMQ's own thread blocks if its events are not read.
    """

    def __init__(
        self,
        options: PeerOptions,
        keys: Keys | None,
        *,
        max_bytes: int,
        max_unsent: int,
        monitored: bool = False,
    ) -> None:
        addresses, bind, owner = options.addresses, options.bind, options.owner
        self._pid = os.getpid()
        self._owner = owner
        self.addresses: tuple[str, ...] = ()  # the bound addresses, with the ports that the system has chosen
        self.peers: tuple[bytes, ...] = ()  # the peers that we connect to
        self._files: list[tuple[str, os.stat_result]] = []  # of the bound addresses, as they were made
        self._authenticator: ThreadAuthenticator | None = None  # set where there are keys, and we are bound
        self._monitor: zmq.Socket[bytes] | None = None
        keep_freed_memory()  # without it, `tcp/ours` of the workload `image` in the benchmarks is at half its speed
        with signals_deferred(), counted(owner, _DESCRIPTORS):
            self._context: zmq.Context[Any] = zmq.Context()
            try:
                self.socket = self._context.socket(zmq.ROUTER)
                self.socket.setsockopt(zmq.LINGER, 0)
                # Before `bind` and `connect`: such options apply to later connections only.
                self.socket.setsockopt(zmq.SNDHWM, max_unsent)
                self.socket.setsockopt(zmq.RCVHWM, _MAX_WAITING)
                self.socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
                # A peer that is gone, or whose queue is full, is an error; otherwise the message would be dropped in
                # silence.
                self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self.socket.setsockopt(zmq.IPV6, any("[" in address for address in addresses))
                self._probe(options.heartbeat)
                self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
                if keys is not None:
                    self._secure(keys, bind=bind)
                if monitored:
                    # Before there is a connection, so that no event is missed.
                    self._monitor = self.socket.get_monitor_socket(_EVENTS)
                if bind:
                    self.addresses = tuple(map(self._bind, addresses))
                else:
                    self.peers = tuple(map(self._connect, addresses, _PEER_NAMES))
            except BaseException as error:
                self._close_context()
                if isinstance(error, zmq.ZMQError):
                    raise OSError(error.errno, f"{owner}: ZeroMQ says {error}") from error
                raise

    def _probe(self, heartbeat: float) -> None:
        """Let the system close a TCP connection whose other end has confirmed nothing for three heartbeats.

        Not by ZeroMQ's own heartbeats: they take a peer whose consumer pauses for one that is gone, once so many
        messages wait that no more are read; and in libzmq 4.3.5 the process may abort when they do (its issue 4767).
        """
        self.socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self.socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, math.ceil(heartbeat))
        self.socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, math.ceil(heartbeat))
        self.socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _PROBES)
        self.socket.setsockopt(zmq.TCP_MAXRT, math.ceil(_PROBES * heartbeat * 1000))

    def _secure(self, keys: Keys, *, bind: bool) -> None:
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
        if bind:
            self._authenticator = _start_authenticator(self._context, keys.peers)
            self.socket.curve_server = True
            self.socket.zap_domain = _ZAP_DOMAIN.encode()
        elif len(keys.peers) == 1:
            self.socket.curve_serverkey = keys.peers[0]
        else:
            raise ValueError(
                f"{self._owner}: the key directory holds {len(keys.peers)} public keys of peers; to connect, keep only "
                "the one of the peer at this address"
            )

    def _bind(self, address: str) -> str:
        try:
            if _is_occupied(address):
                raise zmq.ZMQError(zmq.EADDRINUSE)
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(
                error.errno,
                f"{self._owner} cannot bind to {address}: {error.strerror}. See what else uses this address "
                "(another copy of the same flow?), or let the system choose a port: tcp://127.0.0.1:*",
            ) from None
        bound = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        path = socket_file(bound)
        if path is not None:
            with suppress(OSError):  # another socket takes the address just now
                self._files.append((path, os.stat(path)))
        return bound

    def _connect(self, address: str, name: str) -> bytes:
        self.socket.setsockopt_string(zmq.CONNECT_ROUTING_ID, name)
        self.socket.connect(address)
        return name.encode()

    def send(self, peer: bytes, peer_message: PeerMessage) -> bool:
        """Send without waiting; return False if `peer` is gone."""
        *parts, last = peer, *pack(peer_message)
        try:
            # A signal handler of the user that raised between two parts would leave a message half sent: the next one
            # would become further parts of it.
            with signals_deferred():
                # Frames are passed on without a copy; bytes are copied: otherwise pyzmq keeps a thread until exit.
                for part in parts:
                    self.socket.send(part, zmq.SNDMORE | zmq.NOBLOCK, copy=not isinstance(part, zmq.Frame))
                self.socket.send(last, zmq.NOBLOCK, copy=not isinstance(last, zmq.Frame))
        except zmq.ZMQError as error:
            # Only the first frame, which names the peer, can be refused so: no message is sent in part.
            if error.errno in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                return False
            raise
        return True

    def receive_nowait(self) -> tuple[bytes, list[Any]] | None:
        """Return the next message and its peer; None if there is none. Frames are buffers of ZeroMQ's own."""
        try:
            peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return peer.bytes, [memoryview(frame.buffer) for frame in frames]

    def wait(self, timeout: float) -> None:
        """Wait until a message or an event has come, for `timeout` seconds at most."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        if self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
        # Rounded up: a wait of 0 milliseconds would return at once, again and again.
        poller.poll(math.ceil(timeout * 1000))

    def events(self) -> list[int]:
        """Return the events of the connections that we make, since the last call."""
        found = []
        while self._monitor is not None:
            try:
                # Decoded here: pyzmq's own decoder imports asyncio.
                event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            found.append(int.from_bytes(event[:2], "little"))
        return found

    def close(self, flush: float) -> None:
        """Close everything, after what was sent has left, or after `flush` seconds. Idempotent."""
        if os.getpid() != self._pid or self.socket.closed:
            return
        with signals_deferred():
            with suppress(zmq.ZMQError):
                self.socket.disable_monitor()
            # First: as long as the socket is open, no other file gets the number by which its own is recognized.
            self._remove_files()
            self.socket.close(linger=int(flush * 1000))
            self._close_context()

    def _close_context(self) -> None:
        self._remove_files()
        if self._authenticator is not None:
            # First: its thread uses a socket of this context, and `destroy` closes that from this thread.
            self._authenticator.stop()
        # A signal would end `term` early; pyzmq would count the context as closed then, and its descriptors would stay.
        with signals_blocked():
            self._context.destroy(linger=0)  # with all open sockets: otherwise it would wait for them

    def _remove_files(self) -> None:
        """Remove the files of the bound addresses, which ZeroMQ leaves; a later socket may have put its own there."""
        for path, made in self._files:
            with suppress(OSError):
                if os.path.samestat(made, os.stat(path)):
                    os.unlink(path)
        self._files.clear()


def _is_occupied(address: str) -> bool:
    """Whether ZeroMQ, which removes the file of a local socket before it binds, would take it from its user."""
    path = address.removeprefix("ipc://")
    if path == address or path.startswith("@") or not os.path.exists(path):
        return False
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) != errno.ECONNREFUSED


# -- authentication ----------------------------------------------------------------------------------------------------

_authenticators: Final[weakref.WeakSet[ThreadAuthenticator]] = weakref.WeakSet()


def _start_authenticator(context: zmq.Context[Any], allowed: Sequence[bytes]) -> ThreadAuthenticator:
    """Accept the owners of these public keys, in Z85, on the sockets of `context` (ZAP, RFC 27)."""
    from zmq.auth.thread import ThreadAuthenticator  # here, because it imports asyncio, and few programs need it

    authenticator = ThreadAuthenticator(context)
    keys = frozenset(allowed)
    authenticator.configure_curve_callback(_ZAP_DOMAIN, SimpleNamespace(callback=lambda domain, key: key in keys))
    _authenticators.add(authenticator)
    try:
        authenticator.start()
    except BaseException:
        authenticator.stop()
        raise
    return authenticator


def _forget_authenticators() -> None:
    """In a child, just after the fork: its finaliser would stop the parent's thread."""
    for authenticator in list(_authenticators):
        # Without its pipe, `stop` has nothing to write to.
        authenticator.pipe = None  # type: ignore[assignment]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_authenticators)
