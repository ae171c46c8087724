"""`TFRecordSerializer`: datapoints in TFRecord files, without TensorFlow; records with lengths and checksums.

The index of a file is beside it: the offsets of its records, found once by reading the whole file. An index of another
state of the file, or a damaged one, is made again.

Source:
    https://www.tensorflow.org/tutorials/load_data/tfrecord describes the framing.
"""

from __future__ import annotations

import logging
import os
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import numpy as np

from dataflow.formats.checksums import crc32c_function, file_damaged, masked_crc32c
from dataflow.formats.index_files import Offsets, read_index, write_index
from dataflow.formats.loading import DiskData, PathLike, Positions, runs
from dataflow.formats.positional import Identity, PositionalFile
from dataflow.formats.records import RecordDecoder, RecordEncoder, is_last, is_record, mark_last
from dataflow.formats.saving import replacing, save_pass
from dataflow.protocol.base import DataFlow
from dataflow.system.descriptors import closed_on_error
from dataflow.transforms.repeating import FixedSizeData
from dataflow.transport.unpacking import in_place

__all__ = ["HEADER", "Compute", "RecordReader", "TFRecordData", "TFRecordSerializer", "writing"]

_log = logging.getLogger("dataflow.formats")

HEADER: Final = struct.Struct("<QI")
"""Before each record: its length, and the masked CRC-32C of those eight bytes."""

_KIND = "records"  # what the offsets in an index are

_FOOTER = struct.Struct("<I")  # after each record: its masked CRC-32C

Compute = Callable[[Any], int]
"""A checksum function of bytes."""

_AT_ONCE = 1 << 18  # bytes of neighbouring records that are read together
_LARGE = 1 << 14  # from that mean size on, each is read separately, directly into the memory where its arrays stay


class TFRecordData(DiskData):
    """The records of a TFRecord file. `TFRecordSerializer.load` makes one.

    A record is verified when a process reads it for the first time.
    """

    def __init__(
        self,
        path: PathLike,
        shuffle: bool | None = None,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
        raw: bool = False,
        pickle: bool = False,
    ) -> None:
        crc32c_function()
        super().__init__(path, shuffle, block_shuffle=block_shuffle, seed=seed)
        self.raw = raw
        self.pickle = pickle

    def _df_open_reader(self) -> RecordReader:
        return RecordReader(self.path, raw=self.raw, pickled=self.pickle)


