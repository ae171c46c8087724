"""Checksums of files: CRC-32 for our own formats, CRC-32C for TFRecord, and the sum that files of release 0.1 have.

A file names its algorithm (`ALGORITHM`), and which one it has never depends on what is installed.

Python has no CRC-32C. The package google-crc32c computes it if it is installed. Else it is made of table look-ups that
numpy does for many bytes at a time: a CRC is linear, so the CRC of a row of bytes is the exclusive or of what each byte
contributes at its place.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.formats.damage import Damaged

__all__ = [
    "ALGORITHM",
    "check_version",
    "checksum",
    "checksum_of",
    "crc32c",
    "masked_crc32c",
    "numpy_crc32c",
    "old_checksum",
]

ALGORITHM: Final = "crc32"
"""What files written by this release say about their checksums."""

_LARGE = 8192  # bytes from which on `old_checksum` adds columns
_COLUMNS = 255  # 64-bit words per row; odd, so that blocks of a file that change places change columns, too

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_ROW = 512  # bytes per row of a CRC-32C
_ROWS_AT_ONCE = 64  # what is computed on the way then fits the caches
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8

Words = NDArray[np.uint32]


checksum: Callable[..., int] = zlib.crc32
"""CRC-32 of bytes; a second argument continues from the CRC of what came before."""


def checksum_of(algorithm: str | None) -> Callable[..., int]:
    """The function of the algorithm that a file names.

    Args:
        algorithm: None if the file names none: then it was written by release 0.1.

    Raises:
        Damaged: There is no such algorithm.
    """
    if algorithm is None:
        return old_checksum
    if algorithm != ALGORITHM:
        raise Damaged(f"its checksums are {algorithm!r}; this release reads {ALGORITHM!r}")
    return checksum


def check_version(version: Any, newest: int, algorithm: Any) -> None:
    """Check what a file of ours says about itself: versions from 1 to `newest`; all after 1 name their checksums.

    Raises:
        Damaged: This release does not read such a file.
    """
    if type(version) is not int or not 1 <= version <= newest:
        raise Damaged(f"a file of version {version}; this release reads versions 1 to {newest}")
    if (version == 1) != (algorithm is None):
        raise Damaged(f"a file of version {version} whose checksums are {algorithm!r}")
    checksum_of(algorithm)


def old_checksum(data: Any, value: int = 0) -> int:
    """The checksum of files written by release 0.1, to verify those; continues from `value`.

    CRC-32 of short data; of long data, CRC-32 of the sums of their 255 columns of 64-bit words and of the rest. Changes
    that cancel in a column go unnoticed, so nothing new is written with it.
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

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'

    Source:
        RFC 3720, appendix B.4, has test vectors.
    """
    native = _native()
    return numpy_crc32c(data) if native is None else native(bytes(data))


def numpy_crc32c(data: Any) -> int:
    """The same, where google-crc32c is not installed: about 0.5 GB per second instead of more than 10."""
    size = len(data)
    if size < 4:
        return _bytewise(data)
    # Zero bytes before a message do not change a CRC that begins with zero. The real one begins with ones, which is the
    # same as inverting the first four bytes.
    num_rows = -(-size // _ROW)
    padded = np.zeros(num_rows * _ROW, np.uint8)
    message = padded[padded.size - size :]
    message[:] = np.frombuffer(data, np.uint8)
    message[:4] ^= 0xFF
    places, contributions = _contributions()
    crcs = np.empty(num_rows, np.uint32)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        indexes = padded[first * _ROW : (first + _ROWS_AT_ONCE) * _ROW].reshape(-1, _ROW) + places
        np.bitwise_xor.reduce(contributions.take(indexes), axis=1, out=crcs[first : first + _ROWS_AT_ONCE])
    level = 0
    while len(crcs) > 1:  # two neighbours make one, until one is left
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs = _shifted(crcs[0::2], level) ^ crcs[1::2]
        level += 1
    return int(crcs[0]) ^ _ONES


def masked_crc32c(data: Any) -> int:
    """CRC-32C as TFRecord stores it: turned and shifted, so that data that hold a CRC have none that is the same."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ONES


@functools.cache
def _native() -> Callable[[bytes], int] | None:
    """The function of google-crc32c; None where it is not installed, or was installed without its C part."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the missing C part
            import google_crc32c
    except ImportError:
        return None
    return google_crc32c.value if google_crc32c.implementation == "c" else None


@functools.cache
def _table() -> Words:
    """What each value of a byte makes of a CRC."""
    crcs: Any = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = (crcs >> 1) ^ np.where(crcs & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    table: Words = crcs
    return table


@functools.cache
def _contributions() -> tuple[NDArray[np.intp], Words]:
    """Where in the second array the values of each place of a row begin; and what they contribute to its CRC."""
    table = _table()
    contributions = np.empty((_ROW, 256), np.uint32)
    contributions[-1] = table
    for place in range(_ROW - 2, -1, -1):
        contributions[place] = _after_zero(contributions[place + 1])
    return np.arange(_ROW, dtype=np.intp) * 256, contributions.ravel()


def _after_zero(crcs: Words) -> Words:
    after: Words = _table()[crcs & 0xFF] ^ (crcs >> 8)
    return after


@functools.cache
def _shift(level: int) -> Words:
    """What ``2**level`` rows of zeros make of a CRC: one table for each of its four bytes."""
    if level:
        bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
        images = _shifted(_shifted(bits, level - 1), level - 1)
    else:
        images = np.uint32(1) << np.arange(32, dtype=np.uint32)
        for _ in range(_ROW):
            images = _after_zero(images)
    values = np.arange(256)
    tables = np.zeros((4, 256), np.uint32)
    for byte in range(4):
        for bit in range(8):
            tables[byte] ^= np.where(values >> bit & 1, images[8 * byte + bit], np.uint32(0))
    return tables


def _shifted(crcs: Words, level: int) -> Words:
    tables = _shift(level)
    out: Words = (
        tables[0][crcs & 0xFF] ^ tables[1][crcs >> 8 & 0xFF] ^ tables[2][crcs >> 16 & 0xFF] ^ tables[3][crcs >> 24]
    )
    return out


def _bytewise(data: Any) -> int:
    crc = _ONES
    for byte in bytes(data):
        crc = int(_table()[(crc ^ byte) & 0xFF]) ^ (crc >> 8)
    return crc ^ _ONES
