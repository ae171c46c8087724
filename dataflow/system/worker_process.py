"""Worker process: one child process, from its start to its end.

A worker is created first and started later, so that its owner knows it before it runs. In the child, the process takes
three steps before its body runs: it ignores Ctrl-C, it ties its lifetime to that of its parent, and it lets the C
library keep freed memory.

Guarantee: a worker process ends when its parent is gone, whatever it is doing. The parent holds the write end of a pipe
and never writes. The worker asks the kernel for SIGKILL when its read end becomes readable, that is, at end-of-file.
This works while a C extension holds the interpreter's lock, and under fork, forkserver and spawn alike.
PR_SET_PDEATHSIG does not work: it follows the *thread* that forked, and misses forkserver. Nor does getppid: under
forkserver the parent is the server.

Freed memory: an array of some megabytes that is made and dropped for every datapoint, such as a decoder's, would be
given back to the system and mapped again each time, page by page, which takes longer than filling it. A worker keeps
freed memory for reuse, and so does a process that receives from others over TCP. Two benchmarks show the effect:
without it, `jpeg` takes 1.45 times the CPU time for a photograph, and `image` by `tcp/ours` runs at half its speed.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import operator
import os
import platform
import random
import select
import signal
import stat
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext, get_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np

from dataflow.errors import NotPicklable
from dataflow.system.descriptors import Descriptor, passing_to_child, pipe, shared_memory_file
from dataflow.system.interrupts import signals_blocked, signals_deferred
from dataflow.system.pickling import dumps, imported_main, inherited_by_fork, loads, main_importable
from dataflow.system.worker_errors import NO_GUARD
from dataflow.system.worker_info import WorkerInfo, entering
from dataflow.system.worker_pool import Worker

__all__ = [
    "Payload",
    "ProcessWorker",
    "context_of",
    "end_if_main_is_imported",
    "hold_on",
    "keep_freed_memory",
    "seed_globals",
]


# -- Payload -----------------------------------------------------------------------------------------------------------


_MAX_INLINE: Final = 16 << 10  # bytes; a pipe holds more than that, even if the worker does not read


class Payload:
    """An object that is carried into a worker process, by any start method.

    Under fork it is inherited as it is. Under spawn and forkserver it is pickled while the process is being started,
    the only time at which queues and locks of `multiprocessing` can be pickled; lambdas and closures travel by value.
    In the worker it is unpickled by `load`, so that an error there can be reported.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._pid = os.getpid()
        self._file: Descriptor | None = None  # holds the pickle while a process is started

    def load(self) -> Any:
        """Return the object, in the worker."""
        if os.getpid() != self._pid:
            inherited_by_fork()
        return self._value

    def close_in_parent(self) -> None:
        """Release what the transfer needed: the worker was started, or could not be."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def complaint(self, value: Any, error: Exception) -> str:
        """The error text: what cannot be sent, and what to do."""
        return (
            f"{value!r:.200} cannot be sent to a worker process: {error}. Make it inside the function that runs there, "
            'or start workers by fork (context="fork")'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        is_started = get_spawning_popen() is not None
        try:
            data = dumps(self._value, main=imported_main() if is_started else None)
        except Exception as error:
            raise NotPicklable(self.complaint(self._value, error)) from error
        if not is_started or len(data) <= _MAX_INLINE:
            return _Pickled, (data,)
        # `multiprocessing` writes to a pipe which the worker reads after it has imported the main program. If that
        # import fails, writing more than the pipe holds would raise BrokenPipeError here; the worker's exit code has
        # the cause.
        # A start that falls back to spawn pickles it a second time.
        self.close_in_parent()
        self._file = shared_memory_file("dataflow-payload", len(data))
        with open(self._file.fd, "wb", closefd=False) as file:
            file.write(data)
        return _Stored, (self._file,)


class _Pickled:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def load(self) -> Any:
        return loads(self._data)


class _Stored:
    def __init__(self, file: Descriptor) -> None:
        self._file = file

    def load(self) -> Any:
        with open(self._file.fd, "rb", closefd=False) as file:
            file.seek(0)  # the descriptor shares its offset with that of the parent, which has written
            data = file.read()
        self._file.close()
        return loads(data)


# -- Lifeline: end with the parent -------------------------------------------------------------------------------------


def hold_on(lifeline: Descriptor) -> None:
    """From now on this process is killed when the other end of `lifeline` is closed."""
    import fcntl  # not available on Windows, where the package can still be imported

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline.fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline.fd, fcntl.F_SETSIG, signal.SIGKILL)
        # O_ASYNC comes last: from then on the kernel sends a signal, and by then it must know which one, and to whom.
        flags = fcntl.fcntl(lifeline.fd, fcntl.F_GETFL)
        fcntl.fcntl(lifeline.fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        # The parent may have gone before the kernel was asked: whichever of the two comes second detects it.
        ended = select.poll()  # not select, which cannot handle descriptors above 1023
        ended.register(lifeline.fd, select.POLLIN)
        if ended.poll(0):
            os.kill(os.getpid(), signal.SIGKILL)
    else:  # systems other than Linux: a thread, which needs the interpreter's lock
        threading.Thread(target=_watch, args=(lifeline,), name="dataflow-lifeline", daemon=True).start()


def _watch(lifeline: Descriptor) -> None:
    os.read(lifeline.fd, 1)
    os._exit(1)


# -- Freed memory ------------------------------------------------------------------------------------------------------


_M_TRIM_THRESHOLD: Final = -1  # as in glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20  # at the end of the heap
# Setting either of the two ends glibc's own adjustment of both, which follows what was freed.
_MAPPED_BYTES: Final = 32 << 20  # larger blocks are mapped separately, and given back, as usual


def keep_freed_memory() -> None:
    """Let this process keep up to 64 MiB of freed memory. The user's malloc settings take precedence."""
    is_set = "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ)
    if is_set or platform.libc_ver()[0] != "glibc":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


