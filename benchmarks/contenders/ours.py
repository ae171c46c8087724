"""This library: every runner, with default arguments unless the variant's name says otherwise."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload
from dataflow import BatchData, DataFlow, MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner

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


def num_prefetch(workload: Workload) -> int:
    return 1000 if workload.name in {"small", "mnist"} else 50


VARIANTS = {
    "zmq": variant(lambda workload, workers: MultiProcessRunnerZMQ(flow(workload), num_proc=workers)),
    "zmq-hwm200": variant(
        lambda workload, workers: MultiProcessRunnerZMQ(flow(workload), num_proc=workers, hwm=200),
        workloads=("small", "mnist"),
    ),
    "runner": variant(lambda workload, workers: MultiProcessRunner(flow(workload), num_prefetch(workload), workers)),
    "thread": variant(
        lambda workload, workers: MultiThreadRunner(partial(flow, workload), num_prefetch(workload), workers),
        workloads=("small", "jpeg"),
        in_processes=False,
    ),
}
