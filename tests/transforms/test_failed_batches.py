"""Batches whose datapoints do not form one: which is named, and how many are skipped."""

import itertools

import pytest

from dataflow import MultiProcessRunnerZMQ
from dataflow.errors import Dropped, ShapeMismatch, TooManyFailures
from dataflow.sources.in_memory import DataFromList
from dataflow.transforms.batching import BatchData
from dataflow.transforms.mixing import MixData
from dataflow.transforms.padding import BucketBatchData, PadBatchData
from dataflow.transforms.resuming import ResumableData
from tests.support.contract import check_node, seeded
from tests.support.waits import LIMIT


def flow(*bad, n=8):
    """Datapoints of which some lack the component ``t``."""
    return DataFromList([{"t": [k, k], "k": k} if k not in bad else {"k": k} for k in range(n)], shuffle=False)


def has_t(dp):
    return len(dp["t"])


def one(dp):
    return 1


NODES = {
    "BatchData": lambda ds, **options: BatchData(ds, 2, **options),
    "collate": lambda ds, **options: BatchData(
        ds, 2, collate=lambda group: {"k": [dp["k"] for dp in group if dp["t"]]}, **options
    ),
    "PadBatchData": lambda ds, **options: PadBatchData(ds, 2, keys=["t"], **options),
}
every_node = pytest.mark.parametrize("make", NODES.values(), ids=NODES)


def numbers(batches):
    return [[int(k) for k in batch["k"]] for batch in batches]


@every_node
def test_a_failed_batch_ends_the_pass_and_is_named(make):
    iterator = iter(make(flow(5)))
    assert numbers([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
    with pytest.raises((ShapeMismatch, KeyError), match="t") as caught:
        next(iterator)
    assert caught.value.__notes__ == [f"raised by {type(make(flow())).__name__}, for datapoint 2 of pass 0"]


@every_node
def test_failed_batches_are_skipped_and_counted_within_the_budget(make):
    df = make(flow(1, 5), max_failures=2)
    for p in range(2):
        assert numbers(df) == [[2, 3], [6, 7]] and len(df) == 4
        name = type(df).__name__
        assert [(f.node, f.position, f.in_pass) for f in df.failures[2 * p :]] == [(name, 0, p), (name, 2, p)]
    with pytest.raises(TooManyFailures, match="2 datapoints of one pass failed, more than max_failures=1"):
        list(make(flow(1, 5), max_failures=1))


@every_node
def test_a_failed_batch_keeps_its_index(make):
    df = make(flow(3), max_failures=1)
    assert numbers(df[0:3]) == [[0, 1], [4, 5]] and numbers([df[2]]) == [[4, 5]]
    with pytest.raises(Dropped):
        df[1]
    assert [failure.position for failure in df.failures] == [1, 1]
    above = BatchData(df, 2)
    with pytest.raises(Dropped):
        above[1]


@every_node
@pytest.mark.parametrize("num_proc", [0, 2])
def test_the_budget_of_a_runner_holds_for_batches(make, num_proc):
    with MultiProcessRunnerZMQ(
        make(flow(3)), num_proc, strict=True, max_failures=1, context="fork", timeout=LIMIT
    ) as runner:
        assert numbers(runner) == [[0, 1], [4, 5], [6, 7]]
        assert len(runner.failures) == 1


def test_nodes_with_a_budget_keep_the_contract():
    check_node(lambda ds: BatchData(ds, 2, max_failures=3))
    check_node(lambda ds: PadBatchData(ds, 2, remainder=True, max_failures=0.5))
    check_node(lambda ds: BucketBatchData(ds, 2, key=one, boundaries=[3], max_failures=3), addressable=False)


def test_a_budget_is_no_part_of_a_state():
    with seeded(1):
        df = ResumableData(BatchData(flow(3), 2, max_failures=1))
        next(iter(df))
        other = ResumableData(BatchData(flow(3), 2, max_failures=0.5))
        other.load_state_dict(df.state_dict())
        assert numbers(other) == [[4, 5], [6, 7]]


def test_buckets_skip_datapoints_without_a_length_and_batches_that_fail():
    def make(ds, **options):
        return BucketBatchData(ds, 2, key=has_t, boundaries=[5], **options)

    with pytest.raises(KeyError) as caught:
        list(make(flow(5)))
    assert caught.value.__notes__ == ["raised by BucketBatchData, for datapoint 5 of pass 0"]
    df = make(flow(0, 5), max_failures=2)
    assert numbers(df) == [[1, 2], [3, 4], [6, 7]]
    assert [(f.node, f.position) for f in df.failures] == [("BucketBatchData(key)", 0), ("BucketBatchData(key)", 5)]
    both = [{"t": [1], "k": 0}, {"t": [2]}, {"k": 2}, {"t": [3], "k": 3}]
    df = make(DataFromList(both, shuffle=False), max_failures=2)
    assert numbers(df) == [[3]] and [f.kind for f in df.failures] == ["dataflow.errors.ShapeMismatch", "KeyError"]
    with pytest.raises(TooManyFailures):
        list(make(DataFromList(both, shuffle=False), max_failures=1))


def test_a_mixture_goes_on_without_what_an_input_skips():
    df = MixData([BatchData(flow(1), 2, max_failures=1), BatchData(flow(), 2)], [1, 1])
    expected = [[0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7], [0, 1]]
    assert numbers(itertools.islice(df, 8)) == numbers(df[0:10])[:8] == expected


def test_a_function_that_stops_does_not_end_the_pass():
    def stop(group):
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration was raised by BatchData, for datapoint 0 of pass 0"):
        list(BatchData(flow(), 2, collate=stop))


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_a_wrong_budget_is_named(wrong):
    for make in [*NODES.values(), lambda ds, **more: BucketBatchData(ds, 2, key=has_t, boundaries=[], **more)]:
        with pytest.raises((TypeError, ValueError), match="BatchData: max_failures must be"):
            make(flow(), max_failures=wrong)
