"""Maps that also batch, and maps of one component into arrays of one shape."""

import itertools
import time
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataflow import (
    BatchData,
    DataFromList,
    MapData,
    MapDataComponent,
    MultiProcessMapAndBatchData,
    MultiProcessMapDataComponentSharedArray,
    ShapeMismatch,
)
from tests.support.contract import check_node, plain
from tests.support.fakes import Forever, Numbers
from tests.support.faults import deadline
from tests.support.waits import LIMIT


def labelled(n):
    return DataFromList([[np.full((6, 5), k, np.uint16), k] for k in range(n)], shuffle=False)


def same(dp):
    return dp


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_proc", [0, 2])
def test_a_function_may_return_one_buffer_again_and_again(num_proc):
    buffer = np.zeros(2, np.int64)

    def func(dp):
        buffer[:] = dp[1]
        return [buffer]

    with MultiProcessMapAndBatchData(labelled(40), num_proc, func, 4, strict=True, timeout=LIMIT) as df:
        assert [batch[0][:, 0].tolist() for batch in df] == [list(range(k, k + 4)) for k in range(0, 40, 4)]


def sleep_a_while(dp):
    time.sleep(0.005)
    return dp


@pytest.mark.parametrize("fails", [False, True])
def test_the_time_in_the_function_counts_as_the_workers(fails):
    """Also if it raises, at the end of a batch."""

    def func(dp):
        if fails and dp[1] == 30:
            raise KeyError(dp[1])
        return sleep_a_while(dp)

    df = MultiProcessMapAndBatchData(labelled(60), 2, func, 3, strict=True, timeout=LIMIT)
    with df, pytest.raises(KeyError) if fails else nullcontext():
        list(df)
    (runner,) = df.statistics().runners
    assert sum(worker.busy_seconds for worker in runner.workers) >= 0.005 * (30 if fails else 60)
    assert len(df.statistics().nodes) == 2 and runner.node == 0


@settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    n=st.integers(0, 40),
    batch_size=st.integers(1, 7),
    num=st.integers(0, 3),
    drop=st.integers(2, 9),
    remainder=st.booleans(),
    use_list=st.booleans(),
    taken=st.integers(0, 5),
    make=st.sampled_from(
        [
            lambda k: [k, np.full(3, k)],
            lambda k: (k if k % 3 else k + 0.5, np.float32(k)),  # kinds that differ within a batch
            lambda k: {"name": str(k), "flag": k % 2 == 0, "big": np.full((60, 70), k)},
            lambda k: {"x": np.full(2, k, np.int8 if k % 7 else np.int16), "none": np.array(k)},
        ]
    ),
)
def test_a_strict_pass_is_that_of_batched_map_data(n, batch_size, num, drop, remainder, use_list, taken, make):
    def func(dp):
        return None if dp[0] % drop == 1 else make(dp[0])

    class Lengthless(Numbers):
        __len__ = Forever.__len__

    plain_map = BatchData(MapData(Lengthless(n), func), batch_size, remainder, use_list)
    expected = [plain(dp) for dp in plain_map]
    with MultiProcessMapAndBatchData(
        Lengthless(n), num, func, batch_size, remainder=remainder, use_list=use_list, strict=True, timeout=LIMIT
    ) as df:
        assert [plain(dp) for dp in itertools.islice(df, taken)] == expected[:taken]
        assert [plain(dp) for dp in df] == expected


@pytest.mark.parametrize("num", [0, 2])
def test_by_default_there_are_batches_without_end(num, caplog):
    with MultiProcessMapAndBatchData(Numbers(10), num, same, 3, remainder=True, timeout=LIMIT) as df:
        assert len(df) == 4 and df._df_endless and not df.addressable
        iterator = iter(df)
        for _ in range(5):
            assert [len(batch[0]) for batch in itertools.islice(iterator, 10)] == [3] * 10
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "MultiProcessMapAndBatchData with strict=False" in record.message


