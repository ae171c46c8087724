"""Maps with strict=False never end: what needs an end says so at once, and everything else goes on with them."""

import itertools
import os

import pytest

from dataflow import (
    BatchData,
    CacheData,
    ConcatData,
    DataFromList,
    DiskCacheData,
    FixedSizeData,
    HDF5Serializer,
    JoinData,
    LMDBSerializer,
    LocallyShuffleData,
    MultiProcessMapAndBatchData,
    MultiProcessMapData,
    MultiProcessMapDataComponentSharedArray,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    NotAddressable,
    NotReproducible,
    NumpySerializer,
    RandomMixData,
    RayMapData,
    RepeatedData,
    ResumableData,
    ShuffleData,
    TestDataSpeed,
    TFRecordSerializer,
)
from tests.support.faults import deadline
from tests.support.waits import LIMIT

N = 10


def listed(n=N):
    return DataFromList([[k] for k in range(n)], shuffle=False)


def same(dp):
    return dp


def identity(component):
    return component


MAPS = {
    "MultiThreadMapData": lambda num=1, **more: MultiThreadMapData(listed(), num, same, **more),
    "MultiProcessMapData": lambda num=1, **more: MultiProcessMapData(listed(), num, same, **more),
    "MultiProcessMapAndBatchData": lambda num=1, **more: MultiProcessMapAndBatchData(listed(), num, same, 2, **more),
    "MultiProcessMapDataComponentSharedArray": lambda num=1, **more: MultiProcessMapDataComponentSharedArray(
        listed(), num, identity, (), "i8", **more
    ),
    "RayMapData": lambda num=1, **more: RayMapData(listed(), num, same, **more),
}
NEED_AN_END = {
    "CacheData": lambda ds, folder: CacheData(ds),
    "DiskCacheData": lambda ds, folder: DiskCacheData(ds, folder / "cache", fingerprint="1"),
    "LMDBSerializer": lambda ds, folder: LMDBSerializer.save(ds, folder / "a.lmdb"),
    "TFRecordSerializer": lambda ds, folder: TFRecordSerializer.save(ds, folder / "a.tfrecord"),
    "NumpySerializer": lambda ds, folder: NumpySerializer.save(ds, folder / "a.npz"),
    "HDF5Serializer": lambda ds, folder: HDF5Serializer.save(ds, folder / "a.h5", ["number"]),
    "ConcatData": lambda ds, folder: ConcatData([ds, listed()]),
}
every_map = pytest.mark.parametrize("name", MAPS)


@every_map
def test_a_default_map_has_a_length_and_no_end(name):
    df = MAPS[name]()
    assert len(df) == (5 if "Batch" in name else N)
    assert df._df_ends_if_strict or "Batch" in name
    with pytest.raises(NotAddressable):
        df[0]
    strict = MAPS[name](strict=True)
    assert len(strict) == len(df)


@every_map
@pytest.mark.parametrize("what", NEED_AN_END)
def test_what_needs_an_end_refuses_it_and_names_the_cure(name, what, tmp_path):
    for ds in (MAPS[name](), BatchData(MAPS[name](), 1), RepeatedData(MAPS[name](), 2)):
        with pytest.raises(ValueError, match=rf"{what}.*never ends.*strict=True to {name}, or") as caught:
            NEED_AN_END[what](ds, tmp_path)
        assert "FixedSizeData" in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what", NEED_AN_END)
def test_what_is_endless_for_another_reason_has_another_cure(what, tmp_path):
    with pytest.raises(ValueError, match=f"{what}.*a pass of RepeatedData never ends: cut it with FixedSizeData"):
        NEED_AN_END[what](RepeatedData(listed(), -1), tmp_path)


@pytest.mark.parametrize("what", NEED_AN_END)
def test_it_takes_a_strict_map_and_one_that_was_cut(what, tmp_path):
    for k, ds in enumerate((MAPS["MultiThreadMapData"](strict=True), FixedSizeData(MAPS["MultiThreadMapData"](0), N))):
        folder = tmp_path / str(k)
        folder.mkdir()
        made = NEED_AN_END[what](ds, folder)
        if made is not None:
            with made:
                assert list(made)[:N] == [[k] for k in range(N)]
        ds.close()


def test_a_node_that_reads_by_index_names_the_cure_too():
    with pytest.raises(NotAddressable, match="Pass strict=True to MultiThreadMapData"):
        ShuffleData(MAPS["MultiThreadMapData"]())
    with pytest.raises(NotReproducible):
        ResumableData(MAPS["MultiThreadMapData"]())


