"""Memory of idle workers, and of workers that read a large list: ``python -m benchmarks.memory``.

An idle worker has sent what its window allows, small numbers, and waits. Its share of the memory is its proportional
set size: its private pages, and its part of those that it shares with others (``Pss`` in ``/proc/…/smaps_rollup``).

Under fork a list is shared with the workers, until the reference counts of its elements, which are written when they
are read, make a copy of every page. A packed list is bytes that are never written to. The private memory of a process
is its unique set size: the private pages of ``/proc/…/smaps_rollup``.
"""

import argparse
import gc
import itertools
import logging
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import psutil

from benchmarks.report import table
from dataflow import DataFromList, MultiProcessRunnerZMQ, RepeatedData

__all__ = ["idle", "main", "private_bytes", "proportional_bytes"]

MIB = 1 << 20
METHODS = ("fork", "forkserver", "spawn")
T = TypeVar("T")


def private_bytes(pid: int) -> int:
    return bytes_of(pid, "Private_")


def proportional_bytes(pid: int) -> int:
    return bytes_of(pid, "Pss:")


def bytes_of(pid: int, kind: str) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(kind))


def idle(num: int, method: str) -> tuple[float, float]:
    """Proportional and private bytes of an idle worker of `num`, on average."""
    endless = RepeatedData(DataFromList([[0, 0.0]] * 100), -1)
    with MultiProcessRunnerZMQ(endless, num, context=method, timeout=600) as df:
        stream = iter(df)
        pids: set[int] = set()
        while len(pids) < num:  # all of them have begun
            next(stream)
            pids = {worker.pid for worker in df.statistics().runners[0].workers if worker.pid}
        wait_until_silent(pids)
        return statistics.mean(map(proportional_bytes, pids)), statistics.mean(map(private_bytes, pids))


def wait_until_silent(pids: set[int]) -> None:
    """Wait until no worker has used more than 5 % of a core for a second: its window is full."""
    processes = [psutil.Process(pid) for pid in pids]
    before = [0.0] * len(processes)
    while True:
        used = [sum(process.cpu_times()[:2]) for process in processes]
        if all(now - then <= 0.05 for now, then in zip(used, before, strict=True)):
            return
        before = used
        time.sleep(1)


def show_idle(numbers: list[int]) -> None:
    header = [f"{kind}, {num} workers" for num in numbers for kind in ("PSS", "private")]
    rows = []
    for method in METHODS:
        figures = [in_new_process(idle, num, method) for num in numbers]
        rows.append([method, *(f"{nbytes / MIB:.1f}" for pair in figures for nbytes in pair)])
    print(table(["MiB for each idle worker", *header], rows))


def measure(num: int, workers: int, passes: int, packed: bool) -> tuple[int, list[int]]:
    """Bytes of the list, and private bytes of each worker beyond those of a worker that reads nothing."""
    with MultiProcessRunnerZMQ(DataFromList([[0, 0.0]]), workers) as idle:
        next(iter(idle))
        floor = min(private_bytes(process.pid) for process in psutil.Process().children())
    gc.collect()
    before = private_bytes(psutil.Process().pid)
    datapoints = [[index, index * 0.5] for index in range(num)]
    size = private_bytes(psutil.Process().pid) - before
    with MultiProcessRunnerZMQ(DataFromList(datapoints, shuffle=False, packed=packed), workers) as df:
        for _ in range(passes):
            for _ in itertools.islice(df, num):
                pass
        held = [private_bytes(process.pid) - floor for process in psutil.Process().children()]
    return size, held


def in_new_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` in a process of its own, so that the measurements do not affect each other."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), logging.disable) as pool:
        return pool.submit(function, *arguments).result()


def show(num: int, workers: int, passes: int, packed: bool) -> None:
    size, held = measure(num, workers, passes, packed)
    print(
        f"packed={packed!s:5}  list {size / MIB:7.1f} MiB   {workers} workers together {sum(held) / MIB:7.1f} MiB   "
        f"{sum(held) / size:5.2f} of the list"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--idle", type=int, nargs="+", default=[2, 64], help="numbers of idle workers")
    parser.add_argument("--num", type=int, default=2_000_000, help="datapoints in the list")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    show_idle(options.idle)
    for packed in (True, False):
        in_new_process(show, options.num, options.workers, options.passes, packed)


if __name__ == "__main__":
    main()
