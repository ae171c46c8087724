"""How datapoints are written by a worker and read by the consumer. A codec is a description; each side opens its end.

A datapoint is encoded at once, before the flow's next step: the flow may go on to change what it has yielded. What is
collected for one message is encoded datapoints, never the datapoints themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.codec.decoder import ArrayDecoder, Undecodable
from dataflow.codec.encoder import ArrayEncoder
from dataflow.codec.message_layout import NO_ROOM
from dataflow.descriptors import Descriptor
from dataflow.failures import Report
from dataflow.memory.arena import Arena, Budget
from dataflow.memory.leases import ArenaReader

__all__ = ["ArrayCodec", "Codec", "Decoder", "Encoder", "EncoderPort", "ObjectCodec", "Undecodable"]


class Encoder(Protocol):
    """A worker's end."""

    nbytes: int
    """Bytes of the last encoded datapoint, as they count against a window."""

    plain: bool
    """Whether the next datapoints may be tried with `encode_plain`."""

    keeps_memory: bool
    """Whether `tidy` has anything to do."""

    def encode_plain(self, datapoints: Iterator[Any], append: Callable[[Any], object]) -> Any:
        """Encode one after the other what takes a few bytes; the first datapoint that does not, or `NO_ROOM`."""

    def encode(self, dp: Any) -> Any:
        """One datapoint, as it is now; `NO_ROOM` if there is none for its arrays at present."""

    def encode_inline(self, dp: Any) -> Any:
        """The same where there will be no room."""

    def join(self, encoded: Sequence[Any]) -> tuple[Any, int]:
        """The body of a message, and the bytes of its datapoints."""

    def encode_failure(self, error: BaseException, note: str) -> Any:
        """The body of a message about an exception."""

    def encode_report(self, report: Report, note: str) -> Any:
        """The body of a report."""

    def tidy(self) -> None:
        """Give back memory that is not used. Called now and then, from another thread."""

    def calibrate(self, run: Callable[[Iterator[Any]], Any]) -> None:
        """See what datapoints look like on the path of `run`, which sends them to nobody."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for the flow to fill, where it would be sent from."""


class Decoder(Protocol):
    """The consumer's end."""

    def decode(self, worker: int, body: Any) -> list[Any]:
        """The datapoints of a message."""

    def decode_failure(self, body: Any) -> BaseException:
        """The exception of a message about one."""

    def decode_report(self, body: Any) -> Report:
        """The report of a message with one."""


class EncoderPort(Protocol):
    """A worker's end, as a description; picklable while a process is started."""

    def descriptors(self) -> tuple[Descriptor, ...]:
        """What a forked worker has to inherit."""

    def open_encoder(self) -> Encoder:
        """Open the end, in the worker."""


class Codec(Protocol):
    """The consumer's handle."""

    def port(self, worker: int) -> EncoderPort:
        """The description for one worker."""

    def open_decoder(self) -> Decoder:
        """Open the consumer's end."""

    def renew(self, worker: int) -> None:
        """`worker` has ended, and was heard to its end; the next `port` is for one that takes its place."""

    def close(self) -> None:
        """Close what this process holds; what was decoded stays valid. Idempotent."""


class ObjectCodec:
    """Between threads: the datapoint itself travels. It is codec, port, encoder and decoder at once."""

    nbytes = 0  # nobody counts them
    plain = True
    keeps_memory = False

    def port(self, worker: int) -> ObjectCodec:
        return self

    def descriptors(self) -> tuple[Descriptor, ...]:
        return ()

    def open_encoder(self) -> ObjectCodec:
        return self

    def open_decoder(self) -> ObjectCodec:
        return self

    def renew(self, worker: int) -> None:
        """Nothing was its own."""

    def close(self) -> None:
        """Nothing is held."""

    def encode_plain(self, datapoints: Iterator[Any], append: Callable[[Any], object]) -> Any:
        for dp in datapoints:
            append(dp)
        return NO_ROOM

    def encode(self, dp: Any) -> Any:
        return dp

    encode_inline = encode

    def join(self, encoded: Sequence[Any]) -> tuple[Any, int]:
        return tuple(encoded), 0

    def decode(self, worker: int, body: Sequence[Any]) -> list[Any]:
        return list(body)

    def encode_failure(self, error: BaseException, note: str) -> BaseException:
        error.add_note(note)
        return error

    def decode_failure(self, body: BaseException) -> BaseException:
        return body

    def encode_report(self, report: Report, note: str) -> Report:
        if report.error is not None:
            report.error.add_note(note)
        return report

    def decode_report(self, body: Report) -> Report:
        return body

    def tidy(self) -> None:
        """Nothing is kept."""

    def calibrate(self, run: Callable[[Iterator[Any]], Any]) -> None:
        """Nothing is copied."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return np.empty(shape, dtype)


@dataclass
class _ArrayPort:
    arena: Arena

    def descriptors(self) -> tuple[Descriptor, ...]:
        return self.arena.descriptors()

    def open_encoder(self) -> ArrayEncoder:
        return ArrayEncoder(self.arena.open_writer())


class ArrayCodec:
    """Between processes of one machine, which trust each other: arrays in shared memory, the rest pickled.

    Args:
        num_workers: Each gets an arena of its own.
        max_bytes: What all arenas may hold together.
    """

    def __init__(self, num_workers: int, max_bytes: int) -> None:
        self.budget = Budget(max_bytes, num_workers)
        self._arenas = [Arena(k, self.budget) for k in range(num_workers)]
        self._readers: list[ArenaReader] = []

    def port(self, worker: int) -> _ArrayPort:
        return _ArrayPort(self._arenas[worker])

    def open_decoder(self) -> ArrayDecoder:
        self._readers = [arena.open_reader() for arena in self._arenas]
        return ArrayDecoder(self._readers)  # the list itself: `renew` exchanges one

    def renew(self, worker: int) -> None:
        # A fresh arena: what the dead worker had taken and never sent is gone with the old one, whose pages are given
        # back, now or as the last views of what it did send die.
        self._readers[worker].worker_ended()
        self._arenas[worker].close()
        self.budget.give_back(worker, self.budget.held()[worker])
        self._arenas[worker] = Arena(worker, self.budget)
        self._readers[worker] = self._arenas[worker].open_reader()

    def close(self) -> None:
        while self._readers:
            self._readers.pop().worker_ended()
        for arena in self._arenas:
            arena.close()
        self.budget.close()
