"""FetchData: files by path and URL in order, what is repeated, what is kept, and what is named."""

import asyncio
import functools
import os
import sys
import threading
import time
from email.utils import formatdate
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from dataflow import (
    BatchData,
    DataFromList,
    DiskCacheData,
    FetchData,
    MapData,
    MissingExtra,
    MultiThreadRunner,
    ParallelData,
    ResumableData,
    ShuffleData,
    TooManyFailures,
)
from dataflow.formats import fetching, saving
from dataflow.protocol.fingerprints import describe_flow
from dataflow.system.urls import retry_after, transient_cause
from tests.support.contract import check_node
from tests.support.http_server import Reply, serving
from tests.support.leaks import check_nothing_left, snapshot
from tests.support.waits import LIMIT, wait_until

SIZE = 20


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(fetching, "_FIRST_PAUSE", 0.001)


@pytest.fixture
def folder(tmp_path):
    for k in range(SIZE):
        (tmp_path / f"{k}.bin").write_bytes(content(k))
    return tmp_path


def content(k):
    return b"%d " % k * 50


def paths(folder):
    return DataFromList([[str(folder / f"{k}.bin"), k] for k in range(SIZE)], shuffle=False)


def urls(server, *names):
    return DataFromList([[f"{server.url}/{name}"] for name in names], shuffle=False)


def files(path, number):
    """Every file there is, and says which it is."""
    return Reply(path.encode())


EXPECTED = [[content(k), k] for k in range(SIZE)]
aiohttp_needed = pytest.mark.skipif(find_spec("aiohttp") is None, reason="needs aiohttp")


def fetched(df):
    with df:
        return list(df)


def raised(df):
    """The exception that the first pass ends with."""
    with df, pytest.raises(Exception) as caught:
        list(df)
    return caught.value


# -- local files -------------------------------------------------------------------------------------------------------


def with_file(path, dp):
    return {"dp": dp, "file": path}


def without_file(dp):
    return dp["dp"] if dp["file"] == b"x" else None


def test_it_is_a_node(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    made = []

    def make(ds):
        made.append(FetchData(MapData(ds, functools.partial(with_file, tmp_path / "file")), "file"))
        return MapData(made[-1], without_file)

    check_node(make)
    for df in made:
        df.close()


@pytest.mark.parametrize("num", [1, 3, 64])
def test_local_files_come_in_order(num, folder):
    with FetchData(paths(folder), num_concurrent=num) as df:
        assert list(df) == list(df) == EXPECTED
        assert df[SIZE + 3] == EXPECTED[3] and df.addressable and len(df) == SIZE
    assert not threads()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "dataflow-files"]


def test_a_component_of_any_datapoint_is_replaced(folder):
    path = folder / "1.bin"
    for given, key, expected in (
        ({"file": path, "k": 1}, "file", {"file": content(1), "k": 1}),
        ((7, str(path)), 1, [7, content(1)]),
        ([str(path)], -1, [content(1)]),
    ):
        assert fetched(FetchData(DataFromList([given]), key)) == [expected]


