"""RayRunner and RayMapData over a cluster in this process: what they give, in which order, and how they end."""

import copy
import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataflow
from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FakeData,
    LengthUnknown,
    MapData,
    MultiProcessRunnerZMQ,
    NotAddressable,
    NotPicklable,
    RandomMapData,
    RayMapData,
    RayRunner,
    RepeatedData,
    ResumableData,
    worker_info,
)
from tests.ray.fake_cluster import Fate
from tests.ray.remote import remote, strict
from tests.support.chains import CHAINS, DROPPING
from tests.support.contract import check_node, one_pass
from tests.support.fakes import Draws, Forever, Numbers
from tests.support.faults import deadline
from tests.support.flows import chain, listed
from tests.support.products import covering
from tests.support.waits import LIMIT, wait_until

# -- the mixture -------------------------------------------------------------------------------------------------------


def test_one_worker_gives_the_flow_itself(fake):
    with remote(Numbers(100)) as df:
        assert list(df) == list(df) == [[k] for k in range(100)]


def test_a_loop_goes_on_where_the_last_one_was_left(fake):
    with remote(Numbers(100)) as df:
        assert list(itertools.islice(df, 30)) == [[k] for k in range(30)]
        assert list(df) == [[k % 100] for k in range(30, 130)]
    assert len(fake.actors) == 1


def test_workers_have_the_random_numbers_of_workers_of_this_machine(fake):
    dataflow.seed(5)
    found = {}
    for kind in (RayRunner, MultiProcessRunnerZMQ):
        with kind(Draws(), 2, timeout=LIMIT) as df:
            streams = {0: [], 1: []}
            it = itertools.chain.from_iterable(itertools.repeat(df))
            while min(map(len, streams.values())) < 8:
                worker, number = next(it)
                streams[worker].append(number)
            found[kind] = [numbers[:8] for numbers in streams.values()]
    assert found[RayRunner] == found[MultiProcessRunnerZMQ]


def test_a_pass_without_a_length_never_ends(fake):
    with remote(Forever()) as df:
        assert list(itertools.islice(df, 1000)) == [[k] for k in range(1000)]
        with pytest.raises(LengthUnknown):
            len(df)


def test_a_flow_with_an_empty_pass_has_ended(fake):
    class Empty(DataFlow):
        def __iter__(self):
            return iter(())

    with remote(Empty(), 2) as df:
        assert list(df) == []


def test_workers_know_who_they_are(fake):
    seen = set()
    with remote(MapData(listed(10), lambda dp: [worker_info().index, worker_info().count]), 2) as df, deadline(LIMIT):
        while seen != {(0, 2), (1, 2)}:
            seen.update(map(tuple, df))


def test_what_is_yielded_is_sent_as_it_is_at_that_moment(fake):
    class Reusing(DataFlow):
        def __iter__(self):
            small, large = np.zeros(3), np.zeros(5000)
            dp = [0, small, large]
            for k in range(50):
                dp[0] = k
                small[...] = large[...] = k
                yield dp

        def __len__(self):
            return 50

    with remote(Reusing()) as df:
        for k, (number, small, large) in enumerate(df):
            assert number == k and (small == k).all() and (large == k).all()


def test_without_workers_no_cluster_is_asked_for(monkeypatch):
    with RayRunner(Numbers(10), 0) as df:
        assert list(df) == [[k] for k in range(10)]
    with RayRunner(chain(), 0, strict=True) as df:
        dataflow.seed(1)
        assert list(df) == list(chain())
    dataflow.seed(None)


# -- strict passes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 2, 4])
def test_strict_passes_are_those_of_the_flow_itself(fake, num):
    dataflow.seed(2)
    alone = chain()
    expected = [list(alone) for _ in range(4)]
    with strict(chain(), num) as df:
        assert len(df) == 40
        found = [list(df), list(df)]
        next(iter(df))  # a pass that is broken off is over
        assert [*found, expected[2], list(df)] == expected
        assert df.addressable and df[30:90] == alone[30:90]


