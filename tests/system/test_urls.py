"""URLs as paths: fsspec's memory file system, and its http file system against a server of this machine."""

import contextlib
import gc
import http.server
import io
import os
import re
import sys
import tarfile
import threading

import numpy as np
import pytest

from dataflow import (
    DataFromList,
    FetchData,
    FileDamaged,
    ImageFolderData,
    JSONLinesData,
    MissingExtra,
    MultiProcessRunnerZMQ,
    TableData,
    TooManyFailures,
    WebDatasetData,
)
from dataflow.formats.loading import files_of
from dataflow.formats.positional import UrlFile
from dataflow.system.urls import (
    causes_of,
    files_below,
    files_matching,
    is_url,
    states_below,
    status_of,
    transient_cause,
)
from tests.support import http_server
from tests.support.http_server import Reply
from tests.support.waits import LIMIT

fsspec = pytest.importorskip("fsspec")


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def parquet_of(table):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    parquet.write_table(pa.table(table), out, row_group_size=4)
    return out.getvalue()


SHARD = tar_of([(f"{k}.txt", b"%d" % k) for k in range(6)])
CONTENT = b"[1]\n[2]\n"
LINES = b'{"k": 0}\n{"k": 1}\n{"k": 2}\n'


@pytest.fixture(scope="module", autouse=True)
def thread_of_fsspec():
    """fsspec keeps one thread for its connections, which is started here: it is not left behind by a test."""
    pytest.importorskip("fsspec.asyn").get_loop()


@contextlib.contextmanager
def connections_closed():
    """fsspec keeps a file system, and its connections, until its cache is cleared."""
    try:
        yield
    finally:
        fsspec.get_filesystem_class("http").clear_instance_cache()
        gc.collect()


FILES = {"rows.jsonl": LINES, "s-0.tar": SHARD, "images/cat/1.jpg": b"1", "images/dog/2.jpg": b"2"}


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    for name, data in FILES.items():
        system.pipe(f"/data/{name}", data)
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Files by parts, as most servers send them; Python's own server sends whole files only."""

    protocol_version = "HTTP/1.1"
    parts = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.translate_path(self.path)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not (self.parts and wanted and os.path.isfile(path)):
            super().do_GET()
            return
        with open(path, "rb") as file:
            data = file.read()
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(data[first : last + 1])
        self.server.sent += last + 1 - first

    def end_headers(self):
        if self.parts:
            self.send_header("Accept-Ranges", "bytes")
        super().end_headers()


class Whole(Ranges):
    """Whole files, whatever is asked for."""

    parts = False


@contextlib.contextmanager
def serving(folder, handler):
    pytest.importorskip("aiohttp")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: handler(*arguments, directory=str(folder))
    )
    server.daemon_threads = True
    server.sent = 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with connections_closed():
            yield f"http://127.0.0.1:{server.server_port}", server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def folder(tmp_path):
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def numbers(df):
    with df:
        return [int(dp["txt"]) if "txt" in dp else int(dp["k"]) for dp in df]


def test_what_is_a_url():
    assert all(map(is_url, ["http://host/x", "s3://bucket/x", "simplecache::http://host/x", "file:///x"]))
    assert not any(map(is_url, ["x", "/x/y", "C:/x", r"C:\x", "a:b", "./x://y"]))


def test_every_source_reads_from_memory(memory):
    assert numbers(JSONLinesData("memory://data/rows.jsonl")) == [0, 1, 2]
    assert numbers(WebDatasetData("memory://data/s-{0..0}.tar")) == list(range(6))
    assert numbers(WebDatasetData("memory://data")) == list(range(6))
    for name in ("images/top.jpg", "images/cat/.hidden.jpg", "images/.git/1.jpg", "images/cat/notes.txt"):
        memory.pipe(f"/data/{name}", b"no image of a class")
    df = ImageFolderData("memory://data/images")
    assert df.classes == ["cat", "dog"]
    assert [(fsspec.open(path).open().read(), label) for path, label in df] == [(b"1", 0), (b"2", 1)]
    memory.pipe("/data/a.parquet", parquet_of({"k": np.arange(10)}))
    for table in ("memory://data/a.parquet", "memory://data"):
        with TableData(table, batch_size=5) as df:
            assert [batch["k"].tolist() for batch in df] == [list(range(5)), list(range(5, 10))]


