"""Channels inside one machine without sockets: a queue between threads, a pipe from each process.

`PipeChannel` is what a `multiprocessing.Queue` is inside, without its locks and its feeder thread: those are not
crash-safe, and a killed worker could leave a lock taken. Guarantees:

- One writer per pipe: a killed worker cannot tear another's message.
- The consumer never waits for the rest of a message: it reads what is there and puts messages together itself, so a
  message torn by a kill is never delivered, and never waited for.
"""

from __future__ import annotations

import math
import os
import select
import struct
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from dataflow.channel.messages import Message, new_token, pack, unpack
from dataflow.channel.protocols import ConsumerGone
from dataflow.descriptors import Descriptor, pipe

__all__ = ["PipeChannel", "ThreadChannel"]


class ThreadChannel:
    """One queue for all threads. Messages are passed on as they are; it is port, sender and receiver at once."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._news = threading.Event()

    def port(self, worker: int) -> ThreadChannel:
        return self

    def open_receiver(self) -> ThreadChannel:
        return self

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def hand_over(self) -> None:
        """Nothing is held by one thread alone."""

    def open(self) -> ThreadChannel:
        return self

    def send(self, message: Message) -> None:
        self._messages.append(message)
        # Whoever clears the event looks for messages after that: so it is set, or this one is seen.
        if not self._news.is_set():
            self._news.set()

    def take(self) -> Message | None:
        return self._messages.popleft() if self._messages else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        self._news.clear()
        return bool(self._messages) or self._news.wait(timeout)

    def readmit(self, worker: int) -> ThreadChannel:
        return self

    def everyone_connected(self) -> None:
        """Nobody else can connect."""

    def stop(self) -> None:
        """A thread never waits to be read."""

    def close(self, flush: float = 0) -> None:
        """Nothing is held."""


_PREFIX: Final = struct.Struct("<Q")  # bytes of the message that follows
_SCRATCH_BYTES: Final = 1 << 18
_PIPE_BYTES: Final = 1 << 20


class PipeChannel:
    """One pipe from each worker."""

    def __init__(self, num_workers: int) -> None:
        self._token = new_token()
        self._pipes = [_wide_pipe() for _ in range(num_workers)]

    def port(self, worker: int) -> _PipePort:
        return _PipePort(self._token, self._pipes[worker][1])

    def open_receiver(self) -> _PipeReceiver:
        return _PipeReceiver(self._token, [read for read, _ in self._pipes])

    def close(self) -> None:
        for ends in self._pipes:
            for end in ends:
                end.close()


def _wide_pipe() -> tuple[Descriptor, Descriptor]:
    """A pipe that holds a few whole messages, where the system allows: so the worker goes on while nobody reads."""
    read, write = pipe()
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # the user's share of such pipes is used up: a narrow one will do
            fcntl.fcntl(write.fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read, write


class _PipePort:
    def __init__(self, token: bytes, end: Descriptor) -> None:
        self._token = token
        self._end = end

    def descriptors(self) -> tuple[Descriptor, ...]:
        return (self._end,)

    def open(self) -> _PipeSender:
        return _PipeSender(self._token, self._end)

    def hand_over(self) -> None:
        self._end.close()


class _PipeSender:
    def __init__(self, token: bytes, end: Descriptor) -> None:
        self._token = token
        self._end = end

    def send(self, message: Message) -> None:
        buffers = pack(self._token, message)
        rest = [memoryview(data) for data in (_PREFIX.pack(sum(map(len, buffers))), *buffers)]
        try:
            while rest:
                written = os.writev(self._end.fd, rest[:64])
                while rest and written >= rest[0].nbytes:
                    written -= rest.pop(0).nbytes
                if rest:
                    rest[0] = rest[0][written:]
        except BrokenPipeError as error:
            raise ConsumerGone from error

    def close(self, flush: float) -> None:
        self._end.close()  # what was written stays readable


class _PipeReceiver:
    def __init__(self, token: bytes, ends: list[Descriptor]) -> None:
        self._token = token
        self._ends = ends
        self._inbox: deque[Message] = deque()
        self._partial: dict[int, bytearray] = {}  # what came of messages that are not whole yet
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._poll = select.poll()  # what data come from
        for end in ends:
            self._add(end.fd)

    def _add(self, fd: int) -> None:
        self._partial[fd] = bytearray()
        os.set_blocking(fd, False)
        self._poll.register(fd, select.POLLIN)

    def take(self) -> Message | None:
        if not self._inbox:
            for fd, _ in self._poll.poll(0):
                self._read(fd)
        return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        try:
            for fd in watched:
                self._poll.register(fd, select.POLLIN)
            return bool(self._inbox) or any(fd in self._partial for fd, _ in self._poll.poll(math.ceil(timeout * 1000)))
        finally:
            for fd in watched:
                with suppress(KeyError):  # an interrupt may have come before it was registered
                    self._poll.unregister(fd)

    def _read(self, fd: int) -> None:
        """Read what is there, once, and put whole messages into the inbox."""
        got = os.readv(fd, [self._scratch])
        if not got:
            self._poll.unregister(fd)
            del self._partial[fd]
            return
        data = self._partial[fd]
        data += self._scratch[:got]
        start = 0
        while len(data) - start >= _PREFIX.size:
            (nbytes,) = _PREFIX.unpack_from(data, start)
            begin, end = start + _PREFIX.size, start + _PREFIX.size + nbytes
            if len(data) < end:
                break
            message = unpack(self._token, len(self._ends), memoryview(data[begin:end]))
            if message is not None:
                self._inbox.append(message)
            start = end
        del data[:start]

    def readmit(self, worker: int) -> _PipePort:
        old = self._ends[worker]
        if self._partial.pop(old.fd, None) is not None:  # its end was not read yet
            self._poll.unregister(old.fd)
        old.close()
        read, write = _wide_pipe()
        self._ends[worker] = read
        self._add(read.fd)
        return _PipePort(self._token, write)

    def everyone_connected(self) -> None:
        """A pipe has no address."""

    def stop(self) -> None:
        self._inbox.clear()
        self._partial.clear()
        self._poll = select.poll()  # whoever asks again must not read from numbers that are given to others
        for end in self._ends:
            end.close()

    def close(self) -> None:
        self.stop()
