"""Messages that wait in shared memory: a lane from each worker, beside a channel for what does not fit.

While the consumer is busy, a message costs a copy at each end, and no call of the system; while it sleeps, one more to
ring a bell. Guarantees:

- A lane has one writer and one reader. How far each has come is one aligned word that it alone writes, after all that
  it tells of: what a killed worker has left half written is never seen.
- Messages of a worker are heard in the order in which they were sent. They are numbered: one that finds no room in the
  lane goes through the channel, and neither way overtakes the other.
- No message is slept over. The worker writes, and then looks again whether the consumer sleeps; the consumer says that
  it is going to sleep, and then looks once more whether something was written. Between the two steps of either stands
  a `Fence`: so at least one of them sees the other, and a bell is rung.

That one processor sees the stores of another in the order in which they were made, is so on x86. Elsewhere messages go
through the channel alone (`with_lanes`).
"""

from __future__ import annotations

import mmap
import platform
import struct
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from dataflow.descriptors import Descriptor, shared_memory_file
from dataflow.transport.bell import HAS_BELLS, Bell, Fence
from dataflow.transport.channel import Channel, Port, Receiver, Sender
from dataflow.transport.messages import Kind, Message, packed, parsed
from dataflow.transport.vigil import Vigil

__all__ = ["LaneChannel", "with_lanes"]

_POSSIBLE: Final = HAS_BELLS and platform.machine() in {"x86_64", "AMD64"}
_BYTES: Final = 256 << 10  # of a lane
_HEAD: Final = 0  # words: how far the worker has written
_TAIL: Final = 8  # how far the consumer has read
_ASLEEP: Final = 16  # set by the consumer when it goes to sleep, cleared by whoever wakes it
_DATA: Final = 256  # where messages begin: each word before has a cache line of its own
_PREFIX: Final = struct.Struct("<QQ")  # bytes and number of the message that follows
_SKIP: Final = 2**64 - 1  # instead of the bytes: the next one is at the beginning
_LOOK: Final = 32  # messages of lanes, after which the channel is looked at


def with_lanes(channel: Channel, num_workers: int) -> Channel:
    """`channel`, with a lane for each worker where that is safe."""
    return LaneChannel(channel, num_workers) if _POSSIBLE else channel


class LaneChannel:
    """Lanes, a bell, and a channel for what does not fit."""

    def __init__(self, channel: Channel, num_workers: int) -> None:
        self._channel = channel
        self._bell = Bell()
        self._files = [_new_file() for _ in range(num_workers)]
        self._readers = [_Reader(file) for file in self._files]

    def port(self, worker: int) -> _LanePort:
        return _LanePort(self._channel.port(worker), self._files[worker], self._bell)

    def open_receiver(self) -> _LaneReceiver:
        return _LaneReceiver(self._channel.open_receiver(), self._readers, self._bell)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._bell.close()
        self._channel.close()


def _new_file() -> Descriptor:
    return shared_memory_file("dataflow-lane", _DATA + _BYTES)


class _LanePort:
    def __init__(self, port: Port, file: Descriptor, bell: Bell) -> None:
        self._port = port
        self._file = file
        self._bell = bell

    def descriptors(self) -> tuple[Descriptor, ...]:
        return (self._file, self._bell.descriptor, *self._port.descriptors())

    def open(self) -> _LaneSender:
        return _LaneSender(self._port.open(), _Writer(self._file), self._bell)

    def hand_over(self) -> None:
        self._file.close()
        self._port.hand_over()


class _End:
    """One end of a lane. Positions count all bytes since the beginning, and so never turn back."""

    def __init__(self, file: Descriptor) -> None:
        view = memoryview(mmap.mmap(file.fd, _DATA + _BYTES))
        self.words = view[:_DATA].cast("Q")
        self._data = view[_DATA:]


class _Writer(_End):
    _head = 0

    def write(self, buffers: Sequence[Any], number: int) -> bool:
        """Write a message; False if there is no room for it at present."""
        nbytes = sum(map(len, buffers))
        need = _PREFIX.size + nbytes + -nbytes % _PREFIX.size
        head, tail = self._head, self.words[_TAIL]
        at = head % _BYTES
        # An empty lane is used from the beginning again, which is still in the caches.
        skips = at + need > _BYTES or (head == tail and at >= need)
        begin = head + (_BYTES - at if skips else 0)
        if begin + need - tail > _BYTES:
            return False
        if skips:
            _PREFIX.pack_into(self._data, at, _SKIP, 0)
            at = 0
        _PREFIX.pack_into(self._data, at, nbytes, number)
        at += _PREFIX.size
        for buffer in buffers:
            self._data[at : at + len(buffer)] = buffer
            at += len(buffer)
        self._head = self.words[_HEAD] = begin + need
        return True

    def is_slept_over(self) -> bool:
        """Whether the consumer sleeps and nobody wakes it yet: the caller has to."""
        if not self.words[_ASLEEP]:
            return False
        self.words[_ASLEEP] = 0
        return True


