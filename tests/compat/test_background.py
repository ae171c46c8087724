"""Background processes that make one result after the other."""

import gc
import os
import random
import signal
import sys
import threading
import time
import types
import weakref

import numpy as np
import psutil
import pytest

import dataflow
from dataflow import BackgroundProc, DataFlowTerminated, NotPicklable, ShapeMismatch, SharedMem
from dataflow import TimeoutError as DataFlowTimeout
from dataflow.compat.background import _ResultSlots
from dataflow.compat.command_pool import CommandPool
from tests.compat.targets import SIZE, Counting, drawn, everything, same, wait_at
from tests.support.contract import seeded
from tests.support.fakes import METHODS
from tests.support.faults import deadline
from tests.support.products import covering
from tests.support.stacks import is_inside
from tests.support.waits import LIMIT, wait_until

QUICK = [pytest.param(m, marks=() if m == "fork" else pytest.mark.full) for m in METHODS]


class Batches:
    """A data structure with a method that draws batches, as in ELEKTRONN's documentation."""

    def __init__(self):
        self.data = np.arange(10_000, dtype=np.float32).reshape(100, 10, 10)

    def getbatch(self, batch_size, strided=True, flip=False, grey_augment_channels=()):
        assert not strided and flip and grey_augment_channels == [0]
        picked = np.random.randint(0, 100, batch_size)
        return self.data[picked], picked.astype(np.int16)


D = Batches()


def check_batch(data, label):
    assert data.dtype == np.float32 and label.dtype == np.int16
    assert (data == D.data[label]).all()


@pytest.mark.parametrize("method", QUICK)
def test_the_example_of_elektronn_runs_as_written(method):
    data, label = D.getbatch(2, strided=False, flip=True, grey_augment_channels=[0])
    kwargs = {"strided": False, "flip": True, "grey_augment_channels": [0]}
    bg = BackgroundProc(
        [np.float32, np.int16],
        [data.shape, label.shape],
        D.getbatch,
        n_proc=2,
        target_args=(2,),
        target_kwargs=kwargs,
        profile=False,
        context=method,
    )
    for _ in range(100):
        data, label = bg.get()
        check_batch(data, label)
    bg.shutdown()


def test_shapes_and_dtypes_are_seen_in_a_trial_call():
    with BackgroundProc(drawn, n_proc=1) as bg:
        assert bg.shapes == [(4,)] and bg.dtypes == [np.dtype("f8")]
        (array,) = bg.get(timeout=LIMIT)
        assert array.shape == (4,)
    with BackgroundProc(drawn, dtypes=["f4"]) as bg:
        assert bg.shapes == [(4,)] and bg.get(timeout=LIMIT)[0].dtype == np.float32


