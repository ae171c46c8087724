"""Headers of npy files: what they claim, whoever has written them."""

import re
import zipfile

import numpy as np
import pytest

from dataflow import FileDamaged, NumpySerializer, WebDatasetData
from tests.formats.files import NPZ, archived, members_of, npy, write_shard


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


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_names_of_fields_in_any_language(tmp_path):
    path = tmp_path / "file.npz"
    for name in ("größe", "大小", "😀"):
        array = np.array([(1,), (2,)], [(name, "<i4")])
        np.savez(path, a=array)
        with NumpySerializer.load(path, shuffle=False) as df:
            assert [dp["a"].dtype for dp in df] == [array.dtype] * 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            npy(np.zeros(9)).replace(b"(9,), }              ", b"(999999999999999,), }"),
            "has 7999999999999992 bytes, and 72",
        ),
        (npy(np.arange(3))[:-1], "has 24 bytes, and 23 are there"),
        (b"PK\5\6" + bytes(18), "does not begin with"),  # `numpy.load` returns an archive
        (b"", "does not begin with"),
    ],
)
def test_an_array_that_is_not_there_is_not_decoded(data, reason, tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.npy", data)])
    with (
        WebDatasetData(path, decode=True) as df,
        pytest.raises(ValueError, match=f"s.tar, sample 'a', extension 'npy': it cannot be decoded .*{reason}"),
    ):
        list(df)
