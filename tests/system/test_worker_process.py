"""A worker that is a process: started by every method, deaf to Ctrl-C, ended with everything it holds."""

import ctypes
import gc
import multiprocessing
import os
import pickle
import platform
import random
import resource
import signal
import subprocess
import sys
import threading
import types
import warnings
from functools import partial
from multiprocessing import forkserver, popen_forkserver, popen_spawn_posix

import numpy as np
import psutil
import pytest

from dataflow.errors import NotPicklable
from dataflow.system import worker_process
from dataflow.system.descriptors import passing_to_child, pipe
from dataflow.system.worker_info import worker_info, worker_info_of
from dataflow.system.worker_process import Payload, ProcessWorker, hold_on, keep_freed_memory
from tests.support.fakes import METHODS, each_method
from tests.support.programs import printed
from tests.support.waits import LIMIT, wait_until


def tell(end, what):
    os.write(end.fd, repr(what()).encode())


def start(method, body, *descriptors, seed=(1, 2), index=0, count=1):
    context = multiprocessing.get_context(method)
    worker = ProcessWorker(context, worker_info_of(index, count), seed, body, descriptors)
    worker.start()
    return worker


def reported(method, what, **options):
    read, write = pipe()
    worker = start(method, partial(tell, write, what), write, **options)
    write.close()
    answer = os.read(read.fd, 10_000).decode()
    read.close()
    assert worker.join(LIMIT)
    assert worker.exitcode() == 0
    worker.release()
    return answer


def info():
    return worker_info().path


def signals():
    return [signal.getsignal(signal.SIGINT) == signal.SIG_IGN, signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()]


def drawn():
    return random.random(), float(np.random.rand())


def idle():
    threading.Event().wait(2 * LIMIT)


def leave():
    sys.exit(7)


