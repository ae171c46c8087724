"""What all nodes over files share: their paths, a reader that is opened once, and the order of blocks."""

import io
import multiprocessing
import os
import pickle
import re
import tarfile
import threading
from functools import partial

import numpy as np
import pytest

from dataflow import DataFromList, JSONLinesData, ParallelData, SVMLightData, TableData, WebDatasetData
from dataflow.errors import DataFlowTerminated, FileDamaged
from dataflow.formats import loading
from dataflow.formats.tfrecord import TFRecordData
from dataflow.protocol.fingerprints import describe
from dataflow.protocol.state import state_of
from tests.formats.files import FORMATS, LMDB, NPZ, TFRECORD, write_shard
from tests.support.contract import seeded
from tests.support.fakes import each_method


class InBytes(os.PathLike):
    def __fspath__(self):
        return b"rows.jsonl"


def test_a_path_is_text():
    with pytest.raises(TypeError, match=r"a path is text, got .*InBytes"):
        JSONLinesData(InBytes())


@pytest.mark.parametrize("read", [JSONLinesData, SVMLightData, TFRecordData, WebDatasetData])
def test_a_compressed_file_is_refused_by_its_name(read, tmp_path):
    if read is TFRecordData:
        pytest.importorskip("google_crc32c")
    path = tmp_path / "part.0.GZ"
    path.write_bytes(b"\x1f\x8b\x08\0")
    with pytest.raises(ValueError, match=r"part\.0\.GZ is compressed, .*: decompress it first"):
        read(path)


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
    """A lock that another thread has had, and used, just before; or just after, with `late`."""

    def __init__(self, act, *, late=False):
        self.act = act
        self.late = late
        self.lock = threading.RLock()

    def __enter__(self):
        if not self.late:
            self.act()
        return self.lock.__enter__()

    def __exit__(self, *args):
        self.lock.__exit__(*args)
        if self.late:
            self.act()


def test_of_two_threads_that_begin_at_once_one_opens_the_file(tmp_path):
    with NPZ.load(NPZ.saved(tmp_path, [[1]])) as df:
        state, lock, opened = state_of(df), state_of(df).lock, []

        def by_another():
            state.lock = lock
            opened.append(df.reader())

        state.lock = Lying(by_another)
        assert df.reader() is opened[0]


def test_a_flow_that_another_thread_closes_as_it_is_opened_says_so(tmp_path):
    df = NPZ.load(NPZ.saved(tmp_path, [[1]]))
    state, lock = state_of(df), state_of(df).lock

    def by_another():
        state.lock = lock
        df.close()

    state.lock = Lying(by_another, late=True)
    reader = df.reader()
    assert len(reader) == 1
    with pytest.raises(DataFlowTerminated, match="was closed while it was being read"):
        list(reader.read(np.arange(1)))


def write_lines(num, path):
    with open(path, "w") as file:
        file.writelines(f'{{"k": {10 * num + k}}}\n' for k in range(num))


def write_svm(num, path):
    with open(path, "w") as file:
        file.writelines(f"{10 * num + k} 1:1\n" for k in range(num))


def write_parquet(num, path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"k": [10 * num + k for k in range(num)]})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)


def write_numbered_shard(num, path):
    with tarfile.open(path, "w") as tar:
        for k in range(num):
            member = tarfile.TarInfo(f"{k}.txt")
            member.size = 2
            tar.addfile(member, io.BytesIO(str(10 * num + k).encode()))


def writer_of(form):
    return lambda num, path: form.save(DataFromList([[10 * num + k] for k in range(num)], shuffle=False), path)


SOURCES = {
    "lines.jsonl": (write_lines, JSONLinesData),
    "rows.svm": (write_svm, partial(SVMLightData, shuffle=False)),
    "rows.parquet": (write_parquet, TableData),
    "shard.tar": (write_numbered_shard, WebDatasetData),
    **{f"file.{form.name}": (writer_of(form), partial(form.load, shuffle=False)) for form in FORMATS},
}
every_source = pytest.mark.parametrize("name", SOURCES)
CHANGED = r"has changed since it was opened: call close\(\)"


def numbers_in(df):
    """The number of two digits in each datapoint of a pass."""
    return [int(re.findall(r"[23]\d", str(dp))[0]) for dp in df]


@every_source
def test_a_file_that_is_written_anew_in_place_is_refused_until_it_is_closed(name, tmp_path):
    write, make = SOURCES[name]
    path, other = tmp_path / name, tmp_path / f"other_{name}"
    write(2, path), write(3, other)
    with make(str(path)) as df:
        assert numbers_in(df) == [20, 21]
        path.write_bytes(other.read_bytes())  # as cp does
        for read in (list, lambda df: df[1]):
            with pytest.raises(FileDamaged, match=f"{name} {CHANGED}"):
                read(df)
        df.close()
        assert numbers_in(df) == [30, 31, 32]


def copied(df):
    return pickle.loads(pickle.dumps(df))


@every_source
def test_a_copy_that_opens_another_file_is_refused_until_it_is_closed(name, tmp_path):
    write, make = SOURCES[name]
    path, other = tmp_path / name, tmp_path / f"other_{name}"
    write(2, path), write(3, other)
    with make(str(path)) as df:
        never_opened = copied(df)
        assert numbers_in(df) == [20, 21]
        with copied(df) as copy, never_opened:
            assert numbers_in(copy) == [20, 21]
            copy.reset_state()  # as workers do when they begin
            os.replace(other, path)
            for _ in range(2):
                with pytest.raises(FileDamaged, match=f"{name} {CHANGED}"):
                    list(copy)
            assert numbers_in(df) == [20, 21]  # it has the old one open
            copy.close()
            assert numbers_in(copy) == numbers_in(never_opened) == [30, 31, 32]
        for begin_again in (df.close, df.reset_state):
            begin_again()
            with copied(df) as copy:
                assert numbers_in(copy) == [30, 31, 32]
            assert len(df) == 3


@each_method
def test_workers_that_open_another_file_than_was_counted_are_refused_until_the_flow_is_closed(method, tmp_path):
    def save(num):
        writer_of(LMDB)(num, tmp_path / "file.lmdb")

    save(2)
    context = multiprocessing.get_context(method)
    with ParallelData(LMDB.load(str(tmp_path / "file.lmdb"), shuffle=False), 1, context=context) as df:
        assert len(df) == 2
        os.unlink(tmp_path / "file.lmdb")
        save(3)
        with pytest.raises(FileDamaged, match=CHANGED):
            list(df)
        df.close()
        assert numbers_in(df) == [30, 31, 32]


def test_on_another_machine_the_size_and_the_number_of_datapoints_are_compared(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    write_lines(2, path)
    with JSONLinesData(str(path)) as df:
        assert len(df) == 2
        os.utime(path, (1, 1))  # as a copy of the file has it
        with copied(df) as here, pytest.raises(FileDamaged, match=CHANGED):
            list(here)
        monkeypatch.setattr(loading, "_this_machine", lambda: "another")
        with copied(df) as there:
            assert numbers_in(there) == [20, 21]
        content = path.read_bytes()
        for changed in (content.replace(b"\n", b" ", 1), content + b"\n"):  # of the same size, of the same number
            path.write_bytes(changed)
            with copied(df) as there, pytest.raises(FileDamaged, match=CHANGED):
                list(there)


def test_what_was_opened_is_no_part_of_what_decides_the_datapoints(tmp_path):
    with NPZ.load(NPZ.saved(tmp_path, [[1]]), shuffle=False) as df:
        before = describe(df), [*df._df_deciding]
        assert len(df) == 1
        assert (describe(df), [*df._df_deciding]) == before


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
