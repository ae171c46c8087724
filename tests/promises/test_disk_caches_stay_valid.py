"""A cache on disk above runners and parallel maps: valid however the flow is run, and never of a mixture."""

import itertools
import logging
import multiprocessing
import os

import numpy as np
import pytest

from dataflow import (
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    DiskCacheData,
    FixedSizeData,
    MapData,
    MapDataComponent,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotReproducible,
    NotStorable,
    RandomMapData,
    RayMapData,
    RayRunner,
    RemoteDataZMQ,
)
from dataflow.protocol.fingerprints import describe


def double(dp):
    return [dp[0] * 2]


def noisy(dp, rng):
    return [dp[0] + rng.integers(10)]


def prepare():
    """Called in each worker."""


def numbers(num=8):
    return DataFromList([[k] for k in range(num)], shuffle=False)


def serial():
    return MapData(numbers(), double)


def batched():
    return BatchData(serial(), 3, remainder=True)


def random():
    return RandomMapData(numbers(), noisy)


RUNS = {
    "zmq": (serial, lambda n, **more: MultiProcessRunnerZMQ(serial(), n, strict=True, **more)),
    "pipes": (serial, lambda n, **more: MultiProcessRunner(serial(), 5, n, strict=True, **more)),
    "threads": (serial, lambda n, **more: MultiThreadRunner(serial, 5, n, strict=True, **more)),
    "map": (serial, lambda n, **more: MultiProcessMapData(numbers(), n, double, strict=True, **more)),
    "thread map": (serial, lambda n, **more: MultiThreadMapData(numbers(), n, double, strict=True, **more)),
    "random map": (
        random,
        lambda n, **more: MultiProcessMapData(numbers(), n, noisy, strict=True, with_rng=True, **more),
    ),
    "map and batch": (
        batched,
        lambda n, **more: MultiProcessMapAndBatchData(numbers(), n, double, 3, remainder=True, strict=True, **more),
    ),
    "ray": (serial, lambda n, **more: RayRunner(serial(), n, strict=True, **more)),
    "ray map": (serial, lambda n, **more: RayMapData(numbers(), n, double, strict=True, **more)),
    "map of a component": (
        None,
        lambda n, **more: MultiProcessMapDataComponentSharedArray(
            numbers(), n, np.sqrt, (2,), "f4", strict=True, **more
        ),
    ),
}
FORKED = {"context": ("fork", "spawn", multiprocessing.get_context("forkserver")), "max_bytes": (1 << 20, 1 << 30)}
SETTINGS = {
    "timeout": (3, 5.5),
    "worker_init": (prepare, print),
    "max_restarts": (1, 5),
    "max_failures": (1, 0.5),
}
OWN = {
    "zmq": {"hwm": (5, 500), "thread_limit": (1, None), **FORKED},
    "pipes": FORKED,
    "map": {"buffer_size": (10, 100), "thread_limit": (1, None), **FORKED},
    "random map": {"buffer_size": (10, 100), **FORKED},
    "thread map": {"buffer_size": (10, 100)},
    "map and batch": {"buffer_size": (10, 100), **FORKED},
    "map of a component": FORKED,
    "ray": {
        "max_bytes": (1 << 24, 1 << 25),
        "actor_options": ({"num_cpus": 2},),
        "address": ("auto",),
        "start_timeout": (4, 8),
    },
    "ray map": {"max_bytes": (1 << 24, 1 << 25), "actor_options": ({"num_cpus": 2},), "address": ("auto",)},
}


def variants(name):
    """One flow, run in many ways."""
    _, make = RUNS[name]
    yield from (make(n) for n in (0, 1, 2, 7))
    for setting, values in {**SETTINGS, **OWN.get(name, {})}.items():
        yield from (make(2, **{setting: value}) for value in values)


