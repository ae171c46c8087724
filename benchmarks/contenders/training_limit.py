"""The limit of a training loop: the same work in one process, without transport. Workers can reach it on every core."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import TRAINING, Workload

REQUIRES = ("torch==2.13.0",)
IMPORTS = ("torch",)


@contextmanager
def serial(workload: Workload, num_workers: int) -> Iterator[Iterator[Any]]:
    import torch

    torch.set_num_threads(1)
    yield ([torch.from_numpy(array) for array in workload.make(index)] for index in itertools.count())


VARIANTS = {"serial": Variant(serial, TRAINING, workers=(1,), in_processes=False, runs_source=False)}
