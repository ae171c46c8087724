"""Products of cases, of which half are quick."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def halved(*choices: Sequence[Any]) -> list[Any]:
    """The product of `choices` as parameters of a test, every second one marked `full`.

    The quick half is a chessboard. Every choice occurs in it; with three or more lists of at least two choices each,
    every pair of choices does.
    """
    return [
        pytest.param(*(choice for _, choice in case), marks=[pytest.mark.full] if sum(k for k, _ in case) % 2 else [])
        for case in itertools.product(*map(enumerate, choices))
    ]
