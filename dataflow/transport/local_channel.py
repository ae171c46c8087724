"""Channels within one machine without sockets: a queue between threads, or a pipe from each process.

`PipeChannel` corresponds to the inside of a `multiprocessing.Queue`, without its locks and feeder thread: these are not
crash-safe, because a killed worker could leave a lock taken.

Guarantees:

- Each pipe has one writer: a killed worker cannot tear another's message.
- The consumer never waits for the rest of a message: it reads the available bytes and reassembles messages itself, so a
  message torn by a kill is neither delivered nor waited for.
- A message that a signal handler of the user interrupts by an exception is completed before the next one begins.
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
from typing import Any, Final

from dataflow.system.descriptors import Descriptor, pipe
from dataflow.transport.messages import (
    Channel,
    ConsumerGone,
    Message,
    Port,
    Receiver,
    Sender,
    new_token,
    pack,
    unpack,
)

__all__ = ["PipeChannel", "ThreadChannel"]


class ThreadChannel(Channel, Port, Sender, Receiver):
    """One queue for all threads, which passes messages unchanged; port, sender and receiver in one.

    A sending thread never blocks.
    """

    may_arrive_late = False

    def __init__(self) -> None:
        # Without a lock: `append` and `popleft` of a deque are single operations under the interpreter's lock.
        self._messages: deque[Message] = deque()
        self._arrived = threading.Event()

    def port(self, worker: int) -> ThreadChannel:
        return self

    def open_receiver(self) -> ThreadChannel:
        return self

    def open(self) -> ThreadChannel:
        return self

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        # `begun` stays empty: signal handlers run in no thread of a worker.
        self._messages.append(message)
        # The receiver clears the event before it looks for messages. So either the event is set here, or the receiver
        # sees this message.
        if not self._arrived.is_set():
            self._arrived.set()

    def receive_nowait(self) -> Message | None:
        # There is one receiver, so what it has seen is still there.
        return self._messages.popleft() if self._messages else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        self._arrived.clear()
        return bool(self._messages) or self._arrived.wait(timeout)

    def port_of_successor(self, worker: int) -> ThreadChannel:
        return self

    def close(self, flush: float = 0) -> None:
        """No-op."""


_PREFIX: Final = struct.Struct("<Q")  # bytes of the message that follows
_SCRATCH_BYTES: Final = 1 << 18
_PIPE_BYTES: Final = 1 << 20


class PipeChannel:
    """One pipe from each worker."""

    def __init__(self, num_workers: int) -> None:
        self._token = new_token()
        self._pipes = [_wide_pipe() for _ in range(num_workers)]

    def port(self, worker: int) -> _PipeSender:
        return _PipeSender(self._token, self._pipes[worker][1])

    def open_receiver(self) -> _PipeReceiver:
        return _PipeReceiver(self._token, [read for read, _ in self._pipes])

    def close(self) -> None:
        for ends in self._pipes:
            for end in ends:
                end.close()


def _wide_pipe() -> tuple[Descriptor, Descriptor]:
    """Create a pipe that holds several whole messages, where the system allows it.

    The worker can then continue while the consumer does not read.
    """
    read, write = pipe()
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # the user's limit for such pipes is used up: keep the default size
            fcntl.fcntl(write.fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return read, write


class _PipeSender:
    """A worker's end, port and sender in one."""

    def __init__(self, token: bytes, end: Descriptor) -> None:
        self._token = token
        self._end = end
        # Of the message that was begun last: its buffers, and how many bytes each write has taken from them. Both are
        # empty once it is complete.
        self._unfinished: tuple[list[memoryview], list[Any]] = [], []

    def descriptors(self) -> tuple[Descriptor, ...]:
        return (self._end,)

    def open(self) -> _PipeSender:
        return self

    def close_in_parent(self) -> None:
        self._end.close()

    def send(self, message: Message, begun: list[Any] | None = None) -> None:
        # If an exception ended the last call halfway, the consumer takes what comes now for the rest of that message.
        if self._unfinished[1]:
            self._finish()
        buffers = pack(self._token, message)
        views = [memoryview(data) for data in (_PREFIX.pack(sum(map(len, buffers))), *buffers)]
        # One store, so that an exception from a signal handler never finds the buffers of one message with the counts
        # of another. The caller's list is used for the counts: both sides then agree on whether the message was begun.
        self._unfinished = views, [] if begun is None else begun
        self._finish()

    def _finish(self) -> None:
        """Write what is left of the message that was begun last."""
        views, written = self._unfinished
        rest = _after(views, sum(written)) if written else views
        try:
            while rest:
                # A signal ends the call early, with a part of the data written, and its handler may raise as soon as
                # the call has returned. So the number of bytes must not pass through an instruction of Python: `map`
                # and `extend` store it from C.
                written.extend(map(os.writev, (self._end.fd,), (rest[:64],)))
                rest = _after(rest, written[-1])
        # Python ignores SIGPIPE: a pipe that nobody reads any more is an error instead of the end of the process.
        except BrokenPipeError as error:
            raise ConsumerGone from error
        self._unfinished = [], []  # lets go of the frames

    def close(self, flush: float) -> None:
        self._end.close()  # bytes already written stay readable


