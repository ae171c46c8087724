"""Several threads step one iterator of a runner or map whose workers are actors."""

import pytest

from dataflow import DataFromList, RayMapData, RayRunner
from tests.support.faults import deadline
from tests.support.products import repeated
from tests.support.threads import stepped_by_threads, switching_often
from tests.support.waits import LIMIT

N = 60
PASSES = {
    "RayRunner": lambda: RayRunner(listed(), 2, strict=True, timeout=LIMIT),
    "RayRunner by default": lambda: RayRunner(listed(), 1, timeout=LIMIT),
    "RayMapData": lambda: RayMapData(listed(), 2, same, strict=True, timeout=LIMIT),
}


def listed():
    return DataFromList([[k] for k in range(N)], shuffle=False)


def same(dp):
    return dp


@pytest.mark.parametrize("name", repeated(PASSES))
def test_threads_that_step_one_iterator_get_the_pass_between_them(fake, name):
    with PASSES[name]() as df, switching_often(), deadline(LIMIT):
        for _ in range(2):
            assert sorted(stepped_by_threads(iter(df), most=10 * N)) == [[k] for k in range(N)]


@pytest.mark.parametrize("name", repeated(["RayMapData"]))
def test_so_do_those_of_one_without_an_end(fake, name):
    with RayMapData(listed(), 1, same, timeout=LIMIT) as df, switching_often(), deadline(LIMIT):
        found = stepped_by_threads(iter(df), most=N + 20)
    # One worker keeps the order: this is a pass and the beginning of another.
    assert sorted(found) == sorted([k % N] for k in range(len(found)))
