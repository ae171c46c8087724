"""What the parallel maps promise: `MapData`'s datapoints where strict, tensorpack's mixture where not, and no more."""

import asyncio
import copy
import itertools
import logging
import multiprocessing
import pickle
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataflow
from dataflow import (
    DataFlow,
    DataFlowTerminated,
    DataFromGenerator,
    DataFromList,
    Dropped,
    MapData,
    MultiProcessMapData,
    MultiProcessMapDataZMQ,
    MultiThreadMapData,
    NotAddressable,
    NotReentrant,
    RandomMapData,
    RepeatedData,
    worker_info,
)
from tests.support.contract import check_node, listed
from tests.support.fakes import Numbers, each_method
from tests.support.faults import deadline
from tests.support.products import covering, only
from tests.support.threads import loop_ended_by_close
from tests.support.waits import LIMIT, wait_until

pytestmark = pytest.mark.usefixtures("unseeded")

MAPS = {"thread": MultiThreadMapData, "process": MultiProcessMapData}
METHODS = ("fork", "forkserver", "spawn")


def parallel_map(kind, ds, num, func, **more):
    """A map of any kind. The timeout is there so that no test can hang."""
    more.setdefault("timeout", LIMIT)
    return MAPS[kind](ds, num, func, **more)


@pytest.fixture(params=MAPS)
def kind(request):
    return request.param


def double(dp):
    return [2 * dp[0]]


def same(dp):
    return dp


def below_five(dp):
    return dp if dp[0] < 5 else None


class Lengthless(DataFlow):
    """[0], [1], … without a length; says how many were read."""

    def __init__(self, n):
        self.n = n
        self.read = 0

    def __iter__(self):
        for k in range(self.n):
            self.read += 1
            yield [k]


# -- strict ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "n"), covering([*MAPS], [0, 1, 7, 1000]))
def test_a_strict_pass_is_that_of_map_data_with_or_without_a_length(kind, n):
    for source in (Lengthless(n), Numbers(n)):
        with parallel_map(kind, source, 2, double, strict=True) as df:
            for _ in range(3):
                assert list(df) == [[2 * k] for k in range(n)]


def test_every_pass_of_a_shuffled_list_is_that_of_map_data(kind):
    dataflow.seed(3)
    expected = [list(df) for df in [MapData(DataFromList([[k] for k in range(30)]), double)] for _ in range(3)]
    df = MapData(DataFromList([[k] for k in range(30)]), double)
    expected = [list(df) for _ in range(3)]
    assert expected[0] != expected[1]
    with parallel_map(kind, DataFromList([[k] for k in range(30)]), 2, double, strict=True) as df:
        assert [list(df) for _ in range(3)] == expected


def test_a_pass_that_is_broken_off_leaves_nothing_to_the_next(kind):
    with parallel_map(kind, Numbers(100), 2, double, strict=True, buffer_size=20) as df:
        for taken in (1, 10, 99):
            assert list(itertools.islice(df, taken)) == [[2 * k] for k in range(taken)]
            assert list(df) == [[2 * k] for k in range(100)]


def test_what_the_function_drops_is_missing_and_nothing_else(kind):
    with parallel_map(kind, Numbers(50), 2, lambda dp: None if dp[0] % 3 else dp, strict=True) as df:
        assert list(df) == [[k] for k in range(0, 50, 3)]
    with parallel_map(kind, Numbers(50), 2, lambda dp: None, strict=True, buffer_size=5) as df:
        assert list(df) == list(df) == []


def slow_at_first(dp):
    if dp[0] % 10 == 0:
        time.sleep(0.02)
    return dp


def test_a_slow_datapoint_does_not_change_the_order(kind):
    with parallel_map(kind, Numbers(40), 3, slow_at_first, strict=True) as df:
        assert list(df) == [[k] for k in range(40)]


def test_without_order_everything_comes_once_and_what_is_done_first_comes_first(kind):
    go_on = event_for(kind)

    def func(dp):
        if dp[0] == 0:
            go_on.wait(LIMIT)
        return dp

    with parallel_map(kind, Numbers(40), 2, func, strict=True, ordered=False) as df:
        iterator = iter(df)
        found = [k for (k,) in itertools.islice(iterator, 20)]  # while the first is not done
        go_on.set()
        found += [k for (k,) in iterator]
    assert sorted(found) == list(range(40))
    assert 0 not in found[:20]


