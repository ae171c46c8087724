"""Conversion of dtypes to text and back."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, Final

import numpy as np

__all__ = ["MAX_NAME", "dtype_name", "dtype_of", "is_literal"]

MAX_NAME: Final = 1 << 17
"""Maximum length in characters, of about 5,000 fields; parsing takes up to 500 bytes each."""

_MAX_SIMPLE: Final = 100  # characters of a name without fields
# The `repr` of dicts, lists and tuples of text, lengths and booleans. Signs and operators would nest
# without brackets, of which the parser accepts no more than 200. Python 2 wrote L behind long integers.
_LITERAL: Final = re.compile(
    r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|[0-9]++L?|True|False|[][{}(),:\s])*+""", re.DOTALL
)


def dtype_name(dtype: np.dtype[Any]) -> str | None:
    """Return a dtype as text that `dtype_of` reads; None if the same dtype would not come back."""
    if dtype.hasobject:
        return None
    name = dtype.str if dtype.names is None and dtype.subdtype is None else _structured(dtype)
    try:
        return name if dtype_of(name) == dtype and dtype.isbuiltin != 2 else None
    except (TypeError, ValueError, SyntaxError):
        return None


def _structured(dtype: np.dtype[Any]) -> str:
    fields: Any = dtype.fields or {}
    return repr(
        {
            "names": list(dtype.names or ()),
            "formats": [_field(fields[name][0]) for name in dtype.names or ()],
            "offsets": [fields[name][1] for name in dtype.names or ()],
            "itemsize": dtype.itemsize,
            "aligned": dtype.isalignedstruct,
        }
    )


def _field(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        return _field(dtype.subdtype[0]), dtype.subdtype[1]
    return dtype.str if dtype.names is None else ast.literal_eval(_structured(dtype))


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name.

    Raises:
        ValueError: It holds Python objects, or is that of an array, which our files never have; or the name is invalid.
    """
    if not name.startswith("{") and len(name) <= _MAX_SIMPLE:
        return _simple(name)
    if len(name) > _MAX_SIMPLE and not (name.startswith("{") and is_literal(name)):
        raise ValueError(f"{name[:40]!r}… is not the name of a dtype")
    return _without_objects(np.dtype(ast.literal_eval(name)), name)


def is_literal(text: str) -> bool:
    """Whether a text has only what the `repr` of a dtype has: parsing others may take more than a thread's stack."""
    return _LITERAL.fullmatch(text) is not None


@functools.lru_cache(maxsize=256)
def _simple(name: str) -> np.dtype[Any]:
    """Return a dtype without fields. numpy's registry of names can be changed by any code."""
    return _without_objects(np.dtype(name), name)


def _without_objects(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    if dtype.hasobject:
        raise ValueError(f"the dtype {name!r} holds Python objects")
    if dtype.subdtype is not None:
        raise ValueError(f"the dtype {name!r} has a shape of its own")
    return dtype
