"""`JSONLinesData`: the values of JSON Lines files, one on each line, read by position."""

from __future__ import annotations

import codecs
import copy
import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from dataflow.errors import FileDamaged
from dataflow.formats.loading import FilesData, PathLike, Positions, by_part, files_of, parts_of, runs, starts_of
from dataflow.formats.positional import Identity, OpenFiles, PositionalFile
from dataflow.protocol.base import T_co
from dataflow.protocol.failures import Budget
from dataflow.system.descriptors import closed_on_error
from dataflow.system.urls import is_url
from dataflow.transforms.mapping import MapData

__all__ = ["JSONLinesData", "LinesData", "finite"]

_SUFFIXES = (".jsonl", ".ndjson", ".jsonlines")
_PIECE = 1 << 22  # bytes that are searched for ends of lines at a time
_AT_ONCE = 1 << 18  # bytes of neighbouring lines that are read together
_AT_ONCE_FROM_URL = 1 << 22


class JSONLinesData(MapData[T_co]):
    r"""The values of JSON Lines files: dicts, or whatever stands on a line.

    The files are read once when the flow is opened, to find their lines; 24 bytes per line stay in memory. Blank
    lines are skipped. Numbers are Python's, so `BatchData` makes int32 and float32 of them.

    A line that is not JSON, or that cannot be read, is a datapoint that fails, as a map's does: it ends the pass, or is
    skipped under `max_failures`. With a `max_failures` of its own, a flow of several files goes on without one that is
    missing behind its URL, or not UTF-8: that file counts as one line that fails.

    Args:
        path: A file, a folder, a URL, or a list of them, read in that order. A folder stands for its files that end in
            ``.jsonl``, ``.ndjson`` or ``.jsonlines``, sorted by name.
        max_failures: How many lines of one pass may be invalid, as for `MapData`; they are skipped, logged, and listed
            in `failures`.
        shuffle: Draw a new order for every pass; None means whether `block_shuffle` is given.
        block_shuffle: Lines per block: shuffle the blocks, and the lines inside each, instead of all at once.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        FileNotFoundError: There is no such file, or a folder has none.
        FileDamaged: A line is not JSON; names the file and the line, counted from 1, and has its byte offset.
        ValueError: A file is named as a compressed one, or is not UTF-8.
        MissingExtra: A path is a URL, and fsspec is not installed.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "rows.jsonl")
        >>> with open(path, "w") as file:
        ...     _ = file.write('{"text": "a", "label": 1}\n{"text": "b"}\n')
        >>> df = JSONLinesData(path)
        >>> len(df), list(df)
        (2, [{'text': 'a', 'label': 1}, {'text': 'b'}])
        >>> df.close(); folder.cleanup()
    """

    def __init__(
        self,
        path: PathLike | Iterable[PathLike],
        *,
        max_failures: Budget | None = None,
        shuffle: bool | None = None,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> None:
        paths = files_of(type(self).__name__, path, _SUFFIXES)
        skip = max_failures is not None
        lines = LinesData(paths, skip=skip, shuffle=shuffle, block_shuffle=block_shuffle, seed=seed)
        super().__init__(lines, parse_line, max_failures=max_failures)

    @property
    def _df_parameters(self) -> dict[str, Any]:
        paths = getattr(self.ds, "paths", [])
        return {**super()._df_parameters, "path": paths[0] if len(paths) == 1 else paths}


def parse_line(dp: list[Any]) -> Any:
    """Return the value of a line.

    Args:
        dp: What `LinesData` yields.

    Raises:
        FileDamaged: It is not JSON, or null; names file and line.
        OSError, ValueError: The file, or this part of it, cannot be read.
    """
    path, number, offset, text = dp
    if isinstance(text, Exception):
        raise copy.copy(text)  # each time it is raised, it gets a traceback and a note
    try:
        value = _parsed(text.decode())
    except (ValueError, RecursionError) as error:  # also a UnicodeDecodeError
        raise _invalid(path, number, offset, f"is not JSON ({error}): {_show(text)}") from error
    if value is None:
        raise _invalid(path, number, offset, "is null, which is no datapoint")
    return value


def finite(text: str | bytes) -> float:
    """Return the number that a text is.

    Raises:
        ValueError: It is none, or beyond the largest float.
    """
    value = float(text)
    if math.isinf(value) and b"inf" not in (text if isinstance(text, bytes) else text.encode()).lower():
        raise ValueError(f"the number {text!r} is beyond the largest float")
    return value


_parsed: Final = json.JSONDecoder(parse_float=finite).decode


def _invalid(path: str, number: int, offset: int, reason: str) -> FileDamaged:
    return FileDamaged(
        f"{path}, line {number} {reason}; it begins at byte {offset} of the file. Correct the line, or skip such lines "
        "with max_failures=",
        path=path,
        offset=offset,
    )


def _show(text: bytes) -> str:
    return repr(text[:60].decode("utf-8", "replace")) + ("…" if len(text) > 60 else "")


class LinesData(FilesData):
    """The lines of text files that are not empty, as lists: path, number of the line from 1, its offset, and its bytes.

    An exception in place of the bytes says why they cannot be read.

    Args:
        paths: The files, or URLs.
        skip: A file that is missing or not UTF-8 counts as one line that cannot be read.
        more: Further parameters of `FilesData`.
    """

    def __init__(self, paths: Sequence[str], *, skip: bool = False, **more: Any) -> None:
        super().__init__(paths, **more)
        self._skip = skip

    def _df_open_reader(self) -> _LinesReader:
        with closed_on_error():
            files = OpenFiles(self.paths)
            states = [self._state_of(files, number) for number in range(len(self.paths))]
            key = tuple((path, *state) for path, state in zip(self.paths, states, strict=True))
            num_bytes = sum(int(state[0]) for state in states)
            find = partial(_find_lines, files, len(self.paths), num_bytes, self._skip)
            return _LinesReader(self.paths, files, states, self._df_indexes.get(key, find))

    def _state_of(self, files: OpenFiles, number: int) -> Identity:
        try:
            return files.open(number).identity
        except FileNotFoundError as error:
            if not self._skip:
                raise
            return [0, str(error)]


class _Lines(NamedTuple):
    """The index of a file: where its lines are."""

    begins: array[int]
    ends: array[int]
    numbers: array[int]  # of the lines in the file, from 1
    error: Exception | None = None  # why the file cannot be read; it counts as one line


class _LinesReader:
    """Open files."""

    def __init__(
        self, paths: Sequence[str], files: OpenFiles, identities: Sequence[Identity], indexes: Sequence[_Lines]
    ) -> None:
        self.identities = identities
        self._paths = paths
        self._files = files
        self._indexes = indexes
        self._starts = starts_of(len(lines.begins) for lines in indexes)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def close(self) -> None:
        self._files.close()

    def read(self, positions: Positions) -> Iterator[list[Any]]:
        self._files.require_unchanged(parts_of(self._starts, positions))
        for number, inside in by_part(self._starts, positions):
            yield from self._read_file(number, inside)

    def _read_file(self, number: int, positions: Positions) -> Iterator[list[Any]]:
        path, lines = self._paths[number], self._indexes[number]
        if lines.error is not None:
            yield from ([path, 1, 0, lines.error] for _ in positions)
            return
        at_once = _AT_ONCE_FROM_URL if is_url(path) else _AT_ONCE
        for first, end in runs(positions, max(1, at_once * len(lines.begins) // max(1, lines.ends[-1]))):
            begins, ends, numbers = lines.begins[first:end], lines.ends[first:end], lines.numbers[first:end]
            base = begins[0]
            try:
                text = bytes(self._files.read(number, base, ends[-1] - base, f"line {numbers[0]}"))
            except (OSError, FileDamaged) as error:
                for line, begin in zip(numbers, begins, strict=True):
                    yield [path, line, begin, error]
                continue
            for line, begin, after in zip(numbers, begins, ends, strict=True):
                yield [path, line, begin, text[begin - base : after - base]]


def _find_lines(files: OpenFiles, num: int, num_bytes: int, skip: bool) -> list[_Lines]:
    from dataflow.observe.progress import Bar

    found = []
    with Bar(total=num_bytes, unit="B", unit_scale=True, delay=1, desc="lines") as bar:
        for number in range(num):
            try:
                found.append(_lines_of(files.open(number), bar.update))
            except (FileNotFoundError, ValueError) as error:  # it is missing, or not UTF-8
                if not skip:
                    raise
                found.append(_unreadable(copy.copy(error)))
    return found


def _unreadable(error: Exception) -> _Lines:
    return _Lines(array("Q", [0]), array("Q", [0]), array("Q", [1]), error)


def _lines_of(file: PositionalFile, report: Callable[[int], object]) -> _Lines:
    head = bytes(file.read(0, min(4, file.size)))
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head:
        raise ValueError(f"{file.path} is not UTF-8: decompress it, or convert it first (iconv -t UTF-8)")
    begins, ends, numbers = array("Q"), array("Q"), array("Q")
    begin = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    number, size, is_blank = 1, 0, True  # of the line that is looked at; a long one is in several pieces
    for at in range(begin, file.size, _PIECE):
        piece = bytes(file.read(at, min(_PIECE, file.size - at)))
        first, *others = piece.split(b"\n")
        size, is_blank = size + len(first), is_blank and not first.strip()
        for text in others:
            if not is_blank:
                begins.append(begin)
                ends.append(begin + size)
                numbers.append(number)
            number, begin = number + 1, begin + size + 1
            size, is_blank = len(text), not text.strip()
        report(len(piece))
    if not is_blank:
        begins.append(begin)
        ends.append(begin + size)
        numbers.append(number)
    return _Lines(begins, ends, numbers)
