"""Items whose function raises, and batches that cannot be made: skipped within a budget, reported, and judged."""

import importlib.util
import logging
import multiprocessing
import os
import re
import signal
import threading
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import pytest

from dataflow import (
    AsyncMapData,
    BatchData,
    BucketBatchData,
    ConcatData,
    DataFromGenerator,
    DataFromList,
    Dropped,
    MapData,
    MapDataComponent,
    MixData,
    MultiProcessMapAndBatchData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    PadBatchData,
    ResumableData,
    SelectComponent,
    ShapeMismatch,
    TooManyFailures,
    WorkerError,
    worker_info,
)
from dataflow.errors import WorkerTraceback
from dataflow.runners.maps import MultiProcessMapData, MultiThreadMapData
from tests.support.contract import check_node, seeded
from tests.support.fakes import every_runner, runner
from tests.support.faults import deadline
from tests.support.products import covering, only, rotating
from tests.support.waits import LIMIT

N = 20


PLAIN = ("process", "zmq", "thread")
KINDS = rotating("case", {"process": "process", "zmq": "zmq"}, always={"thread": "thread"})


def numbers():
    return DataFromList([[k] for k in range(N)], shuffle=False)


def third_and_eighth(dp):
    if dp[0] in {3, 8}:
        raise ValueError(f"number {dp[0]}")
    return dp


def third_and_eighth_fail(**kwargs):
    return MapData(numbers(), third_and_eighth, **kwargs)


def every_tenth(dp):
    if dp[0] % 10 == 0:
        raise ValueError("a tenth")
    return dp


def every_tenth_fails():
    return MapData(DataFromList([[k] for k in range(100)], shuffle=False), every_tenth)


# -- within the budget -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", every_runner())
def test_failed_items_are_left_out_and_told_to_the_consumer(case, caplog):
    with caplog.at_level(logging.WARNING, "dataflow"), runner(case, third_and_eighth_fail, max_failures=5) as df:
        first = [dp[0] for dp in islice(df, N - 2)]
    assert first == [k for k in range(N) if k not in {3, 8}]
    assert [(failure.position, failure.in_pass, failure.path) for failure in df.failures[:2]] == [
        (3, 0, ((0, 1),)),
        (8, 0, ((0, 1),)),
    ]
    failure = df.failures[0]
    assert (failure.node, failure.kind, failure.text) == ("MapData(third_and_eighth)", "ValueError", "number 3")
    assert "in third_and_eighth" in failure.traceback
    assert caplog.messages[0] == (
        "skipped MapData(third_and_eighth): datapoint 3 of pass 0, worker 0 of 1: ValueError: number 3"
    )


def never(dp):
    raise KeyError("label")


async def never_async(dp):
    raise KeyError("label")


def not_zero(dp):
    if dp == [0]:
        raise KeyError("label")
    return [dp[0] - 1]


def four():
    return DataFromList([[k] for k in range(4)], shuffle=False)


ALIKE = {
    "side by side": (8, lambda: ConcatData([MapData(four(), never) for _ in range(2)])),
    "async": (8, lambda: ConcatData([AsyncMapData(four(), never_async) for _ in range(2)])),
    "one above the other": (2, lambda: MapData(MapData(DataFromGenerator(four), not_zero), not_zero)),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("num", "make"), ALIKE.values(), ids=ALIKE)
def test_failures_of_two_nodes_that_look_alike_are_two(num, make, num_workers):
    num_workers = min(num_workers, 1 + make().addressable)
    with MultiThreadRunner(make, 10, num_workers, strict=True, max_failures=num) as df:
        list(df)
        assert len(df.failures) == num
    df = MultiThreadRunner(make, 10, num_workers, strict=True, max_failures=num - 1)
    with df, pytest.raises(TooManyFailures):
        list(df)


@KINDS
def test_a_failure_is_known_when_the_next_datapoint_comes(case):
    with runner(case, third_and_eighth_fail, max_failures=5) as df:
        for (number,), _ in zip(df, range(N - 2), strict=False):
            assert len(df.failures) >= (number > 3) + (number > 8)


