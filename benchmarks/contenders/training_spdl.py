"""SPDL in a training loop: its pipeline of threads, or one sub-process per worker with an arena of shared memory."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.contenders.spdl_arena import in_turn, pool
from benchmarks.workloads import TRAINING

REQUIRES = ("spdl==0.8.0", "torch==2.13.0")
IMPORTS = ("spdl.pipeline", "torch")


@contextmanager
def threads(workload: Any, num_workers: int) -> Iterator[Iterator[Any]]:
    import torch
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)
    pipeline = (
        PipelineBuilder()
        .add_source(itertools.count())
        .pipe(workload.make, concurrency=num_workers, output_order="input")  # faster than a stage of its own to collate
        .add_sink(workload.window)
        .build(num_threads=num_workers)
    )
    with pipeline.auto_stop():
        yield ([torch.from_numpy(array) for array in batch] for batch in pipeline.get_iterator())


class Batches:
    """SPDL iterates an object that can be iterated again, made in the sub-process."""

    def __init__(self, workload: Any, start: int, step: int) -> None:
        self.make_batches = partial(workload.source, start, step)

    def __iter__(self) -> Iterator[Any]:
        return self.make_batches()


@contextmanager
def processes(workload: Any, num_workers: int) -> Iterator[Iterator[Any]]:
    import torch
    from spdl.pipeline import iterate_in_subprocess

    torch.set_num_threads(1)
    buffer_size = max(2, workload.window // num_workers)
    subprocesses = [
        iterate_in_subprocess(
            partial(Batches, workload, index, num_workers),
            mp_context="fork",
            buffer_size=buffer_size,
            daemon=True,
            arena=pool(workload.max_bytes + (1 << 16), buffer_size + 4),
        )
        for index in range(num_workers)
    ]
    stream = in_turn([iter(subprocess) for subprocess in subprocesses])
    yield ([torch.from_numpy(array) for array in batch] for batch in stream)
    # A sub-process ends, and its arena is freed, when the last reference to it is gone.
    stream.close()
    subprocesses.clear()


VARIANTS = {
    "threads": Variant(threads, TRAINING, in_processes=False, runs_source=False),
    "processes": Variant(processes, TRAINING, runs_source=False),
}
