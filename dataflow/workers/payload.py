"""What a worker process is given to work on, on its way there."""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from dataflow.errors import NotPicklable

__all__ = ["Payload", "dumps"]


class Payload:
    """Any object, carried into a worker by whatever start method.

    Under fork it is inherited as it is. Under spawn and forkserver it is pickled while the process is being started,
    the only time at which queues and locks of `multiprocessing` may be; lambdas and closures travel by value. In the
    worker it is unpickled by `load`, so that an error there can be reported.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def load(self) -> Any:
        """The object, in the worker."""
        return self._value

    def complaint(self, value: Any, error: Exception) -> str:
        """What cannot be sent, and what to do."""
        return (
            f"{value!r:.200} cannot be sent to a worker process: {error}. Make it inside the function that runs there, "
            'or start workers by fork (context="fork")'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _Pickled, (dumps(self._value),)
        except Exception as error:
            raise NotPicklable(self.complaint(self._value, error)) from error


class _Pickled:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def load(self) -> Any:
        return pickle.loads(self._data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions by value, and what `multiprocessing` knows how to send."""

    def __init__(self, file: io.BytesIO) -> None:
        # Made anew each time: `multiprocessing` registers types when they are first used. Read by the base class.
        self.dispatch_table = ChainMap(ForkingPickler(io.BytesIO()).dispatch_table, cloudpickle.Pickler.dispatch_table)
        super().__init__(file)


def dumps(value: Any, *, most_bytes: int | None = None) -> bytes:
    """`value` as bytes that any worker process can load with `pickle.loads`.

    Raises:
        OverflowError: It takes more than `most_bytes`; found out after about that many, not after all of them.
    """
    file = io.BytesIO() if most_bytes is None else _ShortFile(most_bytes)
    _Pickler(file).dump(value)
    return file.getvalue()


class _ShortFile(io.BytesIO):
    """Takes so many bytes, and no more."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._left = most_bytes

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise OverflowError("the pickle is too large")
        return super().write(data)
