"""`NumpySerializer`: datapoints in an npz file, one array for each component, as `numpy.load` reads them."""

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
    """The rows of the arrays of an npz file. `NumpySerializer.load` makes one."""

    def _df_open_reader(self) -> Reader:
        return NpzReader(self.path)


class NumpySerializer:
    """Datapoints in an npz file: an array for each component.

    All datapoints must have the same components, arrays of the same dtype and shape. Text, bytes and containers may
    be of any length. Arrays come back in C order.

    Source:
        tensorpack.dataflow, whose class of this name it replaces. Its files are pickles.
    """

    @staticmethod
    def save(df: DataFlow, path: PathLike, *, overwrite: bool = False) -> None:
        """Write one pass of a flow, row by row.

        The file appears only when it is complete; until then an existing file stays unchanged. While it is being
        written, it takes twice its size on the disk.

        Args:
            df: The flow.
            path: The file to make.
            overwrite: Replace a file of that name.

        Raises:
            FileExistsError: The file exists, and `overwrite` is false.
            NotStorable: A datapoint cannot be stored; names it and its component.
            OSError: For example, the disk is full. No partial file is left.

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
        """Return a flow over an npz file, which can be addressed: rows are read from the file on demand.

        A file of another program gives dicts, with a row of each of its arrays; compressed arrays are
        decompressed to a temporary file when the flow is opened.

        Args:
            path: The file.
            shuffle: Draw a new order for every pass. This is random access.
            block_shuffle: Instead: draw an order of blocks of so many datapoints, and one inside each; the disk is
                then read in blocks.
            seed: Root seed for the order, instead of the one of `dataflow.seed`.
            pickle: Load arrays of Python objects, as in the files of tensorpack. They are in memory as a whole. A
                pickle can run any code: only for files from sources that you trust.

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
    """Return a datapoint of tensorpack: if all components have the same length, numpy has made one array of them."""
    return list(row) if isinstance(row, np.ndarray) and row.dtype.hasobject else row