@pytest.mark.parametrize(("method", "copy"), covering(METHODS, [True, False]))
def test_every_dtype_in_every_order_arrives_as_it_is(method, copy):
    expected = everything()
    with BackgroundProc(everything, context=method, copy=copy) as bg:
        for _ in range(3):
            found = bg.get(timeout=LIMIT)
            assert all(map(same, found, expected)) and len(found) == len(expected)


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "views"])
@pytest.mark.parametrize("n", [1, 3])
def test_results_come_in_turn_and_none_is_lost(copy, n):
    with BackgroundProc(Counting(), ["i8", "i8"], [(SIZE,)] * 2, n_proc=n, copy=copy) as bg:
        for k in range(10 * n):
            worker, count = bg.get(timeout=LIMIT)
            assert (worker == k % n).all() and (count == k // n).all()


def test_whoever_is_ready_first_is_taken_if_the_order_does_not_matter():
    gate = SharedMem.puthandle("i8", 1)

    def first_waits():
        if dataflow.worker_info().index == 0:
            wait_at(gate)
        return np.array([dataflow.worker_info().index])

    with BackgroundProc(first_waits, ["i8"], [(1,)], n_proc=2, ordered=False) as bg:
        assert [bg.get(timeout=LIMIT)[0][0] for _ in range(5)] == [1] * 5
        SharedMem.shm2ndarray(gate)[0] = 1
        wait_until(lambda: bg.get(timeout=LIMIT)[0][0] == 0, LIMIT, "worker 0 never had its turn")


def test_copies_are_private_and_views_last_until_the_next_get():
    with BackgroundProc(Counting(), ["i8", "i8"], [(SIZE,)] * 2) as bg:
        kept = [bg.get(timeout=LIMIT)[1] for _ in range(5)]
        kept[0][:] = -1
        assert [array[0] for array in kept] == [-1, 1, 2, 3, 4]
    with BackgroundProc(Counting(), ["i8", "i8"], [(SIZE,)] * 2, copy=False) as bg:
        for k in range(20):
            (_, count) = bg.get(timeout=LIMIT)
            time.sleep(0)  # the worker makes the next one meanwhile, somewhere else
            assert (count == k).all() and count.flags.writeable
        last = count
    assert last[-1] == 19, "the memory outlives the processes"


def test_each_process_makes_one_result_ahead():
    calls = SharedMem.puthandle("i8", 2)

    def counted():
        SharedMem.shm2ndarray(calls)[dataflow.worker_info().index] += 1
        return np.zeros(1)

    with BackgroundProc(counted, ["f8"], [(1,)], n_proc=2) as bg:
        made = SharedMem.shm2ndarray(calls)
        wait_until(lambda: made.tolist() == [1, 1], LIMIT, "nothing was made ahead")
        for _ in range(4):
            bg.get(timeout=LIMIT)
        wait_until(lambda: made.tolist() == [3, 3], LIMIT, "nothing was made ahead")


def numbers(n_proc=4, num=8, **more):
    with BackgroundProc(drawn, ["f8"], [(4,)], n_proc=n_proc, **more) as bg:
        return [bg.get(timeout=LIMIT)[0].tolist() for _ in range(num)]


def test_processes_draw_different_numbers_which_a_seed_makes_the_same_in_every_run():
    with seeded(5):
        first = numbers()
        assert numbers() == first
    assert len({number for result in first for number in result}) == 32
    with seeded(6):
        assert numbers() != first
    assert numbers(seed=5) == first
    assert numbers() != numbers()


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.full), "forkserver"])
def test_the_numbers_are_the_same_under_every_start_method(method):
    assert numbers(2, seed=5, context=method) == numbers(2, seed=5, context="fork")


def test_new_processes_draw_new_numbers_that_follow_from_the_seed():
    def twice():
        with BackgroundProc(drawn, seed=3, n_proc=2) as bg:
            found = []
            for _ in range(2):
                found += [bg.get(timeout=LIMIT)[0].tolist() for _ in range(3)]
                bg.reset()
            return found

    found = twice()
    assert found == twice()
    assert len({str(result) for result in found}) == 6


def test_the_numbers_of_this_process_are_left_alone():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    numbers()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_without_a_process_the_target_is_called_here():
    with BackgroundProc(lambda: [np.full(3, os.getpid()), 2], n_proc=0) as bg:
        pids, two = bg.get()
        assert pids.tolist() == [os.getpid()] * 3 and two == 2
        assert bg.statistics().num_results == 1
    with pytest.raises(DataFlowTerminated, match="shut down"):
        bg.get()
    bg.reset()
    bg.get()


def test_without_a_process_the_target_draws_what_one_process_would():
    def results(n_proc, **seeded):
        with BackgroundProc(drawn, n_proc=n_proc, **seeded) as bg:
            found = [bg.get(timeout=LIMIT)[0].tolist() for _ in range(3)]
            bg.reset()
            return [*found, bg.get(timeout=LIMIT)[0].tolist()]

    assert results(0, seed=3) == results(1, seed=3) != results(0, seed=4)
    with seeded(5):
        assert results(0) == results(1)
    assert results(0) != results(0)


def test_and_leaves_the_numbers_of_this_process_alone():
    before = random.getstate(), np.random.get_state()[1].tolist()
    with BackgroundProc(drawn, ["f8"], [(4,)], n_proc=0, seed=3) as bg:
        bg.get()
        bg.get()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_closure_and_a_lambda_are_sent_under_every_start_method():
    value = np.arange(3)
    for method in METHODS:
        with BackgroundProc(lambda: value * 2, context=method) as bg:
            assert bg.get(timeout=LIMIT)[0].tolist() == [0, 2, 4]


def test_what_cannot_be_sent_is_named_with_the_cure():
    lock = threading.Lock()

    def locked():
        with lock:
            return np.zeros(1)

    with BackgroundProc(locked, context="fork") as bg:
        bg.get(timeout=LIMIT)
    with pytest.raises(NotPicklable, match=r"cannot be sent.*lock.*context=\"fork\""):
        BackgroundProc(locked, context="spawn")


