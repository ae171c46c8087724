"""Progress bar that is safe in a program that forks."""

from __future__ import annotations

import tqdm

__all__ = ["Bar"]


class Bar(tqdm.tqdm):  # type: ignore[type-arg]
    """A progress bar without tqdm's monitor thread, which would be running when workers are forked.

    Import it where a bar is shown: importing tqdm takes 20 ms, which workers without a bar should save.
    """

    monitor_interval = 0