def test_without_order_each_comes_once(fake):
    with strict(listed(1000), 3, ordered=False) as df:
        for _ in range(2):
            assert sorted(df) == [[k] for k in range(1000)]


@pytest.mark.parametrize("n", [0, 1, 200])
def test_one_worker_makes_the_passes_of_any_flow(fake, n):
    with strict(Numbers(n)) as df:
        for few in (0, 1, 7, n):
            assert list(df) == [[k] for k in range(n)]
            list(itertools.islice(df, few))
            assert list(df) == [[k] for k in range(n)]


def test_a_pass_that_never_ends_is_broken_off(fake):
    with strict(Forever()) as df, deadline(LIMIT):
        for _ in range(5):
            assert list(itertools.islice(df, 30)) == [[k] for k in range(30)]


def test_an_endless_flow_goes_on_where_the_last_loop_stopped(fake):
    with strict(RepeatedData(listed(30), -1), 2) as df:
        for begin in range(0, 100, 10):
            assert list(itertools.islice(df, 10)) == [[k % 30] for k in range(begin, begin + 10)]


def test_several_workers_need_a_flow_that_can_be_addressed():
    with pytest.raises(NotAddressable, match="Numbers cannot be addressed"):
        strict(BatchData(Numbers(5), 2), 2)


def test_a_node_above_has_the_workers_make_its_indexes(fake):
    dataflow.seed(3)
    with BatchData(strict(MapData(listed(2000), worker_of), 2), 500) as df:
        assert {int(worker) for _ in range(20) for (batch,) in df for worker in batch} == {0, 1}


def worker_of(dp):
    return [worker_info().index]


def test_a_state_is_loaded_whatever_the_runner(fake):
    dataflow.seed(4)
    with ResumableData(MultiProcessRunnerZMQ(chain(), 2, strict=True)) as df:
        expected = list(df)
        assert list(df) != expected
        it = iter(df)
        begun = list(itertools.islice(it, 15))
        state = df.state_dict()
        expected = begun + list(it)
    with ResumableData(strict(chain(), 3)) as df:
        df.load_state_dict(state)
        assert list(df) == expected[15:]


@pytest.mark.parametrize("num", [0, 2])
def test_it_keeps_the_contract_of_all_nodes(fake, num):
    def make(ds):
        return strict(ds, num if ds.addressable else min(num, 1))

    check_node(make, exclusive=num > 0, kinds=(list,))


@settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.one_of(CHAINS, DROPPING), st.integers(1, 4))
def test_random_chains_are_the_same(fake, df, num):
    dataflow.seed(9)
    alone = copy.deepcopy(df)
    expected = [one_pass(alone) for _ in range(3)]
    with strict(df, num) as runner, deadline(LIMIT):
        assert one_pass(runner) == expected[0]
        next(iter(runner), None)
        assert one_pass(runner) == expected[2]


@settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(CHAINS, st.integers(1, 4), st.lists(st.sampled_from(["dies_after", "silent_after", "loses"]), max_size=3))
def test_so_they_are_if_actors_are_lost(fake, df, num, faults):
    fake.fates = [Fate(**{fault: 1 + k % 2}) for k, fault in enumerate(faults)]
    fake.actors.clear()
    dataflow.seed(9)
    alone = copy.deepcopy(df)
    expected = [one_pass(alone) for _ in range(2)]
    with strict(df, num, max_restarts=3) as runner, deadline(LIMIT):
        assert [one_pass(runner) for _ in range(2)] == expected


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [False, True])
def test_large_arrays_are_views_of_the_store_or_copies(fake, copied):
    dataflow.seed(1)
    expected = list(FakeData([(100, 100), (3,)], 20, dtype="float32"))
    with strict(FakeData([(100, 100), (3,)], 20, dtype="float32"), 2, copy=copied) as df:
        found = list(df)
    for (large, small), (large_too, small_too) in zip(found, expected, strict=True):
        assert (large == large_too).all() and (small == small_too).all()
        assert large.flags.writeable == copied and small.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(60_000).reshape(200, 300)[::2, ::3],
        np.asfortranarray(np.arange(60_000).reshape(200, 300)),
        np.arange(20_000, dtype=">i4"),
        np.array([np.datetime64("2020-01-01", "s")] * 5000),
        np.zeros(3000, [("a", "i4"), ("b", "f8")]),
        np.ma.masked_greater(np.arange(10_000.0), 5),
        np.zeros((0, 5)),
        np.array(7.5),
        np.array([{"any": "thing"}] * 5, dtype=object),
    ],
    ids=["strided", "fortran", "big-endian", "datetime", "structured", "masked", "empty", "0-d", "objects"],
)
def test_every_kind_of_array_arrives_as_it_was(fake, array):
    with remote(DataFromList([[array, [array, {"deep": array}]]], shuffle=False)) as df:
        ((one, (two, deep)),) = list(df)
    assert two is deep["deep"]
    for found in (one, two):
        assert type(found) is type(array) and found.dtype == array.dtype and found.shape == array.shape
        assert found.flags.f_contiguous == array.flags.f_contiguous or not array.flags.f_contiguous
        assert found.tolist() == array.tolist()


def test_arrays_are_the_same_if_actors_are_lost(fake):
    fake.fates = [Fate(dies_after=2), Fate(loses=2), Fate(silent_after=1), Fate(dies_after=3)]
    dataflow.seed(1)
    expected = [array.tolist() for (array,) in FakeData([(50, 50)], 100)]
    with strict(FakeData([(50, 50)], 100), 2, max_restarts=4, hwm=8) as df:
        found = [array for (array,) in df]
    assert len(fake.actors) > 2
    assert [array.tolist() for array in found] == expected


def test_a_loop_that_keeps_everything_does_not_wait(fake):
    with remote(MapData(Numbers(100), lambda dp: [np.full(10_000, dp[0])])) as df:
        found = list(df)
    assert [array[-1] for (array,) in found] == list(range(100))


def test_batches_are_sent_from_where_they_were_stacked(fake):
    dataflow.seed(1)
    expected = list(BatchData(FakeData([(50, 50)], 200), 50))
    with strict(BatchData(FakeData([(50, 50)], 200), 50), 2) as df:
        for (batch,), (batch_too,) in zip(df, expected, strict=True):
            assert (batch == batch_too).all()


# -- ends --------------------------------------------------------------------------------------------------------------


def test_after_close_every_actor_is_killed(fake):
    df = strict(listed(100), 3)
    next(iter(df))
    df.close()
    assert [actor.killed for actor in fake.actors] == [True] * 3


def test_workers_end_by_themselves_if_they_can(fake):
    closed = Kept.closed = []
    with remote(Kept(10)) as df:
        list(df)
    assert any(name.startswith("dataflow-fake-0-work") for name in closed)


class Kept(Numbers):
    closed: list

    def close(self):
        Kept.closed.append(threading.current_thread().name)


def test_a_runner_that_nobody_holds_ends_its_actors(fake):
    df = remote(Forever(), 2)
    it = iter(df)
    next(it)
    gone = weakref.ref(df)
    del df, it
    wait_until(lambda: gc.collect() is not None and gone() is None, LIMIT, "the runner is never collected")
    wait_until(lambda: all(actor.killed for actor in fake.actors), LIMIT, "its actors live on")


