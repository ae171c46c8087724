"""How long the consumer has waited for a datapoint. Pure: no clock."""

from __future__ import annotations

from typing import Final

__all__ = ["WaitTimer"]

_MAX_AT_ONCE: Final = 0.1  # seconds: a source that takes longer to read, or a debugger, is not what is waited for
_DRAINED: Final = 0.1  # seconds in which all that had come before is heard, also where there is always something new


class WaitTimer:
    """Judges whether a consumer that asks again and again has waited too long.

    Guarantees:

    - What counts is that a datapoint is handed out: neither a report of one that failed, nor results that were all
      dropped.
    - What has come is heard before it is judged.
    """

    def __init__(self) -> None:
        self._waited: float | None = None  # seconds since a datapoint was handed out; None until it is asked for more
        self._now = 0.0  # up to here it is counted
        self._over_since: float | None = None  # when it was first seen that it is too long

    def satisfied(self) -> None:
        """A datapoint is handed out; or somebody else begins to wait."""
        self._waited = self._over_since = None

    def asked(self, now: float) -> None:
        """The consumer has asked, or goes on waiting."""
        self._waited = 0.0 if self._waited is None else self._waited + min(now - self._now, _MAX_AT_ONCE)
        self._now = now

    def is_over(self, timeout: float | None, *, silent: bool) -> bool:
        """Whether it has waited for `timeout` seconds; `silent` if nothing was there to be heard."""
        if timeout is None or self._waited is None or self._waited < timeout:
            return False
        if self._over_since is None:
            self._over_since = self._now
        return silent or self._now - self._over_since >= _DRAINED
