"""Shared arrays: every dtype, every order, every way into another process."""

import fcntl
import gc
import itertools
import multiprocessing
import os
import pickle
import threading
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataflow import NotPicklable, ShapeMismatch, SharedMem
from dataflow.compat.shared_arrays import SharedLock, refusing_handles
from tests.compat.targets import DTYPES, ORDERS, add_many, arranged, double, same, take_and_die
from tests.support.fakes import METHODS
from tests.support.products import covering
from tests.support.waits import LIMIT, wait_until


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_copy_in_shared_memory_has_the_same_values(dtype):
    for command, lock in itertools.product(ORDERS, (False, True)):
        array = arranged(dtype, command)
        handle = SharedMem.ndarray2shm(array, lock=lock)
        assert same(SharedMem.shm2ndarray(handle, array.shape), array), command
        assert same(SharedMem.shm2ndarray(handle), array.ravel()), command


@settings(max_examples=60)
@given(
    hnp.arrays(
        dtype=hnp.scalar_dtypes() | hnp.array_dtypes(hnp.scalar_dtypes(), max_size=3),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    st.data(),
)
def test_any_array_survives_in_any_arrangement(array, data):
    array = np.transpose(array, data.draw(st.permutations(range(array.ndim))))
    array = array[tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in range(array.ndim))]
    handle = SharedMem.ndarray2shm(array)
    found = SharedMem.shm2ndarray(handle, array.shape)
    assert same(found, array)
    assert found.flags.writeable
    assert len(handle) == handle.size == array.size


def test_two_views_are_of_the_same_memory_which_lives_as_long_as_one_of_them():
    handle = SharedMem.puthandle("f4", (2, 3))
    first, second = SharedMem.shm2ndarray(handle, (2, 3)), SharedMem.shm2ndarray(handle)
    first[1, 2] = 5
    part = second[3:]
    del handle, first, second
    gc.collect()
    assert part.tolist() == [0, 0, 5]


def test_puthandle_takes_data_of_the_shape_or_flat_and_nothing_else():
    for data in ([[1, 2], [3, 4]], [1, 2, 3, 4], np.asfortranarray([[1, 2], [3, 4]], dtype="i2")):
        handle = SharedMem().puthandle(np.int64, (2, 2), data)
        assert SharedMem.shm2ndarray(handle, (2, 2)).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ShapeMismatch, match=r"\(1,\).*\(4,\)"):
        SharedMem.puthandle("f4", (2, 2), [1.0])
    with pytest.raises(ShapeMismatch, match=r"\(4, 1\).*\(2, 2\)"):
        SharedMem.puthandle("f4", (2, 2), np.zeros((4, 1)))
    with pytest.raises(OverflowError, match="300"):
        SharedMem.puthandle("u1", 1, [300])


def test_a_handle_cannot_have_any_shape():
    handle = SharedMem.puthandle("f4", 6)
    with pytest.raises(ShapeMismatch, match=r"6 elements.*\(2, 2\)"):
        SharedMem.shm2ndarray(handle, (2, 2))
    with pytest.raises(TypeError, match="list"):
        SharedMem.shm2ndarray([1, 2])
    with pytest.raises(TypeError, match="Python objects"):
        SharedMem.puthandle(object, 3)
    with pytest.raises(ValueError, match="negative"):
        SharedMem.puthandle("f4", (-1, 3))


@pytest.mark.parametrize("make", [multiprocessing.RawArray, multiprocessing.Array], ids=["raw", "locked"])
@pytest.mark.parametrize("code", ["b", "H", "i", "l", "Q", "f", "d"])
def test_an_array_of_multiprocessing_is_accepted(make, code):
    array = make(code, 6)
    view = SharedMem.shm2ndarray(array, (2, 3))
    view[1, 2] = 7
    assert array[5] == 7
    assert view.dtype == np.dtype(code)


def run(context, target, *args):
    process = context.Process(target=target, args=args)
    process.start()
    process.join(LIMIT)
    code = process.exitcode
    process.close()
    return code


@pytest.mark.parametrize(("method", "lock"), covering(METHODS, [False, True]))
def test_a_process_of_any_start_method_shares_the_memory(method, lock):
    handle = SharedMem.ndarray2shm(np.arange(6, dtype=">f8").reshape(2, 3), lock=lock)
    assert run(multiprocessing.get_context(method), double, handle, (2, 3)) == 0
    assert SharedMem.shm2ndarray(handle).tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("method", [pytest.param(m, marks=() if m == "fork" else pytest.mark.full) for m in METHODS])
