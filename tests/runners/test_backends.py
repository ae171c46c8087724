"""What process runners take of the machine: descriptors, addresses and files; errors that say how much is missing."""

import os
import signal
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from dataflow import DataFromList, MapData, MultiProcessMapData, MultiProcessRunner, MultiProcessRunnerZMQ
from dataflow.runners.backends import ProcessBackend
from dataflow.runners.engine import _engines
from dataflow.runners.options import DESCRIPTORS_PER_WORKER, WorkerOptions
from tests.support.fakes import METHODS, each_method
from tests.support.main_program import run
from tests.support.products import only
from tests.support.waits import LIMIT, wait_until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere each mapping has a descriptor, and the limits are not enforced"
)

PER_WORKER, PER_RUNNER = 4, 16
TURNS = 2  # of these 16, a pipe for workers that take turns, if there are many
SIZE = 20_000  # an array of that size has a block of shared memory
WORKERS = (1, 8)


def image(dp):
    return [dp[0], np.full(SIZE, dp[0] % 251, np.uint8)]


def numbers():
    return DataFromList([[k] for k in range(64)], shuffle=False)


def make(name, num, **options):
    kind, strict = name.removesuffix(", strict"), name.endswith("strict")
    if kind == "map":
        return MultiProcessMapData(numbers(), num, image, strict=strict, timeout=LIMIT, **options)
    ds = MapData(numbers(), image)
    if kind == "zmq":
        return MultiProcessRunnerZMQ(ds, num, strict=strict, timeout=LIMIT, **options)
    return MultiProcessRunner(ds, 10, num, strict=strict, timeout=LIMIT, **options)


NAMES = [f"{kind}{mode}" for kind in ("zmq", "pipe", "map") for mode in ("", ", strict")]
CASES = [(name, method) for name in NAMES for method in METHODS]
QUICK = [(name, "fork") for name in ("zmq", "pipe, strict")]


def num_open():
    return len(os.listdir("/proc/self/fd"))


def check_counts(name, method):
    counts = {}
    for num in (1, *WORKERS):  # the first time, libraries open what they keep
        before = num_open()
        with make(name, num, context=method) as df:
            kept = list(islice(df, 32))
            most = num_open() - before
            while not all(
                engine._supervisor.states.connected(k)
                for engine in _engines
                for k in range(engine._supervisor.states.num_workers)
            ):
                kept += islice(df, 32)
                most = max(most, num_open() - before)
            counts[num] = num_open() - before
        assert max(most, counts[num]) <= PER_RUNNER + PER_WORKER * num
        assert len(kept) >= 32
    least, *_, most = WORKERS
    turns = 0 if "strict" in name or name == "map" else TURNS
    assert counts[most] - counts[least] <= PER_WORKER * (most - least) + turns, counts


@pytest.mark.parametrize(("name", "method"), QUICK)
def test_a_worker_takes_four_descriptors_and_a_runner_sixteen(name, method):
    check_counts(name, method)


@pytest.mark.full
@pytest.mark.parametrize(("name", "method"), [case for case in CASES if case not in QUICK])
def test_so_it_is_by_every_start_method(name, method):
    check_counts(name, method)


@pytest.mark.parametrize("name", only(["pipe, strict"], ["zmq, strict", "pipe, strict", "map"]))
def test_so_it_is_after_workers_were_replaced(name):
    before, killed = num_open(), set()

    def worker():
        assert len(list(islice(df, 32))) == 32
        return next((it.pid for it in df.statistics().runners[0].workers if it.pid and it.pid not in killed), None)

    with make(name, 2, context="fork", max_restarts=4) as df:
        while len(killed) < 4:
            killed.add(pid := wait_until(worker, LIMIT, "there is no other worker"))
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: list(islice(df, 32)) and df.statistics().runners[0].restarts == 4, LIMIT, "they were not replaced"
        )
        assert num_open() - before <= PER_RUNNER + 2 * PER_WORKER


# -- limits of descriptors ---------------------------------------------------------------------------------------------


