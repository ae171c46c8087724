"""LMDB files of any origin: keys, values, tensorpack's layout, the size of the map, and one environment per process."""

import mmap
import os
import pickle
import struct
import threading
from pathlib import Path

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from dataflow import (
    DataFlowTerminated,
    FileDamaged,
    JoinData,
    LMDBData,
    LMDBDataDecoder,
    LMDBSerializer,
    MapData,
    MultiProcessRunnerZMQ,
    PickleRefused,
)
from dataflow.formats import lmdb as lmdb_format
from dataflow.formats.records import RecordDecoder
from tests.formats.files import LMDB, assert_same, flow, images
from tests.support.contract import check_node, seeded

lmdb = pytest.importorskip("lmdb")


def written(path, pairs, *, subdir=False):
    """A file that lmdb alone has written."""
    environment = lmdb.open(str(path), subdir=subdir, map_size=1 << 24, lock=False)
    with environment.begin(write=True) as transaction:
        for key, value in pairs:
            transaction.put(key, value)
    environment.close()
    return str(path)


def as_tensorpack(path, datapoints, dumps, **options):
    """The layout of tensorpack 0.11: numbered keys, a list of them under __keys__, all written by one `dumps`."""
    keys = [f"{k:08}".encode() for k in range(len(datapoints))]
    pairs = [*zip(keys, map(dumps, datapoints), strict=True), (b"__keys__", dumps(keys))]
    return written(path, pairs, **options)


def pickled(value):
    return pickle.dumps(value, protocol=-1)


def packed(value):
    return msgpack.packb(value, use_bin_type=True, default=msgpack_numpy.encode)


@pytest.mark.parametrize("size", [1 << 50, (1 << 63) - 1, 1 << 63, -1])
@pytest.mark.parametrize("load", [LMDBSerializer.load, LMDBData, lambda path: LMDBData(path, keys="{:0>8d}")])
def test_a_number_of_datapoints_that_the_file_has_no_room_for_is_damage(load, size, tmp_path):
    mark = msgpack.packb({"version": 2, "size": size, "checksum": "crc32"})
    path = written(tmp_path / "file", [(b"!dataflow", mark), *((b"%08d" % k, packed(k)) for k in range(3))])
    content = bytearray(Path(path).read_bytes())
    for page in range(2):  # both of LMDB's descriptions of itself
        struct.pack_into("<Q", content, page * mmap.PAGESIZE + 120, size + 1)
    Path(path).write_bytes(content)
    with load(path) as df, pytest.raises(FileDamaged, match=f"it claims {size} datapoints in"):
        len(df)


@pytest.mark.parametrize("listed", [[0, 1 << 50], [b"a", 3], ["a", None], [["a"], ["b"]], [1.5, {}], {"a": 1, "b": 2}])
def test_a_list_of_what_cannot_be_keys_is_not_used(listed, tmp_path):
    """`bytes` of a number are as many zeros."""
    path = written(tmp_path / "file", [(b"a", packed(1)), (b"b", packed(2)), (b"__keys__", msgpack.packb(listed))])
    with LMDBSerializer.load(path, shuffle=False) as df:
        assert list(df) == [1, 2]


@pytest.mark.parametrize("subdir", [False, True])
def test_a_file_of_tensorpack_needs_pickle_to_be_allowed(subdir, tmp_path):
    path = as_tensorpack(tmp_path / "file", images(8), pickled, subdir=subdir)
    with LMDBSerializer.load(path, shuffle=False, pickle=True) as df:
        assert len(df) == 8
        for _ in range(2):
            assert_same(list(df), images(8))
    with LMDBSerializer.load(path, shuffle=False) as df:
        assert len(df) == 8  # the list of keys, a pickle, is not read
        with pytest.raises(PickleRefused, match="key b'00000000'"):
            list(df)


def test_a_file_of_tensorpacks_msgpack_is_read_as_it_is(tmp_path):
    path = as_tensorpack(tmp_path / "file", images(8), packed)
    with LMDBSerializer.load(path, shuffle=False) as df:
        assert_same(list(df), images(8))
        for dp in df:
            dp[1][...] = 0


