"""A flow that is named on a command line."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from dataflow.base import DataFlow

__all__ = ["flow_named"]


def flow_named(name: str) -> DataFlow:
    """The flow ``module:flow``; if that is a function or a class, what it returns when it is called.

    Raises:
        ValueError: There is no such module, nothing of that name in it, or it is no dataflow.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"name a flow as MODULE:FLOW, such as feeding:make_flow, not {name!r}")
    try:
        found = importlib.util.find_spec(module_name)
    except ImportError:  # of a package above it
        found = None
    if found is None:
        raise ValueError(f"there is no module {module_name!r}. It is looked for in this folder, and where Python looks")
    value: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ValueError(f"there is no {part!r} in {name.removesuffix(part).rstrip('.:')}")
        value = getattr(value, part)
    if not isinstance(value, DataFlow) and callable(value):
        value = value()
    if not isinstance(value, DataFlow):
        raise ValueError(f"{name} is a {type(value).__name__}, and no dataflow or function that makes one")
    return value
