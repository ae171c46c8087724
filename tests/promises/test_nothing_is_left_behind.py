"""Runners come and go, and the process stays as it was; messages of other processes are refused."""

import ctypes
import gc
import logging
import multiprocessing
import os
import pickle
import sys
import threading
import time
from itertools import islice

import numpy as np
import psutil
import pytest
import zmq

from dataflow import (
    DataFlow,
    DataFromList,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
)
from dataflow.runners.engine import Engine
from dataflow.transport.messages import DATA_KINDS
from tests.support.fakes import KINDS, Forever, Numbers, Trap, runner
from tests.support.products import covering, rotating
from tests.support.waits import LIMIT, wait_until

each_kind = rotating("kind", {"process": "process", "zmq": "zmq"}, always={"thread": "thread"})


def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def counts():
    """Descriptors, threads, children. A worker that is a thread has one more, which flushes, once it is fast enough."""
    threads = [thread for thread in threading.enumerate() if thread.name != "dataflow-flusher"]
    return len(os.listdir("/proc/self/fd")), len(threads), len(psutil.Process().children(recursive=True))


def steady_counts():
    """Counts that are the same a moment later: the sampler of a worker thread now and then opens a file to read it."""
    before = counts()
    while True:
        time.sleep(0.02)
        after = counts()
        if after == before:
            return after
        before = after


