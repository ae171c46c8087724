"""Every fault in the processes of every class that has a pool: a clear error, no half-written data, a fresh start."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import traceback
from dataclasses import dataclass

import psutil
import pytest

from dataflow import BackgroundProc, DataFlowTerminated, SharedMem, SharedQ, WorkerDied
from dataflow import TimeoutError as DataFlowTimeout
from dataflow.compat.command_pool import CommandPool, _CommandSocket
from tests.compat.targets import GOOD, SIZE, Counting, DiesWriting, drawn, fill, fill_half_and_die, strike
from tests.support.fakes import METHODS
from tests.support.faults import FAULTS, Fault, deadline, reported
from tests.support.waits import LIMIT, wait_until

# What is about flows, or about what cannot be pickled: arrays only are given out here.
ELSEWHERE = {"lock-in-datapoint", "one-way-datapoint", "blocked"}
REPORTED = [fault for fault in FAULTS if fault.in_processes and not fault.in_reset and fault.name not in ELSEWHERE]
OTHERWISE = {("exception", "forkserver"), ("SIGKILL", "forkserver")}  # tried quickly in another way, too
SELDOM = {("SIGKILL", "spawn")}  # tried so in full
QUICK = [pytest.param(m, marks=() if m == "fork" else pytest.mark.full) for m in METHODS]


@dataclass(frozen=True)
class Case:
    fault: Fault
    method: str
    ordered: bool
    copy: bool

    def __str__(self) -> str:
        command, kind = "ordered" if self.ordered else "first", "copies" if self.copy else "views"
        return f"{self.fault}-{self.method}-{command}-{kind}"

    @property
    def is_quick(self) -> bool:
        """Every fault once; the typical ones also in the other ways."""
        plain = self.ordered and self.copy
        other = self.ordered is self.copy is False and (self.fault.name, self.method) in OTHERWISE
        return (plain and self.method == "fork") or other


# Every fault with each start method and in each way; not every product of the three.
CASES = [
    case
    for k, fault in enumerate(REPORTED)
    for way, (ordered, copy) in enumerate(itertools.product((True, False), repeat=2))
    for method in METHODS
    if (case := Case(fault, method, ordered, copy)).is_quick
    or method == METHODS[(k + way) % 3]
    or (way == 3 and (fault.name, method) in SELDOM)
]


def marked(case):
    return pytest.param(case, id=str(case), marks=() if case.is_quick else pytest.mark.full)


def check_told(error, fault):
    """All that the error must say, in the words of these classes."""
    text = reported(error)
    for part in fault.texts:
        assert part.replace("num_proc", "n_proc") in text, text
    for name, value in fault.attributes:
        assert getattr(error, name) == value
    if fault.cause:
        assert fault.cause in "".join(traceback.format_exception(error))


def taken(bg, num, n, counts=None):
    """Take results, each of which must be whole and the next of its worker; how many came of each."""
    counts = [0] * n if counts is None else counts
    for _ in range(num):
        worker, count = bg.get(timeout=LIMIT)
        assert (worker == worker[0]).all() and (count == counts[worker[0]]).all()
        counts[worker[0]] += 1
    return counts


def until_it_fails(bg, n):
    """The error, and how many results came of each worker before."""
    counts = [0] * n
    try:
        while True:
            taken(bg, 1, n, counts)
    except AssertionError:
        raise
    except Exception as error:
        return error, counts


def wait_stopped():
    """Wait until a signal has stopped a worker: what is late from now on is so because of that."""

    def somebody_is():
        return psutil.STATUS_STOPPED in [
            status_of(process.pid) for process in psutil.Process().children(recursive=True)
        ]

    wait_until(somebody_is, LIMIT, "nobody is stopped")


def status_of(pid):
    """As psutil tells it; None if there is no such process."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None


