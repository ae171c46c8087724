"""The scheme of ELEKTRONN's BackgroundProc: one mp.Array per component and worker, two mp.Events, and a copy out of it.

Rebuilt from its description, since the original starts on no Python since 3.8.
"""

import ctypes
import itertools
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ()
IMPORTS = ()

CTYPES = {np.dtype(np.float32): ctypes.c_float, np.dtype(np.int64): ctypes.c_int64}


def fill(views: list[np.ndarray], new: Any, ready: Any, workload: Workload, start: int, step: int) -> None:
    for dp in workload.source(start, step):
        new.wait()
        new.clear()
        for view, component in zip(views, dp, strict=True):
            view[:] = component
        ready.set()


@contextmanager
def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    context = multiprocessing.get_context("fork")
    example = workload.make(0)
    places, workers = [], []
    for index in range(num_workers):
        arrays = [context.Array(CTYPES[part.dtype], part.size, lock=False) for part in example]
        views = [
            np.frombuffer(array, part.dtype).reshape(part.shape) for array, part in zip(arrays, example, strict=True)
        ]
        new, ready = context.Event(), context.Event()
        places.append((views, new, ready))
        workers.append(
            context.Process(target=fill, args=(views, new, ready, workload, index, num_workers), daemon=True)
        )
        workers[-1].start()
        new.set()

    def datapoints():
        for views, new, ready in itertools.cycle(places):
            ready.wait()
            ready.clear()
            dp = [view.copy() for view in views]
            new.set()
            yield dp
            del dp

    yield datapoints()
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


VARIANTS = {"events": Variant(open_stream, workloads=("batch",), runs_source=False)}
