"""`max_bytes`: its default, how it is shared out, and its effect on slow consumers and workers short of memory."""

import fcntl
import os
import threading
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from dataflow import DataFlow, MultiProcessRunner, MultiProcessRunnerZMQ, worker_info
from dataflow.runners.backends import queued_bytes
from dataflow.system.machine import default_max_bytes, memory_is_short, memory_share
from dataflow.transport.arena import LARGE_BYTES, ArenaWriter
from dataflow.transport.batching_sender import BatchingSender
from dataflow.transport.codec import ArrayCodec
from dataflow.transport.flow_control import Credit, Window
from tests.support.fakes import PROCESS_KINDS, FakeSender
from tests.support.faults import workers_of
from tests.support.machines import set_groups
from tests.support.products import covering, rotating
from tests.support.waits import LIMIT, wait_until

each_kind = rotating("kind", {"process": "process", "zmq": "zmq"})
MIB = 1 << 20
CONTEXT = get_context("fork")


# -- how much ----------------------------------------------------------------------------------------------------------


def set_memory_of_machine(monkeypatch, nbytes):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": nbytes}.__getitem__)


@pytest.mark.parametrize(
    ("total", "file", "limit", "expected"),
    [
        (2 << 30, None, None, 512 * MIB),
        (64 << 30, None, None, 1 << 30),
        (64 << 30, "memory.max", "max\n", 1 << 30),
        (64 << 30, "memory.max", f"{800 * MIB}\n", 200 * MIB),
        (64 << 30, "memory/memory.limit_in_bytes", f"{400 * MIB}\n", 100 * MIB),
        (64 << 30, "memory/memory.limit_in_bytes", str((1 << 63) - 4096), 1 << 30),
        (1 << 30, "memory.max", str(8 << 30), 256 * MIB),
    ],
)
def test_the_default_is_a_quarter_of_what_there_is_and_a_gibibyte_at_most(
    tmp_path, monkeypatch, total, file, limit, expected
):
    set_memory_of_machine(monkeypatch, total)
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(limit)
    set_groups(monkeypatch, tmp_path)
    assert default_max_bytes() == expected


@pytest.mark.parametrize(("outer", "inner"), [("max", 400 * MIB), (400 * MIB, "max"), (400 * MIB, 800 * MIB)])
@pytest.mark.parametrize(
    ("line", "folder", "file"),
    [
        ("0::/slurm/job", "", "memory.max"),
        ("0::/slurm/job", "unified", "memory.max"),
        ("9:memory:/slurm/job", "memory", "memory.limit_in_bytes"),
    ],
)
def test_the_default_knows_the_limits_of_a_job_and_of_the_groups_around_it(
    tmp_path, monkeypatch, line, folder, file, outer, inner
):
    set_memory_of_machine(monkeypatch, 64 << 30)
    job = tmp_path / folder / "slurm" / "job"
    job.mkdir(parents=True)
    (job / file).write_text(str(inner))
    (job.parent / file).write_text(str(outer))
    set_groups(monkeypatch, tmp_path, "3:cpu:/other", line)
    assert default_max_bytes() == 100 * MIB


@pytest.mark.parametrize(("used", "is_short"), [(700, False), (960, False), (990, True)])
def test_memory_is_short_when_a_job_has_used_up_what_it_may(tmp_path, monkeypatch, used, is_short):
    job = tmp_path / "slurm" / "job"
    job.mkdir(parents=True)
    set_groups(monkeypatch, tmp_path, "0::/slurm/job")
    (job / "memory.max").write_text(f"{1000 * MIB}\n")
    (job / "memory.current").write_text(f"{used * MIB}\n")
    (job / "memory.stat").write_text(f"anon 1\ninactive_file {20 * MIB}\n")
    assert memory_is_short() is is_short


def test_a_worker_has_its_share_which_ends_with_the_block():
    before = default_max_bytes()
    with memory_share(1000):
        assert default_max_bytes() == 1000
        with memory_share(None):
            assert default_max_bytes() == 1000
        with memory_share(10):
            assert default_max_bytes() == 10
        assert default_max_bytes() == 1000
    assert default_max_bytes() == before


def test_a_share_belongs_to_its_thread():
    found = []
    with memory_share(1000):
        thread = threading.Thread(target=lambda: found.append(default_max_bytes()))
        thread.start()
        thread.join()
    assert found == [default_max_bytes()]


class Share(DataFlow):
    """What a runner inside a worker would be allowed."""

    def __iter__(self):
        while True:
            yield [default_max_bytes()]


