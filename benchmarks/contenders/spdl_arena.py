"""SPDL: one sub-process per worker; arrays are sent through shared memory that is allocated once (its arena).

The segments of the pool are given back in the order in which they were taken: the consumer must not keep a datapoint.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ("spdl==0.8.0",)
IMPORTS = ("spdl.pipeline",)


class Source:
    """SPDL iterates an object that can be iterated again, made in the sub-process."""

    def __init__(self, workload: Workload, start: int, step: int) -> None:
        self.make_datapoints = partial(workload.source, start, step)

    def __iter__(self) -> Iterator[Any]:
        return self.make_datapoints()


def in_turn(streams: list[Iterator[Any]]) -> Iterator[Any]:
    if len(streams) == 1:
        yield from streams[0]
    while True:
        for stream in streams:
            yield next(stream)


def variant(make_arena: Callable[[int, int], Any], **options: Any) -> Variant:
    """`make_arena` takes the size of a datapoint and the number of datapoints in flight."""

    @contextmanager
    def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        from spdl.pipeline import iterate_in_subprocess

        buffer_size = max(2, workload.window // num_workers)
        subprocesses = [
            iterate_in_subprocess(
                partial(Source, workload, index, num_workers),
                mp_context="fork",
                buffer_size=buffer_size,
                daemon=True,
                arena=make_arena(workload.max_bytes + (1 << 16), buffer_size + 4),
            )
            for index in range(num_workers)
        ]
        stream = in_turn([iter(subprocess) for subprocess in subprocesses])
        yield stream
        # A sub-process ends, and its arena is freed, when the last reference to it is gone.
        stream.close()
        subprocesses.clear()

    return Variant(open_stream, **options)


def pool(datapoint_bytes: int, count: int) -> Any:
    from spdl.pipeline import SharedMemorySegmentPool

    return SharedMemorySegmentPool(datapoint_bytes, count)


def ring(datapoint_bytes: int, count: int) -> Any:
    from spdl.pipeline import SharedMemoryRingBuffer

    return SharedMemoryRingBuffer(capacity=datapoint_bytes * count)


ARRAYS = ("image", "batch", "collate", "jpeg", "ragged")

VARIANTS = {
    "pool": variant(pool, workloads=ARRAYS),
    "ring": variant(ring, workloads=ARRAYS),
    "queue": variant(lambda datapoint_bytes, count: None, workloads=("small", "mnist", "ragged")),
}
