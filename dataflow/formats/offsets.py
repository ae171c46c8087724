"""Index of a TFRecord file: the offsets of its records, found once by reading the whole file, and kept beside it.

The index is `path` with ``.index`` appended. It identifies its file by size and time of last change; an index of
another file, or a damaged one, is made again. But a file that is shorter than its index says was cut off.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.formats.checksums import ALGORITHM, checksum, checksum_of
from dataflow.formats.damage import Damaged, file_damaged
from dataflow.formats.positional import PositionalFile
from dataflow.formats.saving import replacing

__all__ = ["FOOTER", "HEADER", "Compute", "Offsets", "load_offsets", "verify_record", "write_index"]

_log = logging.getLogger("dataflow.formats")

HEADER: Final = struct.Struct("<QI")
"""Before each record: its length, and the masked CRC-32C of those eight bytes."""

FOOTER: Final = struct.Struct("<I")
"""After each record: its masked CRC-32C."""

Offsets = NDArray[np.uint64]
"""Offset of each record's header, and the end of the file: uint64 (num_records + 1,)."""

Compute = Callable[[Any], int]
"""A checksum function of bytes."""

_CHUNK = 1 << 22  # bytes that are read at a time
_LARGE = 1 << 20  # records from this size on are read by themselves


def load_offsets(file: PositionalFile, compute: Compute) -> tuple[Offsets, bool]:
    """Return the offsets of a file, and whether all its checksums have just been verified.

    They are read from the index beside it; otherwise they are found by reading the file, and written there.

    Args:
        file: The file.
        compute: The checksum of its frames.

    Raises:
        FileDamaged: A checksum does not match, or the file was cut off.
    """
    offsets, identity = _read_index(file)
    if offsets is not None and identity == file.identity:
        return offsets, False
    if offsets is not None and file.size < int(offsets[-1]):
        raise file_damaged(
            file.path,
            "",
            f"it has {file.size} bytes, and had {offsets[-1]} when its index was made; it ends",
            file.size,
        )
    if offsets is None and not file.size:
        raise file_damaged(file.path, "", "the file is empty, and no index says that it has to be", 0)
    _log.info("finding the records of %s", file.path)
    offsets = np.fromiter(_scan(file, compute), np.uint64)
    write_index(file, offsets)
    return offsets, True


def write_index(file: PositionalFile, offsets: Offsets) -> None:
    """Write the index beside the file; if that is not possible, the index will be computed again every time."""
    data = offsets.astype("<u8").tobytes()
    head = json.dumps(
        {"of": file.identity, "records": len(offsets) - 1, "algorithm": ALGORITHM, "checksum": checksum(data)}
    )
    try:
        with replacing(file.path + ".index", overwrite=True) as part, open(part, "wb") as index:
            index.write(head.encode() + b"\n")
            index.write(data)
    except OSError as error:
        _log.info("the index of %s could not be written, so it will be made again: %s", file.path, error)


def _read_index(file: PositionalFile) -> tuple[Offsets | None, Any]:
    """Return the content of the index if it is undamaged, and the state of the file that it belongs to."""
    try:
        with open(file.path + ".index", "rb") as index:
            head = json.loads(index.readline())
            data = index.read()
        compute = checksum_of(head.get("algorithm"))
        if len(data) == 8 * (head["records"] + 1) and compute(data) == head["checksum"]:
            return np.frombuffer(data, "<u8").astype(np.uint64), head["of"]
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Damaged):
        pass
    _log.info("the index of %s is damaged and will be made again", file.path)
    return None, None


def _scan(file: PositionalFile, compute: Compute) -> Iterator[int]:
    """Return the offset of each record, and the end. Verifies every checksum."""
    from dataflow.diagnostics.progress import Bar

    window, base = memoryview(b""), 0  # a piece of the file, and where it begins
    at, number = 0, 0
    name = os.path.basename(file.path)
    with Bar(total=file.size, unit="B", unit_scale=True, delay=1, desc=f"index of {name}") as bar:
        while at < file.size:
            place = f"record {number}"
            yield at
            if base + len(window) < at + HEADER.size:
                window, base = _window(file, at), at
            head = window[at - base : at - base + HEADER.size]
            if len(head) < HEADER.size:
                raise file_damaged(file.path, place, f"only {len(head)} bytes of a header", at + len(head))
            length, summed = HEADER.unpack(head)
            if compute(head[:8]) != summed:
                raise file_damaged(file.path, place, "the checksum of a length does not match", at)
            begin = at + HEADER.size
            end = begin + length + FOOTER.size
            if end > file.size:
                reason = f"only {file.size - begin} of {length + FOOTER.size} bytes of a record, where the file ends"
                raise file_damaged(file.path, place, reason, file.size)
            if end > base + len(window):
                large = length >= _LARGE
                window, base = (memoryview(file.read(at, end - at)) if large else _window(file, at)), at
            data, footer = window[begin - base : end - base - FOOTER.size], window[end - base - FOOTER.size :]
            verify_record(file.path, place, data, footer, begin, compute)
            bar.update(end - at)
            at, number = end, number + 1
        yield at


def verify_record(path: str, place: str, data: memoryview, footer: memoryview, offset: int, compute: Compute) -> None:
    """Compare the checksum behind a record with the record, which begins at `offset`.

    Raises:
        FileDamaged: The checksum does not match.
    """
    if compute(data) != FOOTER.unpack_from(footer)[0]:
        raise file_damaged(path, place, "the checksum of a record does not match its content, which begins", offset)


def _window(file: PositionalFile, at: int) -> memoryview:
    return memoryview(file.read(at, min(_CHUNK, file.size - at)))
