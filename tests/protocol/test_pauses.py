"""A timeout is a pause: the iterator that raised `TimeoutError` waits again, and nothing that was collected is lost."""

import queue
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dataflow
from dataflow import (
    AsyncMapData,
    BatchData,
    BatchDataByShape,
    BucketBatchData,
    CacheData,
    ConcatData,
    DataFlow,
    DataFlowTerminated,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    DataFromQueue,
    DiskCacheData,
    FilterData,
    FixedSizeData,
    FlattenData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MapDataComponent,
    MixData,
    MultiProcessMapAndBatchData,
    MultiProcessMapAndBatchDataZMQ,
    MultiProcessMapData,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    PackData,
    PadBatchData,
    ParallelData,
    PrintData,
    ProxyDataFlow,
    RandomChooseData,
    RandomMapData,
    RandomMixData,
    RepeatedData,
    RepeatedDataPoint,
    ResumableData,
    SelectComponent,
    ShardData,
    ShuffleData,
    TestDataSpeed,
)
from dataflow.protocol.pauses import limit
from tests.support.faults import deadline
from tests.support.pauses import Gate, Late, LateInOrder, patiently, plain, taken_patiently
from tests.support.products import covering

SIZE = 12
SOON = 0.05
LIMIT = 60


class Own(ProxyDataFlow):
    def __iter__(self):
        yield from self.ds


class Patient(ProxyDataFlow):
    """A user's node that waits for as long as it takes."""

    def __iter__(self):
        steps = iter(self.ds)
        while True:
            try:
                dp = next(steps)
            except dataflow.TimeoutError:
                continue
            except StopIteration:
                return
            yield dp


def listed() -> DataFromList:
    return DataFromList([[np.full(1 + k % 3, k), k] for k in range(SIZE)], shuffle=False)


async def later(dp: Any) -> Any:
    return dp


def is_odd(dp: Any) -> bool:
    return bool(dp[1] % 2)


def first(component: Any) -> Any:
    return component + 1


def unnamed(block: dict[Any, Any]) -> list[Any]:
    return list(block.values())


def same(dp: Any) -> Any:
    return dp


def drawn(dp: Any, rng: Any) -> Any:
    return [dp[0], dp[1], rng.normal()]


