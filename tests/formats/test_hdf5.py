"""HDF5 files: those of others, what others see in ours, and what is damaged."""

import errno
import json
import os

import numpy as np
import pytest

from dataflow import DataFlowTerminated, FileDamaged, HDF5Data, HDF5Serializer
from dataflow.formats import hdf5
from tests.formats.files import HDF5, ROWS, assert_same, flow, images, opened, rows
from tests.support.contract import check_node

h5py = pytest.importorskip("h5py")


@pytest.fixture
def foreign(tmp_path):
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["group/image"] = ROWS["image"]
        file.create_dataset("label", data=ROWS["label"], chunks=(3,), compression="gzip")
        file["name"] = list("abcdefghij")
        file["shorter"] = np.arange(4)
        file["number"] = 5
    return path


def test_a_file_of_h5py_gives_rows(foreign):
    with HDF5Data(foreign, ["group/image", "label", "name"], False) as df:
        expected = [[dp["image"], dp["label"], str(dp["name"])] for dp in rows()]
        assert_same(list(df), expected)
        assert_same(df[7], expected[7])
        df[3][0][...] = 0
        assert_same(df[3], expected[3])
    check_node(lambda: HDF5Data(foreign, ["group/image", "label"]), source=True)


def test_datasets_in_other_files_are_refused(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(bytes(range(80)))
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["x"] = np.arange(10)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("raw", (10,), "i8", external=[(str(other), 0, 80)])
        layout = h5py.VirtualLayout((10,), "i8")
        layout[:] = h5py.VirtualSource(tmp_path / "source.h5", "x", (10,))
        file.create_virtual_dataset("virtual", layout)
        file["link"] = h5py.ExternalLink("source.h5", "x")
    for name in ("raw", "virtual", "link"):
        with HDF5Data(tmp_path / "file.h5", [name]) as df, pytest.raises(ValueError, match=f"'{name}' is stored in"):
            len(df)


@pytest.mark.parametrize(
    ("paths", "error", "message"),
    [
        (["labels"], KeyError, r"no dataset 'labels'.*\['group/image', 'label', 'name', 'number', 'shorter'\]"),
        (["group"], KeyError, "no dataset 'group'"),
        (["label", "shorter"], ValueError, "differ in length.*'label': 10, 'shorter': 4"),
        (["number"], ValueError, "'number' has no rows"),
        (None, ValueError, r"data_paths=; there are \['group/image'"),
    ],
)
def test_datasets_that_give_no_rows_are_refused(paths, error, message, foreign):
    with HDF5Data(foreign, paths) as df, pytest.raises(error, match=message):
        len(df)


@pytest.mark.parametrize("empty", [[], ["empty"]])
def test_a_dataset_that_another_program_has_added_has_its_own_length(empty, tmp_path):
    path = HDF5.saved(tmp_path, [{"label": k, "empty": np.zeros((0, 3))} for k in range(10)])
    with h5py.File(path, "r+") as file:
        file["five"], file["ten"] = np.arange(5), np.arange(10)
    with HDF5Data(path, [*empty, "ten"], shuffle=False) as df:
        assert [dp[-1] for dp in df] == list(range(len(df))) == list(range(10))
    with HDF5Data(path, ["five"], shuffle=False) as df:
        assert [dp[0] for dp in df] == list(range(len(df))) == list(range(5))
    for ours in ("label", "empty"):
        with HDF5Data(path, [ours, "five"]) as df, pytest.raises(ValueError, match=f"'{ours}': 10, 'five': 5"):
            len(df)


def test_one_name_is_no_list_of_names(foreign):
    with pytest.raises(TypeError, match="got the text 'label'"):
        HDF5Data(foreign, "label")


def test_h5py_reads_a_file_of_ours(tmp_path):
    path = HDF5.file(tmp_path)
    HDF5Serializer.save(flow([[dp["image"], int(dp["label"])] for dp in rows()]), path, ["image", "deep/label"])
    with h5py.File(path) as file:
        assert file["image"][:].tolist() == ROWS["image"].tolist()
        assert file["deep/label"][:].tolist() == list(range(10))


def test_the_names_of_dicts_may_choose_their_order(tmp_path):
    path = HDF5.file(tmp_path)
    HDF5Serializer.save(flow([{"a": 1, "b": 2}]), path, ["b", "a"])
    with HDF5Serializer.load(path) as df:
        assert list(df[0].items()) == [("b", 2), ("a", 1)]
    with HDF5Serializer.load(path, ["a"]) as df:
        assert df[0] == [1]
    for names, dp in ((["b"], {"a": 1, "b": 2}), (["x", "y"], [1])):
        with pytest.raises(ValueError, match=r"keys|2 names for 1"):
            HDF5Serializer.save(flow([dp]), path, names, overwrite=True)


def test_tensorpacks_call_with_data_paths_works(tmp_path):
    path = HDF5.file(tmp_path)
    HDF5.save(flow(images()), path, ["label", "image"])
    with HDF5.load(path, ["label", "image"], shuffle=False) as df:
        assert_same(list(df), images())
    with HDF5Data(path, ["image"], False) as df:
        assert_same(df[3], [images()[3][1]])


def test_hdf5_compresses_chunks(tmp_path):
    dps = [[np.zeros((50, 50))] for _ in range(20)]
    path = HDF5.saved(tmp_path, dps, compress="gzip")
    assert os.path.getsize(path) < 20_000
    with opened(HDF5, path) as df:
        assert_same(list(df), dps)


def test_records_that_fill_a_chunk_are_written_at_once(tmp_path, monkeypatch):
    append, appended = hdf5._append, []
    monkeypatch.setattr(hdf5, "_append", lambda *args: appended.append(1) or append(*args))
    datapoints = [["a" * k, k] for k in range(50)]
    for size, least, most in ((1 << 20, 3, 3), (100, 30, 80), (1, 101, 150)):
        monkeypatch.setattr(hdf5, "_CHUNK", size)
        with HDF5.load(HDF5.saved(tmp_path, datapoints), shuffle=False) as df:
            assert_same(list(df), datapoints)
        assert least <= len(appended) <= most
        appended.clear()


# -- damage ------------------------------------------------------------------------------------------------------------


def test_an_hdf5_file_whose_own_words_are_unreadable_is_damaged(tmp_path):
    path = HDF5.saved(tmp_path, [{"label": 1}])
    with h5py.File(path, "r+") as file:
        file.attrs["dataflow"] = np.bytes_(b"{")
    with HDF5.load(path) as df, pytest.raises(FileDamaged, match="what it says about itself cannot be read"):
        len(df)


@pytest.mark.parametrize("error", [RuntimeError("a symbol"), OSError("no errno")])
def test_an_hdf5_file_whose_structure_cannot_be_read_is_damaged_and_closed(error, foreign, monkeypatch):
    def refuse(*_):
        raise error

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(hdf5._HDF5Reader, "_about", refuse)
    with pytest.raises(FileDamaged, match=f"HDF5 cannot read it .{error}"):
        hdf5._HDF5Reader(str(foreign), None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_hdf5_raises_names_the_place_or_the_system(tmp_path):
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["whole"] = np.arange(5)
        file.create_dataset("pieces", data=np.arange(5), chunks=(1,))
    reader = hdf5._HDF5Reader(str(path), ["whole"])

    def fail(error):
        raise error

    with pytest.raises(OSError, match="disk") as caught:
        reader.asked(lambda: fail(OSError(errno.EIO, "disk")), "whole", 3)
    assert not isinstance(caught.value, FileDamaged)
    for name, place in (("whole", "from row 3 on"), ("pieces", "from row 3 on.*at byte")):
        dataset = reader._file[name]
        with pytest.raises(FileDamaged, match=place) as caught:
            reader.asked(lambda: fail(ValueError("x")), name, 3, dataset)
        assert ("at byte" in str(caught.value)) == (name == "pieces")
    with pytest.raises(DataFlowTerminated, match="was closed while it was being read"):
        reader.asked(lambda: (reader.close(), fail(ValueError("closed"))), "whole")


DATASETS = {
    "numbers of another dtype": ("label", np.arange(2.0)),
    "numbers with axes": ("label", np.zeros((2, 1), "i8")),
    "a number": ("label", np.int64(2)),
    "texts": ("label", ["a", "b"]),
    "another number of rows": ("label", np.arange(3)),
    "records that are numbers": ("text", np.arange(200, dtype="i8")),
    "records with axes": ("text", np.zeros((200, 1), "u1")),
    "ends below zero": ("text.ends", np.array([-1, 5])),
    "ends that are fractions": ("text.ends", np.array([1.0, 5.0])),
    "more ends than rows": ("text.ends", np.arange(3, dtype="u8")),
}


@pytest.mark.parametrize("what", DATASETS)
def test_an_hdf5_file_whose_datasets_are_not_as_it_says_is_damaged(what, tmp_path):
    path = HDF5.saved(tmp_path, [{"label": k, "text": "text"} for k in range(2)])
    name, content = DATASETS[what]
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = content
    with HDF5.load(path) as df, pytest.raises(FileDamaged, match=f"dataset '{name.removesuffix('.ends')}"):
        list(df)


def test_a_dataset_that_claims_more_than_any_memory_is_damage(tmp_path):
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (1, 1 << 60), "u1", chunks=(1, 1 << 20))  # without any chunk in the file
    with HDF5Data(path, ["a"]) as df, pytest.raises(FileDamaged, match="dataset 'a', from row 0 on: HDF5 cannot read"):
        list(df)


def test_rows_that_were_never_written_are_damage(tmp_path):
    path = HDF5.saved(tmp_path, [{"label": k} for k in range(10)])
    with h5py.File(path, "r+") as file:
        about = json.loads(bytes(file.attrs["dataflow"]))
        file.attrs["dataflow"] = np.bytes_(json.dumps({**about, "size": 1 << 50}).encode())
        file["label"].resize(1 << 50, 0)
    with HDF5.load(path) as df, pytest.raises(FileDamaged, match=f"'label': it claims {1 << 53} bytes in a file of"):
        len(df)


# -- what the system refuses -------------------------------------------------------------------------------------------


def test_an_hdf5_file_that_cannot_be_begun_is_closed(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(h5py, "File", refuse)
        with pytest.raises(MemoryError):
            HDF5.saved(tmp_path, [[1]])
    assert len(os.listdir("/proc/self/fd")) == before


class Full:
    """A file that takes no more."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        raise OSError(errno.ENOSPC, "full")


def test_hdf5_reads_again_what_a_full_disk_has_refused(tmp_path):
    (tmp_path / "file").touch()
    disk, found = hdf5._Disk(str(tmp_path / "file")), bytearray(12)
    disk.write(b"abcdef")
    disk.seek(2)
    assert disk.readinto(found) == 4 and found[:4] == b"cdef"
    disk._file = Full(disk._file)
    disk.seek(4)
    disk.write(b"1234")
    disk.seek(9)
    disk.write(b"5")
    disk.seek(0)
    assert disk.readinto(found) == 12 and found == b"abcd1234\x005\0\0"
    disk.seek(2)
    assert disk.readinto(memoryview(found)[:4]) == 4 and found[:4] == b"cd12" and disk.tell() == 6
    disk.seek(9)
    assert disk.readinto(memoryview(found)[:3]) == 3 and found[:3] == b"5\0\0"
    with pytest.raises(OSError, match="No space left"):
        disk.check()
    disk.close()
