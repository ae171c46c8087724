"""Datapoints on their way through an object store: encoded as between processes, but for large arrays.

Between the processes of one machine these stand in an arena. Here each becomes a buffer of its message, and the object
store takes it from there as it is: written once where it was made, mapped where it is read. Guarantees:

- What is encoded is the datapoint as it is now; the flow may go on to change it.
- An array that the flow itself has filled (a batch, `dataflow.empty`) becomes the buffer without a copy, if nobody else
  can reach it any more.
- There is always room, and nobody waits for it.
"""

from __future__ import annotations

import math
import mmap
import weakref
from array import array as words
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.codec.decoder import ArrayDecoder
from dataflow.codec.encoder import ArrayEncoder
from dataflow.descriptors import Descriptor
from dataflow.memory.blocks import LARGE_BYTES, Block
from dataflow.memory.leases import Base

__all__ = ["ObjectStoreCodec", "ObjectStoreDecoder", "ObjectStoreEncoder"]

_NUM_FRAMES: Final = 4  # of a message with arrays; behind them come the numbers of its buffers, and these
_BUFFER: Final = -1  # instead of the status byte of a block: it is a buffer
_BYTE: Final = np.dtype(np.uint8)
_KEPT_BYTES: Final = 32 << 20  # of memory of one size that nobody uses


class _Loan(weakref.ref[Base]):
    """Notices that nobody uses some memory any more."""

    __slots__ = ("memory",)
    memory: mmap.mmap


