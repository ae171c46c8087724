"""RayMapData over a cluster in this process."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataflow
from dataflow import DataFlow, DataFromGenerator, MapData, RandomMapData, RayMapData, worker_info
from tests.support.contract import check_node
from tests.support.fakes import Numbers
from tests.support.faults import deadline
from tests.support.flows import listed
from tests.support.products import covering
from tests.support.waits import LIMIT


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
def test_it_keeps_the_contract_of_all_nodes(fake, num):
    check_node(lambda ds: mapped(ds, num, list), exclusive=num > 0, kinds=(list,))


def test_what_is_missing_is_named():
    with pytest.raises(TypeError, match="RayMapData expects a function, got NoneType: map_func"):
        RayMapData(listed(3), 2)
