"""The watch over the machine sees what it is there to see, and lets go what goes away by itself."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import shared_memory

import pytest

from dataflow.system.interrupts import signals_deferred
from tests.support.leaks import check_nothing_left, new_since, snapshot
from tests.support.waits import wait_until

PARENT = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "input()"], stdin=0, stdout=2).pid)
"""


@contextlib.contextmanager
def child():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
        yield


@contextlib.contextmanager
def zombie():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield
    process.wait()


@contextlib.contextmanager
def orphan():
    reader, writer = os.pipe()
    with open(writer, "wb"):
        with open(reader, "rb") as stdin:
            parent = subprocess.run([sys.executable, "-c", PARENT], stdin=stdin, stdout=subprocess.PIPE, check=True)
        yield
        os.kill(int(parent.stdout), signal.SIGKILL)


@contextlib.contextmanager
def worker_of_the_fork_server():
    context = multiprocessing.get_context("forkserver")
    release = context.Event()
    process = context.Process(target=release.wait)
    process.start()
    yield
    release.set()
    process.join()


@contextlib.contextmanager
def thread():
    release = threading.Event()
    running = threading.Thread(target=release.wait, name="forgotten")
    running.start()
    yield
    release.set()
    running.join()


@contextlib.contextmanager
def descriptor():
    with open(os.devnull):
        yield


@contextlib.contextmanager
def block():
    memory = shared_memory.SharedMemory(create=True, size=16)
    yield
    memory.close()
    memory.unlink()


@contextlib.contextmanager
def handler():
    with signals_deferred():
        kept = signal.getsignal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, kept)
    yield
    signal.signal(signal.SIGINT, before)


LEAKS = [
    (child, r"process \d+ .*input\(\)"),
    (zombie, r"process \d+ \(zombie\)"),
    (orphan, r"process \d+ .*input\(\)"),
    (worker_of_the_fork_server, r"process \d+ .*forkserver"),
    (thread, "thread .*forgotten"),
    (descriptor, "descriptor .*null"),
    (block, "shared memory"),
    (handler, "handler _StandIn of SIGINT"),
]


@pytest.mark.parametrize(("leak", "name"), LEAKS, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_left_behind_is_named(leak, name):
    before = snapshot()
    with leak(), pytest.raises(AssertionError, match=f"left behind: .*{name}"):
        check_nothing_left(before, grace=0.05)


def test_what_a_collection_removes_is_not_held_against_a_test():
    before = snapshot()
    reader, writer = os.pipe()
    os.close(writer)
    cycle = [os.fdopen(reader)]
    cycle.append(cycle)
    assert new_since(before)
    del cycle
    with pytest.warns(ResourceWarning):
        check_nothing_left(before)


STRANGER = """
import os, sys
from multiprocessing.shared_memory import SharedMemory
if os.fork():
    os._exit(0)
os.setsid()
memory = SharedMemory(create=True, size=16)
print(memory.name, flush=True)
sys.stdin.read()
memory.close()
memory.unlink()
print("gone", flush=True)
"""


def test_shared_memory_of_another_program_is_not_held_against_a_test():
    before = snapshot()
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        name = process.stdout.readline().strip()
        process.wait()
        assert os.path.exists(f"/dev/shm/{name}")
        assert not any(kind == "shared_memory" for kind, _ in new_since(before))
        process.stdin.close()
        assert process.stdout.readline() == "gone\n"


def test_waiting_ends_with_the_answer_or_with_the_message():
    answers = iter([0, None, "yes"])
    assert wait_until(lambda: next(answers), 60, "no answer") == "yes"
    with pytest.raises(AssertionError, match=r"nobody came \(waited \d+\.\d s\)"):
        wait_until(lambda: False, 0.01, "nobody came")
