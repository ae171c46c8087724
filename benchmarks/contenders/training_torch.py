"""torch DataLoader in a training loop, as its documentation shows it: a Dataset, batches collated in the workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import IMAGES_PER_BATCH, TRAINING

REQUIRES = ("torch==2.13.0",)
IMPORTS = ("torch.utils.data",)


@contextmanager
def open_stream(workload: Any, num_workers: int) -> Iterator[Iterator[Any]]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)

    class Samples(Dataset[Any]):
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, index: int) -> Any:
            return workload.sample(index)

    def collate(samples: list[Any]) -> Any:
        return [torch.from_numpy(array) for array in workload.collate(samples)]

    loader = DataLoader(
        Samples(),
        batch_size=IMAGES_PER_BATCH,
        num_workers=num_workers,
        prefetch_factor=max(2, workload.window // num_workers),
        collate_fn=as_tensors if workload.name == "training" else collate,
    )
    stream = iter(loader)
    yield stream
    stream._shutdown_workers()  # the only way to end them and to know when they have ended


def as_tensors(samples: list[Any]) -> Any:
    """Images are tensors, as torchvision's transforms give them; DataLoader stacks those in shared memory."""
    import torch
    from torch.utils.data import default_collate

    return default_collate([(torch.from_numpy(image), label) for image, label in samples])


VARIANTS = {"loader": Variant(open_stream, TRAINING, runs_source=False)}
