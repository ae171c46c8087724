"""What stands between the results of a worker: which task they belong to, and what went wrong."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from dataflow.codec.exceptions import pack_failure, unpack_failure

__all__ = ["BATCH", "END", "Failed", "Mark"]


class Mark(NamedTuple):
    """Sent before the results of a task: one datapoint, or `HOLE`, for each of its datapoints, or a `Failed`."""

    number: int  # of the task
    pace: float  # seconds that one datapoint of this worker's last task took; 0 before the first


class _PassEnd:
    """Sent after a pass of which nobody knew how long it would be."""

    def __reduce__(self) -> str:
        return "END"


END: Final = _PassEnd()


class _Batch:
    """Sent before a batch, to tell it from a single result."""

    def __reduce__(self) -> str:
        return "BATCH"


BATCH: Final = _Batch()


class Failed:
    """Sent instead of a result: what was raised when it was made. The rest of its task is not done."""

    def __init__(self, error: BaseException, note: str, *, placed: bool) -> None:
        self.error = error
        self.placed = placed  # it says for which datapoint
        self._note = note
        self._packed = b""

    def unpacked(self) -> BaseException:
        """The exception, to be raised."""
        if not self._packed:
            self.error.add_note(self._note)  # between threads
        return self.error

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._packed:  # it may be pickled twice, and is noted once
            self._packed = pack_failure(self.error, note=self._note)
        return _arrived, (self._packed, self.placed)


def _arrived(packed: bytes, placed: bool) -> Failed:
    failed = Failed(unpack_failure(packed), "", placed=placed)
    failed._packed = packed
    return failed
