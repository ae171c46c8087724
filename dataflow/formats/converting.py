"""Conversion of files between formats, which are inferred from file extensions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dataflow.formats.hdf5 import HDF5Serializer
from dataflow.formats.json_lines import JSONLinesData
from dataflow.formats.lmdb import LMDBSerializer
from dataflow.formats.loading import PathLike, existing
from dataflow.formats.npz import NumpySerializer
from dataflow.formats.svmlight import SVMLightData
from dataflow.formats.tables import TableData
from dataflow.formats.tfrecord import TFRecordSerializer
from dataflow.formats.webdataset import WebDatasetData
from dataflow.protocol.base import DataFlow

__all__ = ["SUFFIXES", "convert", "format_of"]

SUFFIXES = {
    ".lmdb": "lmdb",
    ".mdb": "lmdb",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".npz": "npz",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".jsonlines": "JSON lines",
    ".tar": "WebDataset",
}

_SERIALIZERS: dict[str, Any] = {
    "lmdb": LMDBSerializer,
    "hdf5": HDF5Serializer,
    "npz": NumpySerializer,
    "tfrecord": TFRecordSerializer,
}

_READ_ONLY: dict[str, Callable[[PathLike], DataFlow]] = {
    "svmlight": partial(SVMLightData, shuffle=False),
    "parquet": TableData,
    "JSON lines": JSONLinesData,
    "WebDataset": WebDatasetData,
}


def format_of(path: PathLike) -> str:
    """Return the format of a file, inferred from its extension; a folder with a ``data.mdb`` in it is LMDB.

    Raises:
        ValueError: The extension is unknown; lists the known ones.
    """
    if os.path.exists(os.path.join(path, "data.mdb")):
        return "lmdb"
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"the format of {os.fspath(path)} is inferred from its extension, which must be one of {' '.join(SUFFIXES)}"
        )
    return SUFFIXES[suffix]


def convert(
    src: PathLike,
    dst: PathLike,
    *,
    overwrite: bool = False,
    compress: str | None = None,
    pickle: bool = False,
    data_paths: Sequence[str] | None = None,
) -> int:
    """Write the datapoints of one file into another, in their order.

    Args:
        src: The file to read.
        dst: The file to make. Both formats are inferred from the file extensions.
        overwrite: Replace a file of that name.
        compress: "zstd" for LMDB and TFRecord, "gzip" or "lzf" for HDF5.
        pickle: Read, and write, pickles. Only for files from sources that you trust.
        data_paths: The datasets of an HDF5 file, read or made.

    Returns:
        The number of datapoints.

    Raises:
        ValueError: A format is unknown, or does not support an option.
        NotStorable: The format of `dst` cannot hold a datapoint.
    """
    existing(src)
    source, target = format_of(src), format_of(dst)
    if target in _READ_ONLY:
        raise ValueError(f"{target} files are read only: choose another extension")
    if compress and target == "npz":
        raise ValueError("npz files are not compressed, so that rows can be read: choose another format")
    if data_paths is not None and "hdf5" not in {source, target}:
        raise ValueError(f"data_paths are the datasets of an HDF5 file, and {source} and {target} files have none")
    if source in _READ_ONLY:
        df = _READ_ONLY[source](src)
    else:
        loading = {"data_paths": data_paths} if source == "hdf5" else {"pickle": pickle}
        df = _SERIALIZERS[source].load(src, shuffle=False, **loading)
    saving: dict[str, dict[str, Any]] = {"npz": {}, "hdf5": {"compress": compress, "data_paths": data_paths}}
    with df:
        num = len(df)
        options = saving.get(target, {"compress": compress, "pickle": pickle})
        _SERIALIZERS[target].save(df, dst, overwrite=overwrite, **options)
    return num
