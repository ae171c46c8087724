"""Reader of an LMDB file: its keys and their values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import msgpack
import numpy as np

from dataflow.errors import DataFlowTerminated, FileDamaged
from dataflow.formats.checksums import check_version
from dataflow.formats.damage import Damaged, file_damaged
from dataflow.formats.environments import Environment
from dataflow.formats.loading import Positions, runs
from dataflow.formats.records import RecordDecoder, is_record

__all__ = ["MARK", "VERSION", "DatapointReader", "KeyReader", "numbered"]

_log = logging.getLogger("dataflow.formats")

MARK: Final = b"!dataflow"
"""Key of the mark in files of ours. It sorts before all digits, so that numbers can be appended behind it."""

VERSION: Final = 2
"""Version of the files that are written; files of version 1, whose checksums differ, can be read."""

_LISTED = b"__keys__"  # where tensorpack keeps a list of all keys
_NUM_ORDERED = 10**8  # numbers below it are in the order of their keys
_RUN = 256  # neighbouring keys that are read in one go
_BATCH = 1 << 16  # bytes of neighbouring values that are returned together
_MAX_AT_ONCE = 32

Make = Callable[[int, bytes, Any], Any]  # arguments: number, key and value


def numbered(k: int) -> bytes:
    """The key of datapoint `k`, as in tensorpack's files."""
    return b"%08d" % k


class _Numbered:
    """Sequence of keys that are computed from their numbers."""

    def __init__(self, num: int, make: Callable[[int], bytes] = numbered) -> None:
        self._num = num
        self._make = make

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, k: int) -> bytes:
        return self._make(k)


class _Listed:
    """Sequence of arbitrary keys, in one piece of memory."""

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


