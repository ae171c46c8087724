"""`WebDatasetData`: samples in tar files, named as WebDataset names them; read by position, without unpacking.

The files of one sample follow each other in a tar file, a *shard*, and have one name up to the first dot of its last
part: the key. The rest is the extension. The index of a shard holds where each sample begins and ends; the names of its
files are read with it. It can be kept beside the shard.

Source:
    https://github.com/webdataset/webdataset (the naming); POSIX.1-2017, "pax" (the headers of tar files).
"""

from __future__ import annotations

import copy
import errno
import glob
import json
import logging
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from dataflow.errors import FileDamaged
from dataflow.formats.brace_expansion import expand_braces
from dataflow.formats.checksums import file_damaged
from dataflow.formats.index_files import Offsets, read_index, write_index
from dataflow.formats.json_lines import finite
from dataflow.formats.loading import FilesData, PathLike, Positions, by_part, files_of, parts_of, runs, starts_of
from dataflow.formats.npy import array_of
from dataflow.formats.positional import Identity, OpenFiles, PositionalFile, UrlFile, identity_of
from dataflow.protocol.failures import Budget
from dataflow.protocol.parameters import flag
from dataflow.protocol.seeding import Table
from dataflow.system.descriptors import closed_on_error
from dataflow.system.urls import files_matching, is_url
from dataflow.transforms.mapping import MapData

__all__ = ["ShardsData", "WebDatasetData"]

_log = logging.getLogger("dataflow.formats")

_BLOCK = 512  # bytes; all sizes in a tar file are rounded up to multiples
_END = bytes(_BLOCK)
_RECORD = 20 * _BLOCK  # what programs fill up with zeros, after two blocks that mark the end
_WINDOW = 1 << 14  # bytes that are read at a time for an index
_AT_ONCE = 1 << 18  # bytes of neighbouring samples that are read together
_FROM_URL = 1 << 22  # both for a URL, where each request takes long
_META = re.compile(r"__[^/]*__($|/)")  # names of files that belong to no sample
_CHAINED = re.compile(r"(tar|zip|libarchive)://")  # ``tar://a.tar::s3://b.tar`` is one file, inside another
_MAX_HEADER = 1 << 26  # bytes of an extended header
_MAX_DIGITS = 20  # of the length of a record in an extended header
_KIND = "samples: begins, ends, sums of their files and links"  # what the offsets in an index are

Decoder = Callable[[bytes], Any]


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _json(data: bytes) -> Any:
    return json.loads(data, parse_float=finite)


_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id", "count"), int),
    **dict.fromkeys(("json", "jsn"), _json),
    "npy": array_of,
}


