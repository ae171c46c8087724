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

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.failures import Report
from dataflow.transport.arena import ArenaWriter
from dataflow.transport.blocks import LARGE_BYTES, Block
from dataflow.transport.drafts import DraftCounts
from dataflow.transport.failures import pack_failure, pack_report
from dataflow.transport.leases import is_base
from dataflow.transport.nesting import NestedPickler
from dataflow.transport.parcels import NESTED, NO_ROOM, PLAIN_BYTES, PROTOCOL, Layout, Piece, join, name_of

__all__ = ["ArrayEncoder"]

_ARRAY: Final = np.ndarray  # exactly: what a subclass adds would be lost
_ARRAY_INSIDE: Final = b"ndarray\n"  # how a pickle that holds an array names the class
_pickled: Final = pickle.dumps
_PLAIN_KEYS: Final = frozenset({str, int})  # what a copy of them finds is what they find: not so for nan or an object

_MOST_LAYOUTS: Final = 1024


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
        self.plain = False  # the last datapoint was short and without arrays: the next one will be
        self._gaps: tuple[bool, list[Any]] = (False, [])  # of the last datapoint with arrays
        # By component: what its last array was like. One object for arrays that are alike: `join` compares identities.
        self._layouts: dict[Any, tuple[np.dtype[Any], Layout, int]] = {}
        self._last_kind: type | None = None  # of the last datapoint with a single array
        self._last: tuple[Any, ...] = ()  # its key, dtype, shape, layout, gaps, bytes
        self._drafts = DraftCounts()

    def encode_plain(self, datapoints: Iterator[Any], append: Callable[[bytes], object]) -> Any:
        """Encode datapoints as long as they are short and without arrays, as those of millions are; `append` each.

        Returns:
            The first datapoint that is something else, for `encode`; `NO_ROOM` after the last.
        """
        for dp in datapoints:
            try:
                body = _pickled(dp, PROTOCOL)
            except Exception:
                self.plain = False  # `encode` meets it again
                return dp
            if len(body) > PLAIN_BYTES:
                self.plain = False  # there may be an array inside, which must not be pickled whole
                return dp
            append(body)
        return NO_ROOM

    def encode(self, dp: Any) -> Any:
        """Bytes, or a `Parcel` for a datapoint with arrays; `NO_ROOM` if the arena has no room for these now."""
        kind = type(dp)
        if kind is self._last_kind:
            # Like the last one, with a single array: the case of millions.
            key, dtype, shape, layout, gaps, size = self._last
            try:
                value = dp[key]
            except LookupError:
                value = None
            if (
                type(value) is _ARRAY
                and value.dtype is dtype
                and value.shape == shape
                and value.flags.c_contiguous
                and not is_base(value.base)
            ):
                shell: Any = dp.copy() if kind is dict else list(dp)
                shell[key] = None
                body = _pickled(shell, PROTOCOL)
                if len(body) <= PLAIN_BYTES or _ARRAY_INSIDE not in body:  # there is no other one
                    if size < LARGE_BYTES or self._inline:
                        piece: Any = value.tobytes()
                    else:
                        piece = self._arena.copy(value, layout)
                        if piece is None:
                            return NO_ROOM
                    self.nbytes = nbytes = size + len(body)
                    return body, gaps, ((layout, piece),), nbytes
            value = None
        if kind is list or kind is tuple or kind is dict:
            # Contiguous arrays that are components are done here; the rest elsewhere.
            shell = None
            for key, value in dp.items() if kind is dict else enumerate(dp):
                if type(value) is _ARRAY:
                    dtype = value.dtype
                    like = self._layouts.get(key)
                    if like is None or like[0] is not dtype:
                        if dtype.hasobject or type(key) not in _PLAIN_KEYS:
                            return self._encode_nested(dp)
                        like = self._like(key, value)
                    _, layout, size = like
                    if layout[1] != value.shape:
                        layout, size = (layout[0], value.shape, "C"), value.nbytes
                        self._layouts[key] = dtype, layout, size
                    if not value.flags.c_contiguous:
                        break
                    if shell is None:
                        shell = dp.copy() if kind is dict else list(dp)
                        pieces: list[Any] = []
                        keys: list[Any] = []
                        nbytes = large = 0
                    if size < LARGE_BYTES or self._inline:
                        pieces.append((layout, value.tobytes()))
                    elif is_base(value.base):
                        break
                    else:
                        pieces.append((layout, value))
                        large += 1
                    nbytes += size
                    keys.append(key)
                    shell[key] = None
            else:
                if shell is not None:
                    return self._filled(dp, shell, keys, pieces, nbytes, large)
                value = None
            if shell is not None or type(value) is _ARRAY:
                # A draft's references are counted: no variable, and no iterator, may hold it now.
                shell = value = pieces = None  # type: ignore[assignment]
                return self._encode_mixed(dp)
        elif kind is _ARRAY:
            return self._encode_nested(dp)
        body = _pickled(dp, PROTOCOL)
        self.nbytes = len(body)
        if self.nbytes <= PLAIN_BYTES:
            self.plain = True
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
        return join(encoded, self._arena.write)

    def encode_failure(self, error: BaseException, note: str) -> list[Any]:
        """The body of a message about an exception."""
        return [pack_failure(error, note=note)]

    def encode_report(self, report: Report, note: str) -> list[Any]:
        """The body of a report."""
        return [pack_report(report, note=note)]

    def tidy(self) -> None:
        """Give back memory that is not used."""
        self._arena.tidy()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array for the flow to fill, in a block of the arena if there is room."""
        return self._arena.draft(shape, dtype)

    # -- datapoints with arrays ----------------------------------------------------------------------------------------

    def _like(self, key: Any, array: NDArray[Any]) -> tuple[np.dtype[Any], Layout, int]:
        if len(self._layouts) > _MOST_LAYOUTS:
            self._layouts.clear()
        like = array.dtype, (name_of(array.dtype), array.shape, "C"), array.nbytes
        self._layouts[key] = like
        return like

    def _filled(self, dp: Any, shell: Any, keys: list[Any], pieces: list[Any], nbytes: int, large: int) -> Any:
        """A parcel: `pieces` are bytes, and the arrays that go into blocks."""
        if len(keys) > 1 and len({id(dp[key]) for key in keys}) < len(keys):
            return self._encode_nested(dp)
        body = _pickled(shell, PROTOCOL)
        if len(body) > PLAIN_BYTES and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        is_tuple = type(dp) is tuple
        gaps = self._gaps
        if gaps[1] != keys or gaps[0] is not is_tuple:
            gaps = self._gaps = (is_tuple, keys)
        if len(keys) == 1:
            (key,) = keys
            dtype, layout, size = self._layouts[key]
            self._last_kind, self._last = type(dp), (key, dtype, layout[1], layout, gaps, size)
        if large:
            for k, (layout, data) in enumerate(pieces):
                if type(data) is _ARRAY:
                    block = self._arena.copy(data, layout)
                    if block is None:
                        self._give_back(pieces[:k])
                        return NO_ROOM
                    pieces[k] = layout, block
        self.nbytes = nbytes = nbytes + len(body)
        return body, gaps, pieces, nbytes

    def _give_back(self, pieces: list[Any]) -> None:
        for _, data in pieces:
            if type(data) is Block:
                self._arena.give_back(data)

    def _encode_mixed(self, dp: Any) -> Any:
        """Components of which at least one is a draft, or not contiguous."""
        if type(dp) is dict:
            keys = [key for key, value in dp.items() if type(value) is _ARRAY]
            if not _PLAIN_KEYS.issuperset(map(type, keys)):
                return self._encode_nested(dp)
            shell: Any = {key: None if type(value) is _ARRAY else value for key, value in dp.items()}
        else:
            keys = [k for k, value in enumerate(dp) if type(value) is _ARRAY]
            shell = [None if type(value) is _ARRAY else value for value in dp]
        return self._encode_parts(dp, shell, (type(dp) is tuple, keys), [dp[key] for key in keys])

    def _encode_parts(self, dp: Any, shell: Any, gaps: Any, arrays: list[NDArray[Any]]) -> Any:
        """The shell has None where an array is a direct component, as nearly always."""
        if len(arrays) > 1 and len(arrays) > len(set(map(id, arrays))):
            return self._encode_nested(dp)
        if True in [array.dtype.hasobject for array in arrays]:  # before any block is taken
            return self._encode_nested(dp)
        body = pickle.dumps(shell, PROTOCOL)
        if len(body) > PLAIN_BYTES and _ARRAY_INSIDE in body:
            return self._encode_nested(dp)
        self.nbytes = len(body)
        pieces = self._pack(arrays, type(dp), sys.getrefcount(dp))
        return NO_ROOM if pieces is None else (body, gaps, pieces, self.nbytes)

    def _encode_nested(self, dp: Any) -> Any:
        pickler = NestedPickler()
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
            layout = (name_of(array.dtype), array.shape, order)
            nbytes = array.nbytes
            self.nbytes += nbytes
            if nbytes < LARGE_BYTES or self._inline:
                pieces.append((layout, array.tobytes(order)))
                continue
            base = array.base
            if base is not None and self._arena.is_draft(base):
                counts = dp_count, sys.getrefcount(array), sys.getrefcount(base)
                if self._drafts.unreachable(kind, counts) and flags.c_contiguous and nbytes == base.nbytes:
                    drafts = True
                    pieces.append((layout, base))
                    continue
            block = self._arena.copy(array, layout)
            if block is None:
                self._give_back(pieces)
                return None
            pieces.append((layout, block))
        # Only now is it sure that the datapoint leaves: drafts change hands.
        return [(layout, self._passed_on(data)) for layout, data in pieces] if drafts else pieces

    def _passed_on(self, data: Any) -> bytes | Block:
        return self._arena.release(data) if isinstance(data, np.ndarray) else data

    def calibrate(self, run: Callable[[Iterator[Any]], Any]) -> None:
        """Learn which reference counts a draft has that nobody else can reach, on the very path that encodes."""
        self._drafts.calibrate(run, self._arena.draft, self._arena.give_back_all)
