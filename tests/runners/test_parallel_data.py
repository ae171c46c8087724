"""`ParallelData`: one front door for processes, threads and Ray; and `num_workers="auto"`."""

import logging
import threading

import numpy as np
import pytest

import dataflow
from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    MapData,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    NotAddressable,
    ParallelData,
    RandomMapData,
    RepeatedData,
)
from dataflow.protocol.passes import root_stream
from dataflow.runners import options
from tests.support.waits import LIMIT

BACKENDS = pytest.mark.parametrize("backend", ["process", "thread"])


def noisy(dp, rng):
    return [dp[0], rng.integers(1000), np.full(3, dp[0])]


def chain():
    return BatchData(RandomMapData(DataFromList([[k] for k in range(20)]), noisy), 4)


def values(flow):
    return [[np.asarray(part).tolist() for part in dp] for _ in range(2) for dp in flow]


@pytest.fixture(autouse=True)
def fixed_root():
    dataflow.seed(7)
    yield
    dataflow.seed(None)


@BACKENDS
@pytest.mark.parametrize("num", [0, 1, 3])
def test_its_datapoints_are_those_of_the_flow(backend, num):
    with ParallelData(chain(), num, backend=backend, timeout=LIMIT) as df:
        assert values(df) == values(chain())


@pytest.fixture
def fake_ray(monkeypatch):
    from dataflow.ray.ray_backend import RayBackend
    from tests.ray.fake_cluster import FakeCluster

    cluster = FakeCluster()
    monkeypatch.setattr(RayBackend, "make_cluster", lambda address: cluster)
    yield cluster
    cluster.actors.clear()


def test_on_ray_its_datapoints_are_those_of_the_flow(fake_ray):
    with ParallelData(chain(), 2, backend="ray", copy=True, timeout=LIMIT) as df:
        assert values(df) == values(chain())
        assert len(fake_ray.actors) == 2


class Counted(DataFlow):
    """Notes in an attribute which thread iterates it: a copy of its own has its own."""

    def __init__(self, n):
        self.n = n
        self.seen = None

    def __iter__(self):
        self.seen = threading.current_thread()
        for k in range(self.n):
            yield [k, self.seen is threading.current_thread()]

    def __len__(self):
        return self.n


def test_each_thread_has_nodes_of_its_own_that_share_their_data():
    data = [[k] for k in range(6)]
    inner = MapData(DataFromList(data, shuffle=False), list)
    df = ParallelData(RepeatedData(inner, 2), 3, backend="thread")
    nodes = [job.flow.ds for job in df._df_jobs(root_stream(df))]
    assert len({id(node) for node in nodes}) == 3 == len({id(node.ds) for node in nodes})
    assert len({id(node.ds.lst) for node in nodes}) == 1
    assert all(node.func is list for node in nodes)


def test_default_mode_over_threads_steps_a_flow_of_its_own_in_each():
    with ParallelData(Counted(5), 2, backend="thread", strict=False, timeout=LIMIT) as df:
        assert all(own for _ in range(4) for _, own in df)


def test_a_flow_that_cannot_be_addressed_needs_one_worker_or_a_map():
    ds = DataFromGenerator(lambda: ([k] for k in range(5)))
    with pytest.raises(NotAddressable, match=r"ParallelData with strict=True and 2 workers.*MultiProcessMapData"):
        ParallelData(ds, 2)
    with ParallelData(ds, 1, timeout=LIMIT) as df:
        assert list(df) == [[k] for k in range(5)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"backend": "process", "actor_options": {}},
            'actor_options= is an option of backend="ray", and backend is "p',
        ),
        ({"backend": "thread", "max_bytes": 1 << 20}, 'max_bytes= is an option of backend="process" or "ray"'),
        ({"backend": "thread", "context": "fork"}, 'context= is an option of backend="process", and'),
        ({"backend": "ray", "context": "fork"}, 'context= is an option of backend="process", and backend is "ray"'),
        ({"num_proc": 3}, "ParallelData got an unexpected keyword argument 'num_proc'"),
        ({"speed": 3}, "unexpected keyword argument 'speed'"),
    ],
)
def test_an_option_of_another_backend_is_named(given, message):
    with pytest.raises(TypeError, match=message):
        ParallelData(chain(), 1, **given)


def test_a_wrong_backend_or_number_is_named():
    with pytest.raises(ValueError, match='backend must be "process", "thread" or "ray", got \'gpu\''):
        ParallelData(chain(), 1, backend="gpu")
    with pytest.raises(
        TypeError, match=r'num_workers must be an integer ≥ 0 .run in the consumer., or "auto", got 2.5'
    ):
        ParallelData(chain(), 2.5)
    with pytest.raises(TypeError, match="ParallelData expects a dataflow, got list: wrap ds in DataFromList"):
        ParallelData([[1]], 1)


# -- the number of workers is left open --------------------------------------------------------------------------------


@pytest.fixture
def three_cores(monkeypatch):
    monkeypatch.setattr(options, "share_of_cores", lambda num_workers: 3 // num_workers)


AUTO = {
    "ParallelData": lambda: ParallelData(chain(), backend="thread", strict=False, timeout=LIMIT),
    "MultiThreadRunner": lambda: MultiThreadRunner(chain, 5, "auto", strict=True, timeout=LIMIT),
    "default": lambda: MultiProcessRunnerZMQ(chain(), "auto", timeout=LIMIT),
}


@pytest.mark.parametrize("name", AUTO)
def test_auto_is_one_worker_for_each_core_where_none_are_added_and_says_so(name, three_cores, caplog):
    with caplog.at_level(logging.INFO, "dataflow"), AUTO[name]() as df:
        assert df.num_workers == 3
        assert len(list(df)) == len(chain())
    assert '="auto" has workers: 3' in caplog.text


def test_auto_is_one_worker_where_several_could_not_share_a_pass(three_cores, caplog):
    ds = DataFromGenerator(lambda: ([k] for k in range(5)))
    with caplog.at_level(logging.INFO, "dataflow"), ParallelData(ds, timeout=LIMIT) as df:
        assert df.num_workers == 1 and list(df) == [[k] for k in range(5)]
    assert "has one worker, because DataFromGenerator cannot be addressed" in caplog.text
