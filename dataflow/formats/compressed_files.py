"""Files that are compressed as a whole, which their first bytes show. They cannot be read by position."""

from __future__ import annotations

from typing import Final

__all__ = ["HEAD_BYTES", "compressed"]

HEAD_BYTES: Final = 10
"""First bytes of a file that `compressed` looks at."""

_PROGRAMS: Final = {  # the first bytes of a file, what has compressed it, and the command that undoes it
    b"\x1f\x8b\x08": ("gzip", "gunzip"),
    **{b"BZh%d1AY&SY" % level: ("bzip2", "bunzip2") for level in range(1, 10)},
    b"\xfd7zXZ\0": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
}


def compressed(path: str, head: bytes, what: str) -> str | None:
    r"""Return what is wrong with a compressed file, and the cure; None if the file is not compressed.

    Args:
        path: The file.
        head: Its first `HEAD_BYTES`, or all if it has less.
        what: What is read by position, such as "lines".

    Example:
        >>> compressed("rows.jsonl", b"\x1f\x8b\x08\0", "lines")
        'rows.jsonl is compressed with gzip, so its lines cannot be read by position: decompress it (gunzip)'
    """
    for begin, (program, command) in _PROGRAMS.items():
        if head.startswith(begin):
            return (
                f"{path} is compressed with {program}, so its {what} cannot be read by position: "
                f"decompress it ({command})"
            )
    return None