@KINDS
def test_a_budget_that_suffices_for_one_suffices_for_several_workers_and_many_passes(case):
    with runner(case, every_tenth_fails, 2, max_failures=10) as df:
        for _ in range(5):
            assert len(list(df)) == 100
        reported = {failure.path[0][0] for failure in df.failures}
    assert reported <= {0, 1} and len(df.failures) >= 40
    with runner(case, every_tenth_fails, 2, max_failures=0.2) as df:
        for _ in range(3):
            assert len(list(df)) == 100


@KINDS
def test_what_is_dropped_below_a_batch_is_filled_up(case):
    with runner(case, lambda: BatchData(third_and_eighth_fail(), 6), max_failures=5) as df:
        assert next(iter(df))[0].tolist() == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_outermost_node_lists_the_failures_of_the_whole_chain(num_workers):
    tolerant = third_and_eighth_fail(max_failures=2)
    above = MapData(MultiProcessRunner(tolerant, 5, num_workers, strict=True), every_tenth, max_failures=2)
    with SelectComponent(BatchData(above, 4), [0]) as df:
        assert sum(len(dp[0]) for dp in df) == 16
        assert sorted((failure.node, failure.position) for failure in df.failures) == [
            ("MapData(every_tenth)", 0),
            ("MapData(every_tenth)", 9 - 1),
            ("MapData(third_and_eighth)", 3),
            ("MapData(third_and_eighth)", 8),
        ]


def test_in_the_consumer_it_means_the_same(caplog):
    with MultiProcessRunnerZMQ(third_and_eighth_fail(), 0, max_failures=2) as df:
        assert [dp[0] for dp in islice(df, N - 2)] == [k for k in range(N) if k not in {3, 8}]
        assert [failure.position for failure in df.failures] == [3, 8]
    assert "datapoint 8 of pass 0: ValueError: number 8" in caplog.messages[1]
    with MultiProcessRunnerZMQ(third_and_eighth_fail(), 0, max_failures=2) as df:
        list(df)
        df.reset_state()
        assert df.failures == []
        list(df)
        assert [failure.text for failure in df.failures][:2] == ["number 3", "number 8"]
    with (
        MultiProcessRunnerZMQ(third_and_eighth_fail(), 0, max_failures=1) as df,
        pytest.raises(TooManyFailures, match="MultiProcessRunnerZMQ: 2 datapoints") as caught,
    ):
        list(df)
    assert isinstance(caught.value.__cause__, ValueError)
    with MultiProcessRunnerZMQ(third_and_eighth_fail(), 0) as df, pytest.raises(ValueError, match="number 3"):
        list(df)


def test_runners_in_runners_hand_the_budget_down_and_the_failures_up(caplog):
    inner = MultiThreadRunner(third_and_eighth_fail, 5, 2)
    with caplog.at_level(logging.WARNING, "dataflow"), MultiProcessRunner(inner, 5, 2, max_failures=100) as df:
        list(df)
        list(df)
    assert df.failures
    for failure in df.failures:
        (outer, of), (thread, threads) = failure.path
        assert outer in {0, 1} and thread in {0, 1} and of == threads == 2
    skipped = [message for message in caplog.messages if message.startswith("skipped")]
    assert all(re.search(r", worker [01] of 2, worker [01] of 2: ", message) for message in skipped)
    strict = MultiThreadRunner(third_and_eighth_fail, 5, 2, max_failures=0)
    with MultiProcessRunner(strict, 5, 1, max_failures=100) as df, pytest.raises(ValueError, match="number 3"):
        list(df)


def test_a_budget_that_is_used_up_further_in_comes_out_with_its_cause():
    inner = MultiThreadRunner(third_and_eighth_fail, 5, 1, max_failures=1)
    with MultiProcessRunner(inner, 5, 1) as df:
        with pytest.raises(TooManyFailures, match="MultiThreadRunner: 2 datapoints") as caught:
            list(df)
        assert type(caught.value.__cause__) is ValueError and str(caught.value.__cause__) == "number 8"
        assert [failure.position for failure in df.failures] == [3, 8]