def test_the_lock_excludes_other_processes_and_threads(method):
    handle = SharedMem.puthandle("i8", 2, lock=True)
    assert handle.get_obj() is handle
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=add_many, args=(handle, 2000)) for _ in range(2)]
    for process in processes:
        process.start()
    threads = [threading.Thread(target=add_many, args=(handle, 500)) for _ in range(2)]
    for worker in threads:
        worker.start()
    for worker in (*threads, *processes):
        worker.join(2 * LIMIT)
    for process in processes:
        process.close()
    assert SharedMem.shm2ndarray(handle).tolist() == [5000, 5000]


def test_of_two_threads_that_are_the_first_of_a_process_one_holds_the_lock():
    class Meeting(dict):
        def setdefault(self, key, value):
            gate.wait(LIMIT)
            return super().setdefault(key, value)

    gate, lock, found = threading.Barrier(2), SharedLock(), []
    lock._holders = Meeting()
    threads = [threading.Thread(target=lambda: found.append(lock.acquire(timeout=0.1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(found) == [False, True]


def test_the_lock_of_a_holder_that_was_killed_is_free():
    handle = SharedMem.puthandle("i8", 1, lock=True)
    assert run(multiprocessing.get_context("fork"), take_and_die, handle) == -9
    assert SharedMem.shm2ndarray(handle)[0] == 1
    assert handle.get_lock().acquire(timeout=LIMIT)
    handle.get_lock().release()


def hold_until(handle, gate):
    with handle.get_lock():
        SharedMem.shm2ndarray(handle)[0] = 1
        wait_until(lambda: SharedMem.shm2ndarray(gate)[0], LIMIT, "never released")


def test_a_lock_that_another_process_has_can_be_waited_for_with_a_limit():
    handle, gate = SharedMem.puthandle("i8", 1, lock=True), SharedMem.puthandle("i8", 1)
    process = multiprocessing.get_context("fork").Process(target=hold_until, args=(handle, gate))
    process.start()
    wait_until(lambda: SharedMem.shm2ndarray(handle)[0], LIMIT, "never taken")
    lock = handle.get_lock()
    assert not lock.acquire(block=False)
    assert not lock.acquire(timeout=0.05)
    SharedMem.shm2ndarray(gate)[0] = 1
    assert lock.acquire(timeout=LIMIT)
    assert lock.acquire(), "the thread that has it may take it again"
    taken = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=0.01)))
    thread.start()
    thread.join()
    assert taken == [False]
    lock.release()
    lock.release()
    with pytest.raises(RuntimeError, match="not acquired"):
        lock.release()
    process.join(LIMIT)
    process.close()


def is_free(lock):
    """Whether another process could have it: this one would get it again."""

    def probe():
        os._exit(int(lock.acquire(block=False)))

    return run(multiprocessing.get_context("fork"), probe) == 1


def test_a_thread_cannot_release_what_another_one_holds():
    lock, errors = SharedLock(), []

    def release():
        try:
            lock.release()
        except RuntimeError as error:
            errors.append(str(error))

    with lock:
        thread = threading.Thread(target=release)
        thread.start()
        thread.join()
        assert "this thread has not acquired the lock" in errors[0]
        assert not is_free(lock)
    assert is_free(lock)


@pytest.mark.parametrize("how", ["acquire", "release"])
def test_an_interrupt_when_the_file_was_locked_or_unlocked_leaves_the_lock_free(how, monkeypatch):
    lock, lockf = SharedLock(), fcntl.lockf

    def interrupted(fd, command):
        monkeypatch.setattr(fcntl, "lockf", lockf)
        lockf(fd, command)
        raise KeyboardInterrupt

    if how == "release":
        lock.acquire()
    monkeypatch.setattr(fcntl, "lockf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(lock, how)()
    assert is_free(lock)
    with lock:
        assert not is_free(lock)


def test_a_lock_is_sent_to_no_process_that_runs_already():
    handle = SharedMem.puthandle("i8", 1, lock=True)
    with handle.get_lock():
        for value in (handle, handle.get_lock()):
            with pytest.raises(NotPicklable, match="argument of the process"):
                ForkingPickler.dumps(value)
        assert not is_free(handle.get_lock())


def test_a_handle_without_a_lock_says_so():
    handle = SharedMem.puthandle("f4", 3)
    assert repr(handle) == "<handle of 3 shared float32>"
    with pytest.raises(ValueError, match="lock=True"):
        handle.get_lock()


def test_a_handle_may_refuse_to_be_pickled():
    with refusing_handles(), pytest.raises(NotPicklable, match="started"):
        pickle.dumps(SharedMem.puthandle("f4", 3))
