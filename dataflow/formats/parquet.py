"""Parquet files, read by row group."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from dataflow.errors import FileDamaged
from dataflow.extras import optional
from dataflow.formats.arrow import TableColumn, arrow_column
from dataflow.formats.checksums import file_damaged
from dataflow.formats.positional import UrlFile
from dataflow.urls import is_url, reporting_url
from dataflow.workers.info import worker_info

__all__ = ["ParquetFiles"]

_MAX_OPEN = 8  # files


class ParquetFiles:
    """Parquet files with the same columns, as one table whose parts are the row groups.

    Only the footers are read here: names and types of columns, and the number of rows.

    Args:
        paths: The files.
        columns: The columns to read; None reads all of the first file.
        check: Called with a path, `columns` and the columns of that file; raises if one is missing.

    Raises:
        FileDamaged: A file has no valid footer.
        ValueError: Columns of two files differ in type; names file and column.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None,
        check: Callable[[str, Sequence[str] | None, Sequence[str]], None],
    ) -> None:
        self._parquet = optional("pyarrow.parquet", "tables", "parquet files need")
        self._arrow = optional("pyarrow", "tables", "parquet files need")
        self._paths = paths
        self._footers: list[Any] = []
        self._open: OrderedDict[int, tuple[Any, Any]] = OrderedDict()  # by file: the parquet file, and what it reads
        self._places: list[tuple[int, int]] = []  # of each part: the file, and its row group
        self._first_rows: list[int] = []  # of each part, in its file
        self.num_rows: list[int] = []
        """Rows of each part."""
        types: dict[str, Any] = {}
        try:
            for k, path in enumerate(paths):
                with self._reporting(path, "its footer"):
                    file = self._file(k)
                    self._footers.append(file.metadata)
                    schema = file.schema_arrow
                check(path, columns if k == 0 else list(types), schema.names)
                if k == 0:
                    types = {name: schema.field(name).type for name in (schema.names if columns is None else columns)}
                for name, kind in types.items():
                    found = schema.field(name).type
                    if found != kind:
                        raise ValueError(
                            f"TableData: column {name!r} is {found} in {path}, and {kind} in {paths[0]}: files of one "
                            "table have the same types"
                        )
                self._add_groups(k, file.metadata)
        except BaseException:
            self.close()
            raise
        self.columns = list(types)

    def _add_groups(self, k: int, footer: Any) -> None:
        first = 0
        for group in range(footer.num_row_groups):
            num = footer.row_group(group).num_rows
            if num:
                self._places.append((k, group))
                self._first_rows.append(first)
                self.num_rows.append(num)
            first += num

    def load(self, number: int) -> tuple[dict[str, TableColumn], int]:
        """Read one part: its columns, and their size in bytes.

        Raises:
            FileDamaged: It cannot be decoded; names file and row group.
        """
        k, group = self._places[number]
        with self._reporting(self._paths[k], f"row group {group}"):
            # Inside a worker, the other cores belong to the other workers.
            table = self._file(k).read_row_group(group, columns=self.columns, use_threads=worker_info() is None)
            return {name: arrow_column(table.column(name)) for name in self.columns}, table.nbytes

    def named(self, number: int) -> tuple[str, int]:
        """Return the file of a part, and the number of its first row there."""
        return self._paths[self._places[number][0]], self._first_rows[number]

    def close(self) -> None:
        """Close the files. They are opened again when they are read."""
        while self._open:
            _close(*self._open.popitem()[1])

    def _file(self, k: int) -> Any:
        if k not in self._open:
            path = self._paths[k]
            footer = self._footers[k] if k < len(self._footers) else None
            source: Any
            if is_url(path):
                url = UrlFile(path)
                url.read(0, min(1, url.size))  # copies the file, if its server sends no parts
                source = url.stream()
                url.close()
            else:
                source = self._arrow.OSFile(path)
            try:
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