@pytest.mark.parametrize("number", [9, pytest.param(500, marks=pytest.mark.full)])
def test_hundreds_of_runners_leave_the_process_as_it_was(number):
    def churn(number):
        for k in range(number):
            kind = KINDS[k % 3]
            df = runner(kind, Forever, 1 + k % 2, prefetch=[0, 5, 50][k // 3 % 3])
            assert len(list(islice(df, 20))) == 20
            if k % 5 == 0:
                df.close()
            del df

    churn(9)  # what is loaded and allocated once
    gc.collect()
    before, memory = steady_counts(), resident()
    churn(number)
    gc.collect()
    wait_until(lambda: counts() == before, LIMIT, lambda: f"{counts()} instead of {before}")
    assert resident() - memory < 20_000_000


@each_kind
def test_many_resets_leave_the_process_as_it_was(kind):
    with runner(kind, Forever, 1) as df:
        list(islice(df, 10))
        before = steady_counts()
        for _ in range(8):
            df.reset_state()
            assert next(iter(df)) == [0]
        wait_until(lambda: counts() == before, LIMIT, lambda: f"{counts()} instead of {before}")


@each_kind
def test_passes_do_not_add_up(kind):
    with runner(kind, lambda: Numbers(3)) as df:
        list(df)
        before = steady_counts()
        for _ in range(200):
            assert list(df) == [[0], [1], [2]]
        wait_until(lambda: counts() == before, LIMIT, lambda: f"{counts()} instead of {before}")
        assert sum(thread.name == "dataflow-flusher" for thread in threading.enumerate()) <= 1


@each_kind
def test_the_end_of_one_runner_does_not_touch_another(kind):
    with runner(kind, Forever) as stays:
        iterator = iter(stays)
        assert next(iterator) == [0]
        for _ in range(3):
            with runner(kind, Forever) as goes:
                next(iter(goes))
        assert list(islice(iterator, 3)) == [[1], [2], [3]]


def test_a_child_that_collects_its_copy_of_a_runner_ends_no_worker_of_the_parent():
    df = runner("zmq", Forever, 2)
    iterator = iter(df)
    next(iterator)
    pid = os.fork()
    if not pid:
        try:
            del df, iterator
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(islice(iterator, 500))) == 500
    df.close()


def image(dp):
    return [dp[0], np.zeros(50_000, np.uint8)]


INTERRUPTED = {
    "zmq": lambda ds: MultiProcessRunnerZMQ(MapData(ds, image), 2),
    "strict": lambda ds: MultiProcessRunnerZMQ(MapData(ds, image), 2, strict=True),
    "pipes": lambda ds: MultiProcessRunner(MapData(ds, image), 5, 2),
    "map": lambda ds: MultiProcessMapData(ds, 2, image, strict=True),
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each mapping has a descriptor")
@pytest.mark.parametrize(
    ("name", "when"), covering([*INTERRUPTED], ["as a message is received", "between two datapoints"])
)
def test_closing_after_an_interrupt_leaves_nothing_to_the_garbage_collector(name, when, monkeypatch):
    receive, received = Engine._receive, []

    def interrupted(self, message):
        receive(self, message)
        received.append(message.kind)
        if len(received) > 8 and message.kind in DATA_KINDS and when == "as a message is received":
            raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "_receive", interrupted)
    before = {os.readlink(entry) for entry in descriptors()}
    gc.collect()
    gc.disable()
    try:
        df = INTERRUPTED[name](DataFromList([[k] for k in range(2000)]))
        with pytest.raises(KeyboardInterrupt):
            consume(df, 30 if when == "between two datapoints" else 2000)
        df.close()
        assert {os.readlink(entry) for entry in descriptors()} == before
    finally:
        gc.enable()


def consume(df, num):
    for k, _ in enumerate(df):
        if k == num:
            raise KeyboardInterrupt


def descriptors():
    """Those of shared memory."""
    entries = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [entry for entry in entries if os.path.islink(entry) and "memfd" in os.readlink(entry)]


# -- other processes ---------------------------------------------------------------------------------------------------


class Held(DataFlow):
    def __iter__(self):
        while True:
            yield [1]


@pytest.fixture
def before_hello(monkeypatch):
    """A ZeroMQ runner whose workers wait before they connect: (runner, address, release)."""
    from dataflow.transport import zeromq

    release = multiprocessing.get_context("fork").Event()
    connect = zmq.Socket.connect

    def patient(self, address):
        if address.startswith("ipc:") and os.getpid() != main:
            release.wait(4 * LIMIT)
        return connect(self, address)

    main = os.getpid()
    monkeypatch.setattr(zeromq.zmq.Socket, "connect", patient)
    bind, urls = zmq.Socket.bind, []
    monkeypatch.setattr(zeromq.zmq.Socket, "bind", lambda self, url: (urls.append(url), bind(self, url))[1])
    with MultiProcessRunnerZMQ(Held(), 2, 5, timeout=LIMIT, context="fork") as df:
        df.reset_state()
        (address,) = urls
        yield df, address, release
        release.set()


def test_a_forged_message_is_refused_unread_and_honest_workers_go_on_being_heard(before_hello, tmp_path, caplog):
    df, address, release = before_hello
    trap = pickle.dumps(Trap(str(tmp_path / "written")))
    with zmq.Context() as context, context.socket(zmq.PUSH) as forger:
        forger.immediate, forger.sndtimeo = True, int(1000 * LIMIT)  # it can send when it is connected, and not before
        forger.connect(address)
        with caplog.at_level(logging.WARNING, "dataflow"):
            for frames in ([trap], [b""], [bytes(33), trap], [bytes(16), trap], [trap] * 10):
                forger.send_multipart(frames)
            release.set()
            wait_until(lambda: list(islice(df, 20)) and "refused" in caplog.text, LIMIT, "no message was refused")
            for _ in range(10):
                assert list(islice(df, 20)) == [[1]] * 20
        forger.close(0)
    assert caplog.text.count("refused a message") == 1
    assert not (tmp_path / "written").exists()


# -- Python's warning --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 12), reason="older Pythons do not warn of a fork with threads")
@pytest.mark.parametrize("kinds", [("zmq", "zmq"), ("zmq", "process"), ("thread", "zmq")], ids="-then-".join)
def test_a_second_runner_does_not_make_python_warn_of_the_threads_of_the_first(kinds):
    """Warnings are errors here."""
    with runner((kinds[0], "fork"), lambda: Forever(size=200_000)) as first:
        next(iter(first))
        with runner((kinds[1], "fork"), Forever) as second:
            assert next(iter(second)) == [0]