def page_faults():
    """Of making and dropping an array of 4 MiB fifty times, when that was done before."""
    for round in range(100):
        if round == 50:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(4 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("method", METHODS)
def test_the_body_runs_in_another_process_at_its_place(method):
    assert reported(method, info, index=1, count=3) == "((1, 3),)"
    assert reported(method, os.getpid) != str(os.getpid())


def test_what_a_fork_inherits_is_never_looked_at_for_garbage():
    alive, frozen = len(gc.get_objects()), gc.get_freeze_count()
    assert int(reported("fork", gc.get_freeze_count)) > frozen + alive / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways")
@each_method
def test_memory_that_is_needed_again_and_again_stays_mapped(method):
    assert int(reported(method, page_faults)) < 1000  # of 51,200 pages


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways")
def test_what_the_user_has_set_for_malloc_holds(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")
    asked = []
    monkeypatch.setattr(ctypes, "CDLL", asked.append)
    keep_freed_memory()
    assert not asked


@each_method
def test_a_worker_ignores_ctrl_c_and_nothing_stays_blocked(method):
    assert reported(method, signals) == "[True, True]"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@each_method
def test_global_generators_follow_from_the_seed(method):
    first = reported(method, drawn, seed=(5, 0))
    assert first == reported("fork", drawn, seed=(5, 0))
    assert first != reported("fork", drawn, seed=(5, 1))


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_is_killed_whatever_it_does(method):
    worker = start(method, idle)
    assert not worker.has_ended() and not worker.join(0)
    assert f"pid {worker.pid}, " in worker.state()
    assert worker.kill()
    assert worker.exitcode() == -signal.SIGKILL
    worker.release()


def test_a_worker_that_is_killed_is_waited_for_again_if_the_clock_has_jumped(monkeypatch):
    worker = start("fork", idle)
    waits, wait = [], worker._process.join

    def join(timeout):
        waits.append(timeout)
        if len(waits) > 1:  # the first is over at once, and the kernel has done nothing
            wait(timeout)

    with monkeypatch.context() as patched:
        patched.setattr(worker._process, "join", join)
        patched.setattr(worker, "exitcode", lambda: None if len(waits) < 2 else -signal.SIGKILL)
        assert worker.kill()
    worker.release()


def test_a_killed_worker_that_gets_no_turn_to_end_is_waited_for(monkeypatch):
    worker = start("fork", idle)
    process, later = worker._process, threading.Timer(2.0, lambda: os.kill(worker.pid, signal.SIGKILL))
    monkeypatch.setattr(process, "kill", later.start)  # as if other programs had the processors so long
    assert worker.kill()
    later.join()
    worker.release()


def end_main_thread_only():
    threading.Thread(target=signal.pause).start()
    ctypes.CDLL(None).pthread_exit(None)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="ends a thread by a call of glibc")
def test_a_killed_worker_is_waited_for_while_the_kernel_still_ends_its_threads(monkeypatch):
    worker = start("fork", end_main_thread_only)
    wait_until(lambda: worker.state().endswith("ended"), LIMIT, worker.state)
    assert not worker.has_ended()  # one thread is left: it cannot be reaped yet
    process, later = worker._process, threading.Timer(2.0, lambda: os.kill(worker.pid, signal.SIGKILL))
    monkeypatch.setattr(process, "kill", later.start)  # as if the kernel took so long
    assert worker.kill()
    assert worker.exitcode() == -signal.SIGKILL
    later.join()
    worker.release()


@each_method
def test_a_worker_ends_when_its_lifeline_is_let_go(method):
    worker = start(method, idle)
    wait_until(lambda: "waiting" in worker.state(), LIMIT, "does not run")
    threading.Event().wait(0.2 if method != "fork" else 0.02)
    worker.release()
    wait_until(worker.has_ended, LIMIT, "survives")
    worker.release()  # what was alive then could not be given back


def forked(lifeline, body):
    with passing_to_child(lifeline):
        pid = os.fork()
    if not pid:
        try:
            body()
        finally:
            os._exit(5)
    return pid


def ended(pid):
    found, status = os.waitpid(pid, os.WNOHANG)
    return (os.waitstatus_to_exitcode(status),) if found else None


def spin():
    while True:
        sum(range(10**12))  # holds the interpreter's lock, and never looks for signals of Python


@pytest.mark.parametrize("doing", [signal.pause, spin], ids=["waits", "computes"])
def test_a_process_is_killed_when_the_other_end_is_closed(doing):
    held, lifeline = pipe()
    ready, say = pipe()

    def body():
        hold_on(held)
        os.write(say_fd, b"r")
        doing()

    say_fd = os.dup(say.fd)
    pid = forked(held, body)
    assert os.read(ready.fd, 1) == b"r"
    assert ended(pid) is None
    lifeline.close()
    assert wait_until(lambda: ended(pid), LIMIT, "survives") == (-signal.SIGKILL,)
    os.close(say_fd)
    for end in (held, ready, say):
        end.close()


def test_a_parent_that_has_gone_before_is_noticed_at_once():
    held, lifeline = pipe()
    lifeline.close()
    pid = forked(held, lambda: hold_on(held))
    assert wait_until(lambda: ended(pid), LIMIT, "survives") == (-signal.SIGKILL,)
    held.close()


def test_the_code_of_an_exit_is_known():
    worker = start("fork", leave)
    assert worker.join(LIMIT) and worker.exitcode() == 7
    assert "ended with exit code 7" in worker.state()
    worker.release()


def test_a_released_worker_may_be_joined_by_the_exit_of_multiprocessing():
    worker = start("fork", leave)
    (listed,) = [process for process in multiprocessing.active_children() if process.pid == worker.pid]
    assert worker.join(LIMIT)
    worker.release()  # as another thread may do, while the main one joins all that it has listed
    listed.join()


def test_a_worker_may_have_children_of_its_own():
    assert reported("fork", _grandchild) == "'13'"


def _grandchild():
    return reported("fork", lambda: 13)


def test_starting_and_releasing_gives_every_descriptor_back():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        worker = start("fork", os.getpid)
        worker.join(LIMIT)
        worker.release()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_started_leaves_nothing(monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Exception, match=r"pickle|lock"):
        start("spawn", threading.Lock())
    assert len(os.listdir("/proc/self/fd")) == before


def refused(*_, **__):
    raise MemoryError


@pytest.mark.parametrize(
    ("owner", "call"),
    [(popen_forkserver, "open"), (os, "dup"), (forkserver, "read_signed")],
    ids=["open", "dup", "read_signed"],
)
def test_what_the_fork_server_has_started_in_vain_ends(owner, call, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(owner, call, refused, raising=False)
        with pytest.raises(MemoryError):
            start("forkserver", idle)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_spawned_in_vain_ends(monkeypatch):
    reported("spawn", info)  # from here on the resource tracker runs
    before, children = len(os.listdir("/proc/self/fd")), psutil.Process().children()
    with monkeypatch.context() as patched:
        patched.setattr(popen_spawn_posix, "open", refused, raising=False)
        with pytest.raises(MemoryError):
            start("spawn", idle)
    assert len(os.listdir("/proc/self/fd")) == before
    assert psutil.Process().children() == children


def test_a_fork_server_that_cannot_be_asked_leaves_no_pipe(monkeypatch):
    reported("forkserver", info)
    before, pipes = len(os.listdir("/proc/self/fd")), iter([os.pipe, refused])

    def make_pipe():
        return next(pipes)()

    with monkeypatch.context() as patched:
        patched.setattr(forkserver, "os", types.SimpleNamespace(**{**vars(os), "pipe": make_pipe}))
        with pytest.raises(MemoryError):
            start("forkserver", idle)
    if sys.version_info < (3, 14):  # it was asked, and told nothing, which ends it
        os.waitid(os.P_PID, forkserver._forkserver._forkserver_pid, os.WEXITED | os.WNOWAIT)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_number_that_stands_for_something_else_by_now_is_not_closed(monkeypatch):
    other, numbers = os.open(os.devnull, os.O_RDONLY), []

    def exchange(fd, *_, **__):
        numbers.append(os.dup2(other, fd))  # closed, and opened by another thread
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(popen_forkserver, "open", exchange, raising=False)
        with pytest.raises(MemoryError):
            start("forkserver", idle)
    for number in (other, *numbers):
        os.close(number)  # raises if it is closed


class Refusing:
    def __init__(self, error):
        self.error = error

    def __call__(self):
        pass

    def __reduce__(self):
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError, EOFError])
def test_what_a_body_raises_as_it_is_sent_is_raised(error):
    with pytest.raises(error):
        start("spawn", Refusing(error))


