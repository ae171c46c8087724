"""A pool ends together: workers that end by themselves, that are killed, that are left behind and named."""

import logging
import os

import pytest

from dataflow.system.worker_info import entering, worker_info_of
from dataflow.system.worker_pool import WorkerPool, grace
from tests.support.fakes import FakeWorker


def pool_of(*workers):
    return WorkerPool([lambda worker=worker: worker for worker in workers])


def test_a_worker_that_ends_by_itself_is_not_killed():
    worker = FakeWorker()
    worker.on_join = lambda: setattr(worker, "code", 0)
    pool_of(worker).stop(1)
    assert worker.story == ["join", "release"]


def test_who_does_not_end_is_killed():
    first, second = FakeWorker(0, 2), FakeWorker(1, 2)
    second.on_join = lambda: setattr(second, "code", 0)
    pool_of(first, second).stop(0)
    assert first.story == ["join", "kill", "release"]
    assert second.story == ["join", "release"]


def test_who_cannot_be_killed_is_named_once_and_released(caplog):
    stubborn, other = FakeWorker(0, 2, stubborn=True), FakeWorker(1, 2)
    pool = pool_of(stubborn, other)
    with caplog.at_level(logging.WARNING, "dataflow"):
        pool.stop(0)
        pool.stop(0)
    assert [record.getMessage()[:30] for record in caplog.records] == ["worker 0 of 2 (pid 40000, wait"]
    assert other.story == ["join", "kill", "release"]


def test_stopping_twice_ends_each_once():
    worker = FakeWorker()
    pool = pool_of(worker)
    pool.stop(0)
    pool.stop(0)
    assert worker.story.count("release") == 1


def test_the_sentinels_are_those_of_all_that_have_one_and_are_not_left_out():
    pool = pool_of(*(FakeWorker(k, 4, sentinel=sentinel) for k, sentinel in enumerate([7, None, 0, 9])))
    assert pool.sentinels(but=()) == (7, 0, 9)
    assert pool.sentinels(but={3: "why"}) == (7, 0)


def test_who_was_left_behind_counts_as_ended():
    worker = FakeWorker(stubborn=True)
    pool = pool_of(worker)
    pool.leave_behind(0)
    (stands_for_it,) = pool.workers
    assert pool.ended() == [0] and stands_for_it.kill() and stands_for_it.task() is None
    assert stands_for_it.state() == "pid 40000, killed and left behind"
    pool.stop(0)
    assert worker.story == ["leave behind"]


def test_those_that_have_ended_are_listed():
    workers = [FakeWorker(k, 3) for k in range(3)]
    pool = pool_of(*workers)
    workers[1].code = 0
    workers[2].code = -9
    assert pool.ended() == [1, 2]
    pool.stop(0)


def test_if_one_cannot_be_started_the_others_end():
    first = FakeWorker()

    def fails():
        raise OSError("no more processes")

    with pytest.raises(OSError, match="no more"):
        WorkerPool([lambda: first, fails], lambda: first.story.append("reported"))
    assert first.story[:2] == ["reported", "join"] and first.story[-2:] == ["kill", "release"]


def test_an_interrupt_leaves_nobody_behind():
    workers = [FakeWorker(k, 3) for k in range(3)]

    def interrupted():
        workers[0].on_join = lambda: None
        raise KeyboardInterrupt

    workers[0].on_join = interrupted
    with pytest.raises(KeyboardInterrupt):
        pool_of(*workers).stop(100)
    assert [worker.story[-2:] for worker in workers] == [["kill", "release"]] * 3


def test_a_forked_process_stops_nobody(monkeypatch):
    worker = FakeWorker()
    pool = pool_of(worker)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        pool.stop(0)
    assert worker.story == []
    pool.stop(0)


def test_inner_pools_get_less_time_than_the_worker_that_waits_for_them():
    outer = grace()
    with entering(worker_info_of(0, 1)):
        inner = grace()
        with entering(worker_info_of(0, 1)):
            assert 0 < 2 * grace() <= inner
    assert 2 * inner <= outer