def test_keys_and_values_of_tensorpacks_file_are_read_raw(tmp_path):
    path = as_tensorpack(tmp_path / "file", images(8), pickled)
    with LMDBData(path, shuffle=False) as df:
        assert [key for key, _ in df] == [f"{k:08}".encode() for k in range(8)]
        assert len(df) == 8
        assert_same(pickle.loads(df[3][1]), images(8)[3])
    with seeded(1), LMDBData(path) as df:
        passes = [[key for key, _ in df] for _ in range(2)]
        assert sorted(passes[0]) == sorted(passes[1]) and passes[0] != passes[1]
    with seeded(1), LMDBData(path) as df:
        assert [[key for key, _ in df] for _ in range(2)] == passes  # the order depends on no history


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (None, [b"a", b"bb", b"c"]),
        (["c", "a"], [b"c", b"a"]),
        ([b"bb"], [b"bb"]),
    ],
)
def test_keys_may_be_given_or_are_searched(shuffle, keys, expected, tmp_path):
    path = written(tmp_path / "file", [(b"bb", b"2"), (b"a", b"1"), (b"c", b"3")])
    values = {b"a": b"1", b"bb": b"2", b"c": b"3"}
    with LMDBData(path, shuffle, keys) as df:
        found = list(df)
        assert df.keys == keys
    assert found == [[key, values[key]] for key in expected] or (
        shuffle and sorted(found) == sorted([key, values[key]] for key in expected)
    )


def test_keys_may_be_a_format(tmp_path):
    path = written(tmp_path / "file", [(b"%08d" % k, b"%d" % k) for k in range(12)])
    for shuffle in (True, False):
        with LMDBData(path, shuffle, keys="{:0>8d}") as df:
            assert len(df) == 12
            assert sorted(int(value) for _, value in df) == list(range(12))


def test_a_key_that_is_missing_is_named(tmp_path):
    path = written(tmp_path / "file", [(b"a", b"1")])
    with LMDBData(path, False, keys=["a", "z"]) as df, pytest.raises(KeyError, match="no key b'z'"):
        list(df)


def test_the_decoder_gets_key_and_value_and_may_drop(tmp_path):
    path = written(tmp_path / "file", [(b"%d" % k, bytes([k])) for k in range(6)])
    df = LMDBDataDecoder(LMDBData(path, False), lambda key, value: [int(key), value[0]] if value[0] % 2 else None)
    with df:
        assert list(df) == [[1, 1], [3, 3], [5, 5]]
        assert df.addressable and df[3] == [3, 3]


def test_the_nodes_keep_the_contract(tmp_path):
    path = written(tmp_path / "file", [(b"%d" % k, b"x%d" % k) for k in range(8)])
    for shuffle in (True, False):
        check_node(lambda shuffle=shuffle: LMDBData(path, shuffle), source=True)
        check_node(
            lambda shuffle=shuffle: LMDBDataDecoder(LMDBData(path, shuffle), lambda *dp: list(dp)),
            source=True,
            picklable=False,
        )


def test_a_file_of_ours_that_says_another_number_is_damaged(tmp_path):
    path = LMDB.saved(tmp_path, [[k] for k in range(5)])
    with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"00000003")
    with LMDB.load(path) as df, pytest.raises(FileDamaged, match="there are 4 datapoints, and 5 were written"):
        len(df)
    with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"00000007", bytes(transaction.get(b"00000004")))
    with (
        LMDB.load(path, shuffle=False) as df,
        pytest.raises(FileDamaged, match="key b'00000003': there is no such key"),
    ):
        list(df)


