"""multiprocessing.Queue: every worker puts one datapoint at a time into the queue that all share."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ()
IMPORTS = ()


def put_all(queue: Any, workload: Workload, start: int, step: int) -> None:
    for dp in workload.source(start, step):
        queue.put(dp)


@contextmanager
def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    context = multiprocessing.get_context("fork")
    queue = context.Queue(workload.window)
    workers = [
        context.Process(target=put_all, args=(queue, workload, index, num_workers), daemon=True)
        for index in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    yield iter(queue.get, None)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


VARIANTS = {"queue": Variant(open_stream)}
