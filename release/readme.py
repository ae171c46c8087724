"""The README for a package index, where a relative link leads nowhere, and a relative picture is a broken one."""

from __future__ import annotations

import re

__all__ = ["for_an_index"]

_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")


def for_an_index(readme: str, repository: str, tag: str) -> str:
    """Leave out pictures of the repository, and make its links absolute.

    Args:
        readme: The text, in Markdown.
        repository: The address of the repository; if it is empty, links become plain text.
        tag: The release, such as ``v0.1.0``: links lead to its files.
    """
    target = rf"[\1]({repository.rstrip('/')}/blob/{tag}/\2)" if repository else r"\1"
    return _LINK.sub(target, _PICTURE.sub("", readme))
