"""What flows and consumers do to arrays that travel: reuse, keep, overwrite, forward, outlive, fork, die half-way."""

import fcntl
import gc
import itertools
import mmap
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from multiprocessing import get_context

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromList,
    LocallyShuffleData,
    MapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    RepeatedDataPoint,
    WorkerDied,
)
from dataflow.transport.arena import ArenaWriter
from dataflow.transport.array_codec import ArrayEncoder
from tests.support.fakes import PROCESS_KINDS
from tests.support.faults import deadline
from tests.support.products import covering, only, rotating
from tests.support.waits import LIMIT

CONTEXT = get_context("fork")
LARGE = 20_000  # bytes: a block of its own
SMALL = 100
SIZES = (SMALL, LARGE)
KINDS = rotating("kind", {kind: kind for kind in PROCESS_KINDS})


def moved(kind, ds, num=1, *, prefetch=10, **given):
    """A runner between processes. The timeout is there so that no test can hang."""
    given = {"timeout": LIMIT, "context": CONTEXT, "max_bytes": 16 << 20, **given}
    if kind == "zmq":
        return MultiProcessRunnerZMQ(ds, num, prefetch, **given)
    return MultiProcessRunner(ds, prefetch, num, **given)


def is_full_of(array, k):
    return bool((array == k % 251).all())


def collect(df, kept):
    """As `list` does, with what came before a failure."""
    for dp in df:
        assert is_full_of(*dp)
        kept.append(dp)


class Flow(DataFlow):
    """What a generator function gives; of that many datapoints."""

    def __init__(self, make, n=200):
        self.make = make
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        yield from self.make(self.n)


class Steps(DataFlow):
    """The same without a generator of ours in between, which would hold every datapoint."""

    def __init__(self, make, n=200):
        self.make = make
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return self.make(self.n)


def images(n, size=LARGE):
    for k in range(n):
        yield [np.full(size, k % 251, np.uint8), k]


# -- a flow that gives the same array again ----------------------------------------------------------------------------


AGAIN = {
    "RepeatedDataPoint": lambda ds: RepeatedDataPoint(ds, 3),
    "CacheData": CacheData,
    "LocallyShuffleData": lambda ds: LocallyShuffleData(ds, 10, num_reuse=3),
    "one list for all": lambda ds: DataFromList(list(ds) * 3, shuffle=False),
}


@pytest.mark.parametrize(("kind", "size", "name"), covering(PROCESS_KINDS, SIZES, [*AGAIN]))
def test_an_array_that_is_given_again_arrives_as_it_was_whatever_became_of_the_first(kind, size, name):
    with moved(kind, AGAIN[name](Flow(lambda n: images(n, size), 30))) as df:
        kept = []
        for _ in range(2):
            for array, k in df:
                assert is_full_of(array, k)
                array += 1  # the consumer writes into its own
                kept.append((array, k))
        assert all((array == k + 1).all() for array, k in kept)


@pytest.mark.parametrize(("kind", "size"), covering(PROCESS_KINDS, SIZES))
def test_buffers_and_lists_that_a_flow_reuses_arrive_as_they_were_at_each_yield(kind, size):
    def reuse(n):
        array, dp, inside = dataflow.empty(size, np.uint8), [None, None, None], {}
        for k in range(n):
            array[...] = k % 251
            inside["array"] = array
            dp[0], dp[1], dp[2] = array, k, inside
            yield dp
            array[...] = 255
            dp[1] = None
            inside.clear()

    with moved(kind, Flow(reuse)) as df:
        for expected, (array, k, inside) in enumerate(df):
            assert k == expected and is_full_of(array, k)
            assert inside["array"] is array


@pytest.mark.parametrize(("kind", "make"), covering(PROCESS_KINDS, [np.empty, dataflow.empty]))
def test_a_worker_may_write_to_what_it_has_sent(kind, make):
    def scribble(n):
        kept = deque(maxlen=5)
        for k in range(n):
            array = make(LARGE, np.uint8)
            array[...] = k % 251
            yield [array, k]
            kept.append(array)
            for old in kept:
                old[...] = 255

    with moved(kind, Flow(scribble, 500)) as df:
        for array, k in df:
            assert is_full_of(array, k)


