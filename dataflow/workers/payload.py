"""Payloads: objects on their way into a worker process, by any start method."""

from __future__ import annotations

import os
from multiprocessing.context import get_spawning_popen
from typing import Any, Final

from dataflow.descriptors import Descriptor, shared_memory_file
from dataflow.errors import NotPicklable
from dataflow.pickling import dumps, imported_main, inherited_by_fork, loads

__all__ = ["Payload"]

_MAX_INLINE: Final = 16 << 10  # bytes; a pipe holds more than that, even if the worker does not read


class Payload:
    """An object that is carried into a worker process, by any start method.

    Under fork it is inherited as it is. Under spawn and forkserver it is pickled while the process is being started,
    the only time at which queues and locks of `multiprocessing` can be pickled; lambdas and closures travel by value.
    In the worker it is unpickled by `load`, so that an error there can be reported.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._pid = os.getpid()
        self._file: Descriptor | None = None  # holds the pickle while a process is started

    def load(self) -> Any:
        """Return the object, in the worker."""
        if os.getpid() != self._pid:
            inherited_by_fork()
        return self._value

    def close_in_parent(self) -> None:
        """Release what the transfer needed: the worker was started, or could not be."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def complaint(self, value: Any, error: Exception) -> str:
        """The error text: what cannot be sent, and what to do."""
        return (
            f"{value!r:.200} cannot be sent to a worker process: {error}. Make it inside the function that runs there, "
            'or start workers by fork (context="fork")'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        is_started = get_spawning_popen() is not None
        try:
            data = dumps(self._value, main=imported_main() if is_started else None)
        except Exception as error:
            raise NotPicklable(self.complaint(self._value, error)) from error
        if not is_started or len(data) <= _MAX_INLINE:
            return _Pickled, (data,)
        # `multiprocessing` writes to a pipe which the worker reads after it has imported the main program. If that
        # import fails, writing more than the pipe holds would raise BrokenPipeError here; the worker's exit code has
        # the cause.
        self.close_in_parent()
        self._file = shared_memory_file("dataflow-payload", len(data))
        with open(self._file.fd, "wb", closefd=False) as file:
            file.write(data)
        return _Stored, (self._file,)


class _Pickled:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def load(self) -> Any:
        return loads(self._data)


class _Stored:
    def __init__(self, file: Descriptor) -> None:
        self._file = file

    def load(self) -> Any:
        with open(self._file.fd, "rb", closefd=False) as file:
            file.seek(0)
            data = file.read()
        self._file.close()
        return loads(data)
