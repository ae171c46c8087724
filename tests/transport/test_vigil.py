"""Waiting awake: only for a moment, and only after short waits."""

import pytest

from dataflow.transport import vigil
from dataflow.transport.vigil import Vigil


class Clock:
    """Time that passes only when somebody sleeps, or lets others run."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.turns = 0
        monkeypatch.setattr(vigil.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(vigil, "let_others_run", self.let_others_run)

    def let_others_run(self):
        self.turns += 1
        self.now += 10e-6

    def sleep(self, seconds):
        self.now += seconds
        return True


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def never():
    return False


def test_the_first_wait_and_one_after_a_long_one_are_slept_through(clock):
    waiting = Vigil()
    for _ in range(3):
        assert waiting.wait(never, lambda: clock.sleep(0.01))
    assert clock.turns == 0


def test_after_a_short_wait_one_stays_awake_and_sees_what_comes(clock):
    waiting = Vigil()
    waiting.wait(never, lambda: clock.sleep(50e-6))
    slept = []
    assert waiting.wait(lambda: clock.turns == 3, lambda: slept.append("slept"))
    assert clock.turns == 3 and not slept


def test_one_who_stays_awake_falls_asleep_after_a_moment(clock):
    waiting = Vigil()
    waiting.wait(never, lambda: clock.sleep(50e-6))
    began = clock.now
    assert waiting.wait(never, lambda: clock.sleep(1.0))
    assert clock.now - 1.0 - began == pytest.approx(vigil._AWAKE, abs=11e-6)
    turns = clock.turns
    waiting.wait(never, lambda: clock.sleep(1.0))  # that was long: this one is slept through
    assert clock.turns == turns


def test_what_sleep_answers_is_the_answer(clock):
    assert not Vigil().wait(never, never)