# -- The worker process ------------------------------------------------------------------------------------------------


_OUR_THREADS: Final = "dataflow-"
_KILL_TIMEOUT: Final = 1.5
_CLEARING_TIMEOUT: Final = 20.0
_UNKILLABLE: Final = "waiting for a device"
_KILL_WAITS: Final = 5  # of that length together: a virtual machine that was paused finds one of them over at once


class ProcessWorker(Worker):
    """A worker that is a process. It is created first and started later, so its owner knows it before it runs.

    Args:
        context: A multiprocessing context: the start method.
        info: Index of this worker and number of workers.
        seed: Words that seed `random` and `numpy.random` in the process.
        body: What runs in it: picklable unless the start method is fork.
        descriptors: Descriptors of this process that the body needs.
        after_start: Called when it runs, or could not be started: closes what only the worker must hold.
    """

    def __init__(
        self,
        context: BaseContext,
        info: WorkerInfo,
        seed: Sequence[int],
        body: Callable[[], None],
        descriptors: Sequence[Descriptor],
        after_start: Callable[[], None] | None = None,
    ) -> None:
        self.info = info
        self._context = context
        self._seed = tuple(seed)
        self._body: Callable[[], None] | None = body
        self._descriptors = descriptors
        self._after_start = after_start
        self._lifeline: Descriptor | None = None
        self._process: BaseProcess | None = None  # None until it runs

    def start(self) -> None:
        method = self._context.get_start_method()
        if method == "forkserver":
            _check_fork_server()
            _preload()
        if method != "fork":
            resource_tracker.ensure_running()  # or the first start does it, and lets interrupts through meanwhile
        with signals_deferred():
            held, self._lifeline = pipe()
            try:
                if method == "forkserver":
                    _ensure_fork_server()  # not below, or Ctrl-C never reaches processes that the user starts
                self._process = self._started(held, self._context)
            except BaseException as error:
                # The worker may run already, such as one that the fork server has started: this ends it.
                self._lifeline.close()
                _close_half_started(error)
                raise
            finally:
                held.close()
                self._body = None  # it may hold much, and the worker has it
                if self._after_start is not None:
                    self._after_start()
            self.pid, self.sentinel = self._process.pid, self._process.sentinel

    def _started(self, held: Descriptor, context: BaseContext) -> BaseProcess:
        process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_main,
            args=(held, self.info, self._seed, self._body),
            name=_Name(f"dataflow-worker-{self.info.index}"),
        )
        # Daemonic processes may have no children, but runners nest. The lifeline does what the flag would do.
        process.daemon = False
        with (
            _starting[0],
            passing_to_child(held, *self._descriptors),
            signals_blocked(signal.SIGINT),  # the child ignores it before unblocking; see also `_Name`
            _fork_warning_silenced(),
            _children_allowed(),
            main_importable(),
        ):
            try:
                process.start()
            except (ConnectionError, EOFError) as error:
                if context.get_start_method() != "forkserver":
                    raise
                # The fork server has ended. From Python 3.14 on it imports the main program, which may fail, or start
                # workers itself because it has no guard. A spawned worker ends in the same way, and its exit code and
                # what it prints tell the consumer why.
                _close_half_started(error)
                return self._started(held, multiprocessing.get_context("spawn"))
        _started.add(process)
        return process

    def has_ended(self) -> bool:
        # The last: if the program ignores SIGCHLD, the kernel itself reaps the worker, and there is no exit code.
        if self._process is None or self.exitcode() is not None or not _exists(self.pid):
            return True
        # Its parent, the fork server, may not have collected and reported it yet: a pass must not end meanwhile.
        return self._context.get_start_method() == "forkserver" and _is_zombie(self.pid)

    def exitcode(self) -> int | None:
        """Negative for a signal; None while it runs, or if it was reaped elsewhere (`SIGCHLD` ignored)."""
        return None if self._process is None else self._process.exitcode

    def state(self) -> str:
        if self._process is None:
            return "not started"
        if self.has_ended():
            return f"pid {self.pid}, ended with exit code {self.exitcode()}"
        return f"pid {self.pid}, {_scheduler_state(self.pid)}"

    def task(self) -> int | None:
        return self.pid

    def join(self, timeout: float) -> bool:
        if self._process is not None:
            self._process.join(timeout)
        return self.has_ended()

    def kill(self) -> bool:
        """End it, and its own workers with it. False if even the kernel cannot end it."""
        self.begin_kill()
        if any(self.join(_KILL_TIMEOUT / _KILL_WAITS) for _ in range(_KILL_WAITS)):
            return True
        # On a busy machine it takes a while until it has its turn to end, and until the kernel has cleared up after it.
        return _scheduler_state(self.pid) != _UNKILLABLE and self.join(_CLEARING_TIMEOUT)

    def begin_kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def leave_behind(self) -> None:
        """Let `multiprocessing` not wait for it at exit, whether it has ended or not."""
        if self._process is not None:
            self._process.join = _join_nothing  # type: ignore[method-assign]

    def release(self) -> None:
        """Release its system resources. This ends a process that is still alive, which needs a second call."""
        if self.has_ended():
            self.join(_KILL_TIMEOUT)  # until the fork server has reported it
        exitcode = self.exitcode()  # read first: closing the lifeline kills at once
        if self._lifeline is not None:
            self._lifeline.close()
        if self._process is not None and exitcode is not None:
            # At exit, `multiprocessing` joins the processes that it has listed. Another thread may release one of them
            # meanwhile, and a closed process raises there.
            self.leave_behind()
            self._process.close()


