"""ROUTER socket with CURVE authentication: addresses each peer individually, and accepts listed keys only.

Both ends use a ROUTER, the only socket that can answer one peer: PUSH would distribute datapoints to any peer.

Guarantees:

- With keys, only peers whose public key is listed are accepted: the authenticator runs before the socket is bound. It
  has a thread of its own, since a handshake must not wait until the next datapoint is taken.
- A signal that arrives within start or close is raised when that is complete, or undone: nothing is left open.
- A forked child neither uses nor closes what it inherited.
- The user's settings of malloc are respected.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import zmq

from dataflow.descriptors import counted
from dataflow.interrupts import signals_deferred
from dataflow.remote.keys import Keys
from dataflow.remote.messages import PeerMessage, pack
from dataflow.workers.process import keep_freed_memory

__all__ = ["Router"]

_PROBES: Final = 3  # heartbeats without an answer after which ZeroMQ closes a connection
_MAX_WAITING: Final = 1000  # messages of one peer that wait here; further bytes wait in the peer's machine
_RECONNECT_MAX_MS: Final = 1000
_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
_NAMES: Final = ("CALLED-1", "CALLED-2")  # of the peers that we connect to
_DESCRIPTORS: Final = 32  # descriptors that this process needs for a context, its sockets, and the first connections

_from_parent: list[Router] = []
"""Routers that came through a fork: kept, so that ZeroMQ's objects in them are not finalised in the child."""


class Router:
    """One ROUTER in a context of its own. One thread at a time.

    Args:
        owner: Class name for messages.
        addresses: One or two addresses.
        bind: Whether to bind to the addresses; otherwise connect to them.
        keys: Keys of this side, or None.
        heartbeat: Seconds between ZeroMQ's probes.
        max_bytes: Maximum size of a received frame.
        max_unsent: Messages queued to one peer; 0 for any number.
        monitored: Whether `events` is read regularly: ZeroMQ's own thread blocks if its events are not read.
    """

    def __init__(
        self,
        owner: str,
        addresses: Sequence[str],
        *,
        bind: bool,
        keys: Keys | None,
        heartbeat: float,
        max_bytes: int,
        max_unsent: int,
        monitored: bool = False,
    ) -> None:
        self.pid = os.getpid()
        self.addresses: tuple[str, ...] = ()  # the bound addresses, with the ports that the system has chosen
        self.peers: tuple[bytes, ...] = ()  # the peers that we connect to
        keep_freed_memory()  # of frames, for the next ones
        self._authenticator: Any = None  # set where there are keys, and we are bound
        self.monitor: Any = None
        with signals_deferred(), counted(owner, _DESCRIPTORS):
            self._open(owner, addresses, bind, keys, heartbeat, max_bytes, max_unsent, monitored)

    def _open(
        self,
        owner: str,
        addresses: Sequence[str],
        bind: bool,
        keys: Keys | None,
        heartbeat: float,
        max_bytes: int,
        max_unsent: int,
        monitored: bool,
    ) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self.socket = self._context.socket(zmq.ROUTER)
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.setsockopt(zmq.SNDHWM, max_unsent)
            self.socket.setsockopt(zmq.RCVHWM, _MAX_WAITING)
            self.socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.socket.setsockopt(zmq.IPV6, any("[" in address for address in addresses))
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, max(1, int(heartbeat * 1000)))
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, int(_PROBES * heartbeat * 1000)))
            if keys is not None:
                self._secure(owner, keys, bind=bind)
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
            if monitored:
                self.monitor = self.socket.get_monitor_socket(_EVENTS)
            if bind:
                self.addresses = tuple(self._bound(owner, address) for address in addresses)
            else:
                self.peers = tuple(self._connected(*pair) for pair in zip(addresses, _NAMES, strict=False))
        except BaseException as error:
            if self._authenticator is not None:
                self._authenticator.stop()
            self._context.destroy(linger=0)  # including open sockets: otherwise it would wait for them
            self._remove_socket_files()
            if isinstance(error, zmq.ZMQError):
                raise OSError(error.errno, f"{owner}: ZeroMQ says {error}") from error
            raise

    def _secure(self, owner: str, keys: Keys, *, bind: bool) -> None:
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
        if bind:
            from dataflow.remote.authentication import DOMAIN, start_authenticator  # here, since few programs need it

            self._authenticator = start_authenticator(self._context, keys.peers)
            self.socket.curve_server = True
            self.socket.zap_domain = DOMAIN.encode()
        elif len(keys.peers) == 1:
            self.socket.curve_serverkey = keys.peers[0]
        else:
            raise ValueError(f"{owner}: {len(keys.peers)} public keys of peers do not say whom we connect to")

    def _bound(self, owner: str, address: str) -> str:
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(
                error.errno,
                f"{owner} cannot be reached at {address}: {error.strerror}. See what else uses this address "
                "(another copy of the same flow?), or let the system choose a port: tcp://127.0.0.1:*",
            ) from None
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _connected(self, address: str, name: str) -> bytes:
        self.socket.setsockopt_string(zmq.CONNECT_ROUTING_ID, name)
        self.socket.connect(address)
        return name.encode()

    def send(self, peer: bytes, peer_message: PeerMessage) -> bool:
        """Send without waiting; return False if `peer` is gone."""
        try:
            # Frames are passed on without a copy; bytes are copied: otherwise pyzmq keeps a thread until exit.
            parts = [peer, *pack(peer_message)]
            for part in parts[:-1]:
                self._send(part, zmq.SNDMORE | zmq.NOBLOCK)
            self._send(parts[-1], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                return False
            raise
        return True

    def _send(self, part: Any, flags: int) -> None:
        self.socket.send(part, flags, copy=not isinstance(part, zmq.Frame))

    def receive(self) -> tuple[bytes, list[Any]] | None:
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
        if self.monitor is not None:
            poller.register(self.monitor, zmq.POLLIN)
        poller.poll(math.ceil(timeout * 1000))

    def events(self) -> list[int]:
        """Return the events of the connections that we make, since the last call."""
        found = []
        while self.monitor is not None:
            try:
                event, _ = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            found.append(int.from_bytes(event[:2], "little"))
        return found

    def close(self, flush: float) -> None:
        """Close everything, after what was sent has left, or after `flush` seconds."""
        if os.getpid() != self.pid:
            _from_parent.append(self)
            return
        with signals_deferred():
            if not self.socket.closed:
                with suppress(zmq.ZMQError):
                    self.socket.disable_monitor()
                if self.monitor is not None:
                    self.monitor.close(linger=0)
                self.socket.close(linger=int(flush * 1000))
            if self._authenticator is not None:
                self._authenticator.stop()
            self._context.destroy(linger=0)  # with sockets of an authenticator that could not start
            self._remove_socket_files()

    def _remove_socket_files(self) -> None:
        for address in self.addresses:
            if address.startswith("ipc://"):  # ZeroMQ leaves the file
                with suppress(OSError):
                    os.unlink(address.removeprefix("ipc://"))
