"""A worker that is a thread."""

import threading

from dataflow.workers.info import worker_info, worker_info_of
from dataflow.workers.thread import ThreadWorker
from tests.support.waits import LIMIT


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
    assert worker.state() == "thread dataflow-worker-0, alive"
    assert worker.pid is None and worker.sentinel is None
    go_on.set()
    assert worker.join(LIMIT)


def test_a_thread_does_not_keep_the_interpreter_alive():
    go_on = threading.Event()
    worker = ThreadWorker(worker_info_of(0, 1), go_on.wait)
    worker.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "dataflow-worker-0"]
    assert thread.daemon
    go_on.set()
    worker.join(LIMIT)
