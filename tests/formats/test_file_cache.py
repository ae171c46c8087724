"""The cache of whole files: its bound, its order, and what is left when its users are killed."""

import fcntl
import hashlib
import os
import random
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest

from dataflow.formats import file_cache
from dataflow.formats.file_cache import CachedFile, FileCache
from tests.support.forks import in_child
from tests.support.waits import LIMIT, wait_until

HEADER = 24


def name_of(k):
    return hashlib.sha256(b"%d" % k).hexdigest()


def file_of(k, size=1000):
    return CachedFile((b"%d " % k * size)[: size - HEADER], "")


@pytest.fixture
def opened(tmp_path):
    return lambda max_bytes=None: FileCache(str(tmp_path), max_bytes)


def kept(folder):
    """The sizes of the data files by name."""
    return {path.name: path.stat().st_size for path in Path(folder).glob("??/*")}


def holds(cache, numbers):
    return [k for k in numbers if cache.get(name_of(k)) is not None]


def test_what_was_put_is_there_for_everyone(opened):
    cache, other = opened(), opened()
    for file in (
        CachedFile(b"", ""),
        CachedFile(b"data", "state é \udc80"),
        CachedFile(os.urandom(100_000), "x" * 1000),
    ):
        assert cache.get(name_of(1)) != file
        cache.put(name_of(1), file)
        assert cache.get(name_of(1)) == other.get(name_of(1)) == file
    assert cache.get(name_of(2)) is None


def test_the_least_recently_used_are_removed_first(opened, tmp_path):
    cache = opened(10_000)
    for k in range(10):
        cache.put(name_of(k), file_of(k))
    assert sum(kept(tmp_path).values()) == 10_000
    assert holds(cache, (0, 1)) == [0, 1]  # used just now
    cache.put(name_of(10), file_of(10))
    assert len(kept(tmp_path)) == 10
    assert name_of(2) not in kept(tmp_path) and {name_of(0), name_of(1), name_of(10)} <= kept(tmp_path).keys()
    cache.put(name_of(11), file_of(11, size=10_001))
    assert name_of(11) not in kept(tmp_path) and len(kept(tmp_path)) == 10  # it has no room at all


def test_a_file_that_is_put_again_counts_once(opened, tmp_path):
    cache = opened(3_000)
    for _ in range(20):
        cache.put(name_of(1), file_of(1))
    cache.put(name_of(2), file_of(2))
    assert holds(cache, (1, 2)) == [1, 2]
    assert cache._total() == sum(kept(tmp_path).values()) == 2_000


def test_a_lower_bound_holds_from_the_beginning(opened, tmp_path):
    cache = opened()
    for k in range(10):
        cache.put(name_of(k), file_of(k))
    opened(4_000)
    assert sum(kept(tmp_path).values()) <= 4_000


def test_a_total_that_is_too_high_is_counted_anew(opened, tmp_path):
    cache = opened(5_000)
    for k in range(3):
        cache.put(name_of(k), file_of(k))
    cache._set_total(4_900)  # a process was killed
    cache.put(name_of(3), file_of(3))
    assert holds(cache, range(4)) == [0, 1, 2, 3]
    assert cache._total() == 4_000
    os.truncate(tmp_path / "lock", 0)
    assert len(kept(tmp_path)) == 4
    cache.put(name_of(4), file_of(4))
    assert cache._total() == 5_000


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "foreign"])
def test_a_damaged_file_counts_as_missing(damage, opened, tmp_path):
    cache = opened()
    cache.put(name_of(1), file_of(1))
    path = tmp_path / name_of(1)[:2] / name_of(1)
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes({"cut": content[:-1], "changed": content, "empty": b"", "foreign": b"x" * 1000}[damage])
    assert cache.get(name_of(1)) is None
    cache.put(name_of(1), file_of(1))
    assert cache.get(name_of(1)) == file_of(1)