CHAINS = {
    "batches": lambda ds: BatchData(ds, 4, use_list=True),
    "resumed": ResumableData,
    "threads": lambda ds: ParallelData(ds, 2, backend="thread"),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_other_nodes_may_stand_above(chain, folder):
    with CHAINS[chain](FetchData(ShuffleData(paths(folder), seed=3))) as df:
        found = list(df)
    numbers = [k for batch in found for k in batch[1]] if chain == "batches" else [k for _, k in found]
    data = [one for batch in found for one in batch[0]] if chain == "batches" else [one for one, _ in found]
    assert sorted(numbers) == list(range(SIZE)) != numbers
    assert data == [content(k) for k in numbers]


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_workers_fetch_for_themselves(method, folder):
    with ParallelData(FetchData(paths(folder), cache=folder / "cache"), 2, context=method) as df:
        assert list(df) == list(df) == EXPECTED


def test_what_is_no_file_is_named(folder):
    os.mkfifo(folder / "pipe")
    for given, kind, text in (
        (str(folder / "none"), FileNotFoundError, "none"),
        (str(folder), IsADirectoryError, folder.name),
        (str(folder / "pipe"), OSError, "not a regular file: .*pipe"),
        (3, TypeError, "component 0 is a path or a URL, got int"),
        (b"name", TypeError, "component 0 is a path or a URL, got bytes"),
    ):
        with FetchData(DataFromList([[given]])) as df, pytest.raises(kind, match=text):
            list(df)


def test_a_read_that_does_not_return_holds_up_nothing(folder, monkeypatch, caplog):
    monkeypatch.setattr(fetching, "_GRACE", 0.05)
    release = threading.Event()
    read = fetching._read
    monkeypatch.setattr(fetching, "_read", lambda path: release.wait(LIMIT) if path.endswith("/3.bin") else read(path))
    with FetchData(paths(folder), item_timeout=0.2, max_failures=1) as df:
        assert list(df) == [dp for dp in EXPECTED if dp[1] != 3]
    assert "a thread that reads a file did not end" in caplog.text
    release.set()
    wait_until(lambda: not threads(), LIMIT, "the thread goes on")


# -- URLs --------------------------------------------------------------------------------------------------------------


@aiohttp_needed
def test_many_requests_run_at_a_time_and_files_come_in_order():
    names = [f"f{k}" for k in range(300)]
    with serving(lambda path, number: Reply(path.encode(), held=True)) as server:
        with FetchData(urls(server, *names), num_concurrent=150) as df:
            found = []
            thread = threading.Thread(target=lambda: found.extend(df))
            thread.start()
            wait_until(lambda: server.running == 150, LIMIT, lambda: f"{server.running} requests run")
            server.release()
            thread.join(LIMIT)
        assert found == [[f"/{name}".encode()] for name in names]
        assert server.most == 150


@aiohttp_needed
def test_files_are_the_same_after_resuming_with_another_number_of_workers():
    def answer(path, number):
        return Reply(path.encode(), status=503 if number == 1 and int(path[1:]) % 7 == 3 else 200)

    def chain(num_workers):
        files = FetchData(ShuffleData(urls(server, *map(str, range(100))), seed=5), num_concurrent=4)
        return ResumableData(ParallelData(files, num_workers, context="fork"))

    with serving(answer) as server:
        expected = [[f"/{int(k)}".encode()] for k in ShuffleData(DataFromList(range(100), shuffle=False), seed=5)]
        with chain(2) as df:
            begin = list(islice(df, 41))
            state = df.state_dict()
        with chain(3) as df:
            df.load_state_dict(state)
            assert begin + list(df) == expected


@aiohttp_needed
def test_what_another_attempt_may_mend_is_repeated():
    def answer(path, number):
        bad = {"/503": Reply(status=503), "/cut": Reply(b"12345678", sends=3), "/429": Reply(status=429)}
        return bad[path] if path in bad and number < 4 else Reply(path.encode())

    with serving(answer) as server:
        assert fetched(FetchData(urls(server, "503", "cut", "429", "good"))) == [
            [b"/503"],
            [b"/cut"],
            [b"/429"],
            [b"/good"],
        ]
        assert server.requests == {"GET /503": 4, "GET /cut": 4, "GET /429": 4, "GET /good": 1}


@aiohttp_needed
def test_what_fails_for_good_is_named_with_its_url():
    def answer(path, number):
        return {
            "/500": Reply(status=500),
            "/cut": Reply(b"12345678", sends=3),
            "/403": Reply(status=403),
            "/404": Reply(status=404),
            "/loop": Reply(status=302, headers={"Location": "/loop"}),
            "/queued": Reply(b"try again later", status=202),
            "/nothing": Reply(status=204),
            "/part": Reply(b"1234", status=206),
            "/unchanged": Reply(status=304),
            "/nowhere": Reply(b"moved", status=302),
            "/endless": Reply(b"12345678", sends=3, headers={"Content-Length": ""}),
            "/coded": Reply(b"12345678", sends=3, headers={"Content-Length": "", "Transfer-Encoding": "identity"}),
        }[path]

    with serving(answer) as server:
        for name, kind, text, num, cure in (
            ("500", OSError, "cannot be read: ClientResponseError: 500", 3, "raise retries="),
            ("cut", OSError, "cannot be read: ClientPayloadError", 3, "raise retries="),
            ("403", OSError, "cannot be read: ClientResponseError: 403", 1, "credentials by storage_options="),
            ("404", FileNotFoundError, "there is nothing at this URL", 1, "check the path or URL"),
            ("loop", OSError, "cannot be read: TooManyRedirects", None, "give the URL of the file itself"),
            ("queued", OSError, "answered with status 202", 1, "the error that it was raised from"),
            ("nothing", OSError, "answered with status 204", 1, "the error that it was raised from"),
            ("part", OSError, "answered with status 206", 1, "the error that it was raised from"),
            ("unchanged", OSError, "answered with status 304", 1, "the error that it was raised from"),
            ("nowhere", OSError, "answered with status 302", 1, "the error that it was raised from"),
            ("endless", OSError, "does not say how long the file is", 1, "the error that it was raised from"),
            ("coded", OSError, "does not say how long the file is", 1, "the error that it was raised from"),
        ):
            error = raised(FetchData(urls(server, name), retries=2))
            assert type(error) is kind and text in str(error) and f"{server.url}/{name}" in str(error)
            requests = server.requests[f"GET /{name}"]
            assert requests < 20 if num is None else requests == num  # the client stops after so many redirects
            assert cure in error.__notes__[0] and "max_failures= leaves out files" in error.__notes__[0]


@aiohttp_needed
def test_chunks_say_where_a_file_ends():
    headers = {"Transfer-Encoding": "chunked", "Content-Length": ""}
    bodies = {"/whole": b"4\r\n1234\r\n0\r\n\r\n", "/cut": b"4\r\n1234\r\n"}
    with serving(lambda path, number: Reply(bodies[path], sends=100, headers=headers)) as server:
        assert fetched(FetchData(urls(server, "whole"))) == [[b"1234"]]
        assert "ClientPayloadError" in str(raised(FetchData(urls(server, "cut"), retries=0)))


@aiohttp_needed
def test_a_part_of_a_file_is_all_that_was_asked_for():
    with serving(lambda path, number: Reply(b"1234", status=206)) as server:
        options = {"headers": {"Range": "bytes=0-3"}}
        assert fetched(FetchData(urls(server, "a"), storage_options=options)) == [[b"1234"]]


@aiohttp_needed
def test_failures_count_within_their_budget():
    with serving(lambda path, number: Reply(path.encode(), status=404 if path == "/b" else 200)) as server:
        with FetchData(urls(server, "a", "b", "c"), max_failures=1) as df:
            assert list(df) == [[b"/a"], [b"/c"]]
            (failure,) = df.failures
            assert failure.position == 1 and failure.node == "FetchData(fetch)" and f"{server.url}/b" in failure.text
        assert isinstance(raised(FetchData(urls(server, "b", "b"), max_failures=1)), TooManyFailures)


@aiohttp_needed
def test_a_server_is_asked_again_when_it_says_so(monkeypatch):
    pauses = []

    async def sleep(seconds, original=asyncio.sleep):
        pauses.append(seconds)
        await original(0)

    monkeypatch.setattr(fetching.asyncio, "sleep", sleep)
    replies = [Reply(status=429, headers={"Retry-After": "7"}), Reply(status=503), Reply(b"good")]
    with serving(lambda path, number: replies[number - 1]) as server:
        assert fetched(FetchData(urls(server, "a"))) == [[b"good"]]
    pauses = [pause for pause in pauses if pause != 0.001]  # of threads that end
    assert 7 <= pauses[0] <= 7.001 and 0.002 <= pauses[1] <= 0.004
    with serving(lambda path, number: Reply(status=429, headers={"Retry-After": "3600"})) as server:
        error = raised(FetchData(urls(server, "a")))
        assert server.requests["GET /a"] == 1
    assert "the server asks to wait for 3600 seconds" in error.__cause__.__notes__[0]


def test_pauses_grow_from_50_ms_and_vary(monkeypatch):
    monkeypatch.undo()
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    async def fails():
        raise ConnectionResetError

    async def run():
        client = fetching._Client(fetching._Opening(1, 9, None, None, False, {}))
        monkeypatch.setattr(fetching.asyncio, "sleep", sleep)
        with pytest.raises(ConnectionResetError):
            await client._repeating(fails)

    asyncio.run(run())
    for k, pause in enumerate(pauses):
        assert min(0.05 * 2**k, 10) <= pause <= min(0.05 * 2**k, 10) * 2
    assert len(pauses) == 9 and len({pause / min(0.05 * 2**k, 10) for k, pause in enumerate(pauses)}) > 5


class Status(Exception):
    def __init__(self, status, headers=None):
        self.status, self.headers = status, headers or {}


def test_what_is_transient():
    for error in (ConnectionResetError(), TimeoutError(), Status(429), Status(503), Status(408), OSError(110, "x")):
        assert transient_cause(error) is error
        wrapped = FileNotFoundError("x")
        wrapped.__cause__ = error
        assert transient_cause(wrapped) is error
    for error in (ValueError(), FileNotFoundError(), PermissionError(), Status(404), Status(400), Status(301)):
        assert transient_cause(error) is None


def test_when_a_server_asks_to_be_asked_again():
    assert retry_after(Status(429)) == 0
    assert retry_after(Status(429, {"Retry-After": "2.5"})) == 2.5
    assert retry_after(Status(429, {"Retry-After": "soon"})) == 0
    assert 50 < retry_after(Status(429, {"Retry-After": formatdate(time.time() + 60, usegmt=True)})) < 61
    assert retry_after(Status(429, {"Retry-After": formatdate(0, usegmt=True)})) == 0


@aiohttp_needed
def test_a_loop_that_is_left_cancels_the_requests():
    with serving(lambda path, number: Reply(path.encode(), held=path != "/a")) as server:
        df = FetchData(urls(server, "a", *"bcdefgh"))
        for _ in df:
            wait_until(lambda: server.running == 7, LIMIT, "not all requests run")
            break
        server.release()
        assert [dp[0] for dp in df] == [f"/{name}".encode() for name in "abcdefgh"]
        df.close()


def test_every_file_system_of_fsspec_is_read():
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/fetched/a", b"in memory")
    try:
        given = [["memory://fetched/a"], [Path(__file__).as_uri()]]
        assert fetched(FetchData(DataFromList(given, shuffle=False))) == [
            [b"in memory"],
            [Path(__file__).read_bytes()],
        ]
    finally:
        fsspec.filesystem("memory").rm("/fetched", recursive=True)


def test_a_missing_package_is_named_and_is_no_failure_of_one_file(monkeypatch):
    pytest.importorskip("fsspec")
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.setitem(
        registry.known_implementations, "nopackage", {"class": "no_such_package.FS", "err": "Install no_such_package"}
    )
    urls = DataFromList([["nopackage://x/y"]] * 3)
    for budget in (None, 3):
        with pytest.raises(MissingExtra, match=r"nopackage://x/y.*Install no_such_package"):
            fetched(FetchData(urls, max_failures=budget))
    with pytest.raises(ValueError, match=r"nosuch://x/y: Protocol not known: nosuch\. Correct the scheme"):
        fetched(FetchData(DataFromList([["nosuch://x/y"]])))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match=r'pip install "dataflow-runners\[fsspec\]"'):
        fetched(FetchData(urls))


