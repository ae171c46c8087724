"""What the tests of formats share: one way to save and load each, and an equality that forgives nothing."""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataflow import (
    DataFlow,
    DataFromList,
    HDF5Serializer,
    LMDBSerializer,
    NumpySerializer,
    TFRecordSerializer,
)


@dataclass(frozen=True)
class Format:
    name: str
    save: Callable[..., None]
    load: Callable[..., DataFlow]

    def file(self, folder: Any, stem: str = "file") -> str:
        return os.path.join(folder, f"{stem}.{self.name}")

    def saved(self, folder: Any, datapoints: list[Any], **options: Any) -> str:
        path = self.file(folder)
        self.save(flow(datapoints), path, overwrite=True, **options)
        return path


LMDB = Format("lmdb", LMDBSerializer.save, LMDBSerializer.load)
HDF5 = Format("h5", HDF5Serializer.save, HDF5Serializer.load)
NPZ = Format("npz", NumpySerializer.save, NumpySerializer.load)
TFRECORD = Format("tfrecord", TFRecordSerializer.save, TFRecordSerializer.load)
FORMATS = (LMDB, HDF5, NPZ, TFRECORD)
FREE = (LMDB, TFRECORD)  # each datapoint as it is
COLUMNS = (HDF5, NPZ)  # all alike


def by_name(form: Any) -> str:
    return form.name if isinstance(form, Format) else ""


def flow(datapoints: list[Any]) -> DataFlow:
    return DataFromList(datapoints, shuffle=False)


def images(num: int = 32) -> list[Any]:
    """Datapoints as tensorpack's own tests save: ``[label, float64 (28, 28, 3)]``."""
    rng = np.random.default_rng(42)
    return [[int(rng.integers(10)), rng.normal(size=(28, 28, 3))] for _ in range(num)]


def exact(value: Any) -> Any:
    """A form that is equal for equal values of equal types only; the order of memory does not count."""
    kind = type(value)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        # What lies between the fields of a structure is nobody's.
        content = [exact(np.array(array[name])) for name in array.dtype.names] if array.dtype.names else array.tobytes()
        if array.dtype.char in "gG":  # six of sixteen bytes are nobody's
            content = [repr(item) for item in array.ravel()]
        return kind.__name__, array.dtype.str, repr(array.dtype), array.shape, content
    if isinstance(value, list | tuple):
        return kind.__name__, [exact(item) for item in value]
    if isinstance(value, dict):
        return kind.__name__, [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return kind.__name__, sorted(repr(exact(item)) for item in value)
    if kind is float:
        return "float", struct.pack("<d", value)
    if kind is complex:
        return "complex", struct.pack("<2d", value.real, value.imag)
    return kind.__name__, value


def arrays_in(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [array for item in items for array in arrays_in(item)]


def assert_same(found: Any, expected: Any) -> None:
    assert exact(found) == exact(expected)
