"""What datapoints are like: their arrays have the same places, and the rest is of the same types.

Most flows give datapoints of one kind, and what follows from the types of the components is found out when it changes.
Of the benchmarks `mnist` and `ragged` show it: without, the worker's encoder takes 3 and 1.3 times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataflow.codec.array_columns import name_of

__all__ = ["NUMBERS", "ROWS", "TEXTS", "DatapointKind", "Kinds"]

ROWS: Final = frozenset({list, tuple})
NUMBERS: Final = frozenset({int, float, bool, type(None)})
"""Exactly these arrive from `marshal` as they do from `pickle`: it does not remember them either."""

TEXTS: Final = NUMBERS | {str, bytes}
"""Beside arrays these too are written by `marshal`: equal, if not as one object where one stands there twice."""

_PLAIN_KEYS: Final = frozenset({str, int})  # what a copy of them finds is what they find: not so for nan or an object
_ARRAY: Final = np.ndarray
_SIMPLE: Final = TEXTS | {complex}
_UNKNOWN: Final[tuple[Any, Any, Any, int]] = (None, None, None, 0)


class DatapointKind:
    """The datapoints of one type whose components have these types; those of a dict, under the same keys.

    Args:
        dp: One of them.
        types: Of its components.
    """

    __slots__ = (
        "alone",
        "form",
        "gaps",
        "has_plain_keys",
        "is_row",
        "is_simple",
        "last",
        "names",
        "pick",
        "places",
        "shapes",
        "type",
        "types",
    )

    def __init__(self, dp: Any, types: list[type]) -> None:
        self.type = type(dp)
        self.types = types
        self.names = list(dp) if self.type is dict else None  # its keys
        self.has_plain_keys = self.names is None or _PLAIN_KEYS.issuperset(map(type, self.names))
        self.places = [place for place, its in enumerate(types) if its is _ARRAY]  # of the arrays
        self.gaps = (self.type is tuple, self.places, self.names)
        self.alone = self.places[0] if len(self.places) == 1 and self.has_plain_keys else None
        self.pick = itemgetter(*self.places) if len(self.places) > 1 else None
        self.last = [_UNKNOWN] * len(self.places)  # of each array, as `learn` found it: dtype, its name, shape, bytes
        self.shapes: Any = ()  # of these arrays, for all parcels that have the same
        self.form = (self.gaps, [("", "C")] * len(self.places))
        rest = set(types) - {_ARRAY}
        # `marshal` can write what travels: without arrays the whole datapoint, which must be no dict then.
        self.is_row = rest <= TEXTS if self.places else self.names is None and rest <= NUMBERS
        self.is_simple = self.has_plain_keys and rest <= _SIMPLE  # no array stands anywhere else

    def learn(self, arrays: Sequence[NDArray[Any]]) -> None:
        """The next ones may be like these. Arrays of objects are never met again: the encoder must see each."""
        if True in [array.dtype.hasobject for array in arrays]:
            return
        names = [name_of(array.dtype) for array in arrays]
        self.last = [(a.dtype, name, a.shape, a.nbytes) for a, name in zip(arrays, names, strict=True)]
        self.shapes = [array.shape for array in arrays]
        self.form = (self.gaps, [(name, "C") for name in names])  # a new one: parcels hold the other

    def has_names_of(self, dp: Any) -> bool:
        """Whether a dict has the very same keys in the same order: 1, 1.0 and True are equal, and not the same."""
        names = self.names or []
        if len(dp) == len(names) and all(map(is_, dp, names)):
            return True
        return list(dp) == names and list(map(type, dp)) == list(map(type, names))


class Kinds:
    """The kind of the last datapoint."""

    def __init__(self) -> None:
        self.last = DatapointKind([], [])

    def find(self, dp: Any, types: list[type]) -> DatapointKind:
        """The kind of a datapoint that is not like the last one."""
        kind = DatapointKind(dp, types)
        if kind.has_plain_keys:  # else nobody's objects are kept
            self.last = kind
        return kind