def test_reset_starts_new_actors(fake):
    with remote(Numbers(10)) as df:
        list(df)
        df.reset_state()
        assert list(df) == [[k] for k in range(10)]
        assert [actor.killed for actor in fake.actors] == [True, False]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "match"),
    [
        ({"max_bytes": 1000}, ValueError, "max_bytes must be an integer ≥ 1048576, got 1000"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes must be an integer"),
        ({"start_timeout": 0}, ValueError, "start_timeout"),
        ({"hwm": -1}, ValueError, "hwm"),
        ({"max_restarts": -1}, ValueError, "max_restarts"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"actor_options": {"max_restarts": 1, "num_cpus": 2}}, ValueError, "cannot hold max_restarts"),
    ],
)
def test_wrong_arguments_are_refused_at_once(more, error, match):
    with pytest.raises(error, match=match):
        RayRunner(Numbers(3), 1, **more)


def test_a_flow_that_cannot_be_sent_is_named(fake):
    flow = Numbers(3)
    flow.handle = threading.Lock()
    with pytest.raises(NotPicklable, match=r"Numbers.handle \(a lock\) cannot be sent") as caught:
        list(remote(MapData(flow, lambda dp: dp)))
    assert "fork" not in str(caught.value)


# -- statistics --------------------------------------------------------------------------------------------------------


def test_actors_send_their_counters_with_their_replies(fake):
    with strict(MapData(DataFromList([[k] for k in range(200)]), lambda dp: dp), 2) as df:
        list(df)
        wait_until(lambda: sum(w.datapoints for w in df.statistics().runners[0].workers) >= 200, LIMIT, "all counted")
        (runner,) = df.statistics().runners
    assert runner.backend == "ray"
    assert all(worker.busy_seconds > 0 and worker.pid for worker in runner.workers if worker.datapoints)
    after = df.statistics().runners[0]
    assert [worker.datapoints for worker in after.workers] == [worker.datapoints for worker in runner.workers]


def test_the_shares_of_nodes_come_from_actors(fake):
    def slow(dp):
        sum(range(20_000))
        return dp

    with strict(MapData(MapData(Forever(), lambda dp: dp), slow)) as df:
        steps = iter(df)
        wait_until(lambda: next(steps) and (df.statistics().nodes[1].share or 0) > 0.5, LIMIT, "the share of slow")


def test_a_replaced_actor_goes_on_counting(fake):
    fake.fates = [Fate(dies_after=3)]
    with strict(Numbers(400), hwm=20, max_restarts=1) as df:
        assert len(list(df)) == 400
        wait_until(lambda: df.statistics().runners[0].workers[0].datapoints >= 400, LIMIT, "both are counted")
        assert df.statistics().runners[0].restarts == 1


# -- maps --------------------------------------------------------------------------------------------------------------


def odd_squares(dp):
    return [dp[0] ** 2] if dp[0] % 2 else None


def drawn(dp, rng):
    return [dp[0], int(rng.integers(1 << 40))]


def mapped(ds, num, func, **more):
    return RayMapData(ds, num, func, **{"strict": True, "timeout": LIMIT, **more})


@pytest.mark.parametrize(("num", "buffer_size"), covering([1, 3], [1, 7, 200]))
def test_strict_gives_what_a_map_gives(fake, num, buffer_size):
    expected = list(MapData(listed(300), odd_squares))
    with mapped(listed(300), num, odd_squares, buffer_size=buffer_size) as df:
        assert list(df) == list(df) == expected
        next(iter(df))  # a pass that is broken off is over
        assert list(df) == expected


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 60), st.integers(1, 4), st.integers(1, 20), st.booleans())
def test_any_source_any_number_any_buffer(fake, n, num, buffer_size, ordered):
    source = DataFromGenerator(lambda: ([k] for k in range(n)))
    with mapped(source, num, odd_squares, buffer_size=buffer_size, ordered=ordered) as df, deadline(LIMIT):
        for _ in range(2):
            found = list(df)
            assert (found if ordered else sorted(found)) == [[k * k] for k in range(1, n, 2)]