def test_a_worker_that_was_not_started_has_ended():
    worker = ProcessWorker(multiprocessing.get_context("fork"), worker_info_of(0, 1), (1, 2), idle, ())
    assert worker.state() == "not started" and worker.has_ended() and worker.join(0) and worker.kill()
    worker.leave_behind()
    worker.release()


def test_a_worker_that_has_become_another_user_has_not_ended(monkeypatch):
    def refuse(pid, signum):
        raise PermissionError

    worker = start("fork", idle)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", refuse)
        assert not worker.has_ended()
    worker.kill()
    worker.release()


def test_a_daemonic_process_may_start_workers(monkeypatch):
    """As a data loader of another library."""
    here = multiprocessing.current_process()
    monkeypatch.setitem(here._config, "daemon", True)
    assert reported("fork", info) == "((0, 1),)"
    assert here.daemon


class Process:
    pid = sentinel = 0
    exitcode = None


class Meeting:
    """A context of two processes; the second begins to start while the first one starts, if it can."""

    def __init__(self):
        self.other = None  # the thread that starts the second one
        self.has_begun, self.is_over, self.found = threading.Event(), threading.Event(), []

    def get_start_method(self):
        return "fork"

    def Process(self, **_):
        process = Process()
        process.start = self.start
        return process

    def start(self):
        if threading.current_thread() is threading.main_thread():
            self.other.start()
            self.has_begun.wait(0.3)  # it begins now, or waits
        else:
            self.has_begun.set()
            self.is_over.wait(LIMIT)
        main = vars(sys.modules["__main__"])
        self.found.append((multiprocessing.current_process().daemon, main.get("__file__"), len(warnings.filters)))


def test_of_two_threads_that_start_workers_neither_ends_what_the_start_of_the_other_needs(monkeypatch):
    here, main = multiprocessing.current_process(), types.ModuleType("__main__")
    main.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(here._config, "daemon", True)
    monkeypatch.setattr(worker_process, "_OUR_THREADS", "")  # no thread is a stranger: the warning is silenced
    context, filters = Meeting(), len(warnings.filters)
    first, second = (ProcessWorker(context, worker_info_of(k, 2), (1, 2), idle, ()) for k in range(2))
    thread = threading.Thread(target=second.start)
    context.other = thread
    first.start()
    context.is_over.set()
    thread.join(LIMIT)
    for worker in (first, second):
        worker.release()
    silenced = filters + (sys.version_info >= (3, 12))
    assert context.found == [(False, None, silenced)] * 2
    assert (here.daemon, main.__file__, len(warnings.filters)) == (True, "<stdin>", filters)


