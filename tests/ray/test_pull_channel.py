"""The channel from actors: those that are lost, never start, raise or leave, and clusters that go away."""

import itertools
import os
import sys
import threading
from dataclasses import replace

import pytest

import dataflow
from dataflow import (
    DataFlow,
    DataFlowTerminated,
    MapData,
    RayMapData,
    RayRunner,
    TooManyFailures,
    WorkerDied,
    WorkerError,
)
from dataflow.errors import WorkerTraceback
from dataflow.protocol.state import state_of
from dataflow.ray import cluster as rays
from dataflow.ray.actor import ReplyBuffer
from dataflow.system.worker_errors import LostWorker
from dataflow.transport.messages import Kind
from tests.ray.fake_cluster import Fate
from tests.support.fakes import Forever, Numbers
from tests.support.faults import OneWay, TwoArguments, deadline, raise_unicode_error
from tests.support.flows import chain, listed
from tests.support.products import covering
from tests.support.waits import LIMIT, wait_until

FATES = {
    "killed": {"dies_after": 3},
    "killed at once": {"dies_after": 0},
    "out of reach, and alive": {"silent_after": 3},
    "what it had made was lost": {"loses": 3},
}


def remote(ds, num=1, **more):
    return RayRunner(ds, num, **{"timeout": LIMIT, "hwm": 30, **more})


# -- lost --------------------------------------------------------------------------------------------------------------


def test_an_actor_whose_work_ends_without_a_word_is_lost(fake, monkeypatch):
    """It would give empty replies without end, and at once."""

    def send(replies, message, begun=None):
        if message.kind is not Kind.HELLO:
            raise MemoryError("no room for last words")
        hello(replies, message)

    hello = ReplyBuffer.send
    monkeypatch.setattr(ReplyBuffer, "send", send)
    with deadline(LIMIT), remote(listed(10)) as df, pytest.raises(WorkerDied, match="no room for last words"):
        list(df)


@pytest.mark.parametrize(("fate", "strict"), covering([*FATES], [True, False]))
def test_what_came_before_a_loss_is_handed_out_and_then_it_is_reported(fake, fate, strict):
    fake.fates = [Fate(**FATES[fate])]
    found = []
    with pytest.raises(WorkerDied, match=r"worker 0 of 1 of RayRunner \(an actor.* is lost .* Ray says") as caught:
        found.extend(remote(listed(1000), strict=strict))
    assert found == [[k] for k in range(len(found))] and len(found) < 1000
    assert (caught.value.worker, caught.value.num_workers, caught.value.exitcode) == (0, 1, None)
    assert isinstance(caught.value.__cause__, LostWorker)
    assert fake.actors[0].killed


@pytest.mark.parametrize(("fate", "num"), covering([*FATES], [1, 2, 4]))
def test_a_strict_pass_goes_on_as_if_nothing_had_happened(fake, fate, num):
    fake.fates = [Fate(**FATES[fate]) for _ in range(3)]
    dataflow.seed(6)
    expected = list(chain(1000))
    with remote(chain(1000), num, strict=True, max_restarts=3) as df, deadline(LIMIT):
        assert list(df) == expected


@pytest.mark.parametrize("fate", FATES)
def test_a_whole_pass_that_was_cut_short_goes_on_where_it_was(fake, fate):
    fake.fates = [Fate(**FATES[fate]) for _ in range(3)]
    with remote(Numbers(1000), strict=True, max_restarts=3) as df, deadline(LIMIT):
        assert list(df) == list(df) == [[k] for k in range(1000)]
    assert len(fake.actors) == 4


@pytest.mark.parametrize("fate", FATES)
def test_a_map_does_again_what_was_lost(fake, fate):
    fake.fates = [Fate(**FATES[fate]) for _ in range(3)]
    squares = [[k * k] for k in range(1000)]
    with RayMapData(listed(1000), 2, square, strict=True, max_restarts=3, timeout=LIMIT) as df, deadline(LIMIT):
        assert list(df) == squares


def square(dp):
    dp[0] *= dp[0]  # the worker's own: what is done again must find it as it was
    return dp