def test_by_default_a_pass_of_the_input_may_be_shorter_than_a_batch():
    with MultiProcessMapAndBatchData(Numbers(2), 2, same, 6, timeout=LIMIT) as df:
        (batch,) = next(iter(df))
    assert sorted(batch) == [0, 0, 0, 1, 1, 1]


def test_by_default_batches_of_an_unknown_number_come():
    with MultiProcessMapAndBatchData(Forever(), 2, same, 4, timeout=LIMIT) as df:
        found = [k for batch in itertools.islice(df, 10) for k in batch[0].tolist()]
        assert len(set(found)) == 40


def test_the_buffer_holds_ten_batches_by_default():
    assert MultiProcessMapAndBatchData(Numbers(10), 2, same, 3).ds.buffer_size == 30
    assert MultiProcessMapAndBatchData(Numbers(10), 2, same, 3, 5).ds.buffer_size == 5
    with pytest.raises(ValueError, match="buffer_size must be an integer ≥ 3, got 2: it counts datapoints"):
        MultiProcessMapAndBatchData(Numbers(10), 2, same, 3, 2)


# -- one component -----------------------------------------------------------------------------------------------------


def test_arrays_keep_their_labels():
    """The predecessor paired 313 of 400 arrays with the label of another."""

    def func(image):
        return image.astype(float) * 2

    with MultiProcessMapDataComponentSharedArray(labelled(400), 3, func, (6, 5), np.float32, timeout=LIMIT) as df:
        for _ in range(2):
            for array, label in itertools.islice(df, 400):
                assert array.shape == (6, 5) and array.dtype == np.float32
                assert (array == 2 * label).all()


@pytest.mark.parametrize("num", [0, 2])
def test_a_strict_pass_is_that_of_map_data_component(num):
    def func(value):
        return None if value % 5 == 1 else np.full((70, 80), value)

    expected = [plain(dp) for dp in MapDataComponent(labelled(20), func, 1)]
    with MultiProcessMapDataComponentSharedArray(
        labelled(20), num, func, (70, 80), int, 1, strict=True, timeout=LIMIT
    ) as df:
        assert [plain(dp) for dp in df] == expected
        assert plain(df[0]) == expected[0]


def test_another_shape_is_an_error_that_names_both():
    df = MultiProcessMapDataComponentSharedArray(labelled(5), 1, np.transpose, (6, 5), np.uint8, timeout=LIMIT)
    with pytest.raises(ShapeMismatch, match=r"transpose.*\(5, 6\).*output_shape is \(6, 5\)"), deadline(LIMIT):
        list(df)


def test_the_function_is_checked():
    with pytest.raises(TypeError, match="function"):
        MultiProcessMapDataComponentSharedArray(labelled(5), 1, None, (6, 5), np.uint8)


def test_a_dtype_of_python_objects_is_an_error_at_once():
    with pytest.raises(ValueError, match=r"output_dtype.*Python objects have no shared memory"):
        MultiProcessMapDataComponentSharedArray(labelled(5), 1, np.transpose, (6, 5), object)


@pytest.mark.parametrize("num", [0, pytest.param(2, marks=pytest.mark.full)])
def test_they_keep_the_contract_of_all_nodes(num):
    check_node(
        lambda ds: MultiProcessMapAndBatchData(ds, num, same, 3, strict=True, timeout=LIMIT),
        exclusive=num > 0,
        kinds=(list,),
    )
    check_node(
        lambda ds: MultiProcessMapDataComponentSharedArray(
            ds, num, np.negative, (2,), "f4", strict=True, timeout=LIMIT
        ),
        exclusive=num > 0,
        kinds=(list,),
    )


def test_generators_are_for_whole_datapoints():
    with pytest.raises(TypeError, match="with_rng= is for whole datapoints"):
        MultiProcessMapDataComponentSharedArray(
            DataFromList([[1]]), 1, abs, output_shape=(1,), output_dtype="i8", with_rng=True
        )
