"""npz and HDF5 files: those of others, and what others see in ours."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dataflow import FileDamaged, HDF5Data, HDF5Serializer, NumpySerializer, PickleRefused
from tests.formats.files import HDF5, NPZ, assert_same, flow, images
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
}
LIES_OF_NPZ = {
    "no checksums": lambda about: about.pop("checksums"),
    "checksums that are a number": lambda about: about.update(checksums=7),
    "too few checksums": lambda about: about["checksums"].update(label=""),
    "checksums that are no numbers": lambda about: about["checksums"].update(label="x"),
    "one row more": lambda about: about.update(size=11),
}


def lied(about, lie):
    changed = lie(about)
    return changed if type(changed) is int and changed == 7 else about


@pytest.mark.parametrize("name", LIES)
def test_an_hdf5_file_that_says_nonsense_about_its_rows_is_damaged(name, tmp_path):
    path = HDF5.saved(tmp_path, [{"label": k} for k in range(10)])
    with h5py.File(path, "r+") as file:
        about = lied(json.loads(bytes(file.attrs["dataflow"])), LIES[name])
        file.attrs["dataflow"] = np.bytes_(json.dumps(about).encode())
    with HDF5.load(path) as df, pytest.raises(FileDamaged):
        len(df)


@pytest.mark.parametrize("name", LIES | LIES_OF_NPZ)
def test_a_npz_file_that_says_nonsense_about_its_rows_is_damaged(name, tmp_path):
    path = NPZ.saved(tmp_path, [{"label": k} for k in range(10)])
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    about = lied(json.loads(members["dataflow.json"]), (LIES | LIES_OF_NPZ)[name])
    members["dataflow.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for filename, content in members.items():
            archive.writestr(filename, content)
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
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with io.BytesIO() as file:
        np.save(file, ends)
        members["0.ends.npy"] = file.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for filename, content in members.items():
            archive.writestr(filename, content)
    with NPZ.load(path) as df, pytest.raises(FileDamaged, match="it has not 2 numbers"):
        len(df)