@pytest.mark.parametrize("n_proc", [0, 1])
def test_floats_for_an_agreed_integer_dtype_are_converted_as_the_original_does(n_proc):
    with BackgroundProc(
        lambda: [np.array([1.0, 2.7, -3.9]), np.array([4.0])], ["i2", "u1"], [(3,), (1,)], n_proc
    ) as bg:
        label, weight = bg.get(timeout=LIMIT)
    assert label.tolist() == [1, 2, -3] and label.dtype == np.int16
    assert weight.tolist() == [4] and weight.dtype == np.uint8


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda: [np.zeros(3)], ShapeMismatch, "returned 1 arrays.*agreed were 2"),
        (lambda: [np.zeros(3), np.zeros(1)], ShapeMismatch, r"component 1.*\(1,\).*\(2,\)"),
        (lambda: [np.zeros(3), np.array([300, 1])], OverflowError, r"component 1.*300.*int8"),
        (lambda: [np.zeros(3), np.array([0.5j, 1])], TypeError, "component 1.*complex128.*int8"),
        (lambda: [np.zeros(3), np.array([0.5, np.nan])], OverflowError, "component 1.*nan.*int8"),
        (lambda: [np.zeros(3), None], TypeError, "component 1.*None"),
        (lambda: None, TypeError, "returned None"),
    ],
    ids=["count", "shape", "range", "kind", "nan", "none", "nothing"],
)
def test_a_result_that_does_not_fit_is_an_error_and_no_broadcast(change, error, text):
    with BackgroundProc(change, ["f8", "i1"], [(3,), (2,)]) as bg:
        with pytest.raises(error, match=text) as caught:
            bg.get(timeout=LIMIT)
        assert "worker 0 of 1 of BackgroundProc" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((3,), TypeError, "target is a function"),
        ((drawn, ["f8", "f8"], [(4,)]), ValueError, "2 dtypes for 1 shapes"),
        ((drawn, [object], [(4,)]), TypeError, "Python objects"),
        ((drawn, np.float32, [(4,)]), TypeError, "list with one entry"),
        ((drawn, ["f8"], [(4,)], -1), ValueError, "n_proc"),
        ((lambda: {"a": 1},), TypeError, "returned a dict"),
    ],
)
def test_a_wrong_parameter_is_named_before_anything_is_started(args, error, text):
    with pytest.raises(error, match=text):
        BackgroundProc(*args)
    with pytest.raises(ValueError, match="seed"):
        BackgroundProc(drawn, seed=-1)


