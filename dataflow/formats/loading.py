"""Base of all flows over files and tables: orders, addressing, and one open reader per process.

Guarantees:

- A file is opened where it is read, when it is read: a flow may be pickled, and a forked process opens its own.
- Memory does not grow with the file, apart from 4 bytes per datapoint for an order, and what a format documents.
- `close` closes the file, and so does the end of the flow. Iterating it again reopens it.
- All processes and threads that have copies of a flow read the same files, or raise: a copy that opens a file compares
  it with what the flow had open when it was copied.
"""

from __future__ import annotations

import errno
import os
import platform
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.formats.positional import Identity, changed_since
from dataflow.protocol.base import Blocks, RNGDataFlow, T_co
from dataflow.protocol.parameters import flag, whole_number
from dataflow.protocol.seeding import Stream, Table, permutation, rng, root_seed
from dataflow.protocol.state import FlowState, state_of
from dataflow.sources.source import Source
from dataflow.system.urls import files_below, is_url
from dataflow.system.walking import walk
from dataflow.transforms.indexing import reorder

__all__ = [
    "DiskData",
    "FilesData",
    "PathLike",
    "PositionalSource",
    "Positions",
    "Reader",
    "by_part",
    "existing",
    "files_of",
    "parts_of",
    "runs",
    "starts_of",
]

PathLike = str | os.PathLike[str]
Positions = NDArray[np.int64]

_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
_BLOCK = 4096  # positions that are requested at a time; a reader may join neighbours on disk


class Reader(Protocol):
    """A file that is open in this process."""

    @property
    def identities(self) -> Sequence[Identity]:
        """The state of each file, in the order of their paths, as it was opened."""

    def __len__(self) -> int:
        """Return the number of datapoints."""

    def read(self, positions: Positions) -> Iterator[Any]:
        """Return the datapoints at these positions, in this order; neighbours are read together.

        Raises:
            FileDamaged: Among others, the file was changed in place since it was opened. This is looked at once, at the
                beginning.
        """

    def close(self) -> None:
        """Close the file. Idempotent."""


class PositionalSource(Source[T_co], RNGDataFlow[T_co]):
    """A flow over what a reader gives by position.

    Args:
        shuffle: Draw a new order for every pass; None means whether `block_shuffle` is given.
        block_shuffle: Positions per block: shuffle the blocks, and the positions inside each, instead of all at once.
            The disk is then read in blocks, not at random.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.
    """

    _df_indexed = True
    _df_opened: _Opened | None = None  # while it is open here; in a copy, what was open where it comes from

    def __init__(
        self, shuffle: bool | None = None, *, block_shuffle: int | None = None, seed: int | None = None
    ) -> None:
        self.block_shuffle = None if block_shuffle is None else whole_number(self, "block_shuffle", block_shuffle, 1)
        self.shuffle = block_shuffle is not None if shuffle is None else flag(self, "shuffle", shuffle)
        if block_shuffle is not None and not self.shuffle:
            raise ValueError(f"{type(self).__name__}: block_shuffle is a way to shuffle, and shuffle is False")
        self._df_draws = self.shuffle or self._df_user_written
        self._df_own_root = root_seed(self, seed)
        self._orders = Table()

    @abstractmethod
    def _df_open_reader(self) -> Reader:
        """Open what is read in this process."""

    def reader(self) -> Any:
        """Return the open reader; open it in a process that has not done so yet."""
        state = state_of(self)
        reader = state.resource  # looked at once: another thread may close the flow at any time
        if reader is None:
            with state.lock:  # if two threads begin, one opens it
                reader = state.resource
                if reader is None:
                    reader = self._open(state)
        return reader

    def _open(self, state: FlowState) -> Reader:
        reader = self._df_open_reader()
        try:
            now = _Opened(state, _this_machine(), reader.identities, len(reader))
            if self._df_opened is None:
                self._df_opened = now
            elif self._df_opened.by is not state:
                self._df_opened.require_same(now, self._df_files)
        except BaseException:
            reader.close()
            raise
        state.own(self, reader)
        return reader

    def reset_state(self) -> None:
        state = state_of(self)
        if self._df_opened is not None and self._df_opened.by is state:  # not in a worker, which begins with a reset
            self._df_opened = None
        state.own(self, None)
        super().reset_state()

    def _df_close(self) -> None:
        super()._df_close()
        self._df_opened = None

    @property
    def _df_deciding(self) -> dict[str, Any]:
        return {name: value for name, value in super()._df_deciding.items() if name != "_df_opened"}

    def __len__(self) -> int:
        return len(self.reader())

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        n = len(self)
        size = max(_BLOCK, self.block_shuffle or 0)
        return chain.from_iterable(map(self._read, self._df_positions(p, n, stream, size)))

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return chain.from_iterable(self._read(self._df_positions_at(block, stream)) for block in blocks)

    def _df_origins(self, indexes: Positions, stream: Stream) -> Positions:
        return self._df_positions_at(indexes, stream)

    def _read(self, positions: Positions) -> Iterator[Any]:
        datapoints: Iterator[Any] = self.reader().read(positions)
        return datapoints

    def _df_positions(self, p: int, n: int, stream: Stream, size: int, stop: int | None = None) -> Iterator[Positions]:
        """The first `stop` of the `n` positions of pass `p` in their order, `size` at a time."""
        order = self._df_order(p, n, stream) if self.shuffle else None
        stop = n if stop is None else stop
        for k in range(0, stop, size):
            block = np.arange(k, min(k + size, stop))
            yield block if order is None else order[block].astype(np.int64)

    def _df_positions_at(self, indexes: Positions, stream: Stream) -> Positions:
        n = len(self)
        if n == 0 and len(indexes):
            named = next(iter(self._df_files), type(self).__name__)
            raise IndexError(f"{named} holds no datapoints, so index {indexes[0]} is out of range")
        passes, positions = np.divmod(indexes, max(n, 1))
        if self.shuffle and len(indexes):
            (positions,) = reorder(passes, positions, lambda p: (self._df_order(p, n, stream),))
        return positions

    def _df_order(self, p: int, n: int, stream: Stream) -> NDArray[Any]:
        """The order of `n` positions in pass `p`, drawn once: uint32 or uint64 (n,)."""
        words = self._df_words(stream, p)
        make = permutation if self.block_shuffle is None else partial(_permute_blocks, block=self.block_shuffle)
        order: NDArray[Any] = self._orders.get((words, n), partial(make, words, n))
        return order