class WebDatasetData(MapData[dict[str, Any]]):
    """The samples of WebDataset shards: dicts of bytes by extension, and the key of the sample as ``"__key__"``.

    When the flow is opened, the headers of all shards are read once, to find the samples; 16 bytes per sample stay in
    memory. So the length is exact, and the flow can be addressed, shuffled and shared by the workers of a strict
    runner. `keep_index` saves that time in later runs.

    A damaged shard is logged when it is opened. Its samples up to the damage are read; the rest of it is one datapoint
    that fails, as a map's does: it ends the pass, or is skipped under `max_failures`. So is a URL that cannot be read,
    and a sample that cannot be decoded.

    Args:
        urls: Shards: a path, a URL, a folder, or a list of them, read in that order. Text may hold several, with ``::``
            between them. Braces are expanded as WebDataset does it: ``{0000..0099}``, ``{0..99..3}``, ``{a,b{1,2}}``. A
            glob (``*``, ``?``, ``[ab]``) stands for the files that match, sorted; a folder for its files that end in
            ``.tar``, sorted by name.
        decode: None leaves bytes. True decodes text (``txt``), numbers (``cls``, ``id``, ``index``), ``json`` and
            ``npy``; a dict maps extensions to functions of bytes. An extension ``seg.png`` is decoded as ``png`` unless
            it has a function of its own.
        max_failures: How many datapoints of one pass may fail, as for `MapData`; they are skipped, logged, and listed
            in `failures`.
        keep_index: Keep the index of each shard beside it, at its path with ``.index`` appended. An index that is there
            is used in any case, also beside a URL, where each sample is compared with it.
        shuffle: Draw a new order for every pass; None means whether `block_shuffle` is given.
        block_shuffle: Samples per block: shuffle the blocks, and the samples inside each, instead of all at once.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        FileNotFoundError: There is no such file, a folder has no shard, or no file matches a glob.
        FileDamaged: A shard is damaged, or behind a URL it is another one than its index says; names it, with the byte
            offset.
        OSError: A URL cannot be read.
        ValueError: A brace is not closed, a shard is a command (``pipe:``) or compressed, a sample has two files
            of one extension, a link or a sparse file, or a file cannot be decoded; names shard, sample and extension.
        MissingExtra: A path is a URL, and fsspec is not installed.

    Example:
        >>> import io, os, tarfile, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "train-0000.tar")
        >>> with tarfile.open(path, "w") as tar:
        ...     for name, data in [("a.txt", b"one"), ("a.cls", b"1"), ("b.txt", b"two"), ("b.cls", b"2")]:
        ...         info = tarfile.TarInfo(name)
        ...         info.size = len(data)
        ...         tar.addfile(info, io.BytesIO(data))
        >>> df = WebDatasetData(path, decode={"cls": int})
        >>> len(df), df[1]
        (2, {'__key__': 'b', 'txt': b'two', 'cls': 2})
        >>> df.close(); folder.cleanup()
    """

    def __init__(
        self,
        urls: PathLike | Iterable[PathLike],
        *,
        decode: bool | Mapping[str, Decoder] | None = None,
        max_failures: Budget | None = None,
        keep_index: bool = False,
        shuffle: bool | None = None,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> None:
        keep_index = flag(self, "keep_index", keep_index)
        named = [urls] if isinstance(urls, str | os.PathLike) else list(urls)
        paths = files_of(type(self).__name__, [path for name in named for path in _expand(name)], (".tar",))
        shards = ShardsData(paths, keep_index=keep_index, shuffle=shuffle, block_shuffle=block_shuffle, seed=seed)
        super().__init__(shards, _SampleReader(_decoders(decode)), max_failures=max_failures)

    @property
    def _df_parameters(self) -> dict[str, Any]:
        paths = getattr(self.ds, "paths", [])
        decoders = getattr(self.func, "decoders", {})
        shown = {"urls": paths[0] if len(paths) == 1 else paths, "keep_index": getattr(self.ds, "keep_index", False)}
        return {**super()._df_parameters, **shown, "decode": decoders or None}


def _decoders(decode: Any) -> dict[str, Decoder]:
    if decode is None or decode is False:
        return {}
    if decode is True:
        return dict(_DECODERS)
    if isinstance(decode, Mapping) and all(isinstance(key, str) and callable(func) for key, func in decode.items()):
        return {key.lstrip(".").lower(): func for key, func in decode.items()}
    raise TypeError(
        "WebDatasetData: decode is None, True, or a dict from extensions to functions of bytes, such as "
        f'{{"cls": int}}, got {type(decode).__name__}. For a function of a whole sample, use MapData'
    )


def _expand(name: PathLike) -> list[PathLike]:
    """Return the paths that text with ``::``, braces or a glob stands for."""
    text = os.fspath(name)
    if not isinstance(text, str) or (not is_url(text) and os.path.exists(text)):
        return [name]
    parts = text.split("::")
    if not all(part.lower().endswith(".tar") and not _CHAINED.match(part) for part in parts):
        parts = [text]  # one path or URL, which may be a chain of fsspec
    return [path for part in parts for one in expand_braces(part) for path in _matching(one)]


def _matching(path: str) -> list[str]:
    """Return the files that a glob matches, sorted; anything else is a path."""
    if path.startswith("pipe:") and not os.path.exists(path):
        raise ValueError(
            f"WebDatasetData: {path} names a command, and the output of commands is not read, since it has no "
            "positions: give a path, or a URL that fsspec knows, such as s3://bucket/train-0000.tar"
        )
    if not glob.has_magic(path):
        return [path]
    if path.startswith(("http://", "https://")) or (not is_url(path) and os.path.exists(path)):
        return [path]  # in the first case, a question mark begins its query
    found = files_matching(path) if is_url(path) else sorted(glob.glob(path, recursive=True))
    if not found:
        raise FileNotFoundError(errno.ENOENT, "WebDatasetData: no file matches this glob", path)
    return found


class _SampleReader:
    """Turn what `ShardsData` yields into a sample."""

    def __init__(self, decoders: Mapping[str, Decoder]) -> None:
        self.decoders = decoders

    def __repr__(self) -> str:
        return "decode" if self.decoders else "read"

    def __call__(self, dp: list[Any]) -> dict[str, Any]:
        path, offset, data, indexed = dp
        if isinstance(data, Exception):
            raise copy.copy(data)  # each time it is raised, it gets a traceback and a note
        sample: dict[str, Any] = {}
        members = _members(path, data, offset) if indexed is None else _compare(path, data, offset, indexed)
        for member in members:
            if "__key__" not in sample:
                sample["__key__"] = member.key
            if member.extension in sample:
                raise ValueError(
                    f"{path}: the sample {member.key!r} has two files with the extension {member.extension!r}"
                )
            if member.is_link:
                raise ValueError(
                    f"{path}: the sample {member.key!r} has a link in place of its file with the extension "
                    f"{member.extension!r}, so its content is not there: make the shard with tar --hard-dereference -h"
                )
            if member.is_sparse:
                raise ValueError(
                    f"{path}: the sample {member.key!r} has a sparse file with the extension {member.extension!r}, "
                    "whose holes are not in the shard: make it without --sparse"
                )
            begin = member.begin - offset
            sample[member.extension] = bytes(data[begin : begin + member.size])
        for extension in self.decoders and list(sample):
            decoder = self.decoders.get(extension) or self.decoders.get(extension.rpartition(".")[2])
            if decoder is not None and extension != "__key__":
                try:
                    sample[extension] = decoder(sample[extension])
                except Exception as error:
                    where = f"{path}, sample {sample['__key__']!r}, extension {extension!r}"
                    raise ValueError(f"{where}: it cannot be decoded ({type(error).__name__}: {error})") from error
        return sample


# -- shards ------------------------------------------------------------------------------------------------------------


class ShardsData(FilesData):
    """The samples of shards as lists: path, offset, the bytes of the sample, and its sum.

    An exception instead of the bytes says why they cannot be read. The sum is None unless it was read from an index.

    Args:
        paths: The shards.
        keep_index: Keep the index of each beside it.
        more: Further parameters of `FilesData`.
    """

    _df_run_settings = frozenset({"keep_index"})

    def __init__(self, paths: Sequence[str], *, keep_index: bool = False, **more: Any) -> None:
        super().__init__(paths, **more)
        self.keep_index = keep_index

    def _df_open_reader(self) -> _ShardsReader:
        return _ShardsReader(self.paths, self.keep_index, self._df_indexes)


class _Shard(NamedTuple):
    """The index of a shard."""

    begins: Offsets  # of each sample: the offset of the header of its first file
    ends: Offsets  # and the offset after its last byte
    sums: Offsets | None  # and what `_sum` gave for it, if an index says so
    error: Exception | None  # why the shard cannot be read any further; it counts as one more sample

    @property
    def num(self) -> int:
        """Number of samples, with what counts as one."""
        return len(self.begins) + (self.error is not None)


class _ShardsReader:
    """Open shards."""

    def __init__(self, paths: Sequence[str], keep_index: bool, indexes: Table) -> None:
        self._paths = paths
        self._files = OpenFiles(paths)
        with closed_on_error():
            key = tuple(map(self._identity, range(len(paths))))
            self.identities: Sequence[Identity] = [[*state] for _, *state in key]
            self._shards: list[_Shard] = indexes.get(key, partial(self._find_samples, keep_index))
        self._starts = starts_of(shard.num for shard in self._shards)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def close(self) -> None:
        self._files.close()

    def read(self, positions: Positions) -> Iterator[list[Any]]:
        self._files.require_unchanged(parts_of(self._starts, positions))
        for number, inside in by_part(self._starts, positions):
            yield from self._read_shard(number, inside)

    def _read_shard(self, number: int, positions: Positions) -> Iterator[list[Any]]:
        path, shard = self._paths[number], self._shards[number]
        num = len(shard.begins)
        at_once = _FROM_URL if is_url(path) else _AT_ONCE
        most = max(1, at_once * num // max(1, int(shard.ends[-1]))) if num else 1
        for first, end in runs(positions, most):
            if end > num:  # beyond the last sample: the damage
                yield from self._samples(number, first, num)
                yield [path, 0, shard.error, None]
            else:
                yield from self._samples(number, first, end)

    def _samples(self, number: int, first: int, end: int) -> Iterator[list[Any]]:
        if first >= end:
            return
        path, shard = self._paths[number], self._shards[number]
        base = int(shard.begins[first])
        try:
            data = memoryview(self._files.read(number, base, int(shard.ends[end - 1]) - base))
        except (OSError, FileDamaged) as error:
            yield from ([path, 0, error, None] for _ in range(first, end))
            return
        begins, ends = shard.begins[first:end].tolist(), shard.ends[first:end].tolist()
        sums = [None] * len(begins) if shard.sums is None else shard.sums[first:end].tolist()
        for begin, after, summed in zip(begins, ends, sums, strict=True):
            yield [path, begin, data[begin - base : after - base], summed]

    def _identity(self, number: int) -> tuple[Any, ...]:
        path = self._paths[number]
        if not is_url(path):
            identity = identity_of(os.stat(path))
            self._files.expect(number, identity)
            return path, *identity
        try:
            return path, *self._files.open(number).identity
        except OSError as error:
            return path, str(error)

    def _find_samples(self, keep_index: bool) -> list[_Shard]:
        from dataflow.observe.progress import Bar

        found = []
        with Bar(total=len(self._paths), unit="shards", delay=1, desc="index") as bar:
            for number, path in enumerate(self._paths):
                found.append(self._shard(number, keep_index))
                bar.update()
                if (error := found[-1].error) is not None:
                    num = len(found[-1].begins)
                    _log.warning(
                        "%s: %d samples are read, and the rest counts as one that failed: %s", path, num, error
                    )
        return found

    def _shard(self, number: int, keep_index: bool) -> _Shard:
        begins, ends = array("Q"), array("Q")
        sums = array("Q") if keep_index else None
        error: Exception | None = None
        try:
            file = self._files.open(number)
            kept = read_index(file, _KIND)
            if kept is not None and _fits(file, kept):
                begins_kept, ends_kept, sums_kept = kept.reshape(3, -1)
                return _Shard(begins_kept, ends_kept, sums_kept, None)
            _scan(file, begins, ends, sums)
        except (OSError, FileDamaged) as found:
            error = found.with_traceback(None)  # it is kept as long as the flow, and its frames would be, too
        shard = _Shard(np.array(begins, np.uint64), np.array(ends, np.uint64), None, error)
        if sums is not None and error is None and not isinstance(file, UrlFile):
            write_index(file, _KIND, np.concatenate([shard.begins, shard.ends, np.array(sums, np.uint64)]))
        return shard


def _fits(file: PositionalFile, kept: Offsets) -> bool:
    """Whether an index names samples, one after the other, inside a file."""
    if not len(kept) or len(kept) % 3:
        return False
    begins, ends, _ = kept.reshape(3, -1)
    return bool((begins < ends).all() and (begins[1:] >= ends[:-1]).all() and ends[-1] <= file.size)


# -- tar files ---------------------------------------------------------------------------------------------------------


class _Member(NamedTuple):
    """A file in a tar file."""

    key: str
    extension: str
    header: int  # offset of its first header
    begin: int  # offset of its content
    size: int
    is_sparse: bool  # the content begins with, or leaves out, what its header describes
    is_link: bool  # the content is that of another file


def _scan(file: PositionalFile, begins: array[int], ends: array[int], sums: array[int] | None) -> None:
    """Append begin, end and, if asked for, sum of each sample of a shard, up to the first damage.

    The last sample ends after the mark of the archive's end.
    """
    size = _FROM_URL if isinstance(file, UrlFile) else _WINDOW
    window, base, at = b"", 0, 0

    def read(offset: int, num: int) -> Any:
        nonlocal window, base, at
        at = offset  # the last one is the mark of the archive's end
        if not base <= offset <= offset + num <= base + len(window):
            base, window = offset, bytes(file.read(offset, min(max(size, num), file.size - offset)))
        return window[offset - base : offset - base + num]

    files = _walk(file.path, read, 0, file.size, is_whole=True)
    for _, sample in groupby(files, attrgetter("key")):
        members = list(sample)
        begins.append(members[0].header)
        ends.append(members[-1].begin + members[-1].size)
        if sums is not None:
            sums.append(_sum(members))
    if ends:
        ends[-1] = at + _BLOCK
    _refuse_another(file.path, at, read(at, min(-(-(at + 2 * _BLOCK) // _RECORD) * _RECORD + _BLOCK, file.size) - at))


def _refuse_another(path: str, at: int, data: bytes) -> None:
    """Check that the blocks from the mark of an archive's end on, which is at `at`, begin no other archive.

    Raises:
        FileDamaged: They do.
    """
    for k in range(0, len(data) if data.strip(b"\0") else 0, _BLOCK):
        try:
            _verify(path, data[k : k + _BLOCK], at + k)
        except FileDamaged:
            continue
        raise FileDamaged(
            f"{path}: another archive begins at byte {at + k} of the file, after the end of the first one, where "
            "reading ends. Join archives with tar -Af instead of cat, or give each as a shard",
            path=path,
            offset=at + k,
        )


def _sum(members: Iterable[_Member]) -> int:
    """Return a sum of the names, places and sizes of the files of a sample."""
    return zlib.crc32(repr([(*member,) for member in members]).encode())


def _compare(path: str, data: Any, offset: int, indexed: int) -> list[_Member]:
    """Return the files of a sample, if they are those whose sum is in the index."""
    try:
        members = list(_members(path, data, offset))
    except FileDamaged:
        members = []
    if _sum(members) != indexed or len({member.key for member in members}) > 1:
        reason = f"there are other files than its index, {path}.index, says: delete the index, or make it again; they"
        raise file_damaged(path, "", f"{reason} begin", offset)
    return members


def _members(path: str, data: Any, offset: int) -> Iterator[_Member]:
    """Yield the files in the bytes of one sample, which begins at `offset` of its shard."""

    def read(at: int, num: int) -> Any:
        return data[at - offset : at - offset + num]

    return _walk(path, read, offset, offset + len(data), is_whole=False)


def _walk(path: str, read: Callable[[int, int], Any], at: int, stop: int, *, is_whole: bool) -> Iterator[_Member]:
    """Yield the files from one offset to another that belong to samples."""
    first, long_name, long_size, is_sparse = at, None, None, False
    while at < stop:
        header = bytes(read(at, min(_BLOCK, stop - at)))
        if header == _END:
            return
        size = _verify(path, header, at)
        begin, kind = at + _BLOCK, header[156:157]
        is_sparse, is_extended = is_sparse or kind == b"S", kind == b"S" and header[482] != 0
        while is_extended:  # more headers, which say where the content of a sparse file belongs
            more = bytes(read(begin, min(_BLOCK, stop - begin)))
            is_extended, begin = len(more) == _BLOCK and more[504] != 0, begin + _BLOCK
        if long_size is not None and kind not in b"xgKL":
            size = long_size
        if kind in b"123456":  # links, devices, folders and pipes have no content, whatever their size
            size = 0
        if size < 0:
            raise file_damaged(path, "", f"a file would have {size} bytes", begin)
        if begin + size > stop:
            raise file_damaged(
                path,
                "",
                f"a file of {size} bytes begins at byte {begin}, and {stop - begin} are left, where it ends",
                stop,
            )
        if kind in b"xL" and size > _MAX_HEADER:  # it is read into memory
            raise file_damaged(path, "", f"an extended header would have {size} bytes", begin)
        at = begin + -(-size // _BLOCK) * _BLOCK
        if kind == b"L":
            long_name = bytes(read(begin, size)).split(b"\0", 1)[0]
        elif kind == b"x":
            try:
                records = _pax(bytes(read(begin, size)))
                long_size = int(records[b"size"]) if b"size" in records else None
            except ValueError:
                raise file_damaged(path, "", "there is an invalid extended header", begin) from None
            long_name = records.get(b"GNU.sparse.name", records.get(b"path", long_name))
            is_sparse = any(name.startswith(b"GNU.sparse.") for name in records)
        elif kind not in b"gK":
            if kind in b"0\x007S12":
                text = (_short_name(header) if long_name is None else long_name).decode("utf-8", "surrogateescape")
                folder, slash, base = text.rpartition("/")
                key, dot, extension = base.partition(".")
                if key and dot and not _META.match(text):
                    yield _Member(folder + slash + key, extension.lower(), first, begin, size, is_sparse, kind in b"12")
            first, long_name, long_size, is_sparse = at, None, None, False
    if is_whole:
        raise file_damaged(path, "", "the end of the archive is missing; the file ends", stop)


def _verify(path: str, header: bytes, at: int) -> int:
    """Return the size in a header, if its checksum matches."""
    if len(header) == _BLOCK:
        try:
            claimed = int(header[148:156].rstrip(b" \0") or b"x", 8)
            if claimed == sum(header) - sum(header[148:156]) + 8 * 32:
                field = header[124:136]
                if field[0] & 0x80:  # GNU: a binary number
                    return int.from_bytes(field[1:], "big")
                return int(field.strip(b" \0") or b"0", 8)
        except ValueError:
            pass
    raise file_damaged(path, "", "there is no valid header of a tar file", at)


def _short_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(data: bytes) -> dict[bytes, bytes]:
    """Return the records of an extended header: ``length key=value`` and a newline each."""
    found, at = {}, 0
    while at < len(data):
        begin = data.index(b" ", at, at + _MAX_DIGITS) + 1
        end = at + int(data[at : begin - 1])
        if not begin < end <= len(data):
            raise ValueError("a record has an invalid length")
        key, _, value = data[begin:end].partition(b"=")
        found[key] = value[:-1]
        at = end
    return found
