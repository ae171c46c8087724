"""ProcessPoolExecutor.map with chunks: a task is a run of indexes, its result the list of their datapoints.

`map` submits everything at once and keeps every result. To bound what is made ahead, two calls of it follow each other,
the second submitted before the first is read.
"""

import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ()
IMPORTS = ()

CHUNKS_PER_CALL = 16


@contextmanager
def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    executor = ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("fork"))
    per_call = CHUNKS_PER_CALL * workload.chunk if workload.chunk > 1 else workload.window

    def datapoints():
        calls = (
            executor.map(workload.make, range(first, first + per_call), chunksize=workload.chunk)
            for first in itertools.count(0, per_call)
        )
        for current, _ in itertools.pairwise(calls):
            yield from current

    yield datapoints()
    executor.shutdown(wait=True, cancel_futures=True)


VARIANTS = {"map": Variant(open_stream, runs_source=False)}