@pytest.mark.parametrize("num", [0, 1, 3])
def test_random_numbers_do_not_depend_on_who_draws_them(fake, num):
    dataflow.seed(7)
    alone = RandomMapData(listed(100), drawn)
    expected = [list(alone), list(alone)]
    with mapped(listed(100), num, drawn, with_rng=True) as df:
        assert [list(df), list(df)] == expected


def test_without_strict_passes_mix_and_never_end(fake):
    with mapped(Numbers(10), 2, lambda dp: dp, strict=False) as df:
        assert len(df) == 10 and df._df_endless
        seen, iterator = set(), iter(df)
        with deadline(LIMIT):
            while len(seen) < 10:
                seen.update(k for (k,) in itertools.islice(iterator, 10))
    with mapped(DataFromGenerator(lambda: ([k] for k in range(4))), 2, lambda dp: dp, strict=False) as df:
        assert len(list(itertools.islice(df, 100))) == 100


def test_the_source_is_read_here_and_no_further_than_the_buffer(fake):
    read = [0]

    class Counted(DataFlow):
        def __iter__(self):
            assert worker_info() is None
            for k in range(500):
                read[0] += 1
                yield [k]

    with mapped(Counted(), 2, lambda dp: dp, buffer_size=20) as df:
        for given_out, _ in enumerate(df, 1):
            assert read[0] <= given_out + 20


processed = []  # indexes of datapoints that `last` has got: the actors of the fake cluster are in this process


def last(dp):
    processed.append(dp[0])
    dp[1] += 1  # a copy of its own
    return [dp[0], int(dp[1][-1])]


def test_bytes_under_way_to_the_workers_are_bounded(fake):
    processed.clear()
    unprocessed = []

    class Large(DataFlow):
        def __iter__(self):
            for k in range(100):
                unprocessed.append(k + 1 - len(processed))
                yield [k, np.full(100_000, k, np.uint8)]

    with mapped(Large(), 2, last, max_bytes=1 << 20) as df:
        assert [value for _, value in df] == list(range(1, 101))
    assert sorted(processed) == list(range(100))
    assert 2 < max(unprocessed) <= 8  # 700 kB of tasks, and one datapoint that waits for room


def test_what_is_read_is_sent_as_it_is_at_that_moment(fake):
    class Reusing(DataFlow):
        def __iter__(self):
            large = np.zeros(5000)
            for k in range(50):
                large[...] = k
                yield [k, large]

    with mapped(Reusing(), 2, lambda dp: [dp[0], float(dp[1].sum())]) as df:
        assert list(df) == [[k, 5000.0 * k] for k in range(50)]


def test_every_worker_takes_part(fake):
    seen = set()
    with mapped(listed(100_000), 2, lambda dp: [worker_info().index]) as df, deadline(LIMIT):
        for (k,) in df:
            seen.add(k)
            if seen == {0, 1}:
                break


def test_an_exception_comes_in_its_place(fake):
    def failing(dp):
        if dp[0] == 50:
            raise KeyError("fifty")
        return dp

    found = []
    with pytest.raises(KeyError, match="fifty"), deadline(LIMIT):
        found.extend(mapped(listed(100), 3, failing))
    assert found == [[k] for k in range(50)]


def test_an_exception_of_the_source_comes_after_all_before_it(fake):
    class Failing(DataFlow):
        def __iter__(self):
            yield from ([k] for k in range(30))
            raise OSError("the disk")

    found = []
    with pytest.raises(OSError, match="the disk"), deadline(LIMIT):
        found.extend(mapped(Failing(), 2, lambda dp: dp))
    assert found == [[k] for k in range(30)]


@pytest.mark.parametrize("num", [0, 2])
def test_a_map_keeps_the_contract_of_all_nodes(fake, num):
    check_node(lambda ds: mapped(ds, num, list), exclusive=num > 0, kinds=(list,))


def test_what_is_missing_is_named():
    with pytest.raises(TypeError, match="RayMapData expects a function, got NoneType: map_func"):
        RayMapData(listed(3), 2)