@each_kind
def test_inside_a_worker_the_default_is_the_workers_share(kind):
    with limited(kind, limited(kind, Share(), 2), 3, max_bytes=60 * MIB) as df:
        assert next(iter(df)) == [10 * MIB]


@pytest.mark.parametrize(
    "make",
    [
        lambda **given: MultiProcessRunnerZMQ(Share(), 1, **given),
        lambda **given: MultiProcessRunner(Share(), 5, 1, **given),
    ],
)
def test_too_little_is_refused_and_a_number_is_wanted(make):
    make(max_bytes=MIB)
    make(max_bytes=np.int64(MIB))
    make(max_bytes=1e7)
    with pytest.raises(
        ValueError, match="max_bytes must be an integer ≥ 1048576, got 1048575: it is a number of bytes"
    ):
        make(max_bytes=MIB - 1)
    with pytest.raises(TypeError):
        make(max_bytes=1e9 + 0.5)


def test_messages_and_arrays_are_bounded_together():
    df = limited("zmq", Share(), 4, max_bytes=80 * MIB)
    links = df._df_links()
    assert links.codec.memory_limit.limit + queued_bytes(80 * MIB) == 80 * MIB
    for end in (links.channel, links.codec, links.credit):
        end.close()


# -- runners under a limit ---------------------------------------------------------------------------------------------


class Watched:
    """A runner that lets the test see what its workers hold."""

    def _df_links(self):
        links = super()._df_links()
        self.memory_limit = links.codec.memory_limit
        self.file = links.codec.port(0).arena.descriptors()[0]
        return links

    def held(self):
        return self.held_and_touched()[0]

    def held_and_touched(self):
        """What each worker holds, and what of all that the operating system has given out, at one moment.

        Nobody reserves meanwhile, and memory is given back to the system before it is given back to the budget.
        """
        lock = self.memory_limit.descriptors()[0].fd
        fcntl.lockf(lock, fcntl.LOCK_EX)
        try:
            touched = os.fstat(self.file.fd).st_blocks * 512 - 4096 * self.num_workers
            return self.memory_limit.held(), touched
        finally:
            fcntl.lockf(lock, fcntl.LOCK_UN)


class WatchedZMQ(Watched, MultiProcessRunnerZMQ):
    pass


class WatchedPipes(Watched, MultiProcessRunner):
    pass


def limited(kind, ds, num=1, *, max_bytes=None, prefetch=20):
    """A runner over shared memory. The timeout is there so that no test can hang."""
    given = {"timeout": LIMIT, "context": CONTEXT, "max_bytes": max_bytes}
    return WatchedZMQ(ds, num, prefetch, **given) if kind == "zmq" else WatchedPipes(ds, prefetch, num, **given)


def wait_for_rest(look):
    """Wait until `look` gives the same six times in a row."""
    seen = []

    def at_rest():
        seen.append(look())
        return len(seen) > 5 and all(answer == seen[-1] for answer in seen[-6:])

    wait_until(at_rest, LIMIT, lambda: f"no rest: {seen[-6:]}")


class Images(DataFlow):
    """[array full of k, k, worker], of the given sizes in turn."""

    def __init__(self, n, *sizes, before=lambda k: None):
        self.n = n
        self.sizes = sizes
        self.before = before

    def __len__(self):
        return self.n

    def __iter__(self):
        here = worker_info()
        for k in range(self.n):
            self.before(k)
            yield [np.full(self.sizes[k % len(self.sizes)], k % 251, np.uint8), k, here.index if here else -1]


def is_whole(dp):
    return bool((dp[0] == dp[1] % 251).all())


SIZES = [(20_000,), (150_000,), (900_000,), (1_500_000,), (20_000, 800_000, 1, 40_000)]


@pytest.mark.parametrize(("kind", "num", "sizes"), covering(PROCESS_KINDS, [1, 3], SIZES))
def test_a_list_of_three_times_max_bytes_completes_and_is_right(kind, num, sizes):
    count = 3 * MIB * len(sizes) // sum(sizes) + 10
    with limited(kind, Images(count, *sizes), num, max_bytes=MIB) as df:
        datapoints = list(df)
        assert len(datapoints) == count
        assert all(map(is_whole, datapoints))
        assert sum(df.held()) <= MIB
        for worker in range(num):
            mine = [k for _, k, index in datapoints if index == worker]
            assert mine == list(range(len(mine)))
        for dp in datapoints:  # nothing shares memory
            dp[0] += 1
        assert all((array == (k % 251) + 1).all() for array, k, _ in datapoints)