def test_a_worker_starts_where_more_than_a_thousand_descriptors_are_open():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("only 1024 descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    fillers = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert reported("fork", info) == "((0, 1),)"
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


THREAD = """
import sys, threading
from dataflow import DataFromList, ParallelData

if __name__ == "__main__":
    go_on = threading.Event()
    threading.Thread(target=go_on.wait, name=sys.argv[1]).start()
    with ParallelData(DataFromList([[1]]), 1, context="fork") as df:
        list(df)
    go_on.set()
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="older Pythons do not warn of a fork with threads")
@pytest.mark.parametrize("name", ["dataflow-worker-0", "mine"])
def test_python_warns_of_a_fork_with_threads_where_they_are_the_users(name, tmp_path):
    file = tmp_path / "program.py"  # an interpreter without threads of other tests
    file.write_text(THREAD)
    command = [sys.executable, "-W", "always", file, name]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
    assert ("use of fork()" in done.stderr) == (name == "mine")


# -- the fork server ---------------------------------------------------------------------------------------------------


def test_a_fork_server_that_has_ended_is_no_obstacle(monkeypatch):
    """As from Python 3.14 on, where it imports the main program, and that has no guard."""

    def connect(server, fds):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(forkserver, "connect_to_new_process", lambda fds: connect(None, fds))
    assert reported("forkserver", partial(int, "5")) == "5"


PROGRAM = """
import multiprocessing, sys
from multiprocessing import forkserver
from dataflow import DataFromList, ParallelData

if __name__ == "__main__":
    if sys.argv[1:]:
        multiprocessing.set_forkserver_preload(sys.argv[1:])
    with ParallelData(DataFromList([[1]]), 1, context="forkserver") as df:
        assert list(df) == [[1]]
    print(*forkserver._forkserver._preload_modules)
"""


@pytest.mark.parametrize("chosen", [(), ("json",)], ids=["by default", "chosen"])
def test_the_fork_server_imports_what_workers_need_unless_the_program_has_chosen(chosen, tmp_path):
    found = printed(PROGRAM, tmp_path, *chosen).split()
    expected = {"dataflow.sources.in_memory", "dataflow.transport.zeromq", "dataflow.system.preload"}
    assert found == list(chosen) if chosen else found[0] == "__main__" and expected <= set(found)


INTERRUPTED = """
import multiprocessing, os, signal, sys
from multiprocessing import forkserver
from dataflow import DataFromList, ParallelData

if __name__ != "__main__":
    os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    if sys.argv[1] == "forkserver":
        multiprocessing.set_forkserver_preload(["json"])
        forkserver.ensure_running()
    with ParallelData(DataFromList([[1]]), 1, context=sys.argv[1], timeout=60) as df:
        print(list(df))
"""


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_an_interrupt_while_a_worker_imports_the_main_program_is_for_the_consumer(method, tmp_path):
    assert printed(INTERRUPTED, tmp_path, method) == "[[1]]"


MASK = """
import multiprocessing, signal
from dataflow import DataFromList, ParallelData

def show():
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []))

if __name__ == "__main__":
    with ParallelData(DataFromList([[1]]), 1, context="forkserver") as df:
        assert list(df) == [[1]]
    process = multiprocessing.get_context("forkserver").Process(target=show)
    process.start()
    process.join()
"""


def test_the_users_own_processes_can_be_interrupted(tmp_path):
    assert printed(MASK, tmp_path) == "set()"


REFUSED = """
import os, types
from multiprocessing import forkserver, resource_tracker
import psutil
from dataflow import DataFromList, ParallelData

def refuse(_):
    raise MemoryError

if __name__ == "__main__":
    resource_tracker.ensure_running()
    others, opened = psutil.Process().children(), os.listdir("/proc/self/fd")
    with ParallelData(DataFromList([[1]]), 1, context="forkserver") as df:
        forkserver.os = types.SimpleNamespace(**{**vars(os), "urandom": refuse})
        try:
            list(df)
        except MemoryError:
            forkserver.os = os
            df.close()
            print(psutil.Process().children() == others, os.listdir("/proc/self/fd") == opened)
        print(list(df))
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="older Pythons do nothing that could fail once the server runs")
def test_a_fork_server_that_could_not_be_told_its_key_ends(tmp_path):
    assert printed(REFUSED, tmp_path).splitlines() == ["True True", "[[1]]"]


def test_what_cannot_be_sent_is_named_with_the_cure():
    with pytest.raises(NotPicklable, match=r"lock.*cannot be sent to a worker process.*context=\"fork\""):
        pickle.dumps(Payload(threading.Lock()))
