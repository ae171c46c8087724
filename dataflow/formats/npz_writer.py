"""Writer of an npz file: columns grow in unnamed files, and are joined at the end."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any, Final, Self

import numpy as np

from dataflow.formats.checksums import ALGORITHM, checksum
from dataflow.formats.columns import ENDS, Column, ColumnTable
from dataflow.formats.records import RecordEncoder, row_key
from dataflow.serial.dtypes import dtype_of

__all__ = ["ABOUT", "MARK", "VERSION", "NpzWriter", "rows_per_block"]

ABOUT: Final = "dataflow.json"
"""The member of the archive that describes the arrays."""

MARK: Final = b"dataflow"
"""The comment of that member, which identifies it even if its name was damaged."""

VERSION: Final = 2
"""Version of the files that are written; files of version 1, whose checksums differ, can be read."""

_BLOCK = 1 << 18  # bytes that have one checksum


def rows_per_block(column: Column) -> int:
    """Number of rows of a column that share one checksum."""
    return max(1, _BLOCK // max(1, column.row_bytes))


class NpzWriter:
    """Context manager that writes datapoints; at the end of the block the file is complete.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.path.dirname(path)
        self._files = ExitStack()
        self._table = ColumnTable("list", ())
        self._growing: list[_GrowingColumn] = []
        self._num = 0

    def __enter__(self) -> Self:
        return self

    def write(self, dp: Any) -> None:
        """Write one datapoint.

        Raises:
            NotStorable: A component cannot be stored; names it.
        """
        if not self._num:
            self._table = ColumnTable.of(dp)
            for column in self._table.columns:
                file = self._files.enter_context(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115 (the stack closes it)
                self._growing.append(_RecordColumn(column, file) if column.is_record else _RowColumn(column, file))
        for growing, value in zip(self._growing, self._table.row(dp), strict=True):
            growing.write(value)
        self._num += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._files:
            if kind is None:
                self._join()

    def _join(self) -> None:
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            checksums = {}
            for column, growing in zip(self._table.columns, self._growing, strict=True):
                growing.finish()
                checksums[column.name] = growing.checksums.hex()
                with archive.open(f"{column.name}.npy", "w", force_zip64=True) as member:
                    _write_header(member, growing.dtype, growing.shape(self._num))
                    growing.file.seek(0)
                    shutil.copyfileobj(growing.file, member, 1 << 20)
                if isinstance(growing, _RecordColumn):
                    ends = np.array(growing.ends, np.uint64)
                    with archive.open(f"{column.name}{ENDS}.npy", "w", force_zip64=True) as member:
                        _write_header(member, ends.dtype, ends.shape)
                        member.write(ends.tobytes())
            about = {
                "version": VERSION,
                "size": self._num,
                "table": self._table.to_json(),
                "checksum": ALGORITHM,
                "checksums": checksums,
            }
            description = zipfile.ZipInfo(ABOUT)
            description.comment = MARK
            archive.writestr(description, json.dumps(about))


class _GrowingColumn:
    """A column that grows, and the checksums of its blocks."""

    def __init__(self, column: Column, file: IO[bytes]) -> None:
        self.file = file
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.checksums = bytearray()
        self._column = column

    def write(self, value: Any) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Write the buffered rows."""

    def shape(self, num: int) -> tuple[int, ...]:
        """Return the shape of the whole array."""
        raise NotImplementedError


class _RowColumn(_GrowingColumn):
    def __init__(self, column: Column, file: IO[bytes]) -> None:
        super().__init__(column, file)
        self.dtype = dtype_of(column.dtype)
        self._rows_per_block = rows_per_block(column)
        self._pending: list[bytes] = []

    def write(self, value: Any) -> None:
        self._pending.append(np.asarray(value, self.dtype).tobytes())
        if len(self._pending) == self._rows_per_block:
            self._flush()

    def finish(self) -> None:
        if self._pending:
            self._flush()

    def _flush(self) -> None:
        block = b"".join(self._pending)
        self._pending.clear()
        self.checksums += checksum(block).to_bytes(4, "little")
        self.file.write(block)

    def shape(self, num: int) -> tuple[int, ...]:
        return (num, *self._column.shape)


class _RecordColumn(_GrowingColumn):
    """Column of records, which have checksums of their own."""

    def __init__(self, column: Column, file: IO[bytes]) -> None:
        super().__init__(column, file)
        self.ends: list[int] = []
        self._encode = RecordEncoder().encode
        self._end = 0

    def write(self, value: Any) -> None:
        # As the component of a datapoint, so that an error names it.
        record = self._encode({self._column.name: value}, row_key(len(self.ends)))
        self.file.write(record)
        self._end += len(record)
        self.ends.append(self._end)

    def shape(self, num: int) -> tuple[int, ...]:
        return (self._end,)


def _write_header(member: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_2_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
