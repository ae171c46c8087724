"""Weak sets to which several threads add."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakSet

__all__ = ["members"]

_T = TypeVar("_T")


def members(weak_set: WeakSet[_T]) -> list[_T]:
    """The members of a weak set to which another thread may add meanwhile: iterating it would raise an error then."""
    while True:
        try:
            return list(weak_set)
        except RuntimeError:  # it has changed during the iteration
            continue
