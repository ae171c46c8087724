"""Decoder from frames to datapoints: the receiver's end of the codec.

The bytes are untrusted. Guarantees, with those of `serial.unpacking`:

- Nothing in them is executed, unpickled or looked up by name; for any bytes, `read` returns or raises `Unreadable`.
- Claimed lengths are checked: arrays are views of frames that are there, or copies of parts of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.remote.frame_encoder import LARGE
from dataflow.serial.unpacking import ArrayLayout, CodeReader

__all__ = ["FrameReader", "Unreadable"]


class Unreadable(Exception):
    """The frames do not hold datapoints."""


class FrameReader:
    """Decodes datapoints from frames; for one thread."""

    def __init__(self) -> None:
        self._codes = CodeReader(self._array)
        self._small: Any = b""
        self._begin = 0  # offset of the next small array
        self._large: list[Any] = []  # in reverse order: the next one is last

    def read(self, body: Sequence[Any], count: int) -> list[Any]:
        """Return the datapoints of a message; large arrays lie in its frames, and are writable if those are.

        Args:
            body: Buffers.
            count: Expected number of datapoints.

        Raises:
            Unreadable: The frames are not as the encoder writes them.
        """
        try:
            skeletons, self._small, *large = body
            self._begin, self._large = 0, large[::-1]
            datapoints = self._codes.read(skeletons)
            if type(datapoints) is not list or len(datapoints) != count:
                raise Unreadable(f"{count} datapoints were announced, and something else is there")
            if self._large or self._begin != len(self._small):
                raise Unreadable("there are more bytes than the arrays have")
            return datapoints
        except Exception as error:  # of any type: the bytes are untrusted
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        finally:
            self._small, self._large = b"", []

    def _array(self, layout: ArrayLayout) -> NDArray[Any]:
        if layout.nbytes >= LARGE:
            data = self._whole(layout.nbytes)
            array: NDArray[Any] = np.ndarray(layout.shape, layout.dtype, data, 0, None, layout.order)
            return array if array.flags.behaved else array.copy(order="K")
        if not layout.nbytes:
            return layout.empty()
        # A copy, so that one small array that is kept does not keep the message. `ndarray` checks that the bytes exist.
        array = np.ndarray(layout.shape, layout.dtype, self._small, self._begin, None, layout.order)
        self._begin += layout.nbytes
        return array.copy(order="K")

    def _whole(self, nbytes: int) -> Any:
        """Return the bytes of a large array: its frame, or its frames joined."""
        frame = self._large.pop()
        if len(frame) == nbytes:
            return frame
        if len(frame) + sum(map(len, self._large)) < nbytes:  # before memory is allocated for a mere claim
            raise Unreadable("an array is cut off")
        whole = np.empty(nbytes, np.uint8)
        end = 0
        while end < nbytes:
            begin, end = end, end + len(frame)
            whole[begin:end] = np.frombuffer(frame, np.uint8)  # raises if there are too many bytes
            if end < nbytes:
                frame = self._large.pop()
        return whole
