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
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.arena import LARGE_BYTES, ArenaWriter, Block
from dataflow.transport.failures import pack_failure
from dataflow.transport.parcels import NESTED, NO_ROOM, PROTOCOL, Layout, Piece, join

__all__ = ["ArrayEncoder"]

_ARRAY: Final = np.ndarray  # exactly: what a subclass adds would be lost
_ARRAY_INSIDE: Final = b"ndarray\n"  # how a pickle that holds an array names the class
_pickled: Final = pickle.dumps
_SHORT: Final = 64  # bytes; a pickle that holds an array is longer
_PLAIN_KEYS: Final = frozenset({str, int})  # what a copy of them finds is what they find: not so for nan or an object

_MOST_NAMES: Final = 1024
_NAMES: Final[dict[np.dtype[Any], Any]] = {}  # what `_name` has answered: a pure function, remembered


class ArrayEncoder:
    """The worker's end of the codec between processes.

    Args:
        arena: Where large arrays go.
    """

    keeps_memory = True

    def __init__(self, arena: ArenaWriter) -> None:
        self._arena = arena
        self._inline = False  # for this datapoint, every array becomes bytes
        self.nbytes = 0  # of the last encoded datapoint
        self._plain = False  # the last datapoint was short and without arrays: the next one will be
        self._gaps: tuple[bool, list[int]] = (False, [])  # of the last row
        self._layout: Layout = (None, (), "C")  # of the last small array
        self._dtype: np.dtype[Any] | None = None
        self._lowest: dict[type, tuple[int, ...]] = {}  # reference counts of a draft that nobody else can reach
        self._seen: tuple[int, ...] = ()  # the counts of the last draft

    def encode(self, dp: Any) -> Any:
        """Bytes, or a `Parcel` for a datapoint with arrays; `NO_ROOM` if the arena has no room for these now."""
        if self._plain:
            body = _pickled(dp, PROTOCOL)
            if len(body) <= _SHORT:
                self.nbytes = len(body)
                return body
            self._plain = False  # there may be an array inside, which must not be pickled whole
        kind = type(dp)
        if kind is list or kind is tuple:
            for value in dp:
                if type(value) is _ARRAY:
                    del value  # a draft's references are counted
                    return self._encode_row(dp, kind is tuple)
        elif kind is dict:
            for value in dp.values():
                if type(value) is _ARRAY:
                    del value
                    return self._encode_dict(dp)
        elif kind is _ARRAY:
            return self._encode_nested(dp)
        body = _pickled(dp, PROTOCOL)
        self.nbytes = len(body)
        if self.nbytes <= _SHORT:
            self._plain = True
        elif _ARRAY_INSIDE in body:
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
        """The body of a message, and the bytes of its datapoints."""
        return join(encoded)

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
        """A list or tuple. Small contiguous arrays, the case of millions, are done here; the rest elsewhere."""
        shell = list(dp)
        pieces: list[Piece] = []
        layout, nbytes = self._layout, 0
        keys: list[int] = []
        for k, value in enumerate(dp):
            if type(value) is _ARRAY:
                size = value.nbytes
                if size >= LARGE_BYTES or not value.flags.c_contiguous:
                    break
                if value.dtype is not self._dtype or value.shape != layout[1]:
                    if value.dtype.hasobject:
                        return self._encode_nested(dp)
                    # One object for all arrays in a row that are alike: `join` compares identities.
                    layout = self._layout = (_name(value.dtype), value.shape, "C")
                    self._dtype = value.dtype
                pieces.append((layout, value.tobytes()))
                nbytes += size
                keys.append(k)
                shell[k] = None
        else:
            return self._small_row(dp, shell, is_tuple, keys, pieces, nbytes)
        # A draft's references are counted: no variable, and no iterator, may hold it now.
        del shell, value
        return self._encode_mixed_row(dp, is_tuple)

    def _small_row(
        self, dp: Any, shell: list[Any], is_tuple: bool, keys: list[int], pieces: list[Piece], nbytes: int
    ) -> Any:
        if len(keys) > 1 and len({id(dp[k]) for k in keys}) < len(keys):
            return self._encode_nested(dp)
        gaps = self._gaps
        if gaps[1] != keys or gaps[0] is not is_tuple:
            gaps = self._gaps = (is_tuple, keys)
        body = pickle.dumps(shell, PROTOCOL)
        if len(body) > _SHORT and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        self.nbytes = nbytes = nbytes + len(body)
        return body, gaps, pieces, nbytes

    def _encode_mixed_row(self, dp: Any, is_tuple: bool) -> Any:
        keys = [k for k, value in enumerate(dp) if type(value) is _ARRAY]
        shell = [None if type(value) is _ARRAY else value for value in dp]
        return self._encode_parts(dp, shell, (is_tuple, keys), [dp[k] for k in keys])

    def _encode_dict(self, dp: dict[Any, Any]) -> Any:
        shell = {key: None if type(value) is _ARRAY else value for key, value in dp.items()}
        keys = [key for key, value in dp.items() if type(value) is _ARRAY]
        if not _PLAIN_KEYS.issuperset(map(type, keys)):
            return self._encode_nested(dp)
        return self._encode_parts(dp, shell, (False, keys), [dp[key] for key in keys])

    def _encode_parts(self, dp: Any, shell: Any, gaps: Any, arrays: list[NDArray[Any]]) -> Any:
        """The shell has None where an array is a direct component, as nearly always."""
        if len(arrays) > 1 and len(arrays) > len(set(map(id, arrays))):
            return self._encode_nested(dp)
        if True in [array.dtype.hasobject for array in arrays]:  # before any block is taken
            return self._encode_nested(dp)
        body = pickle.dumps(shell, PROTOCOL)
        if len(body) > _SHORT and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        self.nbytes = len(body)
        pieces = self._pack(arrays, type(dp), sys.getrefcount(dp))
        return NO_ROOM if pieces is None else (body, gaps, pieces, self.nbytes)

    def _encode_nested(self, dp: Any) -> Any:
        pickler = _NestedPickler()
        pickler.dump(dp)
        body = pickler.file.getvalue()
        self.nbytes = len(body)
        pieces = self._pack(pickler.arrays, type(dp), 0)
        return NO_ROOM if pieces is None else (body, NESTED, pieces, self.nbytes)

    def _pack(self, arrays: list[NDArray[Any]], kind: type, dp_count: int) -> list[Piece] | None:
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
                if self._seen == self._lowest.get(kind) and flags.c_contiguous and nbytes == base.nbytes:
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
        for kind in (list, tuple, dict):
            counts = []
            for keep in (False, True):
                self._seen = ()  # and so it stays where there is no room for a draft
                run(self._sample(kind, keep=keep))
                counts.append(self._seen)
            lowest, kept = counts
            if lowest and kept == (lowest[0] + 1, *lowest[1:]):
                self._lowest[kind] = lowest
        self._arena.give_back_all()

    def _sample(self, kind: type, *, keep: bool) -> Iterator[Any]:
        if keep:
            kept = self._sample_datapoint(kind)
            yield kept
        else:
            yield self._sample_datapoint(kind)

    def _sample_datapoint(self, kind: type) -> Any:
        if kind is dict:
            return {0: self._arena.draft((LARGE_BYTES,), np.dtype(np.uint8))}
        return kind([self._arena.draft((LARGE_BYTES,), np.dtype(np.uint8))])


class _NestedPickler(pickle.Pickler):
    """Pickles a datapoint in which arrays stand anywhere: each is replaced by its number."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, PROTOCOL)
        self.arrays: list[NDArray[Any]] = []  # keeps them alive, so that no two have the same id
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not np.ndarray or obj.dtype.hasobject:
            return None  # numpy pickles the objects of an array of objects
        number = self._numbers.setdefault(id(obj), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(obj)
        return number


def _name(dtype: np.dtype[Any]) -> Any:
    """A dtype as text, or itself where text would lose something."""
    added = dtype.isbuiltin == 2  # by another package, such as bfloat16: known under its name there alone
    name = dtype if added or dtype.kind == "V" or dtype.metadata else dtype.str
    if len(_NAMES) < _MOST_NAMES:
        _NAMES[dtype] = name
    return name