@each_kind
def test_what_is_larger_than_max_bytes_travels_all_the_same(kind):
    with limited(kind, Images(4, 3 * MIB), max_bytes=MIB) as df:
        assert all(map(is_whole, df))
        assert sum(df.held()) == 0


@each_kind
def test_a_slow_consumer_finds_the_workers_waiting_within_the_limit(kind):
    with limited(kind, Images(40, 100_000, 30_000), 4, max_bytes=MIB, prefetch=50) as df:
        for k, dp in enumerate(df):
            if k % 10 == 0:
                wait_for_rest(df.held)  # when all memory is taken, or all have filled their window
            assert is_whole(dp)
            assert sum(df.held()) <= df.memory_limit.limit


@each_kind
def test_several_workers_in_need_at_once_never_hold_more_than_the_limit_together(kind):
    most, ended = [], threading.Event()
    with limited(kind, Images(600, 200_000, 20_000, 700_000), 6, max_bytes=2 * MIB) as df:
        iterator = iter(df)
        kept = [next(iterator)]

        def look():
            while not ended.is_set():
                held, touched = df.held_and_touched()
                most.append([sum(held), touched])
                ended.wait(0.001)

        looking = threading.Thread(target=look)
        looking.start()
        for k, dp in enumerate(iterator):
            assert is_whole(dp)
            kept = [*kept[-(k % 7) :], dp]
        ended.set()
        looking.join()
        assert all(is_whole(dp) for dp in kept)
        limit = df.memory_limit.limit
    assert len(most) > 20
    assert limit / 2 < max(held for held, _ in most) <= limit
    assert max(touched for _, touched in most) <= limit


@each_kind
def test_memory_goes_to_the_worker_that_needs_it(kind, monkeypatch):
    """One worker has touched all of it and is silent; then the other needs some, and does not wait for idleness."""
    monkeypatch.setattr("dataflow.transport.arena._IDLE_SECONDS", 1e9)
    ready, begin, end = CONTEXT.Event(), CONTEXT.Event(), CONTEXT.Event()

    def before(k):
        index = worker_info().index
        if index == 0 and k == 0:
            ready.wait(LIMIT)  # the other may hold memory while it starts
        if index == 0 and k == 20:
            end.wait(LIMIT)
        if index == 1 and k == 0:
            ready.set()
            begin.wait(LIMIT)

    with limited(kind, Images(10**6, 100_000, before=before), 2, max_bytes=MIB) as df:
        iterator = iter(df)
        first = [next(iterator) for _ in range(20)]
        assert {dp[2] for dp in first} == {0}
        assert df.held() == [8 * 102_400, 0]  # there is no room for a ninth
        first.clear()
        begin.set()

        def has_some():
            dp = next(iterator)
            assert is_whole(dp) and dp[2] == 1
            return df.held()[1] >= 102_400

        wait_until(has_some, LIMIT, "the memory stays with the worker that is silent")
        wait_until(lambda: df.held()[0] == 0, LIMIT, lambda: f"the silent worker keeps its pages: {df.held()}")
        end.set()


@each_kind
@pytest.mark.parametrize("pause", [0.0, 0.003], ids=["a fast flow", "a slow flow"])
def test_idle_pages_are_given_back_while_a_worker_has_nothing_to_do(kind, pause, monkeypatch):
    monkeypatch.setattr("dataflow.transport.arena._IDLE_SECONDS", 0.1)
    ten_came, go_on = CONTEXT.Event(), CONTEXT.Event()

    def before(k):
        if k < 10:
            go_on.wait(pause)
        else:
            (ten_came if k == 10 else go_on).wait(LIMIT)  # so the eleventh, which is small, has a message of its own

    sizes = [*[100_000] * 10, 10]
    with limited(kind, Images(10**6, *sizes, before=before), max_bytes=4 * MIB) as df:
        iterator = iter(df)
        datapoints = [next(iterator) for _ in range(10)]
        ten_came.set()
        datapoints.append(next(iterator))
        assert df.held()[0] >= 10 * 102_400
        kept = datapoints[3]
        datapoints.clear()
        wait_until(lambda: df.held() == [102_400], LIMIT, lambda: f"idle pages were kept: {df.held()}")
        assert is_whole(kept)
        del kept
        wait_until(lambda: df.held() == [0], LIMIT, lambda: f"idle pages were kept: {df.held()}")
        assert df.held_and_touched()[1] == 0
        go_on.set()
        assert is_whole(next(iterator))


