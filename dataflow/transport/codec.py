"""Codec: the interface by which workers encode datapoints and the consumer decodes them.

A codec is a description; each side opens its own end. A datapoint is encoded at once, before the flow's next step,
because the flow may change what it has yielded. Messages collect encoded datapoints, never the datapoints themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.failures import Report, add_note
from dataflow.system.descriptors import Descriptor
from dataflow.transport.arena import Arena, ArenaFile, ArenaReader, MemoryLimit
from dataflow.transport.array_codec import ArrayDecoder, ArrayEncoder, Undecodable
from dataflow.transport.message_layout import NO_ROOM

__all__ = ["ArrayCodec", "Codec", "Decoder", "Encoder", "EncoderPort", "ObjectCodec", "Undecodable"]


class Encoder(Protocol):
    """The worker's end of a codec."""

    nbytes: int
    """Bytes of the last encoded datapoint, as counted against a window."""

    plain: bool
    """Whether to try `encode_plain` for the next datapoints."""

    keeps_memory: bool
    """Whether `tidy` has an effect."""

    def encode_plain(self, datapoints: Iterator[Any], encoded: MutableSequence[Any]) -> Any:
        """Encode datapoints as long as they take a few bytes, and append them to `encoded`, one by one.

        Returns the first datapoint that does not, or `NO_ROOM` at the end.
        """
        return NO_ROOM

    def encode(self, dp: Any) -> Any:
        """Encode a snapshot of one datapoint. Return `NO_ROOM` if there is no room for its arrays at present."""

    def encode_inline(self, dp: Any) -> Any:
        """Encode one datapoint without waiting for room: its arrays travel in the message."""

    def join(self, encoded: Sequence[Any]) -> tuple[Any, int]:
        """Return the body of a message, and the bytes of its datapoints."""

    def encode_failure(self, error: BaseException, note: str) -> Any:
        """Return the body of an error message."""

    def encode_report(self, report: Report, note: str) -> Any:
        """Return the body of a report message."""

    def tidy(self) -> None:
        """Release unused memory. Called periodically, from another thread."""
        return

    def calibrate(self, run: Callable[[Iterator[Any]], Any]) -> None:
        """Calibrate reference counts by encoding sample datapoints on the path of `run`, which discards them."""
        return

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array for the flow to fill, in the memory that it would be sent from, if there is such memory."""
        return np.empty(shape, dtype)


class Decoder(Protocol):
    """The consumer's end of a codec."""

    def decode(self, worker: int, body: Any) -> list[Any]:
        """Decode the datapoints of a message."""

    def decode_failure(self, body: Any) -> BaseException:
        """Decode the exception of an error message."""

    def decode_report(self, body: Any) -> Report:
        """Decode the report of a report message."""


class EncoderPort(Protocol):
    """Description of a worker's end; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """Descriptors that a forked worker has to inherit."""
        return ()

    def open_encoder(self) -> Encoder:
        """Open the end, in the worker."""


class Codec(Protocol):
    """The consumer's handle of a codec."""

    def port(self, worker: int) -> EncoderPort:
        """The description for one worker."""

    def open_decoder(self) -> Decoder:
        """Open the consumer's end."""

    def renew(self, worker: int) -> None:
        """Prepare for a replacement of `worker`, which has ended and all whose messages were received.

        The next `port` is for its successor.
        """
        return

    def bytes_in_use(self) -> int:
        """Bytes of shared memory in use for arrays."""

    def close(self) -> None:
        """Close what this process holds; decoded datapoints stay valid. Idempotent."""
        return


class ObjectCodec(Codec, EncoderPort, Encoder, Decoder):
    """Codec between threads, which passes the datapoints themselves; codec, port, encoder and decoder in one."""

    nbytes = 0  # bytes are not counted
    plain = True
    keeps_memory = False

    def port(self, worker: int) -> ObjectCodec:
        return self

    def open_encoder(self) -> ObjectCodec:
        return self

    def open_decoder(self) -> ObjectCodec:
        return self

    def bytes_in_use(self) -> int:
        return 0

    def encode_plain(self, datapoints: Iterator[Any], encoded: MutableSequence[Any]) -> Any:
        encoded.extend(datapoints)  # one by one, as another thread takes them
        return NO_ROOM

    def encode(self, dp: Any) -> Any:
        return dp

    encode_inline = encode

    def join(self, encoded: Sequence[Any]) -> tuple[Any, int]:
        return tuple(encoded), 0

    def decode(self, worker: int, body: Sequence[Any]) -> list[Any]:
        return list(body)

    def encode_failure(self, error: BaseException, note: str) -> BaseException:
        add_note(error, note)
        return error

    def decode_failure(self, body: BaseException) -> BaseException:
        return body

    def encode_report(self, report: Report, note: str) -> Report:
        if report.error is not None:
            add_note(report.error, note)
        return report

    def decode_report(self, body: Report) -> Report:
        return body


@dataclass
class _ArrayPort:
    arena: Arena

    def descriptors(self) -> tuple[Descriptor, ...]:
        return self.arena.descriptors()

    def open_encoder(self) -> ArrayEncoder:
        return ArrayEncoder(self.arena.open_writer())


class ArrayCodec:
    """Codec between mutually trusting processes of one machine: arrays in shared memory, the rest pickled.

    Args:
        num_workers: Number of workers; each gets its own arena.
        max_bytes: Limit for all arenas together.
    """

    def __init__(self, num_workers: int, max_bytes: int) -> None:
        self.memory_limit = MemoryLimit(max_bytes, num_workers)
        self._file = ArenaFile(self.memory_limit)
        self._arenas = [self._file.new_arena(k) for k in range(num_workers)]
        self._readers: list[ArenaReader] = []

    def port(self, worker: int) -> _ArrayPort:
        return _ArrayPort(self._arenas[worker])

    def open_decoder(self) -> ArrayDecoder:
        self._readers = [arena.open_reader() for arena in self._arenas]
        return ArrayDecoder(self._readers)  # not a copy: `renew` replaces an element

    def renew(self, worker: int) -> None:
        # A new arena: blocks that the dead worker had taken and not sent are used no more, like all of the old one. Its
        # pages are returned now, or when the last views of what the worker did send are gone.
        self._readers[worker].worker_ended()
        # The dead worker cannot do so, and its successor counts its own pages in the same word.
        self.memory_limit.give_back(worker, self.memory_limit.held()[worker])
        self._arenas[worker] = self._file.new_arena(worker)
        self._readers[worker] = self._arenas[worker].open_reader()

    def bytes_in_use(self) -> int:
        return sum(self.memory_limit.held())

    def close(self) -> None:
        # Emptied in place: the decoder has the same list, and would keep the readers and their mappings.
        while self._readers:
            self._readers.pop().worker_ended()
        # After the readers, which return their pages through this descriptor.
        self._file.close()
        self.memory_limit.close()
