"""A worker that is a thread."""

import platform
import subprocess
import sys
import threading

import pytest

from dataflow.system.machine import processor_times
from dataflow.system.worker_info import worker_info, worker_info_of
from dataflow.system.worker_thread import ThreadWorker
from tests.support.waits import LIMIT, wait_until


def test_a_thread_runs_its_body_at_its_place_and_ends():
    seen = []
    worker = ThreadWorker(worker_info_of(1, 2), lambda: seen.append(worker_info()))
    worker.start()
    assert worker.join(LIMIT) and worker.has_ended()
    assert seen == [worker.info]
    assert "ended" in worker.state()
    worker.release()


def test_a_thread_cannot_be_killed_and_says_that_it_is_alive():
    go_on = threading.Event()
    worker = ThreadWorker(worker_info_of(0, 1), go_on.wait)
    worker.start()
    assert not worker.join(0) and not worker.has_ended() and not worker.kill()
    worker.begin_kill()
    worker.leave_behind()
    assert worker.state() == "thread dataflow-worker-0, alive"
    assert worker.pid is None and worker.sentinel is None
    if platform.system() == "Linux":
        wait_until(lambda: processor_times(worker.task()) is not None, LIMIT, "its times are unknown")
    go_on.set()
    assert worker.join(LIMIT)


def test_a_thread_that_closes_its_own_runner_does_not_wait_for_itself():
    found = []
    worker = ThreadWorker(worker_info_of(0, 1), lambda: found.append(worker.join(LIMIT)))
    worker.start()
    assert worker.join(LIMIT) and found == [True]


def test_a_thread_does_not_keep_the_interpreter_alive():
    go_on = threading.Event()
    worker = ThreadWorker(worker_info_of(0, 1), go_on.wait)
    worker.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "dataflow-worker-0"]
    assert thread.daemon
    go_on.set()
    worker.join(LIMIT)


DECODING = """
import resource
import numpy as np
from dataflow import DataFromList, MapData, MultiThreadRunner

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def decoded(k):
    temporary = np.zeros(900_000, np.uint8)
    temporary += 1  # touches its pages
    return [temporary[:600_000].copy()]

with MultiThreadRunner(lambda: MapData(DataFromList(range(1000)), decoded), 10, 1) as df:
    datapoints = iter(df)
    for _ in range(100):
        next(datapoints)
    before = page_faults()
    for _ in range(200):
        next(datapoints)
    print(page_faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways")
def test_a_process_with_worker_threads_keeps_freed_memory():
    found = subprocess.run([sys.executable, "-c", DECODING], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert int(found.stdout) < 3000  # of 73,000 pages
