"""Runners in runners: every pair, some triples, and runners below nodes that users write."""

from itertools import islice

import psutil
import pytest

import dataflow
from dataflow import DataFlow, ProxyDataFlow, RNGDataFlow
from tests.support.fakes import KINDS, Draws, Numbers, Where, runner
from tests.support.products import only, rotating
from tests.support.waits import LIMIT, wait_until

pytestmark = pytest.mark.usefixtures("unseeded")

PAIRS = [(outer, inner) for outer in KINDS for inner in KINDS]
TRIPLES = [("zmq", "zmq", "zmq"), ("process", "thread", "zmq"), ("thread", "zmq", "process")]


each_kind = rotating("kind", {"process": "process", "zmq": "zmq"}, always={"thread": "thread"})


def each_pair(shift, without=""):
    """All pairs. Quick are three, in which each kind is once outside and once inside; `shift` says which three.

    The one of them with the kind `without` outside is not quick.
    """
    quick = [(KINDS[k], KINDS[(k + shift) % 3]) for k in range(3) if KINDS[k] != without]
    cases = [
        pytest.param(pair, id="-in-".join(pair), marks=[] if pair in quick else [pytest.mark.full]) for pair in PAIRS
    ]
    return pytest.mark.parametrize("kinds", cases)


def nest(kinds, make, nums, **options):
    """A runner of the first kind over one of the second, and so on, over what `make` makes."""
    if not kinds:
        return make()
    return runner(kinds[0], lambda: nest(kinds[1:], make, nums[1:], **options), nums[0], **options)


def children():
    return psutil.Process().children(recursive=True)


@each_pair(2)
def test_single_workers_in_single_workers_change_nothing(kinds):
    with nest(kinds, lambda: Numbers(6), [1] * len(kinds)) as df:
        for _ in range(3):
            assert list(df) == [[k] for k in range(6)]


@each_pair(0, without="zmq")
def test_the_number_of_leaves_is_the_product_and_closing_the_outer_ends_all(kinds):
    before = set(children())
    with nest(kinds, Where, [2, 3], prefetch=1) as df:
        seen = set()
        for path, _ in df:
            seen.add(path)
            if len(seen) == 6:
                break
        assert seen == {((i, 2), (j, 3)) for i in range(2) for j in range(3)}
    wait_until(lambda: set(children()) <= before, LIMIT, "workers are left")


@pytest.mark.parametrize(
    "kinds",
    [pytest.param(k, marks=[pytest.mark.full] * (len(set(k)) < 3 or k[0] == "process")) for k in TRIPLES],
    ids="-in-".join,
)
def test_three_levels_multiply_too(kinds):
    with nest(kinds, Where, [2, 1, 2], prefetch=1) as df:
        seen = set()
        for path, _ in df:
            seen.add(path)
            if len(seen) == 4:
                break
        assert seen == {((i, 2), (0, 1), (j, 2)) for i in range(2) for j in range(2)}


@pytest.mark.parametrize("method", only(["forkserver"], ["forkserver", "spawn"]))
def test_nesting_works_under_every_start_method(method):
    with runner(("zmq", method), lambda: runner(("process", method), lambda: Numbers(4))) as df:
        assert list(df) == [[k] for k in range(4)]


@each_pair(1, without="process")
def test_every_leaf_has_a_random_stream_of_its_own_which_repeats(kinds):
    def streams():
        dataflow.seed(4)
        found = {}
        with nest(kinds, DrawsWithPath, [2, 2], prefetch=1) as df:
            for path, value in df:
                found.setdefault(path, []).append(value)
                if len(found) == 4 and min(map(len, found.values())) >= 5:
                    break
        return {path: values[:5] for path, values in found.items()}

    first = streams()
    assert len({tuple(values) for values in first.values()}) == 4
    assert streams() == first


class DrawsWithPath(RNGDataFlow):
    def __iter__(self):
        while True:
            yield [dataflow.worker_info().path, int(self.rng.integers(2**62))]


def test_nesting_with_one_worker_changes_no_random_number():
    dataflow.seed(4)
    alone = [value for _, value in Draws(8)]
    with nest(("zmq", "zmq"), lambda: Draws(8), [1, 1]) as df:
        assert [value for _, value in df] == alone


class Both(DataFlow):
    """Two inputs side by side, as a user would join them."""

    def __init__(self, first, second):
        self.first = first
        self.second = second

    def __iter__(self):
        for a, b in zip(self.first, self.second, strict=False):
            yield [*a, *b]

    def __len__(self):
        return min(len(self.first), len(self.second))


class Doubled(ProxyDataFlow):
    def __iter__(self):
        for (k,) in self.ds:
            yield [2 * k]


@each_kind
def test_two_runners_below_one_node_work_side_by_side(kind):
    with Both(runner(kind, lambda: Numbers(5)), runner("zmq", lambda: Numbers(5))) as df:
        for _ in range(2):
            assert list(df) == [[k, k] for k in range(5)]


@each_kind
def test_runners_below_a_node_inside_a_runner_work_as_well(kind):
    with runner(
        kind, lambda: Doubled(Both2(runner("zmq", lambda: Numbers(4)), runner("thread", lambda: Numbers(4))))
    ) as df:
        assert list(df) == [[2 * k] for k in range(4)]


class Both2(Both):
    def __iter__(self):
        for a, _ in zip(self.first, self.second, strict=False):
            yield a


@each_kind
def test_a_runner_below_a_users_node_is_closed_with_it(kind):
    df = Doubled(runner(kind, lambda: Numbers(3)))
    assert list(df) == [[0], [2], [4]]
    df.close()
    assert list(df) == [[0], [2], [4]]
    df.close()


@each_pair(2)
def test_an_abandoned_pass_of_a_nested_runner_leaves_nothing(kinds):
    df = nest(kinds, Where, [1, 2])
    assert len(list(islice(df, 3))) == 3
    del df  # the fixture sees what is left


def test_in_the_main_process_there_is_no_worker():
    assert dataflow.worker_info() is None
    with runner("thread", lambda: Numbers(2)) as df:
        next(iter(df))
        assert dataflow.worker_info() is None
