"""Train on a Ray cluster of two nodes, kill one of them in the middle of a pass, and compare with a run without Ray.

The network and the digits are those of ``digits.py``. The chain:

    list, shuffled -> random shift and noise per image -> RayRunner with an actor on each node -> batches -> network

Both nodes run on this machine, and cannot be reached from other machines. One is killed with its actor; a new one
replaces it. The script checks that the network was shown every digit exactly once in each pass, in the order of a run
without a cluster, and that it has the same accuracy.

Run it with ``python examples/cluster.py``. The exit code is 0 if all of that holds, otherwise 1.
"""

import argparse
import contextlib
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from digits import (
    BATCH_SIZE,
    LEARNING_RATE,
    NOISE,
    SHIFTS,
    WANTED_ACCURACY,
    Array,
    Digits,
    Network,
    load_digits,
    positive,
    shift_image,
)

import dataflow
from dataflow import BatchData, DataFlow, DataFromList, RandomMapData, RayRunner

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for it: all sockets on 127.0.0.1
    "RAY_AUTH_MODE": "disabled",  # other machines cannot reach them
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "500",  # a dead node is noticed after 3 of these
    "RAY_health_check_failure_threshold": "3",
}
STORE_BYTES = 128 << 20
NODES = 2


class Run(NamedTuple):
    """The result of one training run: the accuracy, and the numbers of the digits shown, in order, for each pass."""

    accuracy: float
    shown: list[list[int]]


def shift_and_noise(dp: list[Any], rng: np.random.Generator) -> list[Any]:
    """Shift an image by at most one pixel, and add noise: ``[number, image, label]``."""
    number, image, label = dp
    rows, columns = SHIFTS[rng.integers(len(SHIFTS))]
    noise = rng.normal(scale=NOISE, size=image.shape).astype(np.float32)
    return [number, shift_image(image, rows, columns) + noise, label]


def make_flow(digits: Digits) -> DataFlow:
    """Build the part that the actors run: datapoints ``[number, float32 (8, 8), label]``."""
    numbered = [[number, image, int(label)] for number, (image, label) in enumerate(zip(*digits, strict=True))]
    return RandomMapData(DataFromList(numbered, shuffle=True), shift_and_noise)


def train(
    flow: DataFlow, test: Digits, options: argparse.Namespace, disturb: Callable[[int], None] | None = None
) -> Run:
    """Train a new network on `flow`; `disturb` is called in the middle of the training, with the number of the pass."""
    network = Network(np.random.default_rng(options.seed))
    shown: list[list[int]] = []
    with BatchData(flow, BATCH_SIZE, remainder=True) as batches:
        for epoch in range(options.epochs):
            shown.append([])
            for k, (numbers, images, labels) in enumerate(batches):
                if disturb is not None and (epoch, k) == (options.epochs // 2, len(batches) // 2):
                    disturb(epoch)
                network.learn(images, labels, LEARNING_RATE * (1 - epoch / options.epochs))
                shown[-1].extend(numbers.tolist())
    return Run(accuracy_of(network, test), shown)


def accuracy_of(network: Network, test: Digits) -> float:
    """The fraction of digits that `network` recognises."""
    right: Array = network.predict(test.images) == test.labels
    return float(np.mean(right))


def train_on_cluster(training: Digits, test: Digits, options: argparse.Namespace) -> Run:
    """Start two nodes with one core each, train, and replace the second one in the middle."""
    import ray
    from ray.cluster_utils import Cluster

    say = partial(print, file=sys.stdout, flush=True)
    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    with contextlib.redirect_stdout(io.StringIO()):  # Ray prints a page of its log for a dead node
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            doomed = cluster.add_node(**node)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            say(f"cluster  nodes: {len(ray.nodes())}, with one core each; an actor on each")

            def kill(epoch: int) -> None:
                cluster.remove_node(doomed, allow_graceful=False)
                say(f"killed   one of the nodes, in the middle of pass {epoch}; another is added")
                cluster.add_node(**node)
                while sum(known["Alive"] for known in ray.nodes()) > NODES:  # its actor may run for some more seconds
                    time.sleep(0.1)

            runner = RayRunner(make_flow(training), num_workers=NODES, strict=True, max_restarts=1, timeout=120)
            return train(runner, test, options, kill)
        finally:
            ray.shutdown()
            cluster.shutdown()


def check(claim: str, holds: bool) -> bool:
    """Print whether a claim holds."""
    print(f"checked  {claim}: {'yes' if holds else 'NO'}")
    return holds


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments end the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Train on a Ray cluster that loses a node, and check every datapoint.")
    parser.add_argument("--epochs", type=positive, default=30, help="passes over the training images (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train twice, compare, print.

    Returns:
        The exit code: 0 if both runs had the same data and the same, sufficient accuracy; otherwise 1.
    """
    options = parse(argv)
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    training, test = load_digits()
    print(f"digits   {len(training.images)} for training, {len(test.images)} held out")

    dataflow.seed(options.seed)
    alone = train(make_flow(training), test, options)
    print(f"alone    {alone.accuracy:.2%} right", flush=True)

    dataflow.seed(options.seed)
    on_cluster = train_on_cluster(training, test, options)
    print(f"cluster  {on_cluster.accuracy:.2%} right; wanted: at least {WANTED_ACCURACY:.0%}")

    once = Counter(range(len(training.images)))
    total = sum(map(len, on_cluster.shown))
    checks = [
        check(
            f"{total} datapoints: each of {len(once)} digits exactly once in each of {options.epochs} passes",
            all(Counter(shown) == once for shown in on_cluster.shown),
        ),
        check("the order is that of the run without a cluster", on_cluster.shown == alone.shown),
        check("the network has learnt the same", on_cluster.accuracy == alone.accuracy),
        on_cluster.accuracy >= WANTED_ACCURACY,
    ]
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
