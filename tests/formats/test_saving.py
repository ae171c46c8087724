"""Saving is all or nothing: a program that is killed, a disk that is full, a flow that fails."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dataflow import DataFromGenerator
from dataflow.formats import saving
from tests.formats.files import FORMATS, LMDB, NPZ, assert_same, by_name

ROOT = Path(__file__).parents[2]
every_format = pytest.mark.parametrize("form", FORMATS, ids=by_name)
two_formats = pytest.mark.parametrize(  # one that a library writes, and one of ours, where each needs a process
    "form",
    [pytest.param(form, id=form.name, marks=[pytest.mark.full] * (form not in (LMDB, NPZ))) for form in FORMATS],
)

OLD = [[k, np.full(10, k)] for k in range(5)]


def left_in(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".index"))


# -- a flow that fails -------------------------------------------------------------------------------------------------


@every_format
def test_a_flow_that_fails_leaves_what_was_there(form, tmp_path):
    def fail():
        yield [1]
        raise RuntimeError("no more")

    path = form.saved(tmp_path, OLD)
    for name in (path, form.file(tmp_path, "new")):
        with pytest.raises(RuntimeError, match="no more"):
            form.save(DataFromGenerator(fail), name, overwrite=True)
    assert left_in(tmp_path) == [os.path.basename(path)]
    with form.load(path, shuffle=False) as df:
        assert_same(list(df), OLD)


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "file"

    def race():
        with saving.replacing(path, overwrite=False) as part:
            Path(part).write_text("mine")
            path.write_text("theirs")

    with pytest.raises(FileExistsError, match="overwrite=True"):
        race()
    assert path.read_text() == "theirs"
    assert left_in(tmp_path) == ["file"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with saving.replacing(tmp_path / "link", overwrite=True) as part:
        Path(part).write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_file_system_without_links_is_served(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    with saving.replacing(tmp_path / "file", overwrite=False) as part:
        Path(part).write_text("new")
    assert (tmp_path / "file").read_text() == "new"


def test_what_somebody_else_is_writing_is_not_removed(tmp_path):
    with saving.replacing(tmp_path / "file", overwrite=False) as first:
        with saving.replacing(tmp_path / "file", overwrite=False) as second:
            assert os.path.exists(first)
            Path(second).write_text("second")
        (tmp_path / "file").unlink()
        Path(first).write_text("first")
    assert (tmp_path / "file").read_text() == "first"


def test_one_at_a_time(tmp_path):
    path, inside, most = str(tmp_path / "file"), [], []

    def enter():
        with saving.alone(path, "waits"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0)
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4
    assert os.listdir(tmp_path) == []


def patched_flock(monkeypatch, act):
    """Call `act` with number, descriptor and operation before each call of `flock`."""
    flock, calls = saving.fcntl.flock, []

    def patched(fd, operation):
        calls.append(fd)
        act(len(calls), fd)
        flock(fd, operation)

    monkeypatch.setattr(saving.fcntl, "flock", patched)
    return calls


@pytest.mark.parametrize("is_there", [False, True])
def test_a_lock_that_its_holder_has_removed_counts_for_nothing(is_there, tmp_path, monkeypatch):
    path, lock = tmp_path / "file", tmp_path / "file.lock"

    def remove(number, fd):
        if number == 1:
            lock.unlink()
            if is_there:  # somebody else has made the next
                lock.touch()

    calls = patched_flock(monkeypatch, remove)
    with saving.alone(str(path), "waits"):
        assert len(calls) == 2 and os.path.samestat(os.fstat(calls[1]), lock.stat())


def test_who_waits_says_so_once(tmp_path, monkeypatch, caplog):
    def hold(number, fd):
        if number < 4:
            raise BlockingIOError

    monkeypatch.setattr(saving, "_INTERVAL", 0)
    patched_flock(monkeypatch, hold)
    with caplog.at_level("INFO", "dataflow"), saving.alone(str(tmp_path / "file"), "waits for another"):
        assert caplog.text.count("waits for another") == 1


def test_a_lock_that_cannot_be_had_is_an_error_that_leaves_no_descriptor(tmp_path, monkeypatch):
    def refuse(number, fd):
        raise OSError(errno.ENOLCK, "no locks")

    before = len(os.listdir("/proc/self/fd"))
    patched_flock(monkeypatch, refuse)
    with pytest.raises(OSError, match="no locks"), saving.alone(str(tmp_path / "file"), "waits"):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_looks_like_an_abandoned_file_and_cannot_be_opened_stays(tmp_path):
    (tmp_path / ".file.0.part").mkdir()
    with saving.replacing(tmp_path / "file", overwrite=False) as part:
        Path(part).write_text("new")
    assert left_in(tmp_path) == [".file.0.part", "file"]


# -- SIGKILL -----------------------------------------------------------------------------------------------------------

SAVER = """
import sys
import numpy as np
from dataflow import DataFromGenerator
from tests.formats.files import FORMATS

