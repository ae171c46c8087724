"""Datapoints that stay in Ray's object store, while their ids travel."""

import copy
import importlib.util
import pickle
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest

from dataflow import (
    DataFlowError,
    DataFromList,
    FilterData,
    MapData,
    MissingExtra,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiThreadMapData,
    NotPicklable,
    ResumableData,
    TimeoutError,
    WorkerDied,
)
from dataflow.ray.datasets import to_ray_dataset
from dataflow.ray.object_store import ObjectId, PlasmaGetData, PlasmaPutData
from tests.support.contract import check_node, seeded
from tests.support.waits import LIMIT, wait_until

on_a_cluster = pytest.mark.usefixtures("cluster")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]

LARGE = 20 << 20  # bytes; a dozen fill the store


@pytest.fixture
def ray(cluster):
    return cluster


def numbers(n=6, **kwargs):
    return DataFromList([[np.full(3, k), k] for k in range(n)], **kwargs)


def stored(n=6):
    return list(PlasmaPutData(numbers(n, shuffle=False)))


def got(ids):
    return [dp[1] for dp in PlasmaGetData(DataFromList(ids, shuffle=False), timeout=LIMIT)]


@on_a_cluster
def test_put_and_get_are_nodes_like_any_other():
    check_node(lambda ds: PlasmaGetData(PlasmaPutData(ds)))


@on_a_cluster
def test_what_is_passed_on_is_an_id(ray):
    (dp,) = stored(1)
    (found,) = dp
    assert type(found) is ObjectId
    assert ray.get(found.ref)[1] == 0
    assert repr(found) == f"ObjectId({found.ref.hex()})"
    assert found == ObjectId(found.ref) and len({found, ObjectId(found.ref)}) == 1
    assert copy.copy(found) is copy.deepcopy(found) is found


@on_a_cluster
def test_a_dropped_datapoint_stays_dropped():
    df = PlasmaGetData(PlasmaPutData(MapData(numbers(shuffle=False), lambda dp: dp if dp[1] % 2 else None)))
    assert [dp[1] for dp in df] == [dp[1] for dp in df[:6]] == [1, 3, 5]
    assert [dp[1] for dp in PlasmaGetData(PlasmaPutData(FilterData(numbers(), lambda dp: dp[1] == 2)))] == [2]


@on_a_cluster
def test_arrays_are_read_in_place():
    (dp,) = PlasmaGetData(DataFromList([*stored(1)]))
    with pytest.raises(ValueError, match="read-only"):
        dp[0][:] = 1
    (large,) = PlasmaPutData(DataFromList([[np.zeros(LARGE, np.uint8)]]))
    one, other = PlasmaGetData(DataFromList([large, large]))
    assert np.shares_memory(one[0], other[0])


@on_a_cluster
def test_references_of_ray_are_ids_too(ray):
    assert got([[ray.put([0, 7])]]) == [7]


@on_a_cluster
def test_ids_stand_for_their_datapoints_in_tasks_and_actors_too(ray):
    @ray.remote
    class Holder:
        def keep(self, ids):
            self.ids = ids

        def read(self):
            return got(self.ids)

        def pass_on(self):
            return self.ids

    holder = Holder.remote()
    try:
        ray.get(holder.keep.remote(stored()), timeout=LIMIT)
        # Nobody else holds them now.
        assert ray.get(holder.read.remote(), timeout=LIMIT) == list(range(6))
        assert got(ray.get(holder.pass_on.remote(), timeout=LIMIT)) == list(range(6))
    finally:
        ray.kill(holder)


@on_a_cluster
def test_the_reference_is_an_argument_as_ray_knows_it(ray):
    @ray.remote
    def second(dp):
        return dp[1]

    assert ray.get([second.remote(found.ref) for (found,) in stored()], timeout=LIMIT) == list(range(6))


@on_a_cluster
def test_the_store_holds_what_the_loop_holds(ray):
    def free():
        return ray.available_resources()["object_store_memory"]

    arrays = MapData(DataFromList([[k] for k in range(40)]), lambda dp: [np.zeros(LARGE, np.uint8)])
    held = list(PlasmaPutData(arrays)[:3])
    low = ray.cluster_resources()["object_store_memory"] - 2 * LARGE
    wait_until(lambda: free() < low, LIMIT, lambda: f"{free()} bytes are free")
    del held
    for dp in PlasmaGetData(PlasmaPutData(arrays)):  # three times as much as there is room for
        assert dp[0].nbytes == LARGE
    del dp
    wait_until(lambda: free() > low, LIMIT, lambda: f"{free()} bytes are free")


