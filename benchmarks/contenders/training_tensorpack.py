"""tensorpack.dataflow in a training loop: its chain of nodes in its runner over ZeroMQ.

It hangs when the interpreter exits, so nothing is closed here: see the contender `tensorpack`.
"""

import multiprocessing.util  # noqa: F401 — tensorpack uses it without importing it
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import IMAGES_PER_BATCH, TRAINING

REQUIRES = ("tensorpack==0.11", "torch==2.13.0")
IMPORTS = ("tensorpack.dataflow", "torch")


@contextmanager
def open_stream(workload: Any, num_workers: int) -> Iterator[Iterator[Any]]:
    import torch
    from tensorpack.dataflow import BatchData, DataFlow, MapData, MultiProcessRunnerZMQ

    torch.set_num_threads(1)

    class Numbers(DataFlow):
        def __iter__(self):
            while True:
                for index in range(128 * IMAGES_PER_BATCH):
                    yield [index]

    if workload.name == "tokens":
        lists = BatchData(Numbers(), IMAGES_PER_BATCH, use_list=True)
        df = MapData(lists, lambda dp: workload.collate([workload.sample(number) for number in dp[0]]))
    else:
        df = BatchData(MapData(Numbers(), lambda dp: workload.sample(dp[0])), IMAGES_PER_BATCH)
    runner = MultiProcessRunnerZMQ(df, num_proc=num_workers, hwm=workload.window)
    runner.reset_state()
    yield ([torch.from_numpy(array) for array in batch] for batch in runner)


VARIANTS = {"zmq": Variant(open_stream, TRAINING, runs_source=False)}
