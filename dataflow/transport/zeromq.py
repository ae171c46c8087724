"""ZeroMQ channel: PUSH from each worker, PULL at the consumer, on Unix sockets that have no file.

Guarantees:

- Nothing is left of a process that was killed, at whatever moment: an address is a name in Linux's abstract namespace,
  which ends with the sockets that use it.
- Such a name has no permissions. Instead, the kernel says which user a connecting process belongs to (`SO_PEERCRED`),
  and ZeroMQ closes the connection of any other before it reads from it. A message without the token of this run is
  rejected before anything in it is unpickled.
- A worker connects to the consumer or to nobody. The consumer listens from before it starts workers until its end, and
  a worker never connects a second time: a process that takes the name then finds nobody who wants it.
- ZeroMQ's high-water marks count neither bytes nor what the peer has queued, so both are switched off; `Credit` is the
  limit.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import zmq

from dataflow.system.descriptors import Descriptor, closed_on_error, no_fork
from dataflow.system.interrupts import signals_blocked, signals_deferred
from dataflow.transport.messages import Message, Port, Receiver, new_token, pack, unpack

__all__ = ["SocketChannel"]

_LOG = logging.getLogger(__name__)
_NO_RECONNECTION: Final = -1
# Workers that connect before the consumer accepts wait in the kernel, which holds 128 on older systems.
_WORKERS_PER_ADDRESS: Final = 100
_READ_AT_ONCE: Final = 64
# As plain integers: those of ZeroMQ are members of enumerations, which take longer.
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)


class SocketChannel:
    """A PULL socket of the consumer, and a PUSH socket in each worker."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._token = new_token()
        with closed_on_error():
            self._addresses = [_Address() for _ in range(0, num_workers, _WORKERS_PER_ADDRESS)]
        self._urls = [address.url for address in self._addresses]

    def port(self, worker: int) -> _SocketPort:
        return _port(worker, self._urls, self._token)

    def open_receiver(self) -> _SocketReceiver:
        return _SocketReceiver(self._addresses, self._token, self._num_workers)

    def close(self) -> None:
        for address in self._addresses:
            address.close()


class _Address(Descriptor):
    """A new address, at which this process listens: connections wait until ZeroMQ accepts them."""

    def __init__(self) -> None:
        name = f"dataflow-{secrets.token_hex(16)}"
        self.url = f"ipc://@{name}"
        with no_fork, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.setblocking(False)
            listening.bind(f"\0{name}")
            listening.listen(_WORKERS_PER_ADDRESS)
            # Detached, so that the end of the block does not close it.
            super().__init__(listening.detach())


@contextmanager
def _undone(context: zmq.Context[Any]) -> Iterator[None]:
    """Close the sockets and `context` if the block raises; otherwise the garbage collector would wait for them.

    Raises:
        OSError: ZeroMQ has no descriptors left, or reports any other refusal of the system.
    """
    try:
        yield
    except BaseException as error:
        with signals_blocked():
            context.destroy(linger=0)
        if isinstance(error, zmq.ZMQError):
            raise OSError(error.errno, f"ZeroMQ says {error}") from error
        raise


def _port(worker: int, urls: Sequence[str], token: bytes) -> _SocketPort:
    return _SocketPort(urls[worker // _WORKERS_PER_ADDRESS], token)


class _SocketPort(Port):
    def __init__(self, url: str, token: bytes) -> None:
        self._url = url
        self._token = token

    def open(self) -> _SocketSender:
        return _SocketSender(self._url, self._token)


class _SocketSender:
    def __init__(self, url: str, token: bytes) -> None:
        self._token = token
        self._context = zmq.Context()
        with _undone(self._context):
            self._open(url)

    def _open(self, url: str) -> None:
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)  # does not wait if the socket is dropped without `close`
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NO_RECONNECTION)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, 0)  # the consumer accepts when all workers were started
        self._socket.connect(url)

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        data = b"".join(pack(self._token, message))
        # pyzmq runs signal handlers after the message has left: if one raised there, the message would seem unsent.
        with signals_deferred():
            # Copied: otherwise, a frame of 64 KiB or more would permanently add a pyzmq thread and its descriptors to
            # this process.
            self._socket.send(data, copy=True)
            if begun is not None:
                begun.append(None)

    def close(self, flush: float) -> None:
        # Linger 0 would discard the last messages, and these include exceptions.
        self._socket.close(linger=int(flush * 1000))
        with signals_blocked():
            # A signal would end `term` early; pyzmq would count the context as closed then, and its descriptors would
            # stay.
            self._context.term()


class _SocketReceiver(Receiver):
    may_arrive_late = True  # ZeroMQ moves messages in threads of its own

    def __init__(self, addresses: Sequence[_Address], token: bytes, num_workers: int) -> None:
        self._token = token
        self._num_workers = num_workers
        self._warned = False
        self._urls = [address.url for address in addresses]
        self._context = zmq.Context()
        with _undone(self._context):
            self._socket = self._context.socket(zmq.PULL)
            self._socket.set_hwm(0)
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, 0)  # a worker that was stopped meanwhile has one attempt only
            # Before the first `bind`: options apply to what is bound later.
            self._socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
            for address in addresses:
                # For the next `bind`, which takes this descriptor, as it listens already, and makes none.
                self._socket.setsockopt(zmq.USE_FD, address.fd)
                self._socket.bind(address.url)
                address.disown()  # ZeroMQ closes it
        self._fd = int(self._socket.getsockopt(zmq.FD))  # signals that something has happened, not what
        self._is_empty = False  # no message was there, and the descriptor has signalled nothing since
        self._poll = select.poll()
        self._watched: Sequence[int] | None = None  # descriptors registered beside the socket

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        if watched != self._watched:
            # A new poll object: an interrupt halfway must not leave a number registered that is closed and reused.
            self._poll, self._watched = select.poll(), None
            for fd in (self._fd, *watched):
                self._poll.register(fd, select.POLLIN)
            self._watched = watched
        end = time.monotonic() + timeout
        while not self._has_next():
            # Rounded up: a wait of 0 milliseconds would return at once, again and again.
            ready = dict(self._poll.poll(math.ceil(max(0.0, timeout) * 1000)))
            self._is_empty = self._fd not in ready
            if self._is_empty:
                return False
            timeout = end - time.monotonic()
        return True

    def _has_next(self) -> bool:
        # The descriptor is edge-triggered: it signals an event once, and any query of the socket resets it. After a
        # signal, the socket must be queried until it is empty.
        if not self._is_empty:
            self._is_empty = not int(self._socket.get(_EVENTS)) & _READABLE
        return not self._is_empty

    def receive_nowait(self) -> Message | None:
        # Limited, so that a process that sends many forged messages cannot keep the consumer in this loop.
        for _ in range(_READ_AT_ONCE):
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._is_empty = True
                return None
            self._is_empty = False
            message = unpack(self._token, self._num_workers, data)
            if message is not None:
                return message
            if not self._warned:
                self._warned = True
                _LOG.warning("refused a message that does not come from a worker of this run; others are not reported")
        return None

    def port_of_successor(self, worker: int) -> _SocketPort:
        return _port(worker, self._urls, self._token)

    def close(self) -> None:
        self._socket.close(linger=0)
        with signals_blocked():
            # As in the sender: a signal must not end it early.
            self._context.term()