def test_local_files_need_no_package(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert fetched(FetchData(paths(folder))) == EXPECTED


@aiohttp_needed
def test_options_reach_the_file_system():
    seen = []

    async def client(**more):
        import aiohttp

        seen.append(more)
        return aiohttp.ClientSession()

    with serving(files) as server:
        assert fetched(FetchData(urls(server, "a"), storage_options={"get_client": client})) == [[b"/a"]]
    assert len(seen) == 1


# -- the cache ---------------------------------------------------------------------------------------------------------


@aiohttp_needed
def test_files_in_the_cache_are_not_fetched_again(tmp_path, caplog):
    with serving(files) as server:
        for _ in range(2):
            assert fetched(FetchData(urls(server, "a", "b"), cache=tmp_path / "c")) == [[b"/a"], [b"/b"]]
        assert server.requests == {"GET /a": 1, "GET /b": 1}
        assert caplog.text.count("is never compared with the one at its URL") == 2  # one for each node
        other = FetchData(urls(server, "a"), cache=tmp_path / "c", storage_options={"headers": {"X": "1"}})
        assert fetched(other) == [[b"/a"]]
        assert server.requests["GET /a"] == 2  # other options, another file


@aiohttp_needed
def test_with_validation_changed_files_are_fetched_again(tmp_path, caplog):
    state = {"tag": '"1"', "body": b"old"}

    def answer(path, number):
        headers = {"ETag": state["tag"]} if path == "/tagged" else {}
        return Reply(state["body"], headers=headers)

    def fetch(server):
        return fetched(FetchData(urls(server, "tagged", "plain"), cache=tmp_path / "c", validate=True))

    with serving(answer) as server:
        assert fetch(server) == fetch(server) == [[b"old"], [b"old"]]
        assert server.requests["GET /tagged"] == server.requests["GET /plain"] == 1
        state.update(tag='"2"', body=b"new")
        assert fetch(server) == [[b"new"], [b"old"]]  # of the same size, without an ETag: there is no difference
        state.update(body=b"newest")
        assert fetch(server)[1] == [b"newest"]
        assert fetch(server)[1] == [b"newest"] and server.requests["GET /plain"] == 2
    assert "never compared" not in caplog.text


@aiohttp_needed
def test_a_file_that_was_kept_without_validation_is_not_trusted_with_it(tmp_path):
    with serving(files) as server:
        fetched(FetchData(urls(server, "a"), cache=tmp_path / "c"))
        fetched(FetchData(urls(server, "a"), cache=tmp_path / "c", validate=True))
        assert server.requests["GET /a"] == 2


@aiohttp_needed
def test_a_server_that_fails_while_it_is_asked_for_the_state_is_asked_again(tmp_path):
    def answer(path, number):
        return Reply(path.encode(), status=503 if number == 1 else 200)

    with serving(answer) as server:
        assert fetched(FetchData(urls(server, "a"), cache=tmp_path / "c", validate=True)) == [[b"/a"]]
    with serving(lambda path, number: Reply(status=503)) as server:
        error = raised(FetchData(urls(server, "a"), cache=tmp_path / "c", validate=True, retries=1))
    assert type(error) is OSError and "cannot be read: ClientResponseError: 503" in str(error)


def test_local_files_are_kept_too(folder, tmp_path):
    df = FetchData(paths(folder), cache=tmp_path / "c", validate=True)
    assert fetched(df) == EXPECTED
    (folder / "3.bin").write_bytes(b"changed")
    assert fetched(df)[3] == [b"changed", 3]
    unchecked = FetchData(paths(folder), cache=tmp_path / "c")
    (folder / "3.bin").write_bytes(b"again")
    assert fetched(unchecked)[3] == [b"changed", 3]


def test_a_full_disk_costs_the_cache_and_nothing_else(folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "replace", lambda *_: raise_error(OSError(28, "No space left on device")))
    assert fetched(FetchData(paths(folder), cache=tmp_path / "c")) == EXPECTED
    assert caplog.text.count("files cannot be kept in the cache") == 1 and "No space left" in caplog.text
    assert sorted(os.listdir(tmp_path / "c")) == ["lock"]


def raise_error(error):
    raise error


def test_a_cache_that_cannot_be_made_is_named(folder):
    with FetchData(paths(folder), cache=folder / "1.bin" / "c") as df, pytest.raises(NotADirectoryError) as caught:
        list(df)
    assert f"the cache {folder / '1.bin' / 'c'} cannot be made: give another folder" in caught.value.__notes__[0]
    assert caught.value.__notes__[1:] == ["raised by setup of FetchData: the cache and the connections"]
    assert not threads()


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"retries": -1}, ValueError, "retries"),
        ({"retries": None}, TypeError, "retries"),
        ({"cache": 3}, TypeError, "cache is the path of a folder, got int"),
        ({"cache": "s3://bucket/x"}, ValueError, "a folder on this machine"),
        ({"cache": "c", "cache_bytes": 0}, ValueError, "cache_bytes"),
        ({"cache_bytes": 10}, ValueError, "cache_bytes concerns the files in a cache"),
        ({"validate": True}, ValueError, "validate=True concerns the files in a cache"),
        ({"cache": "c", "validate": "no"}, TypeError, "validate"),
        ({"storage_options": [1]}, TypeError, "storage_options"),
        ({"storage_options": {"loop": 1}}, ValueError, "sets loop by itself"),
        ({"cache": "c", "storage_options": {"auth": object()}}, ValueError, r"part of what identifies .*\['auth'\]"),
        ({"num_concurrent": 0}, ValueError, "num_concurrent"),
    ],
)
def test_wrong_arguments_are_named(given, kind, text):
    with pytest.raises(kind, match=text):
        FetchData(DataFromList([["x"]]), **given)