# -- past the budget ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*PLAIN, pytest.param(("zmq", "spawn"), marks=pytest.mark.full)], ids=str)
def test_past_the_budget_comes_an_error_with_the_list_after_all_that_was_made_before(case):
    received = []
    with runner(case, third_and_eighth_fail, max_failures=1) as df:
        with pytest.raises(TooManyFailures, match=r"Runner\w*: 2 datapoints of one pass .* max_failures=1") as caught:
            received.extend(dp[0] for dp in df)
        assert received == [k for k in range(8) if k != 3]
        assert [failure.position for failure in caught.value.failures] == [3, 8]
        cause = caught.value.__cause__
        assert type(cause) is ValueError and str(cause) == "number 8"
        if case != "thread":
            assert isinstance(cause.__cause__, WorkerTraceback) and "in third_and_eighth" in str(cause.__cause__)
        df.reset_state()
        assert df.failures == []
        assert next(iter(df)) == [0]


@pytest.mark.parametrize("case", [*PLAIN, ("process", "forkserver")], ids=str)
def test_without_a_budget_comes_the_error_with_the_traceback_of_the_worker(case):
    with runner(case, third_and_eighth_fail) as df:
        with pytest.raises(ValueError, match="number 3") as caught:
            list(df)
        assert caught.value.__notes__[0].endswith("third_and_eighth, for datapoint 3 of pass 0")
        assert caught.value.__notes__[1].startswith("raised in worker 0 of 1 of Multi")
        if case != "thread":
            assert "in third_and_eighth" in str(caught.value.__cause__)
        assert df.failures == []


@KINDS
def test_a_fraction_is_judged_over_all_workers(case):
    expected = r"datapoints seen \(.* %\) failed, more than max_failures=0.05"
    with runner(case, every_tenth_fails, 2, max_failures=0.05) as df, pytest.raises(TooManyFailures, match=expected):
        list(chain.from_iterable(repeat(df)))


@KINDS
def test_a_map_keeps_to_a_budget_of_its_own(case):
    with runner(case, lambda: third_and_eighth_fail(max_failures=1), max_failures=50) as df:
        with pytest.raises(TooManyFailures, match="MapData: 2 datapoints") as caught:
            list(df)
        assert str(caught.value.__cause__) == "number 8"
        assert [failure.position for failure in caught.value.failures] == [3, 8]
        assert [failure.position for failure in df.failures] == [3, 8]
    strict = runner(case, lambda: third_and_eighth_fail(max_failures=0), max_failures=50)
    with strict as df, pytest.raises(ValueError, match="number 3"):
        list(df)
    with runner(case, lambda: third_and_eighth_fail(max_failures=2)) as df:  # and reports them all the same
        assert len(list(df)) == N
        assert len(df.failures) >= 2


def raise_a_lock(dp):
    raise ValueError(threading.Lock())


@pytest.mark.parametrize("case", ["process", "zmq"])
def test_an_error_that_cannot_be_pickled_is_borne_too(case):
    with runner(case, lambda: MapData(numbers(), raise_a_lock), max_failures=2) as df:
        with pytest.raises(TooManyFailures) as caught:
            list(df)
        assert isinstance(caught.value.__cause__, WorkerError)
        assert caught.value.failures[-1].kind == "ValueError"


def endless():
    k = 0
    while True:
        yield [k]
        k += 1


def nothing_after_the_first(dp):
    if dp[0]:
        raise ValueError("nothing more")
    return dp


@KINDS
def test_a_flow_in_which_all_fails_stops_when_it_is_told_to(case):
    def make():
        return MapData(DataFromGenerator(endless), nothing_after_the_first)

    with deadline(LIMIT), runner(case, make, max_failures=10**9) as df:
        assert next(iter(df)) == [0]  # from here on it makes nothing, and nothing is received


@pytest.mark.parametrize("wrong", [True, -1, 1.0, float("nan"), "5"])
@KINDS
def test_a_budget_that_makes_no_sense_is_refused(case, wrong):
    with pytest.raises((TypeError, ValueError), match=r"Multi\w+: max_failures must be"):
        runner(case, numbers, max_failures=wrong)


# -- in parallel maps --------------------------------------------------------------------------------------------------

MAPS = pytest.mark.parametrize("node", [MultiThreadMapData, MultiProcessMapData])
STRICT = pytest.mark.parametrize("strict", [True, False], ids=["strict", "default"])


