"""Hints for tables of other libraries (pandas, polars, Arrow): how to make a list of their rows.

They have a length, and can be indexed and iterated, but not by row: a loop over a DataFrame yields column names.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["cure_of"]

_CURES: Final = (
    # attributes that only such an object has, and how to get its rows
    (
        ("iloc", "to_dict", "columns"),
        'its rows are DataFromList(df.values.tolist()), or DataFromList(df.to_dict("records"))',
    ),
    (("iloc", "tolist"), "its values are DataFromList(series.tolist())"),
    (("to_dicts", "rows", "columns"), "its rows are DataFromList(df.rows()), or DataFromList(df.to_dicts())"),
    (("to_pylist", "column_names"), "its rows are DataFromList(table.to_pylist())"),
)


def cure_of(value: Any) -> str | None:
    """What to pass instead of a table; None if `value` is not a table."""
    if isinstance(value, type):
        return None
    return next((cure for names, cure in _CURES if all(hasattr(value, name) for name in names)), None)
