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

__all__ = ["ALONE", "HEAD", "NESTED", "STOP", "ArrayEncoder", "Parcel"]

NESTED: Final = "nested"
"""The gaps of a shell that refers to its arrays by number, wherever they are."""

ALONE: Final = b"\x80\x03"  # protocol 3: how each pickle begins
STOP: Final = b"."  # and ends
HEAD: Final = ALONE + b"]("  # a list, and a mark: how many begin
TAIL: Final = b"e" + STOP  # append all since the mark

_PROTOCOL: Final = 3
_ARRAY: Final = np.ndarray  # exactly: what a subclass adds would be lost
_ARRAY_INSIDE: Final = b"ndarray\n"  # how a pickle that holds an array names the class
_SHORT: Final = 64  # bytes; a pickle that holds an array is longer

_MOST_NAMES: Final = 1024
_NAMES: Final[dict[np.dtype[Any], Any]] = {}  # what `_name` has answered: a pure function, remembered

Layout = tuple[Any, tuple[int, ...], str]  # dtype (or its name), shape, order
Piece = tuple[Layout, bytes | Block]


Parcel = tuple[bytes, Any, list[Piece], int]
"""An encoded datapoint with arrays: the pickle of its shell, its gaps, the arrays, and the bytes of all."""


class ArrayEncoder:
    """The worker's end of the codec between processes.

    Args:
        arena: Where large arrays go.
    """

    def __init__(self, arena: ArenaWriter) -> None:
        self._arena = arena
        self._inline = False  # for this datapoint, every array becomes bytes
        self.nbytes = 0  # of the last encoded datapoint
        self._lowest: tuple[int, ...] | None = None  # reference counts of a draft that nobody else can reach
        self._seen: tuple[int, ...] = ()  # the counts of the last draft

    def encode(self, dp: Any) -> Any:
        """Bytes, or a `Parcel` for a datapoint with arrays; None if the arena has no room for these now."""
        kind = type(dp)
        if kind is list or kind is tuple:
            for value in dp:
                if type(value) is _ARRAY:
                    return self._encode_row(dp, kind is tuple)
        elif kind is dict:
            for value in dp.values():
                if type(value) is _ARRAY:
                    return self._encode_dict(dp)
        body = pickle.dumps(dp, _PROTOCOL)
        self.nbytes = len(body)
        if self.nbytes > _SHORT and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        return body

    def encode_inline(self, dp: Any) -> Any:
        """The same without the arena."""
        self._inline = True
        try:
            return self.encode(dp)
        finally:
            self._inline = False

    def join(self, encoded: Sequence[Any]) -> tuple[list[Any], int]:
        """The body of a message, and the bytes of its datapoints. The body: all shells as one list, their lengths, what the arrays are, and the small ones' bytes.

        The last two are missing where there is no array. The lengths serve where the list cannot be loaded as a whole.
        """
        if not any(type(item) is tuple for item in encoded):
            return _joined(encoded), sum(map(len, encoded))
        nbytes = 0
        gaps, bodies, pieces = [], [], []
        for item in encoded:
            if type(item) is bytes:
                item = (item, None, (), len(item))
            bodies.append(item[0])
            gaps.append(item[1])
            pieces += item[2]
            nbytes += item[3]
        runs = []
        for (layout, kind), group in groupby(pieces, _run):
            data = [piece for _, piece in group]
            blocks = [(block.status, block.start) for block in data] if kind is Block else None
            runs.append((*layout, blocks, len(data)))
        small = b"".join([data for _, data in pieces if type(data) is bytes])
        counts = [(gap, sum(1 for _ in same)) for gap, same in groupby(gaps)]
        return [*_joined(bodies), pickle.dumps((counts, runs), _PROTOCOL), small], nbytes

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

    def _encode_row(self, dp: Any, is_tuple: bool) -> Any:
        shell: list[Any] = []
        arrays, gaps = [], []
        for k, value in enumerate(dp):
            if type(value) is _ARRAY:
                arrays.append(value)
                gaps.append(k)
                shell.append(None)
            else:
                shell.append(value)
        del value
        return self._encode_parts(dp, shell, (is_tuple, tuple(gaps)), arrays)

    def _encode_dict(self, dp: dict[Any, Any]) -> Any:
        shell = {key: None if type(value) is _ARRAY else value for key, value in dp.items()}
        gaps = tuple([key for key, value in dp.items() if type(value) is _ARRAY])
        return self._encode_parts(dp, shell, (False, gaps), [dp[key] for key in gaps])

    def _encode_parts(self, dp: Any, shell: Any, gaps: Any, arrays: list[NDArray[Any]]) -> Any:
        """The shell has None where an array is a direct component, as nearly always."""
        if len(arrays) > 1 and len(arrays) > len(set(map(id, arrays))):
            return self._encode_nested(dp)
        body = pickle.dumps(shell, _PROTOCOL)
        if len(body) > _SHORT and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        self.nbytes = len(body)
        try:
            pieces = self._pack(arrays, sys.getrefcount(dp))
        except _HoldsObjects:
            return self._encode_nested(dp)
        return None if pieces is None else (body, gaps, pieces, self.nbytes)

    def _encode_nested(self, dp: Any) -> Any:
        pickler = _NestedPickler()
        pickler.dump(dp)
        body = pickler.file.getvalue()
        self.nbytes = len(body)
        pieces = self._pack(pickler.arrays, 0)
        return None if pieces is None else (body, NESTED, pieces, self.nbytes)

    def _pack(self, arrays: list[NDArray[Any]], dp_count: int) -> list[Piece] | None:
        """The arrays as bytes and blocks. None if the arena has no room."""
        pieces: list[tuple[Layout, Any]] = []
        drafts = False
        for array in arrays:
            flags = array.flags
            order: Any = "C" if flags.c_contiguous or not flags.f_contiguous else "F"
            dtype = array.dtype
            try:
                layout = (_NAMES[dtype], array.shape, order)
            except KeyError:
                layout = (_name(dtype), array.shape, order)
            nbytes = array.nbytes
            self.nbytes += nbytes
            if nbytes < LARGE_BYTES or self._inline:
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
        self._arena.give_back_all()
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


def _joined(bodies: Sequence[bytes]) -> list[bytes]:
    """One pickle of a list, from the pickles of its elements; and the length of each in it."""
    bare = [body[2:-1] for body in bodies]
    return [HEAD + b"".join(bare) + TAIL, np.fromiter(map(len, bare), np.uint32, len(bare)).tobytes()]


def _name(dtype: np.dtype[Any]) -> Any:
    """A dtype as text, or itself where text would lose something."""
    if dtype.hasobject:
        raise _HoldsObjects
    name = dtype if dtype.kind == "V" or dtype.metadata else dtype.str
    if len(_NAMES) < _MOST_NAMES:
        _NAMES[dtype] = name
    return name
