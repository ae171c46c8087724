"""Argument checks that several nodes share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dataflow.errors import NotAddressable
from dataflow.protocol.base import DataFlow, require_flow

__all__ = [
    "endless_input",
    "fits",
    "integer_dtype",
    "require_addressable",
    "require_end",
    "require_flows",
    "require_one_list",
]


def integer_dtype(owner: object, dtype: DTypeLike) -> np.dtype[Any]:
    """Return ``int_dtype=`` of a node as a dtype.

    Raises:
        TypeError: `dtype` is not an integer dtype.
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.kind not in "iu" or dtype is None:
        name = owner if isinstance(owner, str) else type(owner).__name__
        raise TypeError(f"{name}: int_dtype must be an integer dtype, such as np.int64, got {dtype!r}")
    return np.dtype(found.type)  # in the byte order of this machine


def require_addressable(ds: DataFlow, owner: object) -> None:
    """Check that the input can be addressed.

    Raises:
        NotAddressable: A node of the chain cannot be addressed; the message names it.
    """
    breaks = ds._df_unaddressable()
    if breaks is not None:
        name, broken = type(owner).__name__, type(breaks).__name__
        strict_helps = breaks._df_ends_if_strict and all(below._df_addressable for below in breaks._df_inputs)
        strict = f"Pass strict=True to {broken}, or put" if strict_helps else "Put"
        raise NotAddressable(
            f"{name} reads its input by index, but {broken} is only a sequence of passes. {strict} {name} below it, or "
            "put the datapoints into a list (DataFromList)"
        )


def require_one_list(df_lists: object, others: Sequence[object], owner: object) -> None:
    """Check that flows are given as one list, not one by one as in ``JoinData(a, b)``.

    Raises:
        TypeError: `others` are given beside `df_lists`; the message shows how to write it.
    """
    if others:
        name = type(owner).__name__
        given = ", ".join(type(ds).__name__ for ds in (df_lists, *others))
        raise TypeError(
            f"{name}: df_lists is one list of dataflows, got several arguments: {given}. Write {name}([a, b])"
        )


def require_end(ds: DataFlow, owner: str, purpose: str) -> None:
    """Check that a pass of the input ends.

    Args:
        ds: The input.
        owner: The node that needs an end, for the message.
        purpose: Why, as a verb and its object: "keeps a whole pass".

    Raises:
        ValueError: A pass of `ds` never ends; the message says how to fix it.
    """
    if not ds._df_endless:
        return
    cause, name = endless_input(ds)
    because = "" if name == type(ds).__name__ else f", because one of {name} does not"
    strict = f"pass strict=True to {name}, or " if cause._df_ends_if_strict else ""
    raise ValueError(
        f"{owner} {purpose}, but a pass of {type(ds).__name__} never ends{because}: {strict}cut it with FixedSizeData"
    )


def endless_input(ds: DataFlow) -> tuple[DataFlow, str]:
    """The lowest node that makes passes of the endless flow `ds` endless; and the user's name for it."""
    while (below := next((flow for flow in ds._df_inputs if flow._df_endless), None)) is not None:
        ds = below
    return ds, ds._df_title


def require_flows(df_lists: Iterable[Any], owner: object, parameter: str = "df_lists") -> list[DataFlow]:
    """Return the elements of `df_lists`, which the user knows as `parameter`, if there are any and all are dataflows.

    Raises:
        TypeError: An element is not a dataflow.
        ValueError: `df_lists` is empty.
    """
    name = type(owner).__name__
    if isinstance(df_lists, DataFlow):
        raise TypeError(
            f"{name}: {parameter} must be a list of dataflows, got one {type(df_lists).__name__}. Write {name}([a, b])"
        )
    try:
        entries = list(df_lists)
    except TypeError:
        raise TypeError(
            f"{name}: {parameter} must be a list of dataflows, got {type(df_lists).__name__}. Write {name}([a, b])"
        ) from None
    flows = [require_flow(ds, name) for ds in entries]
    if not flows:
        raise ValueError(f"{name} expects at least one dataflow, got an empty list")
    return flows


def fits(value: float, dtype: np.dtype[Any]) -> bool:
    """Whether an array of this dtype can hold a pad value."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return bool(limits.min <= value <= limits.max and int(value) == value)
    if dtype.kind == "b":
        return value in {0, 1}
    if dtype.kind in "fc":
        with np.errstate(over="ignore"):
            return bool(np.isfinite(dtype.type(value))) or not math.isfinite(value)
    return dtype.kind == "V" and dtype.names is None  # as the bfloat16 of JAX
