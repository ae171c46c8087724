"""Codec of datapoints on the network: encoder of the sender, which runs at the yield, and decoder of the receiver.

A message holds the skeletons of its datapoints as one msgpack array, the bytes of small arrays in one frame, and each
large array in a frame of its own, or several. Nothing is pickled: a value without a representation of its own is
rejected by the encoder, with its component.

What the decoder reads is untrusted. Guarantees, with those of `transport.unpacking`:

- Nothing in it is executed, unpickled or looked up by name; for any bytes, `read` returns or raises `Unreadable`.
- Claimed lengths are checked: arrays are views of frames that are there, or copies of parts of them.

Very large arrays are cut into pieces, which the receiver joins. ZeroMQ allocates memory for each frame, and malloc maps
what is too large to be reused for the next one again, page by page, at both ends. That takes longer than the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import zmq
from numpy.typing import NDArray

from dataflow.errors import NotStorable
from dataflow.protocol.failures import Report
from dataflow.remote.peer_messages import readable
from dataflow.transport.codec import Encoder
from dataflow.transport.message_layout import has_padding, without_padding
from dataflow.transport.packing import PLAIN, Code, pack
from dataflow.transport.unpacking import ArrayLayout, CodeReader

__all__ = ["LARGE", "FrameEncoder", "FrameReader", "Unreadable"]

LARGE: Final = 1 << 16
"""Minimum size in bytes of an array with a frame of its own. Both ends must agree."""

_ARRAY32: Final = b"\xdd"  # msgpack: an array, its length in the next four bytes
_PIECE_BYTES: Final = 1 << 19
_CUT_BYTES: Final = 20 << 20  # of the smallest array that is cut: three below fit into one heap of glibc, of 64 MiB
_OVERHEAD: Final = 16  # minimum bytes counted per datapoint: the receiver has an object for it
_MAX_LAYOUTS: Final = 4096  # cached
_SIMPLE: Final = PLAIN | {int, np.ndarray}


class _Written(NamedTuple):
    skeleton: bytes
    small: list[bytes]
    large: list[zmq.Frame]
    nbytes: int


class FrameEncoder(Encoder):
    """Encodes datapoints as frames.

    Args:
        max_bytes: Maximum size of one datapoint: the `hwm_bytes` of the receiver.
        encrypted: Whether the frames are encrypted. Then every large array is cut: ZeroMQ copies each frame once more.
    """

    nbytes = 0
    plain = False
    keeps_memory = False

    def __init__(self, max_bytes: int, *, encrypted: bool = False) -> None:
        self._max_bytes = max_bytes
        self._cut_bytes = _PIECE_BYTES if encrypted else _CUT_BYTES
        self._layouts: dict[Any, bytes] = {}  # of arrays, as `pack` writes them
        self._arrays: list[NDArray[Any]] = []  # of the datapoint that is being written
        self._packer = msgpack.Packer(
            default=self._described, strict_types=True, use_bin_type=True, unicode_errors="surrogatepass"
        )

    def encode(self, dp: Any) -> _Written:
        """Encode one datapoint in its present state: the arrays are copied.

        Raises:
            NotStorable: It cannot be written without pickling; the message names the component.
            ValueError: It is larger than the receiver allows.
        """
        try:
            skeleton, arrays = self._pack_simple(dp) or pack(dp)
        except NotStorable as error:
            raise NotStorable(_over_the_network(str(error))) from None
        small: list[bytes] = []
        large: list[zmq.Frame] = []
        nbytes = len(skeleton) + _OVERHEAD
        if arrays:
            sizes = [array.nbytes for array in arrays]
            nbytes += sum(sizes)
            if nbytes > self._max_bytes:
                raise self._too_large(nbytes)
            for array, size in zip(arrays, sizes, strict=True):
                if has_padding(array.dtype):
                    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
                    array = without_padding(array, "F" if is_fortran else "C")
                if size < LARGE:
                    small.append(array.tobytes("A"))
                else:
                    data, piece = _bytes_of(array), _PIECE_BYTES if size >= self._cut_bytes else size
                    # Copied here, since the flow may change the array after the yield.
                    large += [zmq.Frame(data[k : k + piece], copy=True) for k in range(0, size, piece)]
        elif nbytes > self._max_bytes:
            raise self._too_large(nbytes)
        self.nbytes = nbytes
        return _Written(skeleton, small, large, nbytes)

    encode_inline = encode

    def _too_large(self, nbytes: int) -> ValueError:
        return ValueError(
            f"a datapoint takes {nbytes} bytes, and {self._max_bytes} may be under way. Raise hwm_bytes of the "
            "receiver, or send smaller pieces"
        )

    def _pack_simple(self, dp: Any) -> tuple[bytes, list[NDArray[Any]]] | None:
        """Return what `pack` does, 3 times as fast, for flat lists of the most common types; otherwise None."""
        if type(dp) is not list or not _SIMPLE.issuperset(map(type, dp)):
            return None
        # A new list: the last one went to the caller.
        self._arrays = []
        try:
            return self._packer.pack(dp), self._arrays
        except Exception:  # `pack` raises it, too, with an explanation
            return None

    def _described(self, array: Any) -> Any:
        """Return the skeleton's entry for an array; called for arrays only."""
        dtype, flags = array.dtype, array.flags
        if dtype.names is not None:  # equal dtypes may have different names then
            raise NotStorable("not simple")
        key = dtype, array.shape, flags.f_contiguous and not flags.c_contiguous
        layout = self._layouts.get(key)
        if layout is None:
            layout = bytes(msgpack.unpackb(pack(array).skeleton).data)
            if len(self._layouts) < _MAX_LAYOUTS:
                self._layouts[key] = layout
        self._arrays.append(array)
        return msgpack.ExtType(Code.ARRAY, layout)

    def join(self, encoded: Sequence[_Written]) -> tuple[list[Any], int]:
        """Return the frames of a message, and the total size of its datapoints in bytes."""
        skeletons = [item.skeleton for item in encoded]
        body: list[Any] = [
            b"".join([_ARRAY32, len(skeletons).to_bytes(4, "big"), *skeletons]),
            b"".join([data for item in encoded for data in item.small]),
        ]
        for item in encoded:
            body += item.large
        return body, sum([item.nbytes for item in encoded])

    def encode_failure(self, error: BaseException, note: str) -> list[bytes]:
        """Encode an exception as text: the receiver creates no objects of classes that a stranger names."""
        return [readable(f"{type(error).__name__}: {error}").encode("utf-8", "replace")]

    def encode_report(self, report: Report, note: str) -> list[bytes]:
        """Not supported over the network: failures are counted where the flow runs."""
        return []


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the elements in memory order, as bytes, because not every dtype supports the buffer protocol."""
    return np.ascontiguousarray(array.reshape(-1, order="A")).view(np.uint8)


def _over_the_network(text: str) -> str:
    what, found, _ = text.partition(", which has no form on disk")
    if not found:
        return text
    return (
        f"{what}, which cannot be sent over the network, because nothing is pickled there. Make it an array, a number, "
        "text, bytes or containers of them (MapDataComponent)"
    )


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
        """Return the datapoints of a message; large arrays are views of its frames, and writable if those are.

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
            # Otherwise this object would keep the frames until the next message.
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
        # Ends, also if frames are empty: without a frame left, `pop` raises.
        while end < nbytes:
            begin, end = end, end + len(frame)
            whole[begin:end] = np.frombuffer(frame, np.uint8)  # raises if there are too many bytes
            if end < nbytes:
                frame = self._large.pop()
        return whole
