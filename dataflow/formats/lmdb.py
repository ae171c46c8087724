"""`LMDBSerializer`, `LMDBData`, `LMDBDataDecoder`: datapoints in an LMDB file, each under a key of its own.

Damage is reported: a file that was cut off when it is opened, a datapoint that has changed when it is read for the
first time, a key that is missing when it is requested. LMDB itself trusts the pages that lead to a key: if one of
these has changed, the process may crash. It may also find another datapoint, which is reported, too, since the
checksum of each covers its key. Wrong data are never returned.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any

import msgpack
import numpy as np

from dataflow.errors import DataFlowTerminated, FileDamaged
from dataflow.formats.checksums import ALGORITHM, check_version, file_damaged
from dataflow.formats.loading import DiskData, PathLike, Positions, Reader, runs
from dataflow.formats.positional import Identity, PositionalFile
from dataflow.formats.records import RecordDecoder, RecordEncoder, is_record
from dataflow.formats.saving import replacing, save_pass
from dataflow.protocol.base import DataFlow, T_co
from dataflow.protocol.parameters import function
from dataflow.system.descriptors import closed_on_error
from dataflow.system.extras import optional
from dataflow.transforms.mapping import MapData

__all__ = ["LMDBData", "LMDBDataDecoder", "LMDBRecords", "LMDBSerializer"]

_log = logging.getLogger("dataflow.formats")

_MARK = b"!dataflow"  # key of the mark in files of ours; it sorts before all digits, so that numbers can be appended
_VERSION = 2  # of the files that are written and read
_LISTED = b"__keys__"  # where tensorpack keeps a list of all keys
_NUM_ORDERED = 10**8  # numbers below it are in the order of their keys

_BATCH = 1 << 16  # bytes of neighbouring values that are read together
_MAX_AT_ONCE = 64
_LARGE = 4096  # mean bytes from which on values are not copied out of the map before they are decoded

_FIRST_MAP = 1 << 26  # bytes of the map at the beginning of a save
_PENDING = 1 << 24  # bytes after which a commit is due, at the latest
_DISK_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
_OPEN_ERRORS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)


def _package() -> Any:
    return optional("lmdb", "lmdb", "LMDB files need")


def _numbered(k: int) -> bytes:
    """The key of datapoint `k`, as in tensorpack's files."""
    return b"%08d" % k


class LMDBData(DiskData[list[bytes]]):
    """The keys and values of an LMDB file, as datapoints ``[key, value]`` of bytes.

    `LMDBDataDecoder` decodes them; `LMDBSerializer.load` reads the files of `LMDBSerializer.save`.

    Args:
        lmdb_path: The file, or a folder with a ``data.mdb`` in it.
        shuffle: Draw a new order for every pass. This is random access.
        keys: The keys to read: a list of str or bytes, or a format such as ``"{:0>8d}"`` for the numbers from 0. None
            means all; if the file does not list its keys, it is searched for them.
        block_shuffle: Keys per block: shuffle the blocks, and the keys inside each, instead of all at once.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        FileDamaged: The file was cut off, or a key is missing in it.
        MissingExtra: The package lmdb is not installed.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    def __init__(
        self,
        lmdb_path: PathLike,
        shuffle: bool = True,
        keys: Sequence[str | bytes] | str | None = None,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> None:
        _package()
        super().__init__(lmdb_path, shuffle, block_shuffle=block_shuffle, seed=seed)
        self.keys = keys

    def _df_open_reader(self) -> Reader:
        return _LMDBKeyReader(self.path, self.keys)


class LMDBRecords(LMDBData):
    """The datapoints of an LMDB file. `LMDBSerializer.load` makes one."""

    def __init__(
        self, path: PathLike, shuffle: bool, block_shuffle: int | None, seed: int | None, pickle: bool
    ) -> None:
        super().__init__(path, shuffle, block_shuffle=block_shuffle, seed=seed)
        self.pickle = pickle

    def _df_open_reader(self) -> Reader:
        return _LMDBReader(self.path, self.pickle)


class LMDBDataDecoder(MapData[T_co]):
    """The results of a function that decodes each key and value of an LMDB file.

    Args:
        lmdb_data: An `LMDBData`, or another flow of ``[key, value]``.
        decoder: Called with key and value, both bytes; returns a datapoint, or None to drop it.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    def __init__(self, lmdb_data: DataFlow, decoder: Callable[[bytes, bytes], T_co | None]) -> None:
        checked = function(self, "decoder", decoder, "is called with key and value, both bytes")
        super().__init__(lmdb_data, _Decoding(checked))

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {**super()._df_parameters, "decoder": getattr(self.func, "decoder", self.func)}


