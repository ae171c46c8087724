"""Datapoints in a npz file: one array for each component, which `numpy.load` reads, too; and other people's files."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow.base import DataFlow
from dataflow.formats.loading import DiskData, PathLike, Reader, existing
from dataflow.formats.npz_reader import NpzReader, arrays_of_objects
from dataflow.formats.npz_writer import NpzWriter
from dataflow.formats.saving import named, replacing, saved_pass
from dataflow.sources.in_memory import DataFromList

__all__ = ["NumpyData", "NumpySerializer"]


class NumpyData(DiskData):
    """The rows of the arrays of a npz file. `NumpySerializer.load` makes one."""

    def _df_open_reader(self) -> Reader:
        return NpzReader(self.path)


class NumpySerializer:
    """Datapoints in a npz file: an array for each component.

    All datapoints need to have the same components, arrays of the same dtype and shape. Text, bytes and containers may
    be of any length. Arrays come back in C order.

    Source:
        tensorpack.dataflow, whose class of this name it replaces. Its files are pickles.
    """

    @staticmethod
    def save(df: DataFlow, path: PathLike, *, overwrite: bool = False) -> None:
        """Write one pass of a flow, row by row.

        There is either the whole new file in the end, or what was there before. While it is being written, it takes
        twice its size on the disk.

        Args:
            df: The flow.
            path: The file to make.
            overwrite: Replace a file of that name.

        Raises:
            FileExistsError: There is such a file, and `overwrite` is false.
            NotStorable: Names the datapoint and its component.
            OSError: The disk is full, for example. Nothing is left behind.

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
        with replacing(path, overwrite=overwrite) as part, NpzWriter(part) as writer:
            for number, dp in saved_pass(df, "NumpySerializer"):
                with named(number):
                    writer.write(dp)

    @staticmethod
    def load(
        path: PathLike,
        shuffle: bool = True,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
        pickle: bool = False,
    ) -> DataFlow:
        """A flow over a npz file, which can be addressed: rows are read from the file when they are asked for.

        A file that others have made gives dicts, with a row of each of its arrays; arrays that are compressed are
        decompressed to a temporary file when the flow is opened.

        Args:
            path: The file.
            shuffle: Draw a new order for every pass. This is random access.
            block_shuffle: Instead: draw an order of blocks of so many datapoints, and one inside each; the disk is
                then read in blocks.
            seed: A root seed for the order, instead of the one of `dataflow.seed`.
            pickle: Unpickle arrays of Python objects, as in the files of tensorpack. They are in memory as a whole. A
                pickle can run any code: only for files of which you know who wrote them.

        Raises:
            FileDamaged: The file was cut off or has changed.
            PickleRefused: The file holds pickles.
            ValueError: The arrays differ in length.
        """
        arrays = arrays_of_objects(existing(path)) if pickle else None
        if arrays is not None:
            lists: list[Any] = [[_row(row) for row in array] for array in arrays.values()]
            dps = lists[0] if len(lists) == 1 else [list(row) for row in zip(*lists, strict=True)]
            return DataFromList(dps, shuffle, seed=seed)
        return NumpyData(path, shuffle, block_shuffle=block_shuffle, seed=seed)


def _row(row: Any) -> Any:
    """A datapoint of tensorpack: where all have the same length, numpy has made one array of them."""
    return list(row) if isinstance(row, np.ndarray) and row.dtype.hasobject else row
