"""Fingerprints: types, lengths, plain parameters and names of functions, which identify a chain.

A saved state holds the description of its chain; it is compared with that of the chain that resumes. Runners are left
out: they change where the work is done, not which datapoints are yielded.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from typing import Any, Final

import numpy as np

from dataflow.base import DataFlow
from dataflow.passes import known_length

__all__ = ["Description", "described", "difference", "is_below", "without_workers"]

Description = dict[str, Any]
"""JSON: ``type`` and ``length`` of a node, its ``parameters`` as text, and the descriptions of its ``inputs``."""

_PLAIN: Final = (bool, int, float, complex, str, bytes, np.dtype, type(None), type(Ellipsis))
_MAX_ITEMS: Final = 32  # a longer list is data, not a parameter
_MAX_TEXT: Final = 200


def described(df: DataFlow) -> Description:
    """The description of a chain."""
    df = without_workers(df)
    parameters = {name: _outline(value) for name, value in sorted(df._df_compared.items()) if not _holds_flows(value)}
    return {
        "type": type(df).__name__,
        "length": known_length(df),
        "parameters": parameters,
        "inputs": [described(ds) for ds in df._df_inputs],
    }


def without_workers(df: DataFlow) -> DataFlow:
    """The node that yields the same datapoints as `df` in one process; `df` itself if it has no workers.

    A user's class with an ``__iter__`` of its own may change the datapoints, so it is returned as it is.
    """
    while not df._df_user_written and df._df_stands_for is not df:
        df = df._df_stands_for
    return df


def difference(saved: Description, here: Description) -> str | None:
    """The first difference, from above, as part of a sentence; None if the chains agree."""
    name = here["type"]
    if saved.keys() != here.keys():
        return f"the saved description of {name} is damaged"
    if saved["type"] != name:
        return f"it had {saved['type']} in place of {name}"
    if saved["parameters"] != here["parameters"]:
        for key in sorted({*saved["parameters"], *here["parameters"]}):
            old, new = saved["parameters"].get(key, "missing"), here["parameters"].get(key, "missing")
            if old != new:
                return f"{name}.{key} was {old} and is {new}"
    if len(saved["inputs"]) != len(here["inputs"]):
        return f"{name} had {len(saved['inputs'])} inputs and has {len(here['inputs'])}"
    below = map(difference, saved["inputs"], here["inputs"])
    found = next((found for found in below if found is not None), None)
    if found is None and saved["length"] != here["length"]:
        return f"a pass of {name} had {saved['length']} datapoints and has {here['length']}"
    return found


def is_below(value: Any, below: Set[int]) -> bool:
    """Whether an attribute of a node is one of its inputs, or a list, tuple or dict with one; `below` has their ids."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    return bool(below) and any(id(item) in below for item in values)


def _holds_flows(value: Any) -> bool:
    if isinstance(value, DataFlow):
        return True
    items: Any = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    first = next(iter(items), None)
    # In pairs (flow, probability) the flow comes first.
    return isinstance(first[0] if isinstance(first, list | tuple) and first else first, DataFlow)


def _outline(value: Any) -> str:
    """A text that is the same in every process that builds the same chain; it contains no address and no data."""
    if isinstance(value, np.generic):
        value = value.item()  # the repr of numpy scalars differs between versions
    if isinstance(value, _PLAIN):
        text = repr(value)
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… of {len(text)}"
    if isinstance(value, list | tuple) and len(value) <= _MAX_ITEMS:
        return f"[{', '.join(map(_outline, value))}]"
    if isinstance(value, Mapping) and len(value) <= _MAX_ITEMS:
        items = (f"{_outline(key)}: {_outline(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, partial):
        return f"partial({_outline(value.func)}, {_outline(value.args)}, {_outline(value.keywords)})"
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__name__