@on_a_cluster
def test_datapoints_are_lost_with_the_process_that_has_put_them(ray):
    @ray.remote
    class Putter:
        def put(self):
            return stored()

    putter = Putter.remote()
    ids = ray.get(putter.put.remote(), timeout=LIMIT)
    assert got(ids[:1]) == [0]
    ray.kill(putter)

    def loss():
        try:
            got(ids[1:])
        except WorkerDied as error:
            return error
        return None

    error = wait_until(loss, LIMIT, "nobody noticed")
    assert "Keep the process with PlasmaPutData alive" in str(error)
    assert isinstance(error.__cause__, ray.exceptions.ObjectLostError)


@on_a_cluster
def test_a_datapoint_that_does_not_come_is_waited_for_no_longer_than_said(ray):
    @ray.remote
    class Gate:
        def __init__(self):
            import threading

            self.opened = threading.Event()

        def wait(self):
            self.opened.wait()

    gate = Gate.remote()
    df = PlasmaGetData(DataFromList([[gate.wait.remote()]]), timeout=0.1)
    try:
        with pytest.raises(TimeoutError, match=r"waited 0\.1 seconds"):
            list(df)
    finally:
        ray.kill(gate)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_nobody_but_ray_can_send_an_id(dumps):
    with pytest.raises(TypeError, match="can be sent only by Ray"):
        dumps([ObjectId(None)])


@on_a_cluster
def test_runners_and_maps_refuse_ids_and_threads_pass_them_on():
    df = MultiProcessMapData(DataFromList(stored()), 1, list, strict=True)
    with df, pytest.raises(TypeError, match="only by Ray"):
        list(df)
    with MultiThreadMapData(DataFromList(stored(), shuffle=False), 2, list, strict=True) as df:
        assert got(list(df)) == list(range(6))


@on_a_cluster
@pytest.mark.parametrize("node", [PlasmaPutData, pytest.param(PlasmaGetData, marks=pytest.mark.full)])
def test_a_worker_process_has_no_store(node):
    flow = node(numbers())
    with MultiProcessRunner(flow, 10, 1, context="fork") as df, pytest.raises(DataFlowError, match="was forked from"):
        list(df)
    message = rf"{node.__name__} runs in process \d+, which is not connected to a Ray cluster. Put it above the runner"
    with MultiProcessRunner(flow, 10, 1, context="spawn") as df, pytest.raises(DataFlowError, match=message):
        list(df)


@on_a_cluster
def test_a_worker_process_that_is_told_the_address_has_the_store(ray):
    address = ray.get_runtime_context().gcs_address
    flow = PlasmaGetData(PlasmaPutData(numbers(shuffle=False), address), address)
    with MultiProcessRunner(flow, 10, 1, context="spawn", timeout=LIMIT) as df:
        assert [dp[1] for dp in df] == list(range(6))


@on_a_cluster
def test_ids_that_are_part_of_a_flow_cannot_be_sent_with_it():
    df = MultiProcessRunner(DataFromList(stored()), 10, 1, context="spawn")
    with df, pytest.raises(NotPicklable, match=r"DataFromList.lst .* can be sent only by Ray"):
        list(df)


@on_a_cluster
def test_a_saved_state_knows_nothing_of_the_cluster():
    def chain(**kwargs):
        return ResumableData(PlasmaGetData(PlasmaPutData(numbers()), **kwargs))

    with seeded(1):
        expected = [dp[1] for dp in chain()]
        df = chain()
        assert next(iter(df))[1] == expected[0]
        resumed = chain(socket="auto", timeout=LIMIT)
        resumed.load_state_dict(df.state_dict())
        assert [dp[1] for dp in resumed] == expected[1:]


@on_a_cluster
@pytest.mark.parametrize("found", [b"0123", 5, None])
def test_what_is_no_id_is_named(found):
    with pytest.raises(TypeError, match=rf"expects datapoints \[id\] .* got a {type(found).__name__}"):
        list(PlasmaGetData(DataFromList([[found]])))


@pytest.mark.parametrize("node", [PlasmaPutData, PlasmaGetData])
def test_the_path_of_a_plasma_store_is_no_address(node):
    message = f"{node.__name__}: socket is the address of a Ray cluster, or None, got '/tmp/plasma'.*leave socket out"
    with pytest.raises(ValueError, match=message):
        node(numbers(), "/tmp/plasma")


def test_a_timeout_is_a_number_of_seconds():
    with pytest.raises(ValueError, match="timeout must be a number of seconds > 0"):
        PlasmaGetData(numbers(), timeout=0)


@pytest.mark.parametrize("use", [PlasmaPutData, PlasmaGetData, lambda df: to_ray_dataset(df, ["x", "y"])])
def test_without_ray_it_is_said_what_to_install(monkeypatch, use):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"\[ray(-data)?\]"):
        list(use(numbers()))


def test_ray_is_imported_no_sooner_than_a_cluster_is_needed():
    # Where a cluster listens is decided when ray is imported.
    code = """
import sys
from dataflow import DataFromList, PlasmaGetData, PlasmaPutData
PlasmaGetData(PlasmaPutData(DataFromList([[1]])))
print("ray" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout == "False\n"