def _after(buffers: list[memoryview], nbytes: int) -> list[memoryview]:
    """What follows the first `nbytes` bytes of `buffers`; empty buffers at its begin are left out."""
    k = 0
    while k < len(buffers) and nbytes >= buffers[k].nbytes:
        nbytes -= buffers[k].nbytes
        k += 1
    rest = buffers[k:]
    if nbytes:
        rest[0] = rest[0][nbytes:]
    return rest


class _PipeReceiver:
    may_arrive_late = False  # what a process has written is in the pipe

    def __init__(self, token: bytes, ends: list[Descriptor]) -> None:
        self._token = token
        self._ends = ends
        self._inbox: deque[Message] = deque()
        self._partial: dict[int, bytearray] = {}  # by descriptor: bytes of incomplete messages
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._poll = select.poll()  # descriptors with data to read
        for end in ends:
            self._add(end.fd)

    def _add(self, fd: int) -> None:
        self._partial[fd] = bytearray()
        os.set_blocking(fd, False)
        self._poll.register(fd, select.POLLIN)

    def receive_nowait(self) -> Message | None:
        if not self._inbox:
            for fd, _ in self._poll.poll(0):
                if fd in self._partial:
                    self._read(fd)
                else:  # an interrupt has left it from `wait`
                    self._poll.unregister(fd)
        return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        try:
            for fd in watched:
                self._poll.register(fd, select.POLLIN)
            # Rounded up: a wait of 0 milliseconds would return at once, again and again.
            return bool(self._inbox) or any(fd in self._partial for fd, _ in self._poll.poll(math.ceil(timeout * 1000)))
        finally:
            for fd in watched:
                with suppress(KeyError):  # an interrupt may have come before it was registered
                    self._poll.unregister(fd)

    def _read(self, fd: int) -> None:
        """Read the available bytes once, and put complete messages into the inbox."""
        got = os.readv(fd, [self._scratch])
        # End of file: all write ends are closed. Poll would report that every time.
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
            # A copy: the frames outlive this buffer, and a view of it would make the `del` below raise BufferError.
            message = unpack(self._token, len(self._ends), memoryview(data[begin:end]))
            if message is not None:
                self._inbox.append(message)
            start = end
        del data[:start]

    def port_of_successor(self, worker: int) -> _PipeSender:
        old = self._ends[worker]
        # Before it is closed: the new pipe may get the same number.
        if self._partial.pop(old.fd, None) is not None:  # end of file was not read yet
            self._poll.unregister(old.fd)
        old.close()
        read, write = _wide_pipe()
        self._ends[worker] = read
        self._add(read.fd)
        return _PipeSender(self._token, write)

    def stop(self) -> None:
        self._inbox.clear()
        self._partial.clear()
        # The old descriptor numbers may be reused by other files, so a later call must not read from them.
        self._poll = select.poll()
        for end in self._ends:
            end.close()

    def close(self) -> None:
        self.stop()
