"""Ray itself, and RayRunner and RayMapData on a real cluster, of one node and of two."""

import importlib.util
import itertools
import os
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

import dataflow
from dataflow import (
    BatchData,
    DataFlow,
    DataFlowError,
    DataFromList,
    FakeData,
    MapData,
    MissingExtra,
    MultiProcessRunnerZMQ,
    RayMapData,
    RayRunner,
    WorkerDied,
    worker_info,
)
from dataflow.ray import cluster as rays
from tests.ray.remote import remote
from tests.support.fakes import Draws, Forever, Numbers
from tests.support.faults import TwoArguments
from tests.support.flows import chain, listed
from tests.support.waits import LIMIT, wait_until
from tests.test_examples import assert_ended_quietly, needs_digits, run_example

ON_RAY = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


def on_ray(test):
    """Run it in a session of its own, on clusters that it starts itself."""
    for mark in ON_RAY:
        test = mark(test)
    return test


def on_the_cluster(test):
    """Run it in a session of its own, connected to the cluster of all these tests."""
    return pytest.mark.usefixtures("unseeded", "cluster")(on_ray(test))


# -- Ray itself --------------------------------------------------------------------------------------------------------


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install "dataflow-runners\[ray\]"'):
        list(RayRunner(Numbers(3)))


def test_to_import_dataflow_does_not_import_ray():
    code = "import sys, dataflow; assert 'ray' not in sys.modules, 'it does'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_child_that_was_forked_from_a_connected_process_is_refused(monkeypatch):
    monkeypatch.setattr(rays._forked, "connected", True)
    with pytest.raises(DataFlowError, match="does not survive a fork"):
        list(RayRunner(Numbers(3)))


def test_a_fork_notices_a_connection(monkeypatch):
    class Connected:
        def is_initialized(self):
            return True

    monkeypatch.setitem(sys.modules, "ray", Connected())
    noticing = rays._Forked()
    noticing.notice()
    assert noticing.connected


# -- on the cluster ----------------------------------------------------------------------------------------------------


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended, or is a zombie
        return ""


class Pids(DataFlow):
    def __iter__(self):
        for k in itertools.count():
            yield [os.getpid(), k]


@on_the_cluster
def test_strict_passes_are_those_of_the_flow_itself():
    dataflow.seed(1)
    alone = chain(3000)
    expected = [list(alone) for _ in range(3)]
    with remote(chain(3000), 2, strict=True) as df:
        assert list(df) == expected[0]
        next(iter(df))
        assert list(df) == expected[2]
        assert df[5000:5010] == alone[5000:5010]


@on_the_cluster
@pytest.mark.full  # quick is test_ray_runners.py::test_workers_have_the_random_numbers_of_workers_of_this_machine
def test_the_mixture_has_the_random_numbers_of_workers_of_this_machine():
    dataflow.seed(2)
    found = {}
    for kind in (RayRunner, MultiProcessRunnerZMQ):
        with kind(Draws(), 2, timeout=LIMIT) as df:
            streams = {0: [], 1: []}
            while min(map(len, streams.values())) < 8:
                for worker, number in df:
                    streams[worker].append(number)
            found[kind] = [numbers[:8] for numbers in streams.values()]
    assert found[RayRunner] == found[MultiProcessRunnerZMQ]


@on_the_cluster
@pytest.mark.parametrize("copied", [False, pytest.param(True, marks=pytest.mark.full)])
def test_arrays_arrive_as_they_were(copied):
    dataflow.seed(3)
    expected = list(BatchData(FakeData([(60, 60), (3,)], 200, dtype="float32"), 50))
    with remote(BatchData(FakeData([(60, 60), (3,)], 200, dtype="float32"), 50), strict=True, copy=copied) as df:
        for (large, small), (large_too, small_too) in zip(df, expected, strict=True):
            assert (large == large_too).all() and (small == small_too).all()
            assert large.flags.writeable == copied and small.flags.writeable