NODES: dict[str, Callable[[DataFlow], DataFlow]] = {
    "itself": lambda ds: ds,
    "AsyncMapData": lambda ds: AsyncMapData(ds, later, 4),
    "BatchData": lambda ds: BatchData(SelectComponent(ds, [1]), 5),
    "BatchData with a remainder": lambda ds: BatchData(SelectComponent(ds, [1]), 5, remainder=True),
    "BatchDataByShape": lambda ds: BatchDataByShape(ds, 2, 0),
    "BatchDataByShape with remainders": lambda ds: BatchDataByShape(ds, 3, 0, remainder=True),
    "BucketBatchData": lambda ds: BucketBatchData(ds, 3, key=lambda dp: len(dp[0]), boundaries=[2]),
    "PackData": lambda ds: MapData(PackData(ds, 4, key=0), unnamed),
    "PackData, fitted": lambda ds: MapData(PackData(ds, 4, key=0, policy="fit", window=3), unnamed),
    "PadBatchData": lambda ds: PadBatchData(ds, 5, remainder=True),
    "CacheData": CacheData,
    "CacheData, shuffled": lambda ds: CacheData(ds, shuffle=True),
    "ConcatData": lambda ds: ConcatData([ds, listed(), ds]),
    "FilterData": lambda ds: FilterData(ds, is_odd),
    "FixedSizeData": lambda ds: FixedSizeData(ds, 17),
    "FixedSizeData from the start": lambda ds: FixedSizeData(ds, 7, keep_state=False),
    "FixedSizeData of what is left": lambda ds: FixedSizeData(MapData(ds, lambda dp: dp if dp[1] % 2 else None), 7),
    "FlattenData": FlattenData,
    "JoinData": lambda ds: JoinData([listed(), ds, ds]),
    "JoinData of other lengths": lambda ds: JoinData([FilterData(ds, is_odd), FilterData(ds, is_odd)]),
    "LocallyShuffleData": lambda ds: FixedSizeData(LocallyShuffleData(ds, 5), 20),
    "MapData": lambda ds: MapData(ds, same),
    "MapDataComponent": lambda ds: MapDataComponent(ds, first, 1),
    "MixData": lambda ds: FixedSizeData(MixData([ds, listed()], [2, 1]), 20),
    "PrintData": PrintData,
    "RandomChooseData": lambda ds: RandomChooseData([ds, ds]),
    "RandomMapData": lambda ds: RandomMapData(ds, drawn),
    "RandomMixData": lambda ds: RandomMixData([ds, listed()]),
    "RepeatedData": lambda ds: RepeatedData(ds, 2),
    "RepeatedData without end": lambda ds: FixedSizeData(RepeatedData(ds, -1), 30),
    "RepeatedDataPoint": lambda ds: RepeatedDataPoint(ds, 2),
    "ResumableData": ResumableData,
    "SelectComponent": lambda ds: SelectComponent(ds, [1]),
    "ShardData of whole passes": lambda ds: ShardData(FilterData(ds, same), 1, 2, "keep"),
    "a strict map": lambda ds: MultiThreadMapData(ds, 2, same, strict=True),
    "a default map": lambda ds: FixedSizeData(MultiThreadMapData(ds, 1, same), 30),
    "a runner without workers": lambda ds: MultiProcessRunnerZMQ(ds, 0),
    "a strict runner without workers": lambda ds: MultiProcessRunnerZMQ(ds, 0, strict=True, max_failures=1),
    "a patient node": Patient,
}
ADDRESSED = {
    "PackData by index": lambda ds: MapData(PackData(ds, 4, key=0, lengths=[1 + k % 3 for k in range(SIZE)]), unnamed),
    "ShuffleData": ShuffleData,
    "ShardData": lambda ds: ShardData(ds, 0, 2, "keep"),
    "batches, shuffled": lambda ds: ShuffleData(BatchData(SelectComponent(ds, [1]), 5)),
    "rows, shuffled": lambda ds: ShuffleData(JoinData([listed(), ds, ds])),
    "a cache, shuffled": lambda ds: ShuffleData(CacheData(ds)),
    "a mixture, shuffled": lambda ds: ShuffleData(RandomMixData([ds, listed()])),
}


@pytest.mark.parametrize("late", [Late, LateInOrder])
@pytest.mark.parametrize("name", [*NODES, *ADDRESSED])
def test_what_stands_above_a_timeout_loses_nothing(name, late, caplog, capsys):
    make = {**NODES, **ADDRESSED}[name]
    if late is LateInOrder and name in ADDRESSED:
        return
    dataflow.seed(7)
    try:
        source = late(listed())
        source.is_late = False
        with deadline(LIMIT), make(source) as df:
            wanted = [patiently(iter(df)) for _ in range(2)]
        source = late(listed())
        with deadline(LIMIT), make(source) as df:
            found = [patiently(iter(df)) for _ in range(2)]
    finally:
        dataflow.seed(None)
    assert [dps for dps, _ in found] == [dps for dps, _ in wanted]
    assert name == "a patient node" or found[0][1]  # there were timeouts


def test_a_cache_on_disk_is_filled_after_timeouts(tmp_path):
    df = DiskCacheData(LateInOrder(listed()), str(tmp_path / "cache"))
    found, num_late = patiently(iter(df))
    assert found == plain(list(listed())) and num_late == SIZE + 1
    assert plain(list(df)) == found
    with DiskCacheData(Late(listed()), str(tmp_path / "other")) as other:
        assert patiently(iter(ShuffleData(other)))[1] and plain(list(other)) == found


@pytest.mark.parametrize("late", [Late, LateInOrder])
@pytest.mark.parametrize("warmup", [0, 2])
def test_a_timeout_ends_a_speed_test_and_the_pass_is_whole(late, warmup, caplog, capsys):
    wanted = plain(list(listed()))
    df = BatchData(SelectComponent(TestDataSpeed(late(listed()), 8, warmup), [1]), 1)
    for num_measured in range(2):
        found, num_late = patiently(iter(df))
        assert found == [[[k]] for _, k in wanted] and num_late == 1 + SIZE + 1
        assert caplog.text.count("nothing was measured: a step of Late") == num_measured + 1
    with pytest.raises(dataflow.TimeoutError):
        TestDataSpeed(late(listed())).start()


