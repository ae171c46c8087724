"""What checksums in files cover: keys, changes that cancel, pages that lead elsewhere; and versions of formats."""

import json
import os
import random
import struct
import sys
import zipfile
from pathlib import Path

import msgpack
import numpy as np
import pytest

from dataflow import (
    DiskCacheData,
    FileDamaged,
    LMDBData,
)
from dataflow.formats import checksums
from dataflow.formats.records import RecordDecoder, RecordEncoder
from tests.formats.files import FORMATS, HDF5, LMDB, NPZ, assert_same, by_name, flow
from tests.formats.test_damage import assert_none, verdicts_of

h5py = pytest.importorskip("h5py")
lmdb = pytest.importorskip("lmdb")

PAGE = 4096

every_format = pytest.mark.parametrize("form", FORMATS, ids=by_name)


# -- LMDB: pages that lead to another datapoint ------------------------------------------------------------------------


def alike(num=100):
    """Datapoints that could take the place of one another: on leaf pages, and on pages of their own."""
    return [[k, np.full(300 if k % 2 else 3, k)] for k in range(num)]


def pointers(content):
    """The offsets of all that leads from one place of an LMDB file to another, and how many bits of each count."""
    found = []
    num_bits = (len(content) // PAGE).bit_length() + 1  # above, it would lead outside the file
    for page in range(0, len(content), PAGE):
        _, _, flags, lower = struct.unpack_from("<QHHH", content, page)
        if flags & 8:  # meta: the root of each of two tables, and the last page
            found += [(page + 16 + 24 + 48 * table + 40, num_bits) for table in (0, 1)]
            found.append((page + 16 + 24 + 96, num_bits))
        if not flags & 3:
            continue
        for entry in range(page + 16, page + lower, 2):
            found.append((entry, 13))  # where in the page a node is
            node = page + struct.unpack_from("<H", content, entry)[0]
            _, node_flags, key_size = struct.unpack_from("<IHH", content, node)
            if flags & 1:  # branch: the page below
                found.append((node, num_bits))
            elif node_flags & 1:  # leaf: the pages with the value
                found.append((node + 8 + key_size, num_bits))
    return found


@pytest.mark.parametrize("most", [20, pytest.param(500, marks=pytest.mark.full)])
def test_a_page_that_leads_elsewhere_never_gives_another_datapoint(most, tmp_path):
    path = LMDB.saved(tmp_path, alike())
    content = Path(path).read_bytes()
    bits = [8 * place + bit for place, num_bits in pointers(content) for bit in range(num_bits)]
    assert len(bits) > 500
    cases = [["flip", bit] for bit in random.Random(3).sample(bits, most)]
    found, stderr = verdicts_of(LMDB, path, cases)
    assert_none(found, stderr, "damaged", "same", "signal")
    assert sum(verdict == "damaged" for _, verdict in found) > most / 5


def exchanged(path, one, other):
    """Let each of two keys of an LMDB file have the value of the other."""
    with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        first, second = (bytes(transaction.get(key)) for key in (one, other))
        transaction.put(one, second)
        transaction.put(other, first)


@pytest.mark.parametrize("compress", [None, "zstd"])
@pytest.mark.parametrize("num", [3, 700])
def test_a_datapoint_under_the_key_of_another_is_reported(num, compress, tmp_path):
    path = LMDB.saved(tmp_path, [[k, np.full(num, k)] for k in range(6)], compress=compress)
    exchanged(path, b"00000002", b"00000004")
    with LMDB.load(path, shuffle=False) as df:
        for k in (2, 4):
            with pytest.raises(FileDamaged, match=f"key b'0000000{k}': the checksum.* and its key"):
                df[k]
        assert df[3][0] == 3
        with pytest.raises(FileDamaged):
            list(df)
    with LMDBData(path, shuffle=False) as df, pytest.raises(FileDamaged, match="key b'00000002'"):
        list(df)


def test_a_record_of_another_version_is_refused(tmp_path):
    path = LMDB.saved(tmp_path, [[1], [2]])
    body = RecordEncoder().encode([7])
    old = b"\xc1\x01" + body[2:]
    with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"00000001", old)
    with (
        LMDB.load(path, shuffle=False) as df,
        pytest.raises(
            FileDamaged, match="the record has format version 1, and this release reads version 2: save it again"
        ),
    ):
        list(df)


# -- changes that cancel -----------------------------------------------------------------------------------------------


def cancelling(content, begin):
    """Changes that leave the sums of columns as they were."""
    opposite = bytearray(content)
    for place, change in ((begin, 1), (begin + 2040, -1)):
        opposite[place] = (opposite[place] + change) % 256
    yield bytes(opposite)
    for size in (8, 512):
        for distance in (2040, 4080):
            swapped = bytearray(content)
            one, other = slice(begin, begin + size), slice(begin + distance, begin + distance + size)
            swapped[one], swapped[other] = content[other], content[one]
            yield bytes(swapped)


