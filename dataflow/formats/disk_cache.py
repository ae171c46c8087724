"""`DiskCacheData`: a cache of one pass on disk, for this run and later ones."""

from __future__ import annotations

import difflib
import errno
import logging
import os
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dataflow.errors import FileDamaged, LengthUnknown, MissingExtra, NotReproducible
from dataflow.formats.checksums import masked_crc32
from dataflow.formats.loading import PathLike
from dataflow.formats.records import RecordEncoder, is_record
from dataflow.formats.saving import alone, writing_all
from dataflow.formats.tfrecord import HEADER, RecordReader, writing
from dataflow.protocol.base import Blocks, DataFlow, ProxyDataFlow, T_co
from dataflow.protocol.changes import Snapshot
from dataflow.protocol.failures import Failure
from dataflow.protocol.fingerprints import describe, digest
from dataflow.protocol.passes import fill_files, in_worker, known_length, open_flow, until_closed, walk
from dataflow.protocol.pauses import pausing
from dataflow.protocol.seeding import Stream
from dataflow.protocol.state import state_of
from dataflow.transforms.arguments import require_end
from dataflow.transforms.indexing import Indexes, pass_by_index, passes_and_positions

__all__ = ["DiskCacheData"]

_log = logging.getLogger("dataflow.formats")

_VERSION = 1
_FIRST = "iterate DiskCacheData itself once first, as in: for _ in cache: break"


