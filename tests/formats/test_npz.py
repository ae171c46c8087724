"""npz files: those of others, what others see in ours, and what is damaged or replaced."""

import errno
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dataflow import FileDamaged, NumpySerializer, PickleRefused, TableData
from dataflow.formats import npz
from dataflow.formats.positional import PositionalFile
from tests.formats.files import NPZ, ROWS, archived, assert_same, flow, images, members_of, npy, rows
from tests.support.contract import check_node


def zipped(path, **members):
    archived(path, members, zipfile.ZIP_DEFLATED)
    return path


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


def test_names_of_arrays_in_any_language(tmp_path):
    path = str(tmp_path / "file.npz")
    np.savez(path, größe=np.arange(3), 名=np.arange(3))
    with NumpySerializer.load(path, shuffle=False) as df:
        assert_same(list(df), [{"größe": np.int64(k), "名": np.int64(k)} for k in range(3)])


def test_other_files_in_an_archive_and_bytes_behind_an_array_are_left_out(tmp_path):
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    path = zipped(tmp_path / "file.npz", **{"notes.txt": "of somebody", "a.npy": npy(array) + bytes(5000)})
    with NPZ.load(path, shuffle=False) as df:
        assert_same(list(df), [{"a": row} for row in array])


def test_bytes_behind_an_array_are_not_read_as_rows(tmp_path):
    path = tmp_path / "file.npz"
    archived(path, {"a.npy": npy(np.arange(3)) + bytes(range(16))})
    with NumpySerializer.load(path, shuffle=False) as df:
        assert [dp["a"] for dp in df] == [0, 1, 2]


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


# -- arrays of objects -------------------------------------------------------------------------------------------------


def test_an_npy_file_is_refused_with_what_reads_it(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(6).reshape(3, 2))
    for pickle in (False, True):
        with pytest.raises(ValueError, match=r"array\.npy is an npy file, .*: pass the array to TableData") as caught:
            len(NumpySerializer.load(path, pickle=pickle))
        assert not isinstance(caught.value, FileDamaged)
    with TableData({"x": np.load(path, mmap_mode="r")}) as df:
        assert [dp["x"].tolist() for dp in df] == [[0, 1], [2, 3], [4, 5]]
    path.write_bytes(path.read_bytes()[:3])
    with pytest.raises(FileDamaged, match="not a complete archive"):
        len(NumpySerializer.load(path))


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


def test_arrays_of_objects_are_read_from_the_file_that_was_looked_at(tmp_path):
    path = str(tmp_path / "file.npz")
    np.savez(path, data=np.array([[1, "a"], [2, None]], object))
    with NumpySerializer.load(path, shuffle=False, pickle=True) as df:
        assert list(df) == [[1, "a"], [2, None]]
    with pytest.raises(PickleRefused):
        list(NumpySerializer.load(path))


def test_arrays_of_objects_of_different_lengths_are_no_rows(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, a=np.array([1, None], object), b=np.arange(3))
    with pytest.raises(ValueError, match=r"file\.npz: the arrays differ in length"):
        NumpySerializer.load(path, pickle=True)
    np.savez(path, a=np.array({1: 2}, object))
    with pytest.raises(ValueError, match="the array 'a' has no rows"):
        NumpySerializer.load(path, pickle=True)


class Unpicklable:
    def __reduce__(self):
        return {}.__getitem__, ("missing",)


def test_what_unpickling_raises_is_no_damage(tmp_path):
    objects = np.empty(1, object)
    objects[0] = Unpicklable()
    path = zipped(tmp_path / "file.npz", **{"a.npy": npy(objects)})
    with pytest.raises(KeyError, match="missing"):
        NPZ.load(path, pickle=True)


def test_arrays_of_objects_in_memory_are_not_read_in_blocks(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, buffer=np.array([[1], ["a"]], object))
    with pytest.raises(ValueError, match="block_shuffle is for rows that are read from a disk"):
        NPZ.load(path, pickle=True, block_shuffle=2)


# -- damage ------------------------------------------------------------------------------------------------------------


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


def test_a_compressed_array_that_is_damaged_is_named(tmp_path):
    path = zipped(tmp_path / "file.npz", **{"a.npy": npy(np.random.default_rng(1).normal(size=(200, 20)))})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with NPZ.load(path) as df, pytest.raises(FileDamaged, match="array 'a': "):
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


def test_an_archive_with_two_arrays_of_one_name_is_damaged(tmp_path):
    path = tmp_path / "file.npz"
    with pytest.warns(UserWarning, match="Duplicate name"):
        archived(path, [("a.npy", npy(np.arange(3))), ("a.npy", npy(np.arange(3) + 5))])
    with NumpySerializer.load(path) as df, pytest.raises(FileDamaged, match="array 'a': there are two of this name"):
        len(df)


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