class _Reader(_End):
    _tail = 0

    def number(self) -> int:
        """Number of the message that comes next; -1 if there is none."""
        if self.words[_HEAD] == self._tail:
            return -1
        nbytes, number = _PREFIX.unpack_from(self._data, self._tail % _BYTES)
        if nbytes == _SKIP:
            self._tail += _BYTES - self._tail % _BYTES
            _, number = _PREFIX.unpack_from(self._data)
        return int(number)

    def read(self) -> bytes:
        """The message whose number was asked for."""
        at = self._tail % _BYTES
        nbytes, _ = _PREFIX.unpack_from(self._data, at)
        at += _PREFIX.size
        data = bytes(self._data[at : at + nbytes])
        self._tail += _PREFIX.size + nbytes + -nbytes % _PREFIX.size
        self.words[_TAIL] = self._tail
        return data


class _LaneSender:
    def __init__(self, sender: Sender, lane: _Writer, bell: Bell) -> None:
        self._sender = sender
        self._lane = lane
        self._bell = bell
        self._fence = Fence()
        self._number = 0

    def send(self, message: Message) -> None:
        lane, message.number = self._lane, self._number
        # The first one connects, which nobody else may do afterwards.
        if message.kind is not Kind.HELLO and lane.write(packed(message), self._number):
            with self._fence:
                pass
            if lane.is_slept_over():
                self._bell.ring()
        else:
            self._sender.send(message)
        self._number += 1

    def close(self, flush: float) -> None:
        self._sender.close(flush)


class _LaneReceiver:
    def __init__(self, receiver: Receiver, lanes: list[_Reader], bell: Bell) -> None:
        self._receiver = receiver
        self._lanes = lanes
        self._bell = bell
        self._due = [0] * len(lanes)  # number of the message that comes next, of each worker
        self._early: list[deque[Message]] = [deque() for _ in lanes]  # what has come through the channel, by worker
        self._last = 0  # whose lane was read last: the others come first
        self._num_early = 0
        self._since = 0  # how often it was asked for one since the channel was looked at
        self._channel_has_some = False
        self._fence = Fence()
        self._vigil = Vigil()

    def take(self) -> Message | None:
        self._since += 1
        if self._since >= _LOOK or self._channel_has_some:
            self._since, self._channel_has_some = 0, False
            while (message := self._receiver.take()) is not None:
                self._early[message.worker].append(message)
                self._num_early += 1
        if self._num_early:
            for worker, early in enumerate(self._early):
                if early and early[0].number == self._due[worker]:
                    self._due[worker] += 1
                    self._num_early -= 1
                    return early.popleft()
        return self._from_lane()

    def wait(self, timeout: float, watched: Sequence[int] = ()) -> bool:
        return self._vigil.wait(self._has_next, partial(self._sleep, timeout, watched))

    def readmit(self, worker: int) -> _LanePort:
        port = self._receiver.readmit(worker)
        file = _new_file()
        self._lanes[worker] = _Reader(file)
        self._due[worker] = 0
        self._num_early -= len(self._early[worker])
        self._early[worker].clear()
        return _LanePort(port, file, self._bell)

    def everyone_connected(self) -> None:
        self._receiver.everyone_connected()

    def stop(self) -> None:
        self._receiver.stop()

    def close(self) -> None:
        self._lanes, self._due, self._early = [], [], []
        self._bell.close()
        self._receiver.close()

    def _from_lane(self) -> Message | None:
        lanes = self._lanes
        for step in range(1, len(lanes) + 1):
            k = (self._last + step) % len(lanes)
            if lanes[k].number() == self._due[k]:
                self._due[k] += 1
                self._last = k
                return parsed(len(lanes), memoryview(lanes[k].read()))
        return None

    def _has_next(self) -> bool:
        for lane, due in zip(self._lanes, self._due, strict=True):
            if lane.number() == due:
                return True
        return bool(self._num_early) and any(
            early and early[0].number == due for early, due in zip(self._early, self._due, strict=True)
        )

    def _sleep(self, timeout: float, watched: Sequence[int]) -> bool:
        end = time.monotonic() + timeout
        while True:
            for lane in self._lanes:
                lane.words[_ASLEEP] = 1
            with self._fence:
                pass
            try:
                if self._has_next():
                    return True
                if self._receiver.wait(timeout, (*watched, self._bell.fileno())):
                    self._channel_has_some = True
                    return True
                rung = self._bell.quiet()
            finally:
                for lane in self._lanes:
                    lane.words[_ASLEEP] = 0
            if self._has_next():
                return True
            # It may have been rung for what was found before it was heard, or for what is not due yet.
            timeout = end - time.monotonic()
            if not rung or timeout <= 0:
                return False
