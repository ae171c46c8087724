"""Record: one datapoint as bytes, with a header and checksum, msgpack, and the bytes of the arrays.

Guarantees:

- A record that is cut off or has changed is reported: `Damaged` gives the offset. So is an undamaged record under
  another key than the one it was written for: the checksum, CRC-32, covers the key and the record.
- Other data (pickles, msgpack-numpy) are recognised by the first byte: ours is 0xC1, with which no msgpack and no
  pickle begins.
- Arrays come back writable. Those of one datapoint lie in one piece of memory, which belongs to that datapoint alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from dataflow.errors import PickleRefused
from dataflow.formats.checksums import Damaged, checksum, file_damaged, other_version
from dataflow.formats.foreign import unpack_foreign
from dataflow.system.extras import optional
from dataflow.transport.message_layout import has_padding, without_padding
from dataflow.transport.packing import ALIGNMENT, pack
from dataflow.transport.unpacking import Unpacker

__all__ = ["RecordDecoder", "RecordEncoder", "is_last", "is_record", "mark_last"]

_MAGIC: Final = 0xC1
_VERSION: Final = 2
_ZSTD: Final = 1  # a flag: everything after the header is compressed
_LAST: Final = 2  # a flag: it is the last one of a file of consecutive records
_HEADER = struct.Struct("<BBHIQII")
# magic, version, flags, bytes of the skeleton, bytes of the record, bytes of the body before compression modulo 2**32,
# checksum of all the rest
_unpack_header = _HEADER.unpack_from
_SIZE = _HEADER.size  # 24
_CHECKED = _SIZE - 4  # the bytes of the header before the checksum
_SMALL = 4096  # maximum bytes of a record of which slices are copied
_MAX_RATIO: Final = 1 << 15  # zstd: a block is 128 KiB at most, and takes 4 bytes at least


def is_record(data: Any) -> bool:
    """Whether these bytes begin like a record of ours."""
    return len(data) > 0 and data[0] == _MAGIC


def is_last(data: Any) -> bool:
    """Whether a record of ours is marked as the last one of its file."""
    return len(data) >= _SIZE and bool(_unpack_header(data)[2] & _LAST)


def mark_last(record: bytes) -> bytes:
    """Return the same record, which has no key, marked as the last one of its file."""
    magic, version, flags, *sizes, _ = _unpack_header(record)
    return _with_header(record[_SIZE:], magic, version, flags | _LAST, *sizes)


def _with_header(body: bytes, *fields: int, key: bytes = b"") -> bytes:
    header = _HEADER.pack(*fields, 0)[:_CHECKED]
    return header + checksum(body, checksum(header, checksum(key))).to_bytes(4, "little") + body


class RecordEncoder:
    """Encodes records.

    Args:
        compress: "zstd", or None.
        pickled: Pickle values without a representation of their own.

    Raises:
        ValueError: There is no such compression.
        MissingExtra: The package zstandard is not installed.
    """

    def __init__(self, *, compress: str | None = None, pickled: bool = False) -> None:
        if compress not in {None, "zstd"}:
            raise ValueError(f"compress must be 'zstd' or None, got {compress!r}")
        self._pickled = pickled
        self._compress: Callable[[bytes], bytes] | None = _zstandard().ZstdCompressor().compress if compress else None

    def encode(self, dp: Any, key: bytes = b"") -> bytes:
        """Return the record of a datapoint.

        Args:
            dp: The datapoint.
            key: Identifies the record; reading it needs the same key.

        Raises:
            NotStorable: A component cannot be stored; names it.
        """
        skeleton, arrays = pack(dp, pickled=self._pickled)
        parts = [skeleton]
        if arrays:
            parts.append(bytes(-(_SIZE + len(skeleton)) % ALIGNMENT))
        for array in arrays:
            order: Any = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
            data = (without_padding(array, order) if has_padding(array.dtype) else array).tobytes(order)
            parts += [data, bytes(-len(data) % ALIGNMENT)]
        body = b"".join(parts)
        size, flags = len(body), 0
        if self._compress is not None:
            body, flags = self._compress(body), _ZSTD
        fields = _MAGIC, _VERSION, flags, len(skeleton), _SIZE + len(body), size & 0xFFFFFFFF
        return _with_header(body, *fields, key=key)


class RecordDecoder:
    """Decodes records; one for each thread.

    Args:
        path: The file, for messages.
        unit: The name of a record in this format.
        name: Returns the name of a place, for messages.
        pickled: Load pickles.
        foreign: Read pickles and msgpack-numpy, too; otherwise everything must be a record of ours.
    """

    def __init__(
        self,
        path: str,
        unit: str = "record",
        *,
        pickled: bool = False,
        foreign: bool = True,
        name: Callable[[Any], object] = str,
    ) -> None:
        self._path = path
        self._name = name
        self._unit = unit
        self._pickled = pickled
        self._foreign = foreign
        unpacker = Unpacker(_SIZE, pickled=pickled)
        self._unpack = unpacker.unpack
        self._read = unpacker.read

    def decode(
        self,
        data: Any,
        place: object,
        offset: int | None = None,
        *,
        key: bytes = b"",
        verify: bool = True,
        own: Callable[[Any], Any] = bytearray,
    ) -> Any:
        """Return the datapoint of one record.

        Args:
            data: The bytes, in any object with a buffer.
            place: Number or key of the record, for messages.
            offset: Offset of the record in the file, if known.
            key: The key that it was written for.
            verify: Compare the checksum. Records are verified when a process reads them for the first time.
            own: Returns `data` in memory in which arrays may stay: writable and unshared.

        Raises:
            FileDamaged: It was cut off, or has changed. Gives the offset.
            PickleRefused: It is or holds a pickle, and pickles are not read.
        """
        try:
            size = len(data)
            if size < _SIZE or data[0] != _MAGIC:
                return self._other(data)
            _, version, flags, skeleton, total, body_size, summed = _unpack_header(data)
            # Small records are verified right here, and slices of them are copied: that is faster.
            if verify and not (
                total == size <= _SMALL
                and version == _VERSION
                and checksum(data[_SIZE:], checksum(data[:_CHECKED], checksum(key))) == summed
            ):
                self._check(data, key)
            if flags & _ZSTD:
                data = bytearray(_SIZE) + _decompress(memoryview(data)[_SIZE:], body_size)
            elif _SIZE + skeleton < size:
                data = own(data)  # one copy for all arrays
            try:
                if _SIZE + skeleton == len(data):
                    return self._read(bytes(data[_SIZE:]))
                return self._unpack(data, skeleton)
            except PickleRefused:
                raise
            except Exception as error:
                if not verify:  # it was undamaged when verified: describe its present state
                    self._check(data, key)
                # The checksum is right: another program has written it.
                raise Damaged(f"a record that cannot be read ({type(error).__name__}: {error})", _SIZE) from error
        except PickleRefused as error:
            raise PickleRefused(
                f"{self._path}, {self._unit} {self._name(place)}: {error}, and unpickling can run any code. If you "
                "trust the source of the file, load it with pickle=True"
            ) from None
        except Damaged as error:
            at = None if offset is None else offset + error.offset
            raise file_damaged(self._path, f"{self._unit} {self._name(place)}", error.reason, at) from error.__cause__

    def verify(self, data: Any, place: object, key: bytes) -> None:
        """Verify the checksum of one record of ours, without decoding it.

        Raises:
            FileDamaged: It was cut off, or has changed, or was written for another key.
        """
        try:
            if not is_record(data) or len(data) < _SIZE:
                raise Damaged("bytes that do not begin like a record")
            self._check(data, key)
        except Damaged as error:
            raise file_damaged(self._path, f"{self._unit} {self._name(place)}", error.reason) from None

    def _other(self, data: Any) -> Any:
        """Return the datapoint of bytes that are not a complete record of ours."""
        if is_record(data):
            raise Damaged(f"only {len(data)} bytes of a record", len(data))
        if not self._foreign:
            raise Damaged("bytes that do not begin like a record")
        return unpack_foreign(data, pickled=self._pickled)

    def _check(self, data: Any, key: bytes) -> None:
        size = len(data)
        _, version, _, _, total, _, summed = _unpack_header(data)
        if total > size:
            raise Damaged(f"only {size} of {total} bytes of a record", size)
        if version != _VERSION:
            raise Damaged(other_version("record", version, _VERSION), 1)
        view = memoryview(data)
        found = checksum(view[_SIZE:], checksum(view[:_CHECKED], checksum(key)))
        if found != summed or total != size:
            raise Damaged("the checksum of a record does not match its content" + " and its key" * bool(key))


def _decompress(body: memoryview, size: int) -> bytes:
    """Return the decompressed data; `size` is known modulo 2**32."""
    zstandard = _zstandard()
    try:
        claimed = zstandard.frame_content_size(body)  # the memory that is allocated before decompression
        if claimed < 0 or claimed & 0xFFFFFFFF != size or claimed > _MAX_RATIO * len(body):
            raise Damaged("a record that is decompressed to another size", _SIZE)
        data: bytes = zstandard.ZstdDecompressor().decompress(body)
    except (zstandard.ZstdError, MemoryError) as error:  # the checksum is right: another program has written it
        raise Damaged(f"a record that cannot be decompressed ({type(error).__name__}: {error})", _SIZE) from error
    return data


def _zstandard() -> Any:
    return optional("zstandard", "zstd", "records compressed with zstd need")
