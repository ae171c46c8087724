"""Reader of an npz file: its arrays are read row by row, directly from the archive."""

from __future__ import annotations

import errno
import json
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import PickleRefused
from dataflow.formats.checksums import check_version, checksum_of
from dataflow.formats.columns import ENDS, Column, ColumnTable
from dataflow.formats.damage import Damaged, file_damaged
from dataflow.formats.loading import Positions, runs
from dataflow.formats.npz_writer import ABOUT, MARK, VERSION, rows_per_block
from dataflow.formats.positional import PositionalFile
from dataflow.formats.records import RecordDecoder, row_key
from dataflow.serial.dtypes import dtype_name, dtype_of

__all__ = ["NpzReader", "arrays_of_objects"]

_AT_ONCE = 1 << 19  # bytes of neighbouring rows that are read together
_LOCAL_HEADER = 30  # bytes of the fixed part, before the name and the extra field of a member
_LOCAL_SIGNATURE = b"PK\3\4"
_CHUNK = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError)  # raised by damaged members
_END = struct.Struct("<4sHHHHIIH")  # end of an archive, before its comment


class NpzReader:
    """An open file.

    Each block of rows is verified when it is read for the first time; arrays of other programs' files, as a whole, when
    the file is opened.

    Args:
        path: The file.

    Raises:
        FileDamaged: It is not an archive, or was cut off, or a checksum does not match.
        PickleRefused: An array holds Python objects.
        ValueError: The arrays differ in length, or have none.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with ExitStack() as files:
            self._file = PositionalFile(path)
            files.callback(self._file.close)
            with _archive(self._file) as archive:
                about = _about(path, archive)
                if about is None:
                    self._table, self._num, self._columns = self._foreign(archive, files)
                else:
                    self._table, self._num, self._columns = self._ours(archive, about)
            self._files = files.pop_all()
        row_bytes = sum(column.row_bytes for column in self._table.columns)
        self._max = max(1, _AT_ONCE // max(1, row_bytes))

    def __len__(self) -> int:
        return self._num

    def close(self) -> None:
        self._files.close()

    def read(self, positions: Positions) -> Iterator[Any]:
        for first, end in runs(positions, min(self._max, 256)):
            columns = [column.values(first, end) for column in self._columns]
            rows = zip(*columns, strict=True) if columns else ((),) * (end - first)
            yield from map(self._table.datapoint, rows)

    def _ours(self, archive: zipfile.ZipFile, about: Any) -> tuple[ColumnTable, int, list[Any]]:
        version, algorithm = about["version"], about.get("checksum")
        try:
            check_version(version, VERSION, algorithm)
        except Damaged as error:
            raise file_damaged(self._path, ABOUT, error.reason) from None
        table, num = ColumnTable.from_json(about["table"]), about["size"]
        columns: list[Any] = []
        for column in table.columns:
            member = self._member(archive, f"{column.name}.npy")
            end = self._data_offset(member) + member.file_size
            if column.is_record:
                ends = _read_array(self._path, archive, f"{column.name}{ENDS}.npy")
                begin = end - int(ends[-1]) if num else end
                columns.append(_StoredRecords(self._file, column, begin, ends, old=version == 1))
            else:
                summed = bytes.fromhex(about["checksums"][column.name])
                begin = end - num * column.row_bytes
                columns.append(_StoredRows(self._file, column, begin, num, summed, checksum_of(algorithm)))
        return table, num, columns

    def _foreign(self, archive: zipfile.ZipFile, files: ExitStack) -> tuple[ColumnTable, int, list[Any]]:
        columns: list[Any] = []
        lengths: dict[str, int] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                continue
            shape, fortran, dtype = _header(self._path, archive, member)
            text = dtype_name(dtype)
            if text is None:
                raise PickleRefused(
                    f"{self._path}: the array {name!r} holds Python objects, which are pickled, and unpickling can run "
                    "any code. If you trust whoever wrote the file, load it with pickle=True"
                )
            if not shape:
                raise ValueError(f"{self._path}: the array {name!r} has no rows (its shape is ())")
            lengths[name] = shape[0]
            column = Column(name, "array" if len(shape) > 1 else "scalar", text, tuple(shape[1:]))
            columns.append(self._foreign_column(archive, member, column, shape, fortran, files))
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self._path}: the arrays differ in length, so they are no rows: {lengths}")
        table = ColumnTable("dict", tuple(stored.column for stored in columns))
        return table, next(iter(lengths.values()), 0), columns

    def _foreign_column(
        self,
        archive: zipfile.ZipFile,
        member: zipfile.ZipInfo,
        column: Column,
        shape: Any,
        fortran: bool,
        files: ExitStack,
    ) -> _StoredRows:
        size = shape[0] * column.row_bytes
        if member.compress_type == zipfile.ZIP_STORED and not fortran:
            end = self._data_offset(member) + member.file_size
            _verify(self._file, member, end)
            return _StoredRows(self._file, column, end - size, shape[0])
        # Rows are read from a disk, so it is written to one: to an unnamed file, which cannot be left behind.
        spool = files.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115 (the stack closes it)
        if fortran:
            spool.write(_read_array(self._path, archive, member.filename).tobytes())
        else:
            with archive.open(member) as packed:
                try:
                    shutil.copyfileobj(packed, spool, _CHUNK)
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise file_damaged(
                        self._path, f"array {column.name!r}", str(error), member.header_offset
                    ) from error
        spool.flush()
        file = PositionalFile(spool.name)
        files.callback(file.close)
        return _StoredRows(file, column, file.size - size, shape[0])

    def _member(self, archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
        try:
            return archive.getinfo(name)
        except KeyError:
            raise file_damaged(self._path, f"array {name!r}", "it is missing") from None

    def _data_offset(self, member: zipfile.ZipInfo) -> int:
        place, begin = f"array {member.filename!r}", member.header_offset
        header = self._file.read(begin, _LOCAL_HEADER, place)
        name_size, extra_size = np.frombuffer(header, "<u2", 2, _LOCAL_HEADER - 4).tolist()
        name = self._file.read(begin + _LOCAL_HEADER, name_size, place)
        if bytes(header[:4]) != _LOCAL_SIGNATURE or bytes(name) != _name_in_archive(member):
            raise file_damaged(self._path, place, "it does not begin where the directory of the archive says,", begin)
        return begin + _LOCAL_HEADER + int(name_size + extra_size)


class _StoredRows:
    """Reader of one array's rows."""

    def __init__(
        self,
        file: PositionalFile,
        column: Column,
        offset: int,
        num: int,
        checksums: bytes = b"",
        compute: Callable[..., int] = zlib.crc32,
    ) -> None:
        self.column = column
        self._file = file
        self._offset = offset
        self._num = num
        self._dtype = dtype_of(column.dtype)
        self._checksums = np.frombuffer(checksums, "<u4")
        self._compute = compute
        self._rows_per_block = rows_per_block(column)
        self._verified = bytearray(len(self._checksums))

    def values(self, first: int, end: int) -> list[Any]:
        for block in range(first // self._rows_per_block, (end - 1) // self._rows_per_block + 1):
            if len(self._checksums) and not self._verified[block]:
                self._verify(block)
        rows: NDArray[Any] = np.empty((end - first, *self.column.shape), self._dtype)
        if rows.nbytes:
            at = self._offset + first * self.column.row_bytes
            self._file.read_into(rows.reshape(-1).view(np.uint8), at, f"array {self.column.name!r}")
        return self.column.values(rows)

    def _verify(self, block: int) -> None:
        first = block * self._rows_per_block
        end = min(first + self._rows_per_block, self._num)
        at = self._offset + first * self.column.row_bytes
        place = f"array {self.column.name!r}, rows {first} to {end - 1}"
        if self._compute(self._file.read(at, (end - first) * self.column.row_bytes, place)) != self._checksums[block]:
            raise file_damaged(self._file.path, place, "the checksum does not match the content, which begins", at)
        self._verified[block] = 1


class _StoredRecords:
    """Reader of a column of records."""

    def __init__(
        self, file: PositionalFile, column: Column, offset: int, ends: NDArray[np.uint64], *, old: bool
    ) -> None:
        self.column = column
        self._file = file
        self._offset = offset
        self._ends = np.concatenate([np.zeros(1, np.uint64), ends])
        self._old = old

    def values(self, first: int, end: int) -> list[Any]:
        name = self.column.name
        ends = self._ends[first : end + 1].tolist()
        data = memoryview(self._file.read(self._offset + ends[0], ends[-1] - ends[0], f"array {name!r}"))
        decode = RecordDecoder(self._file.path, f"array {name!r}, row", foreign=False, old=self._old).decode
        return [
            decode(data[begin - ends[0] : after - ends[0]], k, self._offset + begin, key=row_key(k))[name]
            for k, (begin, after) in enumerate(pairwise(ends), start=first)
        ]


# -- archives ----------------------------------------------------------------------------------------------------------


def arrays_of_objects(path: str) -> dict[str, Any] | None:
    """Return all arrays of a file, unpickled, if any holds Python objects; otherwise None."""
    file = PositionalFile(path)
    try:
        with _archive(file) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            if not any(_header(path, archive, member)[2].hasobject for member in members):
                return None
            names = [member.filename for member in members]
            return {name.removesuffix(".npy"): _read_array(path, archive, name, pickled=True) for name in names}
    finally:
        file.close()


def _name_in_archive(member: zipfile.ZipInfo) -> bytes:
    """Return the name of a member, as its header has it: UTF-8 if a flag says so."""
    return member.orig_filename.encode("utf-8" if member.flag_bits & 0x800 else "cp437")


def _archive(file: PositionalFile) -> zipfile.ZipFile:
    path, size = file.path, file.size
    try:
        archive = zipfile.ZipFile(file.stream())
    # If bytes are missing, the computed offsets are negative.
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise file_damaged(path, "", f"this is no whole archive ({error}): it ends", size) from error
    # A damaged length in the directory swallows the entries behind it, and zipfile does not count them.
    found = len(archive.infolist())
    begin = size - _END.size - len(archive.comment)
    signature, _, _, _, num, *_ = _END.unpack(file.read(begin, _END.size))
    if signature != b"PK\5\6":
        raise file_damaged(path, "", "the archive ends before the file, which ends", size)
    if num not in {found, 0xFFFF}:
        raise file_damaged(path, "", f"there are {found} arrays, and there were {num}", size)
    return archive


def _about(path: str, archive: zipfile.ZipFile) -> Any:
    if ABOUT not in archive.namelist():
        if any(member.comment == MARK for member in archive.infolist()):
            raise file_damaged(path, ABOUT, "it is missing")
        return None
    try:
        return json.loads(archive.read(ABOUT))
    except Exception as error:
        raise file_damaged(path, ABOUT, str(error), archive.getinfo(ABOUT).header_offset) from error


def _header(
    path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            return read(file)
    except Exception as error:  # zipfile and numpy raise many types for damaged headers
        place = f"array {member.filename!r}"
        raise file_damaged(path, place, f"its header cannot be read ({error})", member.header_offset) from error


def _read_array(path: str, archive: zipfile.ZipFile, name: str, *, pickled: bool = False) -> NDArray[Any]:
    try:
        with archive.open(name) as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=pickled)
            while file.read(_CHUNK):  # to the end, where zipfile verifies its checksum
                pass
            return array
    except Exception as error:
        if pickled and not isinstance(error, _DAMAGE):
            raise  # from what was unpickled
        raise file_damaged(path, f"array {name!r}", str(error)) from error


def _verify(file: PositionalFile, member: zipfile.ZipInfo, end: int) -> None:
    at, summed = end - member.file_size, 0
    while at < end:
        size = min(_CHUNK, end - at)
        summed = zlib.crc32(file.read(at, size, member.filename), summed)
        at += size
    if summed != member.CRC:
        place = f"array {member.filename!r}"
        raise file_damaged(file.path, place, "its checksum does not match; it begins", end - member.file_size)
