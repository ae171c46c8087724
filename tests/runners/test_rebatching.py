"""Batches that workers have made, split and made again where a datapoint was dropped."""

import numpy as np
import pytest

from dataflow.protocol.datapoint import stack
from dataflow.runners.rebatching import WorkerBatch, pieces, regroup, stacks_evenly


@pytest.mark.parametrize(
    ("datapoints", "is_even"),
    [
        ([[1, np.zeros(2)], [2, np.ones(2)]], True),
        ([{"a": 1.5, "b": True}, {"b": False, "a": 2.5}], True),
        ([[np.float32(1)], [np.float32(2)]], True),
        ([1, 2], False),
        ([[1], [1, 2]], False),
        ([{"a": 1}, [1]], False),
        ([{"a": 1}, {"b": 1}], False),
        ([[1], [1.5]], False),
        ([[np.array(1)], [np.array(2)]], False),
        ([[np.array([None])], [np.array([None])]], False),
        ([[np.zeros(2)], [np.zeros(3)]], False),
        ([[np.zeros(2)], [np.zeros(2, int)]], False),
        ([["text"], ["text"]], False),
    ],
)
def test_what_stacks_evenly_is_the_same_after_it_was_split(datapoints, is_even):
    assert stacks_evenly(datapoints) is is_even
    if is_even:
        batch = stack(datapoints, use_list=False)
        again = stack(pieces(batch, 2), use_list=False)
        for key in batch if isinstance(batch, dict) else range(len(batch)):
            assert again[key].dtype == batch[key].dtype and np.array_equal(again[key], batch[key])


@pytest.mark.parametrize("is_dict", [False, True])
def test_batches_behind_a_dropped_datapoint_are_made_again(is_dict):
    def made(*numbers):
        return [{"k": k} if is_dict else [k] for k in numbers]

    def batch(*numbers):
        return WorkerBatch([stack(made(*numbers), use_list=False)])

    results = iter([batch(0, 1), *made(2), batch(4, 5), *made(6, 7)])
    found = regroup(results, 2, remainder=True, use_list=False, waits=False)
    column = "k" if is_dict else 0
    assert [group[column].tolist() for group in found] == [[0, 1], [2, 4], [5, 6], [7]]
