"""Turns: as many workers at a time as there are turns, and nobody waits for one that is slow, stopped or gone."""

import threading

import pytest

from dataflow.channel import turns as module
from dataflow.channel.flow_control import Credit, Window
from dataflow.channel.turns import Turns
from dataflow.channel.worker_counters import WorkerActivity
from tests.support.waits import LIMIT, wait_until

BEGAN = 100.0


@pytest.fixture
def turns():
    made = Turns(2)
    made.begin()
    yield made
    made.close()


def open_turn(turns, credit=None):
    credit = credit or Credit(1, shared=False)
    return turns.open(credit.port(0).quota(Window(1)).counters)


class Waiter(threading.Thread):
    """A worker that waits for its turn."""

    def __init__(self, turns):
        super().__init__(daemon=True)
        self.turn = open_turn(turns)
        self.start()

    def run(self):
        self.turn.wait()

    @property
    def has_turn(self):
        return self.turn.is_held


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


def test_a_worker_waits_until_another_gives_its_turn_back(turns):
    first, second = Waiter(turns), Waiter(turns)
    wait_until(lambda: first.has_turn and second.has_turn, LIMIT, "two turns were not given")
    third = Waiter(turns)
    third.join(0.1)
    assert not third.has_turn
    second.turn.end()
    wait_until(lambda: third.has_turn, LIMIT, "the turn was not passed on")
    assert not second.has_turn and first.has_turn


def test_nobody_begins_before_all_are_started():
    turns = Turns(1)
    worker = Waiter(turns)
    worker.join(0.1)
    assert not worker.has_turn
    turns.begin()
    wait_until(lambda: worker.has_turn, LIMIT, "no turn was given")
    turns.close()


def test_a_worker_that_asks_again_gives_its_own_turn_back_first():
    turns = Turns(1)
    turns.begin()
    turn = open_turn(turns)
    for _ in range(3):  # with one turn, it would wait for itself
        turn.wait()
    assert turn.is_held
    turns.close()


def test_ending_twice_gives_one_turn_back():
    turns = Turns(1)
    turns.begin()
    turn = open_turn(turns)
    turn.wait()
    turn.end()
    turn.end()
    assert Waiter(turns).join(LIMIT) is None
    second = Waiter(turns)
    second.join(0.1)
    assert not second.has_turn
    turns.stop(1)
    turns.close()


def test_a_turn_lasts_half_a_second(turns, clock):
    turn = open_turn(turns)
    assert turn.is_needed(BEGAN)
    turn.wait()
    clock.computed = 0.499
    turn.check(BEGAN + 0.499)
    assert turn.is_held and not turn.is_needed(BEGAN + 0.499)
    assert turn.is_needed(BEGAN + 0.501)
    clock.computed = 0.501
    turn.check(BEGAN + 0.501)  # in the middle of a datapoint
    assert not turn.is_held and turn.is_needed(BEGAN + 0.501)


def test_a_worker_that_sleeps_works_without_turns_for_a_while(turns, clock):
    turn = open_turn(turns)
    turn.wait()
    clock.computed = 0.001
    turn.check(BEGAN + 0.019)  # too early to know
    assert turn.is_held
    turn.check(BEGAN + 0.021)
    assert not turn.is_held
    assert not turn.is_needed(BEGAN + 0.021) and not turn.is_needed(BEGAN + 2.0)
    assert turn.is_needed(BEGAN + 2.1)


def test_a_worker_that_is_ready_and_has_no_core_does_not_sleep(turns, clock):
    turn = open_turn(turns)
    turn.wait()
    clock.computed, clock.delayed = 0.01, 0.06
    turn.check(BEGAN + 0.08)
    assert turn.is_held


def test_waiting_for_the_consumer_is_no_sleep(turns, clock):
    credit = Credit(1, shared=False)
    turn = open_turn(turns, credit)
    turn.wait()
    credit.port(0).quota(Window(1)).counters.enter(WorkerActivity.BLOCKED, BEGAN)
    turn.check(BEGAN + 0.09)
    assert turn.is_held


def test_a_turn_is_lent_only_if_none_is_left_and_is_used_once(turns):
    turns.lend()
    held = [Waiter(turns), Waiter(turns)]
    wait_until(lambda: all(worker.has_turn for worker in held), LIMIT, "two turns were not given")
    third = Waiter(turns)
    third.join(0.1)
    assert not third.has_turn
    turns.lend()
    wait_until(lambda: third.has_turn, LIMIT, "no turn was lent")
    third.turn.end()
    fourth = Waiter(turns)
    fourth.join(0.1)
    assert not fourth.has_turn


def test_a_turn_that_was_lost_with_its_worker_is_replaced():
    turns = Turns(1)
    turns.begin()
    lost, other = open_turn(turns), open_turn(turns)
    lost.wait()
    turns.replace()
    for _ in range(3):  # it is given back
        other.wait()
    assert other.is_held
    turns.close()


def test_all_that_wait_are_woken_up_at_the_end(turns):
    workers = [Waiter(turns) for _ in range(7)]
    turns.stop(7)
    for worker in workers:
        worker.join(LIMIT)
    assert all(worker.has_turn for worker in workers)


def test_stopping_and_closing_again_have_no_effect(turns):
    turns.close()
    turns.stop(3)
    turns.close()
    assert turns.num == 2
