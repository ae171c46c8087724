"""Train a small torch network on real handwritten digits, augmented in worker processes.

The chain is that of `digits.py`, and so are the data, which ship with scikit-learn:

    list, shuffled -> random shift and noise per image -> runner with workers -> batches -> to_torch -> DataLoader

The workers are those of the flow, so the DataLoader has none. Its tensors share the memory of the arrays.

Run it with ``python examples/train_torch.py``. The exit code is 0 if the accuracy on held-out images is at least 96 %,
otherwise 1.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import digits

import dataflow
from dataflow import PrefetchToDevice, to_torch

try:
    import torch
    from torch.utils.data import DataLoader
except ImportError as error:
    sys.exit(f'torch cannot be imported ({error}). Install it with: pip install "dataflow-runners[torch]"')


def make_network() -> torch.nn.Module:
    """64 pixels -> 128 rectified units -> 10 digits."""
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(digits.NUM_PIXELS, digits.NUM_HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(digits.NUM_HIDDEN, digits.NUM_DIGITS),
    )


def train(network: torch.nn.Module, batches: Any, num_epochs: int) -> None:
    """Train on `num_epochs` passes of `batches`, with a decreasing learning rate."""
    optimizer = torch.optim.SGD(network.parameters(), lr=digits.LEARNING_RATE, momentum=digits.MOMENTUM)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 1 / num_epochs, num_epochs)
    for _ in range(num_epochs):
        for images, labels in batches:  # float32 (32, 8, 8), int64 (32,)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
        schedule.step()


def accuracy(network: torch.nn.Module, test: digits.Digits, device: str) -> float:
    """The fraction of the digits that are recognised."""
    with torch.no_grad():
        scores = network(torch.from_numpy(test.images).to(device)).cpu()
    return float((scores.argmax(dim=1).numpy() == test.labels).mean())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments end the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Train a small torch network on handwritten digits.")
    parser.add_argument("--workers", type=digits.positive, default=2, help="number of processes (%(default)s)")
    parser.add_argument("--epochs", type=digits.positive, default=30, help="passes over the images (%(default)s)")
    parser.add_argument("--device", default="cpu", help="where to train: cpu, cuda (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, test, and print the accuracy.

    Returns:
        The exit code: 0 if the accuracy is at least 96 %, otherwise 1.
    """
    options = parse(argv)
    training, test = digits.load_digits()
    dataflow.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is tiny, and the workers need the cores
    network = make_network().to(options.device)
    with digits.make_batches(training, "zmq", options.workers) as flow:
        on_cpu = options.device == "cpu"
        batches = DataLoader(to_torch(flow), batch_size=None) if on_cpu else PrefetchToDevice(flow, options.device)
        train(network, batches, options.epochs)
    found = accuracy(network, test, options.device)
    print(f"torch    {torch.__version__}, workers: {options.workers}, device: {options.device}")
    print(f"accuracy {found:.2%} right; wanted: at least {digits.WANTED_ACCURACY:.0%}")
    return 0 if found >= digits.WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