# -- output buffers: no copy if only the encoder refers to one, otherwise a copy ---------------------------------------


def drawn(k, size=LARGE):
    array = dataflow.empty(size, np.uint8)
    array[...] = k % 251
    return array


def keeps(take):
    """A flow that keeps something of what it yields, and overwrites it later."""

    def steps(n):
        kept = deque(maxlen=3)
        for k in range(n):
            dp = [drawn(k), k]
            kept.append(take(dp, dp[0]))
            handed = [dp]
            del dp
            yield handed.pop()
            for old in kept:
                overwrite(old)

    return steps


def overwrite(old):
    target = old[0] if isinstance(old, list) else old
    np.asarray(target)[...] = 255


KEEPERS = {
    "the datapoint": lambda dp, array: dp,
    "the array": lambda dp, array: array,
    "a view": lambda dp, array: array[5:9],
    "a memoryview": lambda dp, array: memoryview(array),
    "only the base": lambda dp, array: array.base if array.base is not None else array,
}


def switch_the_check_off(monkeypatch):
    def calibrate(encoder, run):
        encoder._buffer_counts.unreachable = lambda kind, counts: True

    monkeypatch.setattr(ArrayEncoder, "calibrate", calibrate)


def corrupt(kind, name, n):
    with moved(kind, Steps(keeps(KEEPERS[name]), n)) as df:
        return sum(not is_full_of(array, k) for array, k in df)


@pytest.mark.parametrize(("kind", "name"), covering(PROCESS_KINDS, [*KEEPERS]))
def test_what_a_flow_keeps_and_overwrites_arrives_as_it_was(kind, name):
    assert corrupt(kind, name, 1000) == 0


@pytest.mark.parametrize(
    ("kind", "name"), only([("zmq", "a view"), ("process", "the array")], itertools.product(PROCESS_KINDS, KEEPERS))
)
def test_without_the_count_of_references_it_would_not(kind, name, monkeypatch):
    """Shows that the test above can fail."""
    switch_the_check_off(monkeypatch)
    assert corrupt(kind, name, 1000) > 100


@pytest.fixture
def copies(monkeypatch):
    """How many arrays were copied into blocks, in all workers that are forked from here, and how many passed on."""
    counts = memoryview(mmap.mmap(-1, 4096)).cast("Q")
    copy, release = ArenaWriter.copy, ArenaWriter.release

    def counted_copy(*arguments):
        counts[0] += 1
        return copy(*arguments)

    def counted_release(*arguments):
        counts[1] += 1
        return release(*arguments)

    monkeypatch.setattr(ArenaWriter, "copy", counted_copy)
    monkeypatch.setattr(ArenaWriter, "release", counted_release)
    monkeypatch.setattr(ArrayEncoder, "calibrate", restarting(ArrayEncoder.calibrate, counts))
    return counts


def restarting(calibrate, counts):
    def calibrate_and_restart(*arguments):
        calibrate(*arguments)
        counts[0] = counts[1] = 0

    return calibrate_and_restart


def small_rows(make):
    return MapData(DataFromList([[k] for k in range(400)], shuffle=False), make)


BATCHES = {
    "lists": lambda dp: [np.full((50, 10), dp[0] % 251, np.uint8), dp[0]],
    "dicts": lambda dp: {"image": np.full((50, 10), dp[0] % 251, np.uint8), "label": dp[0]},
    "tuples": lambda dp: (dp[0], np.full((50, 10), dp[0] % 251, np.uint8), "x"),
}


@pytest.mark.parametrize(("kind", "name"), covering(PROCESS_KINDS, [*BATCHES]))
def test_a_batch_is_stacked_where_it_is_sent_from_without_a_copy(kind, name, copies):
    with moved(kind, BatchData(small_rows(BATCHES[name]), 40)) as df:
        for _ in range(2):
            for number, batch in enumerate(df):
                image, label = (
                    (batch[1], batch[0]) if name == "tuples" else batch.values() if name == "dicts" else batch
                )
                assert label.tolist() == list(range(40 * number, 40 * number + 40))
                assert (image == (label % 251)[:, None, None]).all()
                image += 1
        assert copies[0] == 0
        assert copies[1] >= 20


