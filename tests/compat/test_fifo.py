"""Jobs that fill shared arrays, first in, first out."""

import gc
import multiprocessing
import os
import threading

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dataflow
from dataflow import DataFlowTerminated, NotPicklable, SharedMem, SharedQ
from dataflow import TimeoutError as DataFlowTimeout
from dataflow.compat import command_pool
from dataflow.compat.command_pool import CommandPool
from tests.compat.targets import (
    DTYPES,
    copy_into,
    everything,
    fill,
    fill_everything,
    fill_with_numbers,
    fill_with_pid,
    same,
    wait_and_fill,
)
from tests.support.contract import seeded
from tests.support.fakes import METHODS
from tests.support.stacks import is_inside
from tests.support.waits import LIMIT, wait_until

QUICK = [pytest.param(m, marks=() if m == "fork" else pytest.mark.full) for m in METHODS]


@pytest.mark.parametrize("method", QUICK)
def test_the_example_of_elektronn_runs_as_written(method, caplog):
    Q = SharedQ(n_proc=2, context=method)
    Q.startproc([np.float32], [(5, 5)], target=fill, target_args=(-2,))
    Q.startproc([np.float32], [(5, 5)], target=fill, target_args=(-1,))
    for i in range(5):
        Q.startproc([np.float32], [(5, 5)], target=fill, target_args=(i,))
        item = Q.get()  # starts as many new jobs as to maintain n_proc
        assert len(item) == 1 and item[0].shape == (5, 5) and (item[0] == i - 2).all()
    assert len(Q) == 2 and not caplog.records
    Q.shutdown()


@pytest.mark.parametrize("method", METHODS)
def test_every_dtype_in_every_order_arrives_as_it_is(method):
    expected = everything()
    with SharedQ(context=method) as queue:
        queue.startproc([a.dtype for a in expected], [a.shape for a in expected], fill_everything)
        assert all(map(same, queue.get(timeout=LIMIT), expected))


@settings(max_examples=40)
@given(
    arrays=st.lists(
        hnp.arrays(st.sampled_from(list(DTYPES.values())[:15]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)),
        max_size=3,
    ),
    number=st.integers(1, 3),
)
def test_what_a_job_writes_is_what_get_gives_out(arrays, number):
    queue = _long_lived()
    for _ in range(number):
        queue.startproc([a.dtype for a in arrays], [a.shape for a in arrays], copy_into, (arrays,))
    for _ in range(number):
        assert all(map(same, queue.get(timeout=LIMIT), arrays))


_queues: list[SharedQ] = []


def _long_lived() -> SharedQ:
    if not _queues:
        _queues.append(SharedQ())
    return _queues[0]


@pytest.fixture(autouse=True)
def no_queue_is_left():
    yield
    while _queues:
        _queues.pop().shutdown()


def test_the_order_is_that_of_the_starts_whoever_is_ready_first():
    gate = SharedMem.puthandle("i8", 1)
    with SharedQ() as queue:
        queue.startproc(["i8"], [3], wait_and_fill, (gate, 1))
        queue.startproc(["i8"], [3], fill, (2,))
        with pytest.raises(DataFlowTimeout, match=r"no result from SharedQ for 0\.05 seconds.*pid"):
            queue.get(timeout=0.05)
        SharedMem.shm2ndarray(gate)[0] = 1
        assert [queue.get(timeout=LIMIT)[0].tolist() for _ in range(2)] == [[1] * 3, [2] * 3]
        with pytest.raises(IndexError, match="startproc"):
            queue.get()


def pids(queue, num=3):
    found = []
    for k in range(num):
        queue.startproc(["i8"], [()], fill_with_pid, (k,))
        found.append(int(queue.get(timeout=LIMIT)[0]))
    assert os.getpid() not in found
    return len(set(found))


@pytest.mark.parametrize("method", METHODS)
def test_a_process_that_has_done_its_job_is_given_the_next(method):
    with SharedQ(context=method) as queue:
        assert pids(queue) == 1
    if method == "fork":
        with SharedQ(context=method, reuse=False) as queue:
            assert pids(queue) == 3
            assert not multiprocessing.active_children(), "each is done, and gets no other job"


