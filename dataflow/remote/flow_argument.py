"""Resolver of a flow named on a command line."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from dataflow.base import DataFlow

__all__ = ["flow_named"]


def flow_named(name: str) -> DataFlow:
    """Return the flow ``module:flow``; a function or class is called, and its result is the flow.

    Raises:
        ValueError: There is no such module, it has no such name, or the object is not a dataflow.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"name a flow as MODULE:FLOW, such as feeding:make_flow, not {name!r}")
    try:
        found = importlib.util.find_spec(module_name)
    except ImportError:  # raised by a parent package
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
