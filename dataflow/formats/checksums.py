"""Checksums of files: CRC-32 for our own formats, CRC-32C for TFRecord, and the sum that files of release 0.1 have.

A file names its algorithm (`ALGORITHM`); the choice does not depend on the installed packages.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dataflow.extras import optional
from dataflow.formats.damage import Damaged

__all__ = [
    "ALGORITHM",
    "check_version",
    "checksum",
    "checksum_of",
    "crc32c",
    "crc32c_function",
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


def checksum_of(algorithm: str | None) -> Callable[..., int]:
    """Return the checksum function of the algorithm that a file names.

    Args:
        algorithm: None if the file names none; release 0.1 has written it then.

    Raises:
        Damaged: There is no such algorithm.
    """
    if algorithm is None:
        return old_checksum
    if algorithm != ALGORITHM:
        raise Damaged(f"its checksums are {algorithm!r}; this release reads {ALGORITHM!r}")
    return checksum


def check_version(version: Any, newest: int, algorithm: Any) -> None:
    """Check the header of a file of ours: versions from 1 to `newest`; all after 1 name their checksums.

    Raises:
        Damaged: This release does not read such a file.
    """
    if type(version) is not int or not 1 <= version <= newest:
        raise Damaged(f"a file of version {version}; this release reads versions 1 to {newest}")
    if (version == 1) != (algorithm is None):
        raise Damaged(f"a file of version {version} whose checksums are {algorithm!r}")
    checksum_of(algorithm)


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