def event_for(kind):
    """One that the workers of a map and its consumer share."""
    return threading.Event() if kind == "thread" else multiprocessing.Event()


def test_work_is_taken_and_not_dealt(kind):
    done = multiprocessing.RawArray("q", 2)  # by each worker

    def func(dp):
        here = worker_info().index
        if dp[0] == 0:
            wait_until(
                lambda: sum(done) >= 40, LIMIT, "the other has not taken the rest; dealt, it would have had half"
            )
        done[here] += 1
        return [here]

    with parallel_map(kind, Numbers(50), 2, func, strict=True) as df:
        found = [k for (k,) in df]
    assert found.count(found[0]) <= 10  # the worker that had the slow one


@pytest.mark.parametrize(("kind", "buffer_size", "strict"), covering([*MAPS], [1, 2, 7], [True, False]))
def test_no_more_is_read_ahead_than_the_buffer_holds(kind, buffer_size, strict):
    source = Lengthless(100)
    with parallel_map(kind, source, 2, double, buffer_size=buffer_size, strict=strict) as df:
        for given, _ in enumerate(df, 1):
            assert source.read <= given + buffer_size
            if given == 60:
                break


def test_a_slow_datapoint_makes_the_others_wait_and_the_buffer_does_not_grow(kind):
    source = Lengthless(200)
    go_on, done = event_for(kind), multiprocessing.RawArray("q", 2)

    def func(dp):
        if dp[0] == 0:
            go_on.wait(LIMIT)
        else:
            done[worker_info().index] += 1
        return dp

    def let_go():
        wait_until(lambda: sum(done) == 9, LIMIT, "the others were not done")
        go_on.set()

    thread = threading.Thread(target=let_go)
    thread.start()
    with parallel_map(kind, source, 2, func, buffer_size=10, strict=True) as df:
        assert next(iter(df)) == [0]
        assert source.read <= 11
    thread.join()


def test_a_reset_reads_nothing(kind):
    source = Lengthless(100)
    with parallel_map(kind, source, 2, double, strict=True) as df:
        df.reset_state()
        df.reset_state()
        assert source.read == 0


# -- strict: addressing ------------------------------------------------------------------------------------------------


def test_a_strict_map_is_addressed_in_the_calling_process(kind):
    dataflow.seed(1)
    plain = MapData(DataFromList([[k] for k in range(9)]), double)
    with parallel_map(kind, DataFromList([[k] for k in range(9)]), 2, double, strict=True) as df:
        assert df.addressable
        assert df[:30] == plain[:30]
        assert list(df) == df[:9]
        assert not parallel_map(kind, Lengthless(3), 2, double, strict=True).addressable
    with pytest.raises(Dropped):
        parallel_map(kind, DataFromList([[0]]), 1, lambda dp: None, strict=True)[0]
    with pytest.raises(NotAddressable, match=MAPS[kind].__name__):
        parallel_map(kind, DataFromList([[0]]), 1, double)[0]


