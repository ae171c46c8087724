import pytest

from dataflow.workers import native_threads
from dataflow.workers.native_threads import ThreadLimit, limit_of, limit_threads, limit_threads_again


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


def test_libraries_are_searched_for_again_only_after_others_were_loaded(searches, monkeypatch):
    loaded = 7
    monkeypatch.setattr(native_threads, "_num_loaded", lambda: loaded)
    limit_of(1, exact=False)  # in the parent
    limit_threads(ThreadLimit(1, exact=False))
    limit_threads_again()
    assert searches() == 1
    loaded = 8
    limit_threads_again()
    limit_threads_again()
    assert searches() == 2


def test_where_nobody_counts_libraries_they_are_searched_for_every_time(searches, monkeypatch):
    monkeypatch.setattr(native_threads, "_num_loaded", lambda: None)
    limit_threads(ThreadLimit(1, exact=False))
    limit_threads_again()
    assert searches() == 2


def test_the_count_of_loaded_libraries_grows_with_each(tmp_path):
    before = native_threads._num_loaded()
    if before is None:
        pytest.skip("this system does not count them")
    assert native_threads._num_loaded() == before > 0
