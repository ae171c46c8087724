"""Sequence packing: a node that makes blocks of one size from documents of tokens.

Guarantees:

- Each token of a pass is in exactly one block, once; documents without tokens are counted in one warning.
- A document is copied as it arrives, unless no code of the user makes or changes it: its source may use the same
  memory for the next one.
- What was completed before an error below is yielded before the error is raised.
- Documents that are found by index must have the lengths that were given; other lengths raise an error.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise, repeat
from numbers import Number, Real
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import LengthUnknown, NotAddressable, ShapeMismatch, TimeoutError
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow
from dataflow.protocol.datapoint import as_number_or_array, component, stack_column
from dataflow.protocol.parameters import whole_number
from dataflow.protocol.pauses import Pause, flatten, paused, pausing
from dataflow.protocol.seeding import Stream, Table
from dataflow.protocol.state import state_of
from dataflow.transforms.arguments import fits
from dataflow.transforms.grouping import copy_datapoint, may_reuse_memory
from dataflow.transforms.indexing import Indexes, none_dropped, order_by_index, pass_in_order, passes_and_positions

__all__ = ["PackData"]

_logger = logging.getLogger("dataflow.transforms")

Policy = Literal["split", "fit"]
Columns = tuple[NDArray[Any], ...]
"""The aligned columns of one document: arrays with one axis and of one length."""

_ADDED: Final = ("segment_ids", "positions")
_INT64: Final = np.dtype(np.int64)
_LONGEST: Final = np.iinfo(np.int32).max  # positions are int32
_AT_ONCE: Final = 196_608  # tokens that are packed together: with fewer, numpy's calls cost more than what they copy
_NUMBERS: Final = "biufcV"  # kinds of dtypes; V for bfloat16


class PackData(ProxyDataFlow[dict[Any, NDArray[Any]]]):
    """Pack documents of tokens into blocks of `size` tokens.

    Each block is a dict of arrays ``(size,)``: ``tokens``, or the components in `key`; ``segment_ids``, int32, which
    number the documents of a block from 1; and ``positions``, int32, of each token within its document, which go on in
    the next block if the document does. At the end of a block that is not full are `pad_value`, segment 0 and position
    0. Every token of a pass is in one block, once. Documents without tokens contribute nothing; one warning says how
    many there are: at the end of a pass, or with `lengths` at once.

    With ``policy="split"`` the documents follow one another and are cut where a block ends, so that only the last block
    of a pass is padded. With ``policy="fit"`` documents stay whole: a block begins with the document that has waited
    longest and goes on with the longest of `window` documents that still fits, until none does. Documents of more than
    `size` tokens are cut.

    Without `lengths`, the number of blocks is not known, and `ResumableData` resumes by reading the documents of the
    pass again. With it, the flow can be addressed. A pass over an endless flow never ends, and the next loop goes on
    where the last one stopped.

    Args:
        ds: The documents. Tokens are arrays with one axis, or lists of numbers, where Python ints become int64.
        size: Tokens per block, at least 1.
        key: The component that holds the tokens; or a list of components that are cut alike, such as tokens and their
            loss mask. None takes the datapoint itself if it is an array or a list of numbers, and otherwise its only
            component.
        policy: "split" or "fit".
        window: Documents among which "fit" chooses, at least 1.
        pad_value: What fills the last block; or a dict of component and value, where a component that is not in it is
            padded with 0.
        lengths: The number of tokens of each datapoint of the source, by its index there, for documents that are
            mapped one by one, or reordered by shuffling, above their source; or the name of a column of a `TableData`
            that holds them. Only for "split".

    Raises:
        KeyError: A component in `key` is missing; of a list or tuple, an IndexError.
        TypeError: A component is no list or array of numbers, documents differ in dtype, or `pad_value` does not fit
            into it. The message names the component, the document and the dtypes.
        ShapeMismatch: The columns of a document differ in length, a component has several axes, or a document has
            another length than `lengths` says.
        OverflowError: A document has more than 2^31 - 1 tokens; or `lengths` add up to more than 2^62.
        NotAddressable: `lengths` is given, and a node below does more than reorder or map; the message names it.
        Dropped: `lengths` is given, and a map below dropped a document.

    Example:
        >>> df = PackData(DataFromList([[5, 6, 7], [8, 9]], shuffle=False), 4)
        >>> for block in df:
        ...     print(*(array.tolist() for array in block.values()))
        [5, 6, 7, 8] [1, 1, 1, 2] [0, 1, 2, 0]
        [9, 0, 0, 0] [1, 0, 0, 0] [1, 0, 0, 0]
        >>> PackData(DataFromList([[5, 6, 7], [8, 9]], shuffle=False), 4, lengths=[3, 2])[1]["tokens"].tolist()
        [9, 0, 0, 0]

    Source:
        Packing as in grain (``ConcatThenSplitIterDataset``, ``BestFitPackIterDataset``), with its names of components.
    """

    _df_counts = True
    _df_grain = 1

    def __init__(
        self,
        ds: DataFlow,
        size: int,
        *,
        key: Any = None,
        policy: Policy = "split",
        window: int = 1000,
        pad_value: float | Mapping[Any, float] = 0,
        lengths: Sequence[int] | NDArray[Any] | str | None = None,
    ) -> None:
        super().__init__(ds)
        self._size = whole_number(self, "size", size, 1)
        self.key = _check_key(key)
        if policy not in get_args(Policy):
            raise ValueError(f'PackData: policy must be "split" or "fit", got {policy!r}')
        self.policy: Policy = policy
        self.window = whole_number(self, "window", window, 1)
        self.pad_value = _check_pad_values(pad_value, self._df_names)
        self._lengths = None if lengths is None else self._check_lengths(lengths)
        if self._lengths is not None:  # here, so that workers do not repeat it
            self._warn_of_empty(int((self._lengths == 0).sum()), len(self._lengths))
        self._tables = Table()

    @property
    def _df_names(self) -> list[Any]:
        """The names of the columns in a block."""
        return ["tokens"] if self.key is None else self.key if isinstance(self.key, list) else [self.key]

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "size": self._size, "lengths": self._lengths}

    @property
    def _df_compared(self) -> dict[str, Any]:
        return {**super()._df_compared, "size": self._size}

    @property
    def _df_indexed(self) -> bool:
        return self._lengths is not None

    @property
    def _df_endless(self) -> bool:
        return self.ds._df_endless

    @property
    def _df_continues(self) -> bool:
        return self.ds._df_endless

    def __len__(self) -> int:
        if self._lengths is None:
            raise LengthUnknown(
                "a pass of PackData has no known length: it depends on the number of tokens of each document. Give "
                "them as lengths="
            )
        num_passes = len(self.ds) // max(len(self._lengths), 1)  # of the source
        return (num_passes * int(self._lengths.sum()) + self._size - 1) // self._size

    def _df_pad_value(self, name: Any) -> float:
        return self.pad_value.get(name, 0) if isinstance(self.pad_value, dict) else self.pad_value

    def reset_state(self) -> None:
        state_of(self).continued.forget()
        super().reset_state()

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        if self._df_addressable:
            return order_by_index(self, p, stream)
        return pass_in_order(self, stream, partial(self._in_order, p, stream))

    def _in_order(self, p: int, stream: Stream) -> Iterator[Any]:
        waits = self._df_waits
        return flatten(pausing(self._pack(p, stream, waits), waits), waits)

    def _pack(self, p: int, stream: Stream, waits: bool) -> Iterator[Any]:
        reader, num, num_empty = _Reader(self), 0, 0
        parts = _Parts(self)
        packer = parts if self.policy == "split" else _Fit(parts, self.window)
        for dps in self._documents_of_pass(reader, p, stream, waits):
            if type(dps) is Pause:
                yield dps
                continue
            columns, lengths, failure = reader.read(dps, partial(_in_pass, p, num))
            num += len(lengths)
            if 0 in lengths:
                num_empty += lengths.count(0)
                columns, lengths = (
                    [[array for array in column if len(array)] for column in columns],
                    [*filter(None, lengths)],
                )
            if lengths:
                packer.add(columns, lengths)
                yield parts.take()
            if failure is not None:
                raise failure
        packer.finish()
        yield parts.take()
        self._warn_of_empty(num_empty, num)

    def _documents_of_pass(self, reader: _Reader, p: int, stream: Stream, waits: bool) -> Iterator[Any]:
        """Lists of documents, which grow until they have about as many tokens as are packed together."""
        group = _NextDocuments(self.ds._df_run_pass(p, stream), reader.copies)
        # What was read ahead of a pass that is left would be lost to the next one, if that continues.
        one_by_one = waits or self.ds._df_continuing() is not None
        num, wanted = 1, max(_AT_ONCE, self._size)
        while True:
            before = reader.num_tokens
            try:
                dps: Any = group.take(num)
            except TimeoutError as error:
                dps = paused(error, waits)
            except Exception:
                yield group.left()
                raise
            if not dps:
                return
            is_pause = type(dps) is Pause
            yield dps
            if not is_pause and not one_by_one:
                num = min(4 * num, num * wanted // (reader.num_tokens - before + 1) + 1)

    def _warn_of_empty(self, num_empty: int, num: int) -> None:
        if num_empty and not state_of(self).warned:
            state_of(self).warned = True
            _logger.warning("PackData: %d of %d documents have no tokens, and contribute nothing", num_empty, num)

    # -- by index ------------------------------------------------------------------------------------------------------

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        if self._lengths is None:
            return DataFlow._df_at(self, blocks, stream)
        waits = self._df_waits
        return flatten(pausing(self._blocks_at(blocks, stream, waits), waits), waits)

    def _blocks_at(self, blocks: Blocks, stream: Stream, waits: bool) -> Iterator[Any]:
        reader, n = _Reader(self), len(self.ds)
        parts = _Parts(self)
        num_at_once = max(_AT_ONCE // self._size, 1)
        for indexes in filter(len, blocks):
            wanted = self._parts(indexes, stream)
            # A document in which one block ends and the next begins is read once.
            shared = [0, *(int(one[0][-1] == other[0][0]) for one, other in pairwise(wanted))]
            once = [documents[k:] for (documents, _, _), k in zip(wanted, shared, strict=True)]
            lengths_once = [lengths[k:] for (_, lengths, _), k in zip(wanted, shared, strict=True)]
            documents = none_dropped(self.ds._df_at([np.concatenate([np.empty(0, np.int64), *once])], stream), self)
            group = _NextDocuments(documents, reader.copies)
            found: dict[int, Columns] = {}
            for first in range(0, len(wanted), num_at_once):
                here = slice(first, first + num_at_once)
                numbers = np.concatenate(once[here]).tolist()
                failed: Exception | None = None
                while True:
                    try:
                        dps = group.take(len(numbers)) if numbers else []
                        break
                    except TimeoutError as error:
                        pause = paused(error, waits)
                    except Exception as error:
                        dps, failed = group.left(), error
                        break
                    yield pause
                expected = np.concatenate(lengths_once[here]).tolist()
                columns, _, failure = reader.read(dps, partial(_of_index, numbers, n), expected)
                found.update(zip(numbers, zip(*columns, strict=True), strict=False))
                is_complete = parts.put_blocks(wanted[here], found)
                if is_complete and numbers:
                    found = {numbers[-1]: found[numbers[-1]]}  # the next block may begin in it
                yield parts.take()
                if not is_complete:
                    raise failure or failed or AssertionError("a document is missing")

    def _parts(self, indexes: Indexes, stream: Stream) -> list[tuple[Indexes, Indexes, int]]:
        """For each block: the indexes of its documents, their lengths, and where the first one begins in the block."""
        n = len(self.ds)
        passes, positions = passes_and_positions(self, indexes, len(self))
        parts: list[Any] = [None] * len(indexes)
        for p in np.unique(passes).tolist():
            order, lengths, ends = self._tables.get((stream, p, n), partial(self._documents, stream, p, n))
            (numbers,) = np.nonzero(passes == p)
            begins = positions[numbers] * self._size
            firsts = np.searchsorted(ends, begins, side="right")
            lasts = np.searchsorted(ends, np.minimum(begins + self._size, ends[-1]) - 1, side="right")
            skipped = begins - ends[firsts] + lengths[firsts]
            columns = (numbers, firsts, lasts + 1, skipped)
            for k, first, stop, begin in zip(*(column.tolist() for column in columns), strict=True):
                parts[k] = order[first:stop] + p * n, lengths[first:stop], begin
        return parts

    def _documents(self, stream: Stream, p: int, n: int) -> tuple[Indexes, Indexes, Indexes]:
        """The positions in pass `p` of the documents that have tokens, their lengths, and the tokens up to each end."""
        lengths = self._lengths
        assert lengths is not None, "they were given"
        self._require_one_length_each(lengths)
        of_pass = lengths[self.ds._df_origins(np.arange(p * n, (p + 1) * n), stream)]
        order = np.flatnonzero(of_pass)
        return order, of_pass[order], np.cumsum(of_pass[order])

    def _check_lengths(self, lengths: Any) -> NDArray[np.int64]:
        if self.policy != "split":
            raise ValueError('PackData: lengths= make blocks addressable with policy="split" only: leave them out')
        if self.ds._df_endless:
            raise ValueError(
                "PackData: lengths= are those of one pass, and a pass of the input never ends: leave them out"
            )
        broken = self.ds._df_unaddressable()
        try:
            if broken is not None:
                raise NotAddressable(f"{type(broken).__name__} is only a sequence of passes")
            self.ds._df_origins(np.empty(0, np.int64), Stream(0))
        except NotAddressable as error:
            raise NotAddressable(
                f"PackData: with lengths= documents are found by their index in the source, through nodes that map or "
                f"reorder them, but {error}. Leave out lengths=, or put that node above PackData"
            ) from None
        found = self._source()._df_column(lengths) if isinstance(lengths, str) else np.asarray(lengths)
        if found.dtype == object:
            found = np.array(found.tolist())
        if found.ndim != 1 or (len(found) and (found.dtype.kind not in "iu" or found.min() < 0)):
            shown = repr(lengths) if isinstance(lengths, str) else f"{found.dtype} {found.shape}"
            raise ValueError(
                f"PackData: lengths are whole numbers from 0, one for each datapoint of the source, got {shown}"
            )
        if (num_tokens := float(found.sum(dtype=float))) > 2.0**62:
            raise OverflowError(
                f"PackData: lengths say that there are {num_tokens:.3g} tokens, at most 2^62 are possible. Give the "
                "number of tokens of each datapoint"
            )
        self._require_one_length_each(found)
        return found.astype(np.int64)

    def _require_one_length_each(self, lengths: NDArray[Any]) -> None:
        source = self._source()
        if len(source) != len(lengths):
            raise ValueError(
                f"PackData: there are {len(lengths)} lengths, and {type(source).__name__} has {len(source)} "
                "datapoints: give one for each, by their index there"
            )

    def _source(self) -> Any:
        node: Any = self.ds
        while (below := node._df_first()) is not None:
            node = below
        return node


class _NextDocuments:
    """The next documents of a flow, some at a time: what was taken before a timeout is kept."""

    def __init__(self, documents: Iterator[Any], copies: bool) -> None:
        self._documents = documents
        self._copies = copies
        self._taken: list[Any] = []

    def take(self, num: int) -> list[Any]:
        """The next `num` documents, or those that are left."""
        wanted = islice(self._documents, num - len(self._taken))
        self._taken.extend(map(copy_datapoint, wanted) if self._copies else wanted)
        return self.left()

    def left(self) -> list[Any]:
        """What was taken before an error."""
        taken, self._taken = self._taken, []
        return taken


class _Reader:
    """Reads and checks the documents of one pass, or of one sequence of indexes."""

    def __init__(self, node: PackData) -> None:
        self._node = node
        self._keys = None if node.key is None else node._df_names
        self._dtypes: list[Any] = [None] * len(node._df_names)
        self.copies = may_reuse_memory(node.ds, everywhere=True)
        self.num_tokens = 0  # read so far

    def read(
        self, dps: list[Any], place: Callable[[int], tuple[int, int]], expected: list[int] | None = None
    ) -> tuple[list[list[NDArray[Any]]], list[int], Exception | None]:
        """For each column, the arrays of all documents; their lengths; and the error if one is bad, or None.

        Args:
            dps: The documents; those from the first bad one on are left out.
            place: The pass of each, and its number in it.
            expected: Their lengths, as far as they are known.
        """
        columns: list[list[Any]] = [[] for _ in self._dtypes]
        failure = None
        if self._keys is None:
            are_lists = list in map(type, dps[:1])
            columns[0] = [dp[0] if type(dp) is list and len(dp) == 1 else dp for dp in dps] if are_lists else dps
        elif all(type(dp) is dict and dp.keys() >= set(self._keys) for dp in dps):
            columns = [[dp[key] for dp in dps] for key in self._keys]
        array = np.ndarray
        found = [  # the lengths of documents that need no further check
            [len(value) for value in column if type(value) is array and value.dtype is dtype and value.ndim == 1]
            for column, dtype in zip(columns, self._dtypes, strict=True)
        ]
        lengths = found[0]
        are_alike = len(lengths) == len(dps) and found.count(lengths) == len(found)
        are_as_expected = expected is None or lengths == expected[: len(dps)]
        if not are_alike or not are_as_expected or sum(lengths) > _LONGEST:
            rows: list[Columns] = []
            try:
                for k, dp in enumerate(dps):
                    row = self.columns(dp, *place(k))
                    if expected is not None:
                        _require_length(row, expected[k], place(k))
                    rows.append(row)
            except Exception as error:
                failure = error
            columns = [[row[k] for row in rows] for k in range(len(columns))]
            lengths = [*map(len, columns[0])]
        self.num_tokens += sum(lengths)
        return columns, lengths, failure

    def columns(self, dp: Any, p: int, number: int) -> Columns:
        """The columns of document `number` of pass `p`, all of one length.

        Raises:
            TypeError: One has no numbers, or another dtype than in the documents before.
            ShapeMismatch: One has several axes, or they differ in length.
            OverflowError: The positions of the tokens would not fit into int32.
        """
        values = [_tokens_of(dp, p, number)] if self._keys is None else [component(dp, key) for key in self._keys]
        if any(map(_is_unlike, values, self._dtypes)):
            values = [self._column(k, value, p, number) for k, value in enumerate(values)]
        if len(values) > 1 and len({*map(len, values)}) > 1:
            named = zip(self._node._df_names, values, strict=True)
            found = ", ".join(f"{name!r} has {len(value)}" for name, value in named)
            raise ShapeMismatch(
                f"PackData: the components of {_place(p, number)} differ in length: {found}. Components in key are cut "
                "alike, so each has one value per token"
            )
        if len(values[0]) > _LONGEST:
            raise OverflowError(
                f"PackData: {_place(p, number)} has {len(values[0])} tokens, at most {_LONGEST} are possible, since "
                "positions are int32. Cut it into several"
            )
        return tuple(values)

    def _column(self, k: int, value: Any, p: int, number: int) -> NDArray[Any]:
        name = self._node._df_names[k]
        column = _as_array(value, name, p, number)
        if not len(column):
            return column  # such as [], which has no dtype
        if self._dtypes[k] is None:
            self._dtypes[k] = column.dtype
            pad_value = self._node._df_pad_value(name)
            if not fits(pad_value, column.dtype):
                raise TypeError(
                    f"PackData: pad_value {pad_value!r} does not fit into component {name!r}, which is {column.dtype}. "
                    "Choose another one, or a dict with one for each component"
                )
        if column.dtype != self._dtypes[k]:
            raise TypeError(
                f"PackData: component {name!r} is {column.dtype} in {_place(p, number)}, and {self._dtypes[k]} in "
                "documents before: a block has one dtype. Convert it with MapDataComponent below, as with "
                "array.astype (Python ints are int64)"
            )
        return column


def _in_pass(p: int, first: int, k: int) -> tuple[int, int]:
    return p, first + k


def _of_index(indexes: list[int], n: int, k: int) -> tuple[int, int]:
    return divmod(indexes[k], n)


def _require_length(columns: Columns, length: int, place: tuple[int, int]) -> None:
    if len(columns[0]) != length:
        raise ShapeMismatch(
            f"PackData: {_place(*place)} has {len(columns[0])} tokens, and lengths= says {length}. Give the lengths of "
            "the documents as they are when they are packed, by their index in the source"
        )


def _is_unlike(value: Any, dtype: Any) -> bool:
    return type(value) is not np.ndarray or value.dtype is not dtype or value.ndim != 1


def _place(p: int, number: int) -> str:
    return f"document {number} of pass {p}"


def _tokens_of(dp: Any, p: int, number: int) -> Any:
    """The datapoint itself if it is an array or a list of numbers, else its only component."""
    if type(dp) is np.ndarray:
        return dp
    if isinstance(dp, list | tuple):
        if not dp or isinstance(dp[0], Number | np.generic):
            return dp
    elif not isinstance(dp, dict):
        return dp
    if len(dp) == 1:
        return next(iter(dp.values() if isinstance(dp, dict) else dp))
    names = list(dp) if isinstance(dp, dict) else list(range(len(dp)))
    raise TypeError(
        f"PackData: {_place(p, number)} has the components {names}: name the one with the tokens, or a list of those "
        "to cut alike, in key="
    )


def _as_array(value: Any, name: Any, p: int, number: int) -> NDArray[Any]:
    if isinstance(value, list | tuple):
        value = stack_column(list(value), name, _INT64) if value else np.empty(0, _INT64)
    elif not isinstance(value, str | bytes | dict):
        value = as_number_or_array(value, name)
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"PackData: component {name!r} of {_place(p, number)} is a masked array, whose mask would be lost. Pass "
            "its data and its mask as two components in key"
        )
    if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS or value.dtype.names is not None:
        kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(
            f"PackData: component {name!r} of {_place(p, number)} is no list or array of numbers, but of type {kind}"
        )
    if value.ndim != 1:
        raise ShapeMismatch(
            f"PackData: component {name!r} of {_place(p, number)} has the shape {value.shape}: tokens have one axis"
        )
    return np.asarray(value)


def _concatenate(arrays: list[Any], num: int) -> NDArray[Any]:
    """What `numpy.concatenate` returns for documents of one dtype, which have `num` tokens together."""
    dtype = arrays[-1].dtype  # as that of all, but what is left of documents in another byte order is native
    if num <= 2 * _AT_ONCE and dtype.isnative:  # numpy is faster with many, which it takes in huge pages
        with suppress(TypeError):  # not contiguous
            return np.frombuffer(bytearray().join(arrays), dtype)
    return np.concatenate(arrays)


class _Parts:
    """Parts of documents, one after another, of which blocks are made: many by one call of numpy.

    The blocks are views of the same arrays, in which no two have a place in common.
    """

    def __init__(self, node: PackData) -> None:
        self.size = node._size
        self.num_tokens = 0
        self._pad_values = {name: node._df_pad_value(name) for name in node._df_names}
        self._columns: list[list[NDArray[Any]]] = [[] for _ in self._pad_values]
        self._lengths: list[int] = []
        self._stops: list[int] = []  # where each part ends in its document
        self._padding: list[slice] = []
        self._numbers = np.empty(0, np.int32)  # 0, 1, …, as many as were needed
        # Once memory of this size was freed, glibc keeps what smaller arrays leave, instead of returning it to the
        # system at once: a third less time per token.
        np.empty(8 << 20, np.uint8)

    def put(self, columns: Columns, begin: int, end: int, cut: int = 0) -> None:
        """Append a document from position `begin` to before `end`, without its first `cut` tokens."""
        for arrays, column in zip(self._columns, columns, strict=True):
            arrays.append(column[begin:end])
        self._lengths.append(end - begin)
        self._stops.append(end + cut)
        self.num_tokens += end - begin

    def add(self, columns: list[list[NDArray[Any]]], lengths: list[int]) -> None:
        """Append whole documents, which are cut where a block ends."""
        for arrays, more in zip(self._columns, columns, strict=True):
            arrays += more
        self._lengths += lengths
        self._stops += lengths
        self.num_tokens += sum(lengths)

    def put_blocks(self, wanted: list[Any], found: Mapping[int, Columns]) -> bool:
        """Append the documents of blocks, as far as they were found; return whether all were."""
        for documents, lengths, begin in wanted:
            room = self.size
            for number, length in zip(documents.tolist(), lengths.tolist(), strict=True):
                if number not in found:
                    return False
                end = min(length, begin + room)
                self.put(found[number], begin, end)
                room, begin = room - end + begin, 0
            self.finish()
        return True

    def finish(self) -> None:
        """Fill what is left of the last block."""
        here = self.num_tokens
        if num := -here % self.size:
            for arrays, value in zip(self._columns, self._pad_values.values(), strict=True):
                arrays.append(np.full(num, value, arrays[-1].dtype))
            self._lengths.append(num)
            self._stops.append(num)
            self._padding.append(slice(here, here + num))
            self.num_tokens += num

    def take(self) -> Iterator[dict[Any, NDArray[Any]]]:
        """The blocks that are complete."""
        size, num = self.size, self.num_tokens // self.size * self.size
        if not num:
            return iter(())
        lengths, stops = np.fromiter(self._lengths, int), np.fromiter(self._stops, int)
        ends = lengths.cumsum()
        starts = (ends - stops).astype(np.int32)  # where the document of each part would begin
        last = int(ends.searchsorted(num))  # the part in which the last block ends
        begins = np.arange(0, num, size)  # of the blocks
        cuts = np.concatenate([begins, ends[:last], [num]])
        cuts.sort()  # a piece lies between two of them, and has no token where a block and a part begin together
        before = cuts.searchsorted(begins, "right") - 2  # the piece before each block
        segments = (np.arange(len(cuts) - 1) - before[cuts[:-1] // size]).astype(np.int32).repeat(cuts[1:] - cuts[:-1])
        positions = starts.repeat(lengths)[:num]
        if len(self._numbers) < num:
            self._numbers = np.arange(num, dtype=np.int32)
        np.subtract(self._numbers[:num], positions, out=positions)
        for part in self._padding:
            segments[part] = positions[part] = 0
        self._padding = []
        columns = [_concatenate(arrays, self.num_tokens) for arrays in self._columns]
        self._lengths[last] = int(ends[last]) - num
        del self._lengths[:last], self._stops[:last]
        self.num_tokens -= num
        self._columns = [[column[num:]] for column in columns]
        arrays = [array[:num].reshape(-1, size) for array in (*columns, segments, positions)]
        names = (*self._pad_values, *_ADDED)
        if len(names) == 3:  # written out, since it is faster than dict()
            a, b, c = names
            return ({a: tokens, b: ids, c: places} for tokens, ids, places in zip(*arrays, strict=True))
        return map(dict, map(zip, repeat(names), zip(*arrays, strict=True)))  # only the blocks hold the arrays


class _Fit:
    """Whole documents, each block filled with the longest that fit among those that wait."""

    def __init__(self, parts: _Parts, window: int) -> None:
        self._parts, self._window = parts, window
        self._waiting: dict[int, tuple[Columns, int]] = {}  # by number: a document, and where what is left of it begins
        self._sorted: list[tuple[int, int]] = []  # (length, negative number): of equal ones, the oldest comes last
        self._num = 0

    def add(self, columns: list[list[NDArray[Any]]], lengths: list[int]) -> None:
        """Take documents; fill the blocks for which there is enough to choose from."""
        size = self._parts.size
        for document, length in zip(zip(*columns, strict=True), lengths, strict=True):
            whole = 0
            if length >= size:
                whole = length // size * size
                self._parts.put(document, 0, whole)
                if whole == length:
                    continue
            self._waiting[self._num] = tuple(column[whole:] for column in document), whole
            insort(self._sorted, (length - whole, -self._num))
            self._num += 1
            if len(self._waiting) >= self._window:
                self._fill_block()

    def finish(self) -> None:
        """Fill the blocks that are left at the end of a pass."""
        while self._waiting:
            self._fill_block()

    def _fill_block(self) -> None:
        oldest = next(iter(self._waiting))  # so that none waits for ever
        columns, _ = self._waiting[oldest]
        k, room = bisect_left(self._sorted, (len(columns[0]), -oldest)), self._parts.size
        while k >= 0:
            length, number = self._sorted.pop(k)
            self._parts.put(self._waiting[-number][0], 0, length, self._waiting.pop(-number)[1])
            room -= length
            k = bisect_left(self._sorted, (room + 1,)) - 1
        self._parts.finish()


def _check_key(key: Any) -> Any:
    if not isinstance(key, list | tuple):
        keys = [] if key is None else [key]
    else:
        key = keys = list(key)
        if not keys:
            raise ValueError("PackData: key must be a component, or a list of components, got an empty list")
    twice = [name for k, name in enumerate(keys) if name in keys[:k]]
    taken = [name for name in keys if name in _ADDED]
    if twice:
        raise ValueError(f"PackData: key names the component {twice[0]!r} twice")
    if taken:
        raise ValueError(f"PackData: a block has a component {taken[0]!r} of its own: rename the one in key")
    return key


def _check_pad_values(pad_value: Any, names: Sequence[Any]) -> float | dict[Any, float]:
    for value in pad_value.values() if isinstance(pad_value, Mapping) else [pad_value]:
        if not isinstance(value, Real | np.bool_):
            raise TypeError(
                f"PackData: pad_value must be a number, or a dict of component and number, got {pad_value!r}"
            )
    if not isinstance(pad_value, Mapping):
        return pad_value  # type: ignore[no-any-return]
    if others := [name for name in pad_value if name not in names]:
        raise ValueError(f"PackData: pad_value names {others[0]!r}, which is not packed: the components are {names}")
    return dict(pad_value)
