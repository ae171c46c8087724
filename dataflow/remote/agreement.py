"""Limits that sender and receiver agree on: how far a sender may run ahead, and the heartbeat interval."""

from __future__ import annotations

import math
from typing import Final

from dataflow.channel.flow_control import Window
from dataflow.remote.messages import MAX_BEAT, MIN_BEAT, SendLimits

__all__ = ["check_heartbeat", "HEARTBEAT", "HWM_BYTES", "agreed", "check_seconds", "longest_frame", "make_agreement"]

HEARTBEAT: Final = 2.0
"""Default heartbeat interval in seconds; three heartbeats may be missed."""

HWM_BYTES: Final = 256 << 20
"""Default limit of bytes under way between one sender and its receiver."""

_HWM: Final = 50  # tensorpack's default
_FEW_BYTES: Final = 8 << 20  # always allowed under way, if the user has not given a number of datapoints
_MIN_BYTES: Final = 1 << 16
_SLACK: Final = 1 << 20


def make_agreement(owner: str, hwm: int | None, hwm_bytes: int) -> SendLimits:
    """Return the limits that one side wants.

    Raises:
        ValueError: A number is too small.
    """
    if hwm is not None and (type(hwm) is not int or hwm < 1):
        raise ValueError(f"{owner}: hwm is a number of datapoints from 1, or None, got {hwm!r}")
    if type(hwm_bytes) is not int or hwm_bytes < _MIN_BYTES:
        raise ValueError(f"{owner}: hwm_bytes is at least {_MIN_BYTES} (64 KiB), got {hwm_bytes!r}")
    return SendLimits(hwm or 0, hwm_bytes)


def agreed(mine: SendLimits, theirs: SendLimits) -> Window:
    """Return the stricter limits; a side that has given no number of datapoints sets no limit on it."""
    said = [terms.hwm for terms in (mine, theirs) if terms.hwm > 0]
    hwm_bytes = min(mine.hwm_bytes, theirs.hwm_bytes)
    return Window(min(said, default=_HWM), 0 if said else min(_FEW_BYTES, hwm_bytes), hwm_bytes)


def longest_frame(terms: SendLimits) -> int:
    """Return the largest frame to read: many small datapoints share one, and one may come on top when it is full."""
    return 2 * terms.hwm_bytes + _SLACK


def check_seconds(owner: str, name: str, seconds: float) -> None:
    """Check that `seconds` is a positive, finite number.

    Raises:
        ValueError: `seconds` is not a positive, finite number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError(f"{owner}: {name} is a number of seconds above 0, got {seconds!r}")


def check_heartbeat(owner: str, heartbeat: float) -> None:
    """Check that `heartbeat` is within the supported range.

    Raises:
        ValueError: `heartbeat` is shorter than can be kept, or unreasonably long.
    """
    if isinstance(heartbeat, bool) or not isinstance(heartbeat, int | float) or not MIN_BEAT <= heartbeat <= MAX_BEAT:
        raise ValueError(f"{owner}: heartbeat is from {MIN_BEAT} to {MAX_BEAT:g} seconds, got {heartbeat!r}")
