"""Actors on the consumer's own machine: large arrays from these are in an arena, as those from its processes.

Such an array is written once, into pages that are warm, where the object store would take a copy of it into an object
of its own. But an actor is no child of the consumer, and inherits no descriptor. It opens the consumer's memory as
Linux names it among the files of a process, which is allowed to processes of the same user only. Guarantees:

- An actor that cannot, because it runs on another machine, or for another user, sends the same by the object store.
- What an actor opens is what was meant: machine, device and number of the file are compared.
- Nothing of a lost actor is given to its successor: it may live on for a while, and write.
- The memory ends with the processes that have it open; nothing is left behind.
"""

from __future__ import annotations

import io
import os
import pickle
import weakref
from dataclasses import dataclass
from typing import Any

from dataflow.descriptors import Descriptor
from dataflow.distributed.crates import CrateCodec, CrateDecoder, CrateEncoder
from dataflow.transport.arena import Arena
from dataflow.transport.budget import Budget
from dataflow.transport.codec import Codec
from dataflow.transport.leases import ArenaReader

__all__ = ["NeighbourCodec", "codec_for_actors"]


def codec_for_actors(num_workers: int, max_bytes: int, *, copy: bool) -> Codec:
    """The codec for actors wherever they run.

    Args:
        num_workers: How many they are.
        max_bytes: What the arena of each may hold.
        copy: Whether large arrays may be written to.
    """
    if machine():
        return NeighbourCodec(num_workers, max_bytes, copy=copy)
    return CrateCodec(copy=copy)


def machine() -> str:
    """What no other running system is called; empty where a process cannot open what another has open."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


class NeighbourCodec:
    """Arenas for actors on this machine, crates for all others. The arguments are those of `codec_for_actors`."""

    def __init__(self, num_workers: int, max_bytes: int, *, copy: bool) -> None:
        self._max_bytes = max_bytes
        self._copy = copy
        self._arenas = [self._new_arena() for _ in range(num_workers)]
        self._readers: list[ArenaReader] = []

    def port(self, worker: int) -> _EncoderPort:
        return _EncoderPort(machine(), _packed(self._arenas[worker]))

    def open_decoder(self) -> CrateDecoder:
        self._readers = [arena.open_reader() for arena, _ in self._arenas]
        return CrateDecoder(self._copy, self._readers)  # the list itself: `renew` exchanges one

    def renew(self, worker: int) -> None:
        self._readers[worker].worker_ended()
        _close(self._arenas[worker])
        self._arenas[worker] = self._new_arena()
        self._readers[worker] = self._arenas[worker][0].open_reader()

    def close(self) -> None:
        while self._readers:
            self._readers.pop().worker_ended()
        while self._arenas:
            _close(self._arenas.pop())

    def _new_arena(self) -> tuple[Arena, Budget]:
        budget = Budget(self._max_bytes, 1)  # its own: a lost actor may live on, and count
        return Arena(0, budget), budget


@dataclass(frozen=True, slots=True)
class _EncoderPort:
    """A worker's end, as a description.

    Attributes:
        machine: That of the consumer.
        arena: An `Arena` and its `Budget`, pickled, with addresses in place of descriptors.
    """

    machine: str
    arena: bytes

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open_encoder(self) -> CrateEncoder:
        if self.machine != machine():
            return CrateEncoder()
        try:
            arena, budget = pickle.loads(self.arena)
            encoder = CrateEncoder(arena.open_writer())
        except OSError:  # it cannot be reached from here
            return CrateEncoder()
        arena.close()  # the mapping stays
        weakref.finalize(encoder, budget.close)
        return encoder


def _close(pair: tuple[Arena, Budget]) -> None:
    for part in pair:
        part.close()


class _Addressing(pickle.Pickler):
    """Instead of a descriptor of this process, pickles where others find what it refers to."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Descriptor):
            return _opened, (f"/proc/{os.getpid()}/fd/{obj.fd}", _identity(os.fstat(obj.fd)))
        return NotImplemented


def _packed(pair: tuple[Arena, Budget]) -> bytes:
    file = io.BytesIO()
    _Addressing(file).dump(pair)
    return file.getvalue()


def _opened(path: str, identity: tuple[int, int]) -> Descriptor:
    _check(os.stat(path), identity)  # before it is opened: to open something else might have effects
    found = Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    try:
        _check(os.fstat(found.fd), identity)
    except OSError:
        found.close()
        raise
    return found


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _check(status: os.stat_result, identity: tuple[int, int]) -> None:
    if _identity(status) != identity:
        raise FileNotFoundError("another process has this number here")
