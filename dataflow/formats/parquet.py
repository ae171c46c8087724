"""Parquet files, read by row group."""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from dataflow.errors import FileDamaged
from dataflow.formats.arrow import TableColumn, arrow_column, check_columns, check_types, lies_in_nanoseconds
from dataflow.formats.checksums import file_damaged
from dataflow.formats.positional import Identity, UrlFile, changed_since, identity_of
from dataflow.system.extras import optional
from dataflow.system.urls import is_url, reporting_url
from dataflow.system.worker_info import worker_info

__all__ = ["ParquetFiles"]

_MAX_OPEN = 8  # files


class ParquetFiles:
    """Parquet files with the same columns, as one table whose parts are the row groups.

    Only the footers are read here: names and types of columns, and the number of rows.

    Args:
        paths: The files.
        columns: The columns to read; None reads all of the first file.
        skip: A file that is missing, has no valid footer or other columns is one part of one row, which `load` cannot
            read. At least one file must be readable.

    Raises:
        FileDamaged: A file has no valid footer.
        ValueError: A column is missing, or would lose something; columns of two files differ in type; or a later file
            has more columns. Names file and column.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, paths: Sequence[str], columns: Sequence[str] | None, *, skip: bool) -> None:
        self._parquet = optional("pyarrow.parquet", "tables", "parquet files need")
        self._arrow = optional("pyarrow", "tables", "parquet files need")
        self._paths = paths
        self._footers: dict[int, Any] = {}
        self._open: OrderedDict[int, tuple[Any, Any]] = OrderedDict()  # by file: the parquet file, and what it reads
        self._identities: dict[int, Identity] = {}  # by file, as its footer was read
        self._places: list[tuple[int, int]] = []  # of each part: the file, and its row group
        self._first_rows: list[int] = []  # of each part, in its file
        self.num_rows: list[int] = []
        """Rows of each part."""
        self._failed: dict[int, Exception] = {}  # by file: why it cannot be read at all
        self._columns = columns
        self._first = -1  # the first file that can be read, which has the types of all
        self._types: dict[str, Any] = {}
        try:
            for k in range(len(paths)):
                try:
                    self._add_file(k)
                except (FileNotFoundError, ValueError) as error:  # also FileDamaged: the same when it is tried again
                    if not skip:
                        raise
                    self._failed[k] = copy.copy(error)
                    self._add_part(k, 0, 0, 1)
            if self._first < 0:
                raise copy.copy(self._failed[0])
        except BaseException:
            self.close()
            raise
        self.columns = list(self._types)

    def _add_file(self, k: int) -> None:
        path = self._paths[k]
        with self._reporting(path, "its footer"):
            file = self._file(k)
            footer, schema = file.metadata, file.schema_arrow
        is_first = self._first < 0
        check_columns(path, self._columns if is_first else list(self._types), schema.names)
        if is_first:
            chosen = schema.names if self._columns is None else self._columns
            check_types(path, [schema.field(name) for name in chosen])
            self._first, self._types = k, {name: schema.field(name).type for name in chosen}
        elif self._columns is None and (more := [name for name in schema.names if name not in self._types]):
            raise ValueError(
                f"TableData: {path} has a column {more[0]!r}, which {self._paths[self._first]} has not: files of one "
                "table have the same columns. Name the ones to read in columns="
            )
        for name, kind in self._types.items():
            found = schema.field(name).type
            if found != kind:
                raise ValueError(
                    f"TableData: column {name!r} is {found} in {path}, and {kind} in {self._paths[self._first]}: files "
                    "of one table have the same types"
                )
        self._footers[k] = footer
        self._add_groups(k, footer)

    def _add_groups(self, k: int, footer: Any) -> None:
        first = 0
        for group in range(footer.num_row_groups):
            num = footer.row_group(group).num_rows
            self._add_part(k, group, first, num)
            first += num

    def _add_part(self, k: int, group: int, first: int, num: int) -> None:
        self._places.append((k, group))
        self._first_rows.append(first)
        self.num_rows.append(num)

    def load(self, number: int) -> tuple[dict[str, TableColumn], int]:
        """Read one part: its columns, and their size in bytes.

        Raises:
            FileDamaged: It cannot be decoded; names file, row group, and column.
            FileNotFoundError, ValueError: The file is one of those that were skipped.
        """
        k, group = self._places[number]
        if k in self._failed:
            raise copy.copy(self._failed[k])  # each time it is raised, it gets a traceback and a note
        first, num = self._first_rows[number], self.num_rows[number]
        place = f"row group {group} (rows {first} to {first + num - 1})"
        try:
            table = self._read(k, group, self.columns, place)
        except FileDamaged as error:
            damage = error
        else:
            self._check_times(k, group, place)
            return {name: arrow_column(table.column(name)) for name in self.columns}, table.nbytes
        for name in self.columns:
            self._read(k, group, [name], f"{place}, column {name!r}")  # raises for the column that is damaged
        raise damage

    def _read(self, k: int, group: int, columns: Sequence[str], place: str) -> Any:
        with self._reporting(self._paths[k], place):
            # Inside a worker, the other cores belong to the other workers.
            return self._file(k).read_row_group(group, columns=columns, use_threads=worker_info() is None)

    def _check_times(self, k: int, group: int, place: str) -> None:
        """Check the times of 96 bits, which Arrow reads as 64 bits of nanoseconds: others would be another time.

        Raises:
            FileDamaged: One is outside of their range; names file, row group, and column.
        """
        schema, path = self._footers[k].schema, self._paths[k]
        leaves = [schema.column(leaf) for leaf in range(len(schema))]
        times = [f"{leaf.path}." for leaf in leaves if leaf.physical_type == "INT96"]
        names = [name for name in self.columns if any(time.startswith(f"{name}.") for time in times)]
        if not names:
            return
        self._file(k)
        with self._reporting(path, place):
            file = self._parquet.ParquetFile(
                self._open[k][1], metadata=self._footers[k], coerce_int96_timestamp_unit="us"
            )
            table = file.read_row_group(group, columns=names, use_threads=worker_info() is None)
        for name in names:
            if not lies_in_nanoseconds(table.column(name)):
                raise FileDamaged(
                    f"{path}, {place}, column {name!r}: a time lies outside of the years 1677 to 2262, and times of "
                    "96 bits are read as nanoseconds, which have no others. Leave the column out with columns=, or use "
                    "pyarrow.parquet.read_table(path, coerce_int96_timestamp_unit='us')",
                    path=path,
                )

    def named(self, number: int) -> tuple[str, int]:
        """Return the file of a part, and the number of its first row there."""
        return self._paths[self._places[number][0]], self._first_rows[number]

    @property
    def identities(self) -> list[Identity]:
        """The state of each file, as its footer was read; empty for one that cannot be read."""
        return [self._identities.get(k, []) for k in range(len(self._paths))]

    def require_unchanged(self, numbers: Iterable[int]) -> None:
        """Check the files of these parts that are open; the others are checked when they are opened again.

        Raises:
            FileDamaged: One has changed since its footer was read.
        """
        for k in {self._places[number][0] for number in numbers} & self._open.keys():
            self._require(k, self._open[k][1])

    def _require(self, k: int, source: Any) -> None:
        if not is_url(self._paths[k]):
            found = identity_of(os.fstat(source.fileno()))
            if self._identities.setdefault(k, found) != found:
                raise changed_since(self._paths[k])

    def close(self) -> None:
        """Close the files. They are opened again when they are read."""
        while self._open:
            _close(*self._open.popitem()[1])

    def _file(self, k: int) -> Any:
        if k not in self._open:
            path = self._paths[k]
            footer = self._footers.get(k)
            source: Any
            if is_url(path):
                url = UrlFile(path)
                url.read(0, min(1, url.size))  # copies the file, if its server sends no parts
                if self._identities.setdefault(k, url.identity) != url.identity:
                    raise changed_since(path)
                source = url.stream()
                url.close()
            else:
                source = self._arrow.OSFile(path)
            try:
                self._require(k, source)
                self._open[k] = self._parquet.ParquetFile(source, metadata=footer), source
            except BaseException:
                source.close()
                raise
            while len(self._open) > _MAX_OPEN:
                _close(*self._open.popitem(last=False)[1])
        self._open.move_to_end(k)
        return self._open[k][0]

    @contextmanager
    def _reporting(self, path: str, place: str) -> Iterator[None]:
        with reporting_url(path) if is_url(path) else nullcontext():
            try:
                yield
            except FileDamaged:
                raise
            except (self._arrow.ArrowException, OSError) as error:
                is_of_arrow = isinstance(error, self._arrow.ArrowException)
                if not is_of_arrow and (is_url(path) or getattr(error, "errno", None) is not None):
                    raise  # about the system, not about the content
                reason = f"it cannot be decoded ({' '.join(str(error).split())})"
                raise file_damaged(path, place, reason) from error


def _close(file: Any, source: Any) -> None:
    file.close()
    source.close()
