"""`PrefetchToDevice`, on the CPU."""

import contextlib
import gc
import weakref

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    FixedSizeData,
    MapData,
    NotReproducible,
    PrefetchToDevice,
    RepeatedData,
    ResumableData,
)
from dataflow.errors import MissingExtra
from tests.support.contract import check_node, seeded

torch = pytest.importorskip("torch")


def numbers(n=6):
    return DataFromList([[np.full(2, k, np.float32), k, str(k)] for k in range(n)], shuffle=False)


def as_arrays(dp):
    values = {key: np.asarray(value) for key, value in (dp.items() if isinstance(dp, dict) else enumerate(dp))}
    return values if isinstance(dp, dict) else list(values.values())


def test_the_node_keeps_the_contract():
    check_node(lambda ds: MapData(PrefetchToDevice(ds, "cpu"), as_arrays))


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
    with pytest.raises(ValueError, match="depth must be an integer ≥ 1"):
        PrefetchToDevice(numbers(), "cpu", 0)
    with pytest.raises(RuntimeError, match="abacus"):
        PrefetchToDevice(numbers(), "abacus")
    with pytest.raises(TypeError, match="PrefetchToDevice expects a dataflow"):
        PrefetchToDevice([1], "cpu")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"PrefetchToDevice needs the package torch: pip install .*\[torch\]"):
        PrefetchToDevice(numbers(), "cpu")


# -- the calls of the CUDA path, without a GPU -------------------------------------------------------------------------


class FakeTensor:
    """A tensor that notes what is done with it; `where` is numpy, pinned or cuda."""

    def __init__(self, torch, where, is_cuda=False):
        self.torch, self.where, self.is_cuda = torch, where, is_cuda

    def is_pinned(self):
        return self.where == "pinned"

    def pin_memory(self):
        self.torch.calls.append(f"pin on {self.torch.current}")
        return FakeTensor(self.torch, "pinned")

    def to(self, device, non_blocking):
        self.torch.calls.append(
            f"copy from {self.where} to {device} on {self.torch.current}, blocking {not non_blocking}"
        )
        return FakeTensor(self.torch, "cuda", is_cuda=True)

    def record_stream(self, stream):
        self.torch.calls.append(f"in use on {stream}")


class FakeStream:
    def __init__(self, torch, name):
        self.torch, self.name = torch, name

    def __str__(self):
        return self.name

    def record_event(self):
        self.torch.calls.append(f"event on {self}")
        return "event"

    def wait_event(self, event):
        self.torch.calls.append(f"{self} waits for {event}")


class FakeTorch:
    """As much of torch as a copy to a GPU needs."""

    Tensor = FakeTensor

    def __init__(self):
        self.calls = []
        self.loop = self.current = FakeStream(self, "the loop's stream")
        self.cuda = self

    def Stream(self, device):
        return FakeStream(self, "the side stream")

    def current_stream(self, device):
        return self.current

    @contextlib.contextmanager
    def stream(self, stream):
        self.current = stream
        yield
        self.current = self.loop

    def device(self, name):
        return torch.device(name)

    def from_numpy(self, array):
        return FakeTensor(self, "numpy")

    def tensor(self, value):
        return FakeTensor(self, "numpy")


def test_copies_to_a_gpu_are_pinned_begun_ahead_on_their_own_stream_and_waited_for(monkeypatch):
    fake = FakeTorch()
    monkeypatch.setattr("dataflow.frameworks.device.import_torch", lambda purpose: fake)
    df = PrefetchToDevice(DataFromList([[np.ones(2), "text"]] * 2, shuffle=False), "cuda:1", depth=1)
    iterator = iter(df)
    tensor, text = next(iterator)
    assert tensor.is_cuda and text == "text"
    copy = ["pin on the side stream", "copy from pinned to cuda:1 on the side stream, blocking False"]
    copy += ["event on the side stream"]
    wait = ["the loop's stream waits for event", "in use on the loop's stream"]
    assert fake.calls == [*copy, *copy, *wait], "the second copy has begun before the loop gets the first"
    next(iterator)
    assert fake.calls == [*copy, *copy, *wait, *wait]
    assert next(iterator, None) is None


def test_after_a_pass_that_was_left_early_one_that_continues_is_refused():
    df = PrefetchToDevice(FixedSizeData(DataFromGenerator(lambda: ([k] for k in range(100))), 10), "cpu")
    assert [int(k) for (k,) in df] == list(range(10))
    assert [int(k) for _, (k,) in zip(range(10), df, strict=False)] == list(range(10, 20))
    assert int(next(iter(df))[0]) == 20
    with pytest.raises(NotReproducible, match=r"FixedSizeData continues .* after PrefetchToDevice had read ahead"):
        next(iter(df))


def test_an_endless_flow_continues_with_what_was_read_ahead():
    df = PrefetchToDevice(RepeatedData(numbers(), -1), "cpu")
    assert [int(number) for _ in range(3) for _, (_, number, _) in zip(range(4), df, strict=False)] == [
        k % 6 for k in range(12)
    ]