@dataclass(frozen=True)
class _Opened:
    """What a flow has opened, for copies of it in other processes and threads."""

    by: FlowState  # of the flow; a copy has another
    machine: str
    identities: Sequence[Identity]
    num: int  # datapoints

    def require_same(self, now: _Opened, paths: Sequence[str]) -> None:
        """Check that a copy has opened the same files.

        On another machine, `paths` may be copies of the files, with other times: there, sizes are compared.

        Raises:
            FileDamaged: One has changed.
        """
        is_here = self.machine == now.machine
        for path, before, found in zip(paths, self.identities, now.identities, strict=True):
            if (before != found) if is_here else (before[:1] != found[:1]):
                raise changed_since(path)
        if paths and self.num != now.num:
            raise changed_since(paths[0])


@cache
def _this_machine() -> str:
    """The name of this machine, and an identifier of the time since it was started."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return f"{platform.node()} {file.read()}"
    return platform.node()


class FilesData(PositionalSource[T_co]):
    """A flow over several files, which are described by their state, not by their paths.

    Args:
        paths: The files, or URLs.
        shuffle: As for `PositionalSource`; so are `block_shuffle` and `seed`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        shuffle: bool | None = None,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(shuffle, block_shuffle=block_shuffle, seed=seed)
        for path in paths:
            _refuse_compressed(path)
        self.paths = paths
        self._df_indexes = Table()  # by the state of the files: where their datapoints are

    @property
    def _df_files(self) -> Sequence[str]:
        return self.paths

    @property
    def _df_compared(self) -> dict[str, Any]:
        return {name: value for name, value in super()._df_compared.items() if name != "paths"}


