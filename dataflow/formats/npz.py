"""`NumpySerializer`: datapoints in an npz file, one array for each component, as `numpy.load` reads them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dataflow.errors import PickleRefused
from dataflow.formats.checksums import ALGORITHM, checksum, file_damaged
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
from dataflow.formats.loading import DiskData, PathLike, Positions, Reader, existing
from dataflow.formats.npy import FIXED_BYTES, MAGIC, NpyHeader, read_header, size_of_header
from dataflow.formats.positional import Identity, PositionalFile
from dataflow.formats.saving import replacing, save_pass
from dataflow.protocol.base import DataFlow
from dataflow.sources.in_memory import DataFromList
from dataflow.transport.dtypes import dtype_name, dtype_of
from dataflow.transport.message_layout import has_padding, without_padding

__all__ = ["NumpyData", "NumpySerializer"]

_ABOUT = "dataflow.json"  # the member of the archive that describes the arrays
_MARK = b"dataflow"  # the comment of that member, which identifies it even if its name was damaged
_VERSION = 2  # of the files that are written and read
_BLOCK = 1 << 18  # bytes that have one checksum
_CHECKSUM_BYTES = 4
_LOCAL_HEADER = 30  # bytes of the fixed part, before the name and the extra field of a member
_LOCAL_SIGNATURE = b"PK\3\4"
_CHUNK = 1 << 20
_COMPRESSED = "it was compressed after it had been written, so it can become larger than any memory; it begins"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError)  # raised by damaged members
_END = struct.Struct("<4sHHHHIIH")  # end of an archive, before its comment


def _rows_per_block(column: Column) -> int:
    return max(1, _BLOCK // max(1, column.row_bytes))


class NumpyData(DiskData):
    """The rows of the arrays of an npz file. `NumpySerializer.load` makes one."""

    def _df_open_reader(self) -> Reader:
        return _NpzReader(self.path)


class NumpySerializer:
    """Datapoints in an npz file: an array for each component.

    All datapoints must have the same components, arrays of the same dtype and shape. Text, bytes and containers may
    be of any length. Arrays come back in C order.

    Source:
        tensorpack.dataflow, whose class of this name it replaces. Its files are pickles.
    """

    @staticmethod
    def save(df: DataFlow, path: PathLike, *, overwrite: bool = False) -> None:
        """Write one pass of a flow, row by row.

        The file appears only when it is complete; until then an existing file stays unchanged. While it is being
        written, it takes twice its size on the disk.

        Args:
            df: The flow.
            path: The file to make.
            overwrite: Replace a file of that name.

        Raises:
            FileExistsError: The file exists, and `overwrite` is false.
            NotStorable: A datapoint cannot be stored; names it and its component.
            OSError: For example, the disk is full. No partial file is left.

        Example:
            >>> import os, tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = os.path.join(folder.name, "numbers.npz")
            >>> df = DataFromList([{"k": k, "x": np.full(2, k)} for k in range(3)], shuffle=False)
            >>> NumpySerializer.save(df, path)
            >>> df = NumpySerializer.load(path, shuffle=False)
            >>> len(df), df[1], np.load(path)["k"]
            (3, {'k': 1, 'x': array([1, 1])}, array([0, 1, 2]))
            >>> df.close(); folder.cleanup()
        """
        with replacing(path, overwrite=overwrite) as part, ExitStack() as files:
            folder = os.path.dirname(part)
            writer = TableWriter(
                lambda column: _growing(column, files.enter_context(tempfile.TemporaryFile(dir=folder)))
            )
            save_pass(df, "NumpySerializer", lambda number, dp: writer.write(dp))
            _join(writer, part)

    @staticmethod
    def load(
        path: PathLike,
        shuffle: bool = True,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
        pickle: bool = False,
    ) -> DataFlow:
        """Return a flow over an npz file, which can be addressed: rows are read from the file on demand.

        A file of another program gives dicts, with a row of each of its arrays; compressed arrays are
        decompressed to a temporary file when the flow is opened.

        Args:
            path: The file.
            shuffle: Draw a new order for every pass. This is random access.
            block_shuffle: Datapoints per block: shuffle the blocks, and the datapoints inside each, instead of all at
                once; the disk is then read in blocks.
            seed: Root seed for the order, instead of the one of `dataflow.seed`.
            pickle: Load arrays of Python objects, as in the files of tensorpack. They are in memory as a whole. A
                pickle can run any code: only for files from sources that you trust.

        Raises:
            FileDamaged: The file was cut off or has changed.
            PickleRefused: The file holds pickles.
            ValueError: The arrays differ in length, or one has no rows, or a dtype that datapoints cannot have; or the
                file holds one array, as numpy.save writes it.
        """
        arrays = _arrays_of_objects(existing(path)) if pickle else None
        if arrays is not None and block_shuffle is not None:
            raise ValueError(
                f"NumpySerializer.load: block_shuffle is for rows that are read from a disk, and the arrays of objects "
                f"in {path} are in memory as a whole: leave it out"
            )
        if arrays is not None:
            _check_rows(path, {name: array.shape for name, array in arrays.items()})
            lists: list[Any] = [[_row(row) for row in array] for array in arrays.values()]
            dps = lists[0] if len(lists) == 1 else [list(row) for row in zip(*lists, strict=True)]
            return DataFromList(dps, shuffle, seed=seed)
        return NumpyData(path, shuffle, block_shuffle=block_shuffle, seed=seed)


def _row(row: Any) -> Any:
    """Return a datapoint of tensorpack: if all components have the same length, numpy has made one array of them."""
    return list(row) if isinstance(row, np.ndarray) and row.dtype.hasobject else row


# -- reading -----------------------------------------------------------------------------------------------------------


class _NpzReader:
    """An open file.

    Each block of rows is verified when it is read for the first time; arrays of other programs' files, as a whole, when
    the file is opened.
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
            check_num_rows(path, self._num, self._table.columns)
            self._files = files.pop_all()

    @property
    def identities(self) -> Sequence[Identity]:
        return [self._file.identity]

    def __len__(self) -> int:
        return self._num

    def close(self) -> None:
        self._files.close()

    def read(self, positions: Positions) -> Iterator[Any]:
        self._file.require_unchanged()
        return self._table.read(self._columns, positions)

    def _ours(self, archive: zipfile.ZipFile, text: bytes) -> tuple[ColumnTable, int, list[StoredColumn]]:
        table, num, about = ColumnTable.described(self._path, _ABOUT, text, _VERSION)
        columns: list[StoredColumn] = []
        for column in table.columns:
            begin, end = self._elements(self._member(archive, f"{column.name}.npy"))
            if column.is_record:
                member = self._member(archive, f"{column.name}{ENDS}.npy")
                self._elements(member)
                _header(self._path, archive, member)  # numpy would parse any
                ends = _read_array(self._path, archive, f"{column.name}{ENDS}.npy")
                if ends.shape != (num,) or ends.dtype.kind != "u":
                    raise file_damaged(self._path, f"array {column.name + ENDS!r}", f"it has not {num} numbers")
                columns.append(self._records(column, begin, end, ends))
            else:
                summed = self._checksums(about, column, num)
                if end - begin != num * column.row_bytes:
                    reason = f"it has {end - begin} bytes, which are not {num} rows of {column.row_bytes}; they begin"
                    raise file_damaged(self._path, f"array {column.name!r}", reason, begin)
                columns.append(_StoredRows(self._file, column, begin, num, summed))
        return table, num, columns

    def _elements(self, member: zipfile.ZipInfo) -> tuple[int, int]:
        """Return the offset of the elements of an array that is not compressed, and that of their end."""
        place, begin = f"array {member.filename!r}", self._data_offset(member)
        if member.compress_type != zipfile.ZIP_STORED:
            raise file_damaged(self._path, place, _COMPRESSED, begin)
        end = begin + member.file_size
        if end > self._file.size:
            raise file_damaged(self._path, place, f"it would end at byte {end}, behind the end", self._file.size)
        try:
            return begin + size_of_header(bytes(self._file.read(begin, min(FIXED_BYTES, end - begin)))), end
        except ValueError as error:
            raise file_damaged(self._path, place, f"its header cannot be read ({error})", begin) from error

    def _checksums(self, about: Any, column: Column, num: int) -> bytes:
        try:
            summed = bytes.fromhex(about["checksums"][column.name])
            if len(summed) != _CHECKSUM_BYTES * -(-num // _rows_per_block(column)):
                raise ValueError(f"{len(summed)} bytes of checksums")
        except (KeyError, TypeError, ValueError) as error:
            place = f"{_ABOUT}, array {column.name!r}"
            raise file_damaged(self._path, place, f"its checksums cannot be read ({error})") from error
        return summed

    def _records(self, column: Column, offset: int, after: int, ends: NDArray[np.uint64]) -> RecordRows:
        place = f"array {column.name!r}"

        def fetch(_: int, begin: int, end: int) -> Any:
            return self._file.read(offset + begin, end - begin, place)

        return RecordRows(self._path, place, column, ends, after - offset, fetch, offset=offset)

    def _foreign(self, archive: zipfile.ZipFile, files: ExitStack) -> tuple[ColumnTable, int, list[StoredColumn]]:
        columns: list[StoredColumn] = []
        shapes: dict[str, tuple[int, ...]] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                _check_name(self._path, archive, member)
                continue
            if name in shapes:
                raise file_damaged(self._path, f"array {name!r}", "there are two of this name", member.header_offset)
            header = _header(self._path, archive, member)
            if header.dtype.hasobject:
                raise PickleRefused(
                    f"{self._path}: the array {name!r} holds Python objects, which are pickled, and unpickling can run "
                    "any code. If you trust the source of the file, load it with pickle=True"
                )
            shapes[name] = header.shape
            columns.append(self._foreign_column(archive, member, name, header, files))
        num = _check_rows(self._path, shapes)
        return ColumnTable("dict", tuple(stored.column for stored in columns)), num, columns

    def _foreign_column(
        self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, header: NpyHeader, files: ExitStack
    ) -> _StoredRows:
        column, num = _foreign_column(self._path, name, header), sum(header.shape[:1])
        file, begin, is_fortran = self._file, header.size, header.is_fortran
        if member.compress_type == zipfile.ZIP_STORED and not is_fortran:
            begin += self._data_offset(member)
            end = begin - header.size + member.file_size
            _verify(file, member, end)
        else:
            # Rows are read from a disk, so it is written to one: to an unnamed file, which cannot be left behind.
            spool = files.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115 (the stack closes it)
            if is_fortran:
                spool.write(_read_array(self._path, archive, member.filename).tobytes())
                begin = 0
            else:
                _decompress(self._path, archive, member, spool)
            spool.flush()
            file = PositionalFile(spool.name)
            files.callback(file.close)
            end = file.size
        if begin + header.nbytes > end:
            reason = f"it has {end - begin} of {header.nbytes} bytes; it begins"
            raise file_damaged(self._path, f"array {name!r}", reason, member.header_offset)
        return _StoredRows(file, column, begin, num)

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
    ) -> None:
        self.column = column
        self.row_bytes = column.row_bytes
        self._file = file
        self._offset = offset
        self._num = num
        self._dtype = dtype_of(column.dtype)
        self._checksums = np.frombuffer(checksums, "<u4")
        self._rows_per_block = _rows_per_block(column)
        self._verified = bytearray(len(self._checksums))

    def values(self, first: int, end: int) -> list[Any]:
        per_block = self._rows_per_block
        begin_block, end_block = first // per_block, (end - 1) // per_block + 1
        if self._verified.find(0, begin_block, end_block) < 0:
            return self.column.values(self._rows(first, end))
        begin = begin_block * per_block
        rows = self._rows(begin, min(end_block * per_block, self._num))
        for block in range(begin_block, end_block):
            at = block * per_block - begin
            self._verify(block, rows[at : at + per_block])
        return self.column.values(rows[first - begin : end - begin])

    def _rows(self, first: int, end: int) -> NDArray[Any]:
        rows: NDArray[Any] = np.empty((end - first, *self.column.shape), self._dtype)
        if rows.nbytes:
            at = self._offset + first * self.row_bytes
            place = f"array {self.column.name!r}, rows {first} to {end - 1}"
            self._file.read_into(rows.reshape(-1).view(np.uint8), at, place)
        return rows

    def _verify(self, block: int, rows: NDArray[Any]) -> None:
        data = rows.reshape(-1).view(np.uint8) if rows.nbytes else b""
        if checksum(data) != self._checksums[block]:
            first = block * self._rows_per_block
            place = f"array {self.column.name!r}, rows {first} to {first + len(rows) - 1}"
            at = self._offset + first * self.row_bytes
            raise file_damaged(self._file.path, place, "the checksum does not match the content, which begins", at)
        self._verified[block] = 1


