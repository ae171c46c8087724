"""Progress bar that is safe in a program that forks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import tqdm

__all__ = ["Bar", "FlowBar"]

_INTERVAL: Final = 0.5  # seconds between two updates of the text


class Bar(tqdm.tqdm):  # type: ignore[type-arg]
    """A progress bar without tqdm's monitor thread, which would be running when workers are forked.

    Import it where a bar is shown: importing tqdm takes 20 ms, which workers without a bar should save.
    """

    monitor_interval = 0


class FlowBar(Bar):
    """A progress bar over datapoints that shows who waits, the consumer or the workers.

    Args:
        *args: Parameters of tqdm.
        waits: Returns the text to show, as `FlowStatistics.waits`.
        **kwargs: Parameters of tqdm.
    """

    def __init__(self, *args: Any, waits: Callable[[], str], **kwargs: Any) -> None:
        self._waits = waits
        self._next_look = 0.0
        super().__init__(*args, **kwargs)

    def display(self, *args: Any, **kwargs: Any) -> None:
        """Draw the bar; every half second, update the text that says who waits."""
        now = time.monotonic()
        if now >= self._next_look or self.n == self.total:
            self._next_look = now + _INTERVAL
            self.set_postfix_str(self._waits(), refresh=False)
        super().display(*args, **kwargs)
