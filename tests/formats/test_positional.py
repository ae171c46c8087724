"""Files that are read at any position: bounds, files that change, and URLs without a size."""

import os

import pytest

from dataflow.errors import DataFlowTerminated, FileDamaged
from dataflow.formats.positional import PositionalFile, UrlFile

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


def test_a_url_that_was_closed_is_not_read(system):
    file = UrlFile("memory://positional")
    assert bytes(file.read(10, 5)) == DATA[10:15]
    file.close()
    with pytest.raises(DataFlowTerminated, match="was closed"):
        file.read(10, 5)
