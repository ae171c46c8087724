"""Datapoints that hang in an actor, or end it: it is killed and replaced, and they are left out at the second time."""

import importlib.util
import itertools
import sys
import threading
from collections import Counter

import pytest

from dataflow import BatchData, DataFromGenerator, MapData, RayMapData, RayRunner, WorkerDied
from dataflow.errors import WorkerTraceback
from dataflow.protocol.state import state_of
from tests.promises.test_items_that_end_workers import BAD, HANGS, STRIKES, N, Planted, expected, found_in, numbers
from tests.support.faults import deadline
from tests.support.waits import LIMIT, wait_until

PLACES = {
    "runner": lambda func, num, **more: RayRunner(MapData(numbers(), func), num, strict=True, **more),
    "batches": lambda func, num, **more: RayRunner(BatchData(MapData(numbers(), func), 4), num, strict=True, **more),
    "map": lambda func, num, **more: RayMapData(numbers(), num, func, strict=True, **more),
}
CASES = list(itertools.product([1, 2], PLACES))
OPTIONS = {"max_failures": len(BAD), "max_restarts": 2, "item_timeout": 1.0, "timeout": LIMIT}


def restarts_left(df):
    return state_of(getattr(df, "_mapped", df)).resource._supervisor.restarts_left


# -- in actors of this process -----------------------------------------------------------------------------------------


@pytest.fixture
def stage(fake):
    fake.counts = Counter()  # of the calls for each number
    yield fake
    fake.gate.set()


def actor_here():
    # Not by a global variable: what a function can reach is looked through at its first call, and that is everything.
    return sys.modules["tests.ray.fake_cluster"].FakeActor.here.actor


def hang():
    actor_here().cluster.gate.wait()


def fall_silent():
    """As with the interpreter's lock held: not even what was made before is sent."""
    actor_here().answers.clear()
    hang()


def die():
    actor_here().end("The actor is dead because its worker process has died", has_died=True)
    hang()


def lose_node():
    actor_here().end("The actor died because its node has died")
    hang()


class Stroke:
    """Calls `strike` for the bad numbers, at most so often for each; squares the others."""

    def __init__(self, strike, bad=BAD, times=100):
        self.strike, self.bad, self.times = strike, bad, times

    def __call__(self, dp):
        counts = actor_here().cluster.counts
        counts[dp[0]] += 1
        if dp[0] in self.bad and counts[dp[0]] <= self.times:
            self.strike()
        return [dp[0] ** 2]


# A hang takes seconds. Others with a runner and with a map are below.
@pytest.mark.parametrize(
    ("strike", "num", "place"),
    [pytest.param(hang, *case, marks=[] if case == (2, "batches") else [pytest.mark.full]) for case in CASES]
    + [pytest.param(die, *case, marks=[pytest.mark.full] * (n % 2)) for n, case in enumerate(CASES)],
)
def test_a_pass_is_exact_without_what_hangs_in_an_actor_or_ends_it(stage, strike, num, place):
    numbers_left, positions = expected(place)
    options = OPTIONS if strike is hang else OPTIONS | {"item_timeout": None}
    with PLACES[place](Stroke(strike), num, **options) as df, deadline(LIMIT):
        assert found_in(df, place) == numbers_left
        assert sorted(failure.position for failure in df.failures) == positions
        assert all("ended its worker twice" in failure.text for failure in df.failures)
        assert all(("item_timeout=1 " in failure.text) == (strike is hang) for failure in df.failures)
        assert all(("in hang" in failure.traceback) == (strike is hang) for failure in df.failures)
        assert restarts_left(df) == 2
    # An actor that has died does not say where: that end is held against none, since another may have been the cause.
    assert all(stage.counts[k] == 2 or (strike is die and stage.counts[k] == 3) for k in BAD)
    assert all(actor.killed or actor.dead for actor in stage.actors)


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[] if place == "map" else [pytest.mark.full]) for place in PLACES]
)
def test_an_actor_that_gives_no_sign_of_life_is_late_though_it_cannot_say_so(stage, place, monkeypatch):
    monkeypatch.setattr("dataflow.ray.pull_channel._MIN_SILENT_SECONDS", 0.1)
    monkeypatch.setattr("dataflow.ray.pull_channel._SILENT_TIMES", 1)
    numbers_left, positions = expected(place, (5,))
    with PLACES[place](Stroke(fall_silent, (5,)), 2, **OPTIONS) as df, deadline(LIMIT):
        assert found_in(df, place) == numbers_left
        assert [failure.position for failure in df.failures] == positions
        assert "gave no sign of life" in df.failures[0].text
        assert restarts_left(df) == 2


@pytest.mark.parametrize("strike", [hang, die])
def test_a_datapoint_that_ends_its_actor_once_is_made_again(stage, strike):
    with PLACES["map"](Stroke(strike, times=1), 2, **OPTIONS) as df, deadline(LIMIT):
        assert found_in(df, "map") == [k * k for k in range(N)] and df.failures == []
        # An actor that has died does not say where. If both datapoints were in one task, the second is tried alone, and
        # the first end is held against it: its restart comes back.
        assert restarts_left(df) == 0 or (strike is die and restarts_left(df) == 1)


