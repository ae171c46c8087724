"""torch DataLoader: numpy arrays pickled through a queue, or tensors in shared memory, one segment each."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ("torch==2.13.0",)
IMPORTS = ("torch.utils.data",)


def as_it_is(datapoint: Any) -> Any:
    return datapoint


def to_numpy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: to_numpy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_numpy(item) for item in value]
    return value.numpy() if hasattr(value, "numpy") else value


@contextmanager
def open_stream(workload: Workload, num_workers: int, tensors: bool) -> Iterator[Iterator[Any]]:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    torch.set_num_threads(1)

    class Source(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            make_datapoints = workload.items if workload.items_per_batch else workload.source
            return make_datapoints(info.id, info.num_workers)

    by_hand = getattr(workload, "stack", as_it_is)
    loader = DataLoader(
        Source(),
        batch_size=workload.items_per_batch,
        num_workers=num_workers,
        prefetch_factor=max(2, workload.window // num_workers),
        collate_fn=None if tensors else by_hand,  # None stacks or converts into tensors, in the worker
    )
    stream = iter(loader)
    yield map(to_numpy, stream) if tensors else stream
    stream._shutdown_workers()  # the only way to end them and to know when they have ended


VARIANTS = {
    "numpy": Variant(partial(open_stream, tensors=False)),
    "tensor": Variant(partial(open_stream, tensors=True)),
}
