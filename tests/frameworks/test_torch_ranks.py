"""`to_torch` in a training job: two processes of torch.distributed, each with a DataLoader of two workers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dataflow
from dataflow import NotReproducible, to_torch
from tests.support.own_nodes import SHAPES, shuffled

pytest.importorskip("torch.distributed")

ROOT = Path(__file__).parents[2]
TIMEOUT = 180.0  # seconds for both processes, each of which starts workers for each pass
N, PASSES = 23, 2  # also in the program

RANK = """
import json, sys
import numpy as np
import torch
from torch.utils.data import DataLoader
import dataflow
from dataflow import BatchData, DataFromGenerator, DataFromList, RandomMapData, to_torch

N, PASSES = 23, 2


def noisy(dp, rng):
    return [dp[0], dp[1], rng.integers(10**6)]


def generate():
    return iter([[np.zeros(3, "f4"), k, 0] for k in range(N)])


def shuffled():
    return RandomMapData(DataFromList([[np.full(3, k, "f4"), k] for k in range(N)]), noisy)


FLOWS = {
    "by index": shuffled,
    "replayed": lambda: DataFromGenerator(generate),
    "batches": lambda: BatchData(shuffled(), 3, remainder=True),
}

if __name__ == "__main__":
    rank, meeting, out = int(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    dataflow.seed(42)
    found = {}
    for name, make in FLOWS.items():
        for drop_uneven in (False, True):
            dataset = to_torch(make(), drop_uneven=drop_uneven)
            loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
            found[f"{name}, {drop_uneven}"] = passes = []
            for _ in range(PASSES):
                datapoints = [(numbers.dtype == torch.int64, numbers, drawn) for _, numbers, drawn in loader]
                assert all(is_int64 for is_int64, _, _ in datapoints)
                pairs = [[numbers.flatten().tolist(), drawn.flatten().tolist()] for _, numbers, drawn in datapoints]
                passes.append(pairs)
                if drop_uneven:  # one step of training each: this never ends if the counts differ
                    for _ in datapoints:
                        torch.distributed.all_reduce(torch.ones(1))
            if name != "replayed":
                assert len(dataset) == len(passes[0])
    torch.distributed.destroy_process_group()
    with open(out, "w") as file:
        json.dump(found, file)
"""


def run_ranks(folder):
    """What each of two ranks has got, by case and pass: pairs of lists, of numbers and of what was drawn for them."""
    (folder / "rank.py").write_text(RANK, "utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    environment |= {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    meeting, outs = (folder / "meeting").as_uri(), [folder / f"{rank}.json" for rank in range(2)]
    logs = [folder / f"{rank}.log" for rank in range(2)]
    ranks = []
    try:
        for rank in range(2):
            with open(logs[rank], "w") as log:
                command = [sys.executable, str(folder / "rank.py"), str(rank), meeting, str(outs[rank])]
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                ranks.append(subprocess.Popen(command, env=environment, start_new_session=True, **streams))
        for rank, process in enumerate(ranks):
            assert process.wait(TIMEOUT) == 0, logs[rank].read_text("utf-8")
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers of its DataLoader
                process.wait()
    return [json.loads(out.read_text("utf-8")) for out in outs]


def flat(steps):
    return [pair for numbers, drawn in steps for pair in zip(numbers, drawn, strict=True)]


@pytest.mark.slow
def test_two_ranks_with_two_workers_each_get_every_datapoint_of_a_pass_once(tmp_path):
    one, other = run_ranks(tmp_path)
    orders = []
    for case in one:
        name, _, drop_uneven = case.partition(", ")
        for p in range(PASSES):
            steps = one[case][p], other[case][p]
            pairs = [*flat(steps[0]), *flat(steps[1])]
            numbers = [number for number, _ in pairs]
            if drop_uneven == "True":
                assert len(steps[0]) == len(steps[1]) == {"batches": 4}.get(name, 11)
                assert len(set(numbers)) == len(numbers) >= 22
            else:
                assert abs(len(steps[0]) - len(steps[1])) <= 1
                assert sorted(numbers) == list(range(N))
            if name == "by index":
                orders.append((p, tuple(numbers)))
                assert len({drawn for _, drawn in pairs}) > 20, "each datapoint has random numbers of its own"
    assert len(set(orders)) == 4, "each pass has an order of its own"


@pytest.mark.parametrize("shape", ["function", "dict of lists", "predicate", "nested"])
def test_ranks_that_share_flows_in_code_need_a_seed(shape):
    def shares():
        return [to_torch(SHAPES[shape](shuffled), rank=rank, world_size=2) for rank in range(2)]

    dataflow.seed(None)
    with pytest.raises(NotReproducible, match=r"no seed is set, so DataFromList draws different numbers (in|on) each"):
        list(shares()[0])
    dataflow.seed(1)
    whole = list(SHAPES[shape](shuffled))
    first, second = map(list, shares())
    assert [first[k // 2] if k % 2 == 0 else second[k // 2] for k in range(len(whole))] == whole
    dataflow.seed(None)