PROGRAM = """
import resource
from tests.runners.test_backends import make, num_open

if __name__ == "__main__":
    name, num, limit = NAME, WORKERS, SOFT
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit or num_open() - 1 + MORE, hard))  # less that of the listing
    with make(name, num, context=CONTEXT) as df:
        for _ in range(2):
            got = [dp[0] for dp, _ in zip(df, range(64))]
            assert "strict" not in name or got == list(range(64)), got
            assert all((dp[1] == dp[0] % 251).all() for dp, _ in zip(df, range(64)))
    print("complete")
"""


def run_limited(name, method, directory, num, *, limit=0, more=0):
    """Run a program with a soft limit, or with one that leaves room for so many more descriptors than it has."""
    values = {"NAME": repr(name), "WORKERS": str(num), "SOFT": str(limit), "MORE": str(more)}
    program = PROGRAM
    for word, value in values.items():
        program = program.replace(word, value)
    return run("file", method, directory, program)


def needed(num):
    return ProcessBackend().num_descriptors(WorkerOptions(owner="MultiProcessRunnerZMQ", num_workers=num))


def check_enough(name, method, directory):
    ended = run_limited(name, method, directory, 2, more=needed(2))
    assert (ended.stdout, ended.returncode) == ("complete\n", 0), ended.stderr


@pytest.mark.parametrize(("name", "method"), [("zmq, strict", "fork"), ("map", "forkserver")])
def test_as_many_descriptors_as_it_asks_for_are_enough(name, method, tmp_path):
    check_enough(name, method, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("name", "method"), CASES)
def test_so_they_are_for_every_class_by_every_start_method(name, method, tmp_path):
    check_enough(name, method, tmp_path)


def test_with_one_less_the_error_says_how_many_are_needed_and_how_to_raise_the_limit(tmp_path):
    ended = run_limited("zmq", "fork", tmp_path, 3, more=needed(3) - 1)
    assert ended.returncode == 1
    assert (
        f"OSError: [Errno 24] Too many open files: MultiProcessRunnerZMQ needs about {needed(3)} file" in ended.stderr
    )
    assert "Raise the limit (ulimit -n, or resource.setrlimit in the program), use fewer workers" in ended.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", ["zmq, strict", "pipe, strict", "map, strict"])
def test_two_hundred_and_forty_workers_fit_a_limit_of_1024(name, tmp_path):
    assert PER_WORKER == DESCRIPTORS_PER_WORKER
    ended = run_limited(name, "fork", tmp_path, 240, limit=1024)
    assert (ended.stdout, ended.returncode) == ("complete\n", 0), ended.stderr


# -- address space, and the size of files ------------------------------------------------------------------------------


PROCESS_RUNNERS = """
import resource, sys
import numpy as np
from dataflow import DataFromList, MapData, MultiProcessMapData, MultiProcessRunner, ParallelData
limit = getattr(resource, sys.argv[1]), (int(sys.argv[2]), int(sys.argv[2]))

def image(dp):
    return [dp[0], np.full(300_000, dp[0], np.uint8)]

if __name__ == "__main__":
    resource.setrlimit(*limit)
    source, options = DataFromList([[k] for k in range(40)], shuffle=False), dict(context=sys.argv[3], timeout=100)
    for make in (
        lambda: ParallelData(MapData(source, image), 2, **options),
        lambda: MultiProcessRunner(MapData(source, image), 5, 1, **options),
        lambda: MultiProcessMapData(MapData(source, image), 2, MapData(source, list).func, strict=True, **options),
    ):
        with make() as df:
            assert [(k, (a == k).all()) for k, a in df] == [(k, True) for k in range(40)]
    print("ran")
"""


def run_by_itself(tmp_path, name, most, method):
    (tmp_path / "main.py").write_text(PROCESS_RUNNERS)
    return subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), name, str(most), method],
        capture_output=True, text=True, check=False, timeout=LIMIT,
    )  # fmt: skip


@each_method
def test_process_runners_run_with_a_few_gigabytes_of_addresses(method, tmp_path):
    done = run_by_itself(tmp_path, "RLIMIT_AS", 4 << 30, method)
    assert done.stdout == "ran\n", done.stderr


def test_a_limit_on_the_size_of_files_is_named(tmp_path):
    done = run_by_itself(tmp_path, "RLIMIT_FSIZE", 1 << 30, "fork")
    assert "(ulimit -f). Lift that limit, or pass a smaller max_bytes" in done.stderr