@every_format
def test_changes_that_cancel_are_reported(form, tmp_path):
    # All but the lowest byte of each word are zero, so that no change carries.
    array = np.random.default_rng(0).integers(1, 200, 4000)
    path = form.saved(tmp_path, [[array]])
    content = Path(path).read_bytes()
    begin = content.index(array.tobytes()) + 64
    status = os.stat(path)
    for changed in cancelling(content, begin):
        assert changed != content
        Path(path).write_bytes(changed)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with form.load(path, shuffle=False) as df, pytest.raises(FileDamaged):
            list(df)
    Path(path).write_bytes(content)
    with form.load(path, shuffle=False) as df:
        assert_same(list(df), [[array]])


@pytest.mark.parametrize("form", [NPZ, HDF5], ids=by_name)
def test_a_record_in_the_row_of_another_is_reported(form):
    record = RecordEncoder().encode({"0": "text"}, b"3")
    assert RecordDecoder("file").decode(record, 3, key=b"3") == {"0": "text"}
    with pytest.raises(FileDamaged):
        RecordDecoder("file").decode(record, 4, key=b"4")


# -- what a file says about itself -------------------------------------------------------------------------------------


def said_by(form, path):
    if form is LMDB:
        with (
            lmdb.open(path, subdir=False, lock=False, readonly=True) as environment,
            environment.begin() as transaction,
        ):
            return msgpack.unpackb(transaction.get(b"!dataflow"))
    if form is NPZ:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("dataflow.json"))
    if form is HDF5:
        with h5py.File(path) as file:
            return json.loads(bytes(file.attrs["dataflow"]))
    head = json.loads(Path(path + ".index").read_bytes().partition(b"\n")[0])
    return {"checksum": head["algorithm"], "version": 2, "sum": head["checksum"]}


def say(form, path, said):
    """Write that into the metadata of a file."""
    if form is LMDB:
        with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
            transaction.put(b"!dataflow", msgpack.packb(said))
    elif form is HDF5:
        with h5py.File(path, "r+") as file:
            file.attrs["dataflow"] = np.bytes_(json.dumps(said).encode())
    else:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, json.dumps(said) if name == "dataflow.json" else content)


@every_format
def test_a_file_names_its_checksum_whatever_is_installed(form, tmp_path, monkeypatch):
    path = form.saved(tmp_path, [[k, np.arange(3000), "text"] for k in range(3)])
    content, said = Path(path).read_bytes(), said_by(form, path)
    assert (said["version"], said["checksum"]) == (2, "crc32")
    if form in {LMDB, NPZ}:
        for package in ("google_crc32c", "zstandard", "h5py"):
            monkeypatch.setitem(sys.modules, package, None)
        os.unlink(path)
        form.saved(tmp_path, [[k, np.arange(3000), "text"] for k in range(3)])
        assert said_by(form, path) == said
        assert len(Path(path).read_bytes()) == len(content)


@pytest.mark.parametrize("form", [LMDB, NPZ, HDF5], ids=by_name)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checksum": "blake9"}, "its checksums are 'blake9'; this release reads 'crc32'"),
        ({"checksum": None}, "its checksums are None; this release reads 'crc32'"),
        ({"version": 3}, "format version 3, and this release reads version 2: upgrade dataflow to read it$"),
        ({"version": 1}, "format version 1, and this release reads version 2: save it again$"),
        ({"version": 0, "checksum": None}, "format version 0, and this release reads version 2: save it again$"),
        ({"version": "2"}, "format version 2, and this release reads version 2: save it again$"),
    ],
)
def test_a_file_that_names_another_algorithm_or_version_says_so(form, change, message, tmp_path):
    path = form.saved(tmp_path, [[k, np.arange(3)] for k in range(3)])
    say(form, path, said_by(form, path) | change)
    with form.load(path) as df, pytest.raises(FileDamaged, match=message):
        list(df)


# -- disk caches -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_crc32c(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.setattr(checksums, "crc32c_function", checksums.crc32c_function.__wrapped__)


@pytest.mark.usefixtures("no_crc32c")
def test_a_cache_needs_no_other_package(tmp_path):
    path = tmp_path / "new.cache"
    for dps in ([[1], [2]], [["never read"]]):
        with DiskCacheData(flow(dps), path, fingerprint="x") as df:
            assert list(df) == [[1], [2]]
    os.unlink(f"{path}.index")
    with DiskCacheData(flow([[3]]), path, fingerprint="x") as df:
        assert list(df) == [[1], [2]]
