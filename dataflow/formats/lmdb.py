"""`LMDBSerializer`, `LMDBData`, `LMDBDataDecoder`: datapoints in an LMDB file, each under a key of its own.

Damage is reported: a file that was cut off when it is opened, a datapoint that has changed when it is read for the
first time, a key that is missing when it is requested. LMDB itself trusts the pages that lead to a key: if one of
these has changed, the process may crash. It may also find another datapoint, which is reported, too, since the
checksum of each covers its key. Wrong data are never returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from dataflow.base import DataFlow
from dataflow.formats.environments import lmdb_package
from dataflow.formats.lmdb_reader import DatapointReader, KeyReader, numbered
from dataflow.formats.lmdb_writer import LMDBWriter
from dataflow.formats.loading import DiskData, PathLike, Reader
from dataflow.formats.records import RecordEncoder
from dataflow.formats.saving import named, replacing, saved_pass
from dataflow.transforms.mapping import MapData

__all__ = ["LMDBData", "LMDBDataDecoder", "LMDBRecords", "LMDBSerializer"]


class LMDBData(DiskData):
    """The keys and values of an LMDB file, as datapoints ``[key, value]`` of bytes.

    `LMDBDataDecoder` decodes them; `LMDBSerializer.load` reads the files of `LMDBSerializer.save`.

    Args:
        lmdb_path: The file, or a folder with a ``data.mdb`` in it.
        shuffle: Draw a new order for every pass. This is random access.
        keys: The keys to read: a list of str or bytes, or a format such as ``"{:0>8d}"`` for the numbers from 0. None
            means all; if the file does not list its keys, it is searched for them.
        block_shuffle: Instead of any order: draw an order of blocks of so many keys, and one inside each.
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
        lmdb_package()
        super().__init__(lmdb_path, shuffle, block_shuffle=block_shuffle, seed=seed)
        self.keys = keys

    def _df_open_reader(self) -> Reader:
        return KeyReader(self.path, self.keys)


class LMDBRecords(LMDBData):
    """The datapoints of an LMDB file. `LMDBSerializer.load` makes one."""

    def __init__(
        self, path: PathLike, shuffle: bool, block_shuffle: int | None, seed: int | None, pickle: bool
    ) -> None:
        super().__init__(path, shuffle, block_shuffle=block_shuffle, seed=seed)
        self.pickle = pickle

    def _df_open_reader(self) -> Reader:
        return DatapointReader(self.path, self.pickle)


class LMDBDataDecoder(MapData):
    """The results of a function that decodes each key and value of an LMDB file.

    Args:
        lmdb_data: An `LMDBData`, or another flow of ``[key, value]``.
        decoder: Called with key and value, both bytes; returns a datapoint, or None to drop it.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    def __init__(self, lmdb_data: DataFlow, decoder: Callable[[bytes, bytes], Any]) -> None:
        super().__init__(lmdb_data, _Decoding(decoder))


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
        package = lmdb_package()
        encoder = RecordEncoder(compress=compress, pickled=pickle)
        target = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
        with replacing(target, overwrite=overwrite) as part, LMDBWriter(package, part, write_frequency) as writer:
            for number, dp in saved_pass(df, "LMDBSerializer"):
                with named(number):
                    record = encoder.encode(dp, numbered(number))
                writer.put(number, record)

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
            block_shuffle: Instead: draw an order of blocks of so many datapoints, and one inside each; the disk is
                then read in blocks.
            seed: Root seed for the order, instead of the one of `dataflow.seed`.
            pickle: Load pickles, of tensorpack for example. A pickle can run any code: only for files from sources that
                you trust.

        Raises:
            FileDamaged: The file was cut off, or a datapoint has changed. Names the key.
            PickleRefused: The file holds pickles.
            MissingExtra: The package lmdb is not installed.
        """
        return LMDBRecords(path, shuffle, block_shuffle, seed, pickle)
