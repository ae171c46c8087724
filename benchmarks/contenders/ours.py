"""This library: every runner, with default arguments unless the variant's name says otherwise."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload
from dataflow import (
    BackgroundProc,
    BatchData,
    DataFlow,
    DataFromList,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    RepeatedData,
    ShardData,
    worker_info,
)

REQUIRES = None
IMPORTS = ()


class Source(DataFlow):
    """A node as a user writes it."""

    def __init__(self, make_datapoints: Callable[[], Iterator[Any]]) -> None:
        self.make_datapoints = make_datapoints

    def __iter__(self) -> Iterator[Any]:
        return self.make_datapoints()


def flow(workload: Workload) -> DataFlow:
    if workload.items_per_batch:
        return BatchData(Source(workload.items), workload.items_per_batch)
    return Source(workload.source)


def variant(make_runner: Callable[[Workload, int], DataFlow], **options: Any) -> Variant:
    @contextmanager
    def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        with make_runner(workload, num_workers) as runner:
            yield iter(runner)

    opener: Callable[[Workload, int], AbstractContextManager[Iterator[Any]]] = open_stream
    return Variant(opener, **options)


class NextDatapoint:
    """A function that returns the next datapoint of a workload, in the worker that calls it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.stream: Iterator[Any] | None = None  # None before the first call

    def __call__(self) -> Any:
        if self.stream is None:
            here = worker_info()
            self.stream = self.workload.source(here.index, here.count)
        return next(self.stream)


def background(*, copy: bool) -> Variant:
    @contextmanager
    def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        example = workload.make(0)
        dtypes, shapes = [part.dtype for part in example], [part.shape for part in example]
        with BackgroundProc(NextDatapoint(workload), dtypes, shapes, num_workers, copy=copy) as bg:
            yield iter(bg)

    return Variant(open_stream, workloads=("batch",), runs_source=False)


def num_prefetch(workload: Workload) -> int:
    return 1000 if workload.name in {"small", "mnist"} else 50


def indexed(workload: Workload) -> DataFlow:
    """The same datapoints as an addressable flow, which `strict` needs."""
    return MapData(numbers(), partial(made, workload))


def numbers() -> DataFlow:
    return RepeatedData(DataFromList([[index] for index in range(4096)], shuffle=False), -1)


def made(workload: Workload, number: Any) -> Any:
    return workload.make(number[0])


MAPPED = INDEXED = ("small", "image", "jpeg")
VARIANTS = {
    "zmq": variant(lambda workload, workers: MultiProcessRunnerZMQ(flow(workload), num_proc=workers)),
    "zmq-hwm200": variant(
        lambda workload, workers: MultiProcessRunnerZMQ(flow(workload), num_proc=workers, hwm=200),
        workloads=("small", "mnist"),
    ),
    "runner": variant(lambda workload, workers: MultiProcessRunner(flow(workload), num_prefetch(workload), workers)),
    "background": background(copy=False),
    "background-copies": background(copy=True),
    "thread": variant(
        lambda workload, workers: MultiThreadRunner(partial(flow, workload), num_prefetch(workload), workers),
        workloads=("small", "jpeg"),
        in_processes=False,
    ),
    "map": variant(
        lambda workload, workers: MultiProcessMapData(Source(workload.inputs), workers, workload.work),
        workloads=MAPPED,
        runs_source=False,
    ),
    "map-thread": variant(
        lambda workload, workers: MultiThreadMapData(Source(workload.inputs), workers, workload.work),
        workloads=("small", "jpeg"),
        in_processes=False,
        runs_source=False,
    ),
    "map-above-shard": variant(
        lambda workload, workers: MultiProcessMapData(
            ShardData(numbers(), 0, 2), workers, partial(made, workload), strict=True
        ),
        workloads=("image", "jpeg"),
        runs_source=False,
    ),
    "map-below-shard": variant(
        lambda workload, workers: ShardData(
            MultiProcessMapData(numbers(), workers, partial(made, workload), strict=True), 0, 2
        ),
        workloads=("image", "jpeg"),
        runs_source=False,
    ),
    "zmq-indexed": variant(
        lambda workload, workers: MultiProcessRunnerZMQ(indexed(workload), num_proc=workers),
        workloads=INDEXED,
        runs_source=False,
    ),
    "zmq-strict": variant(
        lambda workload, workers: MultiProcessRunnerZMQ(indexed(workload), num_proc=workers, strict=True),
        workloads=INDEXED,
        runs_source=False,
    ),
}
