"""`HDF5Serializer` and `HDF5Data`: datapoints in an HDF5 file, a dataset for each component; also of other programs."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dataflow.errors import DataFlowTerminated
from dataflow.formats.checksums import ALGORITHM, file_damaged
from dataflow.formats.columns import (
    ENDS,
    Column,
    ColumnTable,
    RecordRows,
    RecordWriter,
    StoredColumn,
    TableWriter,
    check_num_rows,
)
from dataflow.formats.loading import DiskData, PathLike, Positions, Reader
from dataflow.formats.positional import Identity, PositionalFile
from dataflow.formats.saving import replacing, save_pass
from dataflow.protocol.base import DataFlow
from dataflow.system.descriptors import closed_on_error
from dataflow.system.extras import optional
from dataflow.transport.dtypes import dtype_name, dtype_of

__all__ = ["HDF5Data", "HDF5Serializer"]

_ABOUT = "dataflow"  # the attribute of the file that describes the datasets
_VERSION = 2  # of the files that are written and read
_CHUNK = 1 << 18  # bytes; HDF5 reads and verifies whole chunks
_MAX_CHUNK_ROWS = 1 << 14
_MAX_RATIO = 2000  # of compression; a dataset that claims more is no reason to lack memory


def _package() -> Any:
    return optional("h5py", "hdf5", "HDF5 files need")


class HDF5Data(DiskData[list[Any]]):
    """The rows of datasets of an HDF5 file, side by side: lists with one component for each dataset.

    Rows are read on demand, neighbouring rows together; no dataset is loaded as a whole.

    Args:
        filename: The file.
        data_paths: The datasets, such as ``["images", "labels"]``. None means all that `HDF5Serializer` has saved.
        shuffle: Draw a new order for every pass. This is random access, which is slow in datasets of large chunks:
            prefer `block_shuffle` there.
        block_shuffle: Rows per block: shuffle the blocks, and the rows inside each, instead of all at once.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        FileDamaged: The file was cut off or has changed.
        KeyError: There is no such dataset; lists the existing ones.
        ValueError: The datasets differ in length.
        MissingExtra: The package h5py is not installed.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    def __init__(
        self,
        filename: PathLike,
        data_paths: Sequence[str] | None = None,
        shuffle: bool = True,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> None:
        _package()
        super().__init__(filename, shuffle, block_shuffle=block_shuffle, seed=seed)
        if isinstance(data_paths, str):
            raise TypeError(f"data_paths must be a list of names of datasets, got the text {data_paths!r}")
        self.data_paths = None if data_paths is None else list(data_paths)

    def _df_open_reader(self) -> Reader:
        return _HDF5Reader(self.path, self.data_paths)


class HDF5Serializer:
    """Datapoints in an HDF5 file, which many other programs read.

    All datapoints must have the same components, arrays of the same dtype and shape. Text, bytes and containers may
    be of any length; other programs see them, and dtypes that HDF5 lacks, as bytes. Arrays come back in C order.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    @staticmethod
    def save(
        df: DataFlow,
        path: PathLike,
        data_paths: Sequence[str] | None = None,
        *,
        overwrite: bool = False,
        compress: str | None = None,
    ) -> None:
        """Write one pass of a flow, row by row.

        The file appears only when it is complete; until then an existing file stays unchanged.

        Args:
            df: The flow.
            path: The file to make.
            data_paths: Names of the datasets, one for each component. None means the keys of dicts, otherwise numbers.
            overwrite: Replace a file of that name.
            compress: A compression of HDF5: "gzip" or "lzf".

        Raises:
            FileExistsError: The file exists, and `overwrite` is false.
            NotStorable: A datapoint cannot be stored; names it and its component.
            OSError: For example, the disk is full. No partial file is left.
            MissingExtra: The package h5py is not installed.

        Example:
            >>> import os, tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = os.path.join(folder.name, "numbers.h5")
            >>> df = DataFromList([[k, np.full(2, k)] for k in range(3)], shuffle=False)
            >>> HDF5Serializer.save(df, path, ["label", "image"])
            >>> df = HDF5Serializer.load(path, ["label", "image"], shuffle=False)
            >>> len(df), df[1]
            (3, [1, array([1, 1])])
            >>> df.close(); folder.cleanup()
        """
        package = _package()
        with (
            replacing(os.fspath(path), overwrite=overwrite) as part,
            _writing(package, part, data_paths, compress) as writer,
        ):
            save_pass(df, "HDF5Serializer", lambda number, dp: writer.write(dp))

    @staticmethod
    def load(
        path: PathLike,
        data_paths: Sequence[str] | None = None,
        shuffle: bool = True,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> DataFlow:
        """Return a `HDF5Data` over an HDF5 file, which can be addressed; the parameters are the same."""
        return HDF5Data(path, data_paths, shuffle, block_shuffle=block_shuffle, seed=seed)


# -- reading -----------------------------------------------------------------------------------------------------------


class _HDF5Reader:
    """An open file; without `data_paths`, it must be one of ours, which names its datasets."""

    def __init__(self, path: str, data_paths: Sequence[str] | None) -> None:
        h5py = _package()
        self.path = path
        self._h5py = h5py
        with closed_on_error():
            self._watched = PositionalFile(path)
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

    def _open(self, data_paths: Sequence[str] | None) -> tuple[ColumnTable, list[StoredColumn], int]:
        """Return the form of the rows, their columns, and their number."""
        about = self._about()
        if about is not None:
            table, num, _ = ColumnTable.described(self.path, "", about, _VERSION)
        elif data_paths is not None:
            table, num = ColumnTable("list", ()), 0
        else:
            raise ValueError(f"{self.path}: say which datasets to read, with data_paths=; there are {self._names()}")
        ours = {column.name: column for column in table.columns}
        names = list(ours) if data_paths is None else list(data_paths)
        stored: list[StoredColumn] = []
        lengths: dict[str, int] = {}
        for name in names:
            if name in ours:
                stored.append(self._ours(ours[name], num))
                lengths[name] = num
            else:
                dataset = self._dataset(name, is_ours=False)
                stored.append(_DatasetRows(self, dataset, self._foreign(name, dataset)))
                lengths[name] = len(dataset)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.path}: the datasets differ in length, so they do not form rows: {lengths}")
        num = next(iter(lengths.values()), num)
        check_num_rows(self.path, num, (one.column for one in stored))
        if names != list(ours):
            table = ColumnTable("list", tuple(one.column for one in stored))
        return table, stored, num

    def _ours(self, column: Column, num: int) -> StoredColumn:
        """Return a column of a file of ours, if its datasets have the form and the number of rows of those written."""
        name = column.name
        if not column.is_record and not column.row_bytes:
            return _EmptyRows(column)
        dataset = ends = self._dataset(name, is_ours=True)
        if column.is_record:
            ends = self._dataset(name + ENDS, is_ours=True)
            self._check_form(name, dataset, (np.dtype(np.uint8), ()))
            self._check_form(name + ENDS, ends, *((np.dtype(order + "u8"), ()) for order in "<>"))
        else:
            as_bytes = np.dtype(np.uint8), (column.row_bytes,)
            self._check_form(name, dataset, (dtype_of(column.dtype), column.shape), as_bytes)
        place, size = f"dataset {name!r}", os.path.getsize(self.path)
        if len(ends) != num:
            raise file_damaged(self.path, place, f"there are {len(ends)} rows, and {num} were written")
        if ends.nbytes > _MAX_RATIO * size:  # rows that were never written are zeros, of any number
            raise file_damaged(self.path, place, f"it claims {ends.nbytes} bytes in a file of {size}")
        return self._records(dataset, column, ends) if column.is_record else _DatasetRows(self, dataset, column)

    def _check_form(self, name: str, dataset: Any, *forms: tuple[np.dtype[Any], tuple[int, ...]]) -> None:
        """Check that the rows of a dataset have one of the dtypes and shapes in which they are written."""
        found = self.asked(lambda: dataset.dtype, name), dataset.shape[1:]
        if found not in forms:
            raise file_damaged(self.path, f"dataset {name!r}", f"its rows are {found}, and {forms[0]} were written")

    def _records(self, dataset: Any, column: Column, ends: Any) -> RecordRows:
        found = self.asked(lambda: ends[:], column.name, 0, ends)

        def fetch(row: int, begin: int, end: int) -> Any:
            return self.asked(lambda: dataset[begin:end], column.name, row, dataset)

        return RecordRows(self.path, f"dataset {column.name!r}", column, found, len(dataset), fetch)

    def _about(self) -> bytes | None:
        """Return what the file says about its datasets, as JSON; None if it is a file of another program."""
        try:
            return bytes(self._file.attrs[_ABOUT]) if _ABOUT in self._file.attrs else None
        except Exception as error:  # h5py raises many types
            raise file_damaged(self.path, "", f"what it says about itself cannot be read ({error})") from error

    def _dataset(self, name: str, *, is_ours: bool) -> Any:
        dataset = self.asked(lambda: self._file.get(name), name)
        if not isinstance(dataset, self._h5py.Dataset):
            if is_ours:
                raise file_damaged(self.path, f"dataset {name!r}", f"it is missing; there are {self._names()}")
            raise KeyError(f"there is no dataset {name!r} in {self.path}; there are {self._names()}")
        if dataset.external or dataset.is_virtual or dataset.file.filename != self._file.filename:
            raise ValueError(
                f"{self.path}: the dataset {name!r} is stored in other files, which any file could name: copy it into "
                "one file (h5repack)"
            )
        if not dataset.shape and is_ours:
            raise file_damaged(self.path, f"dataset {name!r}", f"it has no rows (its shape is {dataset.shape})")
        if not dataset.shape:
            raise ValueError(f"{self.path}: the dataset {name!r} has no rows (its shape is {dataset.shape})")
        return dataset

    def _names(self) -> list[str]:
        names: list[str] = []
        kind = self._h5py.Dataset
        self._file.visititems(lambda name, item: names.append(name) if isinstance(item, kind) else None)
        return names

    def _foreign(self, name: str, dataset: Any) -> Column:
        text = dtype_name(self.asked(lambda: dataset.dtype, name))
        if text is None:
            return Column(name, "object", "", dataset.shape[1:])
        return Column(name, "array" if dataset.ndim > 1 else "scalar", text, dataset.shape[1:])

    def asked(self, ask: Callable[[], Any], name: str, row: int | None = None, dataset: Any = None) -> Any:
        """Return the result of `ask`; HDF5's exceptions become errors that name the place."""
        if not self._file:
            raise DataFlowTerminated(f"{self.path} was closed while it was being read")
        try:
            return ask()
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
            if not self._file:
                raise DataFlowTerminated(f"{self.path} was closed while it was being read") from error
            if isinstance(error, MemoryError) and dataset.nbytes <= _MAX_RATIO * os.path.getsize(self.path):
                raise
            place = f"dataset {name!r}" if row is None else f"dataset {name!r}, from row {row} on"
            raise self._damaged(error, place, self._offset(dataset, row)) from error

    def _offset(self, dataset: Any, row: int | None) -> int | None:
        """Return the offset of the chunk that contains this row, in bytes; None if that is unknown."""
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

    @property
    def identities(self) -> Sequence[Identity]:
        return [self._watched.identity]

    def __len__(self) -> int:
        return self._num

    def close(self) -> None:
        self._watched.close()
        self._file.close()

    def read(self, positions: Positions) -> Iterator[Any]:
        self._watched.require_unchanged()
        return self._table.read(self._columns, positions)


class _DatasetRows:
    """A dataset with a row for each datapoint."""

    def __init__(self, reader: _HDF5Reader, dataset: Any, column: Column) -> None:
        self.column = column
        self.row_bytes = column.row_bytes if column.dtype else 64
        self._reader = reader
        self._dataset = dataset
        self._dtype = dtype_of(column.dtype) if column.dtype else None
        self._text = dataset.dtype.kind == "O" and _package().check_string_dtype(dataset.dtype) is not None

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


class _EmptyRows:
    """Arrays without elements."""

    row_bytes = 0

    def __init__(self, column: Column) -> None:
        self.column = column

    def values(self, first: int, end: int) -> list[Any]:
        return self.column.values(np.zeros((end - first, *self.column.shape), dtype_of(self.column.dtype)))


# -- writing -----------------------------------------------------------------------------------------------------------


@contextmanager
def _writing(h5py: Any, path: str, names: Sequence[str] | None, compress: str | None) -> Iterator[_HDF5Writer]:
    """Context manager: return what writes datapoints. The file is complete after a normal exit.

    Each chunk has a checksum, and so have the newest versions of HDF5's own structures, which are used.
    """
    with _Disk(path) as disk, h5py.File(disk, "w", libver="latest") as file:
        disk.check()
        writer = _HDF5Writer(h5py, file, disk, names, compress)
        yield writer
        writer.finish()
    disk.check()


class _HDF5Writer:
    """Writes datapoints."""

    def __init__(self, h5py: Any, file: Any, disk: _Disk, names: Sequence[str] | None, compress: str | None) -> None:
        self._h5py = h5py
        self._file = file
        self._disk = disk
        self._compress = compress
        self._rows: TableWriter[_GrowingRows | _GrowingRecords] = TableWriter(self._growing, names)

    def write(self, dp: Any) -> None:
        """Write one datapoint."""
        self._rows.write(dp)
        self._disk.check()

    def finish(self) -> None:
        """Complete the file."""
        rows = self._rows
        rows.finish()
        about = {"version": _VERSION, "size": rows.num, "table": rows.table.to_json(), "checksum": ALGORITHM}
        self._file.attrs[_ABOUT] = np.bytes_(json.dumps(about).encode())
        self._file.flush()

    def _growing(self, column: Column) -> _GrowingRows | _GrowingRecords:
        if column.is_record:
            ends = self._dataset(column.name + ENDS, (), np.uint64)
            return _GrowingRecords(column, self._dataset(column.name, (), np.uint8), ends)
        dtype = dtype_of(column.dtype)
        if not column.row_bytes:  # only the number of rows has to be stored
            return _GrowingRows(column, None, is_native=True)
        if _is_native(self._h5py, dtype):
            return _GrowingRows(column, self._dataset(column.name, column.shape, dtype), is_native=True)
        return _GrowingRows(column, self._dataset(column.name, (column.row_bytes,), np.uint8), is_native=False)

    def _dataset(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Create a dataset without rows; `shape` is that of a row."""
        row_bytes = max(1, np.dtype(dtype).itemsize * math.prod(shape))
        num_rows = min(_MAX_CHUNK_ROWS, max(1, _CHUNK // row_bytes))
        return self._file.create_dataset(
            name,
            (0, *shape),
            dtype,
            maxshape=(None, *shape),
            chunks=(num_rows, *shape),
            fletcher32=True,
            compression=self._compress,
        )


def _is_native(h5py: Any, dtype: np.dtype[Any]) -> bool:
    """Whether HDF5 preserves this dtype; others are stored as bytes."""
    try:
        found = h5py.h5t.py_create(dtype, logical=True).dtype
        return dtype.itemsize > 0 and found == dtype and found.fields == dtype.fields
    except (TypeError, ValueError, NotImplementedError):
        return False


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

    def close(self) -> None:
        self._file.close()
        super().close()


class _GrowingRows:
    """Arrays or numbers that grow in a dataset, if they have bytes."""

    def __init__(self, column: Column, dataset: Any, *, is_native: bool) -> None:
        self._dtype = dtype_of(column.dtype)
        self._dataset = dataset
        self._is_native = is_native
        self._pending: list[Any] = []

    def write(self, value: Any) -> None:
        if self._dataset is None:
            return
        # A copy: the next datapoint may come in the same array.
        row = np.array(value, self._dtype, order="C")
        self._pending.append(row if self._is_native else np.frombuffer(row.tobytes(), np.uint8))
        if len(self._pending) >= self._dataset.chunks[0]:
            self.finish()

    def finish(self) -> None:
        if self._pending:
            _append(self._dataset, np.stack(self._pending))
            self._pending.clear()


class _GrowingRecords:
    """Records that grow in one dataset, and their ends in another."""

    def __init__(self, column: Column, dataset: Any, ends: Any) -> None:
        self._dataset = dataset
        self._ends = ends
        self._records = RecordWriter(column)
        self._pending = bytearray()

    def write(self, value: Any) -> None:
        self._pending += self._records.record(value)
        if len(self._pending) >= _CHUNK:
            self.finish()

    def finish(self) -> None:
        if self._pending:
            _append(self._dataset, np.frombuffer(bytes(self._pending), np.uint8))
            _append(self._ends, np.array(self._records.ends[len(self._ends) :], np.uint64))
            self._pending.clear()


def _append(dataset: Any, rows: Any) -> None:
    begin = dataset.shape[0]
    dataset.resize(begin + len(rows), axis=0)
    dataset[begin:] = rows