def test_a_folder_is_a_database_too(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    LMDBSerializer.save(flow([[1], [2]]), folder)
    assert os.listdir(folder) == ["data.mdb"]
    with LMDBSerializer.load(folder, shuffle=False) as df:
        assert list(df) == [[1], [2]]
    with pytest.raises(FileExistsError):
        LMDBSerializer.save(flow([[1], [2]]), folder)


def test_flows_over_one_file_share_it_and_the_last_one_closes_it(tmp_path):
    path = LMDB.saved(tmp_path, images(8))
    first, second = LMDB.load(path, shuffle=False), LMDBData(path, shuffle=False)
    with JoinData([first, second]) as df:
        assert [dp[0] for dp in df] == [dp[0] for dp in images(8)]
    assert first[2][0] == images(8)[2][0]
    assert second[2][0] == b"00000002"
    first.close()
    assert second[3][0] == b"00000003"
    second.close()
    lmdb.open(path, subdir=False, lock=False, readonly=True).close()  # nobody has it open


def test_a_flow_that_is_collected_closes_its_file(tmp_path):
    path = LMDB.saved(tmp_path, images(8))
    len(LMDB.load(path))
    lmdb.open(path, subdir=False, lock=False, readonly=True).close()


def test_closing_in_another_thread_ends_the_reading_with_an_error(tmp_path):
    path = LMDB.saved(tmp_path, [[k, np.arange(100)] for k in range(2000)])
    for _ in range(5):
        df = LMDB.load(path, shuffle=False)
        chain = MapData(df, lambda dp: dp)
        iterator = iter(chain)
        next(iterator)
        thread = threading.Thread(target=df.close)
        thread.start()
        try:
            for _ in iterator:
                pass
        except DataFlowTerminated:
            pass  # unless all of it had been read before
        thread.join()
        df.close()


def test_a_forked_process_has_its_own_environment(tmp_path):
    path = LMDB.saved(tmp_path, images(8))
    with LMDB.load(path, shuffle=False) as df:
        iterator = iter(df)
        next(iterator)
        runner = MultiProcessRunnerZMQ(df, 1, context="fork", timeout=60)
        assert_same(list(runner), images(8))
        assert_same(list(iterator), images(8)[1:])
        runner.close()


def test_an_empty_file_is_no_database(tmp_path):
    Path(tmp_path / "file").touch()
    with pytest.raises(FileDamaged):
        len(LMDBData(tmp_path / "file"))


def test_the_caffe_reader_is_left_out():
    import dataflow

    assert not hasattr(dataflow, "CaffeLMDB")


# -- large arrays ------------------------------------------------------------------------------------------------------


def large(num=40, size=40_000):
    return [[k, np.arange(size, dtype=np.float64) + k, np.full(3, k)] for k in range(num)]


@pytest.fixture
def large_file(tmp_path):
    return LMDB.saved(tmp_path, large())


def test_what_is_written_to_a_large_array_is_seen_by_nobody_else(large_file):
    before = Path(large_file).read_bytes()
    with LMDB.load(large_file, shuffle=False) as df:
        for _ in range(3):
            for dp, expected in zip(df, large(), strict=True):
                assert_same(dp, expected)
                dp[1][...] = -1
                dp[2][...] = -1
        first, second = list(df), list(df)
        for a, b in zip(first, second, strict=True):
            a[1][...] = -2
            assert b[1][0] == b[0]
        assert_same(df[0:40], large())
    assert Path(large_file).read_bytes() == before


def test_large_arrays_outlive_their_flow_and_their_file(large_file):
    with LMDB.load(large_file, shuffle=False) as df:
        copied, kept = list(df), list(df)
    LMDBSerializer.save(flow([[1]]), large_file, overwrite=True)
    os.unlink(large_file)
    for dps in (copied, kept):
        assert_same(dps, large())
        assert all(array.flags.writeable and array.flags.aligned for dp in dps for array in dp[1:])


@pytest.mark.parametrize(
    "order",
    [
        pytest.param({"shuffle": True, "block_shuffle": 4}),
        pytest.param({"shuffle": True}, marks=pytest.mark.full),
        pytest.param({"shuffle": False}, marks=pytest.mark.full),
    ],
)
def test_large_arrays_come_in_any_order(order, large_file):
    with LMDB.load(large_file, **order) as df:
        for _ in range(2):
            assert_same(sorted(df, key=lambda dp: dp[0]), large())
        with MultiProcessRunnerZMQ(df, 2, timeout=60) as runner:
            iterator = iter(runner)
            for dp in (next(iterator) for _ in range(40)):
                assert_same(dp, large()[dp[0]])


def test_two_readings_at_once_share_no_memory(large_file):
    with LMDB.load(large_file, shuffle=False) as df:
        list(df)
        for one, other, expected in zip(df, df, large(), strict=True):
            assert_same([one, other], [expected, expected])
            one[1][...] = -1
            assert_same(other, expected)


def test_a_file_that_is_replaced_while_it_is_opened_is_one_or_the_other(tmp_path, monkeypatch):
    old, new = [[k, np.full(50, k)] for k in range(500)], [[k] for k in range(5)]
    path = LMDB.saved(tmp_path, old)
    real = lmdb.open

    def replacing(*args, **more):
        monkeypatch.setattr(lmdb, "open", real)
        LMDBSerializer.save(flow(new), path, overwrite=True)
        return real(*args, **more)

    monkeypatch.setattr(lmdb, "open", replacing)
    with LMDB.load(path, shuffle=False) as df:
        assert_same(list(df), new)


@pytest.mark.parametrize("key", ["", "x" * 600])
def test_a_key_that_no_file_can_have_is_missing(key, tmp_path):
    path = written(tmp_path / "file", [(b"a", b"1")])
    with LMDBData(path, keys=["a", key], shuffle=False) as df, pytest.raises(KeyError, match="there is no key"):
        list(df)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("file: Permission denied", PermissionError, "Permission denied"),
        ("The environment is already open in this process", lmdb.Error, "already open"),
        ("MDB_INVALID", FileDamaged, "this is not a complete LMDB file"),
    ],
)
def test_why_a_file_cannot_be_opened_is_said(text, error, message, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise lmdb.Error(text)

    path = LMDB.saved(tmp_path, [[1]])
    monkeypatch.setattr(lmdb, "open", refuse)
    with LMDB.load(path) as df, pytest.raises(error, match=message):
        len(df)


class Refusing:
    """A transaction that finds a page damaged."""

    def get(self, key):
        raise lmdb.CorruptedError("page")


def test_a_page_that_cannot_be_read_is_damage(tmp_path):
    file = lmdb_format._LMDBFile(LMDB.saved(tmp_path, [[1]]))
    file._shared.transaction = Refusing()
    with pytest.raises(FileDamaged, match="LMDB cannot read it"):
        file.get(b"00000000")
    file.close()
    file.close()
    assert not lmdb_format._open_files().shared


def test_a_mark_that_cannot_be_read_is_damage(tmp_path):
    path = LMDB.saved(tmp_path, [[1]])
    with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(lmdb_format._MARK, b"\xc1")
    with LMDB.load(path) as df, pytest.raises(FileDamaged, match="the mark of dataflow cannot be read"):
        len(df)


def test_the_mark_of_a_file_of_ours_may_be_read_as_any_value(tmp_path):
    path = LMDB.saved(tmp_path, [[1], [2]])
    with LMDBData(path, keys=["00000001", lmdb_format._MARK], shuffle=False) as df:
        assert msgpack.unpackb(list(df)[1][1])["size"] == 2


def test_a_record_that_changes_after_it_was_verified_is_named(tmp_path):
    path = Path(LMDB.saved(tmp_path, [[f"text {k}"] for k in range(3)]))
    with LMDB.load(path, shuffle=False) as df:
        assert list(df) == [["text 0"], ["text 1"], ["text 2"]]
        content, written = path.read_bytes(), path.stat().st_mtime_ns
        with path.open("r+b") as file:  # not replaced: it is mapped
            file.write(content.replace(b"\xa6text 1", b"\xc1text 1"))
        os.utime(path, ns=(written, written))  # as a disk that fails
        with pytest.raises(FileDamaged, match=r"key b'00000001': .*checksum"):
            list(df)


def test_a_record_that_was_verified_is_verified_again_before_it_counts_as_damaged(tmp_path, monkeypatch):
    decode = RecordDecoder.decode

    def fail_for_want_of_memory(self, *args, verify=True, **options):
        if not verify:  # without its key, what has failed cannot be told from damage
            raise FileDamaged("the checksum does not match", path="file")
        return decode(self, *args, verify=verify, **options)

    with LMDB.load(LMDB.saved(tmp_path, [[1], [2]]), shuffle=False) as df:
        assert list(df) == [[1], [2]]
        monkeypatch.setattr(RecordDecoder, "decode", fail_for_want_of_memory)
        assert list(df) == [[1], [2]]


def test_a_file_that_cannot_be_begun_is_closed(tmp_path, monkeypatch):
    def refuse(*_):
        raise MemoryError

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(lmdb_format._LMDBWriter, "commit", refuse)
    with pytest.raises(MemoryError) as caught:  # whose traceback keeps the environment
        LMDB.saved(tmp_path, [[1]])
    assert len(os.listdir("/proc/self/fd")) == before and caught.tb is not None


def test_an_error_of_lmdb_that_is_none_of_the_disk_is_raised_as_it_is(tmp_path):
    def refuse():
        raise lmdb.BadRslotError("slot")

    with lmdb_format._writing(lmdb, str(tmp_path / "file"), 1) as writer, pytest.raises(lmdb.BadRslotError):
        writer._tried(refuse)


def test_a_value_of_a_file_of_ours_that_is_no_record_is_named(tmp_path):
    path = LMDB.saved(tmp_path, [[1], [2]])
    with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"00000001", b"text")
    with (
        LMDBData(path, shuffle=False) as df,
        pytest.raises(FileDamaged, match="key b'00000001': bytes that do not begin"),
    ):
        list(df)


@pytest.mark.parametrize("frequency", [1, 7, 5000])
@pytest.mark.parametrize("pending", [1 << 12, 1 << 24])
def test_a_map_that_is_full_grows_and_loses_nothing(frequency, pending, tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_format, "_FIRST_MAP", 1 << 15)
    monkeypatch.setattr(lmdb_format, "_PENDING", pending)
    dps = [[k, np.full(k % 700, k)] for k in range(400)] + [[400, np.zeros(1 << 17)]]
    path = LMDB.file(tmp_path)
    LMDB.save(flow(dps), path, frequency)
    with LMDB.load(path, shuffle=False) as df:
        assert_same(list(df), dps)