def test_a_users_node_that_lets_it_through_says_that_it_cannot_continue():
    for make in (Own, lambda ds: BatchData(SelectComponent(Own(ds), [1]), 2), lambda ds: RepeatedData(Own(ds), 2)):
        steps = iter(make(LateInOrder(listed())))
        with pytest.raises(dataflow.TimeoutError):
            for _ in steps:
                pass
        for _ in range(3):
            with pytest.raises(DataFlowTerminated, match=r"left the code of Own, which cannot continue\. Iterate"):
                next(steps)


class Hidden(DataFlow):
    """A user's node whose flow is no input that a node above could know."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        yield from self.make()


class HiddenMaker(Hidden):
    """The same, without a generator of its own."""

    def __iter__(self):
        return iter(self.make())


class HiddenLength(Hidden):
    def __len__(self):
        return SIZE


def late_numbers() -> DataFlow:
    return SelectComponent(LateInOrder(listed()), [1])


HIDDEN = {
    "a node": lambda: Hidden(late_numbers),
    "a node that returns an iterator": lambda: HiddenMaker(late_numbers),
    "a node with a length": lambda: HiddenLength(late_numbers),
    "a node that reads by hand": lambda: Hidden(lambda: map(list, late_numbers())),
    "a generator": lambda: DataFromGenerator(lambda: (dp for dp in late_numbers())),
    "a flow from a function": lambda: DataFromGenerator(late_numbers),
    "a flow as an iterable": lambda: DataFromIterable(late_numbers()),
    "an iterator": lambda: DataFromIterable(iter(late_numbers())),
    "a node in a node": lambda: Hidden(lambda: BatchData(Hidden(late_numbers), 1)),
}
ABOVE = {
    "itself": lambda ds: ds,
    "batches": lambda ds: BatchData(ds, 2),
    "passes": lambda ds: RepeatedData(ds, 2),
    "beside one that waits": lambda ds: JoinData([late_numbers(), ds]),
    "threads": lambda ds: MultiThreadRunner(lambda: ds, 5, 1, strict=True),
    "a map": lambda ds: MultiThreadMapData(ds, 1, same, strict=True),
}


@pytest.mark.parametrize("above", ABOVE)
@pytest.mark.parametrize("name", HIDDEN)
def test_a_timeout_of_a_flow_that_no_node_knows_of_ends_the_pass_by_name(name, above):
    kind = "DataFrom" if "node" not in name else "Hidden"
    with deadline(LIMIT), ABOVE[above](HIDDEN[name]()) as df:
        steps = iter(df)
        with pytest.raises(DataFlowTerminated, match=rf"left the code of {kind}\w*, which cannot continue") as caught:
            patiently(steps)
        assert isinstance(caught.value.__cause__, dataflow.TimeoutError) or above == "threads"


def test_a_hidden_flow_whose_timeouts_are_handled_goes_on():
    def patient():
        steps = iter(late_numbers())
        while True:
            try:
                dp = next(steps)
            except dataflow.TimeoutError:
                continue
            except StopIteration:
                return
            yield dp

    assert plain(list(Hidden(patient))) == plain(list(DataFromGenerator(patient))) == [[k] for k in range(SIZE)]


def test_a_timeout_raised_by_the_function_of_a_map_is_an_error_of_the_function():
    flow = LateInOrder(listed())
    steps = iter(flow)
    df = MapData(DataFromList([[0]] * 5), lambda dp: next(steps))
    with pytest.raises(RuntimeError, match="raised TimeoutError, for datapoint 0 of pass 0: late"):
        list(df)


@pytest.mark.parametrize("tool", [list, lambda it: list(islice(it, SIZE)), lambda it: [dp for (dp,) in zip(it)]])
def test_what_python_offers_to_iterate_continues_with_the_same_iterator(tool):
    steps, found = iter(LateInOrder(listed())), []
    for _ in range(3 * SIZE):
        try:
            found += tool(_kept(steps, found_now := []))
            break
        except dataflow.TimeoutError:
            found += found_now
    assert plain(found) == plain(list(listed()))


def _kept(steps: Iterator[Any], kept: list[Any]) -> Iterator[Any]:
    for dp in steps:
        kept.append(dp)
        yield dp


def test_threads_that_step_one_iterator_share_it():
    steps, found = iter(BatchData(SelectComponent(LateInOrder(listed()), [1]), 1)), []

    def take() -> None:
        while True:
            try:
                found.extend(next(steps)[0].tolist())
            except (dataflow.TimeoutError, ValueError):  # "generator already executing"
                continue
            except StopIteration:
                return

    threads = [threading.Thread(target=take) for _ in range(2)]
    with deadline(LIMIT):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(SIZE))


RUNNERS: dict[str, Callable[[DataFlow, Any], DataFlow]] = {
    "ParallelData": lambda ds, gate: ParallelData(MapData(ds, gate), 1, timeout=SOON),
    "a runner": lambda ds, gate: MultiProcessRunnerZMQ(MapData(ds, gate), 1, timeout=SOON),
    "threads": lambda ds, gate: MultiThreadRunner(lambda: MapData(ds, gate), 5, 1, timeout=SOON),
    "strict threads": lambda ds, gate: MultiThreadRunner(lambda: MapData(ds, gate), 5, 2, strict=True, timeout=SOON),
    "a map": lambda ds, gate: MultiProcessMapData(ds, 1, gate, strict=True, timeout=SOON),
    "a default map": lambda ds, gate: FixedSizeData(MultiThreadMapData(ds, 1, gate, timeout=SOON), SIZE),
    "a map over a runner": lambda ds, gate: MultiThreadMapData(
        MultiProcessRunnerZMQ(MapData(ds, gate), 1, strict=True, timeout=SOON), 1, same, strict=True
    ),
}


@pytest.mark.parametrize("name", RUNNERS)
def test_every_runner_waits_again(name, tmp_path):
    gate = Gate(tmp_path / "open", 4)
    with deadline(LIMIT), RUNNERS[name](listed(), gate) as runner:
        df = BatchData(SelectComponent(runner, [1]), 6)
        steps = iter(df)
        with pytest.raises(dataflow.TimeoutError, match="The same iterator waits again"):
            next(steps)
        found = taken_patiently(steps, 2, gate.open)
        assert [k for (batch,) in found for k in batch] == list(range(SIZE))


@pytest.mark.parametrize(
    ("cls", "options", "below"),
    covering(
        [MultiProcessMapAndBatchData, MultiProcessMapAndBatchDataZMQ],
        [{"strict": True}, {"strict": True, "use_list": True}, {}],
        [0, 1],
    ),
)
def test_a_map_that_makes_batches_waits_again(cls, options, below, tmp_path):
    gate = Gate(tmp_path / "open", 4)
    with deadline(LIMIT):
        source = LateInOrder(SelectComponent(listed(), [1])) if below else SelectComponent(listed(), [1])
        with cls(source, 1, gate, 3, **options, timeout=SOON) as df:
            batches = taken_patiently(iter(df), SIZE // 3, gate.open)
            assert [k for (batch,) in batches for k in batch] == list(range(SIZE))


def test_another_loop_after_a_timeout_is_another_pass(tmp_path):
    gate = Gate(tmp_path / "open", 0)
    with deadline(LIMIT), ParallelData(MapData(listed(), gate), 1, timeout=SOON) as df:
        steps = iter(df)
        with pytest.raises(dataflow.TimeoutError):
            next(steps)
        gate.open()
        assert len(patiently(iter(df))[0]) == SIZE
        with pytest.raises(dataflow.NotReentrant):
            next(steps)


def test_a_timeout_in_a_worker_ends_it_and_says_so():
    with deadline(LIMIT), MultiThreadRunner(lambda: LateInOrder(listed()), 5, 1, strict=True) as df:
        steps = iter(df)
        with pytest.raises(dataflow.TimeoutError):
            list(steps)
        with pytest.raises(DataFlowTerminated, match="left a worker, which cannot continue"):
            next(steps)


def test_a_queue_is_waited_for_again():
    q: queue.Queue[Any] = queue.Queue()
    df = BatchData(DataFromQueue(q, sentinel=None, timeout=0.001), 2)
    steps = iter(df)
    for value in (1, 2):
        with pytest.raises(dataflow.TimeoutError):
            next(steps)
        q.put([value])
    assert plain(next(steps)) == [[1, 2]]
    q.put(None)
    assert list(steps) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_part_of_what_may_wait_is_that_of_what_may_not(waits):
    assert list(limit(iter(range(9)), waits, 5, 2)) == [2, 3, 4]
    assert list(limit(iter(range(4)), waits, None, 2)) == [2, 3]