@pytest.mark.parametrize("num", [2, -1])
def test_repeating_it_is_useless_and_logged_once(num, caplog):
    with RepeatedData(MAPS["MultiThreadMapData"](), num) as df, deadline(LIMIT):
        for _ in range(3):
            assert list(itertools.islice(df, 3 * N))
    (useless,) = [record for record in caplog.records if "has no effect" in record.message]
    assert useless.levelname == "WARNING" and "strict=True to MultiThreadMapData" in useless.message
    caplog.clear()
    with RepeatedData(MAPS["MultiThreadMapData"](strict=True), num) as df:
        assert len(list(itertools.islice(df, 2 * N))) == 2 * N
    assert not caplog.records


def test_what_counts_for_itself_goes_on_with_it():
    """As over every other flow without an end: a pass goes on where the last one stopped."""
    expected = [[k % N] for k in range(4 * N)]

    def make():
        return MAPS["MultiThreadMapData"](timeout=LIMIT)

    with FixedSizeData(make(), 15) as df, deadline(LIMIT):
        assert [*df, *df] == expected[:30]
    with JoinData([make(), listed(7)]) as df, deadline(LIMIT):
        assert len(df) == 7
        assert [dp[0] for _ in range(4) for dp in df] == [k for (k,) in expected[:28]]
    with BatchData(make(), 15, use_list=True) as df, deadline(LIMIT):  # longer than a pass of the input
        assert [k for (batch,) in itertools.islice(df, 2) for k in batch] == [k for (k,) in expected[:30]]
    with RandomMixData([make(), listed(5)]) as df, deadline(LIMIT):
        assert len(df) == 15 == len(list(df)) == len(list(df))
    with LocallyShuffleData(make(), 5) as df, deadline(LIMIT):
        assert len(list(itertools.islice(df, 3 * N))) == 3 * N
    with ConcatData([listed(), make()]) as df, deadline(LIMIT):
        assert list(itertools.islice(df, 25)) == expected[:25]
    with TestDataSpeed(make(), size=3 * N) as df, deadline(LIMIT):
        assert df.start() > 0


RUNNERS = {
    "pipe": lambda make, num, **more: MultiProcessRunner(make(), 5, num, timeout=LIMIT, **more),
    "zmq": lambda make, num, **more: MultiProcessRunnerZMQ(make(), num, timeout=LIMIT, **more),
    "thread": lambda make, num, **more: MultiThreadRunner(make, 5, num, timeout=LIMIT, **more),
}


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_default_runner_over_it_has_passes_of_the_nominal_length(kind):
    for num in (0, 1, 2) if kind == "thread" else (1,):
        with RUNNERS[kind](MAPS["MultiThreadMapData"], num) as df, deadline(LIMIT):
            assert not df._df_endless and len(df) == N
            for _ in range(3):
                found = [k for (k,) in df]
                assert len(found) == N and (num == 2 or sorted(found) == list(range(N)))


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_strict_runner_over_it_is_endless(kind):
    for num in (0, 1) if kind == "thread" else (1,):
        with RUNNERS[kind](MAPS["MultiThreadMapData"], num, strict=True) as df, deadline(LIMIT):
            assert df._df_endless
            for _ in range(2):
                assert len(list(itertools.islice(df, 3 * N))) == 3 * N
    with pytest.raises(NotAddressable):
        RUNNERS[kind](MAPS["MultiThreadMapData"], 2, strict=True)


@pytest.mark.parametrize(("kind", "num"), [("pipe", 2), ("zmq", 2), ("thread", 2), ("thread", 1), ("thread", 0)])
def test_a_default_runner_of_several_workers_says_once_what_a_pass_of_it_is(kind, num, caplog):
    for made in range(2 if kind == "thread" else 1):
        with RUNNERS[kind](listed, num) as df:
            assert len(caplog.records) == made * (num == 2)
            list(df), list(df)
        found = [record for record in caplog.records if "strict=True" in record.message]
        assert len(found) == (made + 1) * (num == 2)
        assert all(record.levelname == "WARNING" and "missing within a pass" in record.message for record in found)
    caplog.clear()
    with RUNNERS["thread"](listed, num, strict=True) as df:
        list(df), list(df)
    assert not caplog.records


def test_of_several_workers_the_first_says_it(caplog):
    """Every worker iterates a map of its own: the log has it once."""
    with MultiThreadRunner(MAPS["MultiThreadMapData"], 5, 3, timeout=LIMIT) as df:
        while len([record for record in caplog.records if "MultiThreadMapData with" in record.message]) < 1:
            assert len(list(df)) == N
        list(df)
    assert len([record for record in caplog.records if "MultiThreadMapData with" in record.message]) == 1
