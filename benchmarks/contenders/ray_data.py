"""Ray Data: blocks of datapoints in an object store; the consumer reads rows that are views of a block."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

REQUIRES = ("ray[data]==2.60.0",)
IMPORTS = ("ray.data",)
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every socket listens on the loopback interface only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONPATH": str(Path(__file__).parents[2]),  # Ray's workers start elsewhere
}

BLOCK_BYTES = 64 << 20
STORE_BYTES = 2_000_000_000


def make_rows(block: dict[str, Any], workload: Workload) -> dict[str, Any]:
    columns = zip(*(workload.make(int(index)) for index in block["id"]), strict=True)
    return {
        name: np.stack(column) if isinstance(column[0], np.ndarray) else np.array(column)
        for name, column in zip("ab", columns, strict=True)
    }


@contextmanager
def local_cluster(num_cpus: int) -> Iterator[Any]:
    """The package ray, connected to a cluster of this process alone."""
    import ray

    ray.init(
        address="local",
        _node_ip_address="127.0.0.1",
        _temp_dir=tempfile.gettempdir(),
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=STORE_BYTES,
    )
    yield ray
    ray.shutdown()


@contextmanager
def open_stream(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    with local_cluster(num_workers) as ray:
        yield stream_of(ray, workload)


def stream_of(ray: Any, workload: Workload) -> Iterator[Any]:
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows_per_block = {"small": 200_000, "mnist": 20_000}.get(workload.name) or max(1, BLOCK_BYTES // workload.max_bytes)
    blocks = ray.data.range(1000 * rows_per_block, override_num_blocks=1000).map_batches(
        partial(make_rows, workload=workload), batch_size=workload.chunk, batch_format="numpy"
    )

    for block in blocks.iter_batches(batch_size=workload.chunk, batch_format="numpy", prefetch_batches=2):
        first, second = block["a"], block["b"]
        if workload.name == "small":
            first = first.tolist()
        yield from map(list, zip(first, second if second.ndim > 1 else second.tolist(), strict=True))


WORKLOADS = ("small", "mnist", "image", "batch", "collate", "jpeg")  # a block has columns, so "ragged" is impossible

VARIANTS = {"iter-batches": Variant(open_stream, workloads=WORKLOADS, runs_source=False)}
