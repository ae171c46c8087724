"""A timeout is a pause, also where torch takes the datapoints."""

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    DataFromList,
    FilterData,
    FixedSizeData,
    PrefetchToDevice,
    RepeatedData,
    ShuffleData,
    to_torch,
)
from tests.support.contract import seeded
from tests.support.pauses import Late, LateInOrder, patiently

torch = pytest.importorskip("torch")

SIZE = 12


def source(late, is_late):
    df = late(DataFromList([[np.full(2, k, np.float32), k] for k in range(SIZE)]))
    df.is_late = is_late
    return df


def labels(found):
    return [torch.as_tensor(dp[1]).tolist() for dp in found]


PREFETCHED = {
    "itself": lambda ds, depth: PrefetchToDevice(ds, "cpu", depth),
    "batches": lambda ds, depth: BatchData(PrefetchToDevice(ds, "cpu", depth), 5, remainder=True, use_list=True),
    "of batches": lambda ds, depth: PrefetchToDevice(BatchData(ds, 5, remainder=True), "cpu", depth),
    "without end": lambda ds, depth: FixedSizeData(PrefetchToDevice(RepeatedData(ds, -1), "cpu", depth), 17),
    "shuffled": lambda ds, depth: ShuffleData(PrefetchToDevice(ds, "cpu", depth)),
}


@pytest.mark.parametrize("late", [Late, LateInOrder])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("name", PREFETCHED)
def test_what_is_ahead_on_the_device_is_kept(name, depth, late):
    if name == "shuffled" and late is LateInOrder:
        return
    found = []
    for is_late in (False, True):
        with seeded(3), PREFETCHED[name](source(late, is_late), depth) as df:
            found.append([patiently(iter(df)) for _ in range(2)])
    (wanted, got) = found
    assert [labels(dps) for dps, _ in got] == [labels(dps) for dps, _ in wanted]
    assert all(num_late for _, num_late in got)


TAKEN = {
    "itself": (lambda ds: ds, {}),
    "an odd share": (lambda ds: ds, {"rank": 1, "world_size": 2}),
    "batches": (lambda ds: BatchData(ds, 5), {}),
    "filtered": (lambda ds: FilterData(ds, lambda dp: dp[1] % 3), {}),
    "without end": (lambda ds: RepeatedData(ds, -1), {}),
}


@pytest.mark.parametrize("late", [Late, LateInOrder])
@pytest.mark.parametrize("num_before", [0, 1, 3, SIZE - 1, SIZE])
@pytest.mark.parametrize("name", TAKEN)
def test_a_pass_and_a_resumed_one_are_whole(name, num_before, late):
    if name == "without end" and late is LateInOrder:
        return  # it has no state
    make, ranks = TAKEN[name]

    def started(is_late):
        return to_torch(make(source(late, is_late)), **ranks)

    def taken(dataset, num):
        """The labels of one loop, or of `num` datapoints; and timeouts."""
        steps, found, num_late = iter(dataset), [], 0
        while len(found) < num:
            try:
                found.append(next(steps)[1].tolist())
            except dataflow.TimeoutError:
                num_late += 1
            except StopIteration:
                break
        return found, num_late

    with seeded(3):
        dataset = started(False)
        wanted = [taken(dataset, 30)[0] for _ in range(2)]
    with seeded(3):
        dataset = started(True)
        found = [taken(dataset, 30) for _ in range(2)]
        assert [dps for dps, _ in found] == wanted and all(num_late for _, num_late in found)
        for is_late in (False, True):
            dataset = started(is_late)
            before = taken(dataset, num_before)[0]
            state = dataset.state_dict()
            resumed = started(True)
            resumed.load_state_dict(state)
            if len(before) < num_before:  # the loop has ended
                assert taken(resumed, 30)[0] == wanted[1]
            else:
                assert before + taken(resumed, 30 - len(before))[0] == wanted[0]
                assert name == "without end" or taken(resumed, 30)[0] == wanted[1]


@pytest.mark.parametrize("num_before", [0, 2])
def test_a_state_is_exact_between_two_timeouts(num_before):
    def started(is_late):
        return to_torch(BatchData(source(LateInOrder, is_late), 2))

    with seeded(3):
        dataset = started(False)
        wanted = [dp[1].tolist() for dp in dataset]
    with seeded(3):
        dataset = started(False)
        found = [dp[1].tolist() for _, dp in zip(range(num_before), dataset, strict=False)]
        state, dataset = dataset.state_dict(), started(True)
        dataset.load_state_dict(state)
        steps = iter(dataset)
        while len(found) < SIZE // 2:
            try:
                found.append(next(steps)[1].tolist())
            except dataflow.TimeoutError:
                resumed = started(True)
                resumed.load_state_dict(dataset.state_dict())
                assert found + [dp[1].tolist() for dp in patiently(iter(resumed))[0]] == wanted
        assert found == wanted
