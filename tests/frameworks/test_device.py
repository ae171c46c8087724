"""`PrefetchToDevice`, on the CPU."""

import gc
import weakref

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    MapData,
    PrefetchToDevice,
    ResumableData,
)
from dataflow.errors import MissingExtra
from tests.support.contract import seeded

torch = pytest.importorskip("torch")


def numbers(n=6):
    return DataFromList([[np.full(2, k, np.float32), k, str(k)] for k in range(n)], shuffle=False)


def test_datapoints_are_tensors_in_order_and_text_stays():
    df = PrefetchToDevice(numbers(), "cpu")
    for _ in range(2):
        found = list(df)
        assert [int(number) for _, number, _ in found] == list(range(6)) and found[3][2] == "3"
        assert all(image.dtype == torch.float32 and number.dtype == torch.int64 for image, number, _ in found)
    assert len(df) == 6 and df.addressable and int(df[8][1]) == 2


def test_copies_are_made_and_the_source_is_free():
    arrays = [[np.ones(3)] for _ in range(3)]
    for (tensor,), (array,) in zip(PrefetchToDevice(DataFromList(arrays, shuffle=False), "cpu"), arrays, strict=True):
        assert tensor.data_ptr() != array.ctypes.data


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_it_is_as_many_datapoints_ahead_as_asked(depth):
    made = []

    def source():
        for k in range(9):
            made.append(k)
            yield [k]

    iterator = iter(PrefetchToDevice(DataFromGenerator(source), "cpu", depth))
    next(iterator)
    assert len(made) == depth + 1
    next(iterator)
    assert len(made) == depth + 2
    assert [int(k) for (k,) in iterator] == list(range(2, 9))


def test_a_failure_comes_after_the_datapoints_before_it():
    def fail(dp):
        return [10 // (4 - dp[1])]

    iterator = iter(PrefetchToDevice(MapData(numbers(), fail), "cpu", depth=3))
    assert [int(next(iterator)[0]) for _ in range(4)] == [2, 3, 5, 10]
    with pytest.raises(ZeroDivisionError):
        next(iterator)


def test_it_can_be_resumed_at_the_datapoint_that_the_loop_has():
    with seeded(2):
        whole = [int(k) for _, k, _ in PrefetchToDevice(numbers(), "cpu")]
        df = ResumableData(PrefetchToDevice(numbers(), "cpu"))
        iterator = iter(df)
        next(iterator), next(iterator)
        other = ResumableData(PrefetchToDevice(numbers(), "cpu", depth=4))
        other.load_state_dict(df.state_dict())
        assert [int(k) for _, k, _ in other] == whole[2:]


def test_it_takes_a_data_loader():
    loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=3)
    assert [batch.tolist() for batch in PrefetchToDevice(DataFromIterable(loader), "cpu")] == [[0, 1, 2], [3, 4, 5]]


def test_nothing_is_kept_after_the_loop():
    df = PrefetchToDevice(BatchData(numbers(), 2), torch.device("cpu"))
    kept = [weakref.ref(image) for image, _, _ in df]
    gc.collect()
    assert not any(ref() is not None for ref in kept[:-1])


def test_wrong_parameters_are_named(monkeypatch):
    with pytest.raises(ValueError, match="depth is an integer from 1"):
        PrefetchToDevice(numbers(), "cpu", 0)
    with pytest.raises(RuntimeError, match="abacus"):
        PrefetchToDevice(numbers(), "abacus")
    with pytest.raises(TypeError, match="PrefetchToDevice expects a dataflow"):
        PrefetchToDevice([1], "cpu")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"PrefetchToDevice needs the package torch: pip install .*\[torch\]"):
        PrefetchToDevice(numbers(), "cpu")
