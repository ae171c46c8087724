"""The end of a program, however it comes: no worker, no socket file and no traceback stays behind."""

import contextlib
import gc
import itertools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from itertools import islice
from pathlib import Path

import psutil
import pytest

import dataflow
from dataflow import (
    DataFlow,
    DataFlowTerminated,
    DataFromList,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    RepeatedData,
    WorkerDied,
    worker_info,
)
from dataflow.protocol.state import state_of
from dataflow.runners.engine import Engine
from dataflow.system.worker_process import ProcessWorker
from tests.support.busy import Busy
from tests.support.faults import deadline
from tests.support.products import only, rotating
from tests.support.stacks import is_inside
from tests.support.waits import LIMIT, wait_until

ROOT = str(Path(__file__).parents[2])
RUNNERS = {
    "zmq": lambda df, num=1, **more: MultiProcessRunnerZMQ(df, num, **more),
    "process": lambda df, num=1, **more: MultiProcessRunner(df, 10, num, **more),
}
both = rotating("make", RUNNERS)


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def gone(processes) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def wait_gone(processes) -> None:
    wait_until(lambda: gone(processes), LIMIT, lambda: f"still there: {[p for p in processes if p.is_running()]}")


# -- programs ----------------------------------------------------------------------------------------------------------

HEAD = """
import gc, logging, multiprocessing, os, signal, sys, threading
from dataflow import NAMES
from tests.support.busy import Busy

logging.getLogger("dataflow.runners.runners").setLevel(logging.ERROR)  # else each says what a pass by default is

def tell(*words):
    print(*words, flush=True)
"""


FORK_BESIDE_THREADS = "ignore:This process:DeprecationWarning"  # from Python 3.15 on, also beside those of libraries


class Program:
    """A program of its own, in its own session and with its own directory for temporary files."""

    def __init__(self, text: str) -> None:
        head = HEAD.replace("NAMES", ", ".join(name for name in dataflow.__all__ if name in text))  # all take long
        self.directory = tempfile.mkdtemp(prefix="p-")
        environment = {**os.environ, "TMPDIR": self.directory, "PYTHONPATH": ROOT}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-W", FORK_BESIDE_THREADS, "-c", head + textwrap.dedent(text)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.found = set()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and whatever it has forked
        out, err = self.process.communicate(timeout=LIMIT)
        if kind is not None:
            print(out, err)
        for process in self.found:
            if not gone([process]):
                process.kill()

    def read(self) -> str:
        """The next line that it prints; afterwards its descendants are known."""
        with deadline(LIMIT):
            line = self.process.stdout.readline().strip()
        self.found |= set(psutil.Process(self.process.pid).children(recursive=True))
        return line

    def end(self) -> tuple[int, str, str]:
        """Wait until it ends by itself; its exit code and what it printed."""
        out, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, out, err

    def left(self) -> list[str]:
        """What is left in its temporary directory, apart from the sockets of multiprocessing's own fork server."""
        return [name for name in os.listdir(self.directory) if not name.startswith("pymp-")]


NESTS = {
    "zmq": "MultiProcessRunnerZMQ(FLOW, 2)",
    "process": "MultiProcessRunner(FLOW, 10, 2)",
    "two levels": "MultiProcessRunner(MultiProcessRunnerZMQ(FLOW, 1), 10, 2)",
    "three levels": "MultiProcessRunnerZMQ(MultiProcessRunner(MultiProcessRunnerZMQ(FLOW, 1), 10, 1), 1)",
    "in a thread": "MultiThreadRunner(lambda: MultiProcessRunnerZMQ(FLOW, 1), 10, 1)",
}
QUICK_KILLED = [
    ("in a thread", "wait for credit", "fork"),
    ("zmq", "be stopped", "fork"),
    ("process", "blocked in a write", "fork"),
    ("three levels", "hold the interpreter", "fork"),
    ("two levels", "hold the interpreter", "spawn"),
]
KILLED = [
    *((nest, "wait for credit", "fork") for nest in ("zmq", "process", "two levels", "three levels")),
    ("two levels", "be stopped", "fork"),
    ("zmq", "sleep", "fork"),
    ("zmq", "hold the interpreter", "fork"),
    ("two levels", "hold the interpreter", "forkserver"),
    *QUICK_KILLED,
]


