"""What the tests of formats share: one way to save and load each, and an equality that forgives nothing."""

import io
import os
import struct
import tarfile
import zipfile
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


ROWS: dict[str, Any] = {
    "image": np.arange(60.0).reshape(10, 2, 3),
    "label": np.arange(10, dtype="i2"),
    "name": np.array(list("abcdefghij")),
}
"""Columns of arrays, and `rows` are their rows."""


def rows() -> list[dict[str, Any]]:
    return [{key: column[k] for key, column in ROWS.items()} for k in range(10)]


def members_of(path: Any) -> dict[str, bytes]:
    """What the members of an archive contain, such as those of an npz file."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def archived(path: Any, members: Any, compression: int = zipfile.ZIP_STORED) -> None:
    """Write an archive of members, as a dict or as pairs."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for filename, content in members.items() if isinstance(members, dict) else members:
            archive.writestr(filename, content)


def npy(array: Any) -> bytes:
    """The npy file of an array."""
    with io.BytesIO() as file:
        np.save(file, array)
        return file.getvalue()


def write_shard(path: Any, files: Any, form: int = tarfile.USTAR_FORMAT) -> str:
    """Write a tar file, as a shard of WebDataset; `files` are pairs of a name and its content."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def opened(form: Format, path: str, *, shuffle: bool = False, **options: Any) -> DataFlow:
    return form.load(path, shuffle=shuffle, **options)
