"""The frames of other threads, while the garbage collector runs."""

import gc
import os
import subprocess
import sys
import threading

import pytest

from dataflow.system.thread_frames import current_frames
from tests.support.waits import LIMIT

COLLECTING = """
import gc, threading
from dataflow.system.thread_frames import current_frames

class Loop:
    pass

def deeper(n):
    return deeper(n - 1) if n else current_frames()

for number in range(500, 900):  # with one of them, the collector is due just as a frame is made
    full = None
    gc.collect()
    for _ in range(3):
        loop = Loop()
        loop.me, loop.local = loop, threading.local()
    del loop
    full = [[] for _ in range(number)]
    assert deeper(number % 7)[threading.get_ident()]
    assert gc.isenabled()
print("done")
"""


def test_the_collector_does_not_run_while_they_are_listed():
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_it_stays_off_if_it_was_off():
    gc.disable()
    try:
        assert threading.get_ident() in current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the collector stays on")
def test_a_process_that_is_forked_meanwhile_has_a_collector():
    ended = threading.Event()

    def list_frames():
        while not ended.is_set():
            current_frames()

    thread = threading.Thread(target=list_frames)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                os._exit(0 if gc.isenabled() and current_frames() else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        thread.join()
