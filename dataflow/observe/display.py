"""Display: a node that prints an outline of datapoints."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import TimeoutError
from dataflow.protocol.base import DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.datapoint import components, is_datapoint
from dataflow.protocol.pauses import Pause, paused, pausing, resumed
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of

__all__ = ["PrintData"]

_ORDERED: Final = "biufmM"  # the kinds of dtypes that have a range
_PLAIN: Final = (bool, int, float, complex, str, bytes, np.generic)


class _Shown:
    num = 0  # datapoints printed since the last reset


class PrintData(ProxyDataFlow[T_co]):
    """Print type, shape, dtype and range of the components of the first datapoints, and pass all datapoints on.

    It prints the first `num` datapoints after each `reset_state`, to stdout, in every worker. Only passes print, not
    ``df[i]``.

    Args:
        ds: The input.
        num: Number of datapoints to print.
        name: A name for the heading, to distinguish nodes.
        max_depth: Levels of nested lists, tuples and dicts to show.
        max_list: Number of elements to show of a list, tuple or dict inside a datapoint.

    Example:
        >>> df = PrintData(DataFromList([[np.arange(6).reshape(2, 3), "six", 0.5]]), name="numbers")
        >>> passed_on = list(df)
        DataFlow Info (numbers):
        datapoint 1 of 1 with 3 components:
           0: ndarray:int64 of shape (2, 3) in range [0, 5]
           1: str of length 3 with value 'six'
           2: float with value 0.5
    """

    _df_takes = 1

    def __init__(
        self, ds: DataFlow[T_co], num: int = 1, name: str | None = None, max_depth: int = 3, max_list: int = 3
    ) -> None:
        super().__init__(ds)
        self.num = num
        self.name = name
        self.max_depth = max_depth
        self.max_list = max_list

    def reset_state(self) -> None:
        super().reset_state()
        state_of(self).part(_Shown).num = 0

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        waits = self._df_waits
        return pausing(self._show_first(self.ds._df_run_pass(p, stream), waits), waits)

    def _show_first(self, datapoints: Iterator[Any], waits: bool) -> Iterator[Any]:
        shown = state_of(self).part(_Shown)
        while shown.num < self.num:
            try:
                dp = next(datapoints)
            except StopIteration:
                return
            except TimeoutError as error:
                dp = paused(error, waits)
            if type(dp) is Pause:
                yield dp
                continue
            # One call, so that the output of several workers is not interleaved.
            print(self._text(dp, shown.num))
            shown.num += 1
            yield dp
            del dp  # not kept for the rest of the pass
        yield from resumed(datapoints, waits)

    def _text(self, dp: Any, k: int) -> str:
        place = f"datapoint {k + 1} of {self.num}"
        if is_datapoint(dp):
            lines = [f"{place} with {len(dp)} components:", *self._inside(components(dp), 1)]
        else:
            lines = [f"{place} is {self._outline(dp)}"]
        heading = "DataFlow Info:" if self.name is None else f"DataFlow Info ({self.name}):"
        return "\n".join([heading, *lines] if k == 0 else lines)

    def _inside(self, items: Iterable[tuple[Any, Any]], depth: int) -> Iterator[str]:
        """One line for each component, followed by the lines of its elements."""
        indent = " " * (3 * depth)
        for key, value in items:
            yield f"{indent}{key!r}: {self._outline(value)}"
            if isinstance(value, list | tuple | Mapping) and depth < self.max_depth:
                nested = value.items() if isinstance(value, Mapping) else enumerate(value)
                yield from self._inside(itertools.islice(nested, self.max_list), depth + 1)
                if len(value) > self.max_list:
                    yield f"{indent}   ..."

    def _outline(self, value: Any) -> str:
        """A description of one value in one line."""
        kind = type(value).__name__
        if value is None:
            return "None"
        if isinstance(value, np.ndarray):
            return f"{kind}:{value.dtype} of shape {value.shape}{_range(value)}"
        if isinstance(value, str | bytes):
            return f"{kind} of length {len(value)} with value {reprlib.repr(value)}"
        if isinstance(value, _PLAIN):
            return f"{kind} with value {value!s}"
        if isinstance(value, list | tuple | Mapping):
            return f"{kind} of length {len(value)}"
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        return kind if shape is None or dtype is None else f"{kind}:{dtype} of shape {tuple(shape)}"


def _range(array: NDArray[Any]) -> str:
    if array.dtype.kind not in _ORDERED:
        return ""
    values = array.compressed() if isinstance(array, np.ma.MaskedArray) else np.asarray(array).ravel()
    missing = "NaT" if array.dtype.kind in "mM" else "NaN"
    if array.dtype.kind in "fmM":
        unknown = np.isnan(values)
        num_missing, values = int(unknown.sum()), values[~unknown]
    else:
        num_missing = 0
    parts = [f"{num_missing} {missing}"] if num_missing else []
    if values.size:
        parts.insert(0, f"in range [{_number(values.min())}, {_number(values.max())}]")
    return " " + ", ".join(parts) if parts else ""


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)