class KeyReader:
    """Reader of the keys and values of an open file.

    Args:
        path: The file.
        keys: The keys, or a format for numbers; None means all.
    """

    def __init__(self, path: str, keys: Sequence[str | bytes] | str | None) -> None:
        self.file = Environment(path)
        try:
            self._sorted = keys is None  # in this order, neighbours are neighbours in the file, too
            self._given = keys is not None
            self.version = 0  # of a file of ours
            self._keys = self._asked(lambda: self._find_keys(keys))
        except BaseException:
            self.file.close()
            raise

    @property
    def is_ours(self) -> bool:
        """Whether `LMDBSerializer` of this package has written the file."""
        return self.version > 0

    def _find_keys(self, keys: Sequence[str | bytes] | str | None) -> Any:
        transaction = self.file.transaction
        with self.file.lock:
            mark, listed = transaction.get(MARK), transaction.get(_LISTED)
            num = self.file.entries() - (mark is not None) - (listed is not None)
            if mark is not None:
                self.version = self._checked(bytes(mark), num)
            if isinstance(keys, str):
                return _Numbered(num, lambda k: keys.format(k).encode())
            if keys is not None:
                return _Listed(key.encode() if isinstance(key, str) else bytes(key) for key in keys)
            if self.is_ours:
                self._sorted = num <= _NUM_ORDERED
                return _Numbered(num)
            return self._listed(listed, num)

    def _listed(self, listed: Any, num: int) -> Any:
        """Return all keys, from tensorpack's list where that is safe to read; otherwise from the file, in its order."""
        try:
            found = msgpack.unpackb(listed) if listed is not None else None
        except Exception:  # a pickle
            found = None
        if isinstance(found, list) and len(found) == num:
            self._sorted = False
            return _Listed(key.encode() if isinstance(key, str) else bytes(key) for key in found)
        _log.info("searching %s for its keys", self.file.path)
        return _Listed(self._all_keys())

    def _all_keys(self) -> Iterator[bytes]:
        for found in self.file.transaction.cursor().iternext(keys=True, values=False):
            key = bytes(found)
            if key not in {_LISTED, MARK}:
                yield key

    def _checked(self, mark: bytes, num: int) -> int:
        """Return the version that the mark contains."""
        try:
            said = msgpack.unpackb(mark)
            version, expected, algorithm = said["version"], said["size"], said.get("checksum")
        except Exception as error:
            raise file_damaged(self.file.path, "", f"the mark of dataflow cannot be read ({error})") from error
        try:
            check_version(version, VERSION, algorithm)
        except Damaged as error:
            raise file_damaged(self.file.path, "", error.reason) from None
        if expected != num:
            raise file_damaged(self.file.path, "", f"there are {num} datapoints, and {expected} were written")
        return int(version)

    def __len__(self) -> int:
        return len(self._keys)

    def close(self) -> None:
        self.file.close()

    def read(self, positions: Positions) -> Iterator[Any]:
        make = self.maker()
        for first, end in runs(positions, _RUN):
            yield from self.found(make, first, end)

    def found(self, make: Make, first: int, end: int) -> Iterator[Any]:
        """Yield the datapoints of a run of positions, from LMDB's values."""
        if self._sorted and end > first + 1:
            return self._run(make, first, end)
        return (self.one(make, k) for k in range(first, end))

    def one(self, make: Make, k: int) -> Any:
        """Return one datapoint, from LMDB's value."""
        key = self._keys[k]
        with self.file.lock:
            value = self._asked(lambda: self._transaction().get(key))
            if value is None:
                raise self._missing(key)
            return make(k, key, value)

    def _run(self, make: Make, first: int, end: int) -> Iterator[Any]:
        file = self.file
        with file.lock:
            pairs = self._asked(lambda: _from(self._transaction().cursor(), self._keys[first]))
        k, num = first, 1
        while k < end:
            # Small ones together: a lock and a comparison of the key for each would cost as much as the reading. Keys
            # come in order, so if the last one is right, none was left out.
            batch: list[Any] = []
            with file.lock:
                self._transaction()  # closed meanwhile?
                found: Any = b""
                try:
                    for found, value in islice(pairs, min(num, end - k)):
                        batch.append(make(k, found, value))
                        k += 1
                except file.lmdb.Error as error:
                    raise self._unreadable(error) from error
                if not batch or found != self._keys[k - 1]:
                    raise self._first_missing(k - len(batch), end)
                num = max(1, min(_MAX_AT_ONCE, _BATCH // max(1, len(value))))
            yield from batch

    def _transaction(self) -> Any:
        transaction = self.file.transaction
        if transaction is None:
            raise DataFlowTerminated(f"{self.file.path} was closed while it was being read")
        return transaction

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self.file.lmdb.Error as error:
            raise self._unreadable(error) from error

    def _first_missing(self, first: int, end: int) -> FileDamaged | KeyError:
        get = self._transaction().get
        keys = [self._keys[k] for k in range(first, end)]
        return self._missing(next((key for key in keys if self._asked(partial(get, key)) is None), keys[0]))

    def _missing(self, key: bytes) -> FileDamaged | KeyError:
        if not self._given:
            return file_damaged(self.file.path, f"key {key!r}", "there is no such key")
        return KeyError(f"there is no key {key!r} in {self.file.path}: see the keys= that were given")

    def _unreadable(self, error: Exception) -> FileDamaged:
        return file_damaged(self.file.path, "", f"LMDB cannot read it ({error})")

    def maker(self) -> Make:
        """Return the function that makes a datapoint of number, key and value; it must not keep the value."""
        if not self.is_ours:
            return lambda k, key, value: [bytes(key), bytes(value)]
        verify = self.decoder().verify

        def make(k: int, key: bytes, value: Any) -> Any:
            key = bytes(key)
            if key != MARK:
                verify(value, k, key)
            return [key, bytes(value)]

        return make

    def decoder(self, *, pickled: bool = False) -> RecordDecoder:
        """Return the decoder of this file's records."""
        name: Callable[[int], str] = lambda k: repr(self._keys[k])  # noqa: E731
        return RecordDecoder(
            self.file.path, "key", pickled=pickled, foreign=not self.is_ours, old=self.version <= 1, name=name
        )


def _from(cursor: Any, key: bytes) -> Iterator[tuple[Any, Any]]:
    pairs: Iterator[tuple[Any, Any]] = cursor.iternext() if cursor.set_key(key) else iter(())
    return pairs


class DatapointReader(KeyReader):
    """Reader of the datapoints of an open file. Each is verified when it is read for the first time.

    Args:
        path: The file.
        pickled: Load pickles.
    """

    def __init__(self, path: str, pickled: bool) -> None:
        super().__init__(path, None)
        self._pickled = pickled
        self._verified = bytearray(len(self))
        self._decoders: list[RecordDecoder] = []  # of finished readings
        if not self.is_ours and len(self):
            try:
                self._check_foreign()
            except BaseException:
                self.close()
                raise

    def _check_foreign(self) -> None:
        """Raise if there are records of ours without our mark: datapoints may be missing."""
        with self.file.lock:
            for key in (self._keys[0], self._keys[len(self) - 1]):
                value = self._asked(partial(self._transaction().get, key))
                if value is not None and is_record(value):
                    raise file_damaged(self.file.path, "", "there are records of dataflow, and the mark is missing")

    def close(self) -> None:
        super().close()
        self._decoders.clear()

    def read(self, positions: Positions) -> Iterator[Any]:
        try:
            decoder = self._decoders.pop()  # no two concurrent readings share one
        except IndexError:
            decoder = self.decoder(pickled=self._pickled)
        make = self._maker(decoder)
        try:
            for first, end in runs(positions, _RUN):
                yield from self.found(make, first, end)
        finally:
            self._decoders.append(decoder)

    def _maker(self, decoder: RecordDecoder) -> Make:
        verified, again, decode, keys = self._verified, decoder.again, decoder.decode, self._keys

        def make(k: int, key: bytes, value: Any) -> Any:
            if verified[k]:
                dp = again(value)
                return decode(value, k, key=keys[k], verify=False) if dp is None else dp
            # The requested key, not the one that LMDB has found: a damaged page may lead to another.
            wanted = keys[k]
            if key != wanted:  # keys come in order, so a later one
                raise self._missing(wanted)
            dp = decode(value, k, key=wanted)
            verified[k] = 1
            return dp

        return make
