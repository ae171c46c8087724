"""Index files: of which file, and of which state of it, they are, and what counts as none."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dataflow import TFRecordSerializer
from dataflow.formats import saving
from dataflow.formats.index_files import read_index, write_index
from dataflow.formats.positional import open_positional
from tests.formats.files import TFRECORD, assert_same, flow

OFFSETS = np.array([0, 7, 1 << 63], np.uint64)


def index_of(path, kind="numbers"):
    """The offsets in the index of a file or URL; None if it has none."""
    file = open_positional(str(path))
    try:
        found = read_index(file, kind)
    finally:
        file.close()
    return None if found is None else found.tolist()


@pytest.fixture
def indexed(tmp_path):
    """A file with an index of `OFFSETS`."""
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    assert index_of(path) is None
    file = open_positional(str(path))
    write_index(file, "numbers", OFFSETS)
    file.close()
    return path


def test_an_index_gives_back_its_offsets_to_who_asks_for_their_kind(indexed):
    assert index_of(indexed) == OFFSETS.tolist()
    assert index_of(indexed, "letters") is None


def test_of_a_file_its_size_and_time_are_compared_and_behind_a_url_the_size(indexed):
    pytest.importorskip("fsspec")
    url = indexed.as_uri()
    assert index_of(url) == OFFSETS.tolist()
    os.utime(indexed, (1, 1))
    assert index_of(indexed) is None
    assert index_of(url) == OFFSETS.tolist()
    indexed.write_bytes(bytes(11))
    assert index_of(url) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda index: index[:-3],
        lambda index: b"{",
        lambda index: b"",
        lambda index: index[:-1] + b"\7",
        lambda index: b"[" * 4000 + b"\n",
    ],
)
def test_an_index_that_is_damaged_or_of_another_file_is_made_anew(spoil, tmp_path):
    path = TFRECORD.saved(tmp_path, [[k] for k in range(5)])
    index = Path(path + ".index")
    index.write_bytes(spoil(index.read_bytes()))
    with TFRecordSerializer.load(path) as df:
        assert list(df) == [[k] for k in range(5)]
    os.utime(path, (1, 1))
    with TFRecordSerializer.load(path) as df:
        assert df[3] == [3]


def test_a_stale_index_is_made_again(tmp_path):
    long, short = ([[k] for k in range(num)] for num in (50, 5))
    (tmp_path / "other").mkdir()
    path, other = TFRECORD.saved(tmp_path, long), TFRECORD.saved(tmp_path / "other", short)
    shutil.copy(other, path)  # without its index: a smaller file, or a save that was killed between two renames
    with TFRecordSerializer.load(path) as df:
        assert list(df) == short
    with TFRecordSerializer.load(path) as df:
        assert list(df) == short


def test_the_index_is_beside_the_file_and_not_beside_a_link_to_it(tmp_path):
    path = TFRECORD.saved(tmp_path, [[k] for k in range(50)])
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.tfrecord"
    link.symlink_to(path)
    TFRecordSerializer.save(flow([[k] for k in range(5)]), link, overwrite=True)
    assert link.is_symlink() and os.listdir(tmp_path / "links") == ["link.tfrecord"]
    for name in (path, link):
        with TFRecordSerializer.load(name) as df:
            assert list(df) == [[k] for k in range(5)]


def test_an_index_that_cannot_be_written_is_made_again(tmp_path, monkeypatch):
    dps = [[k, np.full(10, k)] for k in range(5)]
    path = TFRECORD.saved(tmp_path, dps)
    os.unlink(path + ".index")
    real = saving.replacing

    def full(path, **options):
        if str(path).endswith(".index"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, **options)

    monkeypatch.setattr("dataflow.formats.index_files.replacing", full)
    with TFRECORD.load(path) as df:
        assert_same(list(df), dps)
    assert not os.path.exists(path + ".index")
