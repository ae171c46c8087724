"""Private memory of workers that read a large list: ``python -m benchmarks.memory``.

Under fork a list is shared with the workers, until the reference counts of its elements, which are written when they
are read, make a copy of every page. A packed list is bytes that are never written to. The private memory of a process
is its unique set size: the private pages of ``/proc/…/smaps_rollup``.
"""

import argparse
import gc
import itertools
import multiprocessing

import psutil

from dataflow import DataFromList, MultiProcessRunnerZMQ

__all__ = ["main"]

MIB = 1 << 20


def private_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))


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


def show(num: int, workers: int, passes: int, packed: bool) -> None:
    size, held = measure(num, workers, passes, packed)
    print(
        f"packed={packed!s:5}  list {size / MIB:7.1f} MiB   {workers} workers together {sum(held) / MIB:7.1f} MiB   "
        f"{sum(held) / size:5.2f} of the list"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--num", type=int, default=2_000_000, help="datapoints in the list")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    for packed in (True, False):  # each in a process of its own, so that they do not affect each other
        process = multiprocessing.get_context("spawn").Process(
            target=show, args=(options.num, options.workers, options.passes, packed)
        )
        process.start()
        process.join()


if __name__ == "__main__":
    main()
