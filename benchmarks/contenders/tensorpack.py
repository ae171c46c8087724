"""tensorpack.dataflow: pickles every datapoint by itself and pushes it through ZeroMQ, a queue or a thread's queue.

Its last release is of 2021. It ends no worker of its own and hangs when the interpreter exits, so nothing is closed
here: the process that measures leaves at once, and its session is ended.
"""

import multiprocessing.util  # noqa: F401 — tensorpack uses it without importing it
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ("tensorpack==0.11",)
IMPORTS = ("tensorpack.dataflow",)


def flow(workload: Workload) -> Any:
    from tensorpack.dataflow import BatchData, DataFlow

    class Source(DataFlow):
        def __iter__(self):
            return workload.items() if workload.items_per_batch else workload.source()

    return BatchData(Source(), workload.items_per_batch) if workload.items_per_batch else Source()


def variant(make_runner: Callable[[Workload, int], Any], **options: Any) -> Variant:
    @contextmanager
    def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        runner = make_runner(workload, num_workers)
        runner.reset_state()
        yield iter(runner)

    return Variant(open_stream, **options)


def zmq(workload: Workload, num_workers: int) -> Any:
    from tensorpack.dataflow import MultiProcessRunnerZMQ

    return MultiProcessRunnerZMQ(flow(workload), num_proc=num_workers, hwm=workload.window)


def queue(workload: Workload, num_workers: int) -> Any:
    from tensorpack.dataflow import MultiProcessRunner

    return MultiProcessRunner(flow(workload), num_prefetch=workload.window, num_proc=num_workers)


def thread(workload: Workload, num_workers: int) -> Any:
    from tensorpack.dataflow import MultiThreadRunner

    return MultiThreadRunner(lambda: flow(workload), num_prefetch=workload.window, num_thread=num_workers)


def inputs(workload: Workload) -> Any:
    from tensorpack.dataflow import DataFlow

    class Source(DataFlow):
        def __iter__(self):
            return workload.inputs()

    return Source()


def process_map(workload: Workload, num_workers: int) -> Any:
    from tensorpack.dataflow import MultiProcessMapDataZMQ

    return MultiProcessMapDataZMQ(inputs(workload), num_proc=num_workers, map_func=workload.work)


def thread_map(workload: Workload, num_workers: int) -> Any:
    from tensorpack.dataflow import MultiThreadMapData

    return MultiThreadMapData(inputs(workload), num_thread=num_workers, map_func=workload.work)


VARIANTS = {
    "zmq": variant(zmq),
    "runner": variant(queue),
    "thread": variant(thread, workloads=("small", "jpeg"), in_processes=False),
    "map": variant(process_map, workloads=("small", "image", "jpeg"), runs_source=False),
    "map-thread": variant(thread_map, workloads=("small", "jpeg"), in_processes=False, runs_source=False),
}
