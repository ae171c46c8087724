"""Several threads step one iterator of whatever has workers: each datapoint comes once, and no pass ends early."""

import threading

import numpy as np
import pytest

from dataflow import (
    BackgroundData,
    BackgroundProc,
    BatchData,
    CacheData,
    ConcatData,
    DataFromList,
    DiskCacheData,
    JoinData,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    RemoteDataZMQ,
    RepeatedData,
    ShuffleData,
)
from tests.support.faults import deadline
from tests.support.products import repeated
from tests.support.senders import LOOPBACK, Sending
from tests.support.threads import stepped_by_threads, switching_often
from tests.support.waits import LIMIT

N = 32


def listed():
    return DataFromList([[k, "a"] for k in range(N)], shuffle=False)


def halves():
    return [DataFromList([[k] for k in part], shuffle=False) for part in (range(N // 2), range(N // 2, N))]


def same(dp):
    return dp


def as_array(number):
    return np.full(3, number)


class Counting:
    """[0, 1], [1, 1], … in whatever process it is called."""

    def __init__(self):
        self.count = -1

    def __call__(self):
        self.count += 1
        return self.count, 1


def cached_on_disk(path):
    return DiskCacheData(listed(), str(path / "cache"))


PASSES = {
    "MultiProcessRunner": lambda: MultiProcessRunner(listed(), 20, 2, strict=True, timeout=LIMIT),
    "MultiProcessRunnerZMQ": lambda: MultiProcessRunnerZMQ(listed(), 2, strict=True, timeout=LIMIT),
    "MultiProcessRunnerZMQ, any order": lambda: MultiProcessRunnerZMQ(
        listed(), 2, strict=True, ordered=False, timeout=LIMIT
    ),
    "MultiProcessRunnerZMQ, whole passes": lambda: MultiProcessRunnerZMQ(
        CacheData(MapData(listed(), same)), 1, strict=True, timeout=LIMIT
    ),
    "MultiThreadRunner": lambda: MultiThreadRunner(listed, 20, 2, strict=True, timeout=LIMIT),
    "MultiProcessMapData": lambda: MultiProcessMapData(listed(), 2, same, strict=True, timeout=LIMIT),
    "MultiThreadMapData": lambda: MultiThreadMapData(listed(), 2, same, strict=True, timeout=LIMIT),
    "MultiThreadMapData, no thread": lambda: MultiThreadMapData(listed(), 0, same, strict=True),
    "SharedArray": lambda: MultiProcessMapDataComponentSharedArray(
        listed(), 2, as_array, 3, "i8", strict=True, timeout=LIMIT
    ),
    "MapAndBatch": lambda: MultiProcessMapAndBatchData(listed(), 2, same, 1, strict=True, timeout=LIMIT),
    "MultiProcessRunner by default": lambda: MultiProcessRunner(listed(), 20, 1, timeout=LIMIT),
    "MultiProcessRunnerZMQ by default": lambda: MultiProcessRunnerZMQ(listed(), 1, timeout=LIMIT),
    "MultiThreadRunner by default": lambda: MultiThreadRunner(listed, 20, 1, timeout=LIMIT),
    "no process": lambda: MultiProcessRunnerZMQ(listed(), 0),
    "a chain over a runner": lambda: JoinData(
        [MapData(MultiProcessRunnerZMQ(listed(), 1, timeout=LIMIT), same), listed()]
    ),
    "what reads a runner by index": lambda: ShuffleData(MultiProcessRunnerZMQ(listed(), 2, strict=True, timeout=LIMIT)),
    "a cache over a runner": lambda: CacheData(MultiProcessRunnerZMQ(listed(), 1, timeout=LIMIT)),
    "runner in runner": lambda: MultiThreadRunner(
        lambda: MultiProcessMapData(listed(), 1, same, strict=True, timeout=LIMIT), 20, 1, timeout=LIMIT
    ),
    "one after the other": lambda: ConcatData([MultiThreadMapData(half, 1, same, strict=True) for half in halves()]),
    "batches of a runner": lambda: BatchData(MultiThreadRunner(listed, 20, 1, timeout=LIMIT), 1),
}
# Their iterators are those of other ones: of a runner, or of a map.
SELDOM = {"MultiProcessRunnerZMQ, any order", "SharedArray", "what reads a runner by index", "a cache over a runner"}
ENDLESS = {
    "MultiProcessMapData": lambda: MultiProcessMapData(listed(), 1, same, timeout=LIMIT),
    "MultiThreadMapData": lambda: MultiThreadMapData(listed(), 1, same, timeout=LIMIT),
    "MultiThreadMapData, no thread": lambda: MultiThreadMapData(listed(), 0, same),
    "SharedArray": lambda: MultiProcessMapDataComponentSharedArray(listed(), 1, as_array, 3, "i8", timeout=LIMIT),
    "MapAndBatch": lambda: MultiProcessMapAndBatchData(listed(), 1, same, 1, timeout=LIMIT),
    "RepeatedData over a runner": lambda: RepeatedData(MultiProcessRunnerZMQ(listed(), 1, timeout=LIMIT), -1),
}


def numbers(datapoints):
    return sorted(int(np.ravel(dp[0])[0]) for dp in datapoints)


@pytest.mark.parametrize("name", repeated(PASSES, seldom=SELDOM))
def test_threads_that_step_one_iterator_get_the_pass_between_them(name):
    with PASSES[name]() as df, switching_often(), deadline(LIMIT):
        for _ in range(2):
            assert numbers(stepped_by_threads(iter(df), most=10 * N)) == list(range(N))


@pytest.mark.parametrize("name", repeated(ENDLESS, seldom={"MapAndBatch", "RepeatedData over a runner"}))
def test_so_do_those_of_one_without_an_end(name):
    with ENDLESS[name]() as df, switching_often(), deadline(LIMIT):
        found = numbers(stepped_by_threads(iter(df), most=2 * N + 50))
    # One worker keeps the order: these are two passes and the beginning of a third, and nothing is missing before it.
    assert found == sorted(k % N for k in range(len(found)))


@pytest.mark.parametrize("kind", repeated(["BackgroundData", "BackgroundProc"]))
def test_so_do_those_of_a_process_in_the_background(kind):
    make = (
        (lambda: BackgroundData(Counting(), n_proc=1, timeout=LIMIT, dtypes=["i8", "i8"], shapes=[(), ()]))
        if kind == "BackgroundData"
        else (lambda: BackgroundProc(Counting(), ["i8", "i8"], [(), ()]))
    )
    with make() as df, switching_often(), deadline(LIMIT):
        found = numbers(stepped_by_threads(iter(df), most=N // 4))
    assert found == list(range(len(found)))


@pytest.mark.parametrize("kind", repeated(["RemoteDataZMQ"]))
def test_so_do_those_of_a_receiver(kind):
    with RemoteDataZMQ(LOOPBACK, num_senders=1, timeout=LIMIT) as df, switching_often(), deadline(LIMIT):
        df.reset_state()
        sender = Sending(listed(), df.addresses[0])
        assert numbers(stepped_by_threads(iter(df), most=10 * N)) == list(range(N))
        sender.wait_result()


def test_so_do_those_of_a_file(tmp_path):
    with cached_on_disk(tmp_path) as df, switching_often(), deadline(LIMIT):
        for _ in range(2):
            assert numbers(stepped_by_threads(iter(df), most=10 * N)) == list(range(N))


@pytest.mark.parametrize("strict", [True, False])
def test_a_thread_that_begins_another_pass_takes_over_and_no_datapoint_comes_twice(strict):
    """While threads step an iterator, another one begins: theirs ends with an error, not in silence."""
    with MultiProcessRunnerZMQ(listed(), 1, strict=strict, timeout=LIMIT) as df, switching_often(), deadline(LIMIT):
        first, ends = iter(df), []
        found = [next(first)]

        def step():
            try:
                while True:
                    try:
                        found.append(next(first))
                    except ValueError:
                        pass
            except BaseException as error:
                ends.append(type(error).__name__)

        threads = [threading.Thread(target=step) for _ in range(4)]
        second = iter(df)
        for thread in threads:
            thread.start()
        rest = list(second)
        for thread in threads:
            thread.join(LIMIT)
    assert "NotReentrant" in ends and set(ends) <= {"NotReentrant", "StopIteration"}
    assert numbers(rest) == list(range(N)) if strict else len(rest) == N
