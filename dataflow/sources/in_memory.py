"""In-memory source: a list of datapoints, read in order or shuffled every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.base import Blocks, DataFlow, RNGDataFlow, T_co
from dataflow.protocol.first_calls import OF_SEQUENCES, CheckedCalls
from dataflow.protocol.parameters import flag
from dataflow.protocol.passes import RunningCall, calls_code
from dataflow.protocol.seeding import Stream, Table, permutation, root_seed
from dataflow.protocol.state import FirstCalls, state_of
from dataflow.sources.source import Source
from dataflow.sources.table_hints import cure_of

__all__ = ["DataFromList"]

_ITERABLE = frozenset({list, tuple})  # types whose iteration gives their elements at 0, 1, 2, …
_CHUNK = 1024  # positions that are Python integers at one time


E_co = TypeVar("E_co", covariant=True)


class Elements(Protocol[E_co]):
    """What `DataFromList` reads: a list, a tuple, an array, a map-style dataset of torch, …."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> E_co: ...


class DataFromList(Source[T_co], RNGDataFlow[T_co]):
    """The elements of a list, by default in a new random order every pass.

    It yields the elements themselves, not copies: a change made in place by a later node is permanent.

    A *packed* list yields copies. It is read once, in the constructor, and stored as bytes in shared memory, so all
    worker processes together need as much memory for it as one. Without packing, each worker process ends up with its
    own copy of a list of Python objects, because Python writes reference counts into every object that it uses, and
    marks into all others when it collects garbage. For the same reason, drop the list itself once it is packed.

    Args:
        lst: Anything with a length and elements at 0, 1, 2, …: a list, a tuple, an array.
        shuffle: Draw a new order for every pass.
        seed: A root seed for this node's order, instead of the one of `dataflow.seed`.
        packed: Pack the list, which costs about a microsecond per datapoint, once and at each read. Useful for a long
            list of Python objects that worker processes read.

    Raises:
        TypeError: `lst` has no length or cannot be indexed by position; the message names the source to use instead.
        NotPicklable: `packed` is true, and a datapoint cannot be pickled; the message holds its index.

    Example:
        >>> df = DataFromList([[k] for k in range(4)], shuffle=False)
        >>> list(df), df[1], df[6]
        ([[0], [1], [2], [3]], [1], [2])
        >>> sorted(DataFromList([[k] for k in range(4)]))
        [[0], [1], [2], [3]]
    """

    _df_indexed = True

    @overload
    def __init__(
        self: DataFromList[Any],  # what a list or dict that holds components of several types is to a type checker
        lst: Elements[list[object]] | Elements[dict[str, object]],
        shuffle: bool = True,
        *,
        seed: int | None = None,
        packed: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self, lst: Elements[T_co], shuffle: bool = True, *, seed: int | None = None, packed: bool = False
    ) -> None: ...
    def __init__(self, lst: Any, shuffle: bool = True, *, seed: int | None = None, packed: bool = False) -> None:
        if (cure := cure_of(lst) or _cure(lst)) is not None:
            raise TypeError(f"DataFromList expects a list of datapoints as lst, got {type(lst).__name__}: {cure}")
        packed = flag(self, "packed", packed)
        self.lst: Sequence[Any] = _pack(lst) if packed else lst
        shuffle = self.shuffle = flag(self, "shuffle", shuffle)
        self._df_draws = shuffle or self._df_user_written
        self._df_own_root = root_seed(self, seed)
        self._orders = Table()

    def __len__(self) -> int:
        return len(self.lst)

    @property
    def _df_parameters(self) -> dict[str, Any]:
        from dataflow.sources.packed_list import PackedList

        return {**super()._df_parameters, "packed": type(self.lst) is PackedList}

    @property
    def _df_compared(self) -> dict[str, Any]:
        return {name: value for name, value in super()._df_compared.items() if name != "lst"}  # data, packed or not

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        n = len(self.lst)
        if not self.shuffle and type(self.lst) in _ITERABLE:
            return islice(self.lst, n)
        positions: Iterable[int] = range(n)
        if self.shuffle:
            order = self._order(p, n, stream)
            positions = chain.from_iterable(order[k : k + _CHUNK].tolist() for k in range(0, n, _CHUNK))
        return self._elements(positions, repeat(p), stream)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return chain.from_iterable(map(partial(self._read, stream), blocks))

    def _df_origins(self, indexes: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
        return self._places(stream, indexes)[1]

    def _read(self, stream: Stream, indexes: NDArray[np.int64]) -> Iterator[Any]:
        passes, positions = self._places(stream, indexes)
        return self._elements(positions.tolist(), passes.tolist() if self._df_calls else (), stream)

    def _places(self, stream: Stream, indexes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pass of each index, and the position in the list."""
        n = len(self.lst)
        if n == 0 and len(indexes):
            raise IndexError(f"DataFromList is empty: there is no datapoint at index {indexes[0]}")
        passes, positions = np.divmod(indexes, max(n, 1))
        if self.shuffle:
            for p in np.unique(passes).tolist():
                here = passes == p
                positions[here] = self._order(p, n, stream)[positions[here]]
        return passes, positions

    _df_holds = True

    @property
    def _df_calls(self) -> bool:  # type: ignore[override]
        return self._df_user_written or _is_users_code(type(self.lst))

    def _elements(self, positions: Iterable[int], passes: Iterable[int], stream: Stream) -> Iterator[Any]:
        if _is_users_code(type(self.lst)):
            return map(_ElementReader(self, stream).element, positions, passes)
        get = self.lst.__getitem__
        return map(get if _is_of_c(type(self.lst)) else partial(_element, get), positions)

    def _order(self, p: int, n: int, stream: Stream) -> NDArray[Any]:
        words = self._df_words(stream, p)
        order: NDArray[Any] = self._orders.get((words, n), partial(permutation, words, n))
        return order


def _is_users_code(kind: type) -> bool:
    """Whether elements are read by a method in Python that is not ours."""
    package = __name__.partition(".")[0]
    return hasattr(getattr(kind, "__getitem__", None), "__code__") and kind.__module__.partition(".")[0] != package


def _is_of_c(kind: type) -> bool:
    """Whether elements are read by a method of a built-in type, or of one that is written in C as they are."""
    method = getattr(kind, "__getitem__", None)
    return isinstance(method, WrapperDescriptorType | MethodDescriptorType)


def _element(get: Callable[[int], Any], position: int) -> Any:
    try:
        return get(position)
    except StopIteration as error:
        raise _stopped(position, error) from error


def _stopped(position: int, error: StopIteration) -> RuntimeError:
    """The error in place of a StopIteration, which would look like the end of the pass and silently cut it short."""
    return RuntimeError(f"the list of DataFromList raised StopIteration for element {position}: {error}")


class _ElementReader:
    """The reading of elements by the user's code, in which flows may begin."""

    def __init__(self, df: DataFromList, stream: Stream) -> None:
        self._df, self._stream = df, stream
        self._get = df.lst.__getitem__
        calls = state_of(df).part(FirstCalls)
        if calls.num_left > 0:
            done = partial(setattr, self, "_get")
            self._get = CheckedCalls(self._get, "DataFromList", calls, done, given=self._get, kind=OF_SEQUENCES)
        self._present = 0, 0  # pass and position of the element that is being read
        self._running: tuple[tuple[int, int], RunningCall] | None = None  # the reading in which a flow has begun last

    def element(self, position: int, p: int) -> Any:
        self._present = p, position
        try:
            return self._get(position)
        except StopIteration as error:
            raise _stopped(position, error) from error

    def running_call(self) -> RunningCall:
        if self._running is None or self._running[0] != self._present:
            self._running = self._present, RunningCall(self._df, self._stream, *self._present)
        return self._running[1]


calls_code(_ElementReader.element, _ElementReader.running_call)


def _cure(lst: Any) -> str | None:
    """What to use instead of `lst`; None if it has a length and elements at 0, 1, 2, …."""
    kind = type(lst).__name__
    if isinstance(lst, Mapping) and hasattr(lst, "column_names"):
        return (
            f"it holds several datasets; choose one of {', '.join(map(repr, lst))}, as in lst[{next(iter(lst), '')!r}]"
        )
    if isinstance(lst, Mapping):
        return "use list(lst.items()) for datapoints (key, value), list(lst.values()), or [lst] if it is one datapoint"
    if isinstance(lst, str | bytes | bytearray):
        return (
            "its elements are single characters. If it is the name of a file, read the file; otherwise pass list(lst)"
        )
    if isinstance(lst, DataFlow):
        return "it is a dataflow already: use it directly, or pass list(lst) for the datapoints of one pass"
    if isinstance(lst, Iterator):
        return "use list(lst); or, to save memory, DataFromGenerator with the function that makes it"
    if isinstance(lst, int) and not isinstance(lst, bool):
        return f"use list(range({lst})) for numbers, or FakeData for random arrays"
    if callable(lst) and not hasattr(type(lst), "__getitem__"):
        return "DataFromGenerator takes a function that returns an iterable"
    try:
        len(lst)
    except TypeError:
        return "use DataFromIterable" if hasattr(lst, "__iter__") else "put the datapoints into a list"
    if hasattr(lst, "__getitem__"):
        return None
    return f"a {kind} has no positions 0, 1, 2, …: use list(lst), or DataFromIterable"


def _pack(lst: Sequence[Any]) -> Sequence[Any]:
    from dataflow.sources.packed_list import PackedList  # imports shared memory, which only packed lists need

    return PackedList(lst[k] for k in range(len(lst)))