@MAPS
@STRICT
@pytest.mark.parametrize("num", [0, 2])
def test_a_map_leaves_out_what_fails_in_its_workers(node, strict, num, caplog):
    with node(numbers(), num, third_and_eighth, strict=strict, max_failures=2, timeout=LIMIT) as df, deadline(LIMIT):
        reported, begun = set(), 0
        while begun < 2 or not reported >= {(k, p, f"number {k}") for k in (3, 8) for p in (0, 1)}:
            assert begun < 2 or not strict  # by default so many may come before a slow worker has failed
            found = sorted(dp[0] for dp in (df if strict else islice(df, N)))
            assert len(found) == (N - 2 if strict else N) and not {3, 8} & set(found)
            reported = {(failure.position, failure.in_pass, failure.text) for failure in df.failures}
            begun += 1
        assert {(position, text) for position, _, text in reported} == {(3, "number 3"), (8, "number 8")}
        for failure in islice(df.failures, 10):  # of the others, the log says how many they are
            place = f"datapoint {failure.position} of pass {failure.in_pass}"
            assert any(place in message for message in caplog.messages)
    assert not strict or any("datapoint 8 of pass 1" in message for message in caplog.messages)


@MAPS
@STRICT
@pytest.mark.parametrize("num", [0, 2])
def test_the_budget_of_a_map_is_that_of_all_its_workers(node, strict, num):
    with node(numbers(), num, third_and_eighth, strict=strict, max_failures=1, timeout=LIMIT) as df, deadline(LIMIT):
        with pytest.raises(TooManyFailures, match=f"{node.__name__}: 2 datapoints of one pass") as caught:
            list(chain.from_iterable(repeat(df)))  # by default a pass may end before a slow worker has failed
        assert {failure.position for failure in caught.value.failures} == {3, 8}
        assert isinstance(caught.value.__cause__, ValueError)


@MAPS
def test_a_map_in_which_all_fails_stops_when_it_is_told_to(node):
    source = DataFromGenerator(endless)
    with deadline(LIMIT), node(source, 2, nothing_after_the_first, max_failures=10**9) as df:
        assert next(iter(df)) == [0]


@pytest.fixture
def flag(tmp_path):
    """A file that is there from the time when `seventh_fails_eighth_kills` has killed, once."""
    return tmp_path / "killed"


def seventh_fails_eighth_kills(flag, dp):
    if dp[0] == 7:
        raise ValueError("number 7")
    if dp[0] == 8 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return dp


@pytest.mark.parametrize("method", only(["fork", "forkserver"], multiprocessing.get_all_start_methods()))
def test_an_item_that_is_done_again_after_a_death_fails_once(flag, method):
    func = partial(seventh_fails_eighth_kills, flag)
    # If 7 and 8 are in one task, the failure of 7 was reported before the worker died, and is reported again.
    source = DataFromList([[k] for k in range(400)], shuffle=False)
    with MultiProcessMapData(
        source, 1, func, strict=True, max_failures=1, max_restarts=1, buffer_size=40, timeout=LIMIT, context=method
    ) as df:
        assert [dp[0] for dp in df] == [k for k in range(400) if k != 7]
        assert {failure.position for failure in df.failures} == {7}
    assert flag.exists()


def test_an_item_that_fails_again_is_written_down_once(flag, caplog):
    func = partial(seventh_fails_eighth_kills, flag)
    source = DataFromList([[k] for k in range(40)], shuffle=False)
    with MultiProcessMapAndBatchData(  # 7 and 8 are in one task
        source, 1, func, 10, strict=True, max_failures=1, max_restarts=1, timeout=LIMIT
    ) as df:
        assert [k for batch in df for k in batch[0]] == [k for k in range(31) if k != 7]
        assert [failure.position for failure in df.failures] == [7]
    assert any("of 1 of MultiProcessMapAndBatchData" in message for message in caplog.messages)  # what the user made


@pytest.mark.parametrize(("case", "num"), covering(PLAIN, [0, 1, 2]))
def test_the_budget_of_a_strict_runner_is_that_of_the_pass(case, num):
    with runner(case, third_and_eighth_fail, num, strict=True, max_failures=2) as df:
        for _ in range(3):
            assert [dp[0] for dp in df] == [k for k in range(N) if k not in {3, 8}]
    with (
        runner(case, third_and_eighth_fail, num, strict=True, max_failures=1) as df,
        pytest.raises(TooManyFailures, match="2 datapoints of one pass"),
    ):
        list(df)


