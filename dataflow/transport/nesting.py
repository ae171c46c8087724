"""Datapoints in which arrays stand anywhere, not only as components: the shell refers to each by its number."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.transport.shells import PROTOCOL

__all__ = ["NestedPickler", "NestedUnpickler"]


class NestedPickler(pickle.Pickler):
    """Pickles a datapoint in which arrays stand anywhere: each is replaced by its number."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, PROTOCOL)
        self.arrays: list[NDArray[Any]] = []  # keeps them alive, so that no two have the same id
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not np.ndarray or obj.dtype.hasobject:
            return None  # numpy pickles the objects of an array of objects
        number = self._numbers.setdefault(id(obj), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(obj)
        return number


class NestedUnpickler(pickle.Unpickler):
    """Loads a shell that refers to its arrays by number, in the order of the numbers."""

    def __init__(self, body: bytes, arrays: Iterator[NDArray[Any]]) -> None:
        super().__init__(io.BytesIO(body))
        self._arrays = arrays
        self._seen: list[NDArray[Any]] = []

    def persistent_load(self, number: int) -> NDArray[Any]:
        if number == len(self._seen):
            self._seen.append(next(self._arrays))
        return self._seen[number]
