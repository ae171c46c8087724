"""The main process is killed while its workers start: nothing stays behind, whichever instruction it was.

A program counts the lines of this package and of `multiprocessing` that its main thread runs, from the first call to
the first datapoint. It is killed at one of them; or, without being killed, it has every file recorded that is made in
its folder for temporary ones, by whatever code: a program that makes none can leave none.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.fakes import METHODS
from tests.support.products import only
from tests.support.waits import LIMIT, wait_until

ROOT = Path(__file__).parents[2]
FLOWS = {
    "zmq": "D.MultiProcessRunnerZMQ(source(), 3, context=METHOD)",
    "strict": "D.ParallelData(source(), 3, context=METHOD)",
    "pipes": "D.MultiProcessRunner(source(), 9, 2, context=METHOD)",
    "map": "D.MultiProcessMapData(source(), 2, lambda dp: dp, strict=True, context=METHOD)",
    "nested": "D.MultiProcessRunnerZMQ(D.MultiProcessRunnerZMQ(source(), 2, context=METHOD), 2, context=METHOD)",
    "background": "D.BackgroundData(np.ones, n_proc=2, target_args=(9,), context=METHOD)",
}
PROGRAM = """
import itertools, multiprocessing.forkserver, multiprocessing.popen_spawn_posix, os, signal, sys
import numpy as np
import dataflow as D

METHOD, LAST = sys.argv[1], int(sys.argv[2])

def source():
    payload = np.zeros(30_000, np.uint8)  # more than a pipe holds, where the flow is pickled
    return D.MapData(D.DataFromList([[k] for k in range(2000)], shuffle=False), lambda dp: [dp[0], payload])

class Lines:
    number = 0

def on_line(frame, event, argument):
    if event == "line":
        Lines.number += 1
        if Lines.number == LAST:
            os.kill(os.getpid(), signal.SIGKILL)
    return on_line

def on_call(frame, event, argument):
    name = str(frame.f_globals.get("__name__"))
    return on_line if name.startswith(("dataflow", "multiprocessing", "tempfile")) else None

if __name__ == "__main__":
    with FLOW as df:
        sys.settrace(on_call)
        next(iter(df))
        sys.settrace(None)
    print(Lines.number, flush=True)
"""
# The folder for the socket of its fork server, and files by which `tempfile` and, from Python 3.14 on,
# `multiprocessing` find out that they can write there.
OF_MULTIPROCESSING = re.compile(r"pymp-\w+|(tmp)?[a-z0-9_]{8}")


class Program:
    def __init__(self, tmp_path, flow, method):
        self.script = tmp_path / "main.py"
        self.script.write_text(PROGRAM.replace("FLOW", FLOWS[flow]))
        self.method = method

    def run(self, folder, last=0):
        """The processes of this program are one session, which no other process can join."""
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            [sys.executable, str(self.script), self.method, str(last)], text=True, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        ) as main:  # fmt: skip
            out = main.stdout.readline()
        wait_until(lambda: not members(main.pid), LIMIT, lambda: f"still there: {members(main.pid)}")
        assert (main.returncode == 0 and out) or (main.returncode == -9 and last), out
        return int(out or 0)


def members(session):
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            pass
    return found


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def ours(names, method):
    may_be_other = method == "forkserver" or sys.version_info >= (3, 14)
    return [name for name in names if not (may_be_other and OF_MULTIPROCESSING.fullmatch(name))]


QUICK = [("zmq", "fork"), ("map", "forkserver")]  # in the last test of this file
CASES = [(flow, method) for flow in FLOWS for method in METHODS]


class Recorded:
    """Everything that is made in a folder, as the kernel reports it."""

    def __init__(self, folder):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        created, moved_to = 0x100, 0x80
        assert libc.inotify_add_watch(self.fd, os.fsencode(folder), created | moved_to) >= 0

    def names(self):
        try:
            data, names = os.read(self.fd, 1 << 16), []
        except BlockingIOError:
            return []
        while data:
            nbytes = int.from_bytes(data[12:16], sys.byteorder)
            names.append(os.fsdecode(data[16 : 16 + nbytes].rstrip(b"\0")))
            data = data[16 + nbytes :]
        return names


def check_no_file_is_made(program, folder):
    """Run `program` to its end: the number of its lines."""
    recorded = Recorded(folder)
    try:
        num_lines = program.run(folder)
        assert ours(recorded.names(), program.method) == []
    finally:
        os.close(recorded.fd)
    return num_lines


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the record is that of Linux")
@pytest.mark.parametrize(("flow", "method"), CASES)
def test_no_file_is_made_by_a_start(flow, method, tmp_path, folder):
    check_no_file_is_made(Program(tmp_path, flow, method), folder)


@pytest.mark.full
@pytest.mark.parametrize(("flow", "method"), CASES)
def test_a_main_process_that_is_killed_at_any_line_of_a_start_leaves_nothing(flow, method, tmp_path, folder):
    program = Program(tmp_path, flow, method)
    num_lines, times = program.run(folder), 12
    for k in range(times):
        program.run(folder, last=1 + (num_lines * 9 // 10) * k // times)
        assert ours(os.listdir(folder), method) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the record is that of Linux")
@pytest.mark.parametrize(("flow", "method"), only(QUICK, [*QUICK, ("strict", "spawn")]))
def test_no_file_is_made_by_a_start_and_nothing_is_left_if_it_is_killed_in_the_middle(flow, method, tmp_path, folder):
    program = Program(tmp_path, flow, method)
    num_lines = check_no_file_is_made(program, folder)
    while ended := program.run(folder, last=num_lines // 2):  # it has not come so far: how much it reads ahead differs
        num_lines = ended
    assert ours(os.listdir(folder), method) == []