@pytest.mark.parametrize("name", RUNS)
def test_a_description_says_nothing_about_how_a_flow_is_run(name):
    alone = RUNS[name][0]
    described = {describe(df) for df in variants(name)}
    assert len(described) == 1
    if alone is not None:
        assert described == {describe(alone())}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_worked_on_still_counts(name):
    make = RUNS[name][1]
    assert describe(make(2)) != describe(MapData(make(2), double))
    assert describe(DiskCacheData(make(2), "a")) != describe(make(2))


def strict_map(num=8, func=double):
    return MultiProcessMapData(numbers(num), 2, func, strict=True)


def strict_batches(batch_size):
    return MultiProcessMapAndBatchData(numbers(), 2, double, batch_size, strict=True)


def received(port):
    return RemoteDataZMQ(f"tcp://127.0.0.1:{port}", num_senders=1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (strict_map, lambda: strict_map(num=9)),
        (strict_map, lambda: strict_map(func=prepare)),
        (lambda: strict_batches(3), lambda: strict_batches(4)),
        (lambda: MultiThreadRunner(serial, 5, 2, strict=True), lambda: MultiThreadRunner(numbers, 5, 2, strict=True)),
        (lambda: received(5001), lambda: received(5002)),
    ],
)
def test_what_comes_out_decides_about_a_description(one, other):
    assert describe(one()) == describe(one()) != describe(other())


def test_settings_of_other_nodes_are_left_out_as_well():
    def receiver(**more):
        return describe(RemoteDataZMQ("tcp://127.0.0.1:5001", num_senders=1, **more))

    settings = [{"hwm": 7}, {"hwm_bytes": 1 << 20}, {"heartbeat": 1.5}, {"timeout": 4}]
    assert {receiver(**more) for more in settings} == {receiver()}
    assert describe(MapData(numbers(), double, max_failures=2)) == describe(serial())
    component = [describe(MapDataComponent(numbers(), abs, max_failures=budget)) for budget in (None, 3)]
    assert component[0] == component[1]


def test_a_packed_list_is_described_as_the_list():
    def source(packed):
        return DataFromList([[k, f"{k}"] for k in range(5)], packed=packed)

    assert describe(source(True)) == describe(source(False))
    assert describe(source(True)) != describe(DataFromList([[1]], packed=True))


class Doubling(MultiProcessRunnerZMQ):
    """A user's own runner, which changes what comes out."""

    factor = 2

    def __iter__(self):
        for dp in super().__iter__():
            yield [dp[0] * self.factor]


def test_a_users_own_runner_counts_by_its_code_and_not_by_its_workers():
    descriptions = {describe(Doubling(serial(), n, hwm=h, strict=True)) for n in (1, 2) for h in (1, 50)}
    assert len(descriptions) == 1
    assert descriptions != {describe(serial())}
    assert "Doubling" in descriptions.pop()


# -- runs --------------------------------------------------------------------------------------------------------------


def once(df, path):
    with DiskCacheData(df, path) as cache:
        return list(cache)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (serial, lambda: MultiProcessRunnerZMQ(serial(), 2, hwm=3, strict=True, timeout=60)),
        (lambda: MultiProcessRunnerZMQ(serial(), 2, strict=True, timeout=60), serial),
        (
            lambda: MultiProcessMapData(numbers(), 2, double, strict=True, timeout=60),
            lambda: MultiThreadRunner(serial, 5, 3, strict=True),
        ),
        (lambda: MultiProcessRunner(serial(), 3, 1, timeout=60), serial),
        (
            lambda: MultiThreadMapData(numbers(), 1, double, strict=True),
            lambda: MultiThreadMapData(numbers(), 3, double, strict=True),
        ),
    ],
)
def test_a_file_stays_valid_when_the_flow_is_run_in_another_way(tmp_path, caplog, first, then):
    path = tmp_path / "cache"
    expected = list(serial())
    assert once(first(), path) == expected
    written = os.stat(path)
    with caplog.at_level(logging.WARNING):
        assert once(then(), path) == expected
    assert os.stat(path).st_mtime_ns == written.st_mtime_ns
    assert "filled again" not in caplog.text