@pytest.mark.parametrize(
    ("nest", "what", "method"), only(QUICK_KILLED, KILLED), ids=lambda value: value.replace(" ", "-")
)
def test_no_worker_outlives_a_main_process_that_is_killed(nest, what, method):
    flow = "Busy(size=1 << 20)" if what == "blocked in a write" else f"Busy({what!r})"
    with Program(
        f"""
        if __name__ == "__main__":
            multiprocessing.set_start_method({method!r})
            runner = {NESTS[nest].replace("FLOW", flow)}
            datapoints = iter(runner)
            tell(next(datapoints)[0])
            signal.pause()
        """
    ) as program:
        worker = psutil.Process(int(program.read()))
        assert worker in program.found
        if what == "be stopped":
            worker.suspend()
            wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, LIMIT, "not stopped")
        program.process.kill()
        wait_gone(program.found)


# Quick is one of each kind; what a forked child may do is in test_forked_children_change_nothing.py, too.
QUICK_ENDS = (
    "with a runner in a global",
    "with threads in a global",
    "nested",
    "with a worker that is stopped",
    "while a thread starts workers",
    "in a child of multiprocessing",
)
ENDS = {
    "with a runner in a global": "runner = <zmq>; list(zip(range(3), runner))",
    "with a runner that was never iterated": "runner = <zmq>; runner.reset_state()",
    "with a pipe runner in a global": "runner = <pipe>; list(zip(range(3), runner))",
    "with threads in a global": "runner = MultiThreadRunner(lambda: Busy(), 3, 2); list(zip(range(3), runner))",
    "with a half-consumed iterator": "it = iter(<zmq>); next(it)",
    # With one worker each: what an inner one logs, only a forked worker would not print.
    "nested": "it = iter(MultiProcessRunner(MultiProcessRunnerZMQ(Busy(), 1), 3, 2)); next(it)",
    "with a reference cycle": "runner = <zmq>; runner.me = runner; next(iter(runner)); del runner",
    "with a worker that sleeps": "it = iter(MultiProcessRunnerZMQ(Busy('sleep'), 1)); next(it)",
    "with a worker that is stopped": "it = iter(<pipe>); os.kill(next(it)[0], signal.SIGSTOP)",
    "after making it in a thread": """
        def make():
            global it
            it = iter(<zmq>)
            next(it)
        thread = threading.Thread(target=make); thread.start(); thread.join()
    """,
    "while a thread iterates": """
        def use():
            try:
                for dp in <zmq>: pass
            except DataFlowTerminated: pass
        threading.Thread(target=use, daemon=True).start()
        next(iter(<pipe>))
    """,
    "while a thread starts workers": """
        from dataflow.system import cleanup, worker_process
        begun, ending, started = threading.Event(), threading.Event(), threading.Event()
        start = worker_process.ProcessWorker.start
        def started_late(worker):
            begun.set()
            ending.wait(60)
            try:
                start(worker)  # from Python 3.12 on it raises: nothing is forked any more
            finally:
                started.set()
        worker_process.ProcessWorker.start = started_late
        class Last:
            def close(self):
                ending.set()
                assert started.wait(60)
        last = Last(); cleanup.close_at_exit(last)
        def use():
            try:
                for dp in MultiProcessRunnerZMQ(Busy(), 1): pass
            except DataFlowTerminated as error: assert "the program is ending" in str(error)
        threading.Thread(target=use, daemon=True).start()
        begun.wait(60)
    """,
    "in a child of multiprocessing": """
        def use():
            global it
            it = iter(<zmq>)
            tell(next(it)[0])
        child = multiprocessing.get_context("fork").Process(target=use)
        child.start(); child.join()
        assert child.exitcode == 0
    """,
    "in a daemonic child of multiprocessing": """
        def use():
            global it
            it = iter(<zmq>)
            tell(next(it)[0])
        child = multiprocessing.get_context("fork").Process(target=use, daemon=True)
        child.start(); child.join()
        assert child.exitcode == 0
    """,
    "after a child was forked that drops its copy": """
        runner = <zmq>
        it = iter(runner); next(it)
        pid = os.fork()
        if not pid:
            del it, runner
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        for _ in range(300): next(it)
    """,
    "after a child was forked that goes on with the iterator": """
        runner = <zmq>
        it = iter(runner); next(it)
        pid = os.fork()
        if not pid:
            try:
                while True: next(it)
            except DataFlowTerminated as error:
                os._exit(0 if "forked" in str(error) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        for _ in range(300): next(it)
    """,
    "after a child was forked that iterates its copy": """
        runner = <zmq>
        it = iter(runner); ours = next(it)[0]
        pid = os.fork()
        if not pid:
            mine, more = set(), iter(runner)
            while len(mine) < 2: mine.add(next(more)[0])
            runner.close()
            os._exit(ours in mine)
        assert os.waitpid(pid, 0)[1] == 0
        for _ in range(300): next(it)
    """,
    "after a child was forked that exits normally": """
        runner = <pipe>
        it = iter(runner); next(it)
        pid = os.fork()
        if not pid: sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        for _ in range(300): next(it)
    """,
    "after a child was forked that ends with a live copy": """
        runner = <pipe>
        it = iter(runner); next(it)
        pid = os.fork()
        if not pid:
            more = iter(runner); next(more)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        for _ in range(300): next(it)
    """,
}


