"""The watch over the machine: after every test and every doctest it is as it was before.

Guarantees:
    - New processes (zombies, and orphans whose parent is gone, too), threads, open descriptors, entries of
      /dev/shm and signal handlers of the library fail the test that made them, with a message that names each.
    - What only needs a moment, or a garbage collection, to go away gets it. A clean test pays for neither.
    - What other programs on the machine do is not held against a test.
    - A test that ended by an exception is not examined: the report keeps its frames and all that they hold.

The fork server and the resource tracker of multiprocessing live as long as the interpreter, by design. A
worker of the fork server has the fork server's command line, so a pattern would excuse too much. Both are
running before anything is counted; a fork server that was started again, because the first had ended, is excused, too.
"""

import gc
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from tqdm import tqdm

from tests.support.waits import LIMIT, wait_until

GRACE = LIMIT / 4  # seconds, for what is on its way out
SHARED_MEMORY = Path("/dev/shm")
# By the fork server: what most workers of tests import.
PRELOADED = ["psutil", "cloudpickle", "dataflow.system.preload", "tests.support.faults"]
LONGEST = 60  # characters of a temporary directory: the path of a socket of multiprocessing has 107
RAISED = pytest.StashKey[bool]()

Found = dict[Hashable, str]  # identity -> how to name it in a message

# What there was after the last test, and the pids of the servants; empty unless it was clean and only fixtures of one
# test have come and gone since. It is what there is before the next: a test costs one look at the machine.
_AFTER_LAST: list[tuple[tuple[int | None, ...], Found]] = []


class _Status(NamedTuple):
    state: str
    parent: int
    group: int
    started: int  # ticks since the system was started: setting its clock changes nothing


# Processes that are not ours, and cannot become ours: (pid, inode of the folder in /proc) -> process group. Only a
# process that is ours now, or one of our group, can be ours later. A later process with this pid has another inode.
_STRANGERS: dict[tuple[int, int], int] = {}


def processes() -> Found:
    """Find our descendants, and the orphans of our process group: another parent has adopted those."""
    us, our_group, fork_server = os.getpid(), os.getpgrp(), _fork_server("_forkserver_pid")
    with os.scandir("/proc") as entries:
        present = [(int(entry.name), entry.inode()) for entry in entries if entry.name.isdigit()]
    groups = {key[0]: _STRANGERS[key] for key in present if key in _STRANGERS}
    known = {pid: status for pid, _ in present if pid not in groups and (status := _status_of(pid)) is not None}
    groups |= {pid: status.group for pid, status in known.items()}

    def is_ours(pid: int) -> bool:
        while pid in known and pid != us:
            pid = known[pid].parent
        return pid == us

    def is_orphan(status: _Status) -> bool:
        # A zombie is to be reaped, but not by us.
        return status.group == our_group and groups.get(status.parent) != our_group and status.state != "Z"

    found: Found = {}
    for pid, inode in present:
        if (status := known.get(pid)) is None or pid in (us, fork_server):
            continue
        if is_ours(pid) or is_orphan(status):
            found[pid, status.started] = f"process {pid}"
        elif status.group != our_group and status.parent in groups:  # its parent may be one that is not listed yet
            _STRANGERS[pid, inode] = status.group
    return found


def _status_of(pid: int) -> _Status | None:
    """Read the status of a process; None if it is gone."""
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)  # after each test for each of ours: a file object costs more
        try:
            fields = os.read(stat, 1024).rpartition(b")")[2].split()
        finally:
            os.close(stat)
    except OSError:
        return None
    return _Status(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[19]))


def threads() -> Found:
    """Find the threads that Python knows; one that a C library runs shows by its descriptors."""
    return {(thread.ident, id(thread)): f"thread {thread!r}" for thread in threading.enumerate()}


def descriptors() -> Found:
    """Find open descriptors and what they refer to, so that one exchanged for another is noticed."""
    found: Found = {}
    of_fork_server = str(_fork_server("_forkserver_alive_fd"))
    for entry in os.listdir("/proc/self/fd"):
        if entry == of_fork_server:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the listing's own descriptor
            continue
        found[entry, target] = f"descriptor {entry} -> {target}"
    return found


def shared_memory() -> Found:
    return {SHARED_MEMORY / name: f"shared memory {SHARED_MEMORY / name}" for name in os.listdir(SHARED_MEMORY)}