@MAPS
def test_a_strict_map_that_draws_bears_failures_without_workers_too(node):
    with node(numbers(), 0, lambda dp, rng: third_and_eighth(dp), strict=True, with_rng=True, max_failures=2) as df:
        assert [dp[0] for dp in df] == [k for k in range(N) if k not in {3, 8}]
        assert [failure.position for failure in df.failures] == [3, 8]


# -- for real ----------------------------------------------------------------------------------------------------------


def read_photo(path):
    import cv2

    data = Path(path).read_bytes()
    if not data.endswith(b"\xff\xd9"):
        raise ValueError(f"{path} ends in the middle")
    photo = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_REDUCED_COLOR_8)
    if photo is None:
        raise ValueError(f"{path} is no image")
    return photo


@pytest.fixture
def photos(tmp_path):
    """Eight photographs, of which the sixth was cut off."""
    pytest.importorskip("cv2")
    (package,) = importlib.util.find_spec("sklearn").submodule_search_locations  # to import it takes a second
    folder = Path(package) / "datasets" / "images"
    data = [(folder / name).read_bytes() for name in ("china.jpg", "flower.jpg")]
    paths = [tmp_path / f"{k}.jpg" for k in range(8)]
    for k, path in enumerate(paths):
        path.write_bytes(data[k % 2] if k != 5 else data[1][:20_000])
    return paths


@KINDS
def test_a_photograph_that_is_cut_off_is_skipped_and_named(case, photos, caplog):
    def make():
        files = DataFromList([[str(path), k] for k, path in enumerate(photos)], shuffle=False)
        return MapDataComponent(files, read_photo)

    with caplog.at_level(logging.WARNING, "dataflow"), runner(case, make, max_failures=5) as df:
        found = list(islice(df, 7))
    assert [k for _, k in found] == [0, 1, 2, 3, 4, 6, 7]
    assert all(photo.ndim == 3 for photo, _ in found)
    # Threads may log before it that the first pass is shorter than its length.
    (skipped,) = [text for text in caplog.messages if text.startswith("skipped")]
    assert skipped.startswith("skipped MapDataComponent(read_photo): datapoint 5 of pass 0, worker 0 of 1")
    assert str(photos[5]) in skipped

    with runner(case, make) as df:
        with pytest.raises(ValueError, match="ends in the middle") as caught:
            list(df)
        assert "for datapoint 5 of pass 0" in caught.value.__notes__[0]
        if case != "thread":
            assert "in read_photo" in str(caught.value.__cause__)


def test_a_worker_knows_where_it_is_when_it_fails():
    def where(dp):
        raise ValueError(worker_info().index)

    with runner("process", lambda: MapData(numbers(), where), 2, max_failures=3) as df:
        with pytest.raises(TooManyFailures):
            list(df)
        assert all(failure.text == str(failure.path[0][0]) for failure in df.failures)


# -- batches whose datapoints do not form one --------------------------------------------------------------------------


def flow(*bad, n=8):
    """Datapoints of which some lack the component ``t``."""
    return DataFromList([{"t": [k, k], "k": k} if k not in bad else {"k": k} for k in range(n)], shuffle=False)


def has_t(dp):
    return len(dp["t"])


def one(dp):
    return 1


NODES = {
    "BatchData": lambda ds, **options: BatchData(ds, 2, **options),
    "collate": lambda ds, **options: BatchData(
        ds, 2, collate=lambda group: {"k": [dp["k"] for dp in group if dp["t"]]}, **options
    ),
    "PadBatchData": lambda ds, **options: PadBatchData(ds, 2, keys=["t"], **options),
}
every_node = pytest.mark.parametrize("make", NODES.values(), ids=NODES)


def numbers_of(batches):
    return [[int(k) for k in batch["k"]] for batch in batches]