def test_a_file_that_cannot_be_read_counts_as_missing(opened, tmp_path, caplog):
    cache = opened()
    for k in (1, 2):
        (tmp_path / name_of(k)[:2] / name_of(k)).mkdir(parents=True)  # as if it were another user's
    assert holds(cache, (1, 2)) == [] and caplog.text.count("cannot be kept") == 1
    assert "IsADirectoryError" in caplog.text and name_of(1) in caplog.text


def test_other_files_in_the_folder_are_left_alone(opened, tmp_path):
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "notes.txt").write_bytes(b"x" * 5000)
    (tmp_path / "readme").write_bytes(b"x" * 5000)
    cache = opened(2_000)
    for k in range(5):
        cache.put(name_of(k), file_of(k))
    assert (tmp_path / "ab" / "notes.txt").exists() and (tmp_path / "readme").exists()


def test_what_a_killed_process_has_half_written_is_removed(opened, tmp_path):
    opened().put(name_of(1), file_of(1))
    (tmp_path / "incoming").write_bytes(b"half")
    opened()
    assert not (tmp_path / "incoming").exists()


def test_a_folder_that_was_deleted_is_used_again(opened, tmp_path, caplog):
    cache = opened()
    cache.put(name_of(1), file_of(1))
    shutil.rmtree(tmp_path)
    cache.put(name_of(1), file_of(1))  # the folder is gone: nothing can be kept
    assert cache.get(name_of(1)) is None and "cannot be kept" in caplog.text
    again = opened()
    cache.put(name_of(1), file_of(1))
    assert again.get(name_of(1)) == file_of(1) and again._total() == cache._total() == 1_000


def test_a_lock_that_is_held_for_long_costs_the_cache_only(opened, monkeypatch, caplog):
    cache, other = opened(), opened()
    monkeypatch.setattr(file_cache, "_PATIENCE", 0.05)
    with other._locked() as is_locked:
        assert is_locked
        cache.put(name_of(1), file_of(1))
        cache.put(name_of(2), file_of(2))
    assert holds(cache, (1, 2)) == [] and caplog.text.count("has held its lock for 0.05 seconds") == 1
    cache.put(name_of(1), file_of(1))
    assert holds(cache, (1, 2)) == [1]


def test_a_lock_that_another_thread_holds_for_long_costs_the_cache_only(opened, monkeypatch, caplog):
    cache = opened()
    monkeypatch.setattr(file_cache, "_PATIENCE", 0.05)
    with cache._thread_lock:
        thread = threading.Thread(target=cache.put, args=(name_of(1), file_of(1)))
        thread.start()
        thread.join()
    assert holds(cache, [1]) == [] and "has held its lock" in caplog.text


def test_a_lock_that_is_held_as_a_cache_is_opened_leaves_what_is_there(opened, tmp_path, monkeypatch):
    cache = opened()
    cache.put(name_of(1), file_of(1))
    monkeypatch.setattr(file_cache, "_PATIENCE", 0.05)
    with cache._locked():
        other = opened(100)
    assert holds(other, [1]) == [1]


def test_a_cache_that_cannot_be_opened_leaves_no_descriptor(opened, monkeypatch):
    def refuse(*_):
        raise MemoryError

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(FileCache, "_make_room", refuse)
    with pytest.raises(MemoryError):
        opened()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_fills_the_cache_replaces_all_others(opened, tmp_path):
    cache = opened(10_000)
    for k in range(3):
        cache.put(name_of(k), file_of(k))
    cache.put(name_of(4), file_of(4, 9_900))
    assert [*kept(tmp_path)] == [name_of(4)] and holds(cache, [4]) == [4]


def test_a_forked_child_does_not_hold_the_lock(opened, tmp_path):
    cache = opened()
    with cache._locked():
        held = in_child(lambda: [fd for fd in os.listdir("/proc/self/fd") if is_lock(fd, tmp_path)])
    assert held == "returned []"


def is_lock(fd, folder):
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(folder / "lock")
    except OSError:
        return False


