"""Reader of an HDF5 file: the rows of its datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import DataFlowTerminated
from dataflow.extras import optional
from dataflow.formats.checksums import check_version
from dataflow.formats.columns import ENDS, Column, ColumnTable
from dataflow.formats.damage import Damaged, file_damaged
from dataflow.formats.hdf5_writer import ABOUT, VERSION
from dataflow.formats.loading import Positions, runs
from dataflow.formats.records import RecordDecoder, row_key
from dataflow.serial.dtypes import dtype_name, dtype_of

__all__ = ["HDF5Reader", "h5py_package"]

_AT_ONCE = 1 << 19  # bytes of neighbouring rows that are read together


def h5py_package() -> Any:
    """Return the package h5py.

    Raises:
        MissingExtra: The package h5py is not installed.
    """
    return optional("h5py", "hdf5", "HDF5 files need")


class HDF5Reader:
    """An open file.

    Args:
        path: The file.
        data_paths: The datasets; None means those named in a file of ours.
    """

    def __init__(self, path: str, data_paths: Sequence[str] | None) -> None:
        h5py = h5py_package()
        self.path = path
        self._h5py = h5py
        try:
            self._file = h5py.File(path, "r", locking=False)
        except OSError as error:
            raise self._damaged(error, "", os.path.getsize(path)) from error
        try:
            self._table, self._columns, self._num = self._open(data_paths)
        except (RuntimeError, OSError) as error:
            self._file.close()
            raise self._damaged(error, "") from error
        except BaseException:
            self._file.close()
            raise
        row_bytes = sum(stored.row_bytes for stored in self._columns)
        self._max = min(256, max(1, _AT_ONCE // max(1, row_bytes)))

    def _open(self, data_paths: Sequence[str] | None) -> tuple[ColumnTable, list[Any], int]:
        about = self._about()
        known: dict[str, Column] = {}
        table = ColumnTable("list", ())
        if about is not None:
            table = ColumnTable.from_json(about["table"])
            known = {column.name: column for column in table.columns}
        elif data_paths is None:
            raise ValueError(f"{self.path}: say which datasets to read, with data_paths=; there are {self._names()}")
        names = list(known) if data_paths is None else list(data_paths)
        stored: list[Any] = []
        lengths: dict[str, int] = {}
        for name in names:
            column = known.get(name)
            if column is not None and not column.is_record and not column.row_bytes:
                stored.append(_Empty(column))
                continue
            dataset = self._dataset(name)
            if column is not None and column.is_record:
                ends = self._dataset(name + ENDS)
                found = self.asked(lambda ends=ends: ends[:], name, 0, ends)
                stored.append(_H5Records(self, dataset, column, found, old=about["version"] == 1))
                lengths[name] = len(ends)
            else:
                stored.append(_H5Rows(self, dataset, column or self._foreign(name, dataset)))
                lengths[name] = len(dataset)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.path}: the datasets differ in length, so they are no rows: {lengths}")
        num = about["size"] if about is not None else next(iter(lengths.values()), 0)
        if about is not None and set(lengths.values()) - {num}:
            raise file_damaged(self.path, "", f"there are {lengths} rows, and {num} were written")
        if names == [column.name for column in table.columns]:
            return table, stored, num
        return ColumnTable("list", tuple(one.column for one in stored)), stored, num

    def _about(self) -> Any:
        try:
            if ABOUT not in self._file.attrs:
                return None
            about = json.loads(bytes(self._file.attrs[ABOUT]))
        except Exception as error:  # h5py raises many types
            raise file_damaged(self.path, "", f"what it says about itself cannot be read ({error})") from error
        try:
            check_version(about["version"], VERSION, about.get("checksum"))
        except Damaged as error:
            raise file_damaged(self.path, "", error.reason) from None
        return about

    def _dataset(self, name: str) -> Any:
        def find() -> Any:
            return self._file.get(name)

        dataset = self.asked(find, name)
        if not isinstance(dataset, self._h5py.Dataset):
            raise KeyError(f"there is no dataset {name!r} in {self.path}; there are {self._names()}")
        if not dataset.shape:
            raise ValueError(f"{self.path}: the dataset {name!r} has no rows (its shape is {dataset.shape})")
        return dataset

    def _names(self) -> list[str]:
        names: list[str] = []
        kind = self._h5py.Dataset
        self._file.visititems(lambda name, item: names.append(name) if isinstance(item, kind) else None)
        return names

    @staticmethod
    def _foreign(name: str, dataset: Any) -> Column:
        text = dtype_name(dataset.dtype)
        if text is None:
            return Column(name, "object", "", dataset.shape[1:])
        return Column(name, "array" if dataset.ndim > 1 else "scalar", text, dataset.shape[1:])

    def asked(self, ask: Any, name: str, row: int | None = None, dataset: Any = None) -> Any:
        """Return the result of `ask`; HDF5's exceptions become errors that name the place."""
        if not self._file:
            raise DataFlowTerminated(f"{self.path} was closed while it was being read")
        try:
            return ask()
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            if not self._file:
                raise DataFlowTerminated(f"{self.path} was closed while it was being read") from error
            place = f"dataset {name!r}" if row is None else f"dataset {name!r}, from row {row} on"
            raise self._damaged(error, place, self._offset(dataset, row)) from error

    def is_text(self, dataset: Any) -> bool:
        """Whether the rows of a dataset are text of any length."""
        return self._h5py.check_string_dtype(dataset.dtype) is not None

    def _offset(self, dataset: Any, row: int | None) -> int | None:
        """Return the first row of the chunk that contains this row."""
        try:
            place = [0] * dataset.ndim
            place[0] = row or 0
            found: int | None = dataset.id.get_chunk_info_by_coord(tuple(place)).byte_offset
        except Exception:  # it is not chunked, or the chunk index is damaged, too
            return None
        return found

    def _damaged(self, error: Exception, place: str, offset: int | None = None) -> Exception:
        if getattr(error, "errno", None):
            return error  # an error of the system: a file that may not be read, or a failing disk
        return file_damaged(self.path, place, f"HDF5 cannot read it ({error})", offset)

    def __len__(self) -> int:
        return self._num

    def close(self) -> None:
        self._file.close()

    def read(self, positions: Positions) -> Iterator[Any]:
        for first, end in runs(positions, self._max):
            columns = [stored.values(first, end) for stored in self._columns]
            rows = zip(*columns, strict=True) if columns else ((),) * (end - first)
            yield from map(self._table.datapoint, rows)


