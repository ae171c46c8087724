import itertools

import numpy as np
import pytest

from dataflow.errors import Dropped, LengthUnknown, ShapeMismatch
from dataflow.sources.in_memory import DataFromList
from dataflow.sources.iterating import DataFromGenerator
from dataflow.transforms.batching import BatchData, BatchDataByShape
from dataflow.transforms.mapping import MapData
from dataflow.transforms.repeating import RepeatedData
from dataflow.transforms.shuffling import LocallyShuffleData


def numbers(n):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def vectors(df):
    return [batch[0].tolist() for batch in df]


@pytest.mark.parametrize(
    ("n", "size", "remainder", "expected"),
    [
        (5, 2, False, [[0, 1], [2, 3]]),
        (5, 2, True, [[0, 1], [2, 3], [4]]),
        (4, 2, True, [[0, 1], [2, 3]]),
        (3, 5, True, [[0, 1, 2]]),
        (0, 1, True, []),
        (3, 1, False, [[0], [1], [2]]),
    ],
)
def test_batches_and_their_number(n, size, remainder, expected):
    df = BatchData(numbers(n), size, remainder)
    assert vectors(df) == expected == vectors(df[0 : len(expected)])
    assert len(df) == len(expected)


@pytest.mark.parametrize("make", [list, tuple, lambda values: dict(enumerate(values))])
def test_components_are_stacked_and_lists_are_kept_as_lists(make):
    ds = DataFromList([make([np.full((2, 3), k), k]) for k in range(4)], shuffle=False)
    (batch,) = BatchData(ds, 4)
    assert type(batch) is (dict if isinstance(ds.lst[0], dict) else list)
    assert batch[0].shape == (4, 2, 3) and batch[1].dtype == np.int32
    (kept,) = BatchData(ds, 4, use_list=True)
    assert kept[1] == [0, 1, 2, 3] and isinstance(kept[0], list)


def test_a_batch_larger_than_a_pass_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="batch_size 6 is more than the 5"):
        BatchData(numbers(5), 6)
    assert len(BatchData(numbers(5), 6, remainder=True)) == 1


def test_a_flow_without_a_length_can_be_batched():
    df = BatchData(DataFromGenerator(lambda: iter([[0], [1], [2]])), 2, remainder=True)
    assert vectors(df) == [[0, 1], [2]]
    with pytest.raises(LengthUnknown):
        len(df)


def test_an_endless_flow_may_be_shorter_than_a_batch():
    df = BatchData(LocallyShuffleData(numbers(3), 2), 5)
    assert [len(batch) for batch in vectors(itertools.islice(df, 3))] == [5, 5, 5]
    df = BatchData(RepeatedData(numbers(3), -1), 5)
    assert vectors(itertools.islice(df, 2)) == [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]] == vectors(df[0:2])


def test_iteration_fills_up_with_what_follows_a_dropped_datapoint_and_addressing_refuses():
    df = BatchData(MapData(numbers(6), lambda dp: dp if dp[0] != 1 else None), 2)
    assert vectors(df) == [[0, 2], [3, 4]]
    with pytest.raises(Dropped, match="BatchData counts"):
        df[0]
    assert vectors([df[1]]) == [[2, 3]]


def test_different_shapes_are_named():
    df = BatchData(DataFromList([[np.zeros(2)], [np.zeros(3)]], shuffle=False), 2)
    with pytest.raises(ShapeMismatch, match=r"\(2,\), \(3,\)"):
        list(df)


@pytest.mark.parametrize("node", [BatchData, lambda ds, size: BatchDataByShape(ds, size, 0)])
def test_sizes_are_integers_from_1(node):
    for size in (0, -2):
        with pytest.raises(ValueError, match=f"batch_size is at least 1, got {size}"):
            node(numbers(3), size)
    for size in (2.0, True, "2"):
        with pytest.raises(TypeError, match="batch_size is an integer"):
            node(numbers(3), size)


def shapes(lengths):
    return DataFromList([{"a": np.zeros(length), "k": k} for k, length in enumerate(lengths)], shuffle=False)


def test_one_batch_is_gathered_for_each_shape():
    df = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a")
    assert [batch["k"].tolist() for batch in df] == [[0, 2], [1, 3]]


def test_incomplete_batches_are_given_out_at_the_end_if_wanted_and_never_live_on():
    df = BatchDataByShape(shapes([1, 2, 1, 2, 2, 1, 3]), 2, "a", remainder=True)
    for _ in range(2):
        assert [batch["k"].tolist() for batch in df] == [[0, 2], [1, 3], [4], [5], [6]]


def test_numbers_have_a_shape_too_and_a_missing_component_is_named():
    df = BatchDataByShape(numbers(4), 2, 0)
    assert vectors(df) == [[0, 1], [2, 3]]
    with pytest.raises(IndexError, match="no component 3"):
        list(BatchDataByShape(numbers(4), 2, 3))
    with pytest.raises(LengthUnknown, match="BatchDataByShape"):
        len(df)
