"""A file that was cut at any byte, or in which a bit has flipped, is reported, and never read as other data."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dataflow import FileDamaged
from tests.formats.files import COLUMNS, FORMATS, LMDB, NPZ, TFRECORD, by_name

ROOT = Path(__file__).parents[2]
QUICK = 30  # cases of each kind
TIMEOUT = 600.0

every_format = pytest.mark.parametrize("form", FORMATS, ids=by_name)


def datapoints():
    return [[np.arange(40.0) + k, k, f"text {k}", np.full((2, 3), k, "u1")] for k in range(6)]


def verdicts_of(form, path, cases, *, silent=False):
    """What becomes of each case, as the program `damaged` judges it."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.formats.damaged",
            form.name,
            path,
            "silent" if silent else "reported",
        ],
        cwd=ROOT,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(zip(cases, json.loads(done.stdout), strict=True)), done.stderr


def assert_none(found, stderr, *allowed):
    wrong = [(case, verdict) for case, verdict in found if not verdict.startswith(allowed)]
    assert not wrong, f"{wrong[:10]}\n{stderr[-3000:]}"


def cuts(size, most):
    places = range(size)
    if size > most:
        drawn = random.Random(size).sample(places, most - 20)
        places = sorted({*range(10), *range(size - 10, size), *drawn})
    return [["cut", place] for place in places]


def flips(begin, end, most):
    bits = range(8 * begin, 8 * end)
    return [["flip", bit] for bit in (bits if len(bits) <= most else sorted(random.Random(end).sample(bits, most)))]


MANY = [QUICK, pytest.param(4000, marks=pytest.mark.full)]


@every_format
@pytest.mark.parametrize("most", MANY)
def test_a_file_that_was_cut_is_reported(form, most, tmp_path):
    path = form.saved(tmp_path, datapoints())
    assert_none(*verdicts_of(form, path, cuts(os.path.getsize(path), most)), "damaged")


@every_format
@pytest.mark.parametrize("most", MANY)
def test_a_flipped_bit_is_reported_or_does_no_harm(form, most, tmp_path):
    path = form.saved(tmp_path, datapoints())
    found, stderr = verdicts_of(form, path, flips(0, os.path.getsize(path), most))
    # LMDB trusts its pages: it may crash. It must not give out anything wrong.
    assert_none(found, stderr, "damaged", "same", *(["signal"] if form is LMDB else []))
    counts = Counter(verdict for _, verdict in found)
    assert counts["damaged"] > len(found) / 30  # much of LMDB's file is not in use


@pytest.mark.parametrize("most", [80, pytest.param(1 << 20, marks=pytest.mark.full)])
def test_an_npz_file_whose_description_cannot_be_found_is_damaged(most, tmp_path):
    """It must not pass for a file of NumPy's, whichever bit of the last entry of its directory is wrong."""
    path = NPZ.saved(tmp_path, datapoints())
    with open(path, "rb") as file:
        content = file.read()
    entry = content.rindex(b"PK\1\2")
    found, stderr = verdicts_of(NPZ, path, flips(entry, content.rindex(b"PK\5\6"), most))
    assert_none(found, stderr, "damaged", "same")
    assert len(found) >= min(most, 400)


@pytest.mark.full  # quick are those below that say where it is
@every_format
def test_a_flipped_bit_in_the_datapoints_is_always_reported(form, tmp_path):
    path = form.saved(tmp_path, [[np.arange(5000, dtype="u2")]])
    begin = Path(path).read_bytes().index(np.arange(5000, dtype="u2").tobytes())
    assert_none(*verdicts_of(form, path, flips(begin, begin + 10_000, QUICK // 2)), "damaged")


def test_a_bit_that_flips_unnoticed_on_the_disk_is_reported(tmp_path):
    path = TFRECORD.saved(tmp_path, datapoints())  # its index still fits, by size and time
    size = os.path.getsize(path)
    found, stderr = verdicts_of(TFRECORD, path, flips(0, size, QUICK) + cuts(size, QUICK), silent=True)
    assert_none(found[:QUICK], stderr, "damaged", "same")  # the same: the framing is known from the index
    assert_none(found[QUICK:], stderr, "damaged")


def test_a_tfrecord_file_cut_between_two_records_is_reported_with_and_without_its_index(tmp_path):
    path = TFRECORD.saved(tmp_path, [[k] for k in range(5)])
    content, index = Path(path).read_bytes(), Path(path + ".index")
    Path(path).write_bytes(content[: len(content) // 5 * 3])
    for _ in range(2):
        with pytest.raises(FileDamaged, match="marked as its last, at byte") as caught:
            list(TFRECORD.load(path))
        assert caught.value.offset == len(content) // 5 * 3
        index.unlink()
    Path(path).write_bytes(b"")
    with pytest.raises(FileDamaged, match="the file is empty"):
        list(TFRECORD.load(path))


@pytest.mark.parametrize("form", [TFRECORD, *COLUMNS], ids=by_name)
def test_the_error_says_where(form, tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    path = form.saved(tmp_path, [[array + np.uint8(k)] for k in range(100)])
    content = bytearray(Path(path).read_bytes())
    place = content.index((array + np.uint8(70)).tobytes()) + 100
    content[place] ^= 4
    Path(path).write_bytes(content)
    with form.load(path, shuffle=False) as df, pytest.raises(FileDamaged) as caught:
        list(df)
    assert caught.value.path == path
    assert 0 <= place - caught.value.offset <= 300_000  # what has one checksum begins there
    assert f"at byte {caught.value.offset} of the file" in str(caught.value)


def test_lmdb_names_the_key(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    path = LMDB.saved(tmp_path, [[array + np.uint8(k)] for k in range(100)])
    content = bytearray(Path(path).read_bytes())
    content[content.index((array + np.uint8(70)).tobytes())] ^= 4
    Path(path).write_bytes(content)
    with LMDB.load(path, shuffle=False) as df:
        with pytest.raises(FileDamaged, match="key b'00000070': the checksum"):
            list(df)
        assert len(df[71:75]) == 4  # all others can be read


def test_what_is_no_such_file_at_all_is_said(tmp_path):
    for form in FORMATS:
        path = form.file(tmp_path)
        Path(path).write_bytes(b"this is a text, and nothing else" * 300)
        with pytest.raises(FileDamaged):
            list(form.load(path))
    with pytest.raises(FileDamaged, match="not a complete archive"):
        NPZ.load(NPZ.file(tmp_path), pickle=True)