ABOVE_A_BATCH = {
    "a map that keeps every datapoint": lambda ds: MapData(ds, Keeping(lambda dp: dp)),
    "a map that keeps every array": lambda ds: MapData(ds, Keeping(lambda dp: dp[0])),
    "a map that keeps a view": lambda ds: MapData(ds, Keeping(lambda dp: dp[0][:1])),
    "a cache": CacheData,
    "a node that repeats": lambda ds: RepeatedDataPoint(ds, 2),
    "a shuffle that gives again": lambda ds: LocallyShuffleData(ds, 4, num_reuse=2),
}


class Keeping:
    def __init__(self, what):
        self.what = what
        self.kept = deque(maxlen=4)

    def __call__(self, dp):
        self.kept.append(self.what(dp))
        return dp


@pytest.mark.parametrize(("kind", "name"), covering(PROCESS_KINDS, [*ABOVE_A_BATCH]))
def test_a_batch_that_a_node_above_keeps_is_copied(kind, name, copies):
    with moved(kind, ABOVE_A_BATCH[name](BatchData(small_rows(BATCHES["lists"]), 40))) as df:
        for batch in df:
            assert (batch[0].std(axis=0) > 0).all()  # each row is another
            batch[0][...] = 0
        assert copies[0] >= 10


@KINDS
def test_what_dataflow_empty_gives_is_sent_without_a_copy_if_yielded_in_an_expression(kind, copies):
    def expressions(n):
        for k in range(n):
            yield [drawn(k), k]

    with moved(kind, Steps(expressions)) as df:
        assert all(is_full_of(array, k) for array, k in df)
        assert copies[1] > 0 == copies[0]


@KINDS
def test_where_the_counts_look_odd_everything_is_copied_and_right(kind, monkeypatch, copies):
    class Odd:
        getrefcount = staticmethod(lambda value: 3)

    monkeypatch.setattr("dataflow.transport.array_codec.sys", Odd)
    assert corrupt(kind, "the array", 500) == 0
    assert copies[0] >= 500 and copies[1] == 0


def test_in_the_consumer_an_empty_array_is_numpys():
    assert dataflow.empty((3, LARGE), np.float32).base is None
    with moved("zmq", BatchData(small_rows(BATCHES["lists"]), 40), num=0) as df:
        assert all(batch[0].base is None for batch in df)


# -- what consumers do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size"), covering(PROCESS_KINDS, SIZES))
def test_a_consumer_may_write_keep_and_drop_as_it_likes(kind, size):
    rng = np.random.default_rng(0)
    with moved(kind, Flow(lambda n: images(n, size), 600), 2) as df:
        kept = []
        for number, (array, k) in enumerate(df):
            assert is_full_of(array, k) and array.flags.writeable
            array[...] = number % 251
            kept.append((array[3:], number))
            while len(kept) > 30 or (kept and rng.random() < 0.3):
                part, old = kept.pop(int(rng.integers(len(kept))))
                assert is_full_of(part, old)
        del array
        assert all(is_full_of(part, old) for part, old in kept)


@pytest.mark.parametrize(
    ("kind", "inner", "between"),
    covering(PROCESS_KINDS, PROCESS_KINDS, ["nothing", "a map that writes", "a batch", "a map that keeps"]),
)
def test_a_worker_may_forward_what_it_received_from_workers_of_its_own(kind, inner, between):
    keeping = Keeping(lambda dp: dp[0])
    nodes = {
        "nothing": lambda ds: ds,
        "a map that writes": lambda ds: MapData(ds, lambda dp: [np.add(dp[0], 1, out=dp[0]) - 1, dp[1]]),
        "a batch": lambda ds: BatchData(ds, 4),
        "a map that keeps": lambda ds: MapData(ds, lambda dp: [keeping(dp)[0], dp[1]]),
    }
    flow = nodes[between](moved(inner, Flow(images, 120), max_bytes=1 << 20))
    with moved(kind, flow) as df:
        seen = []
        for array, k in df:
            rows = zip(array, k.tolist(), strict=True) if between == "a batch" else [(array, k)]
            for row, number in rows:
                assert is_full_of(row, number)
                seen.append(number)
        assert seen == list(range(120))


