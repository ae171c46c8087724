"""The arena: a block belongs to one side at a time, comes back when its last view dies, and costs what it touched."""

import errno
import fcntl
import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.system.descriptors import passing_to_child, pipe
from dataflow.transport import arena as arena_module
from dataflow.transport.arena import LARGE_BYTES, ArenaFile, MemoryLimit
from tests.support.fakes import each_method
from tests.support.forks import in_child
from tests.support.threads import switching_often
from tests.support.waits import LIMIT, wait_until

MIB = 1 << 20
PAGE = 4096
BYTE = np.dtype(np.uint8)


@pytest.fixture
def eager_threads():
    """Threads change turns after every few instructions."""
    with switching_often():
        yield


def leased(reader, block, nbytes):
    """The array in a block, as the consumer reads it."""
    (array,) = reader.leases([(block.status, block.start)], (nbytes,), BYTE)
    return array


class Arenas:
    """One arena with both ends in this process; and others that share its memory limit."""

    def __init__(self, limit=4 * MIB, num_workers=1):
        self.memory_limit = MemoryLimit(limit, num_workers)
        self.file = ArenaFile(self.memory_limit)
        self.arenas = [self.file.new_arena(k) for k in range(num_workers)]
        self.writers = [arena.open_writer() for arena in self.arenas]
        self.readers = [arena.open_reader() for arena in self.arenas]
        self.writer, self.reader = self.writers[0], self.readers[0]

    def write(self, value, nbytes=LARGE_BYTES):
        """A block that is full of `value`, as it is sent."""
        block = self.writer.take(nbytes)
        self.writer.view(block, (nbytes,), BYTE)[...] = value
        return block

    def read(self, block, nbytes=LARGE_BYTES):
        return leased(self.reader, block, nbytes)

    def touched(self):
        """Bytes that the operating system has given to the arenas, the status bytes of the first left out."""
        return os.fstat(self.arenas[0].descriptors()[0].fd).st_blocks * 512 - PAGE

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for resource in (self.file, self.memory_limit):
            resource.close()


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_what_the_worker_writes_the_consumer_reads_in_place():
    with Arenas() as arenas:
        block = arenas.write(7)
        array = arenas.read(block)
        assert array.tolist() == [7] * LARGE_BYTES
        assert type(array) is np.ndarray and array.flags.writeable and array.flags.aligned
        arenas.writer.view(block, (LARGE_BYTES,), BYTE)[0] = 8
        assert array[0] == 8  # not a copy


@pytest.mark.parametrize("nbytes", [1, LARGE_BYTES, LARGE_BYTES + 1, 100_000, MIB, MIB + 1, 4 * MIB])
def test_a_block_is_large_enough_and_less_than_twice_too_large(nbytes):
    with Arenas() as arenas:
        block = arenas.writer.take(nbytes)
        assert nbytes <= block.size < 2 * max(nbytes, LARGE_BYTES)
        assert block.start % PAGE == 0


def test_blocks_of_all_sizes_lie_apart():
    with Arenas() as arenas:
        blocks = [
            arenas.writer.take(nbytes) for nbytes in (1, 1, 20_000, 20_000, 40_000, 90_000, 200_000, 600_000, MIB)
        ]
        ends = sorted((block.start, block.start + block.size) for block in blocks)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
        assert len({block.status for block in blocks}) == len(blocks)
        assert max(block.status for block in blocks) < ends[0][0]


def test_the_lowest_free_block_is_taken_first():
    with Arenas() as arenas:
        blocks = [arenas.writer.take(LARGE_BYTES) for _ in range(5)]
        assert [block.start for block in blocks] == sorted(block.start for block in blocks)
        arenas.writer.give_back(blocks[3])
        arenas.writer.give_back(blocks[1])
        assert [arenas.writer.take(LARGE_BYTES) for _ in range(2)] == [blocks[1], blocks[3]]


def test_no_block_where_there_is_no_memory_left_and_one_again_when_there_is():
    with Arenas(MIB) as arenas:
        blocks = []
        while (block := arenas.writer.take(100_000)) is not None:
            blocks.append(block)
        assert len(blocks) == MIB // (25 * PAGE)
        assert arenas.memory_limit.held() == [len(blocks) * 25 * PAGE]
        arenas.writer.give_back(blocks[4])
        assert arenas.writer.take(100_000) == blocks[4]


def test_no_block_where_all_of_its_size_are_taken_though_memory_is_left():
    with Arenas(MIB) as arenas:
        blocks = list(iter(lambda: arenas.writer.take(1), None))
        assert len({block.start for block in blocks}) == len(blocks)
        assert {block.size for block in blocks} == {LARGE_BYTES}
        assert sum(arenas.memory_limit.held()) < MIB
        assert arenas.writer.take(LARGE_BYTES + 1) is not None