def until_it_is_late(bg, n):
    """The error when the last worker is stopped, all others have had their turn, and it is waited for."""
    counts = taken(bg, n * GOOD + n - 1, n)
    wait_stopped()
    with pytest.raises(DataFlowTimeout) as caught:
        bg.get(timeout=0.2)
    return caught.value, counts


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_a_fault_in_a_background_process_is_told_and_reset_starts_afresh(case):
    fault, n = case.fault, 2
    armed = SharedMem.puthandle("i8", 1, [1])
    target = Counting(fault.name, armed, victim=1)
    bg = BackgroundProc(
        target,
        ["i8", "i8"],
        [(SIZE,)] * 2,
        n_proc=n,
        ordered=case.ordered,
        copy=case.copy,
        context=case.method,
    )
    with bg, deadline(3 * LIMIT):
        is_silent = fault.expected is DataFlowTimeout
        if is_silent and not case.ordered:
            counts = taken(bg, 50, n)  # nobody waits for the one that is stopped
            wait_until(lambda: taken(bg, 1, n, counts) and counts[1] == GOOD, LIMIT, "it was not given out")
        else:
            error, counts = until_it_is_late(bg, n) if is_silent else until_it_fails(bg, n)
            assert type(error) is fault.expected
            assert counts[1] == GOOD, "what was made before the fault is given out first"
            check_told(error, fault)
        if not is_silent:
            assert "worker 1 of 2 of BackgroundProc" in reported(error)
            with pytest.raises(DataFlowTerminated, match=r"failed before.*reset\(\)"):
                bg.get(timeout=LIMIT)
        SharedMem.shm2ndarray(armed)[0] = 0
        bg.reset()
        taken(bg, 6 * n, n)


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "views"])
@pytest.mark.parametrize("method", QUICK)
def test_what_a_killed_process_was_writing_is_never_seen(method, copy):
    armed = SharedMem.puthandle("i8", 1, [1])
    target = DiesWriting(armed=armed)
    with deadline(3 * LIMIT), BackgroundProc(target, ["i8", "i8"], [(SIZE,)] * 2, copy=copy, context=method) as bg:
        taken(bg, GOOD, 1)
        with pytest.raises(WorkerDied, match=r"SIGKILL after 3 results.*Lower n_proc") as caught:
            bg.get(timeout=LIMIT)
        assert caught.value.exitcode == -signal.SIGKILL and caught.value.worker == 0
        SharedMem.shm2ndarray(armed)[0] = 0
        bg.reset()
        taken(bg, 2 * GOOD, 1)


def started_since(before):
    return [child for child in psutil.Process().children(recursive=True) if child not in before]


def kill_workers(before):
    """Kill the workers that were started since; nobody reaps them but their owner, or the fork server."""
    for worker in started_since(before):
        worker.kill()


def test_a_process_that_is_killed_while_it_waits_has_its_result_given_out_first():
    before = psutil.Process().children(recursive=True)
    with deadline(3 * LIMIT), BackgroundProc(Counting(), ["i8", "i8"], [(SIZE,)] * 2, n_proc=2) as bg:
        taken(bg, 2, 2)
        workers = started_since(before)
        wait_until(lambda: all(worker.status() == "sleeping" for worker in workers), LIMIT, "they never wait")
        kill_workers(before)
        assert [bg.get(timeout=LIMIT)[1][0] for _ in range(2)] == [1, 1]
        with pytest.raises(WorkerDied, match=r"worker [01] of 2.*SIGKILL"):
            bg.get()


def test_a_process_that_cannot_start_says_what_may_be_wrong():
    class Unloadable:
        def __call__(self):
            raise AssertionError("never called")

        def __reduce__(self):
            return os._exit, (3,)

    with (
        deadline(3 * LIMIT),
        BackgroundProc(Unloadable(), ["f4"], [3], context="spawn") as bg,
        pytest.raises(WorkerDied, match="exit code 3 before its first result"),
    ):
        bg.get(timeout=LIMIT)


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        pytest.param(
            fault,
            method,
            id=f"{fault}-{method}",
            marks=() if method == "fork" or (fault.name, method) in OTHERWISE else pytest.mark.full,
        )
        for fault in REPORTED
        for method in METHODS
    ],
)
def test_a_fault_in_a_job_is_that_jobs_alone(fault, method):
    with deadline(3 * LIMIT), SharedQ(context=method) as queue:
        for number in (1, 2):
            queue.startproc(["i8"], [SIZE], fill, (number,))
            assert (queue.get(timeout=LIMIT)[0] == number).all()
        queue.startproc(["i8"], [SIZE], strike, (fault.name,))  # in a process that was used before
        queue.startproc(["i8"], [SIZE], fill, (3,))
        is_silent = fault.expected is DataFlowTimeout
        if is_silent:
            wait_stopped()
        with pytest.raises(fault.expected) as caught:
            queue.get(timeout=0.2 if is_silent else LIMIT)
        check_told(caught.value, fault)
        if is_silent:
            queue.reset()
            queue.startproc(["i8"], [SIZE], fill, (3,))
        else:
            assert "of SharedQ" in reported(caught.value)
        assert (queue.get(timeout=LIMIT)[0] == 3).all()
        queue.startproc(["i8"], [SIZE], fill, (4,))
        assert (queue.get(timeout=LIMIT)[0] == 4).all()