class _Name(str):
    """The name of a worker; a process that unpickles it blocks SIGINT.

    A child of the fork server does not inherit what this thread blocks, and Ctrl-C would end it while it imports the
    main program. Its name is the first object that it unpickles, before that import.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling the tuple unpickles its second element, which is a call; the item that is taken is the name.
        return operator.getitem, ((str(self), _Blocking()), 0)


class _Blocking:
    def __reduce__(self) -> tuple[Any, ...]:
        return signal.pthread_sigmask, (int(signal.SIG_BLOCK), (int(signal.SIGINT),))


def _preload() -> None:
    """Let the fork server import what workers need, once, unless it runs already or the program has chosen modules.

    Workers import the main program, and so what it has imported of this library. Without it, `second runner` of
    benchmarks.starts takes three times as long, and ten times on Python 3.11, where the server does not import the main
    program.
    """
    from multiprocessing import forkserver  # not available on Windows

    server = _fork_server()
    if server.get("_preload_modules") == ["__main__"] and server.get("_forkserver_pid", 0) is None:
        imported = [name for name in sys.modules if name.startswith("dataflow.")]
        forkserver.set_forkserver_preload(["__main__", "cloudpickle", "dataflow.system.preload", *imported])


def _ensure_fork_server() -> None:
    from multiprocessing import forkserver

    forkserver.ensure_running()


def context_of(context: BaseContext | str | None) -> BaseContext:
    """The multiprocessing context that the user's argument stands for."""
    return context if isinstance(context, BaseContext) else multiprocessing.get_context(context)


