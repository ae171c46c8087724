"""A batch that is filled as its datapoints arrive: what large arrays need, and pay for.

Each large array is copied into its row of the batch before the source goes on. So whatever the source does with its
memory later, the batch is right, and this is the only copy. For small arrays the calls would take longer than the copy:
see `grouping` for those.

Arrays are rows as long as all datapoints have the form of the first. From another one on, copies of whole datapoints
are kept, and stacked at the end, which says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.protocol.datapoint import empty, stack, stack_column
from dataflow.transforms.grouping import copy_datapoint

__all__ = ["Filling", "stack_filled"]

_LARGE_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 1 << 28  # of the rows of a batch, which may stay shorter than it can be
_KINDS: Final = frozenset("biufcSUMm")


class Filling:
    """A batch of at most `num` datapoints of the form of the first, `dp`."""

    def __init__(self, dp: Any, num: int) -> None:
        self._kind = type(dp)
        self._columns: dict[Any, _Rows | _Values] = {}
        self._num = 0  # datapoints that all columns hold: an interrupt may leave another one in some of them
        self._others: list[Any] = []  # copies of the first datapoint of another form, and of all after it
        for key, value in dp.items() if self._kind is dict else enumerate(dp):
            self._columns[key] = _Rows(value, num) if _is_large(value, num) else _Values()
        self.extend(iter([dp]))

    @classmethod
    def begin(cls, dp: Any, num: int) -> Filling | None:
        """A batch that begins with `dp`; None if it has no large array."""
        if type(dp) not in (list, tuple, dict):
            return None
        values = dp.values() if type(dp) is dict else dp
        return cls(dp, num) if any(_is_large(value, num) for value in values) else None

    def __len__(self) -> int:
        return self._num + len(self._others)

    def extend(self, datapoints: Iterator[Any]) -> None:
        """Take all `datapoints`. If a step raises, those before it have been taken."""
        for dp in datapoints if not self._others else ():
            if not self._add(dp):
                self._others.append(copy_datapoint(dp))
                break
        if self._others:
            self._others.extend(map(copy_datapoint, datapoints))

    def _add(self, dp: Any) -> bool:
        """Add a datapoint to the columns; return whether it has the form of the first."""
        if type(dp) is not self._kind or len(dp) != len(self._columns):
            return False
        for key, column in self._columns.items():
            if (self._kind is dict and key not in dp) or not column.put(self._num, dp[key]):
                return False
        self._num += 1
        return True

    def stacked(self, int_dtype: np.dtype[Any]) -> Any:
        """The batch.

        Raises:
            ShapeMismatch, OverflowError, TypeError: As `stack`.
        """
        if self._others:
            return stack([*map(self._datapoint, range(self._num)), *self._others], int_dtype=int_dtype)
        return self._of_kind({key: column.stacked(self._num, key, int_dtype) for key, column in self._columns.items()})

    def _datapoint(self, k: int) -> Any:
        return self._of_kind({key: column[k] for key, column in self._columns.items()})

    def _of_kind(self, values: dict[Any, Any]) -> Any:
        return values if self._kind is dict else [*values.values()]


def stack_filled(group: Filling | list[Any], *, int_dtype: np.dtype[Any]) -> Any:
    """The batch of the datapoints of `group`."""
    return group.stacked(int_dtype) if isinstance(group, Filling) else stack(group, int_dtype=int_dtype)


class _Values:
    """Values that are stacked at the end."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def __getitem__(self, k: int) -> Any:
        return self._values[k]

    def put(self, k: int, value: Any) -> bool:
        self._values[k:] = [copy_datapoint(value)]
        return True

    def stacked(self, num: int, key: Any, int_dtype: np.dtype[Any]) -> NDArray[Any]:
        return stack_column(self._values[:num], key, int_dtype)


class _Rows:
    """Arrays of one shape and dtype, in the rows of one array."""

    def __init__(self, first: NDArray[Any], num: int) -> None:
        self._shape, self._dtype = first.shape, first.dtype
        self._array = empty((num, *first.shape), first.dtype)

    def __getitem__(self, k: int) -> NDArray[Any]:
        row: NDArray[Any] = self._array[k]
        return row

    def put(self, k: int, value: Any) -> bool:
        """Copy an array into row `k`; return whether it has the form of the others."""
        if type(value) is not np.ndarray or value.shape != self._shape or value.dtype != self._dtype:
            return False
        self._array[k] = value
        return True

    def stacked(self, num: int, key: Any, int_dtype: np.dtype[Any]) -> NDArray[Any]:
        if num == len(self._array):
            return self._array
        out = empty((num, *self._shape), self._dtype)
        out[...] = self._array[:num]
        return out


def _is_large(value: Any, num: int) -> bool:
    """Whether it is an array that is to be a row of a batch of `num`."""
    return (
        type(value) is np.ndarray
        and value.nbytes >= _LARGE_BYTES
        and value.nbytes * num <= _MOST_BYTES
        and value.ndim > 0
        and value.dtype.kind in _KINDS
        and value.dtype.metadata is None
    )
