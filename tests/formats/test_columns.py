"""Columns of npz and HDF5 files: what they hold, what they refuse, and what a file says about its rows."""

import json

import numpy as np
import pytest

from dataflow import FileDamaged, NotStorable
from dataflow.formats import columns
from dataflow.formats.records import RecordEncoder
from tests.formats.files import COLUMNS, HDF5, NPZ, archived, assert_same, by_name, members_of, npy, opened

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize("form", [HDF5, NPZ], ids=["h5", "npz"])
def test_datapoints_may_be_values_alone(form, tmp_path):
    with form.load(form.saved(tmp_path, [3, 1, 2]), shuffle=False) as df:
        assert_same(list(df), [3, 1, 2])


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
def test_columns_hold_text_and_containers_of_any_length(form, tmp_path):
    dps = [
        {"text": "ü" * k, "boxes": [(k, 1.5)] * k, "none": None, "big": b"x" * (1 << 12 * (k % 2))} for k in range(40)
    ]
    with opened(form, form.saved(tmp_path, dps)) as df:
        assert_same(list(df), dps)
        assert_same(df[17], dps[17])


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
def test_elements_without_a_size_come_back(form, tmp_path):
    for dtype in ("S0", "U0", "V0", np.dtype([])):
        dps = [[np.ndarray(3, dtype, bytearray(1))] for _ in range(2)]
        with form.load(form.saved(tmp_path, dps), shuffle=False) as df:
            assert_same(list(df), dps)


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
@pytest.mark.parametrize(
    ("dps", "message"),
    [
        ([[1], [2.0]], "component '0' is a float"),
        ([[np.zeros(2)], [np.zeros(3)]], r"component '0' is <f8 \(3,\), and in the first datapoint <f8 \(2,\)"),
        ([[np.zeros(2)], [np.zeros(2, "f4")]], r"<f4 \(2,\)"),
        ([[1], [2, 3]], "2 components, and the first had 1"),
        ([[1], (1,)], "it is a tuple, and the first was a list"),
        ([{"a": 1}, {"b": 1}], r"the keys \['b'\]"),
        ([{"a": 1}, {2: 1}], r"the keys \[2\]"),
        ([[1], [2**63]], "not a 64-bit integer"),
        ([{5: 1}], "the key 5 cannot name a column"),
        ([{"a": "text", "a.ends": 1}], "two columns would be called 'a.ends'"),
        ([1, [1]], "it is a list, and the first was no container"),
    ],
)
def test_columns_refuse_what_differs(form, dps, message, tmp_path):
    with pytest.raises(NotStorable, match=message):
        form.saved(tmp_path, dps)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="needs NumPy 2")
def test_arrays_of_a_dtype_without_a_form_on_disk_are_refused(tmp_path):
    with pytest.raises(NotStorable, match="component '0' is an array of Python objects"):
        HDF5.saved(tmp_path, [[np.array(["a"], np.dtypes.StringDType())]])


@pytest.mark.parametrize("form", COLUMNS, ids=by_name)
def test_more_empty_datapoints_than_can_be_read_are_not_stored(form, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_MAX_EMPTY_ROWS", 5)
    with form.load(form.saved(tmp_path, [[np.zeros(0)]] * 5)) as df:
        assert len(list(df)) == 5
    with pytest.raises(NotStorable, match="5 datapoints without content already"):
        form.saved(tmp_path, [[np.zeros(0)]] * 6)


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
    members = members_of(path)
    about = lied(json.loads(members["dataflow.json"]), (LIES | LIES_OF_NPZ)[name])
    archived(path, {**members, "dataflow.json": json.dumps(about).encode()})
    with NPZ.load(path, shuffle=False) as df, pytest.raises(FileDamaged):
        list(df)


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


# -- records -----------------------------------------------------------------------------------------------------------


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