@pytest.mark.parametrize("fate", FATES)
def test_in_the_mixture_a_successor_begins_anew_and_no_other_is_disturbed(fake, fate):
    fake.fates = [Fate(**FATES[fate])]
    with remote(Forever(), max_restarts=1) as df, deadline(LIMIT):
        numbers = [k for (k,) in itertools.islice(df, 500)]
    (again,) = [place for place in range(1, 500) if numbers[place] != numbers[place - 1] + 1] or [0]
    assert numbers == [*range(again), *range(500 - again)]


def test_an_actor_out_of_reach_is_killed_before_another_takes_its_place(fake):
    fake.fates = [Fate(silent_after=2)]
    start = fake.start

    def checked(options):
        assert all(actor.killed for actor in fake.actors)
        return start(options)

    fake.start = checked
    with remote(listed(500), strict=True, max_restarts=1) as df:
        assert list(df) == [[k] for k in range(500)]
    assert len(fake.actors) == 2


def test_one_loss_too_many_is_reported(fake):
    fake.fates = [Fate(dies_after=2) for _ in range(5)]
    found = []
    with pytest.raises(WorkerDied), deadline(LIMIT):
        found.extend(remote(listed(5000), 2, strict=True, max_restarts=2))
    assert found == [[k] for k in range(len(found))]
    assert len(fake.actors) == 4


def test_after_a_failure_the_flow_says_what_happened_and_a_reset_begins_anew(fake):
    fake.fates = [Fate(dies_after=1)]
    with remote(Numbers(100)) as df:
        with pytest.raises(WorkerDied):
            list(df)
        with pytest.raises(DataFlowTerminated, match=r"has failed before, with .*WorkerDied"):
            list(df)
        df.reset_state()
        assert list(df) == [[k] for k in range(100)]


def test_a_cluster_that_is_shut_down_under_us_is_reported(fake):
    with remote(Forever()) as df, deadline(LIMIT):
        it = iter(df)
        next(it)
        fake.is_down = True
        with pytest.raises(WorkerDied, match="the cluster was shut down"):
            list(it)
    fake.is_down = False
    for actor in fake.actors:
        fake.kill(actor)


# -- never started -----------------------------------------------------------------------------------------------------


def test_an_actor_for_which_there_is_no_room_is_reported_with_what_it_asks_for(fake):
    fake.fates = [Fate(), Fate(starts=False)]
    options = {"num_cpus": 3, "resources": {"disk": 1}}
    reported = (
        r"worker 1 of 2 of RayRunner has not started within 0\.1 seconds\. "
        r"It requests CPU 3, disk 1; free in the cluster: CPU 0\.5\. Start fewer"
    )
    with pytest.raises(dataflow.TimeoutError, match=reported), deadline(LIMIT):
        list(remote(Endless(), 2, actor_options=options, start_timeout=0.1))
    assert all(actor.killed for actor in fake.actors)


class Endless(Forever):
    def __len__(self):
        return 10**9


def test_others_do_the_work_of_an_actor_that_has_not_started(fake):
    fake.fates = [Fate(), Fate(starts=False)]
    with remote(listed(1000), 2, strict=True) as df, deadline(LIMIT):
        assert list(df) == [[k] for k in range(1000)]


@pytest.mark.parametrize("seconds", [0.0, LIMIT])
def test_an_actor_that_is_starting_is_told_to_stop_and_not_killed(fake, monkeypatch, seconds):
    monkeypatch.setattr(rays, "_START_SECONDS", seconds)
    fake.fates = [Fate(), Fate(starts=False)]
    with remote(listed(10), 2, strict=True) as df:
        assert list(df) == [[k] for k in range(10)]
    started, starting = fake.actors
    assert started.killed and starting.killed == (seconds == 0)
    assert [reference.method for reference in starting.references][-1] == "stop"
    fake.kill(starting)


def test_an_actor_that_was_released_is_killed_no_more(fake):
    with remote(listed(10), strict=True) as df:
        list(df)
        (worker,) = state_of(df).resource._supervisor._pool.workers
    killed = []
    fake.kill = killed.append
    worker.kill()
    worker.begin_kill()
    assert not killed and worker.call("reply") is None


