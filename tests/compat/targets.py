"""What background processes do in these tests."""

import os
import random
import signal
from typing import Any

import numpy as np

from dataflow import SharedMem, WorkerInfo, worker_info
from tests.support.faults import BY_NAME
from tests.support.waits import LIMIT, wait_until

GOOD = 3  # results of each worker before a fault
SIZE = 1000
ORDERS = ("C", "F", "strided", "backwards", "transposed")
DTYPES = {
    str(np.dtype(dtype)): np.dtype(dtype)
    for dtype in (
        *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16"),
        *(">i2", ">u8", ">f4", ">c16", "M8[s]", "m8[ns]", ">M8[D]", "S5", "U3", ">U2", "V6"),
        [("number", ">i4"), ("pair", "f2", (2,)), ("name", "S3")],
    )
}


def arranged(dtype: np.dtype, command: str) -> np.ndarray:
    """An array of shape (3, 4) of all kinds of bytes, that lies in memory in a certain order."""
    size = {"strided": (6, 8), "transposed": (4, 3)}.get(command, (3, 4))
    if dtype.kind == "U":
        full = np.array([chr(65 + k) * (k % 4) for k in range(size[0] * size[1])]).astype(dtype).reshape(size)
    else:
        bits = np.random.default_rng(len(command)).integers(0, 2 if dtype.kind == "b" else 120, (*size, dtype.itemsize))
        full = bits.astype(np.uint8).view(dtype).reshape(size)
    if command == "F":
        return np.asfortranarray(full)
    return {"strided": full[::2, ::2], "backwards": full[::-1, ::-1], "transposed": full.T}.get(command, full)


def everything() -> list[np.ndarray]:
    """One array of each dtype in each order."""
    return [arranged(dtype, command) for dtype in DTYPES.values() for command in ORDERS]


def fill_everything(mp_arrays, shapes):
    for handle, shape, array in zip(mp_arrays, shapes, everything(), strict=True):
        SharedMem.shm2ndarray(handle, shape)[...] = array


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Same shape, dtype and bits: a NaN equals itself."""
    return found.shape == expected.shape and found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def here() -> WorkerInfo:
    place = worker_info()
    assert place is not None
    return place


class Counting:
    """(index of the worker, count) as int64 (SIZE,) arrays; a fault in worker `victim` after `GOOD` results.

    Args:
        fault: Its name; None for none.
        armed: A handle of one number: the fault happens while it is not 0.
        victim: Index of the worker.
    """

    def __init__(self, fault: str | None = None, armed: Any = None, victim: int = 0) -> None:
        self.fault = fault
        self.armed = armed
        self.victim = victim
        self.count = 0

    def __call__(self) -> list[np.ndarray]:
        strikes = self.fault is not None and here().index == self.victim and self.count == GOOD
        if strikes and SharedMem.shm2ndarray(self.armed)[0]:
            BY_NAME[self.fault].strike()
        self.count += 1
        return [np.full(SIZE, here().index), np.full(SIZE, self.count - 1)]


class Bomb:
    """A component that kills its process while it is being written."""

    def __array__(self, dtype=None, copy=None):
        os.kill(os.getpid(), signal.SIGKILL)


class DiesWriting(Counting):
    """Killed when one of two arrays has been written."""

    def __call__(self) -> list[Any]:
        strikes = self.count == GOOD and SharedMem.shm2ndarray(self.armed)[0]
        worker, count = super().__call__()
        return [worker - 1000, Bomb()] if strikes else [worker, count]


def fill_half_and_die(mp_arrays, shapes):
    SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[: SIZE // 2] = 7
    os.kill(os.getpid(), signal.SIGKILL)


def strike(mp_arrays, shapes, name):
    SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[: SIZE // 2] = 7
    BY_NAME[name].strike()


def fill(mp_arrays, shapes, number):
    for handle, shape in zip(mp_arrays, shapes, strict=True):
        SharedMem.shm2ndarray(handle, shape)[...] = number


def fill_with_pid(mp_arrays, shapes, *_):
    SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[...] = os.getpid()


def fill_with_numbers(mp_arrays, shapes, *_):
    array = SharedMem.shm2ndarray(mp_arrays[0], shapes[0])
    array[...] = np.random.random_sample(array.shape)
    array[0] = random.random()


def copy_into(mp_arrays, shapes, values):
    for handle, shape, value in zip(mp_arrays, shapes, values, strict=True):
        SharedMem.shm2ndarray(handle, shape)[...] = value


def drawn() -> np.ndarray:
    return np.array([random.random(), *np.random.random_sample(3)])


def is_open(gate: Any) -> bool:
    return bool(SharedMem.shm2ndarray(gate)[0])


def wait_at(gate: Any) -> np.ndarray:
    """Return when the number behind the handle is no longer 0."""
    wait_until(lambda: is_open(gate), LIMIT, "nobody opened the gate")
    return np.arange(3)


class Numbered:
    """Returns the number of this process and of the call; waits at call `k` until the gate is open."""

    def __init__(self, gate: Any, k: int) -> None:
        self.gate, self.k = gate, k
        self.num_calls = 0

    def __call__(self) -> list[Any]:
        if self.num_calls == self.k:
            wait_at(self.gate)
        self.num_calls += 1
        return [os.getpid(), self.num_calls - 1]


def wait_and_fill(mp_arrays, shapes, gate, number):
    wait_at(gate)
    fill(mp_arrays, shapes, number)


def add_many(handle: Any, times: int) -> None:
    """Add 1, `times` times, each time under the lock."""
    array = SharedMem.shm2ndarray(handle)
    for _ in range(times):
        with handle.get_lock():
            before = int(array[0])
            array[1] += 1  # somewhere else, so that a lost turn is likely without a lock
            array[0] = before + 1


def double(handle: Any, shape: Any) -> None:
    array = SharedMem.shm2ndarray(handle, shape)
    array *= 2


def take_and_die(handle: Any) -> None:
    handle.get_lock().acquire()
    SharedMem.shm2ndarray(handle)[0] = 1
    os.kill(os.getpid(), signal.SIGKILL)
