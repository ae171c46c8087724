"""What all nodes over files share: their paths, a reader that is opened once, and the order of blocks."""

import os
import threading

import numpy as np
import pytest

from dataflow import JSONLinesData, WebDatasetData
from dataflow.formats import loading
from dataflow.formats.tfrecord import TFRecordData
from dataflow.protocol.state import state_of
from tests.formats.files import NPZ, TFRECORD, write_shard
from tests.support.contract import seeded


class InBytes(os.PathLike):
    def __fspath__(self):
        return b"rows.jsonl"


def test_a_path_is_text():
    with pytest.raises(TypeError, match=r"a path is text, got .*InBytes"):
        JSONLinesData(InBytes())


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_stands_for_the_files_behind_links_to_folders_too(scheme, tmp_path):
    if scheme:
        pytest.importorskip("fsspec")
    (tmp_path / "disk").mkdir()
    (tmp_path / "data" / "part0").mkdir(parents=True)
    (tmp_path / "disk" / "rows.jsonl").write_text("1\n")
    (tmp_path / "data" / "part0" / "rows.jsonl").write_text("0\n")
    (tmp_path / "data" / "part1").symlink_to("../disk", target_is_directory=True)
    (tmp_path / "data" / "part2").symlink_to("part0", target_is_directory=True)
    (tmp_path / "disk" / "loop").symlink_to("../data", target_is_directory=True)
    with JSONLinesData(f"{scheme}{tmp_path}/data") as df:
        assert list(df) == [0, 1, 0]
    write_shard(tmp_path / "disk" / "s.tar", [("a.txt", b"one")])
    for urls in ("data", "data/*/*.tar", "data/**/s.tar"):
        with WebDatasetData(f"{scheme}{tmp_path}/{urls}") as df:
            assert [dp["txt"] for dp in df][:1] == [b"one"]


class Lying:
    """A lock that another thread has had, and used, just before."""

    def __init__(self, act):
        self.act = act
        self.lock = threading.RLock()

    def __enter__(self):
        self.act()
        return self.lock.__enter__()

    def __exit__(self, *args):
        return self.lock.__exit__(*args)


def test_of_two_threads_that_begin_at_once_one_opens_the_file(tmp_path):
    with NPZ.load(NPZ.saved(tmp_path, [[1]])) as df:
        state, lock, opened = state_of(df), state_of(df).lock, []

        def by_another():
            state.lock = lock
            opened.append(df.reader())

        state.lock = Lying(by_another)
        assert df.reader() is opened[0]


def test_block_shuffle_without_shuffle_is_refused(tmp_path):
    path = NPZ.saved(tmp_path, [[1]])
    with pytest.raises(ValueError, match="shuffle is False"):
        NPZ.load(path, shuffle=False, block_shuffle=3)
    with pytest.raises(ValueError, match="got 0"):
        NPZ.load(path, block_shuffle=0)
    for load in (TFRECORD.load, TFRecordData):  # which does not shuffle unless asked to
        with pytest.raises(ValueError, match="shuffle is False"):
            load(TFRECORD.saved(tmp_path, [[1]]), shuffle=False, block_shuffle=3)
        os.unlink(tmp_path / "file.tfrecord")


@pytest.mark.parametrize("n", [1, 5, 6, 13])
@pytest.mark.parametrize("block", [1, 2, 5, 20])
def test_shuffled_blocks_are_a_permutation(n, block, tmp_path):
    path = NPZ.saved(tmp_path, [[k] for k in range(n)])
    with seeded(2), NPZ.load(path, block_shuffle=block) as df:
        assert sorted(k for (k,) in df) == list(range(n))


def test_neighbours_are_found():
    found = list(loading.runs(np.array([3, 4, 5, 9, 8, 9, 10, 11, 12]), 3))
    assert found == [(3, 6), (9, 10), (8, 11), (11, 13)]
    assert list(loading.runs(np.array([], np.int64), 3)) == []