@on_the_cluster
def test_a_map_reads_here_and_works_there():
    def where(dp):
        return [dp[0], os.getpid(), float(dp[1].sum())]

    source = DataFromList([[k, np.full(3000, k)] for k in range(500)], shuffle=False)
    with RayMapData(source, 1, where, strict=True, timeout=LIMIT) as df:
        for _ in range(2):
            found = list(df)
            assert [(k, total) for k, _, total in found] == [(k, 3000.0 * k) for k in range(500)]
            assert os.getpid() not in {pid for _, pid, _ in found}


@on_the_cluster
@pytest.mark.full  # quick is test_pull_channel.py::test_an_exception_comes_after_all_that_was_made_before_it
def test_an_exception_arrives_as_itself_after_all_before_it():
    class Failing(DataFlow):
        def __iter__(self):
            yield from ([k] for k in range(7))
            raise TwoArguments(7, "/data/x")

    found = []
    with pytest.raises(TwoArguments, match="code 7 at /data/x") as caught:
        found.extend(remote(Failing(), strict=True))
    assert found == [[k] for k in range(7)]
    assert caught.value.path == "/data/x" and "__iter__" in str(caught.value.__cause__)


@on_the_cluster
@pytest.mark.parametrize("strike", ["os._exit(1)", pytest.param("os.kill(os.getpid(), 9)", marks=pytest.mark.full)])
def test_a_worker_that_dies_is_reported_with_what_ray_says(strike):
    def func(dp):
        if dp[0] == 500:
            exec(strike, {"os": os})
        return dp

    found = []
    with pytest.raises(WorkerDied, match=r"worker 0 of 1 of RayRunner \(an actor, pid \d+ on .* is lost") as caught:
        found.extend(remote(MapData(listed(1000), func)))
    assert found == [[k] for k in range(len(found))] and len(found) <= 500
    assert "actor" in str(caught.value.__cause__)


@on_the_cluster
@pytest.mark.parametrize("num", [1, pytest.param(2, marks=pytest.mark.full)])
def test_killed_actors_change_nothing(num):
    dataflow.seed(4)
    expected = list(chain(4000))
    with remote(chain(4000), 2, strict=True, max_restarts=num) as df:
        found = []
        for dp in df:
            found.append(dp)
            if len(found) in (500, 2000)[:num]:
                os.kill(pid_of_an_actor(), signal.SIGKILL)
        assert found == expected
        assert list(df) != expected


def pid_of_an_actor():
    def find():
        children = psutil.Process().children(recursive=True)
        return [child.pid for child in children if "WorkerActor" in command_of(child)]

    return wait_until(find, LIMIT, "there is no actor")[0]


@on_the_cluster
@pytest.mark.full  # quick is test_pull_channel.py::test_sys_exit_is_told_from_a_loss
def test_sys_exit_is_told_from_a_loss():
    with pytest.raises(WorkerDied, match="exit code 3"):
        list(remote(MapData(listed(10), lambda dp: sys.exit(3))))


@on_the_cluster
def test_there_is_no_room_for_so_many():
    options = {"num_cpus": 0, "resources": {"of the test without room": 3}}
    df = remote(Forever(), 2, actor_options=options, start_timeout=5)
    message = r"worker \d of 2 .*It requests of the test without room 3; free in .*, of the test without room 1"
    with pytest.raises(dataflow.TimeoutError, match=message):
        list(map(str, df))


@on_the_cluster
def test_workers_of_this_machine_run_inside_an_actor():
    dataflow.seed(5)
    expected = list(chain(300))
    inner = MultiProcessRunnerZMQ(MapData(chain(300), with_path), 2, strict=True, timeout=LIMIT)
    with remote(inner, 1, strict=True) as df:
        found = list(df)
    assert [dp for dp, _ in found] == expected
    assert {path for _, path in found} & {((0, 1), (0, 2)), ((0, 1), (1, 2))}


