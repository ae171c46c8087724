"""Argument checks for constructors, whose errors name the parameter, its value and the remedy.

`owner` is the class that the user has called: an instance, or its name.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

__all__ = [
    "chosen_start_method",
    "count_or_fraction",
    "deferred_function",
    "deferred_result",
    "flag",
    "function",
    "keyword_arguments",
    "positional_arguments",
    "seconds",
    "start_method",
    "start_methods",
    "whole_number",
]


# -- Checks ------------------------------------------------------------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])


def whole_number(
    owner: object, name: str, value: Any, minimum: int | None = None, cure: str = "", *, alternatives: str = ""
) -> int:
    """Return `value` as an integer if it is a whole number from `minimum`; a float such as 2.0 is one.

    Args:
        owner: The class with the parameter.
        name: The parameter.
        value: The user's argument.
        minimum: The smallest number that is accepted; None accepts any.
        cure: End of the message: what the number means, what to pass.
        alternatives: Other accepted values, as part of a sentence.

    Raises:
        TypeError: `value` is not a whole number (a bool does not count as one).
        ValueError: `value` is less than `minimum`.
    """
    number = _whole(value)
    bound = "" if minimum is None else f" ≥ {minimum}"
    wanted = f"{_name(owner)}: {name} must be an integer{bound}{alternatives}, got"
    if number is None:
        raise TypeError(f"{wanted} {_shown(value)}{cure}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{wanted} {number}{cure}")
    return number


def count_or_fraction(owner: object, name: str, value: Any) -> int | float | None:
    """Return `value` if it is an integer from 0, a fraction between 0 and 1, or None.

    Raises:
        TypeError: `value` is not a number (a bool does not count as one).
        ValueError: `value` is negative, NaN, or a fraction outside (0, 1).
    """
    if value is None:
        return None
    wanted = f"{_name(owner)}: {name} must be an integer ≥ 0, or a fraction of the datapoints > 0 and < 1, got"
    if isinstance(value, bool | np.bool_) or not (isinstance(value, Real) or hasattr(value, "__index__")):
        raise TypeError(f"{wanted} {_shown(value)}")
    number = operator.index(value) if hasattr(value, "__index__") else float(value)
    if not (number >= 0 if isinstance(number, int) else 0 < number < 1):
        raise ValueError(f"{wanted} {_shown(value)}")
    return number


def seconds(owner: object, name: str, value: Any, *, or_zero: bool = False, cure: str = "") -> float:
    """Return `value` if it is a duration in seconds: above 0, or from 0 with `or_zero`.

    Raises:
        TypeError: `value` is not a number (a bool does not count as one).
        ValueError: `value` is NaN, or too small.
    """
    wanted = f"{_name(owner)}: {name} must be a number of seconds {'≥' if or_zero else '>'} 0, got"
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{wanted} {_shown(value)}{cure}")
    number = float(value)
    if not (number >= 0 if or_zero else number > 0):
        raise ValueError(f"{wanted} {value}{cure}")
    return number


def flag(owner: object, name: str, value: Any) -> bool:
    """Return `value` as a bool. Accepts 0, 1 and None, but no strings: "False" is true in Python.

    Raises:
        TypeError: `value` is not a bool, 0, 1 or None.
    """
    if value is None or isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in {0, 1}):
        return bool(value)
    raise TypeError(f"{_name(owner)}: {name} must be True or False, got {_shown(value)}")


def function(owner: object, name: str, value: F | None, purpose: str) -> F:
    """Return `value` if it can be called, and its calls return what it computes.

    Raises:
        TypeError: `value` cannot be called; the message holds its purpose. Or it is a coroutine or generator function.
    """
    if callable(value):
        if (cure := deferred_function(value)) is not None:
            raise TypeError(f"{_name(owner)}: {name} is {cure}")
        return value
    raise TypeError(f"{_name(owner)} expects a function, got {type(value).__name__}: {name} {purpose}")


_NOT_RUN: Final = "a call of it only makes an object that has not run yet."
_USE_INSTEAD: Final = {  # by kind, in a map and in a source
    "a coroutine": (
        "Use AsyncMapData, which runs many calls of it at a time",
        "DataFromAsyncIterable takes a function that returns an async iterable, such as an async generator function",
    ),
    "an async generator": (
        "Collect what it yields in a coroutine function, and give that to AsyncMapData; to make datapoints, use "
        "DataFromAsyncIterable",
        "Use DataFromAsyncIterable, with the function that makes it",
    ),
    "a generator": (
        "To make several datapoints of one, return them as a list, and put FlattenData above; generator functions are "
        "for DataFromGenerator",
        "",
    ),
}


def _called_by(value: object) -> Any:
    """The method that a call of an object runs; None if there is none."""
    return next((vars(kind)["__call__"] for kind in type(value).__mro__ if "__call__" in vars(kind)), None)


def deferred_kind(func: object) -> str | None:
    """Whether `func` is the function of "a coroutine", "an async generator" or "a generator"; None for others."""
    while isinstance(func, functools.partial | functools.partialmethod):
        func = func.func
    for found in (func, None if isinstance(func, type) else _called_by(func)):
        if inspect.iscoroutinefunction(found):
            return "a coroutine"
        if inspect.isasyncgenfunction(found):
            return "an async generator"
        if inspect.isgeneratorfunction(found):
            return "a generator"
    return None


def deferred_function(func: object, *, of_source: bool = False) -> str | None:
    """What `func` is and what to use, if its calls only make a coroutine or a generator; None for other functions.

    Args:
        func: Anything.
        of_source: The function makes the datapoints of a source: it may be a generator function.
    """
    kind = deferred_kind(func)
    if kind is None or not _USE_INSTEAD[kind][of_source]:
        return None
    return f"{kind} function: {_NOT_RUN} {_USE_INSTEAD[kind][of_source]}"


def deferred_result(value: object, *, of_source: bool = False) -> str | None:
    """What `value` is and what to use, if it is a coroutine or a generator that has not run; None for other values."""
    if isinstance(value, AsyncGenerator):
        kind = "an async generator"
    elif isinstance(value, Generator):
        kind = "a generator"
    elif inspect.isawaitable(value):
        return f"an awaitable ({type(value).__name__}): {_NOT_RUN} {_USE_INSTEAD['a coroutine'][of_source]}"
    else:
        return None
    cure = _USE_INSTEAD[kind][of_source]
    return f"{kind}: {_NOT_RUN} {cure}" if cure else None


def coroutine_function(owner: object, name: str, value: F) -> F:
    """Return `value` if it is a coroutine function.

    Raises:
        TypeError: It is not; the message names the node for other functions.
    """
    if not callable(value):
        raise TypeError(
            f"{_name(owner)} expects a coroutine function (async def) as {name}, got {type(value).__name__}"
        )
    kind = deferred_kind(value)
    if kind == "a coroutine":
        return value
    shown = getattr(value, "__qualname__", None) or repr(value)
    if kind is not None:
        raise TypeError(f"{_name(owner)}: {name}, {shown}, is {kind} function: return a value instead of yielding it")
    raise TypeError(
        f"{_name(owner)}: {name}, {shown}, is no coroutine function (async def). Use MapData for a function that "
        "computes, and MultiThreadMapData for one that blocks; if it returns an awaitable, await that in an async def"
    )


def positional_arguments(owner: object, name: str, value: Any) -> tuple[Any, ...]:
    """Return `value` as a tuple of arguments.

    Raises:
        TypeError: `value` is not a list or tuple; a string would be split into characters.
    """
    if isinstance(value, list | tuple):
        return tuple(value)
    raise TypeError(
        f"{_name(owner)}: {name} must be a tuple of arguments, got {_shown(value)}; "
        f"a tuple of one is ({_shown(value)},)"
    )


def keyword_arguments(owner: object, name: str, value: Any) -> dict[str, Any]:
    """Return `value` as a dict of keyword arguments; None gives an empty one.

    Raises:
        TypeError: `value` is not a mapping with string keys.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise TypeError(f"{_name(owner)}: {name} must be a dict of keyword arguments, got {_shown(value)}")


