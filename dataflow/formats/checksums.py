"""Verification of files: checksums, versions, and the error about a damaged file.

CRC-32 is for our own formats, CRC-32C for TFRecord.

A file of ours names its algorithm (`ALGORITHM`); the choice does not depend on the installed packages.
"""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable
from typing import Any, Final

from dataflow.errors import FileDamaged
from dataflow.system.extras import optional

__all__ = [
    "ALGORITHM",
    "Damaged",
    "check_version",
    "checksum",
    "crc32c",
    "crc32c_function",
    "file_damaged",
    "masked_crc32",
    "masked_crc32c",
    "other_version",
]

ALGORITHM: Final = "crc32"
"""The checksum algorithm named in files that this release writes."""

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


def other_version(what: str, version: Any, read: int) -> str:
    """What is wrong with a file or record whose format has another version than the one that this release reads."""
    cure = "upgrade dataflow to read it" if type(version) is int and version > read else "save it again"
    return f"the {what} has format version {version}, and this release reads version {read}: {cure}"


def check_version(path: str, place: str, version: Any, read: int, algorithm: Any) -> None:
    """Check the header of a file of ours.

    Raises:
        FileDamaged: This release does not read such a file.
    """
    if type(version) is not int or version != read:
        where = f"{path}, {place}" if place else path
        raise FileDamaged(f"{where}: {other_version('file', version, read)}", path=path, offset=None)
    if algorithm != ALGORITHM:
        raise file_damaged(path, place, f"its checksums are {algorithm!r}; this release reads {ALGORITHM!r}")


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