class _Decoding:
    """Turn a function of key and value into one of a datapoint."""

    def __init__(self, decoder: Callable[[bytes, bytes], Any]) -> None:
        self.decoder = decoder

    def __call__(self, dp: Any) -> Any:
        return self.decoder(dp[0], dp[1])


class LMDBSerializer:
    """Datapoints in an LMDB file: the format for random access to large ones.

    Source:
        tensorpack.dataflow, whose class of this name it replaces, and whose files it reads.
    """

    @staticmethod
    def save(
        df: DataFlow,
        path: PathLike,
        write_frequency: int = 5000,
        *,
        overwrite: bool = False,
        compress: str | None = None,
        pickle: bool = False,
    ) -> None:
        """Write one pass of a flow.

        The file appears only when it is complete; until then an existing file stays unchanged. The map grows as needed.

        Args:
            df: The flow.
            path: The file to make, or a folder for its ``data.mdb``.
            write_frequency: Maximum number of datapoints between two writes to the disk.
            overwrite: Replace a file of that name.
            compress: "zstd" compresses each datapoint, with the extra ``zstd``.
            pickle: Pickle components without a representation of their own. Loading then needs ``pickle=True``.

        Raises:
            FileExistsError: The file exists, and `overwrite` is false.
            NotStorable: A datapoint cannot be stored; names it and its component.
            OSError: For example, the disk is full. No partial file is left.
            MissingExtra: The package lmdb is not installed.

        Example:
            >>> import os, tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = os.path.join(folder.name, "numbers.lmdb")
            >>> LMDBSerializer.save(DataFromList([[k, np.full(2, k)] for k in range(3)], shuffle=False), path)
            >>> df = LMDBSerializer.load(path, shuffle=False)
            >>> len(df), df[1]
            (3, [1, array([1, 1])])
            >>> df.close(); folder.cleanup()
        """
        package = _package()
        encoder = RecordEncoder(compress=compress, pickled=pickle)
        target = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
        with replacing(target, overwrite=overwrite) as part, _writing(package, part, write_frequency) as writer:
            save_pass(
                df, "LMDBSerializer", lambda number, dp: writer.put(number, encoder.encode(dp, _numbered(number)))
            )

    @staticmethod
    def load(
        path: PathLike,
        shuffle: bool = True,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
        pickle: bool = False,
    ) -> DataFlow:
        """Return a flow over an LMDB file, which can be addressed.

        Args:
            path: The file, ours or one that tensorpack has written; or a folder with a ``data.mdb`` in it.
            shuffle: Draw a new order for every pass. This is random access.
            block_shuffle: Datapoints per block: shuffle the blocks, and the datapoints inside each, instead of all at
                once; the disk is then read in blocks.
            seed: Root seed for the order, instead of the one of `dataflow.seed`.
            pickle: Load pickles, of tensorpack for example. A pickle can run any code: only for files from sources that
                you trust.

        Raises:
            FileDamaged: The file was cut off, or a datapoint has changed. Names the key.
            PickleRefused: The file holds pickles.
            MissingExtra: The package lmdb is not installed.
        """
        return LMDBRecords(path, shuffle, block_shuffle, seed, pickle)


# -- reading -----------------------------------------------------------------------------------------------------------