@pytest.mark.parametrize("num", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_strict_map_keeps_the_contract_of_all_nodes(kind, num):
    check_node(lambda ds: parallel_map(kind, ds, num, same, strict=True), exclusive=num > 0, kinds=(list,))


# -- default -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "num"), covering([*MAPS], [0, 1, 2]))
def test_by_default_one_iterator_serves_every_epoch(kind, num):
    """A ported training loop holds one iterator over all of them."""
    with parallel_map(kind, Numbers(10), num, double, buffer_size=4) as df:
        assert len(df) == 10 and df._df_endless and not df.addressable
        iterator = iter(df)
        found = [dp[0] for _ in range(50) for dp in itertools.islice(iterator, 10)]
    assert len(found) == 500
    counts = [found.count(2 * k) for k in range(10)]
    assert sum(counts) == 500 and max(counts) - min(counts) <= 1 + 4  # a round begun, and what the buffer may hold back


def test_by_default_passes_of_the_input_follow_one_another_and_mix(kind):
    with parallel_map(kind, Numbers(10), 2, double, buffer_size=4) as df:
        found = [dp[0] for _ in range(5) for dp in itertools.islice(df, 10)]
    counts = [found.count(2 * k) for k in range(10)]
    assert sum(counts) == 50 and max(counts) - min(counts) <= 1 + 4


@pytest.mark.parametrize("num", [0, 1])
def test_by_default_what_is_dropped_is_left_out(kind, num):
    with parallel_map(kind, Numbers(10), num, below_five) as df:
        assert list(itertools.islice(df, 30)) == [[k] for k in range(5)] * 6


def test_by_default_several_workers_lose_nothing_but_what_is_dropped(kind):
    # Which values ten results have is not fixed: one of two workers may still be at its value when ten have come.
    with parallel_map(kind, Numbers(10), 2, below_five, buffer_size=4) as df:
        found = [k for _ in range(20) for (k,) in itertools.islice(df, 10)]
    counts = [found.count(k) for k in range(5)]
    assert sum(counts) == 200 and max(counts) - min(counts) <= 1 + 4


@pytest.mark.parametrize("num", [0, 2])
def test_by_default_each_instance_says_once_that_it_never_ends(kind, num, caplog):
    for made in range(1, 3):
        with parallel_map(kind, Numbers(10), num, double) as df:
            assert len(caplog.records) == made - 1
            for _ in range(3):
                next(iter(df))
            (record,) = caplog.records[made - 1 :]
            assert record.levelname == "WARNING" and "strict=True" in record.message
    caplog.clear()
    with parallel_map(kind, Numbers(10), num, double, strict=True) as df:
        list(df)
    assert not caplog.records


def test_by_default_a_flow_without_a_length_never_ends_and_says_so(kind, caplog):
    caplog.set_level(logging.INFO, "dataflow")
    with parallel_map(kind, Lengthless(3), 2, double) as df:
        assert df._df_endless
        assert len(list(itertools.islice(df, 100))) == 100
        next(iter(df))
    assert sum("strict=True" in record.message for record in caplog.records) == 1


def test_by_default_nothing_is_lost_over_a_break(kind):
    with parallel_map(kind, Numbers(1000), 1, same, buffer_size=8) as df:
        found = [dp for _ in range(20) for dp in itertools.islice(df, 7)]
    assert found == [[k] for k in range(140)]


def test_an_empty_input_ends_a_default_map_with_a_warning(kind, caplog):
    with parallel_map(kind, Lengthless(0), 2, double) as df:
        assert list(df) == []
    assert "was empty" in caplog.text
    with parallel_map(kind, Numbers(0), 2, double) as df:
        assert list(df) == []


# -- no workers --------------------------------------------------------------------------------------------------------


def test_without_workers_the_function_runs_in_the_consumer(kind):
    with parallel_map(kind, Numbers(6), 0, lambda dp: [dp[0], worker_info()], strict=True) as df:
        assert list(df) == [[k, None] for k in range(6)]
    with parallel_map(kind, Numbers(6), 0, double) as df:
        for _ in range(2):
            assert list(itertools.islice(df, 6)) == [[2 * k] for k in range(6)]


# -- what is passed on -------------------------------------------------------------------------------------------------


VALUES = [
    [1, "a"],
    (2, b"b"),
    {"x": np.arange(3)},
    7,
    [[[]]],
    np.float32(2),
    [np.zeros(100_000)],
    [np.zeros((200, 300)).T, np.zeros((0, 3)), np.array(5)],
    {"big": np.ones((50, 60, 70), ">i2"), "text": ["é", None]},
    [np.array(["2020-01-01"], "M8[D]"), np.ma.array([1, 2], mask=[0, 1])],
]


def test_datapoints_of_every_type_go_there_and_back(kind):
    with parallel_map(kind, DataFromList(VALUES, shuffle=False), 2, same, strict=True) as df:
        assert [repr(dp) for dp in df] == [repr(dp) for dp in VALUES]


def test_a_source_may_reuse_its_buffer_and_workers_may_write(kind):
    if kind == "thread":
        pytest.skip("threads pass on the datapoint itself, as documented")
    buffer = np.zeros(30_000, np.int64)
    small = np.zeros(3, np.int64)

    def source():
        for k in range(60):
            buffer[:] = small[:] = k
            yield [buffer, small]

    kept = []

    def func(dp):
        kept.append(dp[0])  # a worker that keeps all it is given
        dp[0] *= 2
        dp[1] += 1
        return dp

    with parallel_map(kind, DataFromGenerator(source), 2, func, strict=True, buffer_size=10) as df:
        for k, (large, little) in enumerate(df):
            assert (large == 2 * k).all() and (little == k + 1).all()


def test_results_may_be_kept_and_changed(kind):
    def func(dp):
        return [np.full(20_000, dp[0])]

    with parallel_map(kind, Numbers(50), 2, func, strict=True, buffer_size=4) as df:
        kept = list(df)
        for k, (array,) in enumerate(kept):
            array += 1
            assert (array == k + 1).all()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_small_share_of_memory_does_not_stop_large_datapoints(ordered):
    size = 700_000  # of 1 MiB in all, a quarter of it for what goes to the workers

    def func(dp):
        if dp[1] % 5 == 0:
            time.sleep(0.01)
        return [dp[0] + 1, dp[1]]

    source = DataFromList([[np.full(size, k, np.uint8), k] for k in range(15)], shuffle=False)
    with parallel_map("process", source, 2, func, strict=True, ordered=ordered, max_bytes=1 << 20) as df:
        kept = sorted(df, key=lambda dp: dp[1])
    assert [k for _, k in kept] == list(range(15))
    assert all((array == k + 1).all() for array, k in kept)


# -- iterations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_the_later_of_two_iterations_wins(kind, strict):
    with parallel_map(kind, Numbers(20), 2, double, strict=strict) as df:
        first = iter(df)
        next(first)
        second = iter(df)
        next(second)
        with pytest.raises(NotReentrant):
            list(first)
        assert len(list(itertools.islice(second, 20))) == (19 if strict else 20)


@pytest.mark.parametrize("strict", [True, False])
def test_a_closed_map_ends_live_iterations_and_restarts(kind, strict):
    df = parallel_map(kind, Numbers(20), 2, double, strict=strict)
    live = iter(df)
    next(live)
    df.close()
    with pytest.raises(DataFlowTerminated):
        list(live)
    assert len(list(itertools.islice(df, 20))) == 20
    df.reset_state()
    assert len(list(itertools.islice(df, 20))) == 20
    df.close()


def test_copies_and_pickles_are_unstarted(kind):
    with parallel_map(kind, Numbers(5), 2, double, strict=True) as df:
        next(iter(df))
        for clone in (copy.copy(df), copy.deepcopy(df), pickle.loads(pickle.dumps(df))):
            with clone:
                assert list(clone) == [[2 * k] for k in range(5)]


def test_a_source_that_blocks_does_not_keep_another_thread_from_closing(kind):
    reading, go_on = threading.Event(), threading.Event()

    def source():
        yield [0]
        reading.set()
        go_on.wait(LIMIT)
        yield [1]

    df = parallel_map(kind, DataFromGenerator(source), 1, same, strict=True)
    with loop_ended_by_close(df):
        assert reading.wait(LIMIT)
        with deadline(LIMIT / 2):
            df.close()
        go_on.set()


# -- exceptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_an_exception_comes_after_every_earlier_datapoint(kind, ordered):
    def func(dp):
        if dp[0] == 30:
            raise ValueError("no thirty")
        time.sleep(0.001)
        return dp

    found = []
    with pytest.raises(ValueError, match="no thirty") as caught:
        found.extend(parallel_map(kind, Numbers(100), 2, func, strict=True, ordered=ordered))
    if ordered:
        assert found == [[k] for k in range(30)]
    notes = "\n".join(caught.value.__notes__)
    assert "datapoint 30 of pass 0" in notes and f"of 2 of {MAPS[kind].__name__}" in notes


class Stop(BaseException):
    """Like `asyncio.CancelledError`, none of those that `except Exception` catches."""


@pytest.mark.parametrize("error", only([Stop], [Stop, asyncio.CancelledError]))
def test_so_does_one_that_is_no_ordinary_exception(kind, error):
    def func(dp):
        if dp[0] == 29:
            time.sleep(0.05)  # the datapoint before comes later
        if dp[0] == 30:
            raise error("number 30")
        return dp

    found = []
    with pytest.raises(error, match="number 30"):
        found.extend(parallel_map(kind, Numbers(100), 3, func, strict=True))
    assert found == [[k] for k in range(30)]
    found = []
    with pytest.raises(error, match="number 30"):
        found.extend(dataflow.MultiProcessMapAndBatchData(Numbers(100), 3, func, 4, strict=True, timeout=LIMIT))
    assert [k for (batch,) in found for k in batch.tolist()] == list(range(28))


def test_an_exception_of_the_source_comes_after_all_that_was_read_and_the_map_goes_on(kind):
    def source():
        yield from ([k] for k in range(30))
        raise KeyError("source")

    for strict in (True, False):
        with parallel_map(kind, DataFromGenerator(source), 2, double, strict=strict) as df:
            for _ in range(2):
                found = []
                with pytest.raises(KeyError, match="source"):
                    found.extend(df)
                assert sorted(found) == [[2 * k] for k in range(30)]


def with_a_lock_at_20(dp):
    return [dp[0], threading.Lock()] if dp[0] == 20 else dp


def test_a_result_that_cannot_be_sent_is_named_by_its_position_and_component():
    with pytest.raises(TypeError) as caught:
        list(parallel_map("process", Numbers(50), 2, with_a_lock_at_20, strict=True))
    notes = "\n".join(caught.value.__notes__)
    assert "component 1 of type lock" in notes and "index 20 of the input" in notes and "use threads" in notes


def test_a_datapoint_that_cannot_be_sent_to_a_worker_is_named():
    source = DataFromList([[0], [threading.Lock()]], shuffle=False)
    found = []
    with pytest.raises(TypeError, match="pickle") as caught:
        found.extend(parallel_map("process", source, 2, same, strict=True))
    assert found == [[0]]
    assert "index 1 of the input" in caught.value.__notes__[-1]


def test_parameters_are_checked(kind):
    make = MAPS[kind]
    with pytest.raises(TypeError, match="number of workers"):
        make(Numbers(3))
    with pytest.raises(TypeError, match="map_func"):
        make(Numbers(3), 2)
    with pytest.raises(TypeError, match="function"):
        make(Numbers(3), 2, 7)
    with pytest.raises(TypeError, match="DataFromList"):
        make([1, 2], 2, same)
    for wrong in ({"buffer_size": 0}, {"timeout": 0}, {"max_restarts": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make(Numbers(3), 2, same, **wrong)
    with pytest.raises(ValueError, match="0 \\(run in the consumer\\)"):
        make(Numbers(3), -1, same)
    assert MultiProcessMapData is MultiProcessMapDataZMQ


# -- nests, start methods ----------------------------------------------------------------------------------------------


@each_method
def test_every_start_method(method):
    with parallel_map("process", Numbers(20), 2, lambda dp: [dp[0] + 1], strict=True, context=method) as df:
        assert list(df) == [[k + 1] for k in range(20)]


def test_maps_nest_in_one_another_and_in_runners(kind):
    inner = parallel_map(kind, Numbers(20), 2, double, strict=True)
    with parallel_map("process", parallel_map("thread", inner, 2, double, strict=True), 2, double, strict=True) as df:
        assert list(df) == list(df) == [[8 * k] for k in range(20)]
    with dataflow.MultiProcessRunner(
        parallel_map(kind, Numbers(20), 2, double, strict=True), 5, 1, timeout=LIMIT
    ) as df:
        assert list(df) == list(df) == [[2 * k] for k in range(20)]


def test_a_map_over_a_runner_reads_its_datapoints(kind):
    with parallel_map(
        kind, dataflow.MultiProcessRunnerZMQ(Numbers(20), 1, timeout=LIMIT), 2, double, strict=True
    ) as df:
        assert list(df) == list(df) == [[2 * k] for k in range(20)]


def test_moving_a_map_into_workers_changes_no_random_number(kind):
    def chain(make):
        return DataFromList([[k] for k in range(8)]) if make is None else make(DataFromList([[k] for k in range(8)]))

    dataflow.seed(4)
    plain = dataflow.LocallyShuffleData(MapData(chain(None), same), 4)
    expected = list(itertools.islice(plain, 20))
    with dataflow.LocallyShuffleData(parallel_map(kind, chain(None), 2, same, strict=True), 4) as df:
        assert list(itertools.islice(df, 20)) == expected


def jittered(dp, rng):
    return None if rng.random() < 0.2 else [dp[0], float(rng.normal())]


@pytest.mark.parametrize(
    ("kind", "kind_of_input", "num"), covering([*MAPS], ["list", "shuffled", "dropping", "lengthless"], [0, 1, 3])
)
def test_the_generator_belongs_to_the_datapoint_and_not_to_the_worker(kind, kind_of_input, num):
    def source():
        if kind_of_input == "lengthless":
            return Lengthless(30)
        ds = DataFromList([[k] for k in range(30)], shuffle=kind_of_input == "shuffled")
        return MapData(ds, lambda dp: dp if dp[0] % 4 else None) if kind_of_input == "dropping" else ds

    dataflow.seed(8)
    alone = RandomMapData(source(), jittered)
    expected = [list(alone) for _ in range(3)]
    assert expected[0] != expected[1]
    with parallel_map(kind, source(), num, jittered, strict=True, with_rng=True) as df:
        assert list(df) == expected[0]
        next(iter(df))
        assert list(df) == expected[2]
        if df.addressable:
            assert df[30:60] == expected[1]


def test_by_default_each_datapoint_has_a_generator_too(kind):
    dataflow.seed(8)
    with parallel_map(kind, Numbers(20), 2, lambda dp, rng: [float(rng.normal())], with_rng=True) as df:
        assert len({value for (value,) in itertools.islice(df, 20)}) == 20


# -- the law -----------------------------------------------------------------------------------------------------------


@settings(
    max_examples=settings.default.max_examples // 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    n=st.integers(0, 60),
    num=st.integers(1, 3),
    buffer_size=st.integers(1, 40),
    drop=st.integers(2, 9),
    naps=st.lists(st.floats(0, 0.002), min_size=1, max_size=5),
    taken=st.lists(st.integers(0, 60), max_size=3),
    sized=st.booleans(),
    ordered=st.booleans(),
)
def test_strict_maps_are_map_data(kind, n, num, buffer_size, drop, naps, taken, sized, ordered):
    def func(dp):
        time.sleep(naps[dp[0] % len(naps)])
        return None if dp[0] % drop == 1 else [dp[0], np.full(dp[0] % 7, dp[0])]

    source = Numbers(n) if sized else Lengthless(n)
    expected = [repr(dp) for dp in MapData(source, func)]
    with parallel_map(kind, source, num, func, buffer_size=buffer_size, strict=True, ordered=ordered) as df:
        for few in taken:
            begun = [repr(dp) for dp in itertools.islice(df, few)]
            assert set(begun) <= set(expected)
            assert begun == expected[:few] or not ordered
        found = [repr(dp) for dp in df]
    assert found == expected if ordered else sorted(found) == sorted(expected)


def test_an_endless_input_has_endless_strict_passes(kind):
    with parallel_map(kind, RepeatedData(Numbers(3), -1), 2, double, strict=True, buffer_size=5) as df:
        assert df._df_endless
        assert list(itertools.islice(df, 7)) == [[0], [2], [4], [0], [2], [4], [0]]


def test_the_shuffled_list_of_the_contract_is_that_of_map_data(kind):
    dataflow.seed(7)
    expected = [dp[1] for dp in MapData(listed(), same)]
    dataflow.seed(7)
    with parallel_map(kind, listed(), 2, same, strict=True) as df:
        assert [dp[1] for dp in df] == expected


# -- output buffers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_what_a_function_keeps_and_changes_later_arrives_as_it_was(keep):
    kept = []

    def func(dp):
        for array in kept:
            array[:] = -1
        array = dataflow.empty((20_000,), np.int64)
        array[:] = dp[0]
        if keep:
            kept.append(array)
        return [array]

    with parallel_map("process", Numbers(200), 2, func, strict=True, buffer_size=50) as df:
        for k, (array,) in enumerate(df):
            assert (array == k).all()


class Model:
    """Can be pickled, but number 3 cannot be unpickled."""

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.number == 3:
            raise ValueError("no such model file")


def number_of(dp):
    return [dp[0].number]


def test_an_input_that_cannot_be_unpickled_in_the_worker_is_named():
    ds = DataFromList([[Model(k)] for k in range(8)], shuffle=False)
    df = MultiProcessMapData(ds, 2, number_of, strict=True, buffer_size=4)
    with df, pytest.raises(ValueError, match="no such model file") as caught:
        list(df)
    assert "the datapoint at index 3 of the input was sent to a worker, but cannot be" in caught.value.__notes__[0]


def test_what_a_function_has_filled_is_passed_on_without_a_copy():
    def func(dp):
        array = dataflow.empty((20_000,), np.int64)
        array[:] = dp[0]
        addresses.append(array.__array_interface__["data"][0])
        return [array, len(set(addresses))]

    addresses = []
    with parallel_map("process", Numbers(100), 1, func, strict=True, buffer_size=4) as df:
        *_, (_, num_places) = df
    assert (
        num_places > 1
    )  # where it were copied, the output buffer would be free again at once, and the next at its place