def handlers() -> Found:
    """Find the signals whose handler is not the user's, but what the library puts in its place for a moment."""
    kinds = {signum: type(signal.getsignal(signum)) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    ours = {signum: kind for signum, kind in kinds.items() if kind.__module__.startswith("dataflow.")}
    return {signum: f"handler {kind.__qualname__} of {signum.name}" for signum, kind in ours.items()}


KINDS: tuple[Callable[[], Found], ...] = (processes, threads, descriptors, shared_memory, handlers)


def snapshot() -> Found:
    """Find everything that a test could leave behind."""
    return {(kind.__name__, key): name for kind in KINDS for key, name in kind().items()}


def new_since(before: Found, now: Found | None = None) -> Found:
    """Find what is there `now`, was not there `before`, and is ours."""
    return {
        (kind, key): f"process {_describe(key[0])}" if kind == "processes" else name
        for (kind, key), name in (snapshot() if now is None else now).items()
        if (kind, key) not in before and not (kind == "shared_memory" and _is_foreign(key))
    }


def check_nothing_left(before: Found, grace: float = GRACE) -> Found:
    """Fail unless everything that was not there `before` goes away within `grace` seconds; find what is there then."""
    now = snapshot()
    left = new_since(before, now)

    def nothing_left() -> bool:
        nonlocal now, left
        if left:
            gc.collect()
            now = snapshot()
            left = new_since(before, now)
        return not left

    wait_until(nothing_left, grace, lambda: "left behind: " + "; ".join(sorted(left.values())))
    return now


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}): {' '.join(process.cmdline())[:200]}"
    except psutil.ZombieProcess:
        return f"{pid} (zombie)"
    except psutil.Error:
        return f"{pid} (gone)"


def _is_foreign(path: Path) -> bool:
    """Tell whether a process that is not ours has this entry of /dev/shm in its memory."""
    ours = {os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))}
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return True  # gone meanwhile
    for pid in psutil.pids():
        try:
            # By inode, since the name of a semaphore is a second link to the file that is mapped.
            if pid not in ours and f" {inode} " in "".join(_mappings_of_shared_memory(pid)):
                return True
        except OSError:
            continue
    return False


def _mappings_of_shared_memory(pid: int) -> list[str]:
    with open(f"/proc/{pid}/maps") as lines:
        return [line for line in lines if str(SHARED_MEMORY) in line]


def _fork_server(attribute: str) -> int | None:
    module = sys.modules.get("multiprocessing.forkserver")
    return getattr(getattr(module, "_forkserver", None), attribute, None)


def _start_servants() -> tuple[int | None, ...]:
    """Start what multiprocessing and tqdm keep until the interpreter ends, where it does not run yet; find the pids."""
    resource_tracker.ensure_running()
    tqdm.get_lock()  # holds a semaphore, with a name unless processes are forked
    if "forkserver" in multiprocessing.get_all_start_methods():
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    return resource_tracker._resource_tracker._pid, _fork_server("_forkserver_pid")


@pytest.fixture(scope="module", autouse=True)
def older_objects_frozen() -> None:
    """Exempt what earlier modules keep from garbage collection: every test collects, and would visit it all again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give this run, and every process it starts, a place where only its own temporary files can be."""
    tmp_path_factory.getbasetemp()  # pytest and multiprocessing keep their own where they are
    with pytest.MonkeyPatch.context() as patch:
        if len(tempfile.gettempdir()) > LONGEST:
            patch.setattr(tempfile, "tempdir", "/tmp")
        multiprocessing.util.get_temp_dir()
        directory = tempfile.mkdtemp(prefix="df-")
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        yield
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, own_temporary_directory: None) -> Iterator[None]:
    servants = _start_servants()
    found_with, before = _AFTER_LAST.pop() if _AFTER_LAST else (None, {})
    if found_with != servants:
        before = snapshot()
    yield
    if not request.node.stash.get(RAISED, False):
        _AFTER_LAST.append((servants, check_nothing_left(before)))


def _forget_last(fixturedef: pytest.FixtureDef[Any]) -> None:
    if fixturedef.scope != "function":
        _AFTER_LAST.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    _forget_last(fixturedef)


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _forget_last(fixturedef)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.excinfo is not None:
        item.stash[RAISED] = True
    return (yield)