def test_what_cannot_be_sent_to_a_running_process_gets_a_new_one():
    locks = [threading.Lock()]

    def locked(mp_arrays, shapes):
        with locks[0]:
            fill_with_pid(mp_arrays, shapes)

    large = np.zeros(100_000)
    handle = SharedMem.ndarray2shm(np.arange(3))

    def by_handle(mp_arrays, shapes, shared):
        SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[...] = SharedMem.shm2ndarray(shared)[2]

    with SharedQ(context="fork") as queue:
        found = []
        for target, args in ((fill_with_pid, ()), (locked, ()), (fill_with_pid, (large,)), (fill_with_pid, ())):
            queue.startproc(["i8"], [()], target, args)
            found.append(int(queue.get(timeout=LIMIT)[0]))
        assert len(set(found[:3])) == 3 and found[3] in found[:3]
        queue.startproc(["i8"], [()], by_handle, (handle,))
        assert queue.get(timeout=LIMIT)[0] == 2
    with SharedQ(context="spawn") as queue, pytest.raises(NotPicklable, match=r"cannot be sent.*lock"):
        queue.startproc(["i8"], [()], locked)


def test_jobs_run_at_once():
    first, second = (SharedMem.puthandle("i8", 1) for _ in range(2))

    def open_and_wait(mp_arrays, shapes, opened, gate):
        SharedMem.shm2ndarray(opened)[0] = 1
        wait_and_fill(mp_arrays, shapes, gate, 1)

    with SharedQ() as queue:
        queue.startproc(["i8"], [1], open_and_wait, (first, second))
        queue.startproc(["i8"], [1], open_and_wait, (second, first))  # each waits for the other
        assert [queue.get(timeout=LIMIT)[0][0] for _ in range(2)] == [1, 1]


def test_defaults_stand_in_for_what_is_not_given():
    with SharedQ(0, fill, (4,)) as queue:
        queue.startproc(["i8"], [2])
        queue.startproc(["i8"], [2], target_args=(5,))
        queue.startproc(["i8"], [2], copy_into, ([np.array([6, 7])],))
        assert [queue.get(timeout=LIMIT)[0].tolist() for _ in range(3)] == [[4, 4], [5, 5], [6, 7]]
    with SharedQ(default_target=fill, default_kwargs={"number": 8}) as queue:
        queue.startproc(["i8"], [2])
        assert queue.get(timeout=LIMIT)[0].tolist() == [8, 8]


def test_data_is_an_argument_like_any_other_and_fills_nothing():
    def add(mp_arrays, shapes, data):
        for handle, shape in zip(mp_arrays, shapes, strict=True):
            array = SharedMem.shm2ndarray(handle, shape)
            array += data[: array.size]

    with SharedQ() as queue:
        queue.startproc(["i8", "i8"], [2, 3], add, target_kwargs={"data": np.array([1, 2, 3])})
        assert [array.tolist() for array in queue.get(timeout=LIMIT)] == [[1, 2], [1, 2, 3]]


def test_too_few_jobs_are_warned_of(caplog):
    with SharedQ(n_proc=2) as queue:
        for k in range(3):
            queue.startproc(["i8"], [1], fill, (k,))
        queue.get(timeout=LIMIT)
        assert not caplog.records
        queue.get(timeout=LIMIT)
        assert "1 more jobs should have been started before get, so that 2" in caplog.text
        caplog.clear()
        queue.get(timeout=LIMIT)
        assert "2 more jobs" in caplog.text
    with SharedQ() as queue:
        caplog.clear()
        queue.startproc(["i8"], [1], fill, (1,))
        queue.get(timeout=LIMIT)
        assert not caplog.records


def test_arrays_outlive_queue_process_and_each_other():
    queue = SharedQ()
    kept = []
    for k in range(4):
        queue.startproc(["i8", "f4"], [100_000 if k % 2 else 10, (2, 2)], fill, (k,))
        kept.append(queue.get(timeout=LIMIT)[0][::2])
    queue.shutdown()
    del queue
    gc.collect()
    assert [(array == k).all() for k, array in enumerate(kept)] == [True] * 4
    kept[0] += 1
    assert [array[0] for array in kept] == [1, 1, 2, 3]


def test_whoever_keeps_very_many_results_does_not_run_out_of_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    with SharedQ() as queue:
        for k in range(100):
            queue.startproc(["i8"], [10_000], fill, (k,))
            kept += queue.get(timeout=LIMIT)
    assert len(os.listdir("/proc/self/fd")) - before < 80
    assert [(array == k).all() for k, array in enumerate(kept)] == [True] * 100


def test_an_unfinished_queue_that_is_forgotten_leaves_nothing():
    queue = SharedQ()
    queue.startproc(["i8"], [3], wait_and_fill, (SharedMem.puthandle("i8", 1), 5))
    del queue
    gc.collect()  # the watch over the machine sees to the rest


def test_shutdown_forgets_the_jobs_and_frees_whoever_waits():
    queue = SharedQ()
    queue.startproc(["i8"], [3], wait_and_fill, (SharedMem.puthandle("i8", 1), 5))
    caught = []

    def wait():
        try:
            queue.get()
        except DataFlowTerminated as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: is_inside(thread, CommandPool.wait), LIMIT, "get does not wait")
    queue.shutdown()
    thread.join(LIMIT)
    assert len(caught) == 1 and len(queue) == 0
    queue.startproc(["i8"], [3], fill, (5,))
    assert queue.get(timeout=LIMIT)[0].tolist() == [5] * 3
    queue.reset()