@every_node
def test_a_failed_batch_ends_the_pass_and_is_named(make):
    iterator = iter(make(flow(5)))
    assert numbers_of([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
    with pytest.raises((ShapeMismatch, KeyError), match="t") as caught:
        next(iterator)
    assert caught.value.__notes__ == [f"raised by {type(make(flow())).__name__}, for datapoint 2 of pass 0"]


@every_node
def test_failed_batches_are_skipped_and_counted_within_the_budget(make):
    df = make(flow(1, 5), max_failures=2)
    for p in range(2):
        assert numbers_of(df) == [[2, 3], [6, 7]] and len(df) == 4
        name = type(df).__name__
        assert [(f.node, f.position, f.in_pass) for f in df.failures[2 * p :]] == [(name, 0, p), (name, 2, p)]
    with pytest.raises(TooManyFailures, match="2 datapoints of one pass failed, more than max_failures=1"):
        list(make(flow(1, 5), max_failures=1))


@every_node
def test_a_failed_batch_keeps_its_index(make):
    df = make(flow(3), max_failures=1)
    assert numbers_of(df[0:3]) == [[0, 1], [4, 5]] and numbers_of([df[2]]) == [[4, 5]]
    with pytest.raises(Dropped):
        df[1]
    assert [failure.position for failure in df.failures] == [1, 1]
    above = BatchData(df, 2)
    with pytest.raises(Dropped):
        above[1]


@every_node
@pytest.mark.parametrize("num_proc", [0, 2])
def test_the_budget_of_a_runner_holds_for_batches(make, num_proc):
    with MultiProcessRunnerZMQ(
        make(flow(3)), num_proc, strict=True, max_failures=1, context="fork", timeout=LIMIT
    ) as runner:
        assert numbers_of(runner) == [[0, 1], [4, 5], [6, 7]]
        assert len(runner.failures) == 1


def test_nodes_with_a_budget_keep_the_contract():
    check_node(lambda ds: BatchData(ds, 2, max_failures=3))
    check_node(lambda ds: PadBatchData(ds, 2, remainder=True, max_failures=0.5))
    check_node(lambda ds: BucketBatchData(ds, 2, key=one, boundaries=[3], max_failures=3), addressable=False)


def test_a_budget_is_no_part_of_a_state():
    with seeded(1):
        df = ResumableData(BatchData(flow(3), 2, max_failures=1))
        next(iter(df))
        other = ResumableData(BatchData(flow(3), 2, max_failures=0.5))
        other.load_state_dict(df.state_dict())
        assert numbers_of(other) == [[4, 5], [6, 7]]


def test_buckets_skip_datapoints_without_a_length_and_batches_that_fail():
    def make(ds, **options):
        return BucketBatchData(ds, 2, key=has_t, boundaries=[5], **options)

    with pytest.raises(KeyError) as caught:
        list(make(flow(5)))
    assert caught.value.__notes__ == ["raised by BucketBatchData, for datapoint 5 of pass 0"]
    df = make(flow(0, 5), max_failures=2)
    assert numbers_of(df) == [[1, 2], [3, 4], [6, 7]]
    assert [(f.node, f.position) for f in df.failures] == [("BucketBatchData(key)", 0), ("BucketBatchData(key)", 5)]
    both = [{"t": [1], "k": 0}, {"t": [2]}, {"k": 2}, {"t": [3], "k": 3}]
    df = make(DataFromList(both, shuffle=False), max_failures=2)
    assert numbers_of(df) == [[3]] and [f.kind for f in df.failures] == ["dataflow.errors.ShapeMismatch", "KeyError"]
    with pytest.raises(TooManyFailures):
        list(make(DataFromList(both, shuffle=False), max_failures=1))


def test_a_mixture_goes_on_without_what_an_input_skips():
    df = MixData([BatchData(flow(1), 2, max_failures=1), BatchData(flow(), 2)], [1, 1])
    expected = [[0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7], [0, 1]]
    assert numbers_of(islice(df, 8)) == numbers_of(df[0:10])[:8] == expected


def test_a_function_that_stops_does_not_end_the_pass():
    def stop(group):
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration was raised by BatchData, for datapoint 0 of pass 0"):
        list(BatchData(flow(), 2, collate=stop))


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_a_wrong_budget_is_named(wrong):
    for make in [*NODES.values(), lambda ds, **more: BucketBatchData(ds, 2, key=has_t, boundaries=[], **more)]:
        with pytest.raises((TypeError, ValueError), match="BatchData: max_failures must be"):
            make(flow(), max_failures=wrong)
