"""The law for chains with own nodes, drops, filters, counts and sources that continue.

What a chain yields alone, it yields in every runner and parallel map, in its shards, and after a resume, also after
passes that were left early; or it raises an error that says why it cannot, before it yields something else.
"""

import itertools
import json
import random

import pytest

from dataflow import (
    CacheData,
    DataFlowError,
    JoinData,
    MapData,
    MultiProcessMapData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    ResumableData,
    ShardData,
    seed,
)
from tests.support.contract import plain
from tests.support.own_nodes import KEEPING
from tests.support.products import only
from tests.support.random_chains import made_beside, random_chain, with_new_neighbours

pytestmark = pytest.mark.usefixtures("unseeded")

NUM_PASSES = 4
MAX = 80  # datapoints of a pass
REFUSED = (DataFlowError, TypeError)


def program(df, breaks):
    """What a program gets that leaves its loops after so many datapoints, and the error that ended it."""
    found = []
    try:
        for num in breaks:
            found.append([])
            for dp in itertools.islice(df, num):
                found[-1].append(plain(dp))
    except Exception as error:
        return found, error
    return found, None


def check(number, wrap, expected, breaks, *, wrapped=True):
    """Run the wrapped chain: it gives what is expected, or a prefix and an error."""
    try:
        df = wrap()
    except REFUSED:
        return "refused"
    with df:
        found, error = program(df, breaks)
    wanted, failure = expected
    if error is None:
        assert (found, failure) == (wanted, None), number
        return "equal"
    assert isinstance(error, REFUSED), (number, error)
    if failure is None or found != wanted:
        *whole, last = found
        assert whole == wanted[: len(whole)], number
        assert last == wanted[len(whole)][: len(last)], number
    return "equal" if failure is not None else "refused"


def breaks_of(rnd):
    return [rnd.choice([MAX, MAX, rnd.randint(0, 5)]) for _ in range(NUM_PASSES)]


def thread_runner(number, num):
    return MultiThreadRunner(lambda: random_chain(number), 3, num, strict=True)


IN_THREADS = {
    "one thread": lambda number: thread_runner(number, 1),
    "two threads": lambda number: thread_runner(number, 2),
    "nested": lambda number: MultiThreadRunner(lambda: thread_runner(number, 1), 2, 1, strict=True),
}
IN_PROCESSES = {
    "one process": lambda number: MultiProcessRunnerZMQ(random_chain(number), 1, strict=True),
    "three processes": lambda number: MultiProcessRunnerZMQ(random_chain(number), 3, strict=True),
}
MAPS = {"thread map": (MultiThreadMapData, 2), "process map": (MultiProcessMapData, 3)}


def check_chain(number, kinds, maps):
    rnd = random.Random(~number)
    breaks = breaks_of(rnd)
    seed(1 + number % 5)
    expected = program(random_chain(number), breaks)
    assert program(random_chain(number), breaks)[0] == expected[0], number
    for kind in kinds.values():
        check(number, lambda kind=kind: kind(number), expected, breaks)
    for kind, num in maps:
        wanted = program(MapData(random_chain(number), made_beside), breaks)
        check(
            number, lambda kind=kind, num=num: kind(random_chain(number), num, made_beside, strict=True), wanted, breaks
        )
    check_resumed(number, rnd)
    check_wrapped(number, breaks)
    check_shards(number)


def check_wrapped(number, breaks):
    """What stands above the chain: the same alone and in a runner."""
    for above in CacheData, lambda ds: JoinData([ds, random_chain(number)]), lambda ds: JoinData([ds, ds]):
        try:
            df = above(random_chain(number))
        except ValueError:
            continue
        expected = program(df, breaks)
        wrap = lambda above=above: MultiThreadRunner(lambda: above(random_chain(number)), 3, 1, strict=True)  # noqa: E731
        check(number, wrap, expected, breaks)


def check_resumed(number, rnd, random_chain=random_chain):
    expected, failure = program(random_chain(number), [MAX] * NUM_PASSES)
    p, num = rnd.randrange(NUM_PASSES), rnd.randint(0, 6)
    try:
        df = ResumableData(random_chain(number))
    except REFUSED:
        return
    found, error = program(df, [MAX] * p + [num])
    assert error is None or isinstance(error, REFUSED), (number, error)
    assert found[:-1] == expected[: len(found) - 1], number
    if error is not None:
        assert found[-1] == expected[len(found) - 1][: len(found[-1])], number
        return
    assert found[-1] == expected[p][:num], number
    try:
        state = json.loads(json.dumps(df.state_dict()))
    except REFUSED:
        return
    resumed = ResumableData(random_chain(number))
    resumed.load_state_dict(state)
    # A pass of which everything was taken is over; but before its first datapoint, one does not know that it is empty.
    q, offset = (p + 1, 0) if num and num >= len(expected[p]) else (p, num)
    rest, error = program(resumed, [MAX] * (NUM_PASSES - q))
    wanted = [expected[q][offset:], *expected[q + 1 :]] if q < NUM_PASSES else []
    rest[:1] = [datapoints[: MAX - offset] for datapoints in rest[:1]]
    if error is None:
        assert failure is not None or rest == wanted, (number, p, num)
    else:
        assert isinstance(error, REFUSED), (number, error)


def check_shards(number):
    try:
        shards = [ShardData(random_chain(number), rank, 2, "keep") for rank in range(2)]
    except (*REFUSED, ValueError):
        return
    expected, failure = program(random_chain(number), [MAX] * 2)
    found = [program(shard, [MAX] * 2) for shard in shards]
    if failure is None and not any(error for _, error in found):
        for p in range(2):
            assert sorted(map(repr, [*found[0][0][p], *found[1][0][p]])) == sorted(map(repr, expected[p])), number


@pytest.mark.parametrize("number", only(range(0, 12, 2), range(12)))
def test_random_chains_in_threads(number):
    check_chain(number, IN_THREADS, [MAPS["thread map"]])


@pytest.mark.full
@pytest.mark.parametrize("number", list(with_new_neighbours(range(100, 2100))))
def test_random_chains_in_threads_and_processes(number):
    kinds = IN_THREADS | (IN_PROCESSES if number % 5 == 0 else {})
    check_chain(number, kinds, list(MAPS.values()) if number % 5 == 1 else [MAPS["thread map"]])


@pytest.mark.parametrize(
    "number",
    [
        *only(range(3001, 3012, 2), range(3000, 3012)),
        *(pytest.param(k, marks=pytest.mark.full) for k in with_new_neighbours(range(3012, 3400), KEEPING)),
    ],
)
def test_random_chains_that_keep_something_are_the_same_in_whole_passes_and_resumed(number):
    def chain(number):
        return random_chain(number, KEEPING)

    breaks = [MAX] * NUM_PASSES
    seed(1 + number % 5)
    expected = program(chain(number), breaks)
    check(number, lambda: MultiThreadRunner(lambda: chain(number), 3, 1, strict=True), expected, breaks)
    check(
        number,
        lambda: MultiThreadMapData(chain(number), 2, made_beside, strict=True),
        program(MapData(chain(number), made_beside), breaks),
        breaks,
    )
    check_resumed(number, random.Random(~number), chain)
    check_resumed(
        number,
        random.Random(~number),
        lambda number: MultiThreadRunner(lambda: chain(number), 3, 1, strict=True),
    )
