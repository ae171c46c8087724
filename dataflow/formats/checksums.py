"""Verification of files: checksums, versions, and the error about a damaged file.

CRC-32 is for our own formats, CRC-32C for TFRecord; files of release 0.1 have a sum of their own.

A file of ours names its algorithm (`ALGORITHM`); the choice does not depend on the installed packages.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from dataflow.errors import FileDamaged
from dataflow.extras import optional

__all__ = [
    "ALGORITHM",
    "CHECKSUMS",
    "Damaged",
    "check_version",
    "checksum",
    "crc32c",
    "crc32c_function",
    "file_damaged",
    "masked_crc32",
    "masked_crc32c",
    "old_checksum",
]

ALGORITHM: Final = "crc32"
"""The checksum algorithm named in files that this release writes."""

_LARGE = 8192  # minimum size in bytes for which `old_checksum` adds columns
_COLUMNS = 255  # 64-bit words per row; odd, so that blocks of a file that change places change columns, too

_MASK_DELTA = 0xA282EAD8


checksum: Callable[..., int] = zlib.crc32
"""CRC-32 of bytes; a second argument continues from the CRC of what came before."""


class Damaged(Exception):
    """Description of damaged bytes and their offset; code that knows the file turns it into a `FileDamaged`."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


def file_damaged(path: str, place: str, reason: str, offset: int | None = None) -> FileDamaged:
    """Return the error about a file.

    Args:
        path: The file.
        place: The damaged part in the format's terms, such as "record 7"; may be empty.
        reason: What is wrong.
        offset: Offset of the damage, in bytes.
    """
    where = f"{path}, {place}" if place else path
    at = "" if offset is None else f" at byte {offset} of the file"
    return FileDamaged(
        f"{where}: {reason}{at}. The file was cut off or has changed since it was written: copy it again from where it "
        "came, or save it again",
        path=path,
        offset=offset,
    )


def check_version(path: str, place: str, version: Any, newest: int, algorithm: Any) -> None:
    """Check the header of a file of ours: versions from 1 to `newest`; all after 1 name their checksums.

    Raises:
        FileDamaged: This release does not read such a file.
    """
    if type(version) is not int or not 1 <= version <= newest:
        raise file_damaged(path, place, f"a file of version {version}; this release reads versions 1 to {newest}")
    if (version == 1) != (algorithm is None):
        raise file_damaged(path, place, f"a file of version {version} whose checksums are {algorithm!r}")
    if algorithm not in (None, ALGORITHM):
        raise file_damaged(path, place, f"its checksums are {algorithm!r}; this release reads {ALGORITHM!r}")


def old_checksum(data: Any, value: int = 0) -> int:
    """The checksum of files written by release 0.1, for verification; continues from `value`.

    CRC-32 of short data; of long data, CRC-32 of the sums of their 255 columns of 64-bit words and of the rest. Changes
    that cancel in a column are not detected, so new files do not use it.
    """
    size = len(data)
    if size < _LARGE:
        return zlib.crc32(data, value)
    num_rows = size // (8 * _COLUMNS)
    words = np.frombuffer(data, "<u8", num_rows * _COLUMNS).reshape(num_rows, _COLUMNS)
    value = zlib.crc32(np.add.reduce(words, axis=0), value)
    return zlib.crc32(memoryview(data)[num_rows * _COLUMNS * 8 :], value)


CHECKSUMS: Final[Mapping[str | None, Callable[..., int]]] = {None: old_checksum, ALGORITHM: checksum}
"""The checksum function of each algorithm that a file may name; release 0.1 has named none."""


def crc32c(data: Any) -> int:
    """CRC-32C of bytes.

    Raises:
        MissingExtra: The package google-crc32c is not installed.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'

    Source:
        RFC 3720, appendix B.4, has test vectors.
    """
    return crc32c_function()(bytes(data))


@functools.cache
def crc32c_function() -> Callable[[bytes], int]:
    """Return the function of google-crc32c.

    Raises:
        MissingExtra: The package google-crc32c is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # raised if it was installed without its C part, which is slow
        package = optional("google_crc32c", "tfrecord", "TFRecord files need")
    found: Callable[[bytes], int] = package.value
    return found


def masked_crc32c(data: Any) -> int:
    """CRC-32C as TFRecord stores it: rotated and shifted, so that it differs from the CRC of data that hold a CRC."""
    return _masked(crc32c(data))


def masked_crc32(data: Any) -> int:
    """CRC-32, masked in the same way: for files with TFRecord's framing that only this package reads."""
    return _masked(zlib.crc32(data))


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
