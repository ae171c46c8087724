"""Exceptions: the errors that dataflow raises, in one tree.

    DataFlowError
    ├── DataFlowTerminated    the flow was closed, or failed before, while it was in use
    ├── NotReentrant          a later iteration took over a flow that can serve only one
    ├── LengthUnknown         `len` of a flow whose passes have no known length (also NotImplementedError, TypeError)
    ├── NotAddressable        `df[i]` of a flow that is only a sequence of passes (also TypeError)
    ├── Dropped               the datapoint at this index was dropped by a map (also LookupError)
    ├── NotReproducible       a flow that must be reproducible has no defined order (also ValueError)
    ├── StateMismatch         a saved state does not fit the flow that is to resume from it (also ValueError)
    ├── SourceExhausted       another pass is requested of a source that can be read only once
    ├── EmptyPass             a pass of an input that must have datapoints is empty
    ├── ShapeMismatch         datapoints of one batch differ in shape, components or kind (also ValueError)
    ├── NotPicklable          a flow cannot be sent to a worker, or a list cannot be packed (also TypeError)
    ├── TooManyFailures       more items failed than `max_failures` allows
    ├── TimeoutError          no datapoint arrived in time (also RuntimeError and the builtin TimeoutError)
    ├── WorkerError           a worker raised an exception that could not be sent as it was (also RuntimeError)
    ├── WorkerDied            a worker ended without an exception: killed, crashed, exited (also RuntimeError)
    ├── SenderLost            a network sender stopped responding, or its datapoints are missing (also RuntimeError)
    ├── ReceiverLost          a network receiver is gone, or rejects this sender (also RuntimeError)
    ├── FileDamaged           a file is truncated, or its bytes differ from those written (also ValueError)
    ├── NotStorable           a file format cannot store a datapoint (also TypeError)
    ├── PickleRefused         a file holds pickled objects, which could run any code (also ValueError)
    └── MissingExtra          an optional package is not installed (also ImportError)

Every message says what happened, with values; why, if known; and what to do.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

__all__ = [
    "DataFlowError",
    "DataFlowTerminated",
    "Dropped",
    "EmptyPass",
    "FileDamaged",
    "LengthUnknown",
    "MissingExtra",
    "NotAddressable",
    "NotPicklable",
    "NotReentrant",
    "NotReproducible",
    "NotStorable",
    "PickleRefused",
    "ReceiverLost",
    "SenderLost",
    "ShapeMismatch",
    "SourceExhausted",
    "StateMismatch",
    "TimeoutError",
    "TooManyFailures",
    "WorkerDied",
    "WorkerError",
    "WorkerTraceback",
]


class DataFlowError(Exception):
    """Base class of all errors: `except DataFlowError` catches every error that dataflow itself raises."""


class DataFlowTerminated(DataFlowError):
    """The flow was closed, or failed before, while it was in use."""


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


class NotReproducible(DataFlowError, ValueError):
    """A flow that must be reproducible is not: it has no seed, is mixed by workers, or depends on earlier passes."""


class StateMismatch(DataFlowError, ValueError):
    """A saved state does not fit the flow that is to resume from it; the message holds the first difference."""


class SourceExhausted(DataFlowError):
    """Another pass is requested of a source that can be read only once."""


class EmptyPass(DataFlowError):
    """A pass of an input that must have datapoints is empty."""


class ShapeMismatch(DataFlowError, ValueError):
    """Datapoints of one batch differ in shape, in their components or in kind."""


class NotPicklable(DataFlowError, TypeError):
    """A flow cannot be sent to a worker process, or a list cannot be packed; the message names the offending object."""


class TooManyFailures(DataFlowError):
    """More items failed than `max_failures` allows; the cause is the last error.

    Attributes:
        failures: The records of the last 1,000, each with node, position, pass, type, text and traceback.
    """

    def __init__(self, message: str, *, failures: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.failures = list(failures)


class TimeoutError(DataFlowError, RuntimeError, builtins.TimeoutError):
    """No datapoint arrived within `timeout` seconds. The same iterator continues: its next step waits again.

    Above a user-written node that lets it through, or if a worker raised it, the next steps raise `DataFlowTerminated`.
    If such a node reads the flow that waits in its own code, without having it as an input, that error comes at once.
    """


class WorkerError(DataFlowError, RuntimeError):
    """A worker raised an exception that cannot be pickled; the message holds its type and text."""


class WorkerDied(DataFlowError, RuntimeError):
    """A worker ended without an exception: it was killed, it crashed, or it called exit.

    Attributes:
        worker: Index of the worker, from 0.
        num_workers: Number of workers of the runner.
        pid: Process id, None for a thread.
        exitcode: Exit code, negative for a signal, None if unknown.
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


class SenderLost(DataFlowError, RuntimeError):
    """A network sender stopped responding, its flow failed, or datapoints from it are missing.

    Attributes:
        sender: Host and process, as reported by the sender.
        announced: Number of datapoints that it announced; None if unknown.
        received: Number of datapoints received from it.
    """

    def __init__(self, message: str, *, sender: str = "", announced: int | None = None, received: int = 0) -> None:
        super().__init__(message)
        self.sender = sender
        self.announced = announced
        self.received = received


class ReceiverLost(DataFlowError, RuntimeError):
    """A network receiver is gone, or rejects this sender.

    Attributes:
        taken: Number of datapoints of this sender that it has handed out, or begun to.
        closed: Whether it announced that it was closed.
    """

    def __init__(self, message: str, *, taken: int = 0, closed: bool = False) -> None:
        super().__init__(message)
        self.taken = taken
        self.closed = closed


class FileDamaged(DataFlowError, ValueError):
    """A file is truncated, or its bytes differ from those written.

    Attributes:
        path: The file.
        offset: Position of the damage in bytes; None if unknown.
    """

    def __init__(self, message: str, *, path: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class NotStorable(DataFlowError, TypeError):
    """A file format cannot store a datapoint; the message names the component and the formats that can."""


class PickleRefused(DataFlowError, ValueError):
    """A file holds pickled objects, and reading them could run any code; pass ``pickle=True`` to allow it."""


class MissingExtra(DataFlowError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the exception that is raised in the consumer."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text.rstrip()}"
