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
        self._columns: dict[Any, _Rows | _Values] = {}  # none once a datapoint of another form has arrived
        self._copies: list[Any] = []  # all datapoints, from then on
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
        return min(map(len, self._columns.values()), default=len(self._copies))

    def extend(self, datapoints: Iterator[Any]) -> None:
        """Take all `datapoints`. If a step raises, those before it have been taken."""
        for dp in datapoints if self._columns else ():
            try:
                self._add(dp)
            except _OtherForm:
                self._keep_copies()
                self._copies.append(copy_datapoint(dp))
                break
            except BaseException:  # an interrupt, for example: some columns may have this datapoint, and some not
                self._keep_copies()
                raise
        if not self._columns:
            self._copies.extend(map(copy_datapoint, datapoints))

    def _add(self, dp: Any) -> None:
        columns = self._columns
        if type(dp) is not self._kind or len(dp) != len(columns):
            raise _OtherForm
        for key, column in columns.items():
            if self._kind is dict and key not in dp:
                raise _OtherForm
            column.add(dp[key])

    def _keep_copies(self) -> None:
        """Make whole datapoints of the columns, the first of which may be one longer than the last."""
        for k in range(len(self)):
            copied = {key: column[k] for key, column in self._columns.items()}
            self._copies.append(copied if self._kind is dict else [*copied.values()])
        self._columns = {}

    def stacked(self, int_dtype: np.dtype[Any]) -> Any:
        """The batch.

        Raises:
            ShapeMismatch, OverflowError, TypeError: As `stack`.
        """
        if not self._columns:
            return stack(self._copies, int_dtype=int_dtype)
        batch = {
            key: column.whole() if isinstance(column, _Rows) else stack_column(column, key, int_dtype)
            for key, column in self._columns.items()
        }
        return batch if self._kind is dict else [*batch.values()]


def stack_filled(group: Filling | list[Any], *, int_dtype: np.dtype[Any]) -> Any:
    """The batch of the datapoints of `group`."""
    return group.stacked(int_dtype) if isinstance(group, Filling) else stack(group, int_dtype=int_dtype)


class _OtherForm(Exception):
    """A datapoint is not of the form of the first."""


class _Values(list[Any]):
    """Values that are stacked at the end."""

    def add(self, value: Any) -> None:
        self.append(copy_datapoint(value))


class _Rows:
    """Arrays of one shape and dtype, in the rows of one array."""

    def __init__(self, first: NDArray[Any], num: int) -> None:
        self._shape, self._dtype = first.shape, first.dtype
        self._array = empty((num, *first.shape), first.dtype)
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, k: int) -> NDArray[Any]:
        row: NDArray[Any] = self._array[k]
        return row

    def add(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.shape != self._shape or value.dtype != self._dtype:
            raise _OtherForm
        self._array[self._num] = value
        self._num += 1

    def whole(self) -> NDArray[Any]:
        if self._num == len(self._array):
            return self._array
        out = empty((self._num, *self._shape), self._dtype)
        out[...] = self._array[: self._num]
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