@pytest.mark.parametrize("name", only(QUICK_ENDS, ENDS))
def test_a_program_ends_by_itself(name):
    text = ENDS[name].replace("<zmq>", "MultiProcessRunnerZMQ(Busy(), 2)")
    text = text.replace("<pipe>", "MultiProcessRunner(Busy(), 3, 2)")
    with Program(textwrap.dedent(text) + "\ntell('end')") as program:
        while program.read() not in {"end", ""}:
            pass
        code, _, err = program.end()
        assert (code, err) == (0, "")
        wait_gone(program.found)
        assert program.left() == []


def test_a_program_ends_by_itself_after_an_exception():
    with Program("runner = MultiProcessRunnerZMQ(Busy(), 2); next(iter(runner)); tell('x'); 1 / 0") as program:
        program.read()
        code, _, err = program.end()
        assert code == 1 and err.endswith("ZeroDivisionError: division by zero\n") and err.count("Traceback") == 1
        wait_gone(program.found)
        assert program.left() == []


def test_a_program_ends_by_itself_where_children_are_collected_by_the_system():
    with Program(
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        runner = MultiProcessRunnerZMQ(Busy(), 2)
        it = iter(runner)
        os.kill(next(it)[0], signal.SIGKILL)
        try:
            while True: next(it)
        except RuntimeError as error:
            tell(error)
        runner.reset_state()
        next(iter(runner))
        """
    ) as program:
        message = program.read()
        assert "of 2 of MultiProcessRunnerZMQ" in message
        assert "exit code" not in message  # it is unknown
        assert (program.end()[0], program.end()[2]) == (0, "")
        wait_gone(program.found)


@pytest.mark.parametrize(
    ("nest", "what"),
    only(
        [("process", "wait for credit"), ("two levels", "sleep")],
        itertools.product(["zmq", "process", "two levels"], ["sleep", "wait for credit"]),
    ),
)
def test_an_interrupt_reaches_the_consumer_only(nest, what):
    with Program(
        f"""
        runner = {NESTS[nest].replace("FLOW", f"Busy({what!r})")}
        try:
            for k, dp in enumerate(runner):
                if not k: tell(dp[0])
        except KeyboardInterrupt:
            tell("interrupted")
        """
    ) as program:
        program.read()
        os.killpg(program.process.pid, signal.SIGINT)
        code, out, err = program.end()
        assert (code, out, err) == (0, "interrupted\n", "")
        wait_gone(program.found)
        assert program.left() == []


@pytest.mark.parametrize("nest", only(["two levels"], ["zmq", "two levels"]))
def test_a_main_process_that_is_terminated_takes_its_workers_along(nest):
    with Program(
        f"""
        runner = {NESTS[nest].replace("FLOW", "Busy()")}
        it = iter(runner)
        seen = set()
        while len(seen) < 2: seen.add(next(it)[0])  # both are connected
        tell("both")
        signal.pause()
        """
    ) as program:
        program.read()
        program.process.terminate()
        assert program.end()[0] == -signal.SIGTERM
        wait_gone(program.found)
        assert program.left() == []


# -- the consumer's ways to stop ---------------------------------------------------------------------------------------


@both
def test_workers_end_with_the_runner(make):
    before = descendants()
    runner = make(Busy(), 2)
    next(iter(runner))
    workers = descendants() - before
    assert len(workers) == 2
    del runner
    gc.collect()
    wait_gone(workers)


@both
def test_a_consumer_that_raises_keeps_its_workers_until_the_runner_ends(make):
    before = descendants()
    runner = make(Busy(), 1)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for _ in runner:
            1 / 0  # noqa: B018
    (worker,) = descendants() - before
    assert next(iter(runner))[0] == worker.pid
    runner.close()
    assert not descendants() - before


@both
def test_closing_wakes_a_thread_that_waits_for_a_datapoint(make):
    runner = make(Busy("sleep"), 1)
    it = iter(runner)
    next(it)
    errors = []

    def wait() -> None:
        try:
            next(it)
        except DataFlowTerminated as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: is_inside(waiting, Engine.chunk), LIMIT, "it does not wait")
    runner.close()
    waiting.join(LIMIT)
    assert len(errors) == 1
    with pytest.raises(StopIteration):  # a generator that has raised is over
        next(it)


@both
def test_closing_in_the_middle_of_a_pass_ends_it_there(make):
    runner = make(Busy(), 1)
    it = iter(runner)
    next(it)
    runner.close()
    with pytest.raises(DataFlowTerminated, match="closed"):
        next(it)
    with deadline(LIMIT):
        next(iter(runner))
    runner.close()


@pytest.mark.parametrize("what", ["sleep", "hold the interpreter", "be stopped"])
@both
def test_a_worker_that_does_not_listen_is_killed_within_the_grace(make, what):
    before = descendants()
    runner = make(Busy(what), 1)
    pid, _ = next(iter(runner))
    if what == "be stopped":
        os.kill(pid, signal.SIGSTOP)
    with deadline(LIMIT):
        runner.close()
    assert not descendants() - before


def test_a_thread_that_does_not_return_is_named_once_and_left_behind(caplog):
    release, blocked = threading.Event(), threading.Event()

    class Blocks(DataFlow):
        def __iter__(self):
            yield [0]
            blocked.set()
            release.wait(LIMIT)

    runner = MultiThreadRunner(Blocks, 3, 1)
    next(iter(runner))
    blocked.wait(LIMIT)
    with caplog.at_level(logging.WARNING):
        runner.close()
        runner.close()
    assert [record.getMessage().startswith("worker 0 of 1") for record in caplog.records] == [True]
    release.set()


def test_a_thread_that_returns_late_does_not_close_what_its_successor_uses():
    release, blocked = threading.Event(), threading.Event()

    class BlocksOnce(DataFlow):
        def __iter__(self):
            yield [0]
            if not blocked.is_set():
                blocked.set()
                release.wait(LIMIT)

    with MultiThreadRunner(lambda: RepeatedData(BlocksOnce(), -1), 3, 1) as runner:
        next(iter(runner))
        assert blocked.wait(LIMIT)
        before = {thread for thread in threading.enumerate() if thread.name.startswith("dataflow-worker")}
        runner.reset_state()  # the first thread does not return: it is left behind
        release.set()
        for thread in before:
            thread.join(LIMIT)
        assert list(islice(runner, 500)) == [[0]] * 500


# -- what happens in a worker ------------------------------------------------------------------------------------------


class Tidy(DataFlow):
    """Leaves a note when its pass is ended."""

    def __init__(self, note: str) -> None:
        self.note = note

    def __iter__(self):
        try:
            while True:
                yield [0, bytes(1 << 16)]
        finally:
            Path(self.note).write_text("tidied up")


@pytest.mark.parametrize("num", [1, 3])
@both
def test_finally_runs_in_a_worker_when_the_runner_is_closed(make, num, tmp_path, monkeypatch):
    monkeypatch.setattr("dataflow.system.worker_pool._GRACE", LIMIT)  # here, and in what is forked from here
    flow = Tidy(str(tmp_path / "note"))
    runner = make(flow, 1, context="fork")
    if num == 3:
        runner = make(runner, 1, context="fork")
    next(iter(runner))
    runner.close()
    assert (tmp_path / "note").read_text() == "tidied up"


class Descriptors(DataFlow):
    """[worker, how many pipes, files and memory files it has]; sockets come and go with their connections."""

    def __iter__(self):
        while True:
            names = []
            for fd in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    names.append(os.readlink(f"/proc/self/fd/{fd}"))
            yield [worker_info().index, sum(not name.startswith(("socket:", "anon_inode:")) for name in names)]


@both
def test_a_worker_does_not_hold_what_belongs_to_another(make):
    counts = {}
    with make(Descriptors(), 4, context="fork") as runner:
        for worker, count in runner:
            counts.setdefault(worker, count)
            if len(counts) == 4:
                break
    # multiprocessing itself leaves two for each process that was started before.
    assert [counts[k] - 2 * k for k in range(4)] == [counts[0]] * 4


class Mortal(DataFlow):
    """[worker, number, data]; the `victims` kill themselves after `good` datapoints, from another thread."""

    def __init__(self, victims=(0,), good: int = 3, size: int = 10, *, by_thread: bool = False) -> None:
        self.victims, self.good, self.size, self.by_thread = victims, good, size, by_thread

    def __iter__(self):
        here = worker_info().index
        k = 0
        while True:
            if here in self.victims and k == self.good:
                if self.by_thread:
                    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield [here, k, bytes([k % 256]) * self.size]
            k += 1


def outlive(runner) -> dict[int, int]:
    """Take until a worker's death is raised; how many came of each, all whole and in order."""
    counts = {}
    with pytest.raises(WorkerDied), deadline(LIMIT):  # noqa: PT012
        for worker, k, data in runner:
            assert k == counts.get(worker, 0) and data == bytes([k % 256]) * len(data)
            counts[worker] = k + 1
    return counts


@both
def test_a_kill_in_the_middle_of_a_big_message_tears_nothing(make):
    outlive(make(Mortal(size=8 << 20, by_thread=True), 1))


@both
def test_all_workers_killed_at_once(make):
    assert max(outlive(make(Mortal(victims=(0, 1, 2)), 3)).values(), default=0) <= 3


class OneFloods(DataFlow):
    """[worker, pid]: worker 0 makes one and waits; worker 1 makes them endlessly and fast, with long messages."""

    def __iter__(self):
        here = [worker_info().index, os.getpid()]
        yield here
        if here[0] == 0:
            time.sleep(2 * LIMIT)
        while True:
            yield here


@pytest.mark.parametrize("pause", [pytest.param(0, id="fast"), pytest.param(0.05, id="slow")])
@both
def test_a_death_is_told_to_a_fast_or_slow_consumer_while_others_deliver(make, pause):
    pids = {}
    with (  # noqa: PT012
        make(OneFloods(), 2) as runner,
        pytest.raises(WorkerDied, match=r"worker 0 of 2 .* SIGKILL"),
        deadline(LIMIT),
    ):
        for worker, pid in runner:
            if len(pids) == 2:
                time.sleep(pause)
                continue
            pids[worker] = pid
            if len(pids) == 2:
                os.kill(pids[0], signal.SIGKILL)  # all that it had made was handed out


@both
def test_a_death_is_told_to_a_consumer_that_is_slow_over_a_long_message(make):
    with make(OneFloods(), 2) as runner:
        it = iter(runner)
        pids = dict(islice(it, 50_000))
        while 0 not in pids:
            pids |= dict(islice(it, 1000))
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"), deadline(LIMIT):  # noqa: PT012
            for _ in it:
                threading.Event().wait(0.02)


class Unborn(DataFlow):
    """Ends its process before the worker has begun."""

    def __setstate__(self, state):
        os._exit(7)

    def __iter__(self):
        yield [0]


@both
def test_a_worker_that_dies_before_its_hello_is_named(make):
    with pytest.raises(WorkerDied, match=r"worker 0 of 1 .* exit code 7"), deadline(LIMIT):
        next(iter(make(Unborn(), 1, context="forkserver")))


class Some(DataFlow):
    """Worker 0 has one datapoint in all; the others never end."""

    def __iter__(self):
        here = worker_info().index
        if here:
            while True:
                yield [here]
        elif not hasattr(self, "given"):
            self.given = True
            yield [here]


@both
def test_a_worker_that_has_nothing_more_does_not_end_the_others(make):
    with make(Some(), 2) as runner, deadline(LIMIT):
        taken = [dp for _, dp in zip(range(2000), runner, strict=False)]
    assert taken.count([0]) <= 1 and len(taken) == 2000


# -- half-way through a start ------------------------------------------------------------------------------------------


@both
def test_a_failing_start_stops_the_workers_that_were_started_before(make, monkeypatch):
    from multiprocessing.context import ForkProcess

    before = descendants()
    starts = []
    start = ForkProcess.start

    def fail_at_the_third(self):
        starts.append(self)
        if len(starts) == 3:
            raise OSError(11, "Resource temporarily unavailable")
        start(self)

    monkeypatch.setattr(ForkProcess, "start", fail_at_the_third)
    with pytest.raises(OSError, match="temporarily unavailable"):
        iter(make(Busy(), 4, context="fork"))
    assert len(starts) == 3
    assert not descendants() - before


@both
def test_a_consumer_that_cannot_open_its_end_stops_its_workers(make, monkeypatch):
    from dataflow.transport.local_channel import PipeChannel
    from dataflow.transport.zeromq import SocketChannel

    def fail(self):
        raise OSError(24, "Too many open files")

    before = descendants()
    monkeypatch.setattr(PipeChannel, "open_receiver", fail)
    monkeypatch.setattr(SocketChannel, "open_receiver", fail)
    with pytest.raises(OSError, match="Too many"):
        iter(make(Busy(), 2))
    assert not descendants() - before


@both
def test_an_unknown_start_method_leaves_nothing_behind(make):
    with pytest.raises(ValueError, match="telepathy"):
        iter(make(Busy(), 1, context="telepathy"))


# -- Ctrl-C at a bad moment --------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What an alarm raises, as Ctrl-C would."""


@pytest.fixture
def interrupt_next(monkeypatch):
    """Lets the next call of a method that waits be interrupted while it does; `arguments` are for this call."""

    def interrupt(signum, frame):
        raise Interrupted

    def interrupt_next(owner, name, arguments=lambda *given: given):
        method, armed = getattr(owner, name), [True]

        def interrupted(*given):
            if not armed:
                return method(*given)
            armed.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            method(*arguments(*given))
            raise AssertionError("it did not wait")

        monkeypatch.setattr(owner, name, interrupted)

    before = signal.signal(signal.SIGALRM, interrupt)
    yield interrupt_next
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class OnDemand(DataFlow):
    """[0], [1], …: each when it is asked for."""

    def __init__(self, asked):
        self.asked = asked

    def __iter__(self):
        k = 0
        while os.read(self.asked, 1):
            yield [k]
            k += 1


@both
def test_an_interrupt_while_the_consumer_waits_costs_nothing(make, interrupt_next):
    asked, ask = os.pipe()
    with make(OnDemand(asked), 1, timeout=LIMIT, context="fork") as runner:
        for k in range(6):
            os.write(ask, b".")
            assert next(iter(runner)) == [k]  # and nothing more comes
            interrupt_next(
                state_of(runner).resource._supervisor._receiver, "wait", lambda timeout, watched: (LIMIT, watched)
            )
            with pytest.raises(Interrupted):
                next(iter(runner))
        os.write(ask, b"." * 100)  # it need not be killed
    os.close(asked)
    os.close(ask)


@both
def test_an_interrupt_between_taking_a_message_and_giving_it_out_ends_the_workers_and_the_next_loop_starts_others(
    make, monkeypatch
):
    from dataflow.transport.array_codec import ArrayDecoder

    def interrupted(self, worker, body):
        raise KeyboardInterrupt

    before = descendants()
    runner = make(Busy(), 2)
    monkeypatch.setattr(ArrayDecoder, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iter(runner))
    assert not descendants() - before
    monkeypatch.undo()
    next(iter(runner))
    runner.close()


@both
def test_a_second_interrupt_while_the_workers_are_given_time_leaves_none_of_them(make, interrupt_next, monkeypatch):
    class Sleeper(DataFlow):
        def __iter__(self):
            yield [0]
            os.write(asleep, b".")  # from here on, no request to stop is received
            time.sleep(2 * LIMIT)

    monkeypatch.setattr("dataflow.system.worker_pool._GRACE", LIMIT)
    before = descendants()
    reported, asleep = os.pipe()
    runner = make(Sleeper(), 2, context="fork")
    next(iter(runner))
    assert os.read(reported, 1) + os.read(reported, 1) == b".."
    os.close(reported)
    os.close(asleep)
    interrupt_next(ProcessWorker, "join")
    with pytest.raises(Interrupted):
        runner.close()
    assert not descendants() - before


def refuse_threads():
    """As where no thread can be started any more."""

    def start(self):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start


def test_a_worker_that_can_start_no_thread_tells_so():
    with (
        MultiProcessMapData(
            DataFromList([[k] for k in range(20)], shuffle=False),
            1,
            lambda dp: dp,
            strict=True,
            worker_init=refuse_threads,
            timeout=LIMIT,
        ) as df,
        pytest.raises(RuntimeError, match="can't start new thread"),
    ):
        list(df)
