"""The frames of other threads, while the garbage collector runs."""

import gc
import inspect
import os
import subprocess
import sys
import threading

import pytest

from dataflow.system.thread_frames import stack_of
from tests.support.waits import LIMIT

COLLECTING = """
import gc, threading
from dataflow.system.thread_frames import stack_of

class Loop:
    pass

def deeper(n):
    return deeper(n - 1) if n else stack_of(threading.get_ident())

for number in range(500, 900):  # with one of them, the collector is due just as a frame is made
    full = None
    gc.collect()
    for _ in range(3):
        loop = Loop()
        loop.me, loop.local = loop, threading.local()
    del loop
    full = [[] for _ in range(number)]
    assert deeper(number % 7)
    assert gc.isenabled()
print("done")
"""


def test_the_collector_does_not_run_while_they_are_listed():
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def deeper(n, reached, ended):
    if n:
        return deeper(n - 1, reached, ended)
    reached.set()
    return ended.wait(LIMIT)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="it runs between two steps only, which hold whole frames")
def test_nor_while_a_stack_is_read():
    reached, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=deeper, args=(50, reached, ended))
    thread.start()
    assert reached.wait(LIMIT)
    source, first = inspect.getsourcelines(stack_of)
    making = {first + k for k, line in enumerate(source) if "f_back" in line or "_current_frames" in line}
    collected, before, us = [], gc.get_threshold(), threading.get_ident()

    def note(phase, info):
        caller = sys._getframe(1)
        if threading.get_ident() == us:
            collected.append(caller.f_code is stack_of.__code__ and caller.f_lineno in making)

    gc.callbacks.append(note)
    try:
        gc.set_threshold(1)  # due at each of its frames
        stack = stack_of(thread.ident)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
        ended.set()
        thread.join()
    assert collected and not any(collected)
    assert [frame.f_code for frame in stack].count(deeper.__code__) == 51
    assert stack_of(thread.ident) == []


def test_it_stays_off_if_it_was_off():
    gc.disable()
    try:
        assert stack_of(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the collector stays on")
def test_a_process_that_is_forked_meanwhile_has_a_collector():
    ended = threading.Event()

    def list_frames():
        while not ended.is_set():
            stack_of(threading.get_ident())

    thread = threading.Thread(target=list_frames)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                os._exit(0 if gc.isenabled() and stack_of(threading.get_ident()) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        thread.join()