@each_kind
def test_blocks_are_used_again_and_again_the_lowest_first(kind):
    with limited(kind, Images(2000, 50_000), max_bytes=64 * MIB, prefetch=5) as df:
        assert all(map(is_whole, df))
        assert sum(df.held()) <= 12 * 13 * 4096  # a window and what the consumer has in its hands


@each_kind
def test_large_bytes_in_messages_are_bounded_by_their_part_of_max_bytes(kind):
    made = CONTEXT.Value("q", 0)
    size = 60_000

    class Texts(DataFlow):
        def __iter__(self):
            while True:
                made.value += 1
                yield [bytes(size)]

    with limited(kind, Texts(), max_bytes=MIB, prefetch=1000) as df:
        for taken, _ in enumerate(df, 1):
            if taken in {1, 10, 50}:
                wait_for_rest(lambda: made.value)
                # What is under way: a message begun, and as much as may be queued, and one in its hands.
                assert (made.value - taken) * size <= 2 * (queued_bytes(MIB) + 2 * size)
            if taken == 60:
                break


@each_kind
def test_the_size_of_dev_shm_does_not_matter(kind):
    def used(*pids):
        """Files in /dev/shm, by inode, that these processes have in their memory. Others may use more."""
        maps = [line.split() for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        return {fields[4] for fields in maps if "/dev/shm/" in fields[-1] or "/dev/shm/" in fields[-2]}

    go_on = CONTEXT.Event()
    before = used(os.getpid())
    with limited(kind, Images(30, MIB, before=lambda k: k < 20 or go_on.wait(LIMIT)), max_bytes=64 * MIB) as df:
        iterator = iter(df)
        kept = [next(iterator) for _ in range(20)]
        assert sum(df.held()) >= 20 * MIB
        (worker,) = workers_of(df)
        assert used(os.getpid(), worker.pid) <= before
        go_on.set()
        assert all(map(is_whole, kept))


def test_the_calibration_leaves_no_memory_held():
    go_on = CONTEXT.Event()
    with limited("zmq", Images(5, 20_000, before=lambda k: k < 1 or go_on.wait(LIMIT)), max_bytes=MIB) as df:
        dp = next(iter(df))
        assert df.held() == [20480]
        del dp
        go_on.set()


def test_two_small_blocks_of_memory_suffice_to_learn_how_output_buffers_are_passed_on(monkeypatch):
    codec = ArrayCodec(2, MIB)
    assert codec.memory_limit.reserve(1, MIB - 2 * LARGE_BYTES)
    encoder, sender = codec.port(0).open_encoder(), FakeSender()
    batching_sender = BatchingSender(0, sender, encoder, Credit(1, shared=False).port(0).quota(Window(5)))
    batching_sender.calibrate_encoder()
    assert codec.memory_limit.held()[0] == 0
    monkeypatch.delattr(ArenaWriter, "copy")
    assert batching_sender.put_all([encoder.allocate((LARGE_BYTES,), np.dtype(np.uint8))] for _ in range(1)) == 1
    batching_sender.close(0)
    codec.close()


@pytest.mark.parametrize("num", [40])
def test_more_workers_than_the_memory_has_pages_for_all_come_through(num):
    with limited("process", Images(30, 20_000), num, max_bytes=MIB, prefetch=2) as df:
        assert all(map(is_whole, df))
        assert all(map(is_whole, df))


@each_kind
def test_what_is_kept_of_a_closed_runner_keeps_no_more_than_itself(kind):
    df = limited(kind, Images(30, 300_000), max_bytes=32 * MIB, prefetch=50)
    datapoints = list(df)
    arena, statuses = os.dup(df.file.fd), 3 * 4096
    kept = [datapoints[5][0][7:9], datapoints[20][0]]
    datapoints.clear()
    df.close()
    assert os.fstat(arena).st_blocks * 512 <= 2 * 74 * 4096 + statuses
    assert kept[0].tolist() == [5, 5] and (kept[1] == 20).all()
    kept.clear()
    assert os.fstat(arena).st_blocks * 512 <= statuses
    os.close(arena)


@each_kind
def test_runner_after_runner_holds_no_more(kind):
    """Descriptors stay as many as they were, while a runner lives and is closed and started again."""

    def count():
        return len(os.listdir("/proc/self/fd"))

    df = limited(kind, Images(3, 50_000), max_bytes=MIB)
    counts = []
    for _ in range(4):
        list(df)
        df.close()
        wait_until(lambda: counts.append(count()) or counts[-1] <= counts[0], LIMIT, lambda: f"{counts}")
