import copy
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.errors import NotPicklable
from dataflow.sources.packed_list import PackedList
from tests.support.fakes import each_method
from tests.support.waits import LIMIT

VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.binary(max_size=20)),
    lambda values: st.one_of(st.lists(values, max_size=3), st.tuples(values, values)),
    max_leaves=5,
)


@given(st.lists(VALUES, max_size=30))
def test_it_is_the_list(lst):
    packed = PackedList(lst)
    assert len(packed) == len(lst)
    assert list(packed) == lst
    assert [packed[k] for k in reversed(range(len(lst)))] == lst[::-1]
    assert list(PackedList(iter(lst))) == lst


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::3],
        np.zeros((0, 4), "float32"),
        np.array(5.5),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([(1, 2.0)], dtype=[("a", "i2"), ("b", "f8")]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_stay_what_they_are(array):
    (found,) = PackedList([array])
    assert found.dtype == array.dtype and found.shape == array.shape
    assert np.array_equal(found, array)
    assert found.flags.writeable


def test_elements_are_copies():
    packed = PackedList([[np.zeros(3)]])
    packed[0][0][:] = 5
    packed[0].append(1)
    assert packed[0][0].tolist() == [0, 0, 0] and len(packed[0]) == 1


def test_nobody_can_change_it():
    packed = PackedList([1, 2])
    assert copy.copy(packed) is packed and copy.deepcopy([packed])[0] is packed
    with pytest.raises(TypeError):
        packed[0] = 5


@pytest.mark.parametrize("index", [2, -1, 10**12])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError, match="packed list of 2"):
        PackedList([1, 2])[index]


def test_what_cannot_be_pickled_is_named_and_nothing_stays_open():
    with pytest.raises(NotPicklable, match=r"datapoint at index 1, of type lock, .* packed=False"):
        PackedList([1, threading.Lock()])


# -- other processes ---------------------------------------------------------------------------------------------------


def test_it_can_be_pickled_and_is_a_copy_then():
    packed = pickle.loads(pickle.dumps(PackedList([[k] for k in range(5)])))
    assert list(packed) == [[k] for k in range(5)]
    assert list(pickle.loads(pickle.dumps(packed))) == list(packed)


def report(packed, connection):
    """Tell what the list holds here, and in which file: the same one has the same number."""
    with connection:
        connection.send((packed[3], len(packed), mapped_files()))


def mapped_files():
    with open("/proc/self/maps") as maps:
        return {line.split()[4] for line in maps if "dataflow-list" in line}


@each_method
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="looks at the name of the memory")
def test_every_process_reads_the_same_memory(method):
    packed = PackedList([[k] for k in range(5)])
    context = multiprocessing.get_context(method)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(packed, there))
    process.start()
    there.close()
    assert here.poll(LIMIT)
    element, num, files = here.recv()
    here.close()
    process.join(LIMIT)
    process.close()
    assert (element, num) == ([3], 5)
    assert files & mapped_files()


def forward(packed, connection):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=report, args=(packed, connection))
    process.start()
    process.join(LIMIT)


def test_a_forked_process_may_hand_it_to_one_that_is_spawned():
    packed = PackedList([[k] for k in range(5)])
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=forward, args=(packed, there))
    process.start()
    there.close()
    assert here.poll(LIMIT)
    assert here.recv()[:2] == ([3], 5)
    here.close()
    process.join(LIMIT)
    process.close()


def test_the_memory_ends_with_the_list():
    before = mapped_files()
    packed = PackedList([[k] for k in range(5)])
    assert mapped_files() > before
    kept = packed[1]
    del packed
    assert mapped_files() <= before and kept == [1]


def write_private_bytes(lst, passes, connection):
    """Read the whole list again and again, and say how many bytes only this process has."""
    with connection:
        for _ in range(passes):
            for k in range(len(lst)):
                lst[k]
        with open("/proc/self/smaps_rollup") as rollup:
            private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
        connection.send(private * 1024)


def private_bytes(lst):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=write_private_bytes, args=(lst, 1, there))
    process.start()
    there.close()
    assert here.poll(2 * LIMIT)
    found = here.recv()
    here.close()
    process.join(LIMIT)
    process.close()
    return found


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="asks Linux for private memory")
def test_reading_it_makes_no_copy_of_it_in_a_worker():
    num = 300_000
    lst = [[str(k), k] for k in range(num)]
    packed = PackedList(lst)
    assert all(packed)  # what only one process looks at counts as its own, shared or not
    nothing, grown, shared = (private_bytes(read) for read in ([], lst, packed))
    assert grown - nothing > 100 * num / 2  # the pages of three objects for each element
    assert shared - nothing < 0.1 * (grown - nothing)
