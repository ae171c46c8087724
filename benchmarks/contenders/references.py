"""What the machine does without any transport, in the consumer's own process."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.contenders import Variant
from benchmarks.workloads import Collate, Workload

REQUIRES = None
IMPORTS = ()


@contextmanager
def in_process(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    """The source itself. For jpeg this is the serial program."""
    yield workload.source()


@contextmanager
def memcpy(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    """The same bytes, copied once: four sources into four destinations in turn."""
    datapoints = [workload.make(index) for index in range(4)]
    sources = [dp[0] for dp in datapoints]
    destinations = [np.ones_like(array) for array in sources]  # written to, so that its pages are there

    def copies():
        for turn in itertools.cycle(range(4)):
            np.copyto(destinations[turn], sources[turn])
            yield [destinations[turn], datapoints[turn][1]]

    yield copies()


@contextmanager
def stack_in_place(workload: Collate, num_workers: int) -> Iterator[Iterator[Any]]:
    """The chain of the collate workload, stacking into one buffer that is used again and again."""
    count = workload.items_per_batch
    images = np.ones((count, 224, 224, 3), np.float32)
    labels = np.ones(count, np.int64)

    def batches():
        items = workload.items()
        while True:
            for row, (image, label) in enumerate(itertools.islice(items, count)):
                images[row] = image
                labels[row] = label
            yield [images, labels]

    yield batches()


VARIANTS = {
    "in-process": Variant(in_process, workers=(1,), in_processes=False, runs_source=False),
    "memcpy": Variant(memcpy, workloads=("image", "batch"), workers=(1,), in_processes=False, runs_source=False),
    "stack-in-place": Variant(
        stack_in_place, workloads=("collate",), workers=(1,), in_processes=False, runs_source=False
    ),
}