class _SharedFile:
    """One open file, a snapshot of it, and its number of users."""

    def __init__(self, environment: Any, file: PositionalFile) -> None:
        self.environment = environment
        self.file = file  # the same file
        info, stat = environment.info(), environment.stat()
        self.size = (info["last_pgno"] + 1) * stat["psize"]
        self.transaction = environment.begin(buffers=self.size >= _LARGE * stat["entries"])
        self.users = 0

    def close(self) -> None:
        self.environment.close()
        self.file.close()


class _OpenFiles:
    """The files that are open in one process, by device and inode: LMDB must not open one twice, so flows share it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.shared: dict[tuple[int, int], _SharedFile] = {}


_by_process: dict[int, _OpenFiles] = {}


def _open_files() -> _OpenFiles:
    """Those of this process. A forked one starts without any."""
    pid = os.getpid()
    if pid not in _by_process:
        mine = _OpenFiles()
        with mine.lock:  # a thread that finds it waits until the inherited files are closed
            if _by_process.setdefault(pid, mine) is mine:  # of two threads that meet here, one closes them
                for other in [other for other in _by_process if other != pid]:
                    # LMDB would treat them as open in this process. Only its own mapping and descriptor go.
                    for shared in _by_process.pop(other).shared.values():
                        shared.close()
    return _by_process[pid]


class _LMDBFile:
    """An LMDB file, open for reading."""

    def __init__(self, path: str) -> None:
        self._lmdb = _package()
        self.path = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
        self.error: type[Exception] = self._lmdb.Error
        self.lock = threading.RLock()
        """Context manager: keep the file mapped while its memory is read; `close` must not unmap it meanwhile."""
        self._shared: _SharedFile | None = None
        files = _open_files()
        with files.lock:
            self._pid = files.pid
            self._key = self._identity()
            shared = files.shared.get(self._key)
            if shared is None:
                shared = self._open()
                files.shared[self._key] = shared
            shared.users += 1
            self._shared = shared

    def _identity(self) -> tuple[int, int]:
        status = os.stat(self.path)
        return status.st_dev, status.st_ino

    def _open(self) -> _SharedFile:
        """Open the file; if it is replaced meanwhile, open the new one."""
        while True:
            self._key = self._identity()
            shared = self._open_once()
            # The path is looked up twice, here and by LMDB: the same file before and after is the one that it has
            # opened.
            if self._identity() == self._key:
                return shared
            shared.close()

    def _open_once(self) -> _SharedFile:
        with closed_on_error():
            return self._open_as(PositionalFile(self.path))

    def _open_as(self, file: PositionalFile) -> _SharedFile:
        size = file.size
        try:
            environment = self._lmdb.open(self.path, subdir=False, readonly=True, lock=False, create=False)
        except self._lmdb.Error as error:
            code = next((code for code in _OPEN_ERRORS if os.strerror(code) in str(error)), None)
            if code is not None:
                raise OSError(code, os.strerror(code), self.path) from error
            if "already open" in str(error):
                raise
            raise file_damaged(self.path, "", f"this is not a complete LMDB file ({error}); it ends", size) from error
        try:
            shared = _SharedFile(environment, file)
            # A short file is mapped to its claimed length, and reading behind its end would be a SIGBUS.
            if size < shared.size:
                raise file_damaged(self.path, "", f"the file ends after {size} of {shared.size} bytes,", size)
            return shared
        except BaseException:
            environment.close()
            raise

    @property
    def size(self) -> int:
        """Bytes of the file that are in use."""
        return 0 if self._shared is None else self._shared.size

    @property
    def transaction(self) -> Any:
        """The snapshot.

        Raises:
            DataFlowTerminated: The file was closed.
        """
        if self._shared is None:
            raise DataFlowTerminated(f"{self.path} was closed while it was being read")
        return self._shared.transaction

    @property
    def identity(self) -> Identity:
        """The state of the file, as it was opened."""
        return [] if self._shared is None else self._shared.file.identity

    def require_unchanged(self) -> None:
        """Check that the file is what was opened: other programs may write where the snapshot is.

        Raises:
            FileDamaged: It was changed in place.
        """
        if self._shared is not None:
            self._shared.file.require_unchanged()

    def damaged(self, error: Exception) -> FileDamaged:
        """Return the error to raise for one of LMDB."""
        return file_damaged(self.path, "", f"LMDB cannot read it ({error})")

    def get(self, key: bytes) -> Any:
        """Return the value of a key, or None; valid as long as `lock` is held."""
        try:
            return self.transaction.get(key)
        except self._lmdb.BadValsizeError:
            return None  # no file has a key of this length
        except self.error as error:
            raise self.damaged(error) from error

    def close(self) -> None:
        """Close it, unless other flows use the file. Idempotent."""
        files = _open_files()
        with self.lock, files.lock:
            shared, self._shared = self._shared, None
            if shared is None or self._pid != files.pid:
                return
            shared.users -= 1
            if not shared.users:
                del files.shared[self._key]
                shared.close()


class _KeyList:
    """Arbitrary keys, in one piece of memory."""

    def __init__(self, keys: Iterator[bytes]) -> None:
        ends, blob = [0], bytearray()
        for key in keys:
            blob += key
            ends.append(len(blob))
        self._blob = bytes(blob)
        self._ends = np.array(ends, np.uint64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, k: int) -> bytes:
        return self._blob[int(self._ends[k]) : int(self._ends[k + 1])]


class _LMDBKeyReader:
    """Reader of the keys and values of a file."""

    def __init__(self, path: str, keys: Sequence[str | bytes] | str | None, *, pickled: bool = False) -> None:
        self._file = _LMDBFile(path)
        self._given = keys is not None
        self._sorted = keys is None  # in this order, neighbours are neighbours in the file, too
        self._is_ours = False
        try:
            with self._file.lock:
                self._num, self._key_at = self._find_keys(keys)
        except self._file.error as error:
            self._file.close()
            raise self._file.damaged(error) from error
        except BaseException:
            self._file.close()
            raise
        self._decoder = RecordDecoder(
            self._file.path,
            "key",
            pickled=pickled,
            foreign=not self._is_ours,
            name=lambda k: repr(self._key_at(k)),
        )

    def _find_keys(self, keys: Sequence[str | bytes] | str | None) -> tuple[int, Callable[[int], bytes]]:
        transaction = self._file.transaction
        mark, listed = transaction.get(_MARK), transaction.get(_LISTED)
        num = int(transaction.stat()["entries"]) - (mark is not None) - (listed is not None)
        if not 0 <= num <= self._file.size:  # each takes a byte at least
            raise file_damaged(self._file.path, "", f"it claims {num} datapoints in {self._file.size} bytes")
        if mark is not None:
            self._check_mark(bytes(mark), num)
            self._is_ours = True
        if isinstance(keys, str):
            return num, lambda k: keys.format(k).encode()
        if keys is None and self._is_ours:
            self._sorted = num <= _NUM_ORDERED
            return num, _numbered
        found = _KeyList(map(_encode, keys) if keys is not None else self._list_keys(listed, num))
        return len(found), found.__getitem__

    def _list_keys(self, listed: Any, num: int) -> Iterator[bytes]:
        """Return all keys, from tensorpack's list where that is safe to read; otherwise from the file, in its order."""
        found: Any = None
        if listed is not None:
            with suppress(Exception):  # a pickle
                found = msgpack.unpackb(listed)
        # Exactly these types: `bytes` of a number would be as many zeros.
        if isinstance(found, list) and len(found) == num and {str, bytes}.issuperset(map(type, found)):
            self._sorted = False
            return map(_encode, found)
        _log.info("searching %s for its keys", self._file.path)
        keys = map(bytes, self._file.transaction.cursor().iternext(keys=True, values=False))
        return (key for key in keys if key not in {_LISTED, _MARK})

    def _check_mark(self, mark: bytes, num: int) -> None:
        try:
            said = msgpack.unpackb(mark)
            version, expected, algorithm = said["version"], said["size"], said.get("checksum")
        except Exception as error:
            raise file_damaged(self._file.path, "", f"the mark of dataflow cannot be read ({error})") from error
        check_version(self._file.path, "", version, _VERSION, algorithm)
        if expected != num:
            raise file_damaged(self._file.path, "", f"there are {num} datapoints, and {expected} were written")

    @property
    def identities(self) -> Sequence[Identity]:
        return [self._file.identity]

    def __len__(self) -> int:
        return self._num

    def close(self) -> None:
        self._file.close()

    def read(self, positions: Positions) -> Iterator[Any]:
        self._file.require_unchanged()
        return chain.from_iterable(self._batches(positions))

    def _batches(self, positions: Positions) -> Iterator[list[Any]]:
        for first, end in runs(positions, len(positions)):
            if self._sorted and end > first + 1:
                yield from self._neighbours(first, end)
            else:
                yield from map(self._single, range(first, end))

    def _single(self, k: int) -> list[Any]:
        with self._file.lock:
            value = self._file.get(self._key_at(k))
            if value is None:
                raise self._missing(k, k + 1)
            return self._make(k, [value])

    def _neighbours(self, first: int, end: int) -> Iterator[list[Any]]:
        """Yield the datapoints of a run of positions.

        Small values are read together, under one lock. Keys come in order: if the last one is right, none was left out.
        """
        values: Any = None
        num = 1
        while first < end:
            num = min(num, end - first)
            with self._file.lock:
                transaction = self._file.transaction  # not closed meanwhile
                try:
                    if values is None:
                        cursor = transaction.cursor()
                        values = cursor.iternext(keys=False) if cursor.set_key(self._key_at(first)) else iter(())
                    found = list(islice(values, num))
                    if len(found) < num or cursor.key() != self._key_at(first + num - 1):
                        raise self._missing(first, first + num)
                except self._file.error as error:
                    raise self._file.damaged(error) from error
                dps = self._make(first, found)
                first += num
                num = max(1, min(_MAX_AT_ONCE, _BATCH // max(1, len(found[-1]))))
            yield dps

    def _missing(self, first: int, end: int) -> FileDamaged | KeyError:
        """Return the error about the first key that is missing."""
        keys = [self._key_at(k) for k in range(first, end)]
        key = next((key for key in keys if self._file.get(key) is None), keys[0])
        if not self._given:
            return file_damaged(self._file.path, f"key {key!r}", "there is no such key")
        return KeyError(f"there is no key {key!r} in {self._file.path}: see the keys= that were given")

    def _make(self, first: int, values: list[Any]) -> list[Any]:
        """Return the datapoints of values, which are valid as long as the lock is held."""
        pairs = [[self._key_at(k), bytes(value)] for k, value in enumerate(values, first)]
        if self._is_ours:
            for k, (key, value) in enumerate(pairs, first):
                if key != _MARK:
                    self._decoder.verify(value, k, key)
        return pairs


def _encode(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


class _LMDBReader(_LMDBKeyReader):
    """Reader of the datapoints of a file. Each is verified when it is read for the first time."""

    def __init__(self, path: str, pickled: bool) -> None:
        super().__init__(path, None, pickled=pickled)
        self._verified = bytearray(len(self))

    def _find_keys(self, keys: Sequence[str | bytes] | str | None) -> tuple[int, Callable[[int], bytes]]:
        num, key_at = super()._find_keys(keys)
        for k in (0, num - 1) if num and not self._is_ours else ():
            value = self._file.get(key_at(k))
            if value is not None and is_record(value):  # datapoints may be missing, too
                raise file_damaged(self._file.path, "", "there are records of dataflow, and the mark is missing")
        return num, key_at

    def _make(self, first: int, values: list[Any]) -> list[Any]:
        decode, end = self._decoder.decode, first + len(values)
        if self._verified.find(0, first, end) < 0:
            try:
                return [decode(value, k, verify=False) for k, value in enumerate(values, first)]
            except FileDamaged:
                pass  # verified again below, to name the damage
        key_at = self._key_at
        dps = [decode(value, k, key=key_at(k)) for k, value in enumerate(values, first)]
        self._verified[first:end] = b"\1" * len(values)
        return dps


# -- writing -----------------------------------------------------------------------------------------------------------


@contextmanager
def _writing(lmdb: Any, path: str, frequency: int) -> Iterator[_LMDBWriter]:
    """Context manager: return what writes numbered values. The file, which is new, is complete after a normal exit."""
    # Synced once, by `finish`: until it is complete, the file has another name.
    with lmdb.open(
        path, subdir=False, lock=False, map_size=_FIRST_MAP, sync=False, meminit=False, max_readers=1
    ) as environment:
        writer = _LMDBWriter(lmdb, environment, path, frequency)
        yield writer
        writer.finish()


class _LMDBWriter:
    """Writes numbered values.

    Guarantees:

    - A full map grows without loss: values put since the last commit are kept until the next one, and
      put again if LMDB drops them.
    - Every version of the file that a reader could find if the last page were lost states how many values it must
      have: the mark is committed before the first value.
    """

    def __init__(self, lmdb: Any, environment: Any, path: str, frequency: int) -> None:
        self._lmdb = lmdb
        self._environment = environment
        self._path = path
        self._frequency = max(1, frequency)  # values after which a commit is due, at the latest
        self._transaction: Any = None  # the one that is open
        self._pending: list[tuple[bytes, bytes, bool]] = []  # since the last commit: key, value, whether to append
        self._num_bytes = 0  # bytes of the pending values
        self._num = 0
        self._mark(-1)
        self.commit()

    def finish(self) -> None:
        """Complete the file."""
        self.commit()
        self._mark(self._num)  # after all values are committed
        self.commit()
        self._tried(lambda: self._environment.sync(True))

    def put(self, number: int, value: bytes) -> None:
        """Put one value."""
        self._put(_numbered(number), value, append=number < _NUM_ORDERED)
        self._num += 1
        if len(self._pending) >= self._frequency or self._num_bytes >= _PENDING:
            self.commit()

    def commit(self) -> None:
        """Commit the pending values; the map grows until it has room."""
        # Ends: the map doubles each time, until it has room, or the system refuses.
        while True:
            try:
                self._tried(self._commit)
            except self._lmdb.MapFullError:
                self._grow()
            else:
                self._pending.clear()
                self._num_bytes = 0
                return

    def _commit(self) -> None:
        if self._transaction is None and self._pending:
            self._transaction = self._environment.begin(write=True)
            for key, value, append in self._pending:
                self._transaction.put(key, value, append=append)
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()

    def _mark(self, size: int) -> None:
        said = {"version": _VERSION, "size": size, "checksum": ALGORITHM}
        self._put(_MARK, msgpack.packb(said), append=False)

    def _put(self, key: bytes, value: bytes, *, append: bool) -> None:
        # First: if the map is full, `commit` puts it with the others.
        self._pending.append((key, value, append))
        self._num_bytes += len(value)
        try:
            if self._transaction is None:
                self._transaction = self._environment.begin(write=True)
            self._tried(lambda: self._transaction.put(key, value, append=append))
        except self._lmdb.MapFullError:
            self._grow()
            self.commit()

    def _grow(self) -> None:
        """Make the map larger. LMDB drops the transaction; `commit` puts the pending values again."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def _tried(self, act: Callable[[], Any]) -> None:
        """Call `act`; an error of the system becomes an `OSError` again."""
        try:
            act()
        except self._lmdb.MapFullError:
            raise
        except self._lmdb.Error as error:
            for code in _DISK_ERRORS:
                if os.strerror(code) in str(error):
                    code = self._cause() if code == errno.EIO else code
                    raise OSError(code, os.strerror(code), self._path) from error
            raise

    def _cause(self) -> int:
        """Return the cause of the EIO that LMDB reports for a short write: request more room directly."""
        try:
            with open(self._path, "r+b") as file:
                os.posix_fallocate(file.fileno(), os.path.getsize(self._path), 1 << 20)
        except OSError as error:
            return error.errno or errno.EIO
        except AttributeError:  # no such call on this system
            pass
        return errno.EIO