class _H5Rows:
    def __init__(self, reader: HDF5Reader, dataset: Any, column: Column) -> None:
        self.column = column
        self.row_bytes = column.row_bytes if column.dtype else 64
        self._reader = reader
        self._dataset = dataset
        self._dtype = dtype_of(column.dtype) if column.dtype else None
        self._text = dataset.dtype.kind == "O" and reader.is_text(dataset)

    def values(self, first: int, end: int) -> list[Any]:
        dataset, name = self._dataset, self.column.name
        source = dataset.asstr() if self._text else dataset
        rows = self._reader.asked(lambda: source[first:end], name, first, dataset)
        if self._dtype is None:
            return list(rows)
        if rows.dtype != self._dtype:  # stored as bytes
            rows = np.ascontiguousarray(rows).view(self._dtype).reshape(len(rows), *self.column.shape)
        elif rows.dtype.names:
            rows = rows.view(self._dtype)  # the same, except for alignment
        return self.column.values(rows)


class _H5Records:
    def __init__(
        self, reader: HDF5Reader, dataset: Any, column: Column, ends: NDArray[np.uint64], *, old: bool
    ) -> None:
        self.column = column
        self.row_bytes = int(ends[-1]) // len(ends) if len(ends) else 0
        self._reader = reader
        self._dataset = dataset
        self._ends = np.concatenate([np.zeros(1, np.uint64), ends])
        self._old = old

    def values(self, first: int, end: int) -> list[Any]:
        dataset, name = self._dataset, self.column.name
        ends = self._ends[first : end + 1].tolist()
        data = memoryview(self._reader.asked(lambda: dataset[ends[0] : ends[-1]], name, first, dataset))
        decode = RecordDecoder(self._reader.path, f"dataset {name!r}, row", foreign=False, old=self._old).decode
        return [
            decode(data[begin - ends[0] : after - ends[0]], k, key=row_key(k))[name]
            for k, (begin, after) in enumerate(pairwise(ends), start=first)
        ]


class _Empty:
    """Arrays without elements."""

    row_bytes = 0

    def __init__(self, column: Column) -> None:
        self.column = column

    def values(self, first: int, end: int) -> list[Any]:
        return self.column.values(np.zeros((end - first, *self.column.shape), dtype_of(self.column.dtype)))
