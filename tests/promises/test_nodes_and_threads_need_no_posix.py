"""On Windows, nodes and threads need nothing of POSIX, and process runners name the cure."""

import subprocess
import sys
import textwrap

from tests.support.waits import LIMIT

POORER = """
    # What Windows does not have.
    import mmap, os, random, select, signal, sys, threading
    import multiprocessing, multiprocessing.reduction, multiprocessing.resource_tracker, numpy, tqdm, zmq  # not ours
    for name in ("fcntl", "resource", "_posixshmem"):
        sys.modules[name] = None
    for module, names in {
        mmap: ["MADV_REMOVE", "MADV_DONTNEED"],
        os: ["fork", "register_at_fork", "memfd_create", "sysconf", "writev", "readv", "set_blocking", "WNOHANG"],
        select: ["poll"],
        signal: ["SIGBUS", "SIGKILL", "pthread_sigmask", "SIG_BLOCK", "SIG_SETMASK", "SIGALRM"],
    }.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
"""


def run_poorer(code):
    text = textwrap.dedent(POORER) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_nodes_and_threads_need_nothing_of_posix():
    out = run_poorer("""
        from dataflow import BatchData, DataFromList, MapData, MultiThreadMapData, MultiThreadRunner
        def chain():
            return BatchData(MapData(DataFromList([[k] for k in range(6)], shuffle=False), lambda dp: [dp[0] * 2]), 3)
        with MultiThreadRunner(chain, 5, 1) as df:
            print([batch[0].tolist() for batch in df])
        with MultiThreadMapData(chain(), 2, lambda dp: [dp[0] + 1], strict=True) as df:
            print([batch[0].tolist() for batch in df])
    """)
    assert out == "[[0, 2, 4], [6, 8, 10]]\n[[1, 3, 5], [7, 9, 11]]\n"


def test_process_runners_name_the_cure_on_windows():
    out = run_poorer("""
        from dataflow import DataFromList, MultiProcessMapData, MultiProcessRunnerZMQ
        sys.platform = "win32"
        for make in (MultiProcessRunnerZMQ, lambda df, num: MultiProcessMapData(df, num, print)):
            try:
                next(iter(make(DataFromList([[1]]), 1)))
            except NotImplementedError as error:
                print(error)
    """)
    assert out.count("On Windows use MultiThreadRunner or MultiThreadMapData") == 2
