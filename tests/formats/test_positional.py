"""Files that are read at any position: bounds, files that change, and URLs without a size."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataflow.errors import DataFlowTerminated, FileDamaged
from dataflow.formats import positional
from dataflow.formats.positional import OpenFiles, PositionalFile, UrlFile
from tests.support.threads import switching_often

DATA = bytes(range(100))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    return str(tmp_path / "file")


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (-1, 5, "it would begin 1 bytes before the file does"),
        (5, -3, "it would have -3 bytes at byte 5"),
        (95, 10, "the file ends, 5 bytes too early, at byte 100"),
        (200, 10, "the file ends, 10 bytes too early, at byte 200"),
    ],
)
def test_bytes_that_a_damaged_file_claims_are_named(offset, size, text, path):
    file = PositionalFile(path)
    assert bytes(file.read(90, 10)) == DATA[90:]
    with pytest.raises(FileDamaged, match=text):
        file.read(offset, size)
    file.close()


def test_a_file_that_is_cut_off_while_it_is_open_is_damaged(path):
    file = PositionalFile(path)
    os.truncate(path, 30)
    with pytest.raises(FileDamaged, match="the file ends, 20 bytes too early, at byte 30"):
        file.read(10, 40)
    file.close()


def test_a_read_during_which_the_file_is_closed_never_reads_another_file(path, tmp_path, monkeypatch):
    (tmp_path / "other").write_bytes(bytes(100))
    file, read, others = PositionalFile(path), positional._read_fd, []

    def closed_before(*args):
        file.close()
        others.extend(os.open(tmp_path / "other", os.O_RDONLY) for _ in range(3))  # which get the next free numbers
        return read(*args)

    monkeypatch.setattr(positional, "_read_fd", closed_before)
    num_before = len(os.listdir("/dev/fd"))
    assert bytes(file.read(10, 5)) == DATA[10:15]
    for fd in others:
        os.close(fd)
    assert len(os.listdir("/dev/fd")) == num_before - 1
    with pytest.raises(DataFlowTerminated, match="was closed while it was being read"):
        file.read(10, 5)


@pytest.mark.parametrize(("name", "use"), [("fstat", "require_unchanged"), ("dup", "stream")])
def test_a_file_that_is_closed_as_it_is_used_is_never_another_one(name, use, path, tmp_path, monkeypatch):
    (tmp_path / "other").write_bytes(bytes(7))
    file, function, others = PositionalFile(path), getattr(os, name), []

    def closed_before(fd):
        if not others:
            file.close()
            others.extend(os.open(tmp_path / "other", os.O_RDONLY) for _ in range(3))
        return function(fd)

    monkeypatch.setattr(os, name, closed_before)
    used = getattr(file, use)()
    if used is not None:
        with used:
            assert used.read() == DATA
    assert len(others) == 3
    for fd in others:
        os.close(fd)


@pytest.fixture
def system():
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe("/positional", DATA)
    yield system
    system.rm("/positional")


def test_a_url_without_a_size_is_fetched_once_and_whole(system, monkeypatch):
    info, fetched = type(system).info, []
    monkeypatch.setattr(type(system), "info", lambda self, path: info(self, path) | {"size": None})
    opened = type(system).open
    monkeypatch.setattr(type(system), "open", lambda *args, **options: fetched.append(1) or opened(*args, **options))
    file = UrlFile("memory://positional")
    assert file.size == 100 and bytes(file.read(10, 5)) == DATA[10:15]
    file._fetch_all()  # as another thread, at the same time
    assert fetched == [1]
    file.close()
    with pytest.raises(DataFlowTerminated, match="memory://positional was closed while it was being read"):
        file.read(10, 5)
    file._fetch_all()  # as another thread that had begun it before
    with pytest.raises(DataFlowTerminated, match="memory://positional was closed while it was being read"):
        file.read(10, 5)


def test_a_url_that_was_closed_is_not_read(system):
    file = UrlFile("memory://positional")
    assert bytes(file.read(10, 5)) == DATA[10:15]
    file.close()
    with pytest.raises(DataFlowTerminated, match="was closed"):
        file.read(10, 5)


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setattr("dataflow.formats.positional._MAX_OPEN", 2)
    paths = [tmp_path / str(k) for k in range(4)]
    for k, path in enumerate(paths):
        path.write_bytes(bytes([k] * 10))
    return list(map(str, paths))


def test_of_many_files_those_read_last_are_open(paths):
    num_before = len(os.listdir("/dev/fd"))
    files = OpenFiles(paths)
    for k in (0, 1, 2, 3, 0, 2):
        assert bytes(files.read(k, 4, 3)) == bytes([k] * 3)
        assert len(os.listdir("/dev/fd")) <= num_before + 2
    assert files.open(2) is files.open(2)
    files.close()
    assert len(os.listdir("/dev/fd")) == num_before
    with pytest.raises(DataFlowTerminated, match="was closed while it was being read"):
        files.read(2, 0, 1)


def test_a_file_that_has_changed_before_it_is_opened_again_is_refused(paths):
    files = OpenFiles(paths)
    files.read(0, 0, 1), files.read(1, 0, 1), files.read(2, 0, 1)
    with open(paths[0], "wb") as file:
        file.write(bytes(10))
    os.utime(paths[0], (1, 1))
    for _ in range(2):
        with pytest.raises(FileDamaged, match=r"0 has changed since it was opened: call close\(\)"):
            files.read(0, 0, 1)
    files.close()


def test_a_file_that_is_not_in_the_expected_state_is_refused(paths):
    files = OpenFiles(paths)
    files.expect(0, [10, 1])
    with pytest.raises(FileDamaged, match=r"0 has changed since it was opened: call close\(\)"):
        files.read(0, 0, 1)
    files.close()


def test_of_many_files_those_that_are_open_are_compared(paths):
    files = OpenFiles(paths)
    files.read(0, 0, 1), files.read(1, 0, 1)
    os.utime(paths[0], (1, 1))
    files.require_unchanged([1, 2, 3])
    with pytest.raises(FileDamaged, match=r"0 has changed since it was opened: call close\(\)"):
        files.require_unchanged([0, 1])
    files.close()


def test_a_file_that_is_changed_in_place_is_refused_and_one_that_is_replaced_is_not(path, tmp_path):
    file = PositionalFile(path)
    file.require_unchanged()
    (tmp_path / "other").write_bytes(bytes(3))
    os.rename(path, tmp_path / "kept")
    os.rename(tmp_path / "other", path)
    file.require_unchanged()
    (tmp_path / "kept").write_bytes(bytes(5))
    with pytest.raises(FileDamaged, match=r"file has changed since it was opened: call close\(\)"):
        file.require_unchanged()
    file.close()


def test_urls_stay_open(system, paths):
    files = OpenFiles(["memory://positional", *paths])
    first = files.open(0)
    for k in range(1, 5):
        files.read(k, 0, 1)
    assert files.open(0) is first and bytes(files.read(0, 10, 5)) == DATA[10:15]
    files.close()


def test_threads_read_while_files_are_closed(paths):
    files = OpenFiles(paths)

    def read(first):
        return all(bytes(files.read((first + k) % 4, 0, 10)) == bytes([(first + k) % 4] * 10) for k in range(200))

    with switching_often(), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
    files.close()
