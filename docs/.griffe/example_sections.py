"""What our docstrings call "Example:" is what the reference knows as a section of examples.

Without this it would be shown as prose, in which doctests are unreadable.
"""

import re
from typing import Any

import griffe

_HEADING = re.compile(r"^Example:$", re.MULTILINE)


class ExampleSections(griffe.Extension):
    """Renames the heading in every docstring, as the package is read for the reference."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename it in one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _HEADING.sub("Examples:", obj.docstring.value)
