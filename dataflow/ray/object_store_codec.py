"""`ObjectStoreCodec`: encodes datapoints for an object store, as between processes, except for large arrays.

Between the processes of one machine these are in an arena. Here each becomes a buffer of its message, and the object
store takes the buffer as it is: written once where it was made, mapped where it is read. Guarantees:

- The datapoint is encoded in its present state; the flow may go on to change it.
- An array that the flow itself has filled (a batch, `dataflow.empty`) becomes the buffer without a copy, if it has no
  other references.
- There is always room, so encoding never waits.
"""

from __future__ import annotations

import math
from array import array as words
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.arena import LARGE_BYTES, Base, Block, BlockReader, BlockWriter
from dataflow.transport.array_codec import ArrayDecoder, ArrayEncoder
from dataflow.transport.codec import Codec, EncoderPort

__all__ = ["ObjectStoreCodec", "ObjectStoreDecoder", "ObjectStoreEncoder"]

_NUM_FRAMES: Final = 4  # of a message with arrays; behind them come the numbers of its buffers, and these
_BUFFER: Final = -1  # in place of the status byte of a block: it is a buffer
_BYTE: Final = np.dtype(np.uint8)


class _BufferWriter(BlockWriter):
    """Substitute for the writer of an arena: a block is a buffer, and `start` its number."""

    def __init__(self) -> None:
        self._buffers: dict[int, NDArray[np.uint8]] = {}  # not sent yet, in the order of their numbers
        self._next = 0
        self._written: list[int] = []  # by `write`, since the last `unload`

    def copy(self, array: NDArray[Any], order: Any) -> Block:
        buffer = np.empty(array.nbytes, _BYTE)
        np.ndarray(array.shape, array.dtype, buffer, order=order)[...] = array
        return self._add(buffer)

    def write(self, data: bytes) -> Block:
        block = self._add(np.frombuffer(data, _BYTE))
        self._written.append(block.start)
        return block

    def output_buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an output buffer: an array for the flow to fill."""
        if dtype.hasobject or math.prod(shape) * dtype.itemsize < LARGE_BYTES:
            return np.empty(shape, dtype)
        base = Base(shape, dtype)
        base.block = Block(_BUFFER, 0, base.nbytes)
        return base.view(np.ndarray)

    def is_output_buffer(self, base: Any) -> bool:
        return type(base) is Base and base.block is not None

    def release(self, base: Base) -> Block:
        base.block = None
        return self._add(base.view(np.ndarray).reshape(-1).view(_BYTE))

    def give_back(self, block: Block) -> None:
        del self._buffers[block.start]

    def give_back_all(self) -> None:
        self._buffers.clear()

    def unload(self, encoded: Sequence[Any]) -> tuple[bytes, list[NDArray[np.uint8]]]:
        """Return the buffers of a message, preceded by their numbers.

        Messages leave in the order in which their datapoints were encoded: a buffer with a lower number that is not in
        this message belongs to a datapoint whose encoding failed half-way.
        """
        pieces = [piece for item in encoded if type(item) is tuple for piece in item[3]]
        blocks = [piece for piece in pieces if type(piece) is Block]
        numbers = [block.start for block in blocks] + self._written
        self._written = []
        buffers = [self._buffers[number] for number in numbers]
        last = max(numbers, default=-1)
        for number in list(self._buffers):  # the worker's other thread may add to it meanwhile
            if number <= last:
                del self._buffers[number]
        return words("Q", numbers).tobytes(), buffers

    def _add(self, buffer: NDArray[np.uint8]) -> Block:
        # No other thread comes between reading and writing: CPython changes threads at calls and at the ends of loops
        # only.
        number, self._next = self._next, self._next + 1
        self._buffers[number] = buffer
        return Block(_BUFFER, number, len(buffer))


class ObjectStoreEncoder(ArrayEncoder):
    """Encoder of the worker."""

    keeps_memory = False

    def __init__(self) -> None:
        self._writer = _BufferWriter()
        super().__init__(self._writer)

    def join(self, encoded: Sequence[Any]) -> tuple[list[Any], int]:
        body, nbytes = super().join(encoded)
        if len(body) == _NUM_FRAMES:
            numbers, buffers = self._writer.unload(encoded)
            body += [numbers, *buffers]
        return body, nbytes


class _BufferReader(BlockReader):
    """Substitute for the readers of all arenas: the buffers of the current message, which references keep."""

    def __init__(self, copy: bool) -> None:
        self.by_number: dict[int, Any] = {}
        self._copy = copy

    def __getitem__(self, worker: int) -> _BufferReader:
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


class ObjectStoreDecoder(ArrayDecoder):
    """Decoder of the consumer.

    Args:
        copy: Whether large arrays are writable copies of those in the object store. Otherwise they are
            read-only views, and each keeps all of its message there.
    """

    def __init__(self, copy: bool) -> None:
        self._reader = _BufferReader(copy)
        super().__init__(self._reader)

    def decode(self, worker: int, body: Sequence[Any]) -> list[Any]:
        if len(body) > _NUM_FRAMES:
            self._reader.by_number = dict(zip(words("Q", body[_NUM_FRAMES]), body[_NUM_FRAMES + 1 :], strict=False))
        try:
            return super().decode(worker, body[:_NUM_FRAMES])
        finally:
            self._reader.by_number = {}  # or the buffers would stay in the store until the next message

    def decode_failure(self, body: Sequence[Any]) -> BaseException:
        """Decode a failure; an error that the consumer itself has made is passed on as it is."""
        return body[0] if isinstance(body[0], BaseException) else super().decode_failure(body)


class ObjectStoreCodec(Codec, EncoderPort):
    """Codec between machines that trust each other; also the description of a worker's end, which has no state here.

    Args:
        copy: What the consumer does with large arrays, as for `ObjectStoreDecoder`.
    """

    def __init__(self, *, copy: bool) -> None:
        self._copy = copy

    def port(self, worker: int) -> ObjectStoreCodec:
        return self

    def open_encoder(self) -> ObjectStoreEncoder:
        return ObjectStoreEncoder()

    def open_decoder(self) -> ObjectStoreDecoder:
        return ObjectStoreDecoder(self._copy)

    def bytes_in_use(self) -> int:
        return 0  # the object store belongs to Ray