@pytest.mark.parametrize("method", QUICK)
def test_what_a_killed_job_was_writing_is_never_seen(method):
    with deadline(3 * LIMIT), SharedQ(context=method) as queue:
        queue.startproc(["i8"], [SIZE], fill_half_and_die)
        with pytest.raises(WorkerDied, match="SIGKILL before its first result"):
            queue.get(timeout=LIMIT)
        queue.startproc(["i8"], [SIZE], fill, (1,))
        assert (queue.get(timeout=LIMIT)[0] == 1).all()


def test_a_process_that_is_killed_while_it_has_nothing_to_do_is_not_missed():
    before = psutil.Process().children(recursive=True)
    with deadline(3 * LIMIT), SharedQ() as queue:
        queue.startproc(["i8"], [SIZE], fill, (1,))
        queue.get(timeout=LIMIT)
        workers = started_since(before)
        kill_workers(before)
        dead = {None, "zombie"}
        wait_until(lambda: dead.issuperset(status_of(worker.pid) for worker in workers), LIMIT, "it does not die")
        queue.startproc(["i8"], [SIZE], fill, (2,))
        assert (queue.get(timeout=LIMIT)[0] == 2).all()


def test_a_default_time_limit_of_sockets_does_not_limit_the_wait_for_a_command(monkeypatch):
    receive, limits = socket.recv_fds, []

    def recv_fds(end, *sizes):
        limits.append(end.gettimeout())
        return receive(end, *sizes)

    monkeypatch.setattr(socket, "recv_fds", recv_fds)
    socket.setdefaulttimeout(0.5)
    try:
        commands = _CommandSocket()
        commands.send(b"command", None)
        assert commands.receive() == (b"command", None)
    finally:
        socket.setdefaulttimeout(None)
    assert limits == [None]
    commands.close()


PROGRAM = """
    import os, signal, sys
    import numpy as np
    from dataflow import BackgroundProc, SharedMem, SharedQ

    def pid():
        return np.array([os.getpid()])

    def fill(mp_arrays, shapes, blocks):
        SharedMem.shm2ndarray(mp_arrays[0], shapes[0])[:] = os.getpid()
        if blocks:
            signal.pause()

    if __name__ == "__main__":
        bg = BackgroundProc(pid, ["i8"], [1], n_proc=2, context={method!r})
        queue = SharedQ(context={method!r})
        queue.startproc(["i8"], [1], fill, (False,))
        queue.startproc(["i8"], [1], fill, (True,))
        print(*bg.get()[0], *bg.get()[0], *queue.get()[0], flush=True)
        {ending}
"""


def run_program(folder, method, ending):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(PROGRAM).format(method=method, ending=ending))
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=2 * LIMIT, check=False)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), signal.SIGKILL)", -9)], ids=["exit", "SIGKILL"]
)
def test_no_process_outlives_the_main_program(tmp_path, method, ending, code):
    done = run_program(tmp_path, method, ending)
    assert done.returncode == code and done.stderr == ""
    pids = [int(word) for word in done.stdout.split()]
    assert len(set(pids)) == 3
    gone = {None, psutil.STATUS_ZOMBIE}  # the process that adopted them may be slow to collect them
    wait_until(lambda: gone.issuperset(map(status_of, pids)), LIMIT, "a worker outlives its parent")


def test_shutdown_does_not_wait_for_what_nobody_wants():
    with deadline(LIMIT):
        bg = BackgroundProc(signal.pause, ["f4"], [3], n_proc=2)
        bg.shutdown()
        with BackgroundProc(drawn) as bg:
            bg.get()


def test_who_waits_uses_no_cpu(monkeypatch):
    """It counts how often it wakes up: seconds of CPU depend on the machine, and on what else it does."""
    waits = []
    wait = CommandPool.wait
    monkeypatch.setattr(CommandPool, "wait", lambda pool, timeout: (waits.append(timeout), wait(pool, timeout)))

    def block():
        signal.pause()  # without end

    with BackgroundProc(block, ["i8"], [(3,)], n_proc=2) as bg:
        with pytest.raises(DataFlowTimeout):
            bg.get(timeout=1.0)
        assert len(waits) < 30, "get is busy while it waits"
    others = psutil.Process().children(recursive=True)
    with BackgroundProc(drawn, n_proc=2) as bg:
        for _ in range(2):
            bg.get(timeout=LIMIT)
        workers = [child for child in psutil.Process().children(recursive=True) if child not in others]
        wait_until(lambda: all(worker.status() == "sleeping" for worker in workers), LIMIT, "they never wait")
        before = [sum(worker.num_ctx_switches()) for worker in workers]
        with pytest.raises(DataFlowTimeout):  # half a second goes by
            BackgroundProc(block, ["i8"], [(3,)]).get(timeout=0.5)
        after = [sum(worker.num_ctx_switches()) for worker in workers]
        assert sum(after) - sum(before) < 5, "a worker is busy while it waits"