def test_secrets_are_shown_nowhere(folder):
    given = {"token": "s3cret", "client_kwargs": {"password": "s3cret"}}
    df = FetchData(paths(folder), storage_options=given)
    other = FetchData(paths(folder), storage_options={**given, "token": "another"})
    for text in (repr(df), str(describe_flow(df)), repr(df._df_setup)):
        assert "s3cret" not in text
    assert "storage_options=['client_kwargs', 'token']" in repr(df)
    assert describe_flow(df) == describe_flow(other)  # a job may be resumed with new credentials


def test_a_cache_on_disk_needs_a_fingerprint(tmp_path):
    df = FetchData(DataFromList([["a"]]))
    with pytest.raises(TypeError, match=r"FetchData reads files, .*fingerprint="):
        DiskCacheData(df, tmp_path / "cache")
    DiskCacheData(df, tmp_path / "cache", fingerprint="1")


def test_settings_of_a_run_may_change_between_runs(folder):
    df = ResumableData(FetchData(paths(folder), 0, 3))
    with df:
        begin = list(islice(df, 7))
        state = df.state_dict()
    with ResumableData(FetchData(paths(folder), 0, 8, retries=0, cache=folder / "c")) as again:
        again.load_state_dict(state)
        assert begin + list(again) == EXPECTED