class DiskData(PositionalSource[T_co]):
    """A flow over a file.

    Args:
        path: The file.
        shuffle: As for `PositionalSource`; so are `block_shuffle` and `seed`.
    """

    def __init__(
        self, path: PathLike, shuffle: bool | None = True, *, block_shuffle: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(shuffle, block_shuffle=block_shuffle, seed=seed)
        self.path = existing(path)
        _refuse_compressed(self.path)

    @property
    def _df_files(self) -> Sequence[str]:
        return (self.path,)

    @property
    def _df_parameters(self) -> dict[str, Any]:
        # The parameter has another name in each class.
        return {**super()._df_parameters, **dict.fromkeys(("filename", "lmdb_path", "path"), self.path)}

    @property
    def _df_compared(self) -> dict[str, Any]:
        # A saved state may be loaded where the file has another path.
        return {name: value for name, value in super()._df_compared.items() if name != "path"}


def _permute_blocks(words: tuple[int, ...], n: int, *, block: int) -> NDArray[Any]:
    """Return a permutation of ``range(n)`` that moves whole blocks, and inside each of them: uint32 or uint64 (n,)."""
    drawn = rng(words)
    num_whole = n // block
    places = np.arange(n, dtype=np.uint32 if n < 2**32 else np.uint64)
    whole = places[: num_whole * block].reshape(num_whole, block)
    drawn.shuffle(whole, axis=0)
    whole = drawn.permuted(whole, axis=1)
    rest = places[num_whole * block :].copy()
    drawn.shuffle(rest)
    where = int(drawn.integers(num_whole, endpoint=True))
    return np.concatenate([whole[:where].ravel(), rest, whole[where:].ravel()])


def runs(positions: Positions, most: int) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive positions, as (first, end), each of at most `most`."""
    if not len(positions):
        return
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(positions)]):
        first, last = int(positions[begin]), int(positions[end - 1]) + 1
        for k in range(first, last, most):
            yield k, min(k + most, last)


def starts_of(num_rows: Iterable[int]) -> Positions:
    """Return where each part of a sequence begins, and the end: int64 (num_parts + 1,)."""
    return np.cumsum([0, *num_rows], dtype=np.int64)


def parts_of(starts: Positions, positions: Positions) -> set[int]:
    """Return the numbers of the parts that hold these positions; `starts` is what `starts_of` returns."""
    if len(starts) == 2:
        return {0}
    return {*(starts.searchsorted(positions, "right") - 1).tolist()}


def by_part(starts: Positions, positions: Positions) -> Iterator[tuple[int, Positions]]:
    """Yield (number of a part, positions in it) for each run of positions in the same part.

    Args:
        starts: What `starts_of` returns.
        positions: Positions in the whole sequence.
    """
    numbers = np.searchsorted(starts, positions, "right") - 1
    breaks = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(positions)]
    for begin, end in pairwise(breaks):
        number = int(numbers[begin])
        yield number, positions[begin:end] - starts[number]


def files_of(owner: str, paths: PathLike | Iterable[PathLike], suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that `paths` names.

    Args:
        owner: The class that reads them, for messages.
        paths: A path, a URL, a folder, or several of them. A folder stands for the files below it, also behind links to
            folders, that end in one of `suffixes`, sorted by name; names that begin with a dot or an underscore are
            left out.
        suffixes: Lower-case ends of file names.

    Raises:
        FileNotFoundError: There is no such file, or a folder has none.
        ValueError: There is no path.
        TypeError: A value is not a path.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not named:
        raise ValueError(f"{owner} reads one file or several, got an empty list")
    return [file for path in named for file in _files_at(owner, path, suffixes)]


def _files_at(owner: str, path: PathLike, suffixes: tuple[str, ...]) -> list[str]:
    text = os.fspath(path)
    if isinstance(text, str) and is_url(text):
        if text.lower().endswith(suffixes):
            return [text]
        below = files_below(text)
        if list(below) == [text]:
            return [text]
    else:
        text = existing(path)
        if not os.path.isdir(text):
            return [text]
        files = (os.path.join(folder, name) for folder, _, names in walk(text) for name in names)
        below = {file: os.path.relpath(file, text) for file in files}
    found = sorted(
        file
        for file, inside in below.items()
        if inside.lower().endswith(suffixes) and not re.search(r"(^|[/\\])[._]", inside)
    )
    if not found:
        raise FileNotFoundError(f"{owner}: the folder {text} has no file that ends in {' or '.join(suffixes)}")
    return found


def existing(path: PathLike) -> str:
    """Return the path as text.

    Raises:
        FileNotFoundError: The path does not exist.
        TypeError: The value is not a path.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is text, got {path!r}")
    if not os.path.exists(text):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
    return text


def _refuse_compressed(path: str) -> None:
    if path.lower().endswith(_COMPRESSED):
        raise ValueError(f"{path} is compressed, and cannot be read by position: decompress it first")
