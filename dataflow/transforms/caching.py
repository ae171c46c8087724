"""In-memory cache: a node that keeps one pass in memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import DataFlowTerminated, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.datapoint import present
from dataflow.protocol.parameters import flag
from dataflow.protocol.passes import walk
from dataflow.protocol.pauses import Pause, paused, pausing
from dataflow.protocol.seeding import Stream, Table, permutation, root_seed
from dataflow.transforms.arguments import require_end
from dataflow.transforms.grouping import may_reuse_memory
from dataflow.transforms.indexing import Indexes, pass_by_index, passes_and_positions, reorder

__all__ = ["CacheData"]

_UNREAD = object()  # placeholder of a datapoint that has not been read yet


class CacheData(ProxyDataFlow[T_co]):
    """Read one pass of the input, keep it in memory, and yield it in every pass.

    Each pass yields new lists, tuples and dicts with read-only views of the arrays: code that changes an array in place
    fails at once, and cannot affect later passes. Arrays are copied once, as they come, if their source might use their
    memory again; a file that is mapped for reading stays mapped. What else can be changed (other containers, arrays of
    objects, masked arrays, tensors, objects of the user) is copied (`copy.deepcopy`) for each pass. A pass that is left
    early keeps what was read so far; the next one reads the rest. `reset_state` and `close` empty the cache, and
    another flow that is assigned to `ds` is read anew. Place it above a runner: below, each worker fills a cache of its
    own.

    Args:
        ds: The input. Only its first pass is read.
        shuffle: Draw a new order for every pass, the first one included. An input that cannot be addressed is read to
            its end before the first datapoint is yielded.
        seed: A root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        ValueError: A pass of `ds` never ends, so that it cannot be kept.
        TypeError: While iterating: an object cannot be copied; names its type.

    Example:
        >>> df = CacheData(MapData(DataFromList([[1], [2]], shuffle=False), lambda dp: [np.full(2, dp[0])]))
        >>> [dp[0].tolist() for _ in range(2) for dp in df]
        [[1, 1], [2, 2], [1, 1], [2, 2]]
        >>> df[0][0][0] = 5
        Traceback (most recent call last):
        ValueError: assignment destination is read-only
    """

    _df_caches = True

    def __init__(self, ds: DataFlow[T_co], shuffle: bool = False, *, seed: int | None = None) -> None:
        super().__init__(ds)
        require_end(ds, "CacheData", "keeps a whole pass")
        self.shuffle = self._df_draws = flag(self, "shuffle", shuffle)
        self._df_own_root = root_seed(self, seed)
        self._orders = Table()
        self._memory: dict[Stream | None, _Slots | _Recording] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_memory": {}}

    def reset_state(self) -> None:
        self._memory.clear()
        super().reset_state()

    def _df_close(self) -> None:
        super()._df_close()
        self._memory.clear()

    def _df_weights(self) -> tuple[str, ...]:
        return ()  # what is kept does not change with those below

    # -- addressable input: every position is read when it is first requested ------------------------------------------

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        read = partial(self._read, stream, self._slots(stream))
        return chain.from_iterable(map(read, blocks))

    def _slots(self, stream: Stream) -> _Slots:
        slots = self._remembered(stream)
        if not isinstance(slots, _Slots) or len(slots.datapoints) != len(self.ds):
            slots = self._remember(stream, _Slots(len(self.ds), may_change=may_reuse_memory(self.ds)))
        assert isinstance(slots, _Slots)
        return slots

    def _read(self, stream: Stream, slots: _Slots, indexes: Indexes) -> Iterator[Any]:
        n = len(slots.datapoints)
        passes, positions = passes_and_positions(self, indexes, n)
        if self.shuffle and len(indexes):
            (positions,) = reorder(passes, positions, partial(self._order, stream, n))
        if slots.num_unread:
            waits = self._df_waits
            return pausing(self._read_on(stream, slots, positions.tolist(), waits), waits)
        return map(slots.copy, map(slots.datapoints.__getitem__, positions.tolist()))

    def _read_on(self, stream: Stream, slots: _Slots, wanted: list[int], waits: bool) -> Iterator[Any]:
        datapoints = slots.datapoints
        unread = [k for k in dict.fromkeys(wanted) if datapoints[k] is _UNREAD]
        # Two threads may read the same position: both read the same datapoint, and the later one is kept.
        # `zip` asks its first argument first: a position is taken only when its datapoint has come.
        coming = zip(self.ds._df_at([np.array(unread, dtype=np.int64)], stream), unread, strict=False)
        for k in wanted:
            while datapoints[k] is _UNREAD:
                try:
                    dp, position = next(coming)
                    slots.keep(position, dp)
                    continue
                except TimeoutError as error:
                    pause = paused(error, waits)
                yield pause
            yield _fresh(datapoints[k])

    # -- input that is only a sequence of passes: its first pass is recorded -------------------------------------------

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self.ds._df_addressable:
            slots = self._slots(stream)
            if self.shuffle or slots.num_unread:
                return pass_by_index(self, p, stream)
            return map(slots.copy, present(slots.datapoints))
        recording = self._remembered(stream)
        if not isinstance(recording, _Recording) or recording.failed:
            first_pass, may_change = self.ds._df_run_pass(0, stream), may_reuse_memory(self.ds)
            recording = self._remember(stream, _Recording(first_pass, may_change=may_change))
        assert isinstance(recording, _Recording)
        if recording.is_whole and not self.shuffle:
            return map(recording.copy, recording.datapoints)
        waits = self._df_waits
        return pausing(self._play(p, stream, recording, waits), waits)

    def _play(self, p: int, stream: Stream, recording: _Recording, waits: bool) -> Iterator[Any]:
        positions: Iterator[int] = count()
        if self.shuffle:
            yield from _read_up_to(sys.maxsize, recording, waits)
            (order,) = self._order(stream, len(recording.datapoints), p)
            positions = iter(order.tolist())
        for k in positions:
            if k >= len(recording.datapoints):
                yield from _read_up_to(k, recording, waits)
                if k >= len(recording.datapoints):
                    return
            yield _fresh(recording.datapoints[k])

    # -- both ----------------------------------------------------------------------------------------------------------

    def _remembered(self, stream: Stream) -> _Slots | _Recording | None:
        memory = self._memory.get(self._key(stream))
        return memory if memory is not None and memory.ds is self.ds else None

    def _remember(self, stream: Stream, memory: _Slots | _Recording) -> _Slots | _Recording:
        key = self._key(stream)
        if key is not None:
            # Another root means that the user has called `seed` again: drop what was drawn under the old one.
            for known in list(self._memory):  # copied in one step of the interpreter: other threads may remember, too
                if known is not None and known.root != key.root:
                    self._memory.pop(known, None)
        memory.ds = self.ds
        self._memory[key] = memory
        return memory

    def _key(self, stream: Stream) -> Stream | None:
        """The key of the cache; None, one for all streams, if no node below draws or calls code that may draw."""
        nodes = walk(self.ds, everywhere=True)
        return stream if any(node._df_draws or node._df_calls for node in nodes) else None

    def _order(self, stream: Stream, n: int, p: int) -> tuple[NDArray[Any]]:
        words = self._df_words(stream, p)
        return (self._orders.get((words, n), partial(permutation, words, n)),)


class _Kept:
    """Cached datapoints, and the function that copies all of them.

    Args:
        datapoints: Where they are kept.
        may_change: Whether the memory of their arrays may be used for later ones.
    """

    ds: DataFlow | None = None  # the input that they come from

    def __init__(self, datapoints: list[Any], *, may_change: bool) -> None:
        self.datapoints = datapoints
        self._may_change = may_change
        self.copy: Callable[[Any], Any] = _fresh  # after the first datapoint: `list.copy` if that suffices for all
        self._is_first = True

    def freeze(self, dp: Any) -> Any:
        """The form in which `dp` is cached."""
        frozen = _frozen(dp, self._may_change)
        copy = _way_to_copy(frozen)
        if self._is_first:
            self.copy, self._is_first = copy, False
        elif copy is not self.copy:
            self.copy = _fresh
        return frozen


class _Slots(_Kept):
    """A slot for each datapoint of a pass that can be addressed.

    Guarantee: once `num_unread` is 0, every slot holds its datapoint, and `copy` copies them all.
    """

    def __init__(self, n: int, *, may_change: bool) -> None:
        super().__init__([_UNREAD] * n, may_change=may_change)
        self.num_unread = n
        self._lock = threading.Lock()

    def keep(self, position: int, dp: Any) -> None:
        """Keep the datapoint at `position`."""
        with self._lock:
            is_unread = self.datapoints[position] is _UNREAD
            # In this order: whoever finds `num_unread` at 0 takes the slots without the lock.
            self.datapoints[position] = self.freeze(dp)
            self.num_unread -= is_unread


class _Recording(_Kept):
    """The datapoints of one pass, each read at its first use and kept."""

    def __init__(self, pass_: Iterator[Any], *, may_change: bool) -> None:
        super().__init__([], may_change=may_change)
        self.failed = False  # the input raised: the recording stays incomplete
        self._rest: Iterator[Any] | None = pass_  # None once all datapoints are recorded
        self._lock = threading.Lock()

    @property
    def is_whole(self) -> bool:
        """Whether all datapoints are recorded."""
        return self._rest is None

    def read(self, k: int, waits: bool) -> None:
        """Read up to datapoint `k`, or to the end of the pass; with `waits`, a timeout leaves it as it is."""
        # Without the lock, as the list only grows. Two threads that wait for one datapoint read one more than they
        # need, which is kept.
        while len(self.datapoints) <= k:
            with self._lock:
                if self._rest is None:
                    return
                if self.failed:
                    raise DataFlowTerminated("the input of CacheData failed while another iteration read it")
                try:
                    self.datapoints.append(self.freeze(next(self._rest)))
                except StopIteration:
                    self._rest = None
                except BaseException as error:
                    self.failed = not (waits and isinstance(error, TimeoutError))
                    raise


def _read_up_to(k: int, recording: _Recording, waits: bool) -> Iterator[Pause]:
    """Read up to datapoint `k`, or to the end of the pass; yield only pauses."""
    while True:
        try:
            return recording.read(k, waits)
        except TimeoutError as error:
            pause = paused(error, waits)
        yield pause


# The types that need no copy: values of these cannot be changed.
_UNCHANGING = frozenset({type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis)})


class _Copied:
    """Placeholder of a value that is made again each time it is yielded."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


