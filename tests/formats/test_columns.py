"""npz and HDF5 files: those of others, and what others see in ours."""

import errno
import io
import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dataflow import (
    DataFlowTerminated,
    FileDamaged,
    HDF5Data,
    HDF5Serializer,
    NotStorable,
    NumpySerializer,
    PickleRefused,
)
from dataflow.formats import columns, hdf5, npz
from dataflow.formats.positional import PositionalFile
from dataflow.formats.records import RecordEncoder
from tests.formats.files import COLUMNS, HDF5, NPZ, assert_same, by_name, flow, images
from tests.support.contract import check_node

h5py = pytest.importorskip("h5py")

ROWS = {
    "image": np.arange(60.0).reshape(10, 2, 3),
    "label": np.arange(10, dtype="i2"),
    "name": np.array(list("abcdefghij")),
}


def rows():
    return [{key: column[k] for key, column in ROWS.items()} for k in range(10)]


# -- npz ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_npz_file_of_numpy_gives_rows(save, order, tmp_path):
    path = tmp_path / "file.npz"
    save(path, **{key: np.asarray(column, order=order) for key, column in ROWS.items()})
    with NumpySerializer.load(path, shuffle=False) as df:
        assert_same(list(df), rows())
        assert_same(df[7], rows()[7])
        df[3]["image"][...] = 0
        assert_same(df[3], rows()[3])
    check_node(lambda: NumpySerializer.load(path), source=True)


def test_numpy_reads_a_npz_file_of_ours(tmp_path):
    path = NPZ.saved(tmp_path, rows())
    with np.load(path) as file:
        for key, column in ROWS.items():
            if key != "name":
                assert file[key].tolist() == column.tolist()


def test_arrays_of_different_lengths_are_no_rows(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, a=np.arange(3), b=np.arange(4))
    with NumpySerializer.load(path) as df, pytest.raises(ValueError, match=r"differ in length.*'a': 3, 'b': 4"):
        len(df)
    np.savez(path, a=np.array(3))
    with NumpySerializer.load(path) as df, pytest.raises(ValueError, match="'a' has no rows"):
        len(df)


@pytest.mark.parametrize("regular", [True, False])
def test_a_npz_file_of_tensorpack_needs_pickle_to_be_allowed(regular, tmp_path):
    dps = images(8) if regular else [[k, np.arange(k)] for k in range(8)]
    path = tmp_path / "file.npz"
    buffer = np.empty((8, 2), object)
    for k, dp in enumerate(dps):
        buffer[k, :] = dp
    np.savez_compressed(path, buffer=buffer)
    with (
        NumpySerializer.load(path) as df,
        pytest.raises(PickleRefused, match="the array 'buffer' holds Python objects"),
    ):
        len(df)
    with NumpySerializer.load(path, shuffle=False, pickle=True) as df:
        assert_same(list(df), dps)


def test_a_foreign_npz_file_is_verified_when_it_is_opened(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, a=np.arange(1000.0))
    content = bytearray(path.read_bytes())
    content[content.index(np.float64(500).tobytes())] ^= 1
    path.write_bytes(content)
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged, match="checksum"):
        len(df)


def test_a_damaged_directory_that_swallows_arrays_is_noticed(tmp_path):
    path = Path(NPZ.saved(tmp_path, [[1, 2.0]]))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 32] = 70  # the length of the comment of the first entry
    path.write_bytes(content)
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged, match=r"there were 3|not a complete archive"):
        len(df)
    assert zipfile.is_zipfile(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, None])
def test_an_npz_file_whose_last_bytes_are_zero_is_damaged(save, tmp_path):
    path = tmp_path / "f.npz"
    if save is None:
        NPZ.saved(tmp_path, [[k, np.full(5, k)] for k in range(60)])
        path = next(tmp_path.iterdir())
    else:
        save(path, a=np.arange(60))
    whole = path.read_bytes()
    for num in range(whole[-1] == 0, 40):
        path.write_bytes(whole[: len(whole) - num] + bytes(num))
        df = NumpySerializer.load(path, shuffle=False)
        if path.read_bytes() == whole:  # zeros are the length of its comment
            assert len(list(df)) == 60
        else:
            with pytest.raises(FileDamaged):
                list(df)
        df.close()


