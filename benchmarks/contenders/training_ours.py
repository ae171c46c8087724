"""This library in a training loop: batches made in processes, by a runner of either kind or by a map."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import IMAGES_PER_BATCH, TRAINING, Workload

REQUIRES = ("torch==2.13.0", "pyzmq>=25.1", "msgpack>=1.2.4", "msgpack-numpy>=0.4.8", "tqdm>=4.65", "cloudpickle>=3.0")
IMPORTS = ("torch", "dataflow.runners.runners", "dataflow.runners.maps", "dataflow.runners.map_variants")


def sample(workload: Any, number: Any) -> Any:
    return workload.sample(number[0])


def padded(workload: Any, numbers: Any) -> Any:
    return workload.collate([workload.sample(number) for number in numbers[0]])


def tensors(dp: Any) -> Any:
    import torch

    return [torch.from_numpy(array) for array in dp]


def numbers() -> Any:
    from dataflow import DataFromList, RepeatedData

    return RepeatedData(DataFromList([[index] for index in range(128 * IMAGES_PER_BATCH)], shuffle=False), -1)


def batches(workload: Workload) -> Any:
    from dataflow import BatchData, MapData

    if workload.name == "tokens":
        return MapData(BatchData(numbers(), IMAGES_PER_BATCH, use_list=True), partial(padded, workload))
    return BatchData(MapData(numbers(), partial(sample, workload)), IMAGES_PER_BATCH)


def default(workload: Workload, num_workers: int) -> Any:
    from dataflow import MultiProcessRunnerZMQ

    return MultiProcessRunnerZMQ(batches(workload), num_workers)


def strict(workload: Workload, num_workers: int) -> Any:
    from dataflow import MultiProcessRunnerZMQ

    return MultiProcessRunnerZMQ(batches(workload), num_workers, strict=True)


def process_map(workload: Workload, num_workers: int) -> Any:
    from dataflow import BatchData, MultiProcessMapAndBatchData, MultiProcessMapData

    if workload.name == "tokens":
        lists = BatchData(numbers(), IMAGES_PER_BATCH, use_list=True)
        return MultiProcessMapData(lists, num_workers, partial(padded, workload))
    return MultiProcessMapAndBatchData(numbers(), num_workers, partial(sample, workload), IMAGES_PER_BATCH)


def variant(make_flow: Callable[[Workload, int], Any]) -> Variant:
    @contextmanager
    def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
        import torch

        from dataflow import MapData

        torch.set_num_threads(1)
        with MapData(make_flow(workload, num_workers), tensors) as df:
            yield iter(df)

    return Variant(open_stream, TRAINING, runs_source=False)


VARIANTS = {"default": variant(default), "strict": variant(strict), "map": variant(process_map)}
