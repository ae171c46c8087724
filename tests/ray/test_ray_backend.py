"""The backend of actors: how far they run ahead, how large a reply is, and what they are started with."""

import itertools
import queue
from typing import ClassVar

import numpy as np
import pytest

from dataflow import DataFlow, MapData
from dataflow.ray.ray_backend import RayBackend
from dataflow.runners.options import WorkerOptions
from dataflow.system.native_threads import ThreadLimit
from tests.ray.remote import remote, strict
from tests.support.fakes import Numbers
from tests.support.flows import listed
from tests.support.products import covering
from tests.support.waits import LIMIT, wait_until

# -- bounds ------------------------------------------------------------------------------------------------------------


class Counted(DataFlow):
    """Counts what it makes, and its copies: by instance, for the worker of an earlier test may still be at work."""

    counts: ClassVar[dict[int, int]] = {}

    def __init__(self):
        self.number = len(Counted.counts)
        Counted.counts[self.number] = 0

    @property
    def made(self):
        return Counted.counts[self.number]

    def __iter__(self):
        while True:
            Counted.counts[self.number] += 1
            yield [self.made]


@pytest.mark.parametrize("hwm", [1, 15, 50])
def test_two_replies_are_asked_for_and_the_worker_runs_ahead_of_them(fake, hwm):
    counted = Counted()
    with remote(counted, hwm=hwm) as df:
        for _ in itertools.islice(df, 200):
            pass
        wait_until(lambda: counted.made >= 200 + hwm, LIMIT, "the worker does not run ahead")
    assert fake.max_pending == 2


@pytest.mark.parametrize("hwm", [0, 1, 5, 50])
def test_hwm_bounds_how_far_an_actor_runs_ahead(fake, hwm):
    counted = Counted()
    with remote(counted, hwm=hwm) as df:
        for given, _ in enumerate(itertools.islice(df, 300), 1):
            assert counted.made <= given + 4 * hwm + 6


@pytest.mark.parametrize(("num", "hwm"), covering([1, 2], [1, 5, 50]))
def test_hwm_holds_in_strict_runners_too(fake, hwm, num):
    made = Large.made = []
    with strict(MapData(listed(400), Large()), num, hwm=hwm) as df:
        for given, (k, _) in enumerate(df, 1):
            assert k == given - 1
            assert len(made) <= given + num * (2 * hwm + 2)


def test_a_reply_is_bounded_in_bytes(fake):
    counted = Counted()

    class Large(DataFlow):
        def __iter__(self):
            for (_,) in counted:
                yield [np.zeros(100_000, np.uint8)]

    with remote(Large(), max_bytes=1 << 20) as df:
        for given, _ in enumerate(itertools.islice(df, 50), 1):
            # Three replies are requested, and one is being handed out; each has 350 kB and its last datapoint.
            assert counted.made <= given + 4 * 4 + 4 + 1


def test_a_strict_runner_asks_for_less_where_datapoints_are_large(fake):
    made = Large.made = []
    with strict(MapData(listed(200), Large()), 2, max_bytes=1_200_000) as df:
        it = iter(df)
        for _ in range(50):
            next(it)
        for given, (k, _) in enumerate(it, 51):
            assert k == given - 1
            assert len(made) <= given + 2 * (2 * 2) + 2


class Large:
    made: list

    def __call__(self, dp):
        Large.made.append(dp[0])
        return [dp[0], np.zeros(100_000, np.uint8)]


def test_a_slow_flow_does_not_wait_for_its_reply_to_be_full(fake):
    gate = Gated.gate = queue.SimpleQueue()
    for _ in range(3):
        gate.put("one more")
    with remote(Gated()) as df:
        it = iter(df)
        assert [next(it) for _ in range(3)] == [[0], [1], [2]]  # the fourth is never made
        gate.put("open")


class Gated(DataFlow):
    gate: queue.SimpleQueue  # has no attributes: the flow of a fake actor is the runner's own, and must not change

    def __iter__(self):
        for k in itertools.count():
            if Gated.gate.get(timeout=LIMIT) == "open":
                Gated.gate.put("open")
            yield [k]


# -- options -----------------------------------------------------------------------------------------------------------


def test_actors_get_the_options(fake):
    with remote(Numbers(3), actor_options={"num_gpus": 1, "scheduling_strategy": "SPREAD"}) as df:
        list(df)
    assert fake.options == [{"num_cpus": 1, "num_gpus": 1, "scheduling_strategy": "SPREAD"}]


@pytest.mark.parametrize(("num_cpus", "threads"), [(3, 3), (0.5, 1), (0, 1), (None, 1)])
def test_an_actor_may_use_as_many_native_threads_as_it_has_cores_reserved(num_cpus, threads):
    backend = RayBackend("RayRunner", False, {"num_cpus": num_cpus}, None, 1.0)
    shared, given, none = (
        backend.thread_limit(WorkerOptions(owner="RayRunner", num_workers=1, thread_limit=limit))
        for limit in ("share", 2, None)
    )
    assert shared == ThreadLimit(threads, exact=False)
    assert given == ThreadLimit(2, exact=True) and none is None
