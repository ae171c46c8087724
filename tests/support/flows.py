"""Flows whose datapoints are known: numbers in order, and a random chain over them."""

import threading
from collections.abc import Callable
from typing import Any

from dataflow import DataFlow, DataFromList, RandomMapData, ShuffleData

__all__ = ["chain", "jittered", "listed", "overtaking"]


def listed(n: int) -> DataFlow:
    """The datapoints ``[0]`` to ``[n - 1]``, in order."""
    return DataFromList([[k] for k in range(n)], shuffle=False)


def jittered(dp: Any, rng: Any) -> Any:
    """The number, and one drawn for it."""
    return [dp[0], float(rng.normal())]


def chain(n: int = 40) -> DataFlow:
    """Shuffled numbers, each with one drawn for it: every pass differs."""
    return RandomMapData(ShuffleData(DataFromList([[k] for k in range(n)])), jittered)


def overtaking() -> Callable[[Any], Any]:
    """A function for a map with two threads, in which datapoint 0 is done only after datapoint 20 has begun."""
    has_overtaken = threading.Event()

    def func(dp: Any) -> Any:
        if dp[0] == 20:
            has_overtaken.set()
        assert dp[0] or has_overtaken.wait(60)
        return dp

    return func
