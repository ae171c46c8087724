"""Index files: the offsets of what is in a data file, kept beside it at its path with ``.index`` appended.

An index names what its offsets are, identifies its file by size and time of last change, and has a checksum. An index
that is damaged, or of another state of the file, counts as missing. It is beside the file itself, not beside a symbolic
link to it. A copy behind a URL has another time: there the size is compared, and whoever reads has to compare more.
"""

from __future__ import annotations

import json
import logging
import os

import numpy as np
from numpy.typing import NDArray

from dataflow.formats.checksums import ALGORITHM, checksum
from dataflow.formats.positional import PositionalFile, UrlFile, open_positional
from dataflow.formats.saving import replacing

__all__ = ["Offsets", "read_index", "write_index"]

_log = logging.getLogger("dataflow.formats")

_MAX_HEAD = 4096  # bytes of the first line

Offsets = NDArray[np.uint64]
"""Positions in a file, in bytes."""


def write_index(file: PositionalFile, kind: str, offsets: Offsets) -> None:
    """Write the index beside the file; if that is not possible, the index will be computed again every time.

    Args:
        file: The file.
        kind: What the offsets are.
        offsets: The offsets.
    """
    data = offsets.astype("<u8").tobytes()
    head = {
        "of": file.identity,
        "kind": kind,
        "offsets": len(offsets),
        "algorithm": ALGORITHM,
        "checksum": checksum(data),
    }
    try:
        with replacing(_index_path(file), overwrite=True) as part, open(part, "wb") as index:
            index.write(json.dumps(head).encode() + b"\n")
            index.write(data)
    except OSError as error:
        _log.info("the index of %s could not be written, so it will be made again: %s", file.path, error)


def read_index(file: PositionalFile, kind: str) -> Offsets | None:
    """Return the offsets in the index of a file; None if there is no index of its present state.

    Args:
        file: The file.
        kind: What the offsets are.
    """
    try:
        index = open_positional(_index_path(file))
    except OSError:
        return None
    try:
        content = memoryview(index.read(0, index.size))
        end = bytes(content[:_MAX_HEAD]).index(b"\n")
        head, data = json.loads(bytes(content[:end])), content[end + 1 :]
        is_unchanged = head["of"][0] == file.size if isinstance(file, UrlFile) else head["of"] == file.identity
        if not is_unchanged or head.get("kind") != kind:
            _log.info("%s has changed since its index was made, which will be made again", file.path)
            return None
        if head.get("algorithm") == ALGORITHM and checksum(data) == head["checksum"]:
            return np.frombuffer(data, "<u8").astype(np.uint64)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        pass
    finally:
        index.close()
    _log.info("the index of %s is damaged and will be made again", file.path)
    return None


def _index_path(file: PositionalFile) -> str:
    """Return the path, or URL, of the index of a file."""
    return (file.path if isinstance(file, UrlFile) else os.path.realpath(file.path)) + ".index"
