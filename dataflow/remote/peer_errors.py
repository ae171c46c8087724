"""Error messages about a receiver that is lost or late: what happened, and what to do."""

from __future__ import annotations

from dataflow.errors import ReceiverLost, TimeoutError

__all__ = ["gone", "no_room", "nothing_taken"]


def gone(owner: str, address: str, why: str, *, taken: int, sent: int, closed: bool) -> ReceiverLost:
    """Return the error for a receiver that is gone."""
    return ReceiverLost(
        f"{owner}: the receiver at {address} is lost: {why}. It has taken {taken} of the {sent} datapoints that were "
        "sent; those after them are not sent again",
        taken=taken,
        closed=closed,
    )


def no_room(owner: str, address: str, timeout: float, said: str) -> TimeoutError:
    """Return the error if no receiver has welcomed us."""
    return TimeoutError(
        f"{owner}: no receiver at {address} had room for this sender within {timeout:g} seconds: {said}. See "
        "whether it runs and takes datapoints, or raise timeout"
    )


def nothing_taken(owner: str, address: str, timeout: float, *, taken: int, sent: int) -> TimeoutError:
    """Return the error for a receiver whose consumer takes nothing."""
    return TimeoutError(
        f"{owner}: the receiver at {address} has taken nothing for {timeout:g} seconds; {taken} of the {sent} "
        "datapoints that were sent are taken. See what its program does, or raise timeout"
    )
