"""grain: spawned workers make datapoints by index; every array gets a segment of shared memory of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ("grain==0.2.18",)
IMPORTS = ("grain",)


class Indexes:
    """A random-access source for grain that gives the index itself."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        return int(index)


@contextmanager
def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    flow = grain.MapDataset.source(Indexes()).map(workload.make)
    options = grain.multiprocessing.MultiprocessingOptions(
        num_workers=num_workers, per_worker_buffer_size=max(2, workload.window // num_workers)
    )
    stream = iter(flow.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)).mp_prefetch(options))
    yield stream
    stream.close()


VARIANTS = {"mp-prefetch": Variant(open_stream, runs_source=False)}
