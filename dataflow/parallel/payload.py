"""A flow on its way to a worker process."""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from dataflow.base import DataFlow
from dataflow.errors import NotPicklable

__all__ = ["Payload"]


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

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _Pickled, (_dumps(self._value),)
        except Exception as error:
            raise NotPicklable(_complaint(self._value, error)) from error


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


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _complaint(value: Any, error: Exception) -> str:
    """Which attribute of which node cannot be sent, and what to do."""
    for node in _nodes(value):
        for name, attribute in vars(node).items():
            if isinstance(attribute, DataFlow) or name == "_life":
                continue
            try:
                _dumps(attribute)
            except Exception as reason:
                return (
                    f"{type(node).__name__}.{name} (a {type(attribute).__name__}) cannot be sent to a worker process: "
                    f"{reason}. Make it in reset_state, which runs inside the worker, or start workers by fork "
                    '(context=multiprocessing.get_context("fork"))'
                )
    return f"the flow cannot be sent to a worker process: {error}"


def _nodes(value: Any) -> Iterator[DataFlow]:
    flows = [item for item in vars(value).values() if isinstance(item, DataFlow)] if hasattr(value, "__dict__") else []
    while flows:
        node = flows.pop(0)
        yield node
        flows.extend(node.inputs)
