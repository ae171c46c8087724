"""Errors about damaged files."""

from __future__ import annotations

from dataflow.errors import FileDamaged

__all__ = ["Damaged", "file_damaged"]


class Damaged(Exception):
    """Description of damaged bytes and their offset; code that knows the file turns it into a `FileDamaged`."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


def file_damaged(path: str, place: str, reason: str, offset: int | None = None) -> FileDamaged:
    """Return the error about a file.

    Args:
        path: The file.
        place: The damaged part in the format's terms, such as "record 7"; may be empty.
        reason: What is wrong.
        offset: Offset of the damage, in bytes.
    """
    where = f"{path}, {place}" if place else path
    at = "" if offset is None else f" at byte {offset} of the file"
    return FileDamaged(
        f"{where}: {reason}{at}. The file was cut off or has changed since it was written: copy it again from where it "
        "came, or save it anew",
        path=path,
        offset=offset,
    )
