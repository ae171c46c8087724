"""What several nodes check in their parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from dataflow.base import DataFlow, require_flow
from dataflow.errors import NotAddressable

__all__ = ["at_least_one", "require_addressable", "require_flows"]


def at_least_one(owner: object, name: str, value: Any) -> int:
    """`value`, if it is an integer from 1.

    Raises:
        ValueError: It is less than 1.
        TypeError: It is no integer (a bool is none either).
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{type(owner).__name__}: {name} is an integer from 1, got {value!r}")
    number = operator.index(value)
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


def require_flows(df_lists: Iterable[Any], owner: object) -> list[DataFlow]:
    """The elements of `df_lists`, if each is a dataflow, and if there are any.

    Raises:
        TypeError: One is no dataflow.
        ValueError: There are none.
    """
    name = type(owner).__name__
    if isinstance(df_lists, DataFlow):
        raise TypeError(f"{name} expects a list of dataflows, got one {type(df_lists).__name__}")
    flows = [require_flow(ds, name) for ds in df_lists]
    if not flows:
        raise ValueError(f"{name} expects at least one dataflow, got an empty list")
    return flows
