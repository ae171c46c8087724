"""Jobserver: as many workers at a time as there are tokens, and nobody waits for one that is slow, stopped or gone."""

import os
import threading
from array import array

import pytest

from dataflow.transport import turns as module
from dataflow.transport.flow_control import Credit, Window
from dataflow.transport.turns import Jobserver
from dataflow.transport.worker_counters import WorkerActivity
from tests.support.waits import LIMIT, wait_until

BEGAN = 100.0


@pytest.fixture
def jobserver():
    made = Jobserver(2)
    made.begin()
    yield made
    made.close()


def open_token(jobserver, credit=None):
    credit = credit or Credit(1, shared=False)
    return jobserver.open(credit.port(0).quota(Window(1)).counters, memoryview(array("Q", [0])))


class Waiter(threading.Thread):
    """A worker that waits for its token."""

    def __init__(self, jobserver):
        super().__init__(daemon=True)
        self.token = open_token(jobserver)
        self.start()

    def run(self):
        self.token.wait()

    @property
    def has_token(self):
        return self.token.is_held


@pytest.fixture
def clock(monkeypatch):
    """What a worker has done since `BEGAN`: seconds on a core, and ready without one."""

    class Clock:
        computed = delayed = 0.0

        def time(self):
            return self.computed

        def times(self, thread):
            return self.computed, self.delayed

    found = Clock()
    monkeypatch.setattr(module.time, "process_time", found.time)
    monkeypatch.setattr(module, "processor_times", found.times)
    monkeypatch.setattr(module.time, "perf_counter", lambda: BEGAN)
    return found


def test_a_worker_waits_until_another_gives_its_turn_back(jobserver):
    first, second = Waiter(jobserver), Waiter(jobserver)
    wait_until(lambda: first.has_token and second.has_token, LIMIT, "two tokens were not given")
    third = Waiter(jobserver)
    third.join(0.1)
    assert not third.has_token
    second.token.end()
    wait_until(lambda: third.has_token, LIMIT, "the token was not passed on")
    assert not second.has_token and first.has_token


def test_nobody_begins_before_all_are_started():
    jobserver = Jobserver(1)
    worker = Waiter(jobserver)
    worker.join(0.1)
    assert not worker.has_token
    jobserver.begin()
    wait_until(lambda: worker.has_token, LIMIT, "no token was given")
    jobserver.close()


def test_a_worker_that_asks_again_gives_its_own_turn_back_first():
    jobserver = Jobserver(1)
    jobserver.begin()
    token = open_token(jobserver)
    for _ in range(3):  # with one token, it would wait for itself
        token.wait()
    assert token.is_held
    jobserver.close()


def test_ending_twice_gives_one_turn_back():
    jobserver = Jobserver(1)
    jobserver.begin()
    token = open_token(jobserver)
    token.wait()
    token.end()
    token.end()
    assert Waiter(jobserver).join(LIMIT) is None
    second = Waiter(jobserver)
    second.join(0.1)
    assert not second.has_token
    jobserver.stop(1)
    jobserver.close()


def test_a_turn_lasts_half_a_second(jobserver, clock):
    token = open_token(jobserver)
    assert token.is_needed(BEGAN)
    token.wait()
    clock.computed = 0.499
    token.check(BEGAN + 0.499)
    assert token.is_held and not token.is_needed(BEGAN + 0.499)
    assert token.is_needed(BEGAN + 0.501)
    clock.computed = 0.501
    token.check(BEGAN + 0.501)  # in the middle of a datapoint
    assert not token.is_held and token.is_needed(BEGAN + 0.501)


def test_a_worker_that_sleeps_works_without_turns_for_a_while(jobserver, clock):
    token = open_token(jobserver)
    token.wait()
    clock.computed = 0.001
    token.check(BEGAN + 0.019)  # too early to know
    assert token.is_held
    token.check(BEGAN + 0.021)
    assert not token.is_held
    assert not token.is_needed(BEGAN + 0.021) and not token.is_needed(BEGAN + 2.0)
    assert token.is_needed(BEGAN + 2.1)


def test_a_worker_that_is_ready_and_has_no_core_does_not_sleep(jobserver, clock):
    token = open_token(jobserver)
    token.wait()
    clock.computed, clock.delayed = 0.01, 0.06
    token.check(BEGAN + 0.08)
    assert token.is_held


def test_waiting_for_the_consumer_is_no_sleep(jobserver, clock):
    credit = Credit(1, shared=False)
    token = open_token(jobserver, credit)
    token.wait()
    credit.port(0).quota(Window(1)).counters.enter(WorkerActivity.BLOCKED, BEGAN)
    token.check(BEGAN + 0.09)
    assert token.is_held


def test_a_turn_is_lent_only_if_none_is_left_and_is_used_once(jobserver):
    jobserver.lend()
    held = [Waiter(jobserver), Waiter(jobserver)]
    wait_until(lambda: all(worker.has_token for worker in held), LIMIT, "two tokens were not given")
    third = Waiter(jobserver)
    third.join(0.1)
    assert not third.has_token
    jobserver.lend()
    wait_until(lambda: third.has_token, LIMIT, "no token was lent")
    third.token.end()
    fourth = Waiter(jobserver)
    fourth.join(0.1)
    assert not fourth.has_token


def test_a_turn_that_was_lost_with_its_worker_is_replaced():
    jobserver = Jobserver(1)
    credit = Credit(2, shared=False, jobserver=jobserver)
    lost, other = (credit.port(k).quota(Window(1)).token for k in range(2))
    credit.started()
    lost.wait()
    credit.died(0)
    jobserver.replace()
    for _ in range(3):  # it is given back
        other.wait()
    assert other.is_held
    credit.close()


def test_a_worker_that_dies_without_a_turn_leaves_no_more_of_them():
    jobserver = Jobserver(1)
    credit = Credit(1, shared=False, jobserver=jobserver)
    credit.started()
    for is_lent in (False, True):
        token = credit.port(0).quota(Window(1)).token
        token.wait()
        token.end()
        if is_lent:  # once
            held = open_token(jobserver)
            held.wait()
            jobserver.lend()
            token.wait()
            held.end()
        credit.died(0)
        jobserver.replace()
    assert os.read(jobserver.descriptors()[0].fd, 10) == b"o"
    credit.close()


def test_all_that_wait_are_woken_up_at_the_end(jobserver):
    workers = [Waiter(jobserver) for _ in range(7)]
    jobserver.stop(7)
    for worker in workers:
        worker.join(LIMIT)
    assert all(worker.has_token for worker in workers)


def test_stopping_and_closing_again_have_no_effect(jobserver):
    jobserver.close()
    jobserver.stop(3)
    jobserver.close()
    assert jobserver.num == 2