# -- HDF5 --------------------------------------------------------------------------------------------------------------


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


# -- npz files of which bytes are missing, or that are replaced --------------------------------------------------------


def npz_files(tmp_path):
    rows = [[k, np.full(100, k), f"text {k}"] for k in range(60)]
    ours = NPZ.saved(tmp_path, rows)
    theirs, packed = str(tmp_path / "theirs.npz"), str(tmp_path / "packed.npz")
    arrays = {"a": np.arange(60), "b": np.tile(np.arange(60), (100, 1)).T.copy()}
    np.savez(theirs, **arrays)
    np.savez_compressed(packed, **arrays)
    return [ours, theirs, packed]


def cut_out(content, begin, size):
    return content[:begin] + content[begin + size :]


def put_in(content, begin, size):
    return content[:begin] + bytes(size) + content[begin:]


@pytest.mark.parametrize("change", [cut_out, put_in])
@pytest.mark.parametrize("pickle", [False, True])
@pytest.mark.parametrize("which", range(3), ids=["ours", "theirs", "compressed"])
def test_an_npz_file_with_bytes_missing_or_added_is_reported_by_name(which, pickle, change, tmp_path):
    path = npz_files(tmp_path)[which]
    with NumpySerializer.load(path, shuffle=False) as df:
        expected = list(df)
    content, caught = Path(path).read_bytes(), []
    num = len(content)
    places = sorted({0, 10, 26, 29, 30, 40, 60, 100, 200, 300, *range(0, num - 1, num // 12), num - 90, num - 30})
    for begin in (place for place in places if place >= 0):
        for size in (1, 100, 5000):
            Path(path).write_bytes(change(content, begin, size))
            try:
                with NumpySerializer.load(path, shuffle=False, pickle=pickle) as df:
                    found = list(df)
            except FileDamaged as error:
                caught.append(error)
            else:  # an archive may have something before it
                assert change is put_in
                assert_same(found, expected)
    for error in caught:
        assert error.path == path and str(error).startswith(path)
        assert "copy it again" in str(error)
    assert len(caught) > 20


def test_the_array_that_is_damaged_is_named(tmp_path):
    path, *_ = npz_files(tmp_path)
    content = Path(path).read_bytes()
    Path(path).write_bytes(cut_out(content, 300, 100))
    with pytest.raises(FileDamaged, match=r"array '0\.npy': it would begin 100 bytes before the file does"):
        list(NumpySerializer.load(path))
    begin = content.index(b"1.npy")
    Path(path).write_bytes(content[: begin + 2] + b"X" + content[begin + 3 :])
    with pytest.raises(FileDamaged, match=r"array '1\.npy': it does not begin where the directory of the archive says"):
        list(NumpySerializer.load(path))


@pytest.mark.parametrize("pickle", [False, True])
def test_an_npz_file_that_is_replaced_while_it_is_opened_is_one_or_the_other(pickle, tmp_path, monkeypatch):
    old = [[k, np.full(10, k)] for k in range(50)]
    new = [[k, "text"] for k in range(5)]
    path = NPZ.saved(tmp_path, old)
    real = os.open

    def replacing(name, *args, **more):
        fd = real(name, *args, **more)
        if name == path:  # at once after it was opened
            monkeypatch.setattr(os, "open", real)
            NumpySerializer.save(flow(new), path, overwrite=True)
        return fd

    monkeypatch.setattr(os, "open", replacing)
    with NumpySerializer.load(path, shuffle=False, pickle=pickle) as df:
        assert_same(list(df), new if pickle else old)  # where pickles may be read, it is looked for them first
    with NumpySerializer.load(path, shuffle=False) as df:
        assert_same(list(df), new)


def test_arrays_of_objects_are_read_from_the_file_that_was_looked_at(tmp_path):
    path = str(tmp_path / "file.npz")
    np.savez(path, data=np.array([[1, "a"], [2, None]], object))
    with NumpySerializer.load(path, shuffle=False, pickle=True) as df:
        assert list(df) == [[1, "a"], [2, None]]
    with pytest.raises(PickleRefused):
        list(NumpySerializer.load(path))


def test_names_of_arrays_in_any_language(tmp_path):
    path = str(tmp_path / "file.npz")
    np.savez(path, größe=np.arange(3), 名=np.arange(3))
    with NumpySerializer.load(path, shuffle=False) as df:
        assert_same(list(df), [{"größe": np.int64(k), "名": np.int64(k)} for k in range(3)])


# -- what a file says about its rows -----------------------------------------------------------------------------------


LIES = {
    "no object": lambda about: 7,
    "no version": lambda about: about.pop("version"),
    "no table": lambda about: about.pop("table"),
    "a table that is a list": lambda about: about.update(table=[]),
    "a column with another attribute": lambda about: about["table"]["columns"][0].update(kand="scalar"),
    "a column without a kind": lambda about: about["table"]["columns"][0].pop("kind"),
    "an unknown kind": lambda about: about["table"]["columns"][0].update(kind="arr"),
    "a name that is none": lambda about: about["table"]["columns"][0].update(name=7),
    "an unknown dtype": lambda about: about["table"]["columns"][0].update(dtype="<x8"),
    "a dtype with pointers": lambda about: about["table"]["columns"][0].update(dtype="|O"),
    "another name": lambda about: about["table"]["columns"][0].update(name="other"),
    "a shape below zero": lambda about: about["table"]["columns"][0].update(shape=[-1]),
    "a shape of text": lambda about: about["table"]["columns"][0].update(shape="ab"),
    "no number of rows": lambda about: about.pop("size"),
    "a number of rows that is text": lambda about: about.update(size="10"),
    "fewer than no rows": lambda about: about.update(size=-1),
    "an unknown container": lambda about: about["table"].update(container="row"),
    "a datapoint of nothing": lambda about: about["table"].update(container="alone", columns=[]),
    "two columns of one name": lambda about: about["table"].update(columns=2 * about["table"]["columns"]),
    "an int that is unsigned": lambda about: about["table"]["columns"][0].update(dtype="<u8"),
    "a scalar with axes": lambda about: about["table"]["columns"][0].update(kind="scalar", shape=[1]),
    "a record with a dtype": lambda about: about["table"]["columns"][0].update(kind="record"),
    "a dtype with axes": lambda about: about["table"]["columns"][0].update(kind="array", dtype="(2,)<i4"),
    "text of no characters": lambda about: about["table"]["columns"][0].update(kind="array", dtype="|S0"),
    "rows of half their size": lambda about: about["table"]["columns"][0].update(kind="array", dtype="<i4"),
    "rows of another shape": lambda about: about["table"]["columns"][0].update(kind="array", shape=[3]),
    "rows beyond any memory": lambda about: about["table"]["columns"][0].update(kind="array", shape=[1 << 50]),
    "a product of 2**64": lambda about: about["table"]["columns"][0].update(kind="array", shape=[1 << 32] * 2),
    "empty rows beyond 64 bits": lambda about: about["table"]["columns"][0].update(kind="array", shape=[1 << 62, 0]),
    "65 dimensions": lambda about: about["table"]["columns"][0].update(kind="array", shape=[1] * 64),
    "rows of no columns, without end": lambda about: about.update(size=1 << 62, table=table_of_empty_rows(0)),
    "empty rows without end": lambda about: about.update(size=1 << 40, table=table_of_empty_rows(1)),
}
LIES["one row more"] = lambda about: about.update(size=11)
LIES_OF_NPZ = {
    "no checksums": lambda about: about.pop("checksums"),
    "checksums that are a number": lambda about: about.update(checksums=7),
    "too few checksums": lambda about: about["checksums"].update(label=""),
    "checksums that are no numbers": lambda about: about["checksums"].update(label="x"),
}


def table_of_empty_rows(num_columns):
    column = {"name": "label", "kind": "array", "dtype": "|u1", "shape": [0]}
    return {"container": "dict", "columns": [column] * num_columns}


def lied(about, lie):
    changed = lie(about)
    return changed if type(changed) is int and changed == 7 else about


def members_of(path):
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def archived(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for filename, content in members.items() if isinstance(members, dict) else members:
            archive.writestr(filename, content)


def npy(array):
    with io.BytesIO() as file:
        np.save(file, array)
        return file.getvalue()


@pytest.mark.parametrize("form", [HDF5, NPZ], ids=["h5", "npz"])
def test_datapoints_may_be_values_alone(form, tmp_path):
    with form.load(form.saved(tmp_path, [3, 1, 2]), shuffle=False) as df:
        assert_same(list(df), [3, 1, 2])


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="needs NumPy 2")
def test_arrays_of_a_dtype_without_a_form_on_disk_are_refused(tmp_path):
    with pytest.raises(NotStorable, match="component '0' is an array of Python objects"):
        HDF5.saved(tmp_path, [[np.array(["a"], np.dtypes.StringDType())]])


def zipped(path, **members):
    archived(path, members, zipfile.ZIP_DEFLATED)
    return path


def test_other_files_in_an_archive_and_bytes_behind_an_array_are_left_out(tmp_path):
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    path = zipped(tmp_path / "file.npz", **{"notes.txt": "of somebody", "a.npy": npy(array) + bytes(5000)})
    with NPZ.load(path, shuffle=False) as df:
        assert_same(list(df), [{"a": row} for row in array])


def test_a_compressed_array_that_is_damaged_is_named(tmp_path):
    path = zipped(tmp_path / "file.npz", **{"a.npy": npy(np.random.default_rng(1).normal(size=(200, 20)))})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with NPZ.load(path) as df, pytest.raises(FileDamaged, match="array 'a': "):
        len(df)


class Unpicklable:
    def __reduce__(self):
        return {}.__getitem__, ("missing",)


def test_what_unpickling_raises_is_no_damage(tmp_path):
    objects = np.empty(1, object)
    objects[0] = Unpicklable()
    path = zipped(tmp_path / "file.npz", **{"a.npy": npy(objects)})
    with pytest.raises(KeyError, match="missing"):
        NPZ.load(path, pickle=True)


class FailingDisk(io.BytesIO):
    """It gives the directory of an archive, and then no more."""

    def __init__(self, content, num_left):
        super().__init__(content)
        self.num_left = num_left

    def read(self, *args):
        self.num_left -= 1
        if self.num_left < 0:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(*args)


def test_an_error_of_the_disk_is_no_damage_of_an_archive(tmp_path):
    path = str(zipped(tmp_path / "file.npz", **{"notes.txt": "of somebody", "a.npy": npy(np.arange(3))}))
    content, file = Path(path).read_bytes(), PositionalFile(path)
    with pytest.raises(OSError, match="Input/output error"):
        npz._open(file, FailingDisk(content, 2))  # of the directory, whose end zipfile has found
    disk = FailingDisk(content, 100)
    archive = npz._open(file, disk)
    disk.num_left = 0
    with pytest.raises(OSError, match="Input/output error"):
        npz._check_name(path, archive, archive.infolist()[0])
    file.close()


@pytest.mark.parametrize("name", LIES)
def test_an_hdf5_file_that_says_nonsense_about_its_rows_is_damaged(name, tmp_path):
    path = HDF5.saved(tmp_path, [{"label": k} for k in range(10)])
    with h5py.File(path, "r+") as file:
        about = lied(json.loads(bytes(file.attrs["dataflow"])), LIES[name])
        file.attrs["dataflow"] = np.bytes_(json.dumps(about).encode())
    with HDF5.load(path) as df, pytest.raises(FileDamaged):
        len(df)


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


def test_an_hdf5_file_that_cannot_be_begun_is_closed(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(h5py, "File", refuse)
        with pytest.raises(MemoryError):
            HDF5.saved(tmp_path, [[1]])
    assert len(os.listdir("/proc/self/fd")) == before


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


@pytest.mark.parametrize("name", LIES | LIES_OF_NPZ)
def test_a_npz_file_that_says_nonsense_about_its_rows_is_damaged(name, tmp_path):
    path = NPZ.saved(tmp_path, [{"label": k} for k in range(10)])
    members = members_of(path)
    about = lied(json.loads(members["dataflow.json"]), (LIES | LIES_OF_NPZ)[name])
    archived(path, {**members, "dataflow.json": json.dumps(about).encode()})
    with NPZ.load(path, shuffle=False) as df, pytest.raises(FileDamaged):
        list(df)


@pytest.mark.parametrize("offset", [1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("name", ["a.npy", "a.txt"])
def test_a_npz_file_with_a_member_that_begins_elsewhere_is_damaged(name, offset, tmp_path):
    with zipfile.ZipFile(path := tmp_path / "file.npz", "w") as archive:
        archive.writestr(name, b"content")
        archive.filelist[0].header_offset = offset
    with NPZ.load(path) as df, pytest.raises(FileDamaged):
        len(df)


@pytest.mark.parametrize("ends", [np.arange(1, 4, dtype="u8"), np.arange(2.0), np.zeros((2, 1), "u8")])
def test_a_npz_file_whose_records_have_other_ends_is_damaged(ends, tmp_path):
    path = NPZ.saved(tmp_path, [["a"], ["b"]])
    archived(path, {**members_of(path), "0.ends.npy": npy(ends)})
    with NPZ.load(path) as df, pytest.raises(FileDamaged, match="it has not 2 numbers"):
        len(df)


@pytest.mark.parametrize("value", [[7], {"other": 7}, {"0": 7, "1": 8}, 7])
def test_a_record_that_is_not_one_of_its_column_is_damage(value, tmp_path):
    """Its checksum is right, so another program has written it."""
    record = np.frombuffer(RecordEncoder().encode(value, b"0"), np.uint8)
    path = NPZ.saved(tmp_path, [["text"]])
    archived(path, {**members_of(path), "0.npy": npy(record), "0.ends.npy": npy(np.array([len(record)], "u8"))})
    with (
        NPZ.load(path) as df,
        pytest.raises(FileDamaged, match=r"array '0', row 0: its record is not one of column '0'"),
    ):
        list(df)
    path = HDF5.saved(tmp_path, [["text"]])
    with h5py.File(path, "r+") as file:
        for name, content in (("0", record), ("0.ends", np.array([len(record)], "u8"))):
            del file[name]
            file[name] = content
    with HDF5.load(path) as df, pytest.raises(FileDamaged, match=r"dataset '0', row 0: its record is not one of"):
        list(df)


@pytest.mark.parametrize("ends", [[1 << 63, 94], [94, 1], [0, 1 << 60], [0, 0]])
def test_ends_that_do_not_fit_the_records_are_damage(ends, tmp_path):
    ends = np.array(ends, "u8")
    path = NPZ.saved(tmp_path, [["a"], ["b"]])
    archived(path, {**members_of(path), "0.ends.npy": npy(ends)})
    with NPZ.load(path) as df, pytest.raises(FileDamaged, match="'0': the ends of its records do not fit its"):
        len(df)
    path = HDF5.saved(tmp_path, [["a"], ["b"]])
    with h5py.File(path, "r+") as file:
        file["0.ends"][:] = ends
    with HDF5.load(path) as df, pytest.raises(FileDamaged, match="'0': the ends of its records do not fit its"):
        len(df)


@pytest.mark.parametrize("name", ["0.npy", "0.ends.npy", "1.npy", "dataflow.json"])
def test_a_part_of_our_files_that_was_compressed_is_refused(name, tmp_path):
    """All of it would be read into memory, or rows at places where they are not."""
    path = NPZ.saved(tmp_path, [["text", 1]])
    members = members_of(path)
    with zipfile.ZipFile(path, "w") as archive:
        for filename, content in members.items():
            archive.writestr(filename, content, zipfile.ZIP_DEFLATED if filename == name else zipfile.ZIP_STORED)
    with (
        NPZ.load(path) as df,
        pytest.raises(FileDamaged, match=f"{name}.*: it was compressed after it had been written"),
    ):
        len(df)


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


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
def test_a_file_that_says_null_about_its_rows_is_no_file_of_others(form, tmp_path):
    path = form.saved(tmp_path, [[k, "text"] for k in range(10)])
    if form is NPZ:
        archived(path, {**members_of(path), "dataflow.json": b"null"})
    else:
        with h5py.File(path, "r+") as file:
            file.attrs["dataflow"] = np.bytes_(b"null")
    with form.load(path) as df, pytest.raises(FileDamaged, match="what it says about its rows cannot be read"):
        len(df)


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
def test_elements_without_a_size_come_back(form, tmp_path):
    for dtype in ("S0", "U0", "V0", np.dtype([])):
        dps = [[np.ndarray(3, dtype, bytearray(1))] for _ in range(2)]
        with form.load(form.saved(tmp_path, dps), shuffle=False) as df:
            assert_same(list(df), dps)


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
def test_more_empty_datapoints_than_can_be_read_are_not_stored(form, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_MAX_EMPTY_ROWS", 5)
    with form.load(form.saved(tmp_path, [[np.zeros(0)]] * 5)) as df:
        assert len(list(df)) == 5
    with pytest.raises(NotStorable, match="5 datapoints without content already"):
        form.saved(tmp_path, [[np.zeros(0)]] * 6)


# -- headers of arrays -------------------------------------------------------------------------------------------------


def with_header(text, content=bytes(24), *, version=b"\1\0"):
    head = text.encode("latin-1")
    return b"\x93NUMPY" + version + len(head).to_bytes(2 if version == b"\1\0" else 4, "little") + head + content


def claim(shape, descr="'<i8'", order=False):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


HEADERS = {
    "more rows than there are": with_header(claim("(4,)")),
    "more columns than there are": with_header(claim("(3, 5)")),
    "more than any memory": with_header(claim(f"({1 << 60},)")),
    "more in Fortran's order": with_header(claim("(3, 4)", order=True)),
    "more than any memory in Fortran's order": with_header(claim(f"(3, {1 << 60})", order=True)),
    "a length below zero": with_header(claim("(-3,)")),
    "two lengths below zero": with_header(claim("(-3, -1)")),
    "a length that is a truth": with_header(claim("(True,)")),
    "empty rows without end": with_header(claim(f"({1 << 40}, 0)"), b""),
    "empty rows beyond 64 bits": with_header(claim(f"({1 << 80}, 0)"), b""),
    "no such version": with_header(claim("(3,)"), version=b"\x09\0"),
    "a header longer than any memory": b"\x93NUMPY\2\0\xff\xff\xff\xff" + bytes(30),
    "a header of many signs": with_header("-" * 9000 + "1"),
    "a header of many brackets": with_header("[" * 9000),
    "no header": b"",
    "half a header": with_header(claim("(3,)"))[:20],
}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", HEADERS)
def test_an_array_whose_header_claims_what_is_not_there_is_damaged(name, compression, tmp_path):
    path = tmp_path / "file.npz"
    archived(path, {"before.npy": npy(np.arange(3)), "a.npy": HEADERS[name]}, compression)
    with NumpySerializer.load(path) as df, pytest.raises((FileDamaged, ValueError)) as caught:
        list(df)
    assert type(caught.value) is FileDamaged or "the arrays differ in length" in str(caught.value)
    archived(path, {"a.npy": HEADERS[name]}, compression)
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged) as caught:
        list(df)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("text", ["-" * 9000 + "1", "1+" * 4500 + "1", "x**" * 3000 + "1", "~" * 9000 + "1"])
def test_a_header_that_would_overflow_the_stack_of_a_thread_is_not_parsed(text, tmp_path):
    path = tmp_path / "file.npz"
    archived(path, {"a.npy": with_header(text)})
    message = f"the header is '{re.escape(text[:40])}'…"
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged, match=message):
        len(df)
    path = NPZ.saved(tmp_path, [["a"]])
    archived(path, {**members_of(path), "0.ends.npy": with_header(text)})
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged, match=message):
        len(df)


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header parsing")
def test_a_header_of_python_2_is_read(tmp_path):
    path = tmp_path / "file.npz"
    archived(path, {"a.npy": with_header("{'descr': '<i8',\n 'fortran_order': False,\t'shape': (3L,), }\n")})
    with NumpySerializer.load(path) as df:
        assert len(list(df)) == 3


def test_bytes_behind_an_array_are_not_read_as_rows(tmp_path):
    path = tmp_path / "file.npz"
    archived(path, {"a.npy": npy(np.arange(3)) + bytes(range(16))})
    with NumpySerializer.load(path, shuffle=False) as df:
        assert [dp["a"] for dp in df] == [0, 1, 2]


def test_an_archive_with_two_arrays_of_one_name_is_damaged(tmp_path):
    path = tmp_path / "file.npz"
    with pytest.warns(UserWarning, match="Duplicate name"):
        archived(path, [("a.npy", npy(np.arange(3))), ("a.npy", npy(np.arange(3) + 5))])
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged, match="array 'a': there are two of this name"):
        len(df)


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_names_of_fields_in_any_language(tmp_path):
    path = tmp_path / "file.npz"
    for name in ("größe", "大小", "😀"):
        array = np.array([(1,), (2,)], [(name, "<i4")])
        np.savez(path, a=array)
        with NumpySerializer.load(path, shuffle=False) as df:
            assert [dp["a"].dtype for dp in df] == [array.dtype] * 2


@pytest.mark.parametrize("array", [np.ndarray(3, "S0", bytearray(1)), np.zeros(3, [(("title", "a"), "i4")])])
def test_an_array_of_a_dtype_that_datapoints_cannot_have_is_refused_by_name(array, tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, a=array)
    for pickle in (False, True):
        with (
            NumpySerializer.load(path, pickle=pickle) as df,
            pytest.raises(ValueError, match=r"file\.npz: the array 'a' has the dtype .* cannot have"),
        ):
            len(df)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_array_that_cannot_be_decompressed_is_damaged(compression, tmp_path):
    path = tmp_path / "file.npz"
    array = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
    archived(path, {"a.npy": npy(array)}, compression)
    content = path.read_bytes()
    path.write_bytes(content[:200_000] + bytes(range(1, 201)) + content[200_200:])
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged, match=r"array 'a(\.npy)?'"):
        len(df)


def test_arrays_of_objects_of_different_lengths_are_no_rows(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, a=np.array([1, None], object), b=np.arange(3))
    with pytest.raises(ValueError, match=r"file\.npz: the arrays differ in length"):
        NumpySerializer.load(path, pickle=True)
    np.savez(path, a=np.array({1: 2}, object))
    with pytest.raises(ValueError, match="the array 'a' has no rows"):
        NumpySerializer.load(path, pickle=True)
