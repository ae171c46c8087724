"""What only shows after a while, or with many workers: memory and descriptors stay where they are."""

import gc
import mmap
import os

import numpy as np
import psutil
import pytest

import dataflow
from dataflow import BatchData, DataFlow, MultiProcessRunner, MultiProcessRunnerZMQ, MultiThreadRunner
from dataflow.transport.arena import divide_memory
from tests.support.waits import LIMIT

MIB = 1 << 20
RUNNERS = {
    "process": lambda ds: MultiProcessRunner(ds, 20, 2, timeout=LIMIT, context="fork"),
    "zmq": lambda ds: MultiProcessRunnerZMQ(ds, 2, timeout=LIMIT, context="fork"),
    "thread": lambda ds: MultiThreadRunner(type(ds), 20, 2, timeout=LIMIT),
}


class Short(DataFlow):
    """A pass of three datapoints, one of them large."""

    def __iter__(self):
        yield [1, 2.0]
        yield [np.full(20_000, 7, np.uint8), 1]
        yield [np.full(10, 7, np.uint8), 2]

    def __len__(self):
        return 3


@pytest.mark.full
@pytest.mark.parametrize("kind", RUNNERS)
def test_ten_thousand_passes_leave_memory_and_descriptors_as_they_were(kind):
    own = psutil.Process()
    others = own.children()
    with RUNNERS[kind](Short()) as df:
        assert len(list(df)) == 3
        started = [process for process in own.children() if process not in others]
        # A fork of this process has its command line; a fork server that has just been started may still import.
        processes = [own, *(process for process in started if process.cmdline() == own.cmdline())]
        assert len(processes) == (1 if kind == "thread" else 3)

        def passes(number):
            for _ in range(number):
                assert len(list(df)) == 3
            gc.collect()
            return [(process.memory_info().rss, process.num_fds(), process.num_threads()) for process in processes]

        before = passes(500)
        after = passes(10_000)
    for (memory, *counts), (memory_then, *counts_then) in zip(before, after, strict=True):
        assert memory_then - memory < 4 * MIB
        assert counts_then == counts


class Rows(DataFlow):
    """Rows of a quarter of a mebibyte; batches of them are filled where they are sent from."""

    def __iter__(self):
        while True:
            yield [dataflow.empty((MIB // 4,), np.uint8)]


class Watched(MultiProcessRunnerZMQ):
    """A runner that reports what its arenas hold, as the system counts it."""

    def _df_links(self):
        links = super()._df_links()
        self.limit = links.codec.memory_limit.limit
        classes, _ = divide_memory(self.limit)
        self.status_bytes = self.num_workers * -(-(classes[-1].status + 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.file = links.codec.port(0).arena.descriptors()[0].fd
        return links

    def held(self):
        return os.fstat(self.file).st_blocks * 512 - self.status_bytes


@pytest.mark.full
def test_sixty_four_workers_share_one_limit_and_none_of_them_copies():
    most = in_place = 0
    with Watched(BatchData(Rows(), 16), 64, max_bytes=256 * MIB, timeout=LIMIT) as df:
        for k, (batch,) in enumerate(df):
            assert batch.shape == (16, MIB // 4)
            # An array in a block views its base; one that came in the message owns its memory.
            in_place += batch.base is not None
            del batch
            most = max(most, df.held())
            if k == 1000:
                break
        assert 0 < most <= df.limit
    assert in_place > 900