def end_if_main_is_imported() -> None:
    """End this process if it is a worker that is still importing the main program. Called before workers are started.

    It is called before anything is made for the new workers. Such a main program has no guard. `multiprocessing` would
    raise an exception, which the worker prints, but whose cause the consumer does not learn.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(NO_GUARD)


def _close_half_started(error: BaseException) -> None:
    """Close what `multiprocessing` had opened for a process that it could not start: its own code forgets some of it.

    Nothing but the local variables of its frames names these descriptors, and under forkserver the process that runs
    already. Two listings of open descriptors, before and after, would hold those of other threads, too. Without this
    function, `test_what_the_fork_server_has_started_in_vain_ends` and
    `test_a_call_that_the_system_refuses_leaves_nothing` fail.

    Args:
        error: The exception of `multiprocessing`. The frames in its traceback know what was open.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_name
        if not str(frame.f_globals.get("__name__")).startswith("multiprocessing."):
            continue
        local = frame.f_locals
        if name == "connect_to_new_process" and "child_r" not in local:  # otherwise already closed
            _close_pipes(local, "parent_r", "child_w")
        elif name == "ensure_running" and "alive_w" in local and local.get("pid"):
            # The fork server itself: it is a child of ours, unless it was not started again after the last had ended.
            with suppress(OSError):
                os.waitid(os.P_PID, local["pid"], os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if _fork_server()["_forkserver_pid"] is None:
                    _close_pipes(local, "alive_w")
                    _end(local["pid"])
        elif name == "_launch":
            popen = local.get("self")
            finalizer = getattr(popen, "finalizer", None)
            if finalizer is not None:
                finalizer()
                if "f" not in local:  # of the fork server: otherwise a file that closes it
                    _close_pipes(local, "w")
            elif "w" in local:  # of the fork server
                _close_pipes({"w": local["w"], "sentinel": getattr(popen, "sentinel", -1)}, "w", "sentinel")
            else:
                _close_pipes(local, "parent_r", "child_w", "child_r", "parent_w")
            pid = getattr(popen, "pid", None)
            if pid is not None:  # it runs, and nothing else would reap it
                _end(pid)


def _end(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _close_pipes(local: Mapping[str, Any], *names: str) -> None:
    for name in names:
        fd = local.get(name)
        if isinstance(fd, int):
            with suppress(OSError):
                # A number that is closed already may belong to another file by now.
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.close(fd)


_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()

# One thread at a time: what is lifted or replaced while a process starts belongs to the whole program. Replaced in a
# forked child, where the thread that holds it does not exist, or never leaves it.
_starting: Final = [threading.RLock()]


def _disown() -> None:
    """In a child made by `os.fork`: do not join the parent's children, which `multiprocessing` does at exit."""
    _starting[0] = threading.RLock()
    for process in list(_started):
        process.join = _join_nothing  # type: ignore[method-assign]


def _join_nothing(timeout: float | None = None) -> None:
    pass


def _fork_server() -> dict[str, Any]:
    """What `multiprocessing` knows of the fork server; empty if it was never used."""
    module: Any = sys.modules.get("multiprocessing.forkserver")
    ensure_running = getattr(module, "ensure_running", None)  # another thread may be about to import the module
    return {} if ensure_running is None else vars(ensure_running.__self__)


def _leave_fork_server() -> None:
    """In a child made by `os.fork`: forget the parent's fork server, so that this process starts its own.

    `multiprocessing` would wait for the server as for a child of this process (`ChildProcessError`), and use its lock,
    which another thread of the parent may have held, and its directory, which the parent removes.
    """
    server = _fork_server()
    if not server:
        return
    if server["_forkserver_alive_fd"] is not None:
        with suppress(OSError):
            os.close(server["_forkserver_alive_fd"])  # the server ends when nobody holds it
    kept = {name: server[name] for name in ("_preload_modules", "_inherited_fds")}
    server.update(vars(sys.modules["multiprocessing.forkserver"].ForkServer()) | kept)
    vars(multiprocessing.current_process())["_config"].pop("tempdir", None)


def _check_fork_server() -> None:
    """Forget a fork server of which this process is not the parent: it was forked before this module was imported."""
    pid = _fork_server().get("_forkserver_pid")
    if pid is not None:
        try:
            # WNOWAIT: if it has ended, `multiprocessing` still has to find that out.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            _leave_fork_server()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)
    os.register_at_fork(after_in_child=_leave_fork_server)


def _main(lifeline: Descriptor, info: WorkerInfo, seed: tuple[int, ...], body: Callable[[], None]) -> None:
    signal.set_wakeup_fd(-1)  # under fork, the main program's own signal setup is still in place
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the consumer handles Ctrl-C
    # Only now: one that is pending was dropped as it began to be ignored.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    hold_on(lifeline)
    # Objects inherited under fork are not garbage: a collection that visits them would write to their pages, and so
    # copy them.
    gc.freeze()
    keep_freed_memory()
    seed_globals(seed)
    with entering(info):
        body()


def seed_globals(words: Sequence[int]) -> None:
    """Seed `random` and `numpy.random`, for user code that draws from them."""
    random.seed(repr(tuple(words)))
    np.random.seed(np.random.SeedSequence(words).generate_state(8))


@contextmanager
def _children_allowed() -> Iterator[None]:
    """Lift the ban on children of a daemonic process (such as another library's data loader): ours end with it."""
    here = multiprocessing.current_process()
    if not here.daemon:
        yield
        return
    here.daemon = False
    try:
        yield
    finally:
        here.daemon = True


@contextmanager
def _fork_warning_silenced() -> Iterator[None]:
    """Silence Python 3.12's warning about a fork with threads.

    Our threads (ZeroMQ's, and those that are named so) hold no lock that a child takes. If the user has
    threads of their own, the warning is shown.
    """
    others = [thread for thread in threading.enumerate() if not thread.name.startswith(_OUR_THREADS)]
    if sys.version_info < (3, 12) or len(others) > 1:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks", category=DeprecationWarning)
        yield


def _exists(pid: int | None) -> bool:
    """Whether there is such a process, including one that has ended and was not yet reaped by its parent."""
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it runs as another user
    return True


def _is_zombie(pid: Any) -> bool:
    """Whether all threads of this process have ended, and its parent has not collected it."""
    fields = _stat_fields(pid)
    return fields[:1] == ["Z"] and int(fields[17]) <= 1  # the number of threads: the first may end before the others


def _scheduler_state(pid: Any) -> str:
    names = {"R": "running", "S": "waiting", "D": _UNKILLABLE, "T": "stopped by a signal", "Z": "ended"}
    return names.get("".join(_stat_fields(pid)[:1]), "alive")


def _stat_fields(pid: Any) -> list[str]:
    """What the kernel says of a process, from its state on; empty if it is gone, and on systems other than Linux."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            # The last bracket: the name of the program, before it, may hold brackets and spaces.
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return []
