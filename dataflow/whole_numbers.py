"""Checks of arguments that every part of the package makes in the same way."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

__all__ = ["whole_number"]


def whole_number(owner: object, name: str, value: Any) -> int:
    """`value` as an int, if it is a whole number: ``1e4`` and ``2.0`` are, as numpy's integers are.

    Args:
        owner: The node that has the parameter, or the name of its class.
        name: What the parameter is called.
        value: What was given.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is a number with a fraction, infinite, or NaN.
    """
    who = owner if isinstance(owner, str) else type(owner).__name__
    if isinstance(value, float | np.floating):
        if not float(value).is_integer():
            raise ValueError(f"{who}: {name} is a whole number, got {value!r}. Round it: int({value!r}), or use //")
        return int(value)
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{who}: {name} is an integer, got {value!r} of type {type(value).__name__}. Pass an int")