@pytest.mark.parametrize("handler", [Ranges, Whole])
def test_every_format_reads_over_http(handler, folder):
    (folder / "a.parquet").write_bytes(parquet_of({"k": np.arange(10)}))
    with serving(folder, handler) as (url, _):
        assert numbers(JSONLinesData(f"{url}/rows.jsonl", shuffle=True, seed=1)) != []
        assert numbers(WebDatasetData([f"{url}/s-0.tar", f"{url}/s-0.tar"])) == [*range(6), *range(6)]
        assert numbers(TableData(f"{url}/a.parquet")) == list(range(10))
        with WebDatasetData(f"{url}/s-0.tar") as df:
            assert df[4] == {"__key__": "4", "txt": b"4"}


def test_only_the_requested_bytes_are_fetched(folder):
    (folder / "large").write_bytes(bytes(range(256)) * 10_000)
    with serving(folder, Ranges) as (url, server):
        file = UrlFile(f"{url}/large")
        assert file.size == 2_560_000 and bytes(file.read(300, 4)) == bytes([44, 45, 46, 47])
        assert server.sent == 4
        with pytest.raises(FileDamaged, match="too early"):
            file.read(2_559_999, 2)
        file.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # fsspec has a thread
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_each_worker_opens_the_url_itself(method, folder):
    with serving(folder, Ranges) as (url, _):
        df = WebDatasetData(f"{url}/s-0.tar", decode={"txt": int})
        assert len(df) == 6  # this process has a connection already
        with MultiProcessRunnerZMQ(df, 2, strict=True, context=method, timeout=LIMIT) as runner:
            assert [dp["txt"] for dp in runner] == list(range(6))
        df.close()


def test_an_index_behind_a_url_is_used(folder, monkeypatch):
    with WebDatasetData(folder / "s-0.tar", keep_index=True) as df:
        assert len(df) == 6
    monkeypatch.setattr("dataflow.formats.webdataset._scan", lambda *_: pytest.fail("the shard was searched"))
    with serving(folder, Ranges) as (url, _):
        assert numbers(WebDatasetData(f"{url}/s-0.tar")) == list(range(6))


# -- what is wrong -----------------------------------------------------------------------------------------------------


MAKERS = {
    "lines": lambda url: JSONLinesData(f"{url}.jsonl"),
    "parquet": lambda url: TableData(f"{url}.parquet"),
    "shard": lambda url: WebDatasetData(f"{url}.tar"),
    "images": ImageFolderData,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_wrong_url_is_named(make, memory):
    if make is MAKERS["parquet"]:
        pytest.importorskip("pyarrow")
    with pytest.raises(FileNotFoundError, match="memory://data/nowhere"):
        list(make("memory://data/nowhere"))
    with pytest.raises(ValueError, match=r"nosuch://host/x.*nosuch"):
        list(make("nosuch://host/x"))


def test_a_url_that_cannot_be_read_is_one_failed_datapoint(memory, caplog):
    df = WebDatasetData(["memory://data/none.tar", "memory://data/s-0.tar"], max_failures=1)
    assert numbers(df) == list(range(6)) and len(df) == 7
    assert "memory://data/none.tar" in df.failures[0].text and "memory://data/none.tar" in caplog.text


def test_a_url_without_lines_is_one_failed_line(memory, caplog):
    memory.pipe("/data/other.jsonl", "[1]".encode("utf-16"))
    urls = [f"memory://data/{name}.jsonl" for name in ("none", "rows", "other", "rows")]
    df = JSONLinesData(urls, max_failures=2)
    assert numbers(df) == [0, 1, 2, 0, 1, 2] and len(df) == 8
    assert "memory://data/none.jsonl" in df.failures[0].text and "memory://data/none.jsonl" in caplog.text
    assert "other.jsonl is not UTF-8" in df.failures[1].text
    with JSONLinesData(urls, max_failures=1) as df, pytest.raises(TooManyFailures):
        list(df)
    with JSONLinesData(urls, max_failures=2, shuffle=True) as df:
        assert sorted(numbers(df)) == [0, 0, 1, 1, 2, 2]


def test_lines_that_cannot_be_fetched_are_skipped_and_counted(memory, monkeypatch):
    df = JSONLinesData("memory://data/rows.jsonl", max_failures=3)
    assert len(df) == 3
    monkeypatch.setattr(UrlFile, "read", lambda *_: raise_error(OSError("the connection was reset")))
    assert list(df) == [] and [failure.text for failure in df.failures] == ["the connection was reset"] * 3
    monkeypatch.undo()
    assert numbers(df) == [0, 1, 2]


def raise_error(error):
    raise error


def test_a_folder_in_place_of_a_file_is_named(memory):
    memory.pipe("/data/rows.parquet/0.parquet", b"")
    with pytest.raises(IsADirectoryError, match=r"memory://data/rows\.parquet is a folder.*slash"):
        UrlFile("memory://data/rows.parquet")


def test_a_file_is_found_below_itself_and_an_empty_folder_has_none(memory):
    assert files_below("memory://data/rows.jsonl") == {"memory://data/rows.jsonl": ""}
    assert files_of("Data", "memory://data/rows.jsonl", (".txt",)) == ["memory://data/rows.jsonl"]
    memory.mkdir("/empty")
    for look in (files_below, states_below):
        with pytest.raises(FileNotFoundError, match="memory://empty"):
            look("memory://empty")


def test_files_of_this_machine_are_found_behind_links_to_folders_too(tmp_path):
    pytest.importorskip("fsspec")
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "disk" / "1.txt").write_text("1")
    (tmp_path / "data" / "part").symlink_to("../disk", target_is_directory=True)
    (tmp_path / "data" / "nowhere").symlink_to("missing")
    url = f"file://{tmp_path}/data"
    assert files_below(url) == {f"{url}/nowhere": "nowhere", f"{url}/part/1.txt": "part/1.txt"}
    assert files_below(f"{url}/part/1.txt") == {f"{url}/part/1.txt": ""}
    assert files_matching(f"{url}/*/*.txt") == [f"{url}/part/1.txt"]
    before = states_below(url)
    assert before[0] == (None, "") and before[1][0] == 1
    os.utime(tmp_path / "disk" / "1.txt", (1, 1))
    assert states_below(url) != before
    for look in (files_below, states_below):
        with pytest.raises(FileNotFoundError, match="data/missing"):
            look(f"{url}/missing")