def test_batches_of_a_parallel_map_are_those_without_workers(tmp_path):
    make = lambda: MultiProcessMapAndBatchData(numbers(), 2, double, 3, remainder=True, strict=True, timeout=60)  # noqa: E731
    found = once(make(), tmp_path / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskCacheData, "_fill", None)  # so a second filling would fail
        assert [dp[0].tolist() for dp in once(batched(), tmp_path / "cache")] == [dp[0].tolist() for dp in found]


MIXTURES = {
    "zmq": lambda: MultiProcessRunnerZMQ(serial(), 2),
    "pipes": lambda: MultiProcessRunner(serial(), 5, 3),
    "threads": lambda: MultiThreadRunner(serial, 5, 2),
    "ray": lambda: RayRunner(serial(), 2),
    "unordered zmq": lambda: MultiProcessRunnerZMQ(serial(), 2, strict=True, ordered=False),
    "unordered threads": lambda: MultiThreadRunner(serial, 5, 2, strict=True, ordered=False),
    "unordered map": lambda: MultiProcessMapData(numbers(), 2, double, strict=True, ordered=False),
    "unordered thread map": lambda: MultiThreadMapData(numbers(), 2, double, strict=True, ordered=False),
    "unordered map and batch": lambda: MultiProcessMapAndBatchData(numbers(), 2, double, 2, strict=True, ordered=False),
}


@pytest.mark.parametrize("fingerprint", [None, "mine"])
@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_is_refused_with_the_cure_wherever_it_stands(tmp_path, name, fingerprint):
    for wrap in (lambda df: df, lambda df: MapData(df, double), lambda df: FixedSizeData(BatchData(df, 1), 3)):
        df = MIXTURES[name]()
        with pytest.raises(NotReproducible, match=rf"but {type(df).__name__} mixes.*strict=True"):
            DiskCacheData(wrap(df), tmp_path / "cache", fingerprint=fingerprint)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fingerprint", [None, "mine"])
@pytest.mark.parametrize(
    "make", [MultiProcessMapData, MultiThreadMapData, lambda *args: MultiProcessMapAndBatchData(*args, 2)]
)
def test_a_default_map_is_refused_with_the_cure(tmp_path, make, fingerprint):
    with pytest.raises(ValueError, match=r"strict=True"):
        DiskCacheData(make(numbers(), 2, double), tmp_path / "cache", fingerprint=fingerprint)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_default_runner_with_one_worker_is_cached_from_a_whole_pass(tmp_path, workers):
    runner = MultiThreadRunner(serial, 5, workers)
    assert len(list(itertools.islice(runner, 3))) == 3  # it goes on where it stopped, but the cache does not
    with DiskCacheData(runner, tmp_path / "cache") as df:
        assert list(df) == list(serial()) == list(df)


class FailsOnce(DataFlow):
    """A source of which the first pass holds something that cannot be stored."""

    def __init__(self):
        self.good = False

    def __len__(self):
        return 4

    def __iter__(self):
        good, self.good = self.good, True
        yield from ([k if good or k != 2 else print] for k in range(4))


def test_a_second_attempt_to_fill_it_keeps_a_whole_pass(tmp_path):
    with DiskCacheData(MultiThreadRunner(FailsOnce, 5, 1), tmp_path / "cache", fingerprint="x") as df:
        with pytest.raises(NotStorable):
            list(df)
        assert list(df) == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    "source",
    [
        lambda: DataFromGenerator([k if k != 2 else print] for k in range(5)),
        lambda: DataFromIterable(iter([[1], [print], [3]])),
    ],
)
def test_a_second_attempt_over_an_iterator_that_was_begun_is_refused(tmp_path, source):
    with DiskCacheData(MapData(source(), lambda dp: dp), tmp_path / "cache", fingerprint="x") as df:
        with pytest.raises(NotStorable):
            list(df)
        with pytest.raises(NotReproducible, match=r"was broken off.*create the flow again"):
            list(df)
    assert os.listdir(tmp_path) == []
