"""Packed list: elements pickled into shared memory, so that any number of processes share one copy.

Python counts references inside each object: a forked process that only reads a list writes to every page of it, and
ends up with its own copy. Bytes in shared memory have no such counts.

Guarantees:

- A forked process reads the same memory; a spawned one receives the descriptor, not the bytes.
- Elements are copies: a change to one is invisible to every other reader, and to a later read of the same index.
- The memory is released with the last process that has the list; nothing is left behind.
"""

from __future__ import annotations

import mmap
import pickle
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, Final

from dataflow.errors import NotPicklable
from dataflow.system.descriptors import Descriptor, closed_on_error, shared_memory_file

__all__ = ["PackedList"]

_PROTOCOL: Final = 5  # keeps the byte order and the memory order of arrays
_OFFSET_BYTES: Final = 8


class PackedList(Sequence[Any]):
    """Immutable list in shared memory.

    Args:
        elements: Any objects that can be pickled; iterated once.

    Raises:
        NotPicklable: An element cannot be pickled; the message holds its index.

    Example:
        >>> packed = PackedList([[1, "a"], [2, "b"]])
        >>> len(packed), packed[1]
        (2, [2, 'b'])
    """

    def __init__(self, elements: Iterable[Any]) -> None:
        with closed_on_error():
            file = shared_memory_file("dataflow-list", 0)
            num, size = _write(file, elements)
            self._open(file, num, size)

    def _open(self, file: Descriptor, num: int, size: int) -> None:
        self._file = file
        self._num = num
        self._size = size  # of all elements, in bytes; the offsets follow them
        self._memory = memoryview(mmap.mmap(file.fd, size + (num + 1) * _OFFSET_BYTES)).toreadonly()
        self._offsets = self._memory[size:].cast("q")
        weakref.finalize(self, file.close)

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return len(self._memory)

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._num:
            raise IndexError(f"there is no element {index} in a packed list of {self._num}")
        return pickle.loads(self._memory[self._offsets[index] : self._offsets[index + 1]])

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self._num))

    def __copy__(self) -> PackedList:
        return self

    def __deepcopy__(self, memo: Any) -> PackedList:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        # In a forked process the descriptor is closed, because mapped memory needs none. Elsewhere, for example on
        # another machine, there is nothing to share.
        if get_spawning_popen() is not None and self._file.fd >= 0:
            return _shared, (self._file, self._num, self._size)
        return _unpack, (bytes(self._memory), self._num, self._size)


def _shared(file: Descriptor, num: int, size: int) -> PackedList:
    packed = PackedList.__new__(PackedList)
    packed._open(file, num, size)
    return packed


def _unpack(data: bytes, num: int, size: int) -> PackedList:
    file = shared_memory_file("dataflow-list", 0)
    with open(file.fd, "wb", closefd=False) as out:
        out.write(data)
    return _shared(file, num, size)


def _write(file: Descriptor, elements: Iterable[Any]) -> tuple[int, int]:
    """Pickle every element into `file`, followed by the offsets. Return the number of elements and their bytes."""
    offsets = array("q", [0])
    with open(file.fd, "wb", closefd=False, buffering=1 << 20) as out:
        for k, element in enumerate(elements):
            try:
                data = pickle.dumps(element, _PROTOCOL)
            except Exception as error:
                raise NotPicklable(
                    f"the datapoint at index {k}, of type {type(element).__name__}, cannot be pickled, so the list "
                    f"cannot be packed: {error}. Put what makes it into the list, and make it with MapData; or pass "
                    "packed=False"
                ) from error
            out.write(data)
            offsets.append(offsets[-1] + len(data))
        padding = -offsets[-1] % _OFFSET_BYTES
        out.write(bytes(padding))
        out.write(memoryview(offsets))
    return len(offsets) - 1, offsets[-1] + padding