def test_windows_is_told_the_cure(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(NotImplementedError, match=r"BackgroundProc needs.*WSL"):
        BackgroundProc(drawn)


def test_an_error_in_the_trial_call_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        BackgroundProc(lambda: 1 // 0)


def test_a_late_result_is_waited_for_again():
    gate = SharedMem.puthandle("i8", 1)
    with BackgroundProc(wait_at, ["i8"], [(3,)], target_args=(gate,)) as bg:
        for timeout in (0, 0.05):
            with pytest.raises(DataFlowTimeout, match=r"no result from BackgroundProc.*worker 0: pid \d+") as caught:
                bg.get(timeout=timeout)
        assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, RuntimeError)
        with pytest.raises(ValueError, match="seconds"):
            bg.get(timeout=-1)
        SharedMem.shm2ndarray(gate)[0] = 1
        assert bg.get(timeout=False)[0].tolist() == [0, 1, 2]


def test_a_worker_that_has_failed_is_heard_of_after_its_results():
    made, failures = [[], [0.1]], {1: ValueError("no more")}
    pool = types.SimpleNamespace(acknowledged=made, failures=failures)
    slots = types.SimpleNamespace(_slots=[0, 1], _turn=0, _ordered=True, _pool=pool)
    assert _ResultSlots._next_ready(slots) is None
    made[1].clear()
    with pytest.raises(ValueError, match="no more"):
        _ResultSlots._next_ready(slots)


def test_an_interrupt_while_get_waits_does_no_harm():
    gate = SharedMem.puthandle("i8", 1)
    with BackgroundProc(wait_at, ["i8"], [(3,)], target_args=(gate,)) as bg:

        def interrupt():
            wait_until(lambda: is_inside(threading.main_thread(), CommandPool.wait), LIMIT, "get does not wait")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with deadline(2 * LIMIT), pytest.raises(KeyboardInterrupt):
            bg.get()
        thread.join()
        SharedMem.shm2ndarray(gate)[0] = 1
        assert bg.get(timeout=LIMIT)[0].tolist() == [0, 1, 2]


def test_an_interrupt_of_a_process_is_not_its_business():
    others = psutil.Process().children(recursive=True)
    gate = SharedMem.puthandle("i8", 1)
    with BackgroundProc(wait_at, ["i8"], [(3,)], n_proc=2, target_args=(gate,)) as bg:
        with pytest.raises(DataFlowTimeout):
            bg.get(timeout=0.1)
        for child in psutil.Process().children(recursive=True):
            if child not in others:
                child.send_signal(signal.SIGINT)
        SharedMem.shm2ndarray(gate)[0] = 1
        for _ in range(4):
            assert bg.get(timeout=LIMIT)[0].tolist() == [0, 1, 2]


def test_views_from_before_a_reset_stay_as_they_were():
    with BackgroundProc(Counting(), ["i8", "i8"], [(SIZE,)] * 2, copy=False) as bg:
        for _ in range(3):
            (_, old) = bg.get(timeout=LIMIT)
        bg.reset()
        for k in range(5):
            (_, count) = bg.get(timeout=LIMIT)
            assert (old == 2).all() and (count == k).all()


def test_after_shutdown_it_says_so_until_it_is_reset():
    bg = BackgroundProc(Counting(), ["i8", "i8"], [(SIZE,)] * 2)
    bg.get(timeout=LIMIT)
    bg.shutdown()
    bg.shutdown()
    with pytest.raises(DataFlowTerminated, match=r"shut down.*reset\(\)"):
        bg.get()
    bg.reset()
    assert bg.get(timeout=LIMIT)[1][0] == 0
    bg.reset()
    assert bg.get(timeout=LIMIT)[1][0] == 0, "what was made ahead is lost"
    bg.close()


def test_shutdown_frees_whoever_waits_in_another_thread():
    bg = BackgroundProc(wait_at, ["i8"], [(3,)], target_args=(SharedMem.puthandle("i8", 1),))
    caught = []

    def wait():
        try:
            bg.get()
        except DataFlowTerminated as error:
            caught.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: is_inside(thread, CommandPool.wait), LIMIT, "get does not wait")
    bg.shutdown()
    thread.join(LIMIT)
    assert len(caught) == 1 and "shut down" in caught[0]


def test_nothing_is_left_when_it_is_forgotten():
    before = psutil.Process().children(recursive=True)
    bg = BackgroundProc(drawn, n_proc=2)
    (array,) = bg.get(timeout=LIMIT)
    after = psutil.Process().children(recursive=True)
    alive, known = weakref.ref(bg), [child for child in after if child not in before]
    assert len(known) == 2
    del bg
    gc.collect()
    assert alive() is None
    wait_until(lambda: not any(child.is_running() for child in known), LIMIT, "a worker is left")
    assert array.shape == (4,)


def test_a_forked_child_starts_its_own():
    bg = BackgroundProc(drawn)
    bg.get(timeout=LIMIT)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(DataFlowTerminated, match="forked"):
                bg.get()
            bg.reset()
            bg.get(timeout=LIMIT)
            bg.shutdown()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    bg.get(timeout=LIMIT)
    bg.shutdown()


def test_it_can_be_iterated():
    with BackgroundProc(Counting(), ["i8", "i8"], [(SIZE,)] * 2) as bg:
        found = []
        for worker, count in bg:
            found.append((worker[0], count[0]))
            if len(found) == 3:
                break
    assert found == [(0, 0), (0, 1), (0, 2)]


def test_target_may_use_children_and_flows():
    found = []

    def nested():
        if not found:  # once: what is made ahead is nothing that a shutdown could kill in the middle of its start
            with dataflow.MultiProcessRunnerZMQ(dataflow.DataFromList([[1], [2]], shuffle=False), 1) as df:
                found.extend(k for (k,) in df)
        return np.array(found)

    with BackgroundProc(nested, ["i8"], [(2,)]) as bg:
        assert bg.get(timeout=LIMIT)[0].tolist() == [1, 2]
