"""Worker info: available to code in a worker, and to no other."""

import threading

from dataflow.system.worker_info import WorkerInfo, entering, worker_info, worker_info_of


def test_outside_there_is_no_worker():
    assert worker_info() is None
    assert worker_info_of(1, 3) == WorkerInfo(1, 3, ((1, 3),))


def test_inside_every_level_is_told_the_outermost_first():
    with entering(worker_info_of(1, 3)):
        assert worker_info() == WorkerInfo(1, 3, ((1, 3),))
        with entering(worker_info_of(0, 2)):
            assert worker_info() == WorkerInfo(0, 2, ((1, 3), (0, 2)))
        assert worker_info().count == 3
    assert worker_info() is None


def test_threads_do_not_see_each_others_place():
    seen = []
    with entering(worker_info_of(0, 1)):
        thread = threading.Thread(target=lambda: seen.append(worker_info()))
        thread.start()
        thread.join()
    assert seen == [None]
