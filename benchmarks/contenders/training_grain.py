"""grain in a training loop: spawned workers map and batch; every array gets a segment of shared memory of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.contenders.grain_prefetch import Indexes
from benchmarks.workloads import IMAGES_PER_BATCH, TRAINING

REQUIRES = ("grain==0.2.18", "torch==2.13.0")
IMPORTS = ("grain", "torch")


@contextmanager
def open_stream(workload: Any, num_workers: int) -> Iterator[Iterator[Any]]:
    import grain
    import torch
    from absl import flags

    torch.set_num_threads(1)
    flags.FLAGS.mark_as_parsed()
    samples = grain.MapDataset.source(Indexes()).map(workload.sample)
    flow = samples.batch(IMAGES_PER_BATCH, batch_fn=workload.collate if workload.name == "tokens" else None)
    options = grain.multiprocessing.MultiprocessingOptions(
        num_workers=num_workers, per_worker_buffer_size=max(2, workload.window // num_workers)
    )
    stream = iter(flow.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)).mp_prefetch(options))
    yield ([torch.from_numpy(array) for array in batch] for batch in stream)
    stream.close()


VARIANTS = {"mp-prefetch": Variant(open_stream, TRAINING, runs_source=False)}