def test_what_is_larger_than_the_limit_never_fits():
    with Arenas(MIB) as arenas:
        assert arenas.writer.take(MIB + 1) is None
        assert arenas.memory_limit.pressure == 0  # no other worker has to make room
        assert arenas.writer.take(MIB) is not None


@pytest.mark.parametrize("nbytes", [3 * MIB, 2 * MIB, MIB // 2, 20_000])
def test_memory_of_one_size_serves_for_any_other(nbytes):
    with Arenas(4 * MIB) as arenas:
        for first in (arenas.writer.take(3 * MIB), arenas.writer.take(MIB)):
            arenas.writer.give_back(first)
        taken = [arenas.writer.take(nbytes) for _ in range(4 * MIB // (-(-nbytes // PAGE) * PAGE))]
        assert all(taken)
        assert sum(arenas.memory_limit.held()) <= 4 * MIB


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_no_two_live_blocks_overlap_and_no_more_is_held_than_allowed(draw):
    sizes = [1, LARGE_BYTES, 30_000, 70_000, 300_000, MIB]
    with Arenas(MIB) as arenas:
        live = []
        for _ in range(draw.draw(st.integers(1, 30))):
            action = draw.draw(st.sampled_from(["take", "take", "give back", "lease", "drop", "output buffer", "tidy"]))
            if action == "take" and (block := arenas.writer.take(draw.draw(st.sampled_from(sizes)))):
                live.append((block, None))
            elif action == "output buffer":
                live.append((None, arenas.writer.output_buffer((draw.draw(st.sampled_from(sizes)),), BYTE)))
            elif action == "tidy":
                arenas.writer.tidy()
            elif live:
                block, array = live.pop(draw.draw(st.integers(0, len(live) - 1)))
                if action == "lease" and array is None:
                    live.append((block, arenas.read(block, block.size)))
                elif array is None:
                    arenas.writer.give_back(block)
                del array
            ranges = sorted((block.start, block.start + block.size) for block, _ in live if block)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
            assert sum(arenas.memory_limit.held()) <= MIB
            assert arenas.touched() <= sum(arenas.memory_limit.held())
        for k, (_, array) in enumerate(live):
            if array is not None:
                array[...] = k
        for k, (_, array) in enumerate(live):
            assert array is None or (array == k).all()


# -- leases ------------------------------------------------------------------------------------------------------------


KEEPERS = {
    "the array": lambda array: array,
    "a slice": lambda array: array[5:7],
    "a slice of a slice": lambda array: array[5:70][3:4],
    "another shape": lambda array: array.reshape(2, -1),
    "another dtype": lambda array: array.view(np.int32),
    "a transposed view": lambda array: array.reshape(2, -1).T,
    "a broadcast view": lambda array: np.broadcast_to(array, (3, len(array))),
    "a subclass": lambda array: array.view(np.recarray),
    "an empty slice": lambda array: array[:0],
    "a memoryview": memoryview,
    "a slice of a memoryview": lambda array: memoryview(array)[3:9],
    "an array of a memoryview": lambda array: np.frombuffer(memoryview(array), np.uint8),
    "asarray": lambda array: np.asarray(array)[...],
    "the base": lambda array: array.base,
    "ctypes": lambda array: array.ctypes,
    "a masked view": lambda array: np.ma.masked_array(array, False),
    "an iterator": lambda array: array.flat,
}


@pytest.mark.parametrize("name", KEEPERS)
def test_a_block_is_free_again_when_the_last_view_has_died_whatever_view_it_is(name):
    with Arenas() as arenas:
        block = arenas.write(1)
        array = arenas.read(block)
        keeper = KEEPERS[name](array)
        del array
        assert arenas.reader.num_leases() == 1
        assert arenas.writer.take(LARGE_BYTES) != block
        del keeper
        assert arenas.reader.num_leases() == 0
        assert arenas.writer.take(LARGE_BYTES) == block


def test_a_copy_holds_no_block():
    with Arenas() as arenas:
        array = arenas.read(arenas.write(1))
        copies = [array.copy(), array + 1, array[[1, 2]], array.tolist()]
        del array
        assert arenas.reader.num_leases() == 0
        assert copies[0][0] == 1


def test_an_array_in_a_cycle_gives_its_block_back_when_it_is_collected():
    with Arenas() as arenas:
        cycle = [arenas.read(arenas.write(1))]
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert arenas.reader.num_leases() == 0


def test_leases_may_die_in_any_thread(eager_threads):
    with Arenas(8 * MIB) as arenas:
        arrays = [arenas.read(arenas.write(k % 250)) for k in range(400)]
        sums = []

        def drop(mine):
            while mine:
                sums.append(int(mine.pop()[0]))

        threads = [threading.Thread(target=drop, args=(arrays[k::4],)) for k in range(4)]
        del arrays
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(sums) == sum(k % 250 for k in range(400))
        del threads
        gc.collect()
        assert arenas.reader.num_leases() == 0
        assert len({arenas.writer.take(LARGE_BYTES).start for _ in range(400)}) == 400


def test_worker_and_consumer_change_turns_at_every_block_while_both_run(eager_threads):
    """The worker fills and sends as fast as it can, the consumer drops as fast as it can: nothing is torn."""
    with Arenas(MIB) as arenas:
        sent, bad = [], []
        done = threading.Event()

        def work():
            for k in range(1500):
                while (block := arenas.writer.take(LARGE_BYTES)) is None:
                    pass
                arenas.writer.view(block, (LARGE_BYTES,), BYTE)[...] = k % 251
                sent.append((k, block))
            done.set()

        worker = threading.Thread(target=work)
        worker.start()
        kept = []
        while not done.is_set() or sent:
            if sent:
                k, block = sent.pop(0)
                kept.append((k, arenas.read(block)))
            if len(kept) > 5 or (kept and done.is_set()):
                k, array = kept.pop(0)
                if not (array == k % 251).all():
                    bad.append(k)
                del array
        worker.join()
        assert not bad
        kept.clear()
        assert arenas.reader.num_leases() == 0


def test_arrays_outlive_both_ends_and_every_descriptor_is_given_back_with_the_last():
    before = len(os.listdir("/proc/self/fd"))
    arenas = Arenas()
    with arenas:
        array = arenas.read(arenas.write(3))
        view = array[10:20]
    del arenas, array
    gc.collect()
    view += 1
    assert view.tolist() == [4] * 10
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_after_the_worker_has_ended_an_array_keeps_its_own_pages_and_no_others():
    with Arenas(8 * MIB) as arenas:
        sizes = [LARGE_BYTES, LARGE_BYTES, 100_000, MIB, 2 * MIB]
        arrays = [arenas.read(arenas.write(k, nbytes), nbytes) for k, nbytes in enumerate(sizes, 1)]
        arenas.write(9, MIB)  # never read
        arenas.writer.give_back(arenas.write(9, 20_000))  # idle
        del arrays[3]
        arenas.reader.worker_ended()
        status_page = -PAGE  # it was given back, too
        assert arenas.touched() == status_page + sum(-(-array.nbytes // PAGE) * PAGE for array in arrays)
        assert [set(array.tolist()) for array in arrays] == [{1}, {2}, {3}, {5}]
        part = arrays[2][5:7]
        del arrays[2]
        del arrays[2]
        assert arenas.touched() == status_page + 2 * LARGE_BYTES + 25 * PAGE
        arrays.clear()
        assert arenas.touched() == status_page + 25 * PAGE
        assert part.tolist() == [3, 3]
        arenas.reader.worker_ended()
        del part
        assert arenas.touched() == status_page


def test_a_later_arena_in_the_same_file_has_memory_of_its_own():
    with Arenas(MIB) as arenas:
        kept = [arenas.read(arenas.write(1)), arenas.read(arenas.write(2))]
        later = arenas.file.new_arena(0)
        writer, reader = later.open_writer(), later.open_reader()
        blocks = []
        while (block := writer.take(LARGE_BYTES)) is not None:
            writer.view(block, (LARGE_BYTES,), BYTE)[...] = 9
            blocks.append(block)
        arenas.reader.worker_ended()
        assert [set(array.tolist()) for array in kept] == [{1}, {2}]
        kept.clear()
        assert all((leased(reader, block, LARGE_BYTES) == 9).all() for block in blocks)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each mapping has a descriptor")
def test_any_number_of_arenas_needs_one_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    with Arenas(num_workers=5) as arenas:
        arrays = [arenas.read(arenas.write(k)) for k in range(3)]
        assert len(os.listdir("/proc/self/fd")) == before + 2  # and the memory limit
    del arenas
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before + 1  # what is kept of it
    assert in_child(partial(arrays[0].fill, 7)) == "returned None"
    assert [set(array.tolist()) for array in arrays] == [{0}, {1}, {2}]
    arrays.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each mapping has a descriptor")
def test_the_last_array_closes_the_memory_without_the_garbage_collector():
    before = len(os.listdir("/proc/self/fd"))
    with Arenas() as arenas:
        arrays = [arenas.read(arenas.write(k)) for k in range(3)]
        arenas.reader.worker_ended()
    gc.disable()
    try:
        del arenas
        assert len(os.listdir("/proc/self/fd")) == before + 1
        arrays.clear()
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="best effort elsewhere")
def test_a_worker_that_is_forked_later_gets_copies_of_what_the_consumer_reads():
    with Arenas() as arenas:
        array = arenas.read(arenas.write(1))
        with passing_to_child(*arenas.arenas[0].descriptors()):
            assert in_child(partial(array.fill, 7)) == "returned None"
        assert set(array.tolist()) == {1}


def test_a_forked_child_that_drops_its_copies_frees_nothing():
    with Arenas() as arenas:
        kept = [arenas.read(arenas.write(5))]
        read_last = [arenas.read(arenas.write(4))]
        output_buffer = [arenas.writer.output_buffer((LARGE_BYTES,), BYTE)]
        output_buffer[0][...] = 6
        pid = os.fork()
        if not pid:
            arenas.reader.worker_ended()
            kept.clear()
            read_last.clear()
            output_buffer.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        fresh = [arenas.writer.take(LARGE_BYTES) for _ in range(3)]
        for block in fresh:
            arenas.writer.view(block, (LARGE_BYTES,), BYTE)[...] = 9
        assert (kept[0] == 5).all() and (read_last[0] == 4).all() and (output_buffer[0] == 6).all()
        kept.clear()
        read_last.clear()
        output_buffer.clear()
        assert arenas.reader.num_leases() == 0
        assert all(arenas.writer.take(LARGE_BYTES).start < fresh[0].start for _ in range(2))


def test_a_forked_child_of_a_worker_takes_no_blocks_from_its_arena():
    with Arenas() as arenas:
        pid = os.fork()
        if not pid:
            output_buffer = arenas.writer.output_buffer((LARGE_BYTES,), BYTE)
            output_buffer[...] = 1
            os._exit(0 if output_buffer.base is None else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert arenas.touched() <= 0 and arenas.memory_limit.held() == [0]


EXIT = """
import numpy as np
from dataflow.transport.arena import ArenaFile, MemoryLimit
memory_limit = MemoryLimit(1 << 20, 1)
file = ArenaFile(memory_limit)
arena = file.new_arena(0)
writer, reader = arena.open_writer(), arena.open_reader()
blocks = [writer.take(20000) for _ in range(5)]
kept = reader.leases([(block.status, block.start) for block in blocks], (20000,), np.dtype("u1"))
buffers = [writer.output_buffer((20000,), np.dtype("u1")) for _ in range(5)]
cycle = [kept[0], buffers[0], reader]
cycle.append(cycle)
class Holder:
    array = kept[1]
np.holder = [Holder, kept[2], writer, buffers[1]]
{}
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "del kept, buffers; file.close()",
        *(
            pytest.param(ending, marks=pytest.mark.full)
            for ending in ("import sys; sys.exit(0)", "del reader, writer", "reader.worker_ended()")
        ),
    ],
)
def test_the_interpreter_ends_without_a_word_in_whatever_order_things_die(ending):
    command = [sys.executable, "-c", EXIT.format(ending)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- pages -------------------------------------------------------------------------------------------------------------


def test_what_is_held_is_what_is_touched():
    with Arenas() as arenas:
        arenas.write(1, 5 * PAGE)
        assert arenas.memory_limit.held() == [5 * PAGE]
        assert arenas.touched() == 5 * PAGE
        arenas.write(1, MIB // 2 + 1)
        assert arenas.memory_limit.held() == [5 * PAGE + MIB // 2 + PAGE]
        assert arenas.touched() == 5 * PAGE + MIB // 2 + PAGE


def test_a_block_that_was_touched_before_costs_nothing():
    with Arenas() as arenas:
        block = arenas.write(1, 10 * PAGE)
        arenas.writer.give_back(block)
        for nbytes in (9 * PAGE, 10 * PAGE):
            block = arenas.write(2, nbytes)
            assert arenas.memory_limit.held() == [10 * PAGE]
            arenas.writer.give_back(block)
        arenas.write(3, 12 * PAGE)
        assert arenas.memory_limit.held() == [12 * PAGE] == [arenas.touched()]


def test_idle_pages_are_given_back_and_live_ones_are_not(monkeypatch):
    monkeypatch.setattr("dataflow.transport.arena._IDLE_SECONDS", -1.0)
    with Arenas() as arenas:
        array = arenas.read(arenas.write(1, 5 * PAGE), 5 * PAGE)
        output_buffer = arenas.writer.output_buffer((7 * PAGE,), BYTE)
        output_buffer[...] = 2
        arenas.writer.give_back(arenas.write(3, 9 * PAGE))
        arenas.writer.tidy()
        assert arenas.memory_limit.held() == [12 * PAGE] == [arenas.touched()]
        assert (array == 1).all() and (output_buffer == 2).all()
        del array
        arenas.writer.tidy()
        assert arenas.memory_limit.held() == [7 * PAGE] == [arenas.touched()]
        del output_buffer
        arenas.writer.tidy()
        assert arenas.memory_limit.held() == [0]
        assert arenas.touched() <= 0
        assert (arenas.read(arenas.write(4, 5 * PAGE), 5 * PAGE) == 4).all()  # and they may be taken again


def test_pages_are_not_idle_at_once(monkeypatch):
    monkeypatch.setattr("dataflow.transport.arena.time", SimpleNamespace(monotonic=lambda: 0.0))
    with Arenas() as arenas:
        arenas.writer.give_back(arenas.write(1))
        arenas.writer.tidy()
        assert arenas.memory_limit.held() == [LARGE_BYTES]


def test_a_worker_that_finds_nothing_left_makes_the_others_give_back_what_they_do_not_use(monkeypatch):
    monkeypatch.setattr("dataflow.transport.arena.time", SimpleNamespace(monotonic=lambda: 0.0))
    with Arenas(MIB, num_workers=2) as arenas:
        blocks = [arenas.write(1, 200_000) for _ in range(4)]
        for block in blocks[1:]:
            arenas.writer.give_back(block)
        other = arenas.writers[1]
        assert other.take(MIB // 2) is None
        arenas.writer.tidy()
        assert arenas.memory_limit.held() == [49 * PAGE, 0]
        assert other.take(MIB // 2) is not None
        before = arenas.memory_limit.held()
        arenas.writer.give_back(blocks[0])
        arenas.writer.tidy()
        assert arenas.memory_limit.held() == before  # no worker asked for more


def test_a_worker_gives_back_its_own_idle_pages_before_it_goes_without():
    with Arenas(MIB) as arenas:
        small = [arenas.writer.take(LARGE_BYTES) for _ in range(60)]
        assert arenas.writer.take(MIB // 2) is None
        for block in small:
            arenas.writer.give_back(block)
        assert arenas.writer.take(MIB // 2) is not None
        assert arenas.memory_limit.held() == [MIB // 2]


def test_giving_all_back_leaves_nothing_held():
    with Arenas() as arenas:
        first = arenas.write(1, 5 * PAGE)
        arenas.write(1, MIB)
        arenas.writer.give_back_all()
        assert arenas.memory_limit.held() == [0]
        assert arenas.touched() <= 0
        assert arenas.writer.take(5 * PAGE) == first


def test_tidying_races_with_taking(eager_threads):
    """The flusher tidies while the worker takes and the consumer drops: no page is returned while it is read."""
    with Arenas(MIB) as arenas, pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataflow.transport.arena._IDLE_SECONDS", -1.0)
        ended, errors = threading.Event(), []

        def tidy():
            try:
                while not ended.is_set():
                    arenas.writer.tidy()
            except BaseException as error:
                errors.append(error)

        flusher = threading.Thread(target=tidy)
        flusher.start()
        bad, kept = [], []
        for k in range(1, 1000):
            block = arenas.writer.take(LARGE_BYTES * (1 + k % 3))
            if block is not None:
                arenas.writer.view(block, (LARGE_BYTES,), BYTE)[...] = k % 251 + 1
                kept.append((k, arenas.read(block)))
            output_buffer = arenas.writer.output_buffer((LARGE_BYTES,), BYTE)
            output_buffer[...] = 255
            if len(kept) > 4:
                kept_k, array = kept.pop(0)
                bad += [kept_k] if not (array == kept_k % 251 + 1).all() else []
                del array
            bad += [] if (output_buffer == 255).all() else [-k]
            del output_buffer
        ended.set()
        flusher.join()
        assert not bad and not errors
        kept.clear()
        arenas.writer.tidy()
        assert arenas.memory_limit.held() == [0]


# -- output buffers ---------------------------------------------------------------------------------------------------


def test_a_output_buffer_lies_in_a_block_until_it_dies():
    with Arenas() as arenas:
        output_buffer = arenas.writer.output_buffer((4, LARGE_BYTES), np.dtype(np.float32))
        assert (output_buffer.shape, output_buffer.dtype, type(output_buffer)) == (
            (4, LARGE_BYTES),
            np.float32,
            np.ndarray,
        )
        assert output_buffer.flags.c_contiguous and output_buffer.flags.writeable
        assert arenas.writer.is_output_buffer(output_buffer.base)
        view = output_buffer[1]
        del output_buffer
        block = arenas.writer.take(4 * 4 * LARGE_BYTES)
        assert arenas.memory_limit.held() == [2 * 16 * LARGE_BYTES]
        del view
        assert arenas.writer.take(16 * LARGE_BYTES).start < block.start


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((10,), "u1"), ((LARGE_BYTES - 1,), "u1"), ((), "f8"), ((0, 5), "f8"), ((MIB,), "O"), ((5 * MIB,), "u1")],
)
def test_what_is_small_or_too_large_or_holds_objects_is_no_output_buffer(shape, dtype):
    with Arenas() as arenas:
        array = arenas.writer.output_buffer(shape, np.dtype(dtype))
        assert (array.shape, array.dtype, array.base) == (shape, np.dtype(dtype), None)
        assert not arenas.writer.is_output_buffer(array.base)
        assert arenas.memory_limit.held() == [0]


def test_a_flow_that_keeps_its_output_buffers_does_not_use_up_the_arena():
    with Arenas(64 * MIB) as arenas:
        kept = [arenas.writer.output_buffer((LARGE_BYTES,), BYTE) for _ in range(100)]
        for k, output_buffer in enumerate(kept):
            output_buffer[...] = k
        assert sum(output_buffer.base is not None for output_buffer in kept) == 16
        assert all((output_buffer == k).all() for k, output_buffer in enumerate(kept))
        kept.clear()
        assert arenas.writer.output_buffer((LARGE_BYTES,), BYTE).base is not None


def test_a_output_buffer_that_was_released_is_freed_by_the_consumer_alone():
    with Arenas() as arenas:
        output_buffer = arenas.writer.output_buffer((LARGE_BYTES,), BYTE)
        output_buffer[...] = 3
        block = arenas.writer.release(output_buffer.base)
        assert not arenas.writer.is_output_buffer(output_buffer.base)
        del output_buffer
        array = arenas.read(block)
        assert arenas.writer.take(LARGE_BYTES) != block
        assert (array == 3).all()
        del array
        assert arenas.writer.take(LARGE_BYTES) == block


def test_what_the_consumer_reads_is_no_output_buffer():
    """A worker that has a runner inside passes on what it has received: in the arena of another."""
    with Arenas() as inner, Arenas() as outer:
        output_buffer = outer.writer.output_buffer((LARGE_BYTES,), BYTE)
        received = inner.read(inner.write(1))
        assert not outer.writer.is_output_buffer(received.base)
        assert not outer.writer.is_output_buffer(output_buffer.base[:5])
        assert not outer.writer.is_output_buffer(np.zeros(3)[1:].base)
        assert outer.writer.is_output_buffer(output_buffer.base)


# -- address space -----------------------------------------------------------------------------------------------------


def mapped(memory):
    """Bytes of address space that one side of an arena has taken."""
    return len(memory.statuses) + sum(map(len, memory.values()))


def test_what_is_mapped_is_what_was_used():
    with Arenas(1 << 30, num_workers=2) as arenas:
        memories = arenas.writer.memory, arenas.reader._memory
        assert sum(map(mapped, memories)) < 4 * MIB
        array = arenas.read(arenas.write(7, 600_000), 600_000)
        assert sum(map(mapped, memories)) < 80 * MIB
        held = [arenas.read(arenas.write(8, 40 * MIB), 40 * MIB)]
        assert max(map(mapped, memories)) < 200 * MIB
        assert set(array.tolist()) == {7} and (held[0] == 8).all()


def test_the_pages_of_a_dead_worker_return_also_where_the_consumer_has_never_looked():
    with Arenas(256 * MIB) as arenas:
        kept = arenas.read(arenas.write(1))
        for nbytes in (LARGE_BYTES, 600_000, MIB, 40 * MIB):
            arenas.write(9, nbytes)
        assert arenas.touched() > 40 * MIB
        arenas.reader.worker_ended()
        assert arenas.touched() <= LARGE_BYTES
        assert set(kept.tolist()) == {1}
        del kept
        assert arenas.touched() <= 0


LIMITED = """
import resource
from dataflow.transport.arena import ArenaFile, MemoryLimit
def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
memory_limit = MemoryLimit(1 << 30, 1)
writer = ArenaFile(memory_limit).new_arena(0).open_writer()
most = (used() >> 10) + (100 << 10)  # KiB
resource.setrlimit(resource.RLIMIT_AS, (most << 10, most << 10))
try:
    for _ in range(10):
        writer.write(bytes(600_000))
    writer.output_buffer((200 << 20,), __import__("numpy").dtype("u1"))
except OSError as error:
    assert f"bytes of address space for shared memory, and its limit is {most} KiB (ulimit -v)" in str(error), error
    assert "smaller max_bytes: 1,073,741,824 bytes" in str(error), error
    print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit is not enforced")
def test_where_address_space_is_short_the_message_names_the_limit_and_the_cure():
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False, timeout=LIMIT
    )  # fmt: skip
    assert done.stdout == "refused\n", done.stderr


def test_other_errors_of_the_system_come_through(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EIO, "a broken disk")

    with Arenas() as arenas:
        monkeypatch.setattr(arena_module, "shared_mapping", refuse)
        with pytest.raises(OSError, match="a broken disk"):
            arenas.arenas[0].open_writer().take(LARGE_BYTES)
        monkeypatch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="a broken disk"):
            arenas.file.new_arena(0)


# -- death -------------------------------------------------------------------------------------------------------------


def write_until_killed(arena):
    writer = arena.open_writer()
    k = 1
    while True:
        block = writer.take(LARGE_BYTES)
        if block is None:
            os.kill(os.getpid(), signal.SIGKILL)
        writer.view(block, (LARGE_BYTES,), BYTE)[...] = k
        k += 1


def test_what_a_killed_worker_had_written_stays_readable():
    with Arenas(MIB) as arenas:
        process = multiprocessing.get_context("fork").Process(target=write_until_killed, args=(arenas.arenas[0],))
        with passing_to_child(*arenas.arenas[0].descriptors()):
            process.start()
        process.join(LIMIT)
        assert process.exitcode == -signal.SIGKILL
        process.close()
        block = arenas.writer.take(LARGE_BYTES)
        assert block is None  # the dead worker's stay taken; the run is over
        copies = Arenas(MIB)
        with copies:
            first = copies.writer.take(LARGE_BYTES)  # the same layout
        assert (arenas.read(first) == 1).all()


# -- the memory limit --------------------------------------------------------------------------------------------------


@pytest.fixture
def memory_limit():
    memory_limit = MemoryLimit(10 * PAGE, 3)
    yield memory_limit
    memory_limit.close()


def test_the_sum_of_what_is_held_stays_within_the_limit(memory_limit):
    assert memory_limit.reserve(0, 6 * PAGE)
    assert memory_limit.reserve(1, 4 * PAGE)
    assert not memory_limit.reserve(2, 1)
    assert memory_limit.held() == [6 * PAGE, 4 * PAGE, 0]
    memory_limit.give_back(0, PAGE)
    assert not memory_limit.reserve(2, 2 * PAGE)
    assert memory_limit.reserve(2, PAGE)
    assert memory_limit.held() == [5 * PAGE, 4 * PAGE, PAGE]


def test_one_worker_may_hold_it_all(memory_limit):
    assert memory_limit.reserve(2, 10 * PAGE)


def test_pressure_rises_with_every_refusal_and_with_nothing_else(memory_limit):
    memory_limit.reserve(0, 10 * PAGE)
    before = memory_limit.pressure
    memory_limit.give_back(0, PAGE)
    memory_limit.reserve(1, PAGE)
    assert memory_limit.pressure == before
    memory_limit.reserve(1, 1)
    memory_limit.reserve(2, 1)
    assert memory_limit.pressure == before + 2


def test_closing_gives_every_descriptor_back_at_once():
    before = len(os.listdir("/proc/self/fd"))
    memory_limit = MemoryLimit(PAGE, 1)
    memory_limit.reserve(0, 5)
    memory_limit.close()
    memory_limit.close()
    assert len(os.listdir("/proc/self/fd")) == before


def reserve_in_child(memory_limit, end):
    os.write(end.fd, b"T" if memory_limit.reserve(1, 4 * PAGE) else b"F")
    os.write(end.fd, b"T" if memory_limit.reserve(1, 4 * PAGE) else b"F")


def child(target, *arguments, method="fork"):
    given = [one for argument in arguments for one in (argument if isinstance(argument, list) else [argument])]
    descriptors = [one for one in given if hasattr(one, "fd")]
    descriptors += [end for one in given if hasattr(one, "descriptors") for end in one.descriptors()]
    process = multiprocessing.get_context(method).Process(target=target, args=arguments)
    with passing_to_child(*descriptors):
        process.start()
    return process


def ended(process):
    process.join(LIMIT)
    code = process.exitcode
    process.close()
    return code


@each_method
def test_the_counters_are_the_same_in_every_process(memory_limit, method):
    read, write = pipe()
    memory_limit.reserve(0, 3 * PAGE)
    process = child(reserve_in_child, memory_limit, write, method=method)
    assert ended(process) == 0
    assert os.read(read.fd, 2) == b"TF"
    assert memory_limit.held() == [3 * PAGE, 4 * PAGE, 0]
    assert memory_limit.pressure == 1
    read.close()
    write.close()


def die_with_the_lock(memory_limit, end):
    real = fcntl.lockf

    def lock_and_die(fd, operation):
        real(fd, operation)
        os.write(end.fd, b"L")
        os.kill(os.getpid(), signal.SIGKILL)

    fcntl.lockf = lock_and_die
    memory_limit.reserve(1, PAGE)


def test_a_worker_that_is_killed_while_it_holds_the_lock_keeps_nobody_out(memory_limit):
    read, write = pipe()
    process = child(die_with_the_lock, memory_limit, write)
    assert os.read(read.fd, 1) == b"L"
    assert ended(process) == -signal.SIGKILL
    assert memory_limit.reserve(0, 10 * PAGE)
    read.close()
    write.close()


def hold_the_lock(memory_limit, end, go):
    fcntl.lockf(memory_limit.descriptors()[0].fd, fcntl.LOCK_EX)
    os.write(end.fd, b"L")
    os.read(go.fd, 1)


def test_the_second_process_waits_for_the_lock_and_no_longer(memory_limit):
    read, write = pipe()
    go_read, go_write = pipe()
    holder = child(hold_the_lock, memory_limit, write, go_read)
    assert os.read(read.fd, 1) == b"L"
    second = child(reserve_in_child, memory_limit, write)
    os.set_blocking(read.fd, False)
    with pytest.raises(BlockingIOError):
        os.read(read.fd, 1)
    assert memory_limit.held() == [0, 0, 0]
    holder.kill()
    assert ended(holder) == -signal.SIGKILL
    assert ended(second) == 0
    assert os.read(read.fd, 2) == b"TT"
    for end in (read, write, go_read, go_write):
        end.close()


def churn(arenas, seed, end, enough):
    """Take, touch, keep and give back at random, with an eye on the others' pressure."""
    rng = random.Random(seed)
    writers = [arena.open_writer() for arena in arenas]
    kept = []
    refused = 0
    for step in itertools.count():
        if step >= 1500 and enough.value:
            break
        writer = rng.choice(writers)
        nbytes = rng.choice([20_000, 100_000, 1_000_000])
        block = writer.take(nbytes)
        refused += block is None
        if block is not None:
            writer.view(block, (nbytes,), "u1")[::PAGE] = 1
            kept.append((writer, block))
        while kept and (len(kept) > 4 or rng.random() < 0.4):
            holder, block = kept.pop(rng.randrange(len(kept)))
            holder.give_back(block)
        rng.choice(writers).tidy()
    for holder, block in kept:
        holder.give_back(block)
    os.write(end.fd, b"R" if refused else b"-")


def test_sixty_four_arenas_in_four_processes_never_hold_more_than_the_limit_and_use_no_more_than_they_hold():
    limit = 8 << 20
    memory_limit = MemoryLimit(limit, 64)
    file = ArenaFile(memory_limit)
    arenas = [file.new_arena(k) for k in range(64)]
    read, write = pipe()
    enough = multiprocessing.RawValue("b", 0)  # the workers go on until they were looked at while it was tight
    processes = [child(churn, arenas[16 * k : 16 * k + 16], k, write, enough) for k in range(4)]
    most = 0

    def look():
        nonlocal most
        # A worker reserves before it touches and gives back after it let go: what is there is never more than what
        # is held. Counted under the lock, so that the counters belong to one moment.
        lock = memory_limit.descriptors()[0].fd
        fcntl.lockf(lock, fcntl.LOCK_EX)
        try:
            held = sum(memory_limit.held())
            status_pages = 64 * 4 * PAGE
            touched = os.fstat(arenas[0].descriptors()[0].fd).st_blocks * 512
        finally:
            fcntl.lockf(lock, fcntl.LOCK_UN)
        assert held <= limit
        assert touched <= limit + status_pages
        most = max(most, held)
        enough.value = most > limit / 2
        return not any(process.is_alive() for process in processes)

    try:
        wait_until(look, 3 * LIMIT, "the workers did not end")
    finally:
        enough.value = True
    assert [ended(process) for process in processes] == [0] * 4
    assert b"R" in os.read(read.fd, 4)
    for resource in (file, memory_limit, read, write):
        resource.close()
