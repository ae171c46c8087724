"""Limits of the machine: the work without transport, in the consumer's process or with bare shared memory."""

import itertools
import mmap
import multiprocessing
import os
import pickle
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
    destinations = [np.ones_like(array) for array in sources]  # written to, so that its pages are allocated

    def copies():
        for turn in itertools.cycle(range(4)):
            np.copyto(destinations[turn], sources[turn])
            yield [destinations[turn], datapoints[turn][1]]

    yield copies()


@contextmanager
def stack_in_place(workload: Collate, num_workers: int) -> Iterator[Iterator[Any]]:
    """The collate workload, stacked into one buffer that is reused."""
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


@contextmanager
def slots(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    """Pickle, with arrays out of band in reused slots of shared memory, announced through a pipe.

    There are no guarantees: a datapoint is valid until the next one, and if the worker dies, the consumer waits
    endlessly.
    """
    num_slots = max(3, workload.window)
    slot_bytes = -(-(workload.max_bytes + mmap.PAGESIZE) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = memoryview(mmap.mmap(-1, num_slots * slot_bytes))
    announced, announce = os.pipe()
    freed, free = os.pipe()

    def write() -> None:
        target = np.frombuffer(memory, np.uint8)
        with open(announce, "wb", buffering=0) as pipe:
            for dp in workload.source():
                (slot,) = os.read(freed, 1)
                buffers: list[pickle.PickleBuffer] = []
                skeleton = pickle.dumps(dp, 5, buffer_callback=buffers.append)
                places, stop = [], slot * slot_bytes
                for data in buffers:
                    start, stop = stop, stop + data.raw().nbytes
                    target[start:stop] = np.frombuffer(data, np.uint8)
                    places.append((start, stop))
                    stop += -stop % 64
                pipe.write(pickle.dumps((slot, skeleton, places), 5))

    def read() -> Iterator[Any]:
        with open(announced, "rb", closefd=False) as pipe:
            while True:
                slot, skeleton, places = pickle.load(pipe)
                yield pickle.loads(skeleton, buffers=[memory[start:stop] for start, stop in places])
                os.write(free, bytes([slot]))

    os.write(free, bytes(range(num_slots)))
    worker = multiprocessing.get_context("fork").Process(target=write, daemon=True)
    worker.start()
    try:
        yield read()
    finally:
        worker.kill()
        worker.join()
        for fd in (announced, announce, freed, free):
            os.close(fd)


VARIANTS = {
    "in-process": Variant(in_process, workers=(1,), in_processes=False, runs_source=False),
    "memcpy": Variant(memcpy, workloads=("image", "batch"), workers=(1,), in_processes=False, runs_source=False),
    "stack-in-place": Variant(
        stack_in_place, workloads=("collate",), workers=(1,), in_processes=False, runs_source=False
    ),
    "slots": Variant(slots, workloads=("image", "batch"), workers=(1,), runs_source=False),
}
