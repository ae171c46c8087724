"""Index files: the offsets of what is in a data file, kept beside it at its path with ``.index`` appended.

An index identifies its file by size and time of last change, and has a checksum. A damaged index counts as missing.
"""

from __future__ import annotations

import json
import logging

import numpy as np
from numpy.typing import NDArray

from dataflow.formats.checksums import ALGORITHM, CHECKSUMS, checksum
from dataflow.formats.positional import PositionalFile, UrlFile, open_positional
from dataflow.formats.saving import replacing

__all__ = ["Offsets", "read_index", "write_index"]

_log = logging.getLogger("dataflow.formats")

_MAX_HEAD = 4096  # bytes of the first line

Offsets = NDArray[np.uint64]
"""Positions in a file, in bytes."""


def write_index(file: PositionalFile, offsets: Offsets) -> None:
    """Write the index beside the file; if that is not possible, the index will be computed again every time."""
    data = offsets.astype("<u8").tobytes()
    head = {"of": file.identity, "offsets": len(offsets), "algorithm": ALGORITHM, "checksum": checksum(data)}
    try:
        with replacing(file.path + ".index", overwrite=True) as part, open(part, "wb") as index:
            index.write(json.dumps(head).encode() + b"\n")
            index.write(data)
    except OSError as error:
        _log.info("the index of %s could not be written, so it will be made again: %s", file.path, error)


def read_index(file: PositionalFile) -> tuple[Offsets, bool] | None:
    """Return the offsets in the index of a file, and whether the file is unchanged since; None if there is no index."""
    try:
        index = open_positional(file.path + ".index")
    except OSError:
        return None
    try:
        content = memoryview(index.read(0, index.size))
        end = bytes(content[:_MAX_HEAD]).index(b"\n")
        head, data = json.loads(bytes(content[:end])), content[end + 1 :]
        # A copy behind a URL has another time.
        is_unchanged = head["of"][0] == file.size if isinstance(file, UrlFile) else head["of"] == file.identity
        if CHECKSUMS[head.get("algorithm")](data) == head["checksum"]:
            return np.frombuffer(data, "<u8").astype(np.uint64), is_unchanged
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    finally:
        index.close()
    _log.info("the index of %s is damaged and will be made again", file.path)
    return None
