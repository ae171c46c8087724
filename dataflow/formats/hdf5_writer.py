"""Writer of an HDF5 file."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from dataflow.formats.checksums import ALGORITHM
from dataflow.formats.columns import ENDS, Column, ColumnTable
from dataflow.formats.records import RecordEncoder, row_key
from dataflow.serial.dtypes import dtype_of

__all__ = ["ABOUT", "VERSION", "HDF5Writer", "is_native"]

ABOUT: Final = "dataflow"
"""The attribute of the file that describes the datasets."""

VERSION: Final = 2
"""Version of the files that are written; files of version 1, whose records have other checksums, can be read."""

_CHUNK = 1 << 18  # bytes; HDF5 reads and verifies whole chunks
_MAX_ROWS = 1 << 14  # of a chunk


def is_native(h5py: Any, dtype: np.dtype[Any]) -> bool:
    """Whether HDF5 preserves this dtype; others are stored as bytes."""
    try:
        found = h5py.h5t.py_create(dtype, logical=True).dtype
        return dtype.itemsize > 0 and found == dtype and found.fields == dtype.fields
    except (TypeError, ValueError, NotImplementedError):
        return False


class HDF5Writer:
    """Context manager that writes datapoints; at the end of the block the file is complete.

    Each chunk has a checksum, and so have the newest versions of HDF5's own structures, which are used.

    Args:
        h5py: The package.
        path: The file.
        names: Names of the datasets.
        compress: A compression of HDF5, or None.
    """

    def __init__(self, h5py: Any, path: str, names: Sequence[str] | None, compress: str | None) -> None:
        self._h5py = h5py
        self._path = path
        self._names = names
        self._compress = compress
        self._table = ColumnTable("list", ())
        self._growing: list[_Growing] = []
        self._num = 0

    def __enter__(self) -> Self:
        self._disk = _Disk(self._path)
        try:
            self._file = self._h5py.File(self._disk, "w", libver="latest")
            self._disk.check()
        except BaseException:
            self._disk.close()
            raise
        return self

    def write(self, dp: Any) -> None:
        """Write one datapoint.

        Raises:
            NotStorable: A component cannot be stored; names it.
        """
        if not self._num:
            self._table = ColumnTable.of(dp, self._names)
            self._growing = [self._begin(column) for column in self._table.columns]
        for growing, value in zip(self._growing, self._table.row(dp), strict=True):
            growing.write(value)
            self._disk.check()
        self._num += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._disk.close()
        if kind is None:
            self._disk.check()

    def _finish(self) -> None:
        for growing in self._growing:
            growing.finish()
        about = {"version": VERSION, "size": self._num, "table": self._table.to_json(), "checksum": ALGORITHM}
        self._file.attrs[ABOUT] = np.bytes_(json.dumps(about).encode())
        self._file.flush()

    def _begin(self, column: Column) -> _Growing:
        if column.is_record:
            return _Records(self, column)
        return _Rows(self, column)

    def dataset(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Create a dataset without rows; `shape` is that of a row."""
        row_bytes = max(1, np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)))
        num_rows = min(_MAX_ROWS, max(1, _CHUNK // row_bytes))
        return self._file.create_dataset(
            name,
            (0, *shape),
            dtype,
            maxshape=(None, *shape),
            chunks=(num_rows, *shape),
            fletcher32=True,
            compression=self._compress,
        )

    def is_native(self, dtype: np.dtype[Any]) -> bool:
        """Whether HDF5 preserves this dtype."""
        return is_native(self._h5py, dtype)


class _Disk(io.RawIOBase):
    """File object for HDF5 that never raises: HDF5 cannot handle an error, and would crash when the program ends.

    Rejected writes are kept in memory, so that HDF5 can finish; `check` raises the disk's error.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 (it has the life of this object)
        self._file.truncate(0)
        self._at = 0
        self._refused: dict[int, bytes] = {}  # by offset; later ones override earlier ones
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first error of the disk, if there was one."""
        if self._error is not None:
            raise OSError(self._error.errno, os.strerror(self._error.errno or 0), self._path) from self._error

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            self._file.seek(self._at)
            while done < len(view) and self._error is None:
                done += self._file.write(view[done:]) or 0
        except OSError as error:
            self._error = error
        if done < len(view):
            self._refused.pop(self._at + done, None)
            self._refused[self._at + done] = bytes(view[done:])
        self._at += len(view)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._at)
        count = self._file.readinto(view) or 0
        if self._refused:
            view[count:] = bytes(len(view) - count)
            count = len(view)
            for begin, data in self._refused.items():
                first, end = max(begin, self._at), min(begin + len(data), self._at + len(view))
                if first < end:
                    view[first - self._at : end - self._at] = data[first - begin : end - begin]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size()}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def _size(self) -> int:
        ends = (begin + len(data) for begin, data in self._refused.items())
        return max(os.fstat(self._file.fileno()).st_size, *ends, 0)

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        try:
            self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
        return size

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Growing:
    """A dataset that grows."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._pending: list[Any] = []

    def write(self, value: Any) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Write the buffered rows."""
        raise NotImplementedError

    def _append(self, dataset: Any, rows: Any) -> None:
        begin = dataset.shape[0]
        dataset.resize(begin + len(rows), axis=0)
        dataset[begin:] = rows


class _Rows(_Growing):
    def __init__(self, writer: HDF5Writer, column: Column) -> None:
        self._dtype = dtype_of(column.dtype)
        self._native = writer.is_native(self._dtype)
        shape = column.shape if self._native else (column.row_bytes,)
        self._empty = not column.row_bytes  # only the number of rows has to be stored
        super().__init__(
            None if self._empty else writer.dataset(column.name, shape, self._dtype if self._native else np.uint8)
        )

    def write(self, value: Any) -> None:
        if self._empty:
            return
        # A copy: the next datapoint may come in the same array.
        row = np.array(value, self._dtype, order="C")
        self._pending.append(row if self._native else np.frombuffer(row.tobytes(), np.uint8))
        if len(self._pending) >= self._dataset.chunks[0]:
            self.finish()

    def finish(self) -> None:
        if self._pending:
            self._append(self._dataset, np.stack(self._pending))
            self._pending.clear()


class _Records(_Growing):
    def __init__(self, writer: HDF5Writer, column: Column) -> None:
        super().__init__(writer.dataset(column.name, (), np.uint8))
        self._ends = writer.dataset(column.name + ENDS, (), np.uint64)
        self._name = column.name
        self._encode = RecordEncoder().encode
        self._new_ends: list[int] = []
        self._num = 0
        self._end = 0
        self._size = 0

    def write(self, value: Any) -> None:
        record = self._encode({self._name: value}, row_key(self._num))
        self._num += 1
        self._pending.append(record)
        self._size += len(record)
        self._end += len(record)
        self._new_ends.append(self._end)
        if self._size >= _CHUNK:
            self.finish()

    def finish(self) -> None:
        if self._pending:
            self._append(self._dataset, np.frombuffer(b"".join(self._pending), np.uint8))
            self._append(self._ends, np.array(self._new_ends, np.uint64))
            self._pending.clear()
            self._new_ends.clear()
            self._size = 0
