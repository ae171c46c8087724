"""`HDF5Serializer` and `HDF5Data`: datapoints in an HDF5 file, a dataset for each component; also of other programs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dataflow.base import DataFlow
from dataflow.formats.hdf5_reader import HDF5Reader, h5py_package
from dataflow.formats.hdf5_writer import HDF5Writer
from dataflow.formats.loading import DiskData, PathLike, Reader
from dataflow.formats.saving import named, replacing, saved_pass

__all__ = ["HDF5Data", "HDF5Serializer"]


class HDF5Data(DiskData):
    """The rows of datasets of an HDF5 file, side by side: lists with one component for each dataset.

    Rows are read on demand, neighbouring rows together; no dataset is loaded as a whole.

    Args:
        filename: The file.
        data_paths: The datasets, such as ``["images", "labels"]``. None means all that `HDF5Serializer` has saved.
        shuffle: Draw a new order for every pass. This is random access, which is slow in datasets of large chunks:
            prefer `block_shuffle` there.
        block_shuffle: Instead: draw an order of blocks of so many rows, and one inside each.
        seed: Root seed for this node's order, instead of the one of `dataflow.seed`.

    Raises:
        FileDamaged: The file was cut off or has changed.
        KeyError: There is no such dataset; lists the existing ones.
        ValueError: The datasets differ in length.
        MissingExtra: The package h5py is not installed.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    def __init__(
        self,
        filename: PathLike,
        data_paths: Sequence[str] | None = None,
        shuffle: bool = True,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> None:
        h5py_package()
        super().__init__(filename, shuffle, block_shuffle=block_shuffle, seed=seed)
        if isinstance(data_paths, str):
            raise TypeError(f"data_paths is a list of names of datasets, got the text {data_paths!r}")
        self.data_paths = None if data_paths is None else list(data_paths)

    def _df_open_reader(self) -> Reader:
        return HDF5Reader(self.path, self.data_paths)


class HDF5Serializer:
    """Datapoints in an HDF5 file, which many other programs read.

    All datapoints must have the same components, arrays of the same dtype and shape. Text, bytes and containers may
    be of any length; other programs see them, and dtypes that HDF5 lacks, as bytes. Arrays come back in C order.

    Source:
        tensorpack.dataflow, whose class of this name it replaces.
    """

    @staticmethod
    def save(
        df: DataFlow,
        path: PathLike,
        data_paths: Sequence[str] | None = None,
        *,
        overwrite: bool = False,
        compress: str | None = None,
    ) -> None:
        """Write one pass of a flow, row by row.

        The file appears only when it is complete; until then an existing file stays unchanged.

        Args:
            df: The flow.
            path: The file to make.
            data_paths: Names of the datasets, one for each component. None means the keys of dicts, otherwise numbers.
            overwrite: Replace a file of that name.
            compress: A compression of HDF5: "gzip" or "lzf".

        Raises:
            FileExistsError: The file exists, and `overwrite` is false.
            NotStorable: A datapoint cannot be stored; names it and its component.
            OSError: For example, the disk is full. No partial file is left.
            MissingExtra: The package h5py is not installed.

        Example:
            >>> import os, tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = os.path.join(folder.name, "numbers.h5")
            >>> df = DataFromList([[k, np.full(2, k)] for k in range(3)], shuffle=False)
            >>> HDF5Serializer.save(df, path, ["label", "image"])
            >>> df = HDF5Serializer.load(path, ["label", "image"], shuffle=False)
            >>> len(df), df[1]
            (3, [1, array([1, 1])])
            >>> df.close(); folder.cleanup()
        """
        package = h5py_package()
        with (
            replacing(os.fspath(path), overwrite=overwrite) as part,
            HDF5Writer(package, part, data_paths, compress) as writer,
        ):
            for number, dp in saved_pass(df, "HDF5Serializer"):
                with named(number):
                    writer.write(dp)

    @staticmethod
    def load(
        path: PathLike,
        data_paths: Sequence[str] | None = None,
        shuffle: bool = True,
        *,
        block_shuffle: int | None = None,
        seed: int | None = None,
    ) -> DataFlow:
        """Return a `HDF5Data` over an HDF5 file, which can be addressed; the parameters are the same."""
        return HDF5Data(path, data_paths, shuffle, block_shuffle=block_shuffle, seed=seed)
