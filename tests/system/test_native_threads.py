import os
import sys
import threading
import types

import pytest

from dataflow.system import native_threads
from dataflow.system.native_threads import ThreadLimit, limit_for, limit_threads
from tests.support.waits import LIMIT


class FakeController:
    """Stands for the search for thread pools."""

    searches = 0

    def __init__(self):
        type(self).searches += 1
        self.lib_controllers = []


@pytest.fixture
def searches(monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", FakeController)
    monkeypatch.setattr(native_threads, "_here", native_threads._Process())
    monkeypatch.setattr(FakeController, "searches", 0)
    for name in native_threads._VARIABLES:
        monkeypatch.setenv(name, "1")
    return lambda: FakeController.searches


def test_a_forked_worker_limits_the_libraries_that_its_parent_has_found(searches, monkeypatch):
    limit_for("share", 1)  # in the parent
    num_set = []
    library = types.SimpleNamespace(num_threads=8, set_num_threads=num_set.append)
    native_threads._here.pools.append(library)
    for is_forked, num_searches in ((True, 1), (False, 2)):
        monkeypatch.setattr(native_threads, "_is_forked", lambda is_forked=is_forked: is_forked)
        limit_threads(ThreadLimit(3, exact=False))
        assert searches() == num_searches and num_set == [3]


def test_opencv_gets_fewer_threads_where_it_has_more(searches, monkeypatch):
    num_set = []
    cv2 = types.SimpleNamespace(getNumThreads=lambda: 8, setNumThreads=num_set.append)
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setattr(native_threads, "_is_forked", lambda: False)
    limit_threads(ThreadLimit(3, exact=False))
    cv2.getNumThreads = lambda: 2
    limit_threads(ThreadLimit(3, exact=False))
    assert num_set == [3]


def test_no_child_is_forked_while_another_thread_searches(searches, monkeypatch):
    begun, may_end, forked = threading.Event(), threading.Event(), threading.Event()

    class SlowController(FakeController):
        def __init__(self):
            super().__init__()
            begun.set()
            may_end.wait(LIMIT)

    def fork():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        forked.set()

    monkeypatch.setattr("threadpoolctl.ThreadpoolController", SlowController)
    threads = [threading.Thread(target=native_threads.find_pools), threading.Thread(target=fork)]
    threads[0].start()
    assert begun.wait(LIMIT)
    threads[1].start()
    assert not forked.wait(0.3)
    may_end.set()
    assert forked.wait(LIMIT)
    for thread in threads:
        thread.join(LIMIT)
