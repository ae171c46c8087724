"""Checks of arguments: what is wrong is said by the constructor, with the parameter's name, its value and a cure.

`owner` is always the class that the user has called, as an instance or by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

__all__ = ["flag", "function", "keyword_arguments", "positional_arguments", "seconds", "start_method", "whole_number"]

F = TypeVar("F", bound=Callable[..., Any])


def whole_number(
    owner: object, name: str, value: Any, minimum: int | None = None, cure: str = "", *, alternatives: str = ""
) -> int:
    """`value` as an integer, if it is a whole number from `minimum`; a float such as 2.0 is one.

    Args:
        owner: Whose parameter it is.
        name: The parameter.
        value: What the user gave.
        minimum: The smallest number that is accepted; None if any is.
        cure: The end of the message: what the number means, what to pass.
        alternatives: What else may be passed.

    Raises:
        TypeError: It is no whole number (a bool is none either).
        ValueError: It is less than `minimum`.
    """
    number = _whole(value)
    bound = "" if minimum is None else f" from {minimum}"
    wanted = f"{_name(owner)}: {name} is an integer{bound}{alternatives}, got"
    if number is None:
        raise TypeError(f"{wanted} {_shown(value)}{cure}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{wanted} {number}{cure}")
    return number


def seconds(owner: object, name: str, value: Any, *, or_zero: bool = False, cure: str = "") -> float:
    """`value`, if it is a length of time in seconds: above 0, or from 0 with `or_zero`.

    Raises:
        TypeError: It is no number (a bool is none either).
        ValueError: It is NaN, or too small.
    """
    wanted = f"{_name(owner)}: {name} is a number of seconds {'from' if or_zero else 'above'} 0, got"
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{wanted} {_shown(value)}{cure}")
    number = float(value)
    if not (number >= 0 if or_zero else number > 0):
        raise ValueError(f"{wanted} {value}{cure}")
    return number


def flag(owner: object, name: str, value: Any) -> bool:
    """`value` as a bool; 0, 1 and None count as one, a text such as "False", which is true in Python, does not.

    Raises:
        TypeError: It is something else.
    """
    if value is None or isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in {0, 1}):
        return bool(value)
    raise TypeError(f"{_name(owner)}: {name} is True or False, got {_shown(value)}")


def function(owner: object, name: str, value: F | None, purpose: str) -> F:
    """`value`, if it can be called.

    Raises:
        TypeError: It cannot; the message says what it is for.
    """
    if callable(value):
        return value
    raise TypeError(f"{_name(owner)} expects a function, got {type(value).__name__}: {name} {purpose}")


def positional_arguments(owner: object, name: str, value: Any) -> tuple[Any, ...]:
    """`value` as a tuple of arguments.

    Raises:
        TypeError: It is no list or tuple; a text would be taken apart into letters.
    """
    if isinstance(value, list | tuple):
        return tuple(value)
    raise TypeError(
        f"{_name(owner)}: {name} is a tuple of arguments, got {_shown(value)}; a tuple of one is ({_shown(value)},)"
    )


def keyword_arguments(owner: object, name: str, value: Any) -> dict[str, Any]:
    """`value` as a dict of keyword arguments; None is an empty one.

    Raises:
        TypeError: It is no mapping from names.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise TypeError(f"{_name(owner)}: {name} is a dict of keyword arguments, got {_shown(value)}")


def start_method(owner: object, context: Any) -> BaseContext | str | None:
    """`context`, if it is a start method of this platform, a multiprocessing context, or None for the default.

    The default is not looked up here: that would fix it, and `multiprocessing.set_start_method` would raise later.

    Raises:
        TypeError: It is something else.
        ValueError: There is no such start method, or this platform lacks it; lists those that it has.
    """
    import multiprocessing
    from multiprocessing.context import BaseContext

    if context is None or isinstance(context, BaseContext):
        return context
    known = ", ".join(map(repr, multiprocessing.get_all_start_methods()))
    if isinstance(context, str):
        if context in multiprocessing.get_all_start_methods():
            return context
        lacks = "this platform lacks it" if context in _START_METHODS else "there is no such start method"
        raise ValueError(f"{_name(owner)}: context={context!r}, but {lacks}; choose from {known}, or None")
    raise TypeError(
        f"{_name(owner)}: context is a start method ({known}), a context such as "
        f'multiprocessing.get_context("spawn"), or None for the default, got {_shown(context)}'
    )


_START_METHODS = {"fork", "forkserver", "spawn"}


def _whole(value: Any) -> int | None:
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, float | np.floating):
        return int(value) if value.is_integer() else None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _name(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


def _shown(value: Any) -> str:
    """A short repr, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