_RENEWED = frozenset({list, dict, tuple, _Copied})


def _frozen(value: Any, may_change: bool) -> Any:
    """`value` with read-only arrays in lists, tuples and dicts, and placeholders of what is copied.

    With `may_change`, the arrays are copies.
    """
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and not isinstance(value, np.ma.MaskedArray):
        kept_array = value.copy("K") if may_change and not _is_mapped_for_reading(value) else value.view()
        kept_array.flags.writeable = False  # all passes share its memory
        return kept_array
    if kind is list:
        return [_frozen(item, may_change) for item in value]
    if kind is dict:
        return {key: _frozen(item, may_change) for key, item in value.items()}
    if kind is tuple:
        return tuple(_frozen(item, may_change) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple stays a named tuple
        frozen = tuple(_frozen(item, may_change) for item in value)
        return _Copied(lambda: kind._make(_fresh(frozen)))
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return value
    try:
        kept = deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"CacheData keeps a {kind.__name__} that cannot be copied ({error}), so that whoever changed it in one "
            "pass would change it in all. Yield what can be copied, or make the object in a map above CacheData"
        ) from error
    return value if kept is value else _Copied(partial(deepcopy, kept))


def _is_mapped_for_reading(array: NDArray[Any]) -> bool:
    """Whether an array is part of a file that is mapped read-only, and may be larger than the memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and owner.mode == "r":
            return True
        owner = owner.base
    return False


def _way_to_copy(dp: Any) -> Callable[[Any], Any]:
    """The function that copies a kept datapoint, so that its lists and dicts are new."""
    if type(dp) is list and _RENEWED.isdisjoint(map(type, dp)):
        return list.copy
    if type(dp) is dict and _RENEWED.isdisjoint(map(type, dp.values())):
        return dict.copy
    return _fresh


def _fresh(value: Any) -> Any:
    """`value` with new lists and dicts, and with what the placeholders stand for."""
    kind = type(value)
    if kind is list:
        return [_fresh(item) if type(item) in _RENEWED else item for item in value]
    if kind is dict:
        return {key: _fresh(item) if type(item) in _RENEWED else item for key, item in value.items()}
    if kind is tuple and any(type(item) in _RENEWED for item in value):
        return tuple(map(_fresh, value))
    return value.make() if kind is _Copied else value
