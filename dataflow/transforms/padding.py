"""Padding: nodes that batch sequences of different lengths."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataflow.errors import LengthUnknown, ShapeMismatch, TimeoutError
from dataflow.protocol.base import DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.datapoint import (
    as_number_or_array,
    columns_of,
    component,
    empty,
    present,
    require_kept,
    stack_column,
)
from dataflow.protocol.failures import Budget
from dataflow.protocol.parameters import count_or_fraction, flag, function, positional_arguments, whole_number
from dataflow.protocol.pauses import paused, pausing
from dataflow.protocol.seeding import Stream
from dataflow.transforms.applying import ToleratesFailures
from dataflow.transforms.arguments import fits, integer_dtype
from dataflow.transforms.batching import GroupedData
from dataflow.transforms.grouping import copy_datapoint
from dataflow.transforms.indexing import pass_in_order

__all__ = ["BucketBatchData", "PadBatchData"]

PadValue = float | Mapping[Any, float]

_INT64: Final = np.dtype(np.int64)
_ELEMENTS: Final = (bool, int, float, complex)  # of a list that is stacked in one call


class PadBatchData(GroupedData[T_co]):
    """Batch sequences of different lengths, padded at the end to the longest of the batch.

    A sequence is a list or tuple of numbers, such as tokens, or an array, which is padded along its first axis. `n`
    sequences of at most `length` elements become an array of shape ``(n, length, …)``. Other components are stacked as
    in `BatchData`, but Python ints become int64.

    Args:
        ds: The input.
        batch_size: Datapoints per batch, at least 1.
        pad_value: What is put behind shorter sequences; or a dict of component and value, where a component that is
            not in it is padded with 0. Positions may count from the end.
        max_length: Longer sequences lose their end. None keeps them whole.
        keys: The components to pad: a list of keys or positions. None pads all that are lists, tuples or arrays with
            at least one axis.
        mask: Add two components for each padded one: a mask, bool ``(n, length)``, true where there are data, and the
            lengths, int64 ``(n,)``. In dicts they have the keys ``key + "_mask"`` and ``key + "_length"``; in lists
            they follow at the end, mask and lengths of the first padded component, then those of the second.
        remainder: Yield the last batch even if it is shorter.
        int_dtype: The integer dtype of Python ints.
        max_failures: How many batches of one pass may fail, as for `BatchData`.

    Raises:
        KeyError: A component in `keys` or `pad_value` is missing; of a list or tuple, an IndexError.
        ValueError: A pass of `ds` is shorter than one batch, and `remainder` is False.
        ShapeMismatch: Sequences of one batch differ beyond their first axis; names the component.
        TypeError: A component in `keys` is no sequence, or a masked array; or `pad_value` does not fit into its dtype,
            or names a component that is not padded.
        OverflowError: A number or date would be another one in the common dtype, as for `BatchData`.

    Example:
        >>> ds = DataFromList([{"tokens": [5, 6, 7], "label": 0}, {"tokens": [8], "label": 1}], shuffle=False)
        >>> (batch,) = PadBatchData(ds, 2, mask=True)
        >>> batch["tokens"].tolist(), batch["tokens_mask"].tolist(), batch["tokens_length"].tolist()
        ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]], [3, 1])
    """

    def __init__(
        self,
        ds: DataFlow,
        batch_size: int,
        *,
        pad_value: PadValue = 0,
        max_length: int | None = None,
        keys: Sequence[Any] | None = None,
        mask: bool = False,
        remainder: bool = False,
        int_dtype: DTypeLike = _INT64,
        max_failures: Budget | None = None,
    ) -> None:
        super().__init__(ds, batch_size, remainder, max_failures=max_failures)
        padding = _Padding(self, pad_value, max_length, keys, mask, int_dtype)
        self.pad_value, self.max_length, self.keys = padding.pad_value, padding.max_length, padding.keys
        self.mask, self.int_dtype = padding.mask, padding.int_dtype

    def _df_combiner(self) -> Callable[[list[Any]], Any]:
        return partial(_pad_column, node=self)


class BucketBatchData(ToleratesFailures[T_co], ProxyDataFlow[T_co]):
    """Batch sequences of similar lengths, padded to the longest of each batch.

    A datapoint goes to the bucket of its length; a bucket with `batch_size` datapoints is yielded as a batch. At the
    end of a pass the incomplete buckets are yielded, the shortest lengths first, so nothing is dropped. At most
    ``batch_size - 1`` datapoints per bucket are kept meanwhile. The number of batches in a pass is not known. A pass
    over an endless flow never ends, and the next loop goes on where the last one stopped, with what is in the buckets.

    Args:
        ds: The input.
        batch_size: Datapoints per batch, at least 1.
        key: A function that gets a datapoint and returns its length, or any number by which to sort.
        boundaries: Increasing numbers, which divide the lengths into one bucket more than there are numbers: a bucket
            holds the lengths from one boundary to below the next.
        pad_value: What is put behind shorter sequences, as for `PadBatchData`.
        max_length: Longer sequences lose their end.
        keys: The components to pad.
        mask: Add a mask and the lengths for each padded component.
        int_dtype: The integer dtype of Python ints.
        max_failures: How many datapoints of one pass may fail because `key` raises, and how many batches because their
            datapoints do not form one, counted together, as for `MapData`.

    Raises:
        TypeError: `key` returns no number.
        ValueError: `boundaries` do not increase.
        ShapeMismatch: Sequences of one batch differ beyond their first axis; names the component.

    Example:
        >>> ds = DataFromList([[[1] * length] for length in (2, 9, 3, 8, 1)], shuffle=False)
        >>> df = BucketBatchData(ds, 2, key=lambda dp: len(dp[0]), boundaries=[5])
        >>> [tokens.shape for (tokens,) in df]
        [(2, 3), (2, 9), (1, 1)]

    Source:
        ``bucket_by_sequence_length`` of tf.data, which has the same buckets.
    """

    _df_calls = True
    _df_indexed = False

    def __init__(
        self,
        ds: DataFlow,
        batch_size: int,
        *,
        key: Callable[[Any], float],
        boundaries: Sequence[float],
        pad_value: PadValue = 0,
        max_length: int | None = None,
        keys: Sequence[Any] | None = None,
        mask: bool = False,
        int_dtype: DTypeLike = _INT64,
        max_failures: Budget | None = None,
    ) -> None:
        super().__init__(ds)
        self.max_failures = count_or_fraction(self, "max_failures", max_failures)
        self.batch_size = whole_number(self, "batch_size", batch_size, 1)
        self.key = function(self, "key", key, "gets a datapoint, and returns its length")
        self.boundaries = _increasing(boundaries)
        padding = _Padding(self, pad_value, max_length, keys, mask, int_dtype)
        self.pad_value, self.max_length, self.keys = padding.pad_value, padding.max_length, padding.keys
        self.mask, self.int_dtype = padding.mask, padding.int_dtype

    def __len__(self) -> int:
        raise LengthUnknown("a pass of BucketBatchData has no known length: it depends on the length of each datapoint")

    @property
    def _df_continues(self) -> bool:
        return self._df_endless

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return pass_in_order(self, stream, partial(self._batches, p, stream))

    def _batches(self, p: int, stream: Stream) -> Iterator[Any]:
        made = self._df_made(partial(_pad_column, node=self), lambda k: (p, k), stream)
        waits = self._df_waits
        return present(made.over(pausing(self._full_buckets(p, stream, waits), waits)))

    def _full_buckets(self, p: int, stream: Stream, waits: bool) -> Iterator[Any]:
        """The datapoints of each batch."""
        buckets: list[list[Any]] = [[] for _ in range(len(self.boundaries) + 1)]
        placed = self._df_made(self._with_bucket, lambda k: (p, k), stream)
        placed.label += "(key)"  # its positions count datapoints, not batches
        datapoints = present(placed.over(self.ds._df_run_pass(p, stream)))
        while True:
            try:
                for k, dp in datapoints:
                    buckets[k].append(copy_datapoint(dp))
                    del dp  # the receiver of a batch may reuse its memory
                    if len(buckets[k]) == self.batch_size:
                        yield _empty(buckets, k)
                break
            except TimeoutError as error:
                pause = paused(error, waits)
            yield pause
        for k in range(len(buckets)):
            if buckets[k]:
                yield _empty(buckets, k)

    def _with_bucket(self, dp: Any) -> tuple[int, Any]:
        """The number of the bucket of a datapoint, and the datapoint."""
        length = self.key(dp)
        if not isinstance(length, Real) or math.isnan(length):
            raise TypeError(f"BucketBatchData: key returns the length of a datapoint, a number, got {length!r}")
        return bisect_right(self.boundaries, length), dp


class _Padding:
    """The checked options of a node that pads."""

    def __init__(
        self, owner: object, pad_value: Any, max_length: Any, keys: Any, mask: Any, int_dtype: DTypeLike
    ) -> None:
        name = type(owner).__name__
        values = pad_value.values() if isinstance(pad_value, Mapping) else [pad_value]
        for value in values:
            if not isinstance(value, Real | np.bool_):
                raise TypeError(
                    f"{name}: pad_value must be a number, or a dict of component and number, got {pad_value!r}"
                )
        self.pad_value: PadValue = dict(pad_value) if isinstance(pad_value, Mapping) else pad_value
        self.max_length = None if max_length is None else whole_number(owner, "max_length", max_length, 1)
        if keys is not None and not isinstance(keys, list | tuple):
            raise TypeError(
                f"{name}: keys must be a list of keys or positions of components, got {keys!r}: write [{keys!r}]"
            )
        self.keys = None if keys is None else list(positional_arguments(owner, "keys", keys))
        self.mask = flag(owner, "mask", mask)
        self.int_dtype = integer_dtype(owner, int_dtype)


def _empty(buckets: list[list[Any]], k: int) -> list[Any]:
    full, buckets[k] = buckets[k], []
    return full


def _increasing(boundaries: Any) -> list[float]:
    given = list(boundaries) if isinstance(boundaries, Sequence | np.ndarray) else None
    if given is None or not all(isinstance(number, Real) and not isinstance(number, bool) for number in given):
        raise TypeError(f"BucketBatchData: boundaries must be a list of increasing numbers, got {boundaries!r}")
    if not all(map(operator.lt, given, given[1:])) or any(map(math.isnan, given)):
        raise ValueError(f"BucketBatchData: boundaries must increase, got {given}")
    return given


def _pad_column(datapoints: list[Any], node: PadBatchData | BucketBatchData) -> Any:
    """One batch, with the options of `node`."""
    columns = columns_of(datapoints)
    is_dict, owner = isinstance(datapoints[0], dict), type(node).__name__
    keys = set(columns) if node.keys is None else {_column_of(key, datapoints[0], columns) for key in node.keys}
    sequences = {key: _sequences(values, node, key) for key, values in columns.items() if key in keys}
    wrong = [key for key, found in sequences.items() if found is None]
    if wrong and node.keys is not None:
        raise TypeError(
            f"{owner}: component {wrong[0]!r} is a {type(columns[wrong[0]][0]).__name__}, which has no length to pad. "
            "Leave it out of keys"
        )
    pad_values = _pad_values(node, datapoints[0], columns, sequences)
    batch: dict[Any, Any] = {}
    added: dict[Any, NDArray[Any]] = {}
    for key, values in columns.items():
        found = sequences.get(key)
        if found is None:
            batch[key] = stack_column(values, key, node.int_dtype)
            continue
        batch[key], lengths = _pad(found, key, node, pad_values[key])
        if node.mask:
            lengths_of_key = empty(len(lengths), np.int64)
            lengths_of_key[:] = lengths
            is_data = empty(batch[key].shape[:2], np.bool_)
            np.less(np.arange(is_data.shape[1]), lengths[:, None], out=is_data)
            added[f"{key}_mask"], added[f"{key}_length"] = is_data, lengths_of_key
    if not is_dict:
        return [*batch.values(), *added.values()]
    if twice := sorted(batch.keys() & added.keys()):
        raise ShapeMismatch(f"{owner}: mask=True adds the component {twice[0]!r}, which is there already. Rename it")
    return batch | added


def _column_of(key: Any, dp: Any, columns: Mapping[Any, Any]) -> Any:
    """The name in `columns` of the component that the user calls `key`: positions may count from the end."""
    component(dp, key)  # raises if it is missing
    return key + len(columns) if not isinstance(dp, dict) and key < 0 else key


def _pad_values(
    node: PadBatchData | BucketBatchData, dp: Any, columns: Mapping[Any, Any], sequences: Mapping[Any, Any]
) -> dict[Any, Any]:
    """The pad value of each component that is padded."""
    padded = [key for key, found in sequences.items() if found is not None]
    if not isinstance(node.pad_value, Mapping):
        return dict.fromkeys(padded, node.pad_value)
    given = {_column_of(key, dp, columns): value for key, value in node.pad_value.items()}
    if others := [key for key in given if key not in padded]:
        raise TypeError(
            f"{type(node).__name__}: pad_value names component {others[0]!r}, which is not padded: those that are "
            f"padded are {padded}"
        )
    return {key: given.get(key, 0) for key in padded}


def _sequences(values: list[Any], node: PadBatchData | BucketBatchData, key: Any) -> list[Any] | None:
    """The values as lists or arrays with at least one axis, cut to `max_length`; None if they are no sequences."""
    found = [value if isinstance(value, list | tuple) else as_number_or_array(value, key) for value in values]
    if any(isinstance(value, np.ma.MaskedArray) for value in found):
        raise TypeError(
            f"{type(node).__name__}: component {key!r} is a masked array, whose mask would be lost. Pass its data and "
            "its mask as two components, or array.filled(value), with MapData before"
        )
    if not all(isinstance(value, list | tuple) or np.ndim(value) for value in found):
        return None
    return found if node.max_length is None else [value[: node.max_length] for value in found]


def _pad(
    sequences: list[Any], key: Any, node: PadBatchData | BucketBatchData, value: Any
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The padded array, and the length of each sequence."""
    lengths = np.array([*map(len, sequences)], dtype=np.int64)
    is_data = np.arange(lengths.max()) < lengths[:, None]
    if all(isinstance(sequence, list | tuple) for sequence in sequences):
        elements = [*chain.from_iterable(sequences)]
        if not elements:
            return empty(is_data.shape, node.int_dtype), lengths
        if isinstance(elements[0], _ELEMENTS):
            flat = stack_column(elements, key, node.int_dtype)
            out = _fill(is_data.shape, flat, key, node, value)
            out[is_data] = flat
            return out, lengths
    # Lists of lists, such as boxes, or of arrays; an empty one has no further axes.
    arrays = [np.asarray(as_number_or_array(sequence, key, node.int_dtype)) for sequence in sequences]
    present = [array for array in arrays if array.size or array.ndim > 1] or arrays
    inner = present[0].shape[1:]
    if any(array.shape[1:] != inner for array in present):
        found = ", ".join(str(shape) for shape in dict.fromkeys(array.shape for array in arrays))
        raise ShapeMismatch(
            f"component {key!r} has different shapes beyond the first axis within one batch: {found}. Only the first "
            "axis is padded: bring the others to one size with MapDataComponent"
        )
    dtype = stack_column([np.zeros((), array.dtype) for array in present], key)
    out = _fill((*is_data.shape, *inner), dtype, key, node, value)
    for row, array, length in zip(out, arrays, lengths.tolist(), strict=True):
        if length:
            require_kept(array, dtype.dtype, key)
            row[:length] = array
    return out, lengths


def _fill(
    shape: tuple[int, ...], like: NDArray[Any], key: Any, node: PadBatchData | BucketBatchData, value: Any
) -> NDArray[Any]:
    """An array full of the pad value of this component, with the dtype of `like`."""
    if not fits(value, like.dtype):
        raise TypeError(
            f"{type(node).__name__}: pad_value {value!r} does not fit into component {key!r}, which is {like.dtype}. "
            "Choose another one, or convert the component before"
        )
    out = empty(shape, like.dtype)
    out[...] = value
    return out