@on_the_cluster
@pytest.mark.full  # quick is the one above
def test_so_do_those_of_a_default_runner():
    with remote(MultiProcessRunnerZMQ(MapData(listed(10), with_path), 2, timeout=LIMIT), 1) as df:
        assert next(iter(df))[1] in {((0, 1), (0, 2)), ((0, 1), (1, 2))}


def with_path(dp):
    return dp, tuple(map(tuple, worker_info().path))


@on_the_cluster
def test_after_close_no_process_is_left(cluster):
    def free():
        return cluster.available_resources().get("of the test of close")

    with remote(Pids(), actor_options={"resources": {"of the test of close": 1}}) as df:
        it = iter(df)
        pids = {pid for pid, _ in itertools.islice(it, 1000)}
        wait_until(lambda: free() == 3, LIMIT, lambda: f"{free()} of 4 are free")
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), LIMIT, "an actor lives on")
    wait_until(lambda: free() == 4, LIMIT, lambda: f"{free()} of 4 are free")


@on_the_cluster
@pytest.mark.full  # quick is test_pull_channel.py::test_an_actor_that_is_starting_is_told_to_stop_and_not_killed
def test_actors_that_are_starting_when_the_flow_is_closed_end_by_themselves(cluster):
    def free():
        return cluster.available_resources().get("of the test of close")

    options = {"num_cpus": 0, "resources": {"of the test of close": 1}}
    for num in (6, 1):  # there is no room for two of the first
        with remote(Pids(), num, actor_options=options) as df:
            next(iter(df))
    wait_until(lambda: free() == 4, LIMIT, lambda: f"{free()} of 4 are free")


@on_the_cluster
def test_nothing_piles_up_while_the_consumer_does_something_else(cluster):
    with remote(MapData(Numbers(10**6), lambda dp: [np.zeros(1 << 20, np.uint8)]), max_bytes=12 << 20) as df:
        it = iter(df)
        next(it)
        free = []

        def is_steady():
            free.append(cluster.available_resources()["object_store_memory"])
            return len(free) > 20 and len(set(free[-10:])) == 1

        wait_until(is_steady, LIMIT, "it goes on and on")
        assert free[-1] > 200 << 20
        del it


@on_the_cluster
@pytest.mark.full  # quick is test_ray_runners.py::test_a_loop_goes_on_where_the_last_one_was_left
def test_a_loop_goes_on_where_the_last_one_was_left():
    with remote(Forever()) as df:
        assert list(itertools.islice(df, 100)) == [[k] for k in range(100)]
        assert list(itertools.islice(df, 100)) == [[k] for k in range(100, 200)]


@on_the_cluster
@pytest.mark.full  # quick is test_ray_runners.py::test_actors_send_their_counters_with_their_replies
def test_actors_send_their_counters_with_their_replies():
    with remote(chain(3000), 2, strict=True) as df:
        list(df)
        wait_until(lambda: sum(w.datapoints for w in df.statistics().runners[0].workers) >= 3000, LIMIT, "all counted")
        (runner,) = df.statistics().runners
        assert all(worker.busy_seconds > 0 for worker in runner.workers if worker.datapoints)
        assert os.getpid() not in {worker.pid for worker in runner.workers}
        assert "busy" in df.report()


# -- the example of a cluster that loses a node ------------------------------------------------------------------------


@on_ray
@needs_digits
@pytest.mark.full  # quick is the test of killed actors above
def test_a_node_that_is_killed_in_mid_pass_changes_nothing() -> None:
    run = run_example("cluster.py", "--epochs", "10")
    assert_ended_quietly(run)
    assert "killed   one of the nodes, in the middle of pass 5" in run.stdout
    assert "14370 datapoints: each of 1437 digits exactly once in each of 10 passes: yes" in run.stdout
    assert "the order is that of the run without a cluster: yes" in run.stdout
    alone, cluster = re.findall(r"^(?:alone|cluster)  +([\d.]+)% right", run.stdout, re.MULTILINE)
    assert alone == cluster
    assert "Another was started in its place: restart 1, of at most 1" in run.stderr
