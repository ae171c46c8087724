"""Datapoints to bytes, at the yield: arrays leave their datapoint, and what is left, its *shell*, is pickled.

An array of `LARGE_BYTES` or more goes into a block of the arena; a smaller one becomes bytes. Guarantees:

- What is encoded is the datapoint as it is now; the flow may go on to change it.
- All or nothing: where the arena has no room for every large array of a datapoint, none is taken.
- Within one datapoint identity survives: an array that stands in it twice arrives as one object.
- The shells of many datapoints are loaded by one call: protocol 3 has explicit memo indexes and no frames, so the
  bodies of pickles can be joined into one list.
- A block that the flow itself has filled (`allocate`) is passed on without a copy only if nobody else can reach it any
  more: the reference counts of datapoint, array and base are the lowest that this path can show.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.arena import LARGE_BYTES, ArenaWriter, Block
from dataflow.transport.failures import pack_failure

__all__ = ["NESTED", "ArrayEncoder", "Parcel"]

NESTED: Final = "nested"
"""The gaps of a shell that refers to its arrays by number, wherever they are."""

_PROTOCOL: Final = 3
_ARRAY_INSIDE: Final = b"ndarray\n"  # how a pickle that holds an array names the class
_SHORT: Final = 64  # bytes; a pickle that holds an array is longer

_MOST_NAMES: Final = 1024
_NAMES: Final[dict[np.dtype[Any], Any]] = {}  # what `_name` has answered: a pure function, remembered

Layout = tuple[Any, tuple[int, ...], str]  # dtype (or its name), shape, order
Piece = tuple[Layout, bytes | Block]


class Parcel:
    """An encoded datapoint that has arrays."""

    __slots__ = ("arrays", "body", "gaps", "nbytes")

    def __init__(self, body: bytes, gaps: Any, arrays: list[Piece], nbytes: int) -> None:
        self.body = body  # the pickle of the shell
        self.gaps = gaps  # where the arrays belong
        self.arrays = arrays
        self.nbytes = nbytes  # what travels in the message

    def __len__(self) -> int:
        return self.nbytes


class ArrayEncoder:
    """The worker's end of the codec between processes.

    Args:
        arena: Where large arrays go.
    """

    def __init__(self, arena: ArenaWriter) -> None:
        self._arena = arena
        self._inline = False  # for this datapoint, every array becomes bytes
        self._lowest: tuple[int, ...] | None = None  # reference counts of a draft that nobody else can reach
        self._copied = 0  # bytes of the last datapoint's arrays that travel in the message
        self._seen: tuple[int, ...] = ()  # the counts of the last draft

    def encode(self, dp: Any) -> Any:
        """Bytes, or a `Parcel` for a datapoint with arrays; None if the arena has no room for these now."""
        kind = type(dp)
        if kind is list or kind is tuple:
            gaps = [k for k, value in enumerate(dp) if type(value) is np.ndarray]
        elif kind is dict:
            gaps = [key for key, value in dp.items() if type(value) is np.ndarray]
        else:
            gaps = []
        if gaps:
            return self._encode_arrays(dp, kind, gaps)
        body = pickle.dumps(dp, _PROTOCOL)
        if len(body) > _SHORT and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        return body

    def encode_inline(self, dp: Any) -> Any:
        """The same without the arena."""
        self._inline = True
        try:
            return self.encode(dp)
        finally:
            self._inline = False

    def join(self, encoded: Sequence[Any]) -> list[Any]:
        """The body of a message. One frame: shells without gaps. Three: shells, a description of the arrays, bytes."""
        if all(type(item) is bytes for item in encoded):
            return [_joined(encoded)]
        gaps = [None if type(item) is bytes else item.gaps for item in encoded]
        bodies = [item if type(item) is bytes else item.body for item in encoded]
        shells = pickle.dumps(bodies, _PROTOCOL) if NESTED in gaps else _joined(bodies)
        arrays = [entry for item in encoded if type(item) is not bytes for entry in item.arrays]
        runs = []
        for (layout, kind), group in groupby(arrays, _run):
            pieces = [data for _, data in group]
            blocks = [(piece.status, piece.start) for piece in pieces] if kind is Block else None
            runs.append((*layout, blocks, len(pieces)))
        small = b"".join([data for _, data in arrays if type(data) is bytes])
        counts = [(gap, sum(1 for _ in same)) for gap, same in groupby(gaps)]
        return [shells, pickle.dumps((counts, runs), _PROTOCOL), small]

    def encode_failure(self, error: BaseException, note: str) -> list[Any]:
        """The body of a message about an exception."""
        return [pack_failure(error, note=note)]

    def tidy(self) -> None:
        """Give back memory that is not used."""
        self._arena.tidy()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for the flow to fill, in a block of the arena if there is room."""
        return self._arena.draft(shape, dtype)

    # -- datapoints with arrays ----------------------------------------------------------------------------------------

    def _encode_arrays(self, dp: Any, kind: type, gaps: list[Any]) -> Any:
        """The shell has None where an array is a direct component, as nearly always."""
        arrays = [dp[key] for key in gaps]
        if len(arrays) > 1 and len(arrays) > len(set(map(id, arrays))):
            return self._encode_nested(dp)
        if kind is dict:
            shell: Any = {key: None if type(value) is np.ndarray else value for key, value in dp.items()}
        else:
            shell = [None if type(value) is np.ndarray else value for value in dp]
        body = pickle.dumps(shell, _PROTOCOL)
        if len(body) > _SHORT and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        try:
            pieces = self._pack(arrays, sys.getrefcount(dp))
        except _HoldsObjects:
            return self._encode_nested(dp)
        return None if pieces is None else Parcel(body, (kind is tuple, tuple(gaps)), pieces, len(body) + self._copied)

    def _encode_nested(self, dp: Any) -> Any:
        pickler = _NestedPickler()
        pickler.dump(dp)
        body = pickler.file.getvalue()
        pieces = self._pack(pickler.arrays, 0)
        return None if pieces is None else Parcel(body, NESTED, pieces, len(body) + self._copied)

    def _pack(self, arrays: list[NDArray[Any]], dp_count: int) -> list[Piece] | None:
        """The arrays as bytes and blocks; `_copied` counts the bytes. None if the arena has no room."""
        pieces: list[tuple[Layout, Any]] = []
        drafts = False
        self._copied = 0
        for array in arrays:
            flags = array.flags
            order: Any = "C" if flags.c_contiguous or not flags.f_contiguous else "F"
            dtype = array.dtype
            try:
                layout = (_NAMES[dtype], array.shape, order)
            except KeyError:
                layout = (_name(dtype), array.shape, order)
            nbytes = array.nbytes
            if nbytes < LARGE_BYTES or self._inline:
                self._copied += nbytes
                pieces.append((layout, array.tobytes(order)))
                continue
            base = array.base
            if base is not None and self._arena.is_draft(base):
                self._seen = dp_count, sys.getrefcount(array), sys.getrefcount(base)
                if self._seen == self._lowest and flags.c_contiguous and nbytes == base.nbytes:
                    drafts = True
                    pieces.append((layout, base))
                    continue
            block = self._arena.take(nbytes)
            if block is None:
                for _, data in pieces:
                    if type(data) is Block:
                        self._arena.give_back(data)
                return None
            self._arena.view(block, array.shape, dtype, order)[...] = array
            pieces.append((layout, block))
        # Only now is it sure that the datapoint leaves: drafts change hands.
        return [(layout, self._passed_on(data)) for layout, data in pieces] if drafts else pieces

    def _passed_on(self, data: Any) -> bytes | Block:
        return self._arena.release(data) if isinstance(data, np.ndarray) else data

    def calibrate(self, run: Callable[[Iterator[Any]], Any]) -> None:
        """Learn which reference counts a draft has that nobody else can reach, on the very path that encodes.

        Args:
            run: Encodes datapoints exactly as those of a flow. Two are given: one made by an expression, and one that
                the generator keeps in a variable. Where the second does not show one reference more in the datapoint
                and none elsewhere, this Python counts otherwise, and drafts are always copied.
        """
        counts = []
        for keep in (False, True):
            run(self._sample(keep=keep))
            counts.append(self._seen)
        (dp, array, base), kept = counts
        if kept == (dp + 1, array, base):
            self._lowest = counts[0]

    def _sample(self, *, keep: bool) -> Iterator[Any]:
        if keep:
            kept = [self._arena.draft((LARGE_BYTES,), np.dtype(np.uint8))]
            yield kept
        else:
            yield [self._arena.draft((LARGE_BYTES,), np.dtype(np.uint8))]


class _HoldsObjects(Exception):
    """An array of Python objects is pickled by numpy."""


class _NestedPickler(pickle.Pickler):
    """Pickles a datapoint in which arrays stand anywhere: each is replaced by its number."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, _PROTOCOL)
        self.arrays: list[NDArray[Any]] = []  # keeps them alive, so that no two have the same id
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not np.ndarray or obj.dtype.hasobject:
            return None
        number = self._numbers.setdefault(id(obj), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(obj)
        return number


def _run(entry: tuple[Layout, bytes | Block]) -> tuple[Layout, type]:
    """What arrays in a row must share to be described together."""
    layout, data = entry
    return layout, type(data)


def _joined(bodies: Sequence[bytes]) -> bytes:
    """One pickle of a list, from the pickles of its elements."""
    return b"\x80\x03](" + b"".join([body[2:-1] for body in bodies]) + b"e."


def _name(dtype: np.dtype[Any]) -> Any:
    """A dtype as text, or itself where text would lose something."""
    if dtype.hasobject:
        raise _HoldsObjects
    name = dtype if dtype.kind == "V" or dtype.metadata else dtype.str
    if len(_NAMES) < _MOST_NAMES:
        _NAMES[dtype] = name
    return name