form = next(form for form in FORMATS if form.name == sys.argv[1])

def endlessly():
    for k in range(4000):
        if k == 3:
            print("under way", flush=True)
        yield [k, np.full(500, k)]

while True:
    form.save(DataFromGenerator(endlessly), sys.argv[2], overwrite=True)
    print("saved", flush=True)
"""


def is_whole(form, path):
    with form.load(path, shuffle=False) as df:
        num = len(df)
        if num == len(OLD):
            assert_same(list(df), OLD)
            return False
        assert num == 4000
        assert_same(df[3999], [3999, np.full(500, 3999)])
        return sum(int(dp[1][7] == dp[0]) for dp in df) == 4000 or pytest.fail("a file that is not whole")


def kill_while_saving(form, path, seconds, *, again):
    """Kill a program while it saves its first file, or, with `again`, after that."""
    program = subprocess.Popen([sys.executable, "-c", SAVER, form.name, path], cwd=ROOT, stdout=subprocess.PIPE)
    with program:
        assert program.stdout.readline() == b"under way\n"
        assert not again or program.stdout.readline() == b"saved\n"
        time.sleep(seconds)
        program.send_signal(signal.SIGKILL)
        program.wait()


@two_formats
@pytest.mark.parametrize("num", [1, pytest.param(50, marks=pytest.mark.full)])
def test_a_killed_program_leaves_the_old_file_or_the_new_one(form, num, tmp_path):
    path = form.saved(tmp_path, OLD)
    new = 0
    for k in range(num):
        kill_while_saving(form, path, random.Random(k).uniform(0, 0.4), again=k % 2 == 1)
        new += is_whole(form, path)
        form.saved(tmp_path, OLD)
        assert left_in(tmp_path) == [os.path.basename(path)]  # what the killed one left is gone
    assert num < 50 or new > 0


# -- a full disk -------------------------------------------------------------------------------------------------------


def many():
    rng = np.random.default_rng(0)
    for k in range(4000):
        yield [k, rng.integers(0, 256, 1000)]


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk; the next test does without")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@every_format
def test_a_full_disk_is_an_error_that_leaves_nothing_behind(form, small_disk):
    with pytest.raises(OSError) as caught:
        form.save(DataFromGenerator(many), form.file(small_disk))
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(small_disk) == []
    path = form.saved(small_disk, OLD)
    with pytest.raises(OSError):
        form.save(DataFromGenerator(many), path, overwrite=True)
    assert left_in(small_disk) == [os.path.basename(path)]
    with form.load(path, shuffle=False) as df:
        assert_same(list(df), OLD)


LIMITED = """
import resource, signal, sys
from tests.formats.files import FORMATS
from tests.formats.test_saving import many
from dataflow import DataFromGenerator

form = next(form for form in FORMATS if form.name == sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    form.save(DataFromGenerator(many), sys.argv[2], overwrite=True)
except OSError as error:
    print(error.errno)
"""


@two_formats
def test_a_file_that_may_not_grow_is_an_error_that_leaves_nothing_behind(form, tmp_path):
    path = form.saved(tmp_path, OLD)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, form.name, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, f"{errno.EFBIG}\n"), done.stderr
    assert left_in(tmp_path) == [os.path.basename(path)]
    with form.load(path, shuffle=False) as df:
        assert_same(list(df), OLD)
