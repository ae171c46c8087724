"""Header of an npy file: shape, order and dtype of an array, read from untrusted bytes.

Source:
    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.dtypes import is_literal

__all__ = ["FIXED_BYTES", "MAGIC", "NpyHeader", "array_of", "read_header", "size_of_header"]

FIXED_BYTES: Final = 12
"""Bytes from which `size_of_header` is known."""

MAGIC: Final = b"\x93NUMPY"
"""The first bytes of an npy file."""

_VERSIONS: Final = {b"\1\0": (2, "latin-1"), b"\2\0": (4, "latin-1"), b"\3\0": (4, "utf-8")}  # bytes of a length
_MAX_TEXT: Final = 10_000  # characters, as in NumPy: parsing more may take long


class NpyHeader(NamedTuple):
    """What an npy file says of its array."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int  # of the header in bytes: the elements begin there

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, unless these are objects."""
        return math.prod(self.shape) * self.dtype.itemsize


def size_of_header(head: bytes) -> int:
    """Return the size in bytes of the header that begins with these `FIXED_BYTES`.

    Raises:
        ValueError: They do not begin an npy file.
    """
    if not head.startswith(MAGIC) or head[6:8] not in _VERSIONS or len(head) < FIXED_BYTES:
        raise ValueError(f"an npy file does not begin with {head[:8]!r}")
    num, _ = _VERSIONS[head[6:8]]
    return 8 + num + int.from_bytes(head[8 : 8 + num], "little")


def read_header(file: IO[bytes]) -> NpyHeader:
    """Return the header at the beginning of `file`, which is read up to the elements, or a few bytes further.

    Raises:
        Exception: It is damaged; of any type, since NumPy parses it.
    """
    head = file.read(FIXED_BYTES)
    size = size_of_header(head)
    num, encoding = _VERSIONS[head[6:8]]
    if size > _MAX_TEXT:
        raise ValueError(f"the header claims {size} bytes, and {_MAX_TEXT} are the most")
    text = (head[8 + num :] + file.read(max(0, size - FIXED_BYTES)))[: size - 8 - num].decode(encoding)
    if not is_literal(text.strip()):
        raise ValueError(f"the header is {text[:40]!r}…")
    # NumPy has no public function for version 3, which differs by UTF-8: as escapes, all characters fit into version 2.
    escaped = text.encode("ascii", "backslashreplace")
    again = io.BytesIO(len(escaped).to_bytes(4, "little") + escaped)
    shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(again, max_header_size=10 * _MAX_TEXT)
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"the shape is {shape}")
    return NpyHeader(shape, is_fortran, dtype, size)


def array_of(data: bytes) -> NDArray[Any]:
    """Return the array in the bytes of an npy file.

    Raises:
        Exception: They are damaged, or the array holds objects.
    """
    header = read_header(io.BytesIO(data))
    if header.dtype.hasobject:
        raise ValueError("the array holds Python objects, which are pickled")
    if header.size + header.nbytes > len(data):  # before memory is allocated for it
        raise ValueError(f"the array has {header.nbytes} bytes, and {len(data) - header.size} are there")
    loaded: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return loaded