class DiskCacheData(ProxyDataFlow[T_co]):
    """Read one pass of the input, store it in a file, and return it in every pass of this run and later ones.

    The first iteration fills the file, completely, before the first datapoint is returned; a run that is interrupted
    meanwhile leaves nothing. Only then is the number of datapoints known, if a map below drops some. Later iterations,
    in this process or in another one, read the file, and the input is not even reset. Of several workers that start at
    once, one fills the file, and the others wait.

    Shuffle the output with `ShuffleData`. The file belongs to its `fingerprint`: with another one it is filled
    again, and a warning says what has changed. Random numbers of the input are drawn once; with another seed the file
    stays as it is.

    The file belongs to the flow, not to how that is run: the number of workers, their buffers and timeouts may change
    between runs, and a file filled without workers is valid over a strict runner or map. A node that mixes its
    datapoints (a default runner of several workers, an unordered map) is rejected, since a pass of it may lack
    datapoints and hold others twice, and the file would keep that.

    If datapoints are skipped within `max_failures` while the file is filled, a warning names them, and the file is not
    kept: this run reads what there is.

    Args:
        ds: The input. Only one pass of it is read.
        path: The file. An index is kept beside it.
        fingerprint: Any text that identifies `ds`; change it when `ds` changes. None derives it from `ds`: nodes count
            by their classes and parameters; data by value; functions and classes of your program by their code, by what
            they hold, and by the global variables and functions that the code names, to any depth; packages by name and
            version; files that sources name, and those that a list for `FetchData` names, by size and time of change.
            What code reads from files, the environment, the clock, the network or global random generators is not
            included.
        pickle: Pickle components without a representation of their own.

    Raises:
        ValueError: A pass of `ds` never ends, so that it cannot be kept.
        NotReproducible: A runner or map in `ds` mixes the output of its workers; names it. Also if the input can be
            read only once, and an attempt to fill the file was interrupted.
            Also if datapoints are skipped within `max_failures` while a worker fills the file.
        TypeError: Something that `ds` holds, or a global variable that its functions name, cannot be compared between
            runs, or does not exist yet; names it. So is what `FetchData` reads by URL, or by a name that code makes.
        NotStorable: A datapoint cannot be stored; names its component.
        OSError: For example, the disk is full. No partial file is left.
        LengthUnknown: `len` before the file is filled, if the length of `ds` is unknown; or while iterating: the
            workers of a runner above have filled the file, and `ds` had dropped datapoints.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = os.path.join(folder.name, "squares")
        >>> numbers = DataFromList([[1], [2], [3]], shuffle=False)
        >>> df = DiskCacheData(MapData(numbers, lambda dp: [dp[0] ** 2]), path)
        >>> list(df), os.path.exists(path)
        ([[1], [4], [9]], True)
        >>> df.close(); folder.cleanup()
    """

    _df_run_settings = frozenset({"_broke_off"})
    _df_snapshot: Snapshot | None = None  # what `_description` was derived from; None for the user's fingerprint
    _df_remote_inputs = True  # they are reset only where the file is filled
    _df_fills_file = True
    _df_grain = 1

    def __init__(
        self,
        ds: DataFlow[T_co],
        path: PathLike,
        *,
        fingerprint: str | None = None,
        pickle: bool = False,
    ) -> None:
        if isinstance(ds, str | os.PathLike):
            raise TypeError(
                f"DiskCacheData(ds, path) caches a flow; it reads no file, as tensorpack's does, and got {ds!r}. To "
                "read one, use load of LMDBSerializer, TFRecordSerializer, NumpySerializer or HDF5Serializer"
            )
        super().__init__(ds)
        require_end(ds, "DiskCacheData", "keeps a whole pass")
        _require_whole_passes(ds)
        self.path = os.fspath(path)
        self.pickle = pickle
        self._description = describe(ds) if fingerprint is None else f"fingerprint {fingerprint}"
        self._df_snapshot = self._snapshot() if fingerprint is None else None
        self._broke_off = False  # an attempt to fill the file has failed, so that the input may be within a pass

    @property
    def fingerprint(self) -> str:
        """The fingerprint that the file must have: 32 characters, derived from `description`."""
        return digest(self._description)

    @property
    def description(self) -> str:
        """The text that the fingerprint is derived from."""
        return self._description

    @property
    def _df_stands_for(self) -> Any:
        return self

    @property
    def _df_compared(self) -> dict[str, Any]:
        return {name: value for name, value in super()._df_compared.items() if name != "path"}

    def _df_unaddressable(self) -> DataFlow | None:
        return self if self._df_user_written else None  # whatever the input is, the file can be addressed

    def __len__(self) -> int:
        reader = self._reader()
        if reader is not None:
            return len(reader) - 1
        try:
            return len(self.ds)
        except LengthUnknown as error:
            raise LengthUnknown(f"{error}. It is known once {self.path} is filled: {_FIRST}") from error

    def reset_state(self) -> None:
        state_of(self).own(self, None)

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return until_closed(pausing(self._pass_of_file(p, stream), self._df_waits), self)

    def _pass_of_file(self, p: int, stream: Stream) -> Iterator[Any]:
        self._notice_changes()
        yield from self._filling(stream)
        yield from pass_by_index(self, p, stream)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        counted = known_length(self)  # the indexes may follow from it
        self._notice_changes()
        parts = map(partial(self._read, stream), blocks)
        return pausing(chain(self._filling(stream, counted), chain.from_iterable(parts)), self._df_waits)

    def _df_fill_file(self, stream: Stream) -> None:
        # A timeout would break the attempt off. A file that is there is compared with the flow later, once a pass.
        if not self._df_waits and self._reader() is None:
            self._notice_changes()
            for _ in self._filling(stream):
                pass

    def _read(self, stream: Stream, indexes: Indexes) -> Iterator[Any]:
        reader = self._reader()
        assert reader is not None, "it was filled first"
        _, positions = passes_and_positions(self, indexes, len(reader) - 1)
        return reader.read(positions + 1)  # behind the head

    # -- changes of the flow -------------------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        return Snapshot(walk(self.ds, everywhere=True), shared=True)

    def _notice_changes(self) -> None:
        """Derive the fingerprint again if the flow has changed since it was derived, by assignment or a longer list.

        A copy of this node in a worker has no snapshot: it keeps the fingerprint that it was sent with.
        """
        before = self._df_snapshot
        if before is None or before.difference(now := self._snapshot()) is None:
            return
        self._df_snapshot = now
        description = describe(self.ds)
        if description != self._description:
            self._description = description
            state_of(self).own(self, None)

    # -- the file ------------------------------------------------------------------------------------------------------

    def _filling(self, stream: Stream, counted: int | None = None) -> Iterator[Any]:
        """Fill the file, unless it is there; yields only pauses.

        Raises:
            LengthUnknown: It has another number of datapoints than `counted`, from which indexes were computed before.
        """
        if self._reader() is None:
            with alone(self.path, f"{type(self).__name__} waits for another process or thread to fill {self.path}"):
                if self._reader(explain=True) is None:  # not filled meanwhile, by another thread or process
                    yield from self._fill(stream)  # a pause in it keeps the lock: the next step goes on with the file
            if counted is not None and counted != (n := len(self)):
                raise LengthUnknown(
                    f"{self.path} has been filled now, with {n} datapoints, but before, {counted} were expected, and "
                    "the nodes above have computed positions from that: a map has dropped datapoints, or the flow has "
                    f"changed. The file is kept, so the next run is right. To have it before it is needed, {_FIRST}"
                )

    def _reader(self, *, explain: bool = False) -> RecordReader | None:
        """Return the open file; None if there is none of this fingerprint."""
        state = state_of(self)
        with state.lock:
            if state.resource is None and os.path.exists(self.path):
                reader = self._open_reader(explain=explain)
                if reader is not None:
                    state.own(self, reader)
            held: Any = state.resource
        kept: RecordReader | None = held
        return kept

    def _open_reader(self, *, explain: bool) -> RecordReader | None:
        try:
            reader = RecordReader(self.path, pickled=self.pickle, compute=masked_crc32)
        except (FileDamaged, MissingExtra) as error:
            if not _begins_like_a_cache(self.path):
                raise self._no_cache() from error
            if explain:
                _log.warning("%s will be filled again: %s", self.path, error)
            return None
        try:
            head = next(reader.read(np.arange(min(1, len(reader)))), None)
            if type(head) is dict and head.get("version") == _VERSION and head.get("fingerprint") == self.fingerprint:
                return reader
            if type(head) is not dict or "fingerprint" not in head:
                raise self._no_cache()
            if explain:
                changes = self._changes(head)
                _log.warning("%s will be filled again, because the flow has changed:\n%s", self.path, changes)
        except BaseException:
            reader.close()
            raise
        reader.close()
        return None

    def _no_cache(self) -> FileExistsError:
        reason = "this file is not a cache, so it is not replaced: choose another path, or delete it"
        return FileExistsError(errno.EEXIST, reason, self.path)

    def _changes(self, head: dict[str, Any]) -> str:
        lines = difflib.unified_diff(
            str(head.get("description")).splitlines(), self._description.splitlines(), lineterm="", n=0
        )
        return "\n".join(line for line in list(lines)[2:22] if not line.startswith("@@"))

    def _fill(self, stream: Stream) -> Iterator[Any]:
        encoder = RecordEncoder(pickled=self.pickle)
        head = {"version": _VERSION, "fingerprint": self.fingerprint, "description": self._description}
        self._rewind_input()
        self._broke_off = True  # until the file is complete: whatever interrupts it in between
        if open_flow(self.ds, stream):
            fill_files(self.ds, stream)
        known = {id(failure): failure for failure in _failures(self.ds)}
        with writing(self.path, masked_crc32, overwrite=True) as write:
            write(encoder.encode(head))
            yield from writing_all(
                self.ds._df_run_pass(0, stream),
                lambda number, dp: write(encoder.encode(dp)),
                total=known_length(self.ds),
                label=f"filling {os.path.basename(self.path)}",
                waits=self._df_waits,
            )
            failed = [failure for failure in _failures(self.ds) if id(failure) not in known]
            if failed and (in_worker() or os.name == "nt"):  # others would have another pass; it cannot be removed
                raise NotReproducible(_not_kept(self.path, failed))
        if failed:
            self._remove_file()
            _log.warning("%s, and later runs fill it again", _not_kept(self.path, failed))
        self._broke_off = False
        if self._df_snapshot is not None:
            self._df_snapshot = self._snapshot()  # the file is what the flow made, whatever it has counted meanwhile

    def _remove_file(self) -> None:
        """Remove the file; this flow reads what it has written until it is closed."""
        self._reader()
        file = os.path.realpath(self.path)
        for path in (file, f"{file}.index"):
            Path(path).unlink(missing_ok=True)

    def _rewind_input(self) -> None:
        """Make an input that continues where its last pass stopped begin a whole pass."""
        continuing = [node for node in walk(self.ds, everywhere=True) if node._df_continues]
        if self._broke_off and (source := next((node for node in continuing if not node._df_inputs), None)):
            raise NotReproducible(
                f"an attempt to fill {self.path} was broken off, and {type(source).__name__} has already given out the "
                "first datapoints, so the file would lack them: create the flow again"
            )
        if any(self._broke_off or (node._df_remote_inputs and state_of(node).begun) for node in continuing):
            self.ds.close()


