"""What is open when the interpreter ends is closed, before multiprocessing waits for its children."""

import os
import subprocess
import sys

import pytest

import dataflow
from dataflow.system.cleanup import members
from tests.support.products import covering
from tests.support.threads import Interrupted
from tests.support.waits import LIMIT

ROOT = os.path.dirname(os.path.dirname(dataflow.__file__))

PREFIX = """
import gc, os, sys
from dataflow.system.cleanup import close_at_exit

class Resource:
    def __init__(self, name, fails=False):
        self.name, self.fails = name, fails
        close_at_exit(self)
    def close(self):
        print("closed", self.name, flush=True)
        if self.fails:
            raise ValueError(self.name)
"""


def run(code, prefix=PREFIX):
    return subprocess.run(
        [sys.executable, "-c", prefix + code],
        capture_output=True, text=True, timeout=LIMIT, check=False, env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip


def test_what_is_open_is_closed_once_at_the_end():
    done = run("a, b = Resource('a'), Resource('b')")
    assert sorted(done.stdout.split("\n")) == ["", "closed a", "closed b"] and done.returncode == 0


def test_what_has_gone_before_is_not_closed():
    assert run("a = Resource('a'); del a; gc.collect()").stdout == ""


def test_one_that_fails_does_not_keep_the_others_open():
    assert run("a, b, c = Resource('a', True), Resource('b'), Resource('c', True)").stdout.count("closed") == 3


def test_what_two_threads_open_first_is_closed():
    """Both have seen that nothing is open yet."""
    code = """
import threading
from dataflow.system import cleanup
class Meeting(dict):
    def setdefault(self, key, value):
        gate.wait(60)
        return super().setdefault(key, value)
gate, cleanup._open, kept = threading.Barrier(2), Meeting(), []
threads = [threading.Thread(target=lambda name=name: kept.append(Resource(name))) for name in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    assert sorted(run(code).stdout.split()) == ["a", "b", "closed", "closed"]


class Thing:
    pass


@pytest.mark.parametrize("what", ["added", "discarded"])
def test_members_that_come_and_go_meanwhile_do_no_harm(what):
    kept = [Thing() for _ in range(4)]
    weak_set = Interrupted(kept[:3])
    weak_set.other_thread = (lambda: weak_set.add(kept[3])) if what == "added" else (lambda: weak_set.discard(kept[0]))
    assert set(kept[1:3]) <= set(members(weak_set)) <= set(kept)


def test_what_is_opened_while_the_others_are_listed_keeps_none_of_them_open():
    code = """
from tests.support.threads import Interrupted
from dataflow.system import cleanup
a, b, c = (Resource(name) for name in "abc")
opened = cleanup._open[os.getpid()] = Interrupted([a, b])
opened.other_thread = lambda: opened.add(c)
"""
    assert {"closed a", "closed b"} <= set(run(code).stdout.splitlines())


def test_nothing_is_opened_any_more_while_what_is_open_is_closed():
    code = """
from dataflow import DataFlowTerminated, MultiThreadRunner, RemoteDataZMQ, DataFromList
class Opens(Resource):
    def close(self):
        threads = MultiThreadRunner(lambda: DataFromList([[1]]), 2, 1)
        for df in (threads, RemoteDataZMQ("tcp://127.0.0.1:0")):
            try: next(iter(df))
            except DataFlowTerminated as error: print(error, flush=True)
opens = Opens('a')
"""
    assert run(code).stdout.count("the program is ending: no workers are started") == 2


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_process_closes_nothing_of_its_parents(end):
    done = run(f"a = Resource('a')\nif not os.fork(): {end}\nos.wait()\nprint('parent')")
    closed = done.stdout.split("\n").count("closed a")
    assert closed == 1 or end == "sys.exit(0)"  # what is open guards itself by its process


def test_a_child_of_multiprocessing_closes_what_it_opened_itself():
    code = """
import multiprocessing
def child():
    global kept
    kept = Resource("child")
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
"""
    assert run(code).stdout == "closed child\n"


RUNNER = """
import logging
logging.disable(logging.WARNING)  # which says what a pass of several workers is
from itertools import islice
from dataflow import DataFlow, MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner
class Forever(DataFlow):
    def __iter__(self):
        while True:
            yield [0]
"""


MAKES = (
    "MultiProcessRunner(Forever(), 5, 2)",
    "MultiProcessRunnerZMQ(Forever(), 2)",
    "MultiThreadRunner(Forever, 5, 2)",
    "MultiThreadRunner(lambda: MultiProcessRunnerZMQ(Forever()), 5, 1)",
    "MultiProcessRunnerZMQ(MultiProcessRunnerZMQ(Forever()))",
)
ENDS = ("", "iterator = None", "raise SystemExit", "import atexit; atexit.register(df.close)")


@pytest.mark.parametrize(("make", "how"), covering(MAKES, ENDS))
def test_an_interpreter_with_a_runner_at_work_ends_without_a_word(make, how):
    done = run(f"df = {make}\niterator = iter(df)\nlist(islice(iterator, 10))\n{how}\n", RUNNER)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
