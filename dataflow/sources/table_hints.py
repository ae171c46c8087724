"""Hints for tables of other libraries (pandas, polars, Arrow), which `TableData` reads, or whose rows make a list.

They have a length, and can be indexed and iterated, but not by row: a loop over a DataFrame yields column names.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["cure_of"]

_CURES: Final = (
    # attributes that only such an object has, and how to get its rows
    (
        ("iloc", "to_dict", "columns"),
        "TableData(df) gives its rows as dicts, or batches of them; rows as lists are DataFromList(df.values.tolist())",
    ),
    (("iloc", "tolist"), "its values are DataFromList(series.tolist())"),
    (
        ("to_dicts", "rows", "columns"),
        "TableData(df) gives its rows as dicts, or batches of them; rows as tuples are DataFromList(df.rows())",
    ),
    (("to_pylist", "column_names"), "TableData(table) gives its rows as dicts, or batches of them"),
)


def cure_of(value: Any) -> str | None:
    """What to pass instead of a table; None if `value` is not a table."""
    if isinstance(value, type):
        return None
    return next((cure for names, cure in _CURES if all(hasattr(value, name) for name in names)), None)
