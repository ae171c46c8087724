"""What several nodes check in their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dataflow.base import DataFlow, require_flow
from dataflow.errors import NotAddressable
from dataflow.parameters import whole_number

__all__ = ["at_least_one", "require_addressable", "require_flows", "require_one_list"]


def at_least_one(owner: object, name: str, value: Any) -> int:
    """`value`, if it is a whole number from 1.

    Raises:
        ValueError: It is less than 1, or has a fraction.
        TypeError: It is no number (a bool is none either).
    """
    number = whole_number(owner, name, value)
    if number < 1:
        raise ValueError(f"{type(owner).__name__}: {name} is at least 1, got {number}")
    return number


def require_addressable(ds: DataFlow, owner: object) -> None:
    """Refuse an input that cannot be addressed.

    Raises:
        NotAddressable: Names the node that breaks the chain.
    """
    breaks = ds._df_unaddressable()
    if breaks is not None:
        raise NotAddressable(
            f"{type(owner).__name__} reads its input by index, but {type(breaks).__name__} is only a sequence of "
            f"passes. Put {type(owner).__name__} below it, or put the datapoints into a list (DataFromList)"
        )


def require_one_list(df_lists: object, others: Sequence[object], owner: object) -> None:
    """Refuse flows that are given one by one, as ``JoinData(a, b)``.

    Raises:
        TypeError: `others` are given beside `df_lists`; the message shows how to write it.
    """
    if others:
        name = type(owner).__name__
        given = ", ".join(type(ds).__name__ for ds in (df_lists, *others))
        raise TypeError(
            f"{name}: df_lists is one list of dataflows, got several arguments: {given}. Write {name}([a, b])"
        )


def require_flows(df_lists: Iterable[Any], owner: object) -> list[DataFlow]:
    """The elements of `df_lists`, if each is a dataflow, and if there are any.

    Raises:
        TypeError: One is no dataflow.
        ValueError: There are none.
    """
    name = type(owner).__name__
    if isinstance(df_lists, DataFlow):
        raise TypeError(
            f"{name}: df_lists is a list of dataflows, got one {type(df_lists).__name__}. Write {name}([a, b])"
        )
    try:
        entries = list(df_lists)
    except TypeError:
        raise TypeError(
            f"{name}: df_lists is a list of dataflows, got {type(df_lists).__name__}. Write {name}([a, b])"
        ) from None
    flows = [require_flow(ds, name) for ds in entries]
    if not flows:
        raise ValueError(f"{name} expects at least one dataflow, got an empty list")
    return flows