class OfServer(Exception):
    def __init__(self, response):
        self.response = response


def test_the_status_of_a_response_is_found_wherever_a_client_keeps_it():
    assert status_of(OfServer({"ResponseMetadata": {"HTTPStatusCode": 503}})) == 503
    assert status_of(OfServer({})) is None
    for status, expected in ((404, 404), ("429", 429), ("soon", None), (7, None)):
        error = OfServer(None)
        error.code = status
        assert status_of(error) == expected


class ClientSSLError(ConnectionError):
    """Named as that of aiohttp."""


def test_a_certificate_that_is_refused_is_refused_again():
    assert transient_cause(ClientSSLError()) is None


def test_exceptions_in_a_circle_are_few():
    error = ValueError()
    error.__cause__ = error
    assert list(causes_of(error)) == [error] * 8


def test_a_damaged_file_behind_a_url_is_named(memory):
    pytest.importorskip("pyarrow")
    memory.pipe("/data/bad.parquet", b"PAR1 but nothing else")
    with pytest.raises(FileDamaged, match=r"memory://data/bad\.parquet, its footer"):
        len(TableData("memory://data/bad.parquet"))


def test_a_file_whose_server_does_not_say_how_long_it_is_is_refused():
    def answer(path, number):
        ending = {"/chunks": "chunked", "/nothing": "", "/coding": "identity"}[path]
        body = b"4\r\n[1]\n\r\n0\r\n\r\n" if path == "/chunks" else b"[1]\n[2]\n"
        return Reply(
            body, sends=100 if path == "/chunks" else 4, headers={"Content-Length": "", "Transfer-Encoding": ending}
        )

    with http_server.serving(answer) as server, connections_closed():
        for path in ("/nothing", "/coding"):
            with pytest.raises(OSError, match="does not say how long the file is"):
                list(JSONLinesData(server.url + path))
        with JSONLinesData(f"{server.url}/chunks") as df:
            assert list(df) == [[1]]


def fetched(url):
    return FetchData(DataFromList([[url]], shuffle=False))


@pytest.mark.parametrize(
    "url",
    [
        *(f"{cache}::http://host/x" for cache in ("blockcache", "cached", "filecache", "simplecache")),
        "zip://x::simplecache::http://host/x",
        "simplecache://http://host/x",  # with an option
    ],
)
def test_the_caches_of_fsspec_are_refused(url):
    for read in (fetched, JSONLinesData, TableData):
        with pytest.raises(ValueError, match=re.escape(f"{url}: ")) as caught:
            list(read(url))
        assert "Use FetchData with cache=" in str(caught.value) and str(caught.value).count(url) == 1


def test_a_server_that_cannot_be_reached_is_named():
    with serving(".", Ranges) as (url, _):
        pass
    with connections_closed(), pytest.raises(OSError, match=re.escape(f"{url}/x.jsonl")):
        len(JSONLinesData(f"{url}/x.jsonl"))


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match=r'URLs need the package fsspec: pip install "dataflow-runners\[fsspec\]"'):
        len(JSONLinesData("memory://data/rows.jsonl"))
