"""Directories of processes that were killed: found by their names, and removed by the process that notices."""

import glob
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import pytest

from dataflow import DataFlow, DataFromList, MultiProcessRunnerZMQ
from dataflow.temporary import PrivateDirectory, new_prefix, remove_leftovers, sweep
from tests.support.waits import LIMIT, wait_until


def left(prefix="dataflow-"):
    return glob.glob(os.path.join(tempfile.gettempdir(), f"{prefix}*"))


def test_a_directory_is_ones_own():
    directory = PrivateDirectory("s", 100)
    assert os.stat(directory.path).st_mode & 0o777 == 0o700
    assert left() == [directory.path]
    open(f"{directory.path}/s", "w").close()
    sweep()
    assert os.path.exists(f"{directory.path}/s")  # it is in use
    directory.close()
    directory.close()
    assert left() == []


MAKER = """
    import os, sys
    from dataflow.temporary import PrivateDirectory
    directory = PrivateDirectory("s", 100)
    open(f"{directory.path}/s", "w").close()
    print("made", flush=True)
    sys.stdin.read()
    os._exit(0)
"""


def test_what_a_killed_process_has_left_is_swept_and_what_is_in_use_is_not():
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(MAKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as maker:
        assert maker.stdout.readline() == b"made\n"
        sweep()
        assert len(left()) == 1
        maker.kill()
        maker.wait()
    assert len(left()) == 1
    other = PrivateDirectory("s", 100)  # the next one that is made sweeps
    assert left() == [other.path]
    other.close()


def test_a_forked_child_neither_removes_nor_keeps_a_directory():
    directory = PrivateDirectory("s", 100)
    pid = os.fork()
    if not pid:
        directory.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert left() == [directory.path]
    directory.close()
    assert left() == []


def test_directories_of_other_machines_and_files_are_left_alone():
    names = [f"{tempfile.gettempdir()}/dataflow-12345678.{machine}" for machine in ("ffffff", "")]
    for name in names:
        os.mkdir(name)
    sweep()
    assert sorted(left()) == sorted(names)
    for name in names:
        os.rmdir(name)


def test_without_the_temporary_directory_another_is_used(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    directory = PrivateDirectory("s", 100)
    assert directory.path.startswith("/tmp/")
    directory.close()
    assert not os.path.exists(directory.path)


KILLED = """
from dataflow import DataFlow, DataFromList, MultiProcessRunnerZMQ
if __name__ == "__main__":
    df = MultiProcessRunnerZMQ(DataFromList([[1]]), 2, context={method!r})
    print("go", flush=True)
    while True:
        list(df)
"""


def kill_while_it_starts(tmp_path, method, times):
    """Kill the main process at many moments of its start; the directories that are left when another one starts."""
    script = tmp_path / "main.py"
    script.write_text(KILLED.format(method=method))
    longest = 0.1 if method == "fork" else 1.0
    for k in range(times):
        with subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as program:
            assert program.stdout.readline() == b"go\n"
            threading.Event().wait(longest * k / times)
            program.kill()
    df = MultiProcessRunnerZMQ(DataFromList([[1]]), 1)
    assert list(df) == [[1]]
    df.close()
    # A worker may have started after that, and is about to find that its parent is gone.
    wait_until(lambda: not left(), LIMIT, lambda: f"left: {left()}")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_main_process_that_is_killed_while_it_starts_leaves_nothing_to_the_next(tmp_path, method):
    kill_while_it_starts(tmp_path, method, 4)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("method", "times"), [("fork", 60), ("spawn", 20)])
def test_a_main_process_that_is_killed_at_any_moment_leaves_nothing_to_the_next(tmp_path, method, times):
    kill_while_it_starts(tmp_path, method, times)


def test_what_a_process_and_those_below_it_have_left_is_found_and_nothing_else():
    prefix = new_prefix()
    code = """
        import sys
        from dataflow.temporary import PrivateDirectory, adopt_prefix, new_prefix

        adopt_prefix(sys.argv[1])
        first = PrivateDirectory("s", 100)
        adopt_prefix(new_prefix())
        open(PrivateDirectory("s", 100).path + "/s", "w").close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), prefix], check=True, timeout=LIMIT)
    assert len(left(prefix)) == 2
    remove_leftovers(prefix)
    assert left(prefix) == []


@pytest.mark.slow
def test_a_nest_that_is_closed_while_its_inner_workers_start_leaves_nothing():
    """The worker in between is killed before those below it have connected: they take too long, being spawned."""
    df = MultiProcessRunnerZMQ(MultiProcessRunnerZMQ(DataFromList([[1]]), 2, context="spawn"), 1)
    try:
        df.reset_state()
        wait_until(lambda: left("dataflow-??????-"), LIMIT, "the inner runner's directory")
    finally:
        df.close()
    assert left() == []


class KillsItsWorkerOnce(DataFlow):
    """The first worker that comes to the third datapoint is killed."""

    def __init__(self, mark):
        self.mark = mark

    def __len__(self):
        return 6

    def __iter__(self):
        for k in range(6):
            if k == 3 and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield [k]


def test_a_worker_is_replaced_after_the_temporary_directory_was_deleted(monkeypatch, tmp_path):
    deleted = tempfile.mkdtemp(prefix="df-", dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", deleted)
    with MultiProcessRunnerZMQ(KillsItsWorkerOnce(str(tmp_path / "mark")), 1, max_restarts=1, timeout=LIMIT) as df:
        df.reset_state()
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
        assert [0] in list(df)
    os.rmdir(deleted)
