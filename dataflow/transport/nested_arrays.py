"""Pickling of skeletons, including datapoints that contain arrays at any depth, not only as components.

In the nested case, the skeleton refers to each array by its number. There are two directions, which differ in what the
receiving process can find by name: from a worker to its consumer (`ToConsumer`), and with the tasks of a map to its
workers (`ToWorkers`).
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dataflow.system.pickling import MainModule, ReturnPickler, dumps_back, dumps_task, worker_pickler
from dataflow.transport.message_layout import PROTOCOL

__all__ = ["Direction", "NestedUnpickler", "ToConsumer", "ToWorkers"]

# NumPy's own pickles strip NULs at the end of its text. These can be loaded everywhere, too.
copyreg.pickle(np.str_, lambda text: (np.str_, (str.__str__(text),)))
copyreg.pickle(np.bytes_, lambda data: (np.bytes_, (bytes(data),)))

_OF_MAIN: Final = b"c__main__\n"  # how a pickle names members of the main module


class Direction(Protocol):
    """How skeletons are pickled, with protocol 3."""

    @property
    def quick(self) -> Callable[[Any, int], bytes]:
        """Fast pickling function, sufficient for nearly all values. If it raises an exception, use `complete`."""

    def complete(self, value: Any) -> bytes:
        """Pickle any value that can be pickled."""

    def nested(self, dp: Any) -> tuple[bytes, list[NDArray[Any]]]:
        """Pickle a datapoint with arrays at any depth.

        Returns the pickle, and the arrays that it refers to by number.
        """


class ToConsumer:
    """From a worker to the process that it works for."""

    quick = staticmethod(pickle.dumps)

    def complete(self, value: Any) -> bytes:
        return dumps_back(value, PROTOCOL)

    def nested(self, dp: Any) -> tuple[bytes, list[NDArray[Any]]]:
        try:
            return _Plain().dump_nested(dp)
        except Exception as error:
            try:
                return _Return().dump_nested(dp)
            except Exception:
                raise error from None


class ToWorkers:
    """To workers that take tasks.

    Args:
        forked: Whether they were forked, and so have the main module as it was at that time.
        main: The main module as other workers have it; None if they do not have it.
    """

    def __init__(self, *, forked: bool, main: MainModule | None) -> None:
        self._forked = forked
        self._main = main
        self.quick: Callable[[Any, int], bytes] = pickle.dumps if forked else self._check

    def complete(self, value: Any) -> bytes:
        return dumps_task(value, self._main, PROTOCOL)

    def nested(self, dp: Any) -> tuple[bytes, list[NDArray[Any]]]:
        # What cannot be pickled by reference, for whatever reason, is tried by value below.
        with suppress(Exception):
            body, arrays = _Plain().dump_nested(dp)
            if self._forked or _OF_MAIN not in body:
                return body, arrays
        nested: tuple[bytes, list[NDArray[Any]]] = _to_worker()(self._main).dump_nested(dp)
        return nested

    def _check(self, value: Any, protocol: int) -> bytes:
        body = pickle.dumps(value, protocol)
        # Text or bytes of the user may look the same: then the slower pickler is used without need.
        return self.complete(value) if _OF_MAIN in body else body


class _Numbering:
    """Pickler mixin that replaces each array, at any depth, by its number."""

    def __init__(self, *args: Any) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, *args, PROTOCOL)  # type: ignore[call-arg]
        self.arrays: list[NDArray[Any]] = []  # keeps them alive, so that ids are unique
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not np.ndarray or obj.dtype.hasobject:
            return None  # numpy pickles the elements of an object array
        number = self._numbers.setdefault(id(obj), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(obj)
        return number

    def dump_nested(self, dp: Any) -> tuple[bytes, list[NDArray[Any]]]:
        self.dump(dp)  # type: ignore[attr-defined]
        return self.file.getvalue(), self.arrays


class _Plain(_Numbering, pickle.Pickler):
    """Pickles by reference."""


class _Return(_Numbering, ReturnPickler):
    """Pickles for the consumer."""


@functools.cache
def _to_worker() -> type[Any]:
    class ToWorker(_Numbering, worker_pickler()):  # type: ignore[misc]
        """Pickles for a worker that has the main module it is given."""

    return ToWorker


class NestedUnpickler(pickle.Unpickler):
    """Loads a skeleton that refers to its arrays by number, in the order of the numbers."""

    def __init__(self, body: bytes, arrays: Iterator[NDArray[Any]]) -> None:
        super().__init__(io.BytesIO(body))
        self._arrays = arrays
        self._seen: list[NDArray[Any]] = []

    def persistent_load(self, number: int) -> NDArray[Any]:
        if number == len(self._seen):
            self._seen.append(next(self._arrays))
        return self._seen[number]