@KINDS
def test_a_thread_may_forward_what_it_received_from_workers(kind):
    with MultiThreadRunner(lambda: moved(kind, Flow(images, 60)), 5, 2, timeout=LIMIT) as df:
        kept = list(df)
        assert all(is_full_of(array, k) for array, k in kept)


@KINDS
def test_arrays_may_die_in_other_threads_while_the_consumer_iterates(kind):
    handed, bad = queue.SimpleQueue(), []

    def drop():
        while (dp := handed.get()) is not None:
            if not is_full_of(*dp):
                bad.append(dp[1])
            del dp

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    with moved(kind, Flow(images, 1500), max_bytes=1 << 20) as df:
        for dp in df:
            handed.put(dp)
    for _ in threads:
        handed.put(None)
    for thread in threads:
        thread.join()
    assert not bad


ENDINGS = {
    "closed": lambda df: df.close(),
    "dropped": lambda df: None,
    "restarted": lambda df: df.reset_state(),
    "broken off": lambda df: next(iter(df)),
}


@pytest.mark.parametrize(("kind", "size", "name"), covering(PROCESS_KINDS, SIZES, [*ENDINGS]))
def test_arrays_outlive_the_runner_however_it_ends(kind, size, name):
    df = moved(kind, Flow(lambda n: images(n, size), 50))
    kept = list(df)
    ENDINGS[name](df)
    if name == "restarted":
        kept += list(df)
        df.close()
    del df
    gc.collect()
    assert all(is_full_of(array, k) for array, k in kept)
    for array, _ in kept:
        array += 1
    assert all((array == k + 1).all() for array, k in kept)
    part = kept[7][0][2:4]
    kept.clear()
    gc.collect()
    assert part.tolist() == [8, 8]
    part[...] = 0
    del array


@KINDS
def test_a_failed_runner_leaves_the_arrays_that_it_gave(kind):
    def fails(n):
        yield from images(10)
        raise KeyError("broken")

    df = moved(kind, Flow(fails))
    kept = []
    with pytest.raises(KeyError):
        collect(df, kept)
    df.close()
    assert [k for _, k in kept] == list(range(10))
    assert all(is_full_of(array, k) for array, k in kept)


SCRIPT = """
import sys, numpy as np
from dataflow import DataFlow, {runner}
class Images(DataFlow):
    def __iter__(self):
        while True:
            yield [np.ones({size}, np.uint8)]
df = {runner}(Images(), {arguments}, context="fork")  # others need a guard
iterator = iter(df)
kept = [next(iterator) for _ in range(20)]
kept.append(kept)
class Holder:
    array = kept[3][0]
np.holder = [kept[4], kept[5][0][:3], df, iterator]
sys.modules["holder"] = kept[6]
{ending}
"""
LAST_LINES = ("", "del df", "del kept", "df.close(); del iterator")


@pytest.mark.parametrize(
    ("kind", "size", "ending"),
    only(
        [(PROCESS_KINDS[k % 2], SIZES[k // 2], ending) for k, ending in enumerate(LAST_LINES)],
        itertools.product(PROCESS_KINDS, SIZES, LAST_LINES),
    ),
)
def test_the_interpreter_ends_without_a_word_while_arrays_are_held(kind, size, ending, tmp_path):
    runner, arguments = ("MultiProcessRunnerZMQ", "1") if kind == "zmq" else ("MultiProcessRunner", "5, 1")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(runner=runner, arguments=arguments, size=size, ending=ending))
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- fork --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "leave"), covering(PROCESS_KINDS, ["_exit", "sys.exit"]))
def test_a_forked_child_that_drops_its_copies_leaves_the_parents_alone(kind, leave):
    with moved(kind, Flow(images, 400), max_bytes=1 << 20) as df:
        iterator = iter(df)
        kept = [next(iterator) for _ in range(20)]
        child = CONTEXT.Process(target=drop_and_leave, args=(kept, leave))
        child.start()
        child.join(LIMIT)
        assert child.exitcode == 0
        child.close()
        # If the child had freed a block, the worker would write into it now.
        for array, k in iterator:
            assert is_full_of(array, k)
        assert [k for _, k in kept] == list(range(20))
        assert all(is_full_of(array, k) for array, k in kept)


