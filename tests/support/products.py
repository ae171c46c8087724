"""Products of cases, of which a selection that covers them is quick."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def covering(*choices: Sequence[Any]) -> list[Any]:
    """The product of `choices` as parameters of a test; what is not needed to cover it is marked `full`.

    Quick are the cases whose indexes add up to a multiple of the length of the shortest list that has a choice. Every
    choice occurs in them; with three or more such lists, every pair of choices does.
    """
    shortest = min((len(some) for some in choices if len(some) > 1), default=1)
    return [
        pytest.param(
            *(choice for _, choice in case), marks=[pytest.mark.full] if sum(k for k, _ in case) % shortest else []
        )
        for case in itertools.product(*map(enumerate, choices))
    ]