def test_a_node_that_is_lost_is_held_against_no_datapoint(stage):
    with (
        PLACES["map"](Stroke(lose_node, (5,), times=3), 1, **OPTIONS | {"max_restarts": 3}) as df,
        deadline(LIMIT),
    ):
        assert found_in(df, "map") == [k * k for k in range(N)] and df.failures == []


def test_a_hang_that_no_restart_covers_names_the_datapoint_and_shows_where(stage):
    with (
        PLACES["map"](Stroke(hang), 1, **OPTIONS | {"max_restarts": 0}) as df,
        pytest.raises(WorkerDied, match=r"making datapoint 5 of pass 0, spent more than item_timeout=1 ") as caught,
        deadline(LIMIT),
    ):
        list(df)
    assert isinstance(caught.value.__cause__, WorkerTraceback) and "in hang" in str(caught.value.__cause__)


def test_without_a_budget_the_datapoint_is_named(stage):
    with (
        PLACES["runner"](Stroke(die), 1, **OPTIONS | {"max_failures": None, "max_restarts": 5}) as df,
        pytest.raises(WorkerDied, match=r"datapoint 5 of pass 0 of RayRunner ended .* twice: each time, it died"),
        deadline(LIMIT),
    ):
        list(df)


def test_what_cannot_be_addressed_cannot_be_continued_without_a_datapoint(stage):
    flow = MapData(DataFromGenerator(lambda: ([k] for k in range(N))), Stroke(hang))
    with (
        RayRunner(flow, 1, strict=True, **OPTIONS | {"max_restarts": 5}) as df,
        pytest.raises(WorkerDied, match=r"datapoint 5 of pass 0 .* twice: .*cannot be left out"),
        deadline(LIMIT),
    ):
        list(df)


def wait_long():
    threading.Event().wait(3 * OPTIONS["item_timeout"])


class SlowReset(MapData):
    def reset_state(self):
        wait_long()
        super().reset_state()


def test_the_start_and_waiting_for_the_consumer_do_not_count(stage, monkeypatch):
    monkeypatch.setattr("dataflow.ray.pull_channel._MIN_SILENT_SECONDS", 0.1)
    monkeypatch.setattr("dataflow.ray.pull_channel._SILENT_TIMES", 1)
    flow = SlowReset(numbers(60), lambda dp: [dp[0], bytes(1 << 18)])
    options = OPTIONS | {"max_restarts": 0, "max_bytes": 1 << 20, "hwm": 2, "worker_init": wait_long}
    with RayRunner(flow, 2, strict=True, **options) as df, deadline(LIMIT):
        for k, dp in enumerate(df):
            assert dp[0] == k
            if k == 20:
                wait_long()


class MuteReset(MapData):
    def reset_state(self):
        actor_here().answers.clear()
        wait_long()
        actor_here().answers.set()
        super().reset_state()


def test_a_reset_in_which_nothing_else_can_run_does_not_count(stage, monkeypatch):
    """As the import of a large library."""
    monkeypatch.setattr("dataflow.ray.pull_channel._MIN_SILENT_SECONDS", 0.1)
    monkeypatch.setattr("dataflow.ray.pull_channel._SILENT_TIMES", 1)
    with RayRunner(MuteReset(numbers(), lambda dp: dp), 1, strict=True, **OPTIONS | {"max_restarts": 0}) as df:
        assert found_in(df, "runner") == list(range(N))


def test_a_hang_in_a_pass_that_was_left_is_held_against_no_other(stage, caplog):
    """The actor still makes a datapoint that nobody wants when it gets tasks of the next pass."""
    with PLACES["map"](Stroke(hang, (5,), times=1), 1, **OPTIONS | {"max_restarts": 1}) as df, deadline(LIMIT):
        left_early = iter(df)
        assert [k for (k,) in itertools.islice(left_early, 5)] == [k * k for k in range(5)]
        wait_until(lambda: stage.counts[5], LIMIT, "nobody made datapoint 5")
        left_early.close()
        for _ in range(2):
            assert found_in(df, "map") == [k * k for k in range(N)]
        assert df.failures == [] and restarts_left(df) == 0
    assert [message for message in caplog.messages if "was making a datapoint, spent" in message]


def test_a_default_runner_takes_no_item_timeout(fake):
    with pytest.raises(ValueError, match="RayRunner: item_timeout=1 needs strict=True"):
        RayRunner(numbers(), 1, item_timeout=1)
    for wrong in (0, -1, "soon"):
        with pytest.raises((TypeError, ValueError), match="item_timeout"):
            RayMapData(numbers(), 1, lambda dp: dp, strict=True, item_timeout=wrong)


# -- in actors of a cluster --------------------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.full  # quick are the actors of this process above
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("name", "place"), list(itertools.product(STRIKES, PLACES)))
def test_on_a_cluster_a_pass_is_exact_without_what_hangs_or_kills(name, place):
    numbers_left, positions = expected(place)
    with PLACES[place](Planted(name, BAD), 2, **OPTIONS) as df, deadline(2 * LIMIT):
        assert found_in(df, place) == numbers_left
        assert sorted(failure.position for failure in df.failures) == positions
        for failure in df.failures:
            assert "ended its worker twice" in failure.text
            assert ("item_timeout=1" in failure.text) == (name in HANGS)
            assert (f"in {name}" in failure.traceback) == (name in {"deadlock", "loop", "deaf"})
        assert restarts_left(df) == 2