class _Memory:
    """Memory for arrays. It is used again when the last view of an array has died: pages that are warm cost nothing."""

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}  # by the logarithm of its size
        self._loans: dict[int, _Loan] = {}  # by identity: what cannot be hashed, no reference to it can

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Base:
        """An array of at least a byte, with anything in it."""
        size = (math.prod(shape) * dtype.itemsize - 1).bit_length()
        free = self._free.setdefault(size, [])
        try:
            memory = free.pop()
        except IndexError:
            # Private: what a forked child does to it is the child's alone.
            memory = mmap.mmap(-1, 1 << size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = Base(shape, dtype, memory)
        loan = _Loan(base, self._returned)
        loan.memory = memory
        self._loans[id(loan)] = loan
        return base

    def _returned(self, loan: _Loan) -> None:  # in whichever thread
        self._loans.pop(id(loan), None)
        free = self._free[(len(loan.memory) - 1).bit_length()]
        if (len(free) + 1) * len(loan.memory) <= _KEPT_BYTES:
            free.append(loan.memory)


class _StoredMessage:
    """What an encoder has in place of the writer of an arena: a block is a buffer, and `start` its number."""

    def __init__(self) -> None:
        self._buffers: dict[int, NDArray[np.uint8]] = {}  # not sent yet, in the order of their numbers
        self._next = 0
        self._memory = _Memory()
        self._written: list[int] = []  # by `write`, since the last `unload`

    def copy(self, array: NDArray[Any], order: Any) -> Block:
        buffer = self._memory.array((array.nbytes,), _BYTE).view(np.ndarray)
        np.ndarray(array.shape, array.dtype, buffer, order=order)[...] = array
        return self._add(buffer)

    def write(self, data: bytes) -> Block:
        block = self._add(np.frombuffer(data, _BYTE))
        self._written.append(block.start)
        return block

    def draft(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for the flow to fill."""
        if dtype.hasobject or math.prod(shape) * dtype.itemsize < LARGE_BYTES:
            return np.empty(shape, dtype)
        base = self._memory.array(shape, dtype)
        base.block = Block(_BUFFER, 0, base.nbytes)
        return base.view(np.ndarray)

    def is_draft(self, base: Any) -> bool:
        return type(base) is Base and base.block is not None

    def release(self, base: Base) -> Block:
        base.block = None
        return self._add(base.view(np.ndarray).reshape(-1).view(_BYTE))

    def give_back(self, block: Block) -> None:
        del self._buffers[block.start]

    def give_back_all(self) -> None:
        self._buffers.clear()

    def tidy(self) -> None:
        """No-op: memory that nobody uses is kept for the next arrays, up to a bound."""

    def unload(self, encoded: Sequence[Any]) -> tuple[bytes, list[NDArray[np.uint8]]]:
        """The buffers of a message, and before them their numbers.

        Messages leave in the order in which their datapoints were encoded: what has a lower number and is not in this
        one belongs to a datapoint that failed half-way.
        """
        parcels = [item[3] for item in encoded if type(item) is tuple]
        blocks = [piece for data in parcels for piece in data if type(piece) is Block]
        numbers = [block.start for block in blocks] + self._written
        self._written = []
        buffers = [self._buffers[number] for number in numbers]
        last = max(numbers, default=-1)
        for number in list(self._buffers):  # the worker's other thread may add to it meanwhile
            if number <= last:
                del self._buffers[number]
        return words("Q", numbers).tobytes(), buffers

    def _add(self, buffer: NDArray[np.uint8]) -> Block:
        number, self._next = self._next, self._next + 1
        self._buffers[number] = buffer
        return Block(_BUFFER, number, len(buffer))


class ObjectStoreEncoder(ArrayEncoder):
    """The sender's end."""

    keeps_memory = False

    def __init__(self) -> None:
        self._stored = _StoredMessage()
        super().__init__(self._stored)

    def join(self, encoded: Sequence[Any]) -> tuple[list[Any], int]:
        body, nbytes = super().join(encoded)
        if len(body) == _NUM_FRAMES:
            numbers, buffers = self._stored.unload(encoded)
            body += [numbers, *buffers]
        return body, nbytes


class _Places:
    """What a decoder has in place of the readers of all arenas: the buffers of the message in hand."""

    def __init__(self, copy: bool) -> None:
        self.by_number: dict[int, Any] = {}
        self._copy = copy

    def __getitem__(self, worker: int) -> _Places:
        return self

    def leases(
        self, blocks: Sequence[tuple[int, int]], shape: Sequence[int], dtype: np.dtype[Any], order: Any = "C"
    ) -> list[NDArray[Any]]:
        arrays = [self._array(start, shape, dtype, order) for _, start in blocks]
        if not self._copy:
            for array in arrays:
                array.flags.writeable = False
        return arrays

    def _array(self, start: int, shape: Sequence[int], dtype: np.dtype[Any], order: Any) -> NDArray[Any]:
        array: NDArray[Any] = np.ndarray(shape, dtype, self.by_number[start], 0, None, order)
        return array.copy(order) if self._copy else array

    def read(self, status: int, start: int, nbytes: int) -> memoryview:
        return memoryview(self.by_number[start])

    def free(self, status: int) -> None:
        """No-op: who reads a buffer keeps it."""


class ObjectStoreDecoder(ArrayDecoder):
    """The receiver's end.

    Args:
        copy: Whether large arrays may be written to, and are copied out of the object store for that. Else they are
            read-only views, and each keeps all of its message there.
    """

    def __init__(self, copy: bool) -> None:
        self._places = _Places(copy)
        super().__init__(self._places)

    def decode(self, worker: int, body: Sequence[Any]) -> list[Any]:
        if len(body) > _NUM_FRAMES:
            self._places.by_number = dict(zip(words("Q", body[_NUM_FRAMES]), body[_NUM_FRAMES + 1 :], strict=False))
        try:
            return super().decode(worker, body[:_NUM_FRAMES])
        finally:
            self._places.by_number = {}

    def decode_failure(self, body: Sequence[Any]) -> BaseException:
        """The same; what the consumer itself has found out comes as it is."""
        return body[0] if isinstance(body[0], BaseException) else super().decode_failure(body)


class _ObjectStoreEncoderPort:
    """A worker's end, as a description."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open_encoder(self) -> ObjectStoreEncoder:
        return ObjectStoreEncoder()


class ObjectStoreCodec:
    """Between machines that trust each other.

    Args:
        copy: What the consumer does with large arrays, as for `ObjectStoreDecoder`.
    """

    def __init__(self, *, copy: bool) -> None:
        self._copy = copy

    def port(self, worker: int) -> _ObjectStoreEncoderPort:
        return _ObjectStoreEncoderPort()

    def open_decoder(self) -> ObjectStoreDecoder:
        return ObjectStoreDecoder(self._copy)

    def renew(self, worker: int) -> None:
        """Nothing was its own."""

    def close(self) -> None:
        """Nothing is held."""