# -- archives ----------------------------------------------------------------------------------------------------------


def _arrays_of_objects(path: str) -> dict[str, Any] | None:
    """Return all arrays of a file, unpickled, if any holds Python objects; otherwise None."""
    file = PositionalFile(path)
    try:
        with _archive(file) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            if not any(_header(path, archive, member).dtype.hasobject for member in members):
                return None
            names = [member.filename for member in members]
            return {name.removesuffix(".npy"): _read_array(path, archive, name, pickled=True) for name in names}
    finally:
        file.close()


def _name_in_archive(member: zipfile.ZipInfo) -> bytes:
    """Return the name of a member, as its header has it: UTF-8 if a flag says so."""
    return member.orig_filename.encode("utf-8" if member.flag_bits & 0x800 else "cp437")


@contextmanager
def _archive(file: PositionalFile) -> Iterator[zipfile.ZipFile]:
    with file.stream() as stream, _open(file, stream) as archive:
        yield archive


def _open(file: PositionalFile, stream: IO[bytes]) -> zipfile.ZipFile:
    path, size = file.path, file.size
    try:
        archive = zipfile.ZipFile(stream)
    # If bytes are missing, the computed offsets are negative.
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        if bytes(file.read(0, min(len(MAGIC), size))) == MAGIC:
            raise ValueError(
                f"{path} is an npy file, which holds one array, and not an npz file: pass the array to TableData, "
                f"as in TableData({{'x': numpy.load({path!r}, mmap_mode='r')}}), or save it by numpy.savez"
            ) from None
        raise file_damaged(path, "", f"this is not a complete archive ({error}): it ends", size) from error
    # A damaged length in the directory swallows the entries behind it, and zipfile does not count them.
    found = len(archive.infolist())
    begin = size - _END.size - len(archive.comment)
    signature, _, _, _, num, *_ = _END.unpack(file.read(begin, _END.size))
    if signature != b"PK\5\6":
        raise file_damaged(path, "", "the archive ends before the file, which ends", size)
    if num not in {found, 0xFFFF}:
        raise file_damaged(path, "", f"there are {found} arrays, and there were {num}", size)
    if not found and begin:  # zipfile finds nothing where the last bytes of an archive are zero
        raise file_damaged(path, "", f"the archive is empty, and there are {begin} bytes before its end,", begin)
    return archive