def drop_and_leave(kept, leave):
    assert all(is_full_of(array, k) for array, k in kept)
    kept.clear()
    gc.collect()
    if leave == "_exit":
        os._exit(0)
    sys.exit(0)


@KINDS
def test_a_flow_that_forks_in_its_worker_shares_no_block_with_its_child(kind):
    """The child drops its copies of output buffers, and makes arrays where its parent would."""

    def forking(n):
        kept = [drawn(7)]
        for k in range(n):
            array = drawn(k)
            if k % 10 == 0:
                pid = os.fork()
                if not pid:
                    kept.clear()
                    del array
                    for _ in range(5):
                        drawn(255)
                    os._exit(0)
                os.waitpid(pid, 0)
            assert is_full_of(kept[0], 7)
            yield [array, k]

    with moved(kind, Flow(forking, 100)) as df:
        held = [dp for dp in df if is_full_of(*dp)]
        assert len(held) == 100
        assert all(is_full_of(array, k) for array, k in held)


# -- death -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "when"), covering(PROCESS_KINDS, ["before the block", "in the middle of the block", "after the block"])
)
def test_a_worker_that_is_killed_while_it_writes_a_block_tears_nothing(kind, when, monkeypatch):
    view, written = ArenaWriter.view, [0]

    class Killing:
        """Written to as an array would be, by half."""

        def __init__(self, array):
            self.array = array

        def __setitem__(self, key, value):
            written[0] += 1
            if written[0] > 60:
                half = {"before the block": 0, "in the middle of the block": LARGE // 2, "after the block": LARGE}[when]
                self.array[:half] = value[:half]
                os.kill(os.getpid(), signal.SIGKILL)
            self.array[key] = value

    monkeypatch.setattr("dataflow.transport.arena._SHORT", 0)  # every copy is numpy's
    monkeypatch.setattr(ArenaWriter, "view", lambda *arguments: Killing(view(*arguments)))
    monkeypatch.setattr(ArrayEncoder, "calibrate", lambda encoder, run: None)
    with moved(kind, Flow(images, 1000)) as df:
        kept = []
        with pytest.raises(WorkerDied, match="SIGKILL"):
            collect(df, kept)
        assert [k for _, k in kept] == list(range(len(kept)))
        assert all(is_full_of(array, k) for array, k in kept)
        for array, _ in kept:
            array += 1
        written[0] = -10_000
        df.reset_state()  # and again
        assert all(is_full_of(array, k) for array, k in df)
        assert all((array == k % 251 + 1).all() for array, k in kept)


@KINDS
def test_a_worker_that_is_killed_in_the_lock_of_the_budget_stops_no_other(kind, monkeypatch):
    reserve_calls = [0]
    real = fcntl.lockf

    def lockf(fd, operation):
        real(fd, operation)
        reserve_calls[0] += 1
        if operation == fcntl.LOCK_EX and reserve_calls[0] > 60 and dataflow.worker_info().index == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with moved(kind, Flow(sizes_of_all_kinds, 10**9), 3, max_bytes=4 << 20) as df, deadline(LIMIT):
        kept = deque(maxlen=100)  # more than the arenas hold
        with pytest.raises(WorkerDied, match="SIGKILL"):
            collect(df, kept)
        assert all(is_full_of(array, k) for array, k in kept)


def sizes_of_all_kinds(n):
    for k in range(n):
        yield [np.full(LARGE * (1 + k % 9), k % 251, np.uint8), k]
