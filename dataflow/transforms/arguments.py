"""What several nodes check in their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dataflow.base import DataFlow, require_flow
from dataflow.errors import NotAddressable
from dataflow.parameters import whole_number

__all__ = ["at_least_one", "endless_input", "require_addressable", "require_end", "require_flows", "require_one_list"]


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
        name, broken = type(owner).__name__, type(breaks).__name__
        strict = f"Pass strict=True to {broken}, or put" if _addressable_if_strict(breaks) else "Put"
        raise NotAddressable(
            f"{name} reads its input by index, but {broken} is only a sequence of passes. {strict} {name} below it, or "
            "put the datapoints into a list (DataFromList)"
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


def _addressable_if_strict(node: DataFlow) -> bool:
    return node._df_ends_if_strict and all(ds._df_addressable for ds in node._df_inputs)


def require_end(ds: DataFlow, owner: str, purpose: str) -> None:
    """Refuse an input of which a pass never ends.

    Args:
        ds: The input.
        owner: Who needs an end, for the message.
        purpose: What for, as a verb and its object: "keeps a whole pass".

    Raises:
        ValueError: A pass of `ds` never ends; the message has the cure.
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
    """The lowest node that makes passes of the endless flow `ds` endless; and what the user calls it."""
    while (below := next((flow for flow in ds._df_inputs if flow._df_endless), None)) is not None:
        ds = below
    return ds, getattr(ds, "_df_title", type(ds).__name__)


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