def test_a_forked_child_makes_its_own():
    with SharedQ() as queue:
        queue.startproc(["i8"], [3], fill, (5,))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(DataFlowTerminated, match="forked"):
                    queue.get(timeout=LIMIT)
                with SharedQ() as own:
                    own.startproc(["i8"], [3], fill, (6,))
                    code = 0 if own.get(timeout=LIMIT)[0].tolist() == [6] * 3 else 2
                queue.shutdown()  # no-op
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert queue.get(timeout=LIMIT)[0].tolist() == [5] * 3


def refused(*_):
    raise MemoryError


@pytest.mark.parametrize("what", ["CommandPool.send", "close_at_exit"])
def test_a_job_that_cannot_be_started_leaves_no_process(what, monkeypatch):
    owner, _, name = what.rpartition(".")
    with SharedQ() as queue:
        with monkeypatch.context() as patched:
            patched.setattr(CommandPool if owner else command_pool, name, refused)
            with pytest.raises(MemoryError):
                queue.startproc(["i8"], [3], fill, (5,))
        assert len(queue) == 0
        queue.startproc(["i8"], [3], fill, (6,))
        assert queue.get(timeout=LIMIT)[0].tolist() == [6] * 3


def interrupted_once(monkeypatch, name):
    """Let the next call of a method of `CommandPool` be interrupted as it ends."""
    method = getattr(CommandPool, name)

    def interrupted(self):
        method(self)
        monkeypatch.setattr(CommandPool, name, method)
        raise KeyboardInterrupt

    monkeypatch.setattr(CommandPool, name, interrupted)


def test_an_interrupted_shutdown_ends_all_processes(monkeypatch):
    queue, others = SharedQ(), psutil.Process().children()
    for _ in range(3):
        queue.startproc(["i8"], [3], wait_and_fill, (SharedMem.puthandle("i8", 1), 5))
    interrupted_once(monkeypatch, "close")
    with pytest.raises(KeyboardInterrupt):
        queue.shutdown()
    assert psutil.Process().children() == others


def test_a_job_whose_acknowledgement_an_interrupt_may_have_lost_is_lost(monkeypatch):
    with SharedQ() as queue:
        queue.startproc(["i8"], [3], fill, (5,))
        interrupted_once(monkeypatch, "receive_all")
        with pytest.raises(KeyboardInterrupt):
            queue.get(timeout=LIMIT)
        queue.startproc(["i8"], [3], fill, (6,))  # starting one asks for the jobs before it: not earlier
        with pytest.raises(DataFlowTerminated, match="was interrupted, and its result is lost"):
            queue.get(timeout=LIMIT)
        assert queue.get(timeout=LIMIT)[0].tolist() == [6] * 3


def drawn(num=4, **more):
    with SharedQ(**more) as queue:
        for _ in range(num):
            queue.startproc(["f8"], [3], fill_with_numbers)
        first = [queue.get(timeout=LIMIT)[0].tolist() for _ in range(num)]
        queue.startproc(["f8"], [3], fill_with_numbers)
        return [*first, queue.get(timeout=LIMIT)[0].tolist()]


def test_jobs_draw_different_numbers_that_follow_from_the_seed_and_not_from_the_process():
    with seeded(5):
        first = drawn()
    assert first == drawn(seed=5) == drawn(seed=5, reuse=False)
    assert len({number for result in first for number in result}) == 15
    assert drawn() != drawn()


def test_flows_in_a_job_follow_from_the_seed():
    def shuffled(mp_arrays, shapes):
        command = [k for (k,) in dataflow.DataFromList([[k] for k in range(20)])]
        SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[:] = command

    def commands():
        with SharedQ(seed=1) as queue:
            for _ in range(2):
                queue.startproc(["i8"], [20], shuffled)
            return [queue.get(timeout=LIMIT)[0].tolist() for _ in range(2)]

    first, second = commands()
    assert first != second and commands() == [first, second]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: SharedQ(-1), ValueError, "n_proc"),
        (lambda: SharedQ(seed=-1), ValueError, "seed"),
        (lambda: SharedQ().startproc(["f4"], [3]), TypeError, "default_target"),
        (lambda: SharedQ().startproc(["f4"], [3, 4], fill), ValueError, "1 dtypes for 2 shapes"),
        (lambda: SharedQ().startproc([object], [3], fill), TypeError, "Python objects"),
    ],
)
def test_a_wrong_parameter_is_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