def _about(path: str, archive: zipfile.ZipFile) -> bytes | None:
    """Return what a file says about its arrays, as JSON; None if it is a file of another program."""
    if _ABOUT not in archive.namelist():
        if any(member.comment == _MARK for member in archive.infolist()):
            raise file_damaged(path, _ABOUT, "it is missing")
        return None
    about = archive.getinfo(_ABOUT)
    if about.compress_type != zipfile.ZIP_STORED:
        raise file_damaged(path, _ABOUT, _COMPRESSED, about.header_offset)
    try:
        return archive.read(_ABOUT)
    except Exception as error:
        raise file_damaged(path, _ABOUT, str(error), about.header_offset) from error


def _check_name(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Check that a member has the name that the directory says: otherwise it may be that of a file of ours."""
    try:
        with suppress(NotImplementedError, RuntimeError), archive.open(member):  # of a kind that zipfile cannot read
            pass
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of the system; this one is about the offset
            raise
        raise file_damaged(path, f"member {member.filename!r}", str(error), member.header_offset) from error


def _header(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NpyHeader:
    try:
        with archive.open(member) as file:
            return read_header(file)
    except Exception as error:  # zipfile and numpy raise many types for damaged headers
        place = f"array {member.filename!r}"
        raise file_damaged(path, place, f"its header cannot be read ({error})", member.header_offset) from error


def _foreign_column(path: str, name: str, header: NpyHeader) -> Column:
    """Return the column for an array of another program, which may have a dtype that datapoints cannot have."""
    text, shape = dtype_name(header.dtype), header.shape[1:]
    column = Column(name, "array" if shape else "scalar", text or "", shape)
    try:
        if text is not None and column.is_valid():
            return column
    except ValueError as error:
        raise file_damaged(path, f"array {name!r}", f"its shape is {header.shape} ({error})") from error
    raise ValueError(
        f"{path}: the array {name!r} has the dtype {header.dtype}, which datapoints cannot have: leave it out, or "
        "convert it"
    )


def _check_rows(path: PathLike, shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the number of rows that all arrays of these shapes have."""
    for name, shape in shapes.items():
        if not shape:
            raise ValueError(f"{path}: the array {name!r} has no rows (its shape is ())")
    lengths = {name: shape[0] for name, shape in shapes.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: the arrays differ in length, so they do not form rows: {lengths}")
    return next(iter(lengths.values()), 0)


def _decompress(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: IO[bytes]) -> None:
    with archive.open(member) as packed:
        while True:
            try:
                piece = packed.read(_CHUNK)
            except Exception as error:  # the packages for compression raise many types
                if isinstance(error, OSError) and error.errno:  # of the system
                    raise
                place = f"array {member.filename.removesuffix('.npy')!r}"
                raise file_damaged(path, place, f"it cannot be decompressed ({error})", member.header_offset) from error
            if not piece:
                return
            target.write(piece)


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


# -- writing -----------------------------------------------------------------------------------------------------------


def _growing(column: Column, file: IO[bytes]) -> _RowColumn | _RecordColumn:
    return _RecordColumn(column, file) if column.is_record else _RowColumn(column, file)


class _RowColumn:
    """Arrays or numbers that grow in a file, and the checksums of their blocks."""

    def __init__(self, column: Column, file: IO[bytes]) -> None:
        self.file = file
        self.dtype = dtype_of(column.dtype)
        self.checksums = bytearray()
        self._rows_per_block = _rows_per_block(column)
        self._has_padding = has_padding(self.dtype)
        self._pending: list[bytes] = []

    def write(self, value: Any) -> None:
        row = np.asarray(value, self.dtype)
        self._pending.append((without_padding(row, "C") if self._has_padding else row).tobytes())
        if len(self._pending) == self._rows_per_block:
            self.finish()

    def finish(self) -> None:
        if self._pending:
            block = b"".join(self._pending)
            self._pending.clear()
            self.checksums += checksum(block).to_bytes(4, "little")
            self.file.write(block)


class _RecordColumn:
    """Records, which have checksums of their own."""

    def __init__(self, column: Column, file: IO[bytes]) -> None:
        self.file = file
        self.dtype = np.dtype(np.uint8)
        self.checksums = b""
        self._records = RecordWriter(column)

    def write(self, value: Any) -> None:
        self.file.write(self._records.record(value))

    def finish(self) -> None:
        pass

    @property
    def ends(self) -> NDArray[np.uint64]:
        """The end of each record."""
        return np.array(self._records.ends, np.uint64)


def _join(writer: TableWriter[_RowColumn | _RecordColumn], path: str) -> None:
    """Put the columns, and what describes them, into one archive."""
    writer.finish()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for column, growing in zip(writer.table.columns, writer.columns, strict=True):
            ends = growing.ends if isinstance(growing, _RecordColumn) else None
            header = {
                "descr": np.lib.format.dtype_to_descr(growing.dtype),
                "fortran_order": False,
                "shape": (writer.num, *column.shape) if ends is None else (int(ends[-1]),),
            }
            with archive.open(f"{column.name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_2_0(member, header)
                growing.file.seek(0)
                shutil.copyfileobj(growing.file, member, _CHUNK)
            if ends is not None:
                with archive.open(f"{column.name}{ENDS}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, ends, version=(2, 0))
        columns = zip(writer.table.columns, writer.columns, strict=True)
        about = {
            "version": _VERSION,
            "size": writer.num,
            "table": writer.table.to_json(),
            "checksum": ALGORITHM,
            "checksums": {column.name: growing.checksums.hex() for column, growing in columns},
        }
        description = zipfile.ZipInfo(_ABOUT)
        description.comment = _MARK
        archive.writestr(description, json.dumps(about))