def test_its_parameters_may_be_assigned(folder):
    with FetchData(DataFromList([[0, str(folder / "1.bin")]])) as df:
        df.key = 1
        assert list(df) == [[0, content(1)]]


def test_threads_of_a_runner_fetch(folder):
    with MultiThreadRunner(lambda: FetchData(paths(folder)), 5, 2, strict=True) as df:
        assert list(df) == EXPECTED


def test_a_cache_that_is_opened_during_a_cancellation_is_closed(tmp_path, monkeypatch):
    opened, cancelled = threading.Event(), threading.Event()
    caches = []

    class Slow(fetching.FileCache):
        def __init__(self, *args):
            super().__init__(*args)
            caches.append(self)
            opened.set()
            cancelled.wait(LIMIT)

    monkeypatch.setattr(fetching, "FileCache", Slow)

    async def enter_and_cancel():
        task = asyncio.ensure_future(fetching._Opening(1, 0, str(tmp_path), None, False, {})().__aenter__())
        await asyncio.to_thread(opened.wait, LIMIT)
        task.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        await asyncio.wait([task])
        assert task.cancelled()

    before = snapshot()
    asyncio.run(enter_and_cancel())
    check_nothing_left(before)
    assert len(caches) == 1


def test_a_cache_needs_locks(folder, monkeypatch):
    monkeypatch.setattr(saving, "fcntl", None)
    with pytest.raises(ValueError, match="FetchData: cache needs file locks"):
        FetchData(paths(folder), 0, cache=folder)


def test_a_file_in_the_cache_is_compared_with_that_of_a_file_system_without_an_event_loop(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/compared", b"one")
    with FetchData(DataFromList([["memory://compared"]]), 0, cache=tmp_path, validate=True) as df:
        assert list(df) == [[b"one"]] == list(df)
        memory.pipe("/compared", b"another")
        assert list(df) == [[b"another"]]
    memory.rm("/compared")


def test_the_end_of_an_iterator_in_a_thread_is_an_error():
    async def run():
        threads = fetching._Threads(1)
        with pytest.raises(RuntimeError, match="StopIteration was raised"):
            await threads.run(next, iter([]))
        await threads.close()

    asyncio.run(run())
