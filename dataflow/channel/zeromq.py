"""ZeroMQ channel: PUSH from each worker, PULL at the consumer, on a socket file in a private directory.

Guarantees:

- The directory is new and has mode 0700: a process of another user cannot connect. It is removed once every worker has
  connected, so no process can connect afterwards, except workers that are started later: they are handed a descriptor
  of the socket's file, and connect through that. If the main process is killed before that, the directory is removed
  by the next start of a runner, or by a worker that finds itself without its parent as it starts: see `temporary`.
- A message without the token of this run is rejected before anything in it is unpickled.
- ZeroMQ's high-water marks count neither bytes nor what the peer has queued, so both are switched off; `Credit` is the
  limit.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import zmq

from dataflow.channel.messages import Message, new_token, pack, unpack
from dataflow.descriptors import Descriptor
from dataflow.interrupts import signals_blocked, signals_deferred
from dataflow.temporary import PrivateDirectory

__all__ = ["SocketChannel"]

_LOG = logging.getLogger(__name__)
_RECONNECT_MS: Final = 1  # a worker that connects before the consumer binds soon tries again
_RECONNECT_MAX_MS: Final = 100
_NAME: Final = "s"
_READ_AT_ONCE: Final = 64
# As plain integers: those of ZeroMQ are members of enumerations, which take longer.
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)


class SocketChannel:
    """A PULL socket of the consumer, and a PUSH socket in each worker."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._token = new_token()
        self._directory = _private_directory()
        self._address = _address_in(self._directory)

    def port(self, worker: int) -> _SocketPort:
        return _SocketPort(self._address, self._token)

    def open_receiver(self) -> _SocketReceiver:
        return _SocketReceiver(self._address, self._directory, self._token, self._num_workers)

    def close(self) -> None:
        self._directory.close()


def _address_in(directory: PrivateDirectory) -> str:
    return f"ipc://{os.path.join(directory.path, _NAME)}"


def _private_directory() -> PrivateDirectory:
    return PrivateDirectory(_NAME, zmq.IPC_PATH_MAX_LEN)


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


class _SocketPort:
    def __init__(self, address: str, token: bytes, file: Descriptor | None = None) -> None:
        self._address = address
        self._token = token
        self._file = file  # the socket's file, if it has no name any more; then there is no address

    def descriptors(self) -> tuple[Descriptor, ...]:
        return () if self._file is None else (self._file,)

    def open(self) -> _SocketSender:
        return _SocketSender(self._address if self._file is None else f"ipc://{_path_of(self._file)}", self._token)

    def close_in_parent(self) -> None:
        """No-op: the worker opens its own socket."""


class _SocketSender:
    def __init__(self, address: str, token: bytes) -> None:
        self._token = token
        self._context = zmq.Context()
        with _undone(self._context):
            self._open(address)

    def _open(self, address: str) -> None:
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)  # does not wait if the socket is dropped without `close`
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        self._socket.connect(address)

    def send(self, message: Message) -> None:
        # Copied: otherwise, a frame of 64 KiB or more would permanently add a pyzmq thread and its descriptors to this
        # process.
        self._socket.send(b"".join(pack(self._token, message)), copy=True)

    def close(self, flush: float) -> None:
        # Linger 0 would discard the last messages, and these include exceptions.
        self._socket.close(linger=int(flush * 1000))
        with signals_blocked():
            self._context.term()


class _SocketReceiver:
    may_arrive_late = True  # ZeroMQ moves messages in threads of its own

    def __init__(self, address: str, directory: PrivateDirectory, token: bytes, num_workers: int) -> None:
        self._directories = [directory]
        self._file: Descriptor | None = None  # the socket's file, once its directory is removed
        self._token = token
        self._num_workers = num_workers
        self._warned = False
        self._context = zmq.Context()
        with _undone(self._context):
            self._socket = self._context.socket(zmq.PULL)
            self._socket.set_hwm(0)
            self._socket.bind(address)
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
        if self._file is not None and _can_connect(self._file):  # as many listening sockets as before
            return _SocketPort("", self._token, self._file)
        self._directories.append(directory := _private_directory())
        address = _address_in(directory)
        self._socket.bind(address)
        return _SocketPort(address, self._token)

    def stop_accepting(self) -> None:
        with signals_deferred():
            if self._file is None and self._directories:
                self._file = _opened(os.path.join(self._directories[0].path, _NAME))
            self._remove_directories()

    def _remove_directories(self) -> None:
        # The open socket does not need its file.
        while self._directories:
            self._directories.pop().close()

    def stop(self) -> None:
        """No-op: a PUSH socket never blocks in `send`."""

    def close(self) -> None:
        self._socket.close(linger=0)
        with signals_blocked():
            self._context.term()
        self._remove_directories()
        if self._file is not None:
            self._file.close()


def _opened(path: str) -> Descriptor | None:
    """A descriptor that stands for the path to a socket, and outlives it; None where the system has no such thing."""
    with suppress(OSError):
        if sys.platform == "linux":
            return Descriptor(os.open(path, os.O_PATH | os.O_CLOEXEC))
    return None


def _path_of(file: Descriptor) -> str:
    return f"/proc/self/fd/{file.fd}"


def _can_connect(file: Descriptor) -> bool:
    """Whether a process that has `file` can connect: it needs /proc."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(_path_of(file))
    except OSError:
        return False
    return True
