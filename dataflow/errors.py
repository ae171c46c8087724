"""Every error that dataflow raises, in one tree.

    DataFlowError
    ├── DataFlowTerminated    the flow was closed, or failed before, while somebody used it
    ├── NotReentrant          a later iteration took over a flow that can serve only one
    ├── LengthUnknown         `len` of a flow whose passes have no known length (also NotImplementedError, TypeError)
    ├── NotAddressable        `df[i]` of a flow that is only a sequence of passes (also TypeError)
    ├── Dropped               the datapoint at this index was dropped by a map (also LookupError)
    ├── SourceExhausted       a source that can be read only once was asked for another pass
    ├── EmptyPass             a node that owes datapoints found none in its input
    ├── ShapeMismatch         datapoints of one batch differ in shape, components or kind (also ValueError)
    ├── NotPicklable          a flow cannot be sent to a worker (also TypeError)
    ├── TimeoutError          no datapoint arrived in time (also RuntimeError and the builtin TimeoutError)
    ├── WorkerError           a worker raised an exception that could not be sent as it was (also RuntimeError)
    ├── WorkerDied            a worker ended without an exception: killed, crashed, exited (also RuntimeError)
    └── MissingExtra          an optional package is not installed (also ImportError)

Every message says what happened, with values; why, where it is known; and what to do.
"""

from __future__ import annotations

import builtins

__all__ = [
    "DataFlowError",
    "DataFlowTerminated",
    "Dropped",
    "EmptyPass",
    "LengthUnknown",
    "MissingExtra",
    "NotAddressable",
    "NotPicklable",
    "NotReentrant",
    "ShapeMismatch",
    "SourceExhausted",
    "TimeoutError",
    "WorkerDied",
    "WorkerError",
    "WorkerTraceback",
]


class DataFlowError(Exception):
    """The root of the tree: `except DataFlowError` catches whatever dataflow itself raises."""


class DataFlowTerminated(DataFlowError):
    """The flow was closed, or failed before, while somebody used it."""


class NotReentrant(DataFlowError):
    """A later iteration took over a flow that can serve only one at a time."""


class LengthUnknown(DataFlowError, NotImplementedError, TypeError):
    """`len` of a flow whose passes have no known length.

    A `TypeError`, so that ``list(df)`` works, and a `NotImplementedError`, which ported code catches.
    """


class NotAddressable(DataFlowError, TypeError):
    """`df[i]` of a flow that is only a sequence of passes."""


class Dropped(DataFlowError, LookupError):
    """The datapoint at this index was dropped: a map returned None for it."""


class SourceExhausted(DataFlowError):
    """A source that can be read only once was asked for another pass."""


class EmptyPass(DataFlowError):
    """A node that owes a number of datapoints found none in its input."""


class ShapeMismatch(DataFlowError, ValueError):
    """Datapoints of one batch differ in shape, in their components or in kind."""


class NotPicklable(DataFlowError, TypeError):
    """A flow cannot be sent to a worker process; the message names the node and the attribute."""


class TimeoutError(DataFlowError, RuntimeError, builtins.TimeoutError):
    """No datapoint arrived within `timeout` seconds. The flow stays usable."""


class WorkerError(DataFlowError, RuntimeError):
    """A worker raised an exception that does not survive pickling; the message holds its type and text."""


class WorkerDied(DataFlowError, RuntimeError):
    """A worker ended without an exception: it was killed, it crashed, or it called exit.

    Attributes:
        worker: Index of the worker, from 0.
        num_workers: How many workers the runner has.
        pid: Process id, None for a thread.
        exitcode: Exit code, negative for a signal, None where it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: int = 0,
        num_workers: int = 1,
        pid: int | None = None,
        exitcode: int | None = None,
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.num_workers = num_workers
        self.pid = pid
        self.exitcode = exitcode


class MissingExtra(DataFlowError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of what the consumer sees."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text.rstrip()}"