def _failures(ds: DataFlow) -> list[Failure]:
    """What the nodes of `ds` have skipped so far."""
    found = [state_of(node).tolerance for node in walk(ds, everywhere=True)]
    return [failure for tolerance in found if tolerance is not None for failure in tolerance.failures]


def _not_kept(path: str, failed: list[Failure]) -> str:
    return (
        f"{path} is not kept: datapoints were skipped within max_failures while it was filled, so that it would lack "
        f"them for good ({failed[0]}{f', and {len(failed) - 1} more' * (len(failed) > 1)}). Repair them; or, to leave "
        "them out for good, return None for them"
    )


def _begins_like_a_cache(path: str) -> bool:
    """Whether a damaged file is ours to replace; an empty one is."""
    with open(path, "rb") as file:
        begin = file.read(HEADER.size + 64)
    return not begin or (is_record(begin[HEADER.size :]) and b"version" in begin and b"fingerprint" in begin)


def _require_whole_passes(ds: DataFlow) -> None:
    for node in walk(ds, everywhere=True):
        if node._df_inputs and not node._df_reproducible:
            raise NotReproducible(
                f"DiskCacheData keeps one pass for all runs, but {node._df_title} mixes what its workers make: "
                "their order is not defined, and by default datapoints may be missing or repeated. Pass strict=True "
                "(and not ordered=False) to it"
            )