def start_method(owner: object, context: Any) -> BaseContext | str | None:
    """Return `context` if it is a start method of this platform, a multiprocessing context, or None for the default.

    The default is left open: reading it would fix it, and a later `multiprocessing.set_start_method` would raise.

    Raises:
        TypeError: `context` is of another type.
        ValueError: The start method does not exist on this platform; the message lists those that do.
    """
    from multiprocessing.context import BaseContext

    if context is None:
        return None
    given: BaseContext | str = context
    known = ", ".join(map(repr, start_methods()))
    chosen = context.get_start_method(allow_none=True) if isinstance(context, BaseContext) else context
    if chosen is None:
        return given
    if isinstance(chosen, str):
        if chosen in start_methods():
            return given
        lacks = "this platform lacks it" if chosen in _START_METHODS else "there is no such start method"
        raise ValueError(f"{_name(owner)}: context={chosen!r}, but {lacks}; choose from {known}, or None")
    raise TypeError(
        f"{_name(owner)}: context must be a start method ({known}), a context such as "
        f'multiprocessing.get_context("spawn"), or None for the default, got {_shown(context)}'
    )


def start_methods() -> list[str]:
    """The start methods of this platform, the default first; without those that other libraries add, such as loky."""
    import multiprocessing

    return [method for method in multiprocessing.get_all_start_methods() if method in _START_METHODS]


def chosen_start_method(context: BaseContext | str | None) -> str:
    """The start method that the user has chosen; empty for the default, which asking for would fix."""
    chosen = context if context is None or isinstance(context, str) else context.get_start_method(allow_none=True)
    return chosen or ""


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