def test_threads_share_it_without_a_wrong_byte(opened, tmp_path):
    caches = [opened(20_000), opened(20_000)]
    wrong = []

    def work(number):
        drawn = random.Random(number)
        for _ in range(150):
            k, cache = drawn.randrange(40), caches[number % 2]
            found = cache.get(name_of(k))
            if found is None:
                cache.put(name_of(k), file_of(k))
            elif found != file_of(k):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not wrong
    assert caches[0]._total() == sum(kept(tmp_path).values()) <= 20_000


# -- kills -------------------------------------------------------------------------------------------------------------

NUM, SIZE = 60, 8_000
BOUND = NUM * SIZE // 2


class Fillers:
    """Processes that fill one cache. Each ends by itself only if it reads a wrong byte, or if anything is raised."""

    def __init__(self, folder, num):
        self._folder, self._num_started = str(folder), 0
        self.statuses = []
        self._pids = [self._start() for _ in range(num)]

    def _start(self):
        self._num_started += 1
        read, write = os.pipe()
        pid = forked(lambda: self._fill(self._num_started, write))
        os.close(write)
        assert os.read(read, 1) == b"r"
        os.close(read)
        return pid

    def _fill(self, seed, write):
        cache, drawn = FileCache(self._folder, BOUND), random.Random(seed)
        os.write(write, b"r")
        while True:
            k = drawn.randrange(NUM)
            found = cache.get(name_of(k))
            if found is None:
                cache.put(name_of(k), file_of(k, SIZE))
            elif found != file_of(k, SIZE):
                return

    def kill(self, number):
        os.kill(self._pids[number], signal.SIGKILL)
        self.statuses.append(os.waitpid(self._pids[number], 0)[1])

    def replace(self, number):
        self.kill(number)
        self._pids[number] = self._start()

    def kill_all(self):
        for number in range(len(self._pids)):
            self.kill(number)


def forked(func):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which pytest may have
        pid = os.fork()
    if pid == 0:
        try:
            func()
        finally:
            os._exit(1)
    return pid


def check_kills(folder, num_kills, num_processes):
    """Kill processes that fill a cache of half the size of all files, at random moments."""
    drawn, most = random.Random(1), 0
    fillers = Fillers(folder, num_processes)
    try:
        for _ in range(num_kills):
            end = time.monotonic() + drawn.random() * 0.02
            while time.monotonic() < end:
                most = max(most, sum(sizes_of(folder)))
            fillers.replace(drawn.randrange(num_processes))
    finally:
        fillers.kill_all()
    assert set(fillers.statuses) == {signal.SIGKILL}
    assert BOUND / 2 < most <= BOUND
    cache = FileCache(str(folder), BOUND)
    found = [cache.get(name_of(k)) for k in range(NUM)]
    assert all(file is None or file == file_of(k, SIZE) for k, file in enumerate(found))
    assert sum(file is not None for file in found) == len(kept(folder)) > 0
    for k in range(NUM):  # and it is as good as a new one
        cache.put(name_of(k), file_of(k, SIZE))
    assert cache._total() == sum(kept(folder).values()) <= BOUND
    assert sorted(path.name for path in folder.iterdir() if len(path.name) != 2) == ["lock"]


def sizes_of(folder):
    """The sizes of the data files at one moment."""
    with open(folder / "lock", "rb") as lock:  # while files come and go, the sum would be of several moments
        fcntl.flock(lock, fcntl.LOCK_EX)
        return list(kept(folder).values())


def test_killed_processes_leave_a_whole_cache(tmp_path):
    check_kills(tmp_path, 10, 4)


@pytest.mark.full
def test_two_hundred_killed_processes_leave_a_whole_cache(tmp_path):
    check_kills(tmp_path, 200, 4)


def test_a_process_that_is_killed_while_it_writes_leaves_only_what_the_next_one_removes(tmp_path):
    fillers = Fillers(tmp_path, 1)
    try:
        wait_until((tmp_path / "incoming").exists, LIMIT, "nothing is written")
    finally:
        fillers.kill_all()
    FileCache(str(tmp_path), BOUND)
    assert sorted(path.name for path in tmp_path.iterdir() if len(path.name) != 2) == ["lock"]
