"""Datapoints that are kept while their source makes others, and may use the memory of one for the next.

Guarantees for those of a batch (`NextGroup`), where the first has no large array; `filling` copies those that have:

- In each process, the datapoints of the first batch are copied as they arrive, and compared at its end with what the
  source has made of them since. A source that has written into any of them, in one buffer or in several by turns, has
  each copied from then on: its batches are right. So has one of which two datapoints were in the same place, though
  they had the same values.
- A source that begins later raises, because a datapoint has changed at the end of its batch. Two are compared. By the
  one before the last, the first batch that would be wrong raises if the source has one buffer. By the first one, which
  several buffers overwrite, too, the batch raises after that in which the source begins, at the latest. In every fourth
  batch another one is compared as well, for sources that spare these two. Of a batch that may be shorter, because the
  pass may end in it, all are compared.
- If the datapoints come from several flows, the first batch says nothing of those that come later: all are copied.
- Other sources pay for a copy of one datapoint per batch, or two, not of all.

Guarantees for those that are handed on as they are, from threads, from a buffer, ahead of calls or in a batch that is
not stacked (`MemoryWatch`):

- None is copied, because code may rely on it that what it changes in place is changed in the source.
- The first datapoints are compared with all before them: one that is in the memory of another, whose values have
  changed, raises. Of the others, every 512th is compared with the one after it, so a source that begins later to use
  one buffer is found out, after some datapoints; one with more buffers than datapoints are compared is not.
- Those of each batch are compared at its end, too: two or three of them; or all if they come from several flows, or if
  two of the first batch were in the same place.

Where no code of the user makes or changes datapoints (`may_reuse_memory`), nothing is looked at. Arrays of more than a
megabyte are compared by a checksum, and objects of the user's classes by their public attributes; of what these hold,
100 parts and 16 MB at most.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from copy import copy
from itertools import chain, islice
from operator import is_not
from typing import Any, Final, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.base import DataFlow
from dataflow.protocol.datapoint import ARRAY_NAMES, HOLE, as_number_or_array, user_attributes
from dataflow.protocol.passes import walk

__all__ = ["MemoryWatch", "NextGroup", "ReusedMemory", "copy_datapoint", "has_several_sources", "may_reuse_memory"]

_CONTAINERS: Final = (list, tuple, dict)
_UNCHANGEABLE: Final = frozenset({int, float, complex, bool, str, bytes, type(None)}).union(
    kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"
)
_BATCHES_PER_TURN: Final = 4
_NUM_FIRST: Final = 64
_FIRST_BYTES: Final = 1 << 24  # no more are kept alive of them, but of one datapoint
_LARGE_BYTES: Final = 1 << 20
_DATAPOINTS_PER_TURN: Final = 512
_MAX_DEPTH: Final = 2
_LONGEST: Final = 100  # elements of what an object holds


def may_reuse_memory(ds: DataFlow, *, everywhere: bool = False) -> bool:
    """Whether the memory of a datapoint may be used for later ones: by code of the user, or of a library.

    Below workers only with `everywhere`: what comes from them is new.
    """
    return any(node._df_calls or not (node._df_inputs or node._df_holds) for node in walk(ds, everywhere=everywhere))


def has_several_sources(ds: DataFlow) -> bool:
    """Whether the datapoints of `ds` come from several flows."""
    return any(node._df_joins for node in walk(ds, everywhere=True))


class ReusedMemory:
    """Whether the input writes datapoints into the memory of earlier ones of a batch."""

    is_reused: bool | None = None  # whether it is taken to; None before the first batch
    may_copy = True
    compares_all: bool | None = None  # whether those of all batches are compared; None before the first batch
    num_watched = 0  # the number of batches after the first of which some datapoints were compared
    source: object = None  # the input

    def compared(self, num: int, *, all_of_them: bool = False) -> Sequence[int]:
        """Which datapoints of a batch of `num` are compared at its end with what they held when they came."""
        if self.is_reused:
            return ()
        if all_of_them or self.compares_all is not False:
            return range(num)
        turn, is_left = divmod(self.num_watched, _BATCHES_PER_TURN)
        others = () if is_left or num < 4 else (1 + turn % (num - 3),)
        return (0, *others, num - 2) if num > 2 else (0,)


class Group(Protocol):
    """A group that copies datapoints as they arrive."""

    def __len__(self) -> int: ...
    def extend(self, datapoints: Iterator[Any]) -> None: ...


class NextGroup:
    """The datapoints of the next batch, taken from `datapoints`: what was taken before a timeout is kept.

    Args:
        datapoints: The datapoints of the source.
        memory: What is known of the memory of the datapoints; None if the source does not use it for later ones.
        begin: Makes a group that begins with a datapoint, for so many; None for a datapoint that does not need one.
        num_left: How many datapoints there are; None if that is unknown, and a batch may be the last one.
    """

    def __init__(
        self,
        datapoints: Iterator[Any],
        memory: ReusedMemory | None,
        begin: Callable[[Any, int], Group | None] | None = None,
        num_left: float | None = math.inf,
    ) -> None:
        self._datapoints = datapoints
        self._num_left = num_left
        self._memory = memory
        self._begin = begin
        self._group: Group | None = None  # copies what arrives
        self._taken: list[Any] = []
        self._compared: list[tuple[int, list[_Noted]]] = []  # number in the batch, and the parts of the datapoint

    def take(self, num: int) -> Any:
        """The next `num` datapoints, or those that are left: a list, or what `begin` has made.

        Raises:
            ValueError: A datapoint has changed meanwhile.
        """
        memory, datapoints = self._memory, self._datapoints
        if memory is None or num == 1:
            self._extend(datapoints, num)
            taken, self._taken = self._taken, []
            return taken
        if self._begin is not None and self._group is None and not self._taken:
            first = [*islice(datapoints, 1)]
            self._group = self._begin(first[0], num) if first else None
            if self._group is None:
                datapoints = chain(first, datapoints)
        if self._group is not None:
            self._group.extend(islice(datapoints, num - len(self._group)))
            group, self._group = self._group, None
            return group
        return self._take_and_compare(datapoints, num, memory)

    def left(self) -> list[Any]:
        """What was taken before an error."""
        taken, self._taken, self._compared = self._taken, [], []
        return taken

    def _take_and_compare(self, datapoints: Iterator[Any], num: int, memory: ReusedMemory) -> list[Any]:
        taken, compared = self._taken, self._compared
        is_first = memory.compares_all is None and not memory.is_reused
        copies = memory.may_copy and memory.is_reused is not False
        may_end = self._num_left is None or self._num_left < num
        for k in memory.compared(num, all_of_them=may_end)[len(compared) :]:
            self._extend(datapoints, k, copies=copies)
            for dp in islice(datapoints, 1):
                compared.append((k, self._noted(dp)))
                taken.append(copy_datapoint(dp) if copies else dp)
            if len(taken) <= k:
                break
        self._extend(datapoints, num, copies=copies)
        self._taken, self._compared = [], []
        if self._num_left is not None:
            self._num_left -= len(taken)
        changed = next((k for k, noted in compared if any(map(_has_changed, noted))), None)
        if is_first and len(taken) > 1:
            memory.compares_all = _share_memory(noted for _, noted in compared)
            if memory.may_copy:
                memory.is_reused = memory.compares_all or changed is not None
        if not copies:
            memory.num_watched += 1
            if changed is not None:
                memory.is_reused = memory.may_copy
                raise ValueError(
                    f"datapoint {changed} of a batch has changed while the batch was made: its source has begun to "
                    "write later datapoints into the same memory, so this batch, and perhaps those before, would be "
                    "wrong. Yield copies (array.copy())"
                )
        return taken

    def _noted(self, dp: Any) -> list[_Noted]:
        """The parts of a datapoint; a large array has the note of the datapoint before it that is in the same place."""
        before = {id(part): noted for _, parts in self._compared[-1:] for noted in parts if _is_large(part := noted[0])}
        return [before.get(id(part)) or _note(part) for part in _parts_of(dp)]

    def _extend(self, datapoints: Iterator[Any], num: int, *, copies: bool = False) -> None:
        wanted = islice(datapoints, num - len(self._taken))
        self._taken.extend(map(copy_datapoint, wanted) if copies else wanted)


class MemoryWatch:
    """Finds out whether datapoints that are handed on as they are, and kept, are overwritten with later ones."""

    def __init__(self) -> None:
        self._num_first = _NUM_FIRST  # datapoints that are still to be compared with all before them
        self._num_bytes = 0  # of them
        self._noted: dict[int, _Noted] = {}  # by place in memory
        self._in_pass: object = None
        self.num_left = 0  # datapoints until the next one is looked at
        self.num_seen = 0  # looked at

    def passes(self, num: int) -> bool:
        """Whether none of the next `num` datapoints is looked at; they count then, and `over` is not needed."""
        if num > self.num_left:
            return False
        self.num_left -= num
        return True

    def begin_pass(self) -> None:
        """Only datapoints of one pass are compared: the user may change data between two."""
        self._noted.clear()
        self._in_pass = None

    def look_at_first(self, datapoints: Iterator[Any], num: int, to: MutableSequence[Any]) -> int:
        """Move those of the next `num` datapoints that are looked at, if it is time, to `to`. Return how many.

        They are the first ones. The others count as left out, and cost nothing.
        """
        num_looked = 0
        if self.num_left <= 0:
            for dp in islice(datapoints, num):
                num_looked += 1
                to.append(self.look_at(dp))
                if self.num_left > 0:
                    break
        self.num_left -= num - num_looked
        return num_looked

    def over(
        self,
        datapoints: Iterator[Any],
        waits: bool,
        *,
        is_guarded: bool = False,
        in_pass: object = None,
        num: int | None = None,
    ) -> Iterator[Any]:
        """The datapoints of a pass, or of a part of one.

        Args:
            datapoints: Only those of one pass are compared: the user may change data between two.
            waits: Whether they may raise `TimeoutError`, and continue with the next step.
            is_guarded: Whether no two threads can step them at the same time.
            in_pass: The pass, if it may be that of the datapoints before; None for another one.
            num: How many they are, if that is known.
        """
        if waits:
            self._noted.clear()
            return _Watched(self, datapoints)
        pieces = self._pieces(datapoints, in_pass, num)
        return chain.from_iterable(pieces) if is_guarded else _flatten(pieces)

    def _pieces(self, datapoints: Iterator[Any], in_pass: object, num: int | None) -> Iterator[Iterator[Any]]:
        if in_pass is None or in_pass != self._in_pass:
            self._noted.clear()
            self._in_pass = in_pass
        left, num_seen = sys.maxsize if num is None else num, -1
        while num_seen != self.num_seen:
            num_passed = min(self.num_left, left)
            self.num_left -= num_passed
            yield islice(datapoints, num_passed)
            left, num_seen = left - num_passed - 1, self.num_seen
            yield map(self.look_at, islice(datapoints, 1))

    def look_at(self, dp: Any) -> Any:
        """Compare `dp` with those before it, and return it.

        Raises:
            ValueError: It is in the memory of one of them, whose values have changed.
        """
        self.num_seen += 1
        noted = self._noted
        parts = {_place_of(part): part for part in _parts_of(dp)}
        is_kept = self._num_bytes < _FIRST_BYTES
        if noted:
            for place in noted.keys() & parts.keys():
                if _has_changed(noted[place]):
                    noted.clear()
                    raise ValueError(
                        "a datapoint was overwritten with a later one, while a worker or the consumer had still to "
                        "read it: the code that makes them uses its memory again. Yield, or return, copies "
                        "(array.copy())"
                    )
        if self._num_first:
            self._num_bytes += sum(part.nbytes for part in parts.values() if isinstance(part, np.ndarray))
            self._num_first -= 1
        if self._num_first or not noted:
            for place, part in parts.items():
                if is_kept or isinstance(part, np.ndarray):  # what a list held would be kept alive
                    noted[place] = _note(part, is_kept=is_kept)
        else:
            noted.clear()
            self.num_left = _DATAPOINTS_PER_TURN - 2
        return dp


def _flatten(pieces: Iterator[Iterator[Any]]) -> Iterator[Any]:
    """The datapoints of all pieces. A generator: two threads that step it cannot crash it, as they can a `chain`."""
    for piece in pieces:
        yield from piece


class _Watched(Iterator[Any]):
    """Datapoints at which a `MemoryWatch` looks. No generator: it goes on after a timeout."""

    def __init__(self, watch: MemoryWatch, datapoints: Iterator[Any]) -> None:
        self._watch = watch
        self._datapoints = datapoints

    def __next__(self) -> Any:
        watch = self._watch
        if watch.num_left:
            watch.num_left -= 1
            return next(self._datapoints)
        return watch.look_at(next(self._datapoints))


_Noted = tuple[Any, Any]
"""A part of a datapoint that can change, and what it held when it was noted."""


def _parts_of(value: Any, depth: int = _MAX_DEPTH, longest: int = sys.maxsize) -> Iterator[Any]:
    """The arrays, lists and dicts of a datapoint, and objects of the user's classes.

    At most `depth` objects are looked at inside one another, and nothing of more than `longest` elements.
    """
    if isinstance(value, _CONTAINERS):
        if len(value) > longest:
            return
        if value and not isinstance(value, tuple):
            yield value
        for item in value.values() if isinstance(value, dict) else value:
            if type(item) not in _UNCHANGEABLE:
                yield from _parts_of(item, depth, longest)
    elif isinstance(value, np.ndarray):
        if value.nbytes:
            yield value
        if value.dtype == object and value.size <= longest:
            for item in value.flat:
                yield from _parts_of(item, depth, longest)
    elif _is_array(value) or isinstance(value, bytearray | deque | np.void):
        yield value
    elif depth and (attributes := user_attributes(value)):
        yield value
        yield from _few_parts(attributes.values(), depth - 1)


def _few_parts(values: Iterable[Any], depth: int) -> Iterator[Any]:
    """The parts of what an object holds, as far as these are small: it may refer to all the data of a program."""
    nbytes = 0
    parts = chain.from_iterable(_parts_of(value, depth, _LONGEST) for value in values)
    for part in islice(parts, _LONGEST):
        if isinstance(part, np.ndarray) or _is_array(part):
            nbytes += getattr(part, "nbytes", _FIRST_BYTES + 1)  # that of a table is not known without a conversion
            if nbytes > _FIRST_BYTES:
                return
        yield part


def _place_of(part: Any) -> Any:
    """Where it is in memory: two views of one buffer are two objects, and its first row is in another place."""
    if isinstance(part, np.ndarray):
        return part.__array_interface__["data"][0], part.nbytes, part.strides
    return part.data_ptr() if hasattr(part, "data_ptr") else id(part)


def _share_memory(datapoints: Iterable[list[_Noted]]) -> bool:
    """Whether parts of two datapoints are in the same place."""
    times = Counter(place for noted in datapoints for place in {_place_of(part) for part, _ in noted})
    return any(num > 1 for num in times.values())


def _is_large(part: Any) -> bool:
    if not isinstance(part, np.ndarray) or part.dtype.hasobject:
        return False
    return part.nbytes > _LARGE_BYTES and bool(part.flags.forc)


def _note(part: Any, *, is_kept: bool = True) -> _Noted:
    """Note a part; one that is not kept is compared as long as somebody else has it."""
    return part if is_kept else weakref.ref(part), _held(part)


def _has_changed(noted: _Noted) -> bool:
    part, before = noted
    if isinstance(part, weakref.ref):
        part = part()
        if part is None:
            return False
    now = _held(part)
    if isinstance(now, bytes):
        return bool(now != before)
    if isinstance(now, Mapping):  # code of the user may set further attributes of a datapoint that it has got
        return any(now.get(name, HOLE) is not held for name, held in before.items())
    return len(now) != len(before) or any(map(is_not, now, before))


def _held(part: Any) -> Any:
    """What a part holds now: arrays and bytes as bytes, all else by the identity of its elements.

    A list that is used again may hold an equal number by chance. The elements are held, so that no other object gets
    the place of one in memory. Attributes have their names.
    """
    if isinstance(part, list):
        return list(part)
    if isinstance(part, np.ndarray):
        if part.dtype == object:
            return list(part.flat)
        if _is_large(part):
            return crc32(np.asarray(part).reshape(-1, order="A").view(np.uint8).data).to_bytes(4)
        return part.tobytes()
    if isinstance(part, np.void):
        return part.tobytes()
    if isinstance(part, dict):
        return [*part, *part.values()]
    if isinstance(part, deque):
        return list(part)
    return _bytes_of(part) if isinstance(part, bytearray) or _is_array(part) else user_attributes(part)


def copy_datapoint(value: Any) -> Any:
    """A copy of a datapoint that is kept while its source makes others."""
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if kind is np.ndarray:
        return value.copy() if value.dtype != object else _copy_of_objects(value)
    if kind is list:
        return value[:] if _UNCHANGEABLE.issuperset(map(type, value)) else [*map(copy_datapoint, value)]
    if kind is tuple:
        return tuple(map(copy_datapoint, value))
    if kind is dict:
        return {key: copy_datapoint(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.void):
        return value.copy()
    if isinstance(value, tuple):
        return value._make(map(copy_datapoint, value)) if hasattr(value, "_make") else value
    if isinstance(value, list | dict):
        copied = copy(value)
        for key in value if isinstance(value, dict) else range(len(value)):
            copied[key] = copy_datapoint(value[key])
        return copied
    if not _is_array(value):
        return value
    copies = getattr(value, "clone", None) or getattr(value, "copy", None)  # of torch; of images of PIL, and others
    if copies is not None:
        return copies()
    try:
        return np.array(as_number_or_array(value, None))
    except TypeError:  # the batch raises it with the name of the component
        return value


def _copy_of_objects(value: NDArray[Any]) -> NDArray[Any]:
    copied = value.copy()
    for k, item in enumerate(value.flat):
        copied.flat[k] = copy_datapoint(item)
    return copied


def _is_array(value: Any) -> bool:
    """Whether it is an array of another library."""
    if isinstance(value, np.ndarray | np.generic | type):
        return False
    kind, own = type(value), getattr(value, "__dict__", ())  # not what `__getattr__` of a user's class says
    return any(hasattr(kind, name) or name in own for name in ARRAY_NAMES)


def _bytes_of(value: Any) -> bytes:
    """The values of an array of another library, or a bytearray; empty if it has no such form."""
    try:
        if hasattr(value, "data_ptr"):  # a tensor of torch, of any dtype and device
            value = value.detach().cpu().contiguous().flatten().view(sys.modules["torch"].uint8)
        return bytes(value) if isinstance(value, bytearray) else np.asarray(as_number_or_array(value, None)).tobytes()
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return b""
