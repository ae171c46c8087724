"""Task headers: control records that a worker sends along with the results of its tasks."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from dataflow.codec.exceptions import pack_failure, unpack_failure

__all__ = ["BATCH", "END", "Failed", "Mark"]


class Mark(NamedTuple):
    """Task header, sent before the results: one datapoint, or `HOLE`, per datapoint of the task, or a `Failed`."""

    number: int  # of the task
    pace: float  # seconds per datapoint of this worker's last task; 0 before the first


class _PassEnd:
    """End marker, sent after a pass of unknown length."""

    def __reduce__(self) -> str:
        return "END"


END: Final = _PassEnd()


class _Batch:
    """Marker sent before a batch, to distinguish it from a single result."""

    def __reduce__(self) -> str:
        return "BATCH"


BATCH: Final = _Batch()


class Failed:
    """Sent instead of a result: the exception raised when it was made. The rest of its task is not done."""

    def __init__(self, error: BaseException, note: str, *, placed: bool) -> None:
        self.error = error
        self.placed = placed  # whether the error already names its datapoint
        self._note = note
        self._packed = b""

    def unpacked(self) -> BaseException:
        """Return the exception, to be raised."""
        if not self._packed:
            self.error.add_note(self._note)  # passed between threads, without pickling
        return self.error

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._packed:  # it may be pickled twice, but the note is added once
            self._packed = pack_failure(self.error, note=self._note)
        return _arrived, (self._packed, self.placed)


def _arrived(packed: bytes, placed: bool) -> Failed:
    failed = Failed(unpack_failure(packed), "", placed=placed)
    failed._packed = packed
    return failed
