"""Datapoints to frames, at the yield: the sender's end of the codec.

A message holds the skeletons of its datapoints as one msgpack array, the bytes of small arrays in one frame, and each
large array in a frame of its own, or several. Nothing is pickled: what has no form of its own is refused here, with its
place.

Very large arrays are cut in pieces, which the receiver puts together. ZeroMQ takes memory for each frame, and malloc
maps what is too large to be kept for the next one anew, page by page, at both ends. That takes longer than the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import zmq
from numpy.typing import NDArray

from dataflow.codec.message_layout import NO_ROOM
from dataflow.errors import NotStorable
from dataflow.failures import Report
from dataflow.remote.messages import readable
from dataflow.serial.packing import PLAIN, Code, pack

__all__ = ["LARGE", "FrameEncoder"]

LARGE: Final = 1 << 16
"""Bytes from which an array has a frame of its own. Both ends have to agree."""

_ARRAY32: Final = b"\xdd"  # msgpack: an array, its length in the next four bytes
_PIECE_BYTES: Final = 1 << 19
_CUT_BYTES: Final = 20 << 20  # of the smallest array that is cut: three below have room in one heap of glibc, of 64 MiB
_OVERHEAD: Final = 16  # bytes that a datapoint counts at least: the receiver has an object for it
_MAX_LAYOUTS: Final = 4096  # remembered
_SIMPLE: Final = PLAIN | {int, np.ndarray}


class _Written(NamedTuple):
    skeleton: bytes
    small: list[bytes]
    large: list[zmq.Frame]
    nbytes: int


class FrameEncoder:
    """Writes datapoints as frames.

    Args:
        max_bytes: What one datapoint may take: the `hwm_bytes` of the receiver.
        encrypted: Whether the frames will be. Then every large array is cut: ZeroMQ copies each frame once more.
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
        """One datapoint, as it is now: the arrays are copied.

        Raises:
            NotStorable: It cannot be written without pickling. Names the component.
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
                if size < LARGE:
                    small.append(array.tobytes("A"))
                else:
                    data, piece = _bytes_of(array), _PIECE_BYTES if size >= self._cut_bytes else size
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
        """What `pack` gives, in a twentieth of the time, for a flat list of what is most common; None for all else."""
        if type(dp) is not list or not _SIMPLE.issuperset(map(type, dp)):
            return None
        self._arrays = []
        try:
            return self._packer.pack(dp), self._arrays
        except Exception:  # `pack` finds it, too, and explains it
            return None

    def _described(self, array: Any) -> Any:
        """What stands for an array in the skeleton; nothing else comes here."""
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

    def encode_plain(self, datapoints: Iterator[Any], append: Callable[[Any], object]) -> Any:
        """Never called: `plain` is false."""
        return NO_ROOM

    def join(self, encoded: Sequence[_Written]) -> tuple[list[Any], int]:
        """The frames of a message, and the bytes of its datapoints."""
        skeletons = [item.skeleton for item in encoded]
        body: list[Any] = [
            b"".join([_ARRAY32, len(skeletons).to_bytes(4, "big"), *skeletons]),
            b"".join([data for item in encoded for data in item.small]),
        ]
        for item in encoded:
            body += item.large
        return body, sum([item.nbytes for item in encoded])

    def encode_failure(self, error: BaseException, note: str) -> list[bytes]:
        """An exception as text: the receiver makes no objects of classes that a stranger names."""
        return [readable(f"{type(error).__name__}: {error}").encode("utf-8", "replace")]

    def encode_report(self, report: Report, note: str) -> list[bytes]:
        """Nothing is reported over the network: failures are counted where the flow runs."""
        return []

    def tidy(self) -> None:
        """Nothing is kept."""

    def calibrate(self, run: Callable[[Iterator[Any]], Any]) -> None:
        """Everything is copied."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array like any other."""
        return np.empty(shape, dtype)


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The elements in the order of memory; as bytes, because not every dtype has a buffer of its own."""
    return np.ascontiguousarray(array.reshape(-1, order="A")).view(np.uint8)


def _over_the_network(text: str) -> str:
    what, found, _ = text.partition(", which has no form on disk")
    if not found:
        return text
    return (
        f"{what}, which cannot be sent over the network, because nothing is pickled there. Make it an array, a number, "
        "text, bytes or containers of them (MapDataComponent)"
    )