def test_a_successor_that_never_starts_is_reported(fake):
    fake.fates = [Fate(dies_after=1), Fate(starts=False)]
    with pytest.raises(dataflow.TimeoutError, match="worker 0 of 1 of RayRunner has not started"), deadline(LIMIT):
        list(remote(listed(1000), strict=True, max_restarts=1, start_timeout=0.1))


def test_timeout_bounds_the_wait_for_a_datapoint(fake):
    gate = Waiting.gate = threading.Event()
    with remote(Waiting(), timeout=0.1) as df:
        with pytest.raises(dataflow.TimeoutError, match=r"no datapoint from RayRunner for 0\.1 seconds \(worker 0: an"):
            next(iter(df))
        gate.set()
        df.options = replace(df.options, timeout=LIMIT)
        assert next(iter(df)) == [0]


class Waiting(DataFlow):
    gate: threading.Event

    def __iter__(self):
        Waiting.gate.wait(LIMIT)
        yield [0]


# -- exceptions --------------------------------------------------------------------------------------------------------


class Failing(DataFlow):
    def __init__(self, strike):
        self.strike = strike

    def __iter__(self):
        for k in range(7):
            yield [k]
        yield self.strike()

    def __len__(self):
        return 8


def raise_two_arguments():
    raise TwoArguments(7, "/data/x")


def raise_local():
    class Local(Exception):
        def __init__(self):
            super().__init__("only here")
            self.lock = threading.Lock()

    raise Local


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("strike", "error", "match"),
    [
        (raise_two_arguments, TwoArguments, "code 7 at /data/x"),
        (raise_local, WorkerError, "only here"),
        (raise_unicode_error, UnicodeDecodeError, "invalid start byte"),
        (lambda: [0, threading.Lock()], TypeError, "cannot pickle"),
        (lambda: [0, OneWay()], ValueError, "arrived damaged"),
    ],
    ids=["two arguments", "unpicklable", "unicode", "unpicklable datapoint", "unreadable datapoint"],
)
def test_an_exception_comes_after_all_that_was_made_before_it(fake, strike, error, match, strict):
    found = []
    with pytest.raises(error, match=match) as caught, deadline(LIMIT):
        found.extend(remote(Failing(strike), strict=strict))
    assert found == [[k] for k in range(7)]
    if error is TwoArguments:
        assert (caught.value.code, caught.value.path) == (7, "/data/x")
        assert isinstance(caught.value.__cause__, WorkerTraceback)
        assert "raise_two_arguments" in str(caught.value.__cause__)
        assert any("raised in worker 0 of 1 of RayRunner" in note for note in caught.value.__notes__)


def test_sys_exit_is_told_from_a_loss(fake):
    with pytest.raises(WorkerDied, match=r"ended with exit code 3 after 7 datapoints.*sys\.exit") as caught:
        list(remote(Failing(lambda: sys.exit(3))))
    assert caught.value.exitcode == 3 and caught.value.pid == os.getpid()


def test_who_left_by_sys_exit_is_replaced_and_its_tasks_are_done(fake, tmp_path):
    left = tmp_path / "left"
    with remote(MapData(listed(300), Leaving(left)), 2, strict=True, max_restarts=1) as df, deadline(LIMIT):
        assert list(df) == [[k] for k in range(300)]
    assert left.exists()


class Leaving:
    def __init__(self, left):
        self.left = left

    def __call__(self, dp):
        if dp[0] == 77 and not self.left.exists():
            self.left.touch()
            sys.exit(3)
        return dp


def test_failures_that_are_borne_are_reported(fake):
    def odd(dp):
        if dp[0] % 10 == 3:
            raise ValueError("three")
        return dp

    expected = [[k] for k in range(50) if k % 10 != 3]
    with remote(MapData(listed(50), odd), 2, strict=True, max_failures=5) as df:
        assert list(df) == expected
        assert len(df.failures) == 5
    with pytest.raises(TooManyFailures), deadline(LIMIT):
        list(remote(MapData(listed(50), odd), 2, strict=True, max_failures=4))


# -- the end -----------------------------------------------------------------------------------------------------------


def test_killed_actors_leave_nothing_to_wait_for(fake):
    df = remote(Forever(), 2)
    next(iter(df))
    df.close()
    wait_until(lambda: all(actor.killed for actor in fake.actors), LIMIT, "actors live on")
