"""How far workers run ahead: within the bound that the user gave, and never not at all."""

import multiprocessing
from itertools import islice

import psutil
import pytest

from tests.support.fakes import KINDS, Forever, runner
from tests.support.products import covering, rotating
from tests.support.waits import LIMIT, wait_until

FORK = [("process", "fork"), ("zmq", "fork"), ("thread", None)]
kinds = rotating("case", dict(zip(KINDS[:2], FORK, strict=False)), always={"thread": FORK[2]})


def settled(made, least=1):
    """What the workers have made, once all have begun, all together have made `least`, and none of them makes more.

    A worker that only has a pause looks the same. So what is given back is never too much, but it may be too little.
    """
    last = []

    def unchanged():
        last.append(list(made))
        return len(last) > 5 and last[-5:] == [last[-1]] * 5 and all(last[-1]) and sum(last[-1]) >= least

    wait_until(unchanged, LIMIT, lambda: f"still running, or less than {least}: {last[-3:]}")
    return last[-1]


@pytest.mark.parametrize(("prefetch", "case"), covering([0, 1, 2, 5, 50], FORK))
def test_a_worker_makes_no_more_than_twice_the_bound_and_two_ahead(case, prefetch):
    made = multiprocessing.RawArray("q", 2)
    with runner(case, lambda: Forever(made), 2, prefetch=prefetch) as df:
        df.reset_state()
        assert max(settled(made)) <= 2 * prefetch + 2
        assert min(made) >= 1  # at least one is always under way
        taken = [0, 0]
        for number in (1, 1, 5, 40, 1):
            # Which worker made it is unknown: the sum of both is bounded too.
            taken[0] += len(list(islice(df, number)))
            ahead = sum(settled(made, taken[0] + 1)) - taken[0]  # at least one, as before
            assert ahead <= 2 * (2 * prefetch + 2)


@pytest.mark.parametrize(("prefetch", "case"), covering([0, 1, 2, 5, 50], FORK))
def test_the_bound_holds_in_the_middle_of_the_data_too(case, prefetch):
    made = multiprocessing.RawArray("q", 1)
    with runner(case, lambda: Forever(made), prefetch=prefetch) as df:
        iterator, taken = iter(df), 0
        for number in (1, 2, 3, 17, 64, 100):
            taken += len(list(islice(iterator, number)))
            assert settled(made)[0] - taken <= 2 * prefetch + 2


@pytest.mark.parametrize("case", FORK[:2], ids=KINDS[:2])
@pytest.mark.parametrize(("size", "least", "most"), [(0, 50, 40_000), (100_000, 50, 102), (3000, 60, 300)])
def test_by_default_fifty_or_a_quarter_of_a_mebibyte_are_under_way(case, size, least, most):
    made = multiprocessing.RawArray("q", 1)
    with runner(case, lambda: Forever(made, size), prefetch=None) as df:
        df.reset_state()
        assert settled(made, least if case[0] == "zmq" else 1)[0] <= most  # a pipe holds 64 KiB and no more


def test_threads_have_a_bound_too_where_none_is_given():
    made = multiprocessing.RawArray("q", 1)
    with runner("thread", lambda: Forever(made), prefetch=None) as df:
        df.reset_state()
        assert settled(made)[0] <= 102


@kinds
def test_a_nested_runner_keeps_its_bound_as_well(case):
    made = multiprocessing.RawArray("q", 1)
    with runner(case, lambda: runner("process", lambda: Forever(made), prefetch=3), prefetch=2) as df:
        df.reset_state()
        assert settled(made)[0] <= (2 * 3 + 2) + (2 * 2 + 2)


@pytest.mark.parametrize("case", FORK[:2], ids=KINDS[:2])
def test_the_memory_of_a_consumer_that_pauses_is_bounded(case):
    with runner(case, lambda: Forever(size=1_000_000), prefetch=5) as df:
        before = psutil.Process().memory_info().rss
        made = multiprocessing.RawArray("q", 1)
        with runner(case, lambda: Forever(made, 1_000_000), prefetch=5) as other:
            other.reset_state()
            settled(made)
        next(iter(df))
        assert psutil.Process().memory_info().rss - before < 60_000_000