class RecordReader:
    """An open file.

    Args:
        path: The file.
        raw: Return ``[bytes]``.
        pickled: Load pickles.
        compute: The checksum function of the frames.
    """

    def __init__(
        self,
        path: str,
        *,
        raw: bool = False,
        pickled: bool = False,
        compute: Compute = masked_crc32c,
    ) -> None:
        self._raw = raw
        self._pickled = pickled
        self._compute = compute
        with closed_on_error():
            self._file = PositionalFile(path)
            self._offsets, verified = _load_offsets(self._file, compute)
            self._check_end()
        self._mean_size = -(-int(self._offsets[-1]) // max(1, len(self))) or 1
        self._verified = bytearray(b"\1" if verified else b"\0") * len(self)

    @property
    def identities(self) -> Sequence[Identity]:
        return [self._file.identity]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def close(self) -> None:
        self._file.close()

    def _check_end(self) -> None:
        """Check that the last record of a file of ours is marked so: otherwise it was cut off between two records."""
        if self._raw or len(self._offsets) < 2:
            return
        begin, end = self._offsets[-2:].tolist()
        last = self._file.read(begin + HEADER.size, min(64, end - begin - HEADER.size - _FOOTER.size))
        if is_record(last) and not is_last(last):
            raise file_damaged(self._file.path, "", "the file ends without the record that is marked as its last,", end)

    def read(self, positions: Positions) -> Iterator[Any]:
        self._file.require_unchanged()
        decoder = RecordDecoder(self._file.path, pickled=self._pickled)
        most = max(1, _AT_ONCE // self._mean_size) if self._mean_size < _LARGE else 1
        for first, end in runs(positions, most):
            yield from self._run(decoder, first, end)

    def _run(self, decoder: RecordDecoder, first: int, end: int) -> Iterator[Any]:
        """Read some consecutive records together."""
        offsets = self._offsets[first : end + 1].tolist()
        base = offsets[0] + HEADER.size
        data = memoryview(self._file.read(base, offsets[-1] - _FOOTER.size - base, f"record {first}"))
        own = in_place if end == first + 1 else bytearray
        for k, (begin, after) in enumerate(pairwise(offsets), start=first):
            begin += HEADER.size
            yield self._decode(decoder, k, data[begin - base : after - _FOOTER.size - base], begin, own)

    def _decode(self, decoder: RecordDecoder, k: int, record: Any, offset: int, own: Callable[[Any], Any]) -> Any:
        verify = not self._verified[k]
        if verify and (self._raw or not is_record(record)):
            footer = self._file.read(offset + len(record), _FOOTER.size, f"record {k}")
            _verify_record(
                self._file.path, f"record {k}", memoryview(record), memoryview(footer), offset, self._compute
            )
        dp = [bytes(record)] if self._raw else decoder.decode(record, k, offset, verify=verify, own=own)
        self._verified[k] = 1
        return dp


class TFRecordSerializer:
    """Datapoints in a TFRecord file, one in each record.

    It supports every storable datapoint, and is written and read fast.
    """

    @staticmethod
    def save(
        df: DataFlow, path: PathLike, *, overwrite: bool = False, compress: str | None = None, pickle: bool = False
    ) -> None:
        """Write one pass of a flow.

        The file appears only when it is complete; until then an existing file stays unchanged.

        Args:
            df: The flow.
            path: The file to make; an index is put beside it, at `path` with ``.index`` appended.
            overwrite: Replace a file of that name.
            compress: "zstd" compresses each datapoint, with the extra ``zstd``.
            pickle: Pickle components without a representation of their own. Loading then needs ``pickle=True``.

        Raises:
            FileExistsError: The file exists, and `overwrite` is false.
            NotStorable: A datapoint cannot be stored; names it and its component.
            OSError: For example, the disk is full. No partial file is left.
            MissingExtra: The package google-crc32c is not installed.

        Example:
            >>> import os, tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = os.path.join(folder.name, "numbers.tfrecord")
            >>> TFRecordSerializer.save(DataFromList([[k, np.full(2, k)] for k in range(3)], shuffle=False), path)
            >>> df = TFRecordSerializer.load(path)
            >>> len(df), df[1]
            (3, [1, array([1, 1])])
            >>> df.close(); folder.cleanup()
        """
        crc32c_function()
        encoder = RecordEncoder(compress=compress, pickled=pickle)
        with writing(path, masked_crc32c, overwrite=overwrite) as write:
            save_pass(df, "TFRecordSerializer", lambda number, dp: write(encoder.encode(dp)))

    @staticmethod
    def load(
        path: PathLike,
        size: int | None = None,
        *,
        shuffle: bool | None = None,
        block_shuffle: int | None = None,
        seed: int | None = None,
        raw: bool = False,
        pickle: bool = False,
    ) -> DataFlow:
        """Return a flow over a TFRecord file, which can be addressed.

        The first time, an index of the file is made: the whole file is read, and all checksums are verified. It is kept
        beside the file. Later each record is verified when a process reads it for the first time.

        Args:
            path: The file, ours or one that TensorFlow or tensorpack has written.
            size: Datapoints per pass; None means all. A larger number starts again from the first.
            shuffle: Draw a new order for every pass. This is random access. None means whether `block_shuffle` is
                given.
            block_shuffle: Datapoints per block: shuffle the blocks, and the datapoints inside each, instead of all at
                once; the disk is then read in blocks.
            seed: Root seed for the order, instead of the one of `dataflow.seed`.
            raw: Return ``[bytes]``, such as a ``tf.train.Example`` for a map that parses it.
            pickle: Load pickles, of tensorpack for example. A pickle can run any code: only for files from sources that
                you trust.

        Raises:
            FileDamaged: A checksum does not match, or the file was cut off; the message gives the place.
            ValueError: The file is named as a compressed one.
            PickleRefused: The file holds pickles.
            MissingExtra: The package google-crc32c is not installed.
        """
        ds = TFRecordData(path, shuffle, block_shuffle=block_shuffle, seed=seed, raw=raw, pickle=pickle)
        return ds if size is None or size == len(ds) else FixedSizeData(ds, size)


@contextmanager
def writing(path: PathLike, compute: Compute, *, overwrite: bool) -> Iterator[Callable[[bytes], None]]:
    """Context manager: return a function that writes one record. The file and its index appear after a normal exit."""
    offsets = array("Q", [0])
    held: list[bytes] = []  # one record: it may be the last
    with replacing(path, overwrite=overwrite) as part, open(part, "wb", buffering=_AT_ONCE) as file:

        def put(record: bytes) -> None:
            length = len(record).to_bytes(8, "little")
            file.write(length + _FOOTER.pack(compute(length)))
            file.write(record)
            file.write(_FOOTER.pack(compute(record)))
            offsets.append(offsets[-1] + HEADER.size + len(record) + _FOOTER.size)

        def write(record: bytes) -> None:
            if held:
                put(held.pop())
            held.append(record)

        yield write
        for record in held:
            put(mark_last(record))
    written = PositionalFile(os.fspath(path))
    try:
        write_index(written, _KIND, np.frombuffer(offsets, np.uint64))
    finally:
        written.close()


# -- the index ---------------------------------------------------------------------------------------------------------


def _load_offsets(file: PositionalFile, compute: Compute) -> tuple[Offsets, bool]:
    """Return the offset of each record and of the end of a file, and whether all its checksums have just been verified.

    They are read from the index beside it; otherwise they are found by reading the file, and written there.
    """
    kept = read_index(file, _KIND)
    if kept is not None and _fits(file, kept):
        return kept, False
    if not file.size:
        raise file_damaged(file.path, "", "the file is empty, and no index says that it has to be", 0)
    _log.info("finding the records of %s", file.path)
    offsets = np.fromiter(_scan(file, compute), np.uint64)
    write_index(file, _KIND, offsets)
    return offsets, True


def _fits(file: PositionalFile, offsets: Offsets) -> bool:
    """Whether records of these offsets fill the file, and the headers of its first and last record say so."""
    lengths = np.diff(offsets.astype(np.int64)) - HEADER.size - _FOOTER.size
    if not len(offsets) or offsets[0] or int(offsets[-1]) != file.size or (lengths < 0).any():
        return False
    ends = {0, len(lengths) - 1} if len(lengths) else ()
    return all(HEADER.unpack(bytes(file.read(int(offsets[k]), HEADER.size)))[0] == lengths[k] for k in ends)


def _scan(file: PositionalFile, compute: Compute) -> Iterator[int]:
    """Yield the offset of each record, and the end. Verifies every checksum."""
    from dataflow.observe.progress import Bar

    at, number = 0, 0
    name = os.path.basename(file.path)
    with (
        file.stream(_AT_ONCE) as stream,
        Bar(total=file.size, unit="B", unit_scale=True, delay=1, desc=f"index of {name}") as bar,
    ):
        while at < file.size:
            place = f"record {number}"
            yield at
            head = stream.read(HEADER.size)
            if len(head) < HEADER.size:
                raise file_damaged(file.path, place, f"only {len(head)} bytes of a header", at + len(head))
            length, summed = HEADER.unpack(head)
            if compute(head[:8]) != summed:
                raise file_damaged(file.path, place, "the checksum of a length does not match", at)
            begin = at + HEADER.size
            end = begin + length + _FOOTER.size
            if end > file.size:
                reason = f"only {file.size - begin} of {length + _FOOTER.size} bytes of a record, where the file ends"
                raise file_damaged(file.path, place, reason, file.size)
            _verify_record(file.path, place, stream.read(length), stream.read(_FOOTER.size), begin, compute)
            bar.update(end - at)
            at, number = end, number + 1
        yield at


def _verify_record(path: str, place: str, data: Any, footer: Any, offset: int, compute: Compute) -> None:
    """Compare the checksum behind a record with the record, which begins at `offset`."""
    if compute(data) != int.from_bytes(footer, "little"):
        raise file_damaged(path, place, "the checksum of a record does not match its content, which begins", offset)
