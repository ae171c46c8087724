"""Flows that are late, and loops that wait again: for tests of what a `TimeoutError` leaves behind."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dataflow
from dataflow import ProxyDataFlow
from dataflow.protocol.base import Blocks
from dataflow.protocol.pauses import Pause, pausing
from dataflow.protocol.seeding import Stream


class Late(ProxyDataFlow):
    """A built-in node that is late before two of three datapoints, the first one included, without waiting."""

    is_late = True
    _df_run_settings = frozenset({"is_late"})  # no state compares it

    @property
    def _df_waits(self) -> bool:
        return self.is_late

    def _df_run_pass(self, p: int, stream: Stream) -> Iterator[Any]:
        return pausing(self._steps(self.ds._df_run_pass(p, stream)), self.is_late)

    def _df_at(self, blocks: Blocks, stream: Stream) -> Iterator[Any]:
        return pausing(self._steps(self.ds._df_at(blocks, stream)), self.is_late)

    def _df_origins(self, indexes: Any, stream: Stream) -> Any:
        return self.ds._df_origins(indexes, stream)

    def _steps(self, datapoints: Iterator[Any]) -> Iterator[Any]:
        for k, dp in enumerate(datapoints):
            if self.is_late:
                for _ in range((k + 1) % 3):
                    yield Pause(dataflow.TimeoutError("late"))
            yield dp
        if self.is_late:
            yield Pause(dataflow.TimeoutError("late"))


class LateInOrder(Late):
    """The same, which cannot be addressed."""

    _df_indexed = False


class Gate:
    """A function that waits at datapoint `k` until it is let through, by a file: for threads and processes alike."""

    def __init__(self, path: Any, k: int) -> None:
        self.path, self.k = str(path), k

    def __call__(self, dp: Any) -> Any:
        while dp[-1] == self.k and not os.path.exists(self.path):
            time.sleep(0.005)
        return dp

    def open(self) -> None:
        with open(self.path, "w"):
            pass


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def patiently(steps: Iterator[Any]) -> tuple[list[Any], int]:
    """All datapoints, and how many timeouts there were between them."""
    found, num_late = [], 0
    while True:
        try:
            found.append(plain(next(steps)))
        except dataflow.TimeoutError:
            num_late += 1
        except StopIteration:
            return found, num_late


def taken_patiently(steps: Iterator[Any], num: int, let_go: Callable[[], Any], num_late: int = 2) -> list[Any]:
    """The first `num` datapoints of an iterator that is late; after `num_late` timeouts, `let_go` is called."""
    found: list[Any] = []
    seen = 0
    while len(found) < num:
        try:
            found.append(plain(next(steps)))
        except dataflow.TimeoutError:
            seen += 1
            if seen == num_late:
                let_go()
    assert seen >= num_late
    return found
