"""A timeout is a pause, where the work is done in a cluster or its store."""

import numpy as np
import pytest

import dataflow
from dataflow import BatchData, DataFromList, FixedSizeData, MapData, RayRunner, ShuffleData
from dataflow.ray import object_store
from dataflow.ray.object_store import PlasmaGetData
from tests.support.faults import deadline
from tests.support.pauses import Gate, LateInOrder, patiently, taken_patiently
from tests.support.waits import LIMIT

SIZE = 12
SOON = 0.05


def listed():
    return DataFromList([[k] for k in range(SIZE)], shuffle=False)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("at", [0, 5])
def test_an_iterator_over_workers_of_a_cluster_waits_again(fake, tmp_path, strict, at):
    gate = Gate(tmp_path / "open", at)
    with deadline(LIMIT), RayRunner(MapData(listed(), gate), 1, strict=strict, timeout=SOON) as df:
        steps = iter(df)
        found = taken_patiently(steps, at, gate.open, num_late=0)
        with pytest.raises(dataflow.TimeoutError, match="The same iterator waits again"):
            next(steps)
        found += taken_patiently(steps, 1, gate.open) + patiently(steps)[0]
        assert found == [[k] for k in range(SIZE)]
        assert len(fake.actors) == 1


def test_two_workers_of_a_cluster_lose_nothing_above_which_batches_are_made(fake, tmp_path):
    gate = Gate(tmp_path / "open", 5)
    with deadline(LIMIT), RayRunner(MapData(listed(), gate), 2, strict=True, timeout=SOON) as runner:
        batches = taken_patiently(iter(BatchData(runner, 4)), 3, gate.open)
        assert [k for (batch,) in batches for k in batch] == list(range(SIZE))


class GetTimeoutError(Exception):
    pass


class Store:
    """An object store whose objects come after two timeouts each."""

    class exceptions:
        GetTimeoutError = GetTimeoutError
        ObjectLostError = KeyError

    class ObjectRef:
        def __init__(self, k):
            self.k = k

    def __init__(self):
        self.asked = []

    def get(self, ref, timeout):
        assert timeout == SOON
        self.asked.append(ref.k)
        if len(self.asked) % 3:
            raise GetTimeoutError
        return [np.full(2, ref.k), ref.k]


@pytest.mark.parametrize("late_ids", [True, False])
def test_an_object_is_asked_for_again(monkeypatch, late_ids):
    store = Store()
    monkeypatch.setattr(object_store, "ray_package", lambda: store)
    monkeypatch.setattr(PlasmaGetData, "reset_state", dataflow.ProxyDataFlow.reset_state)
    ids = DataFromList([[Store.ObjectRef(k)] for k in range(SIZE)], shuffle=False)
    df = PlasmaGetData(LateInOrder(ids) if late_ids else ids, timeout=SOON)
    df = FixedSizeData(df, SIZE) if late_ids else ShuffleData(df)
    found, num_late = patiently(iter(df))
    assert sorted(dp[1] for dp in found) == list(range(SIZE))
    assert [dp[0] for dp in found] == [[dp[1]] * 2 for dp in found]
    assert len(store.asked) == 3 * SIZE and num_late >= 2 * SIZE
