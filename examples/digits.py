"""Train a small network on real handwritten digits, augmented in worker processes.

The 1,797 digits ship with scikit-learn, so nothing is downloaded. The chain:

    list, shuffled -> random shift and noise per image -> runner with workers -> batches -> network

The network is plain numpy and learns in this process; the runner moves the shuffling and the augmentation
into its workers. With ``strict=True`` every image comes once in each epoch, in the same order with every runner:
``--runner`` and ``--workers`` change only where the work is done.

Run it with ``python examples/digits.py``. The exit code is 0 if the median accuracy on held-out images is at
least 96 %, otherwise 1.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import dataflow
from dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadRunner,
    RandomMapData,
)

Array = NDArray[Any]

# The data.
IMAGE_SIDE = 8
NUM_PIXELS = IMAGE_SIDE * IMAGE_SIDE
NUM_DIGITS = 10
BRIGHTEST_PIXEL = 16
NUM_HELD_BACK = 360
SPLIT_SEED = 0

# The augmentation. One pixel is an eighth of an image; a larger shift would cut strokes off.
SHIFTS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
NOISE = 0.1

# The training.
BATCH_SIZE = 32
NUM_HIDDEN = 128
LEARNING_RATE = 0.2
MOMENTUM = 0.9
WANTED_ACCURACY = 0.96

# Number of datapoints that each worker of `MultiProcessRunner` and `MultiThreadRunner` prefetches.
NUM_PREFETCH = 256


class Digits(NamedTuple):
    """Images, float32 ``(num_images, 8, 8)`` from 0 to 1, and the digits they show, ``(num_images,)``."""

    images: Array
    labels: Array


class Result(NamedTuple):
    """The result of one training run: the accuracy on held-out images, and the speed."""

    accuracy: float
    images_per_second: float


def load_digits() -> tuple[Digits, Digits]:
    """Split scikit-learn's digits into a training set and a test set, always in the same way.

    Returns:
        1,437 digits to train on and 360 to test with.

    Raises:
        SystemExit: scikit-learn cannot be imported; the message says what to install.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        sys.exit(
            f"The digits ship with scikit-learn, which cannot be imported ({error}). "
            'Install it with: pip install "dataflow-runners[examples]"'
        )
    bunch = datasets.load_digits()
    images = (bunch.images / BRIGHTEST_PIXEL).astype(np.float32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    held_back, kept = order[:NUM_HELD_BACK], order[NUM_HELD_BACK:]
    return Digits(images[kept], bunch.target[kept]), Digits(images[held_back], bunch.target[held_back])


def shift_image(image: Array, rows: int, columns: int) -> Array:
    """Move an image down by `rows` and right by `columns`, each -1, 0 or 1; new pixels are black."""
    padded = np.pad(image, 1)
    top, left = 1 - rows, 1 - columns
    return padded[top : top + IMAGE_SIDE, left : left + IMAGE_SIDE]


def shift_and_noise(dp: list[Any], rng: np.random.Generator) -> list[Any]:
    """Shift an image by at most one pixel, and add noise.

    Args:
        dp: ``[image, label]``; the image is float32 ``(8, 8)``.
        rng: The random generator of this datapoint.
    """
    image, label = dp
    rows, columns = SHIFTS[rng.integers(len(SHIFTS))]
    noise = rng.normal(scale=NOISE, size=image.shape).astype(np.float32)
    return [shift_image(image, rows, columns) + noise, label]


# Each runner takes a function that makes the flow, as `MultiThreadRunner` needs one flow per thread.
RUNNERS: dict[str, Callable[[Callable[[], DataFlow], int], DataFlow]] = {
    "zmq": lambda make_flow, num_workers: MultiProcessRunnerZMQ(make_flow(), num_workers, strict=True),
    "process": lambda make_flow, num_workers: MultiProcessRunner(make_flow(), NUM_PREFETCH, num_workers, strict=True),
    "thread": lambda make_flow, num_workers: MultiThreadRunner(make_flow, NUM_PREFETCH, num_workers, strict=True),
    "none": lambda make_flow, num_workers: make_flow(),
}


def make_batches(digits: Digits, runner: str, num_workers: int) -> DataFlow:
    """Build the whole chain: datapoints ``[float32 (32, 8, 8), int32 (32,)]``, 44 of them per pass."""
    datapoints = [[image, int(label)] for image, label in zip(*digits, strict=True)]

    def make_augmented() -> DataFlow:
        return RandomMapData(DataFromList(datapoints, shuffle=True), shift_and_noise)

    return BatchData(RUNNERS[runner](make_augmented, num_workers), BATCH_SIZE)


class Network:
    """64 pixels -> 128 rectified units -> 10 digits, trained by gradient descent with momentum.

    Args:
        rng: Draws the initial weights, scaled as in He et al., 2015.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.parameters = [
            rng.normal(scale=np.sqrt(2 / NUM_PIXELS), size=(NUM_PIXELS, NUM_HIDDEN)),
            np.zeros(NUM_HIDDEN),
            rng.normal(scale=np.sqrt(2 / NUM_HIDDEN), size=(NUM_HIDDEN, NUM_DIGITS)),
            np.zeros(NUM_DIGITS),
        ]
        self.velocities = [np.zeros_like(parameter) for parameter in self.parameters]

    def forward(self, pixels: Array) -> tuple[Array, Array]:
        """Compute the hidden units ``(n, 128)`` and the scores ``(n, 10)`` of images given as ``(n, 64)``."""
        weights_1, bias_1, weights_2, bias_2 = self.parameters
        hidden = np.maximum(pixels @ weights_1 + bias_1, 0)
        return hidden, hidden @ weights_2 + bias_2

    def predict(self, images: Array) -> Array:
        """Recognise the digits ``(n,)`` of images ``(n, 8, 8)``."""
        _, scores = self.forward(images.reshape(-1, NUM_PIXELS))
        return scores.argmax(axis=1)

    def gradients(self, images: Array, labels: Array) -> list[Array]:
        """Compute the gradient of the mean cross-entropy for every parameter, in the order of `parameters`."""
        pixels = images.reshape(-1, NUM_PIXELS)
        hidden, scores = self.forward(pixels)
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        score_slopes = (probabilities - np.eye(NUM_DIGITS)[labels]) / len(labels)
        hidden_slopes = (score_slopes @ self.parameters[2].T) * (hidden > 0)
        return [
            pixels.T @ hidden_slopes,
            hidden_slopes.sum(axis=0),
            hidden.T @ score_slopes,
            score_slopes.sum(axis=0),
        ]

    def learn(self, images: Array, labels: Array, learning_rate: float) -> None:
        """Take one gradient step on one batch."""
        slopes = self.gradients(images, labels)
        for parameter, velocity, slope in zip(self.parameters, self.velocities, slopes, strict=True):
            velocity *= MOMENTUM
            velocity -= learning_rate * slope
            parameter += velocity


def train(network: Network, batches: DataFlow, num_epochs: int, progress: "tqdm[Any]") -> None:
    """Train on `num_epochs` passes of `batches`, with a decreasing learning rate."""
    for epoch in range(num_epochs):
        learning_rate = LEARNING_RATE * (1 - epoch / num_epochs)
        for images, labels in batches:
            network.learn(images, labels, learning_rate)
            progress.update(len(images))


def run_seed(seed: int, training: Digits, test: Digits, options: argparse.Namespace) -> Result:
    """Train a new network and test it. The time includes the start of the workers, but not the test."""
    dataflow.seed(seed)
    network = Network(np.random.default_rng(seed))
    started = time.perf_counter()
    with make_batches(training, options.runner, options.workers) as batches:
        num_images = options.epochs * len(batches) * BATCH_SIZE
        with tqdm(total=num_images, desc=f"seed {seed}", unit=" images", leave=False) as progress:
            train(network, batches, options.epochs, progress)
    images_per_second = num_images / (time.perf_counter() - started)
    accuracy = float(np.mean(network.predict(test.images) == test.labels))
    return Result(accuracy, images_per_second)


def count_cores() -> int:
    """The number of cores that this process may use, or of the machine if that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def print_setting(options: argparse.Namespace) -> None:
    """Print the conditions of the following figures."""
    workers = "in this process" if options.runner == "none" else f"workers: {options.workers}"
    print(f"machine  {platform.system()} {platform.machine()}, cores: {count_cores()}")
    print(f"python   {platform.python_version()}, numpy {np.__version__}")
    print(f"runner   {options.runner}, {workers}", flush=True)


def positive(text: str) -> int:
    """Read a whole number of at least 1 from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small; give at least 1")
    return number


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments end the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits, in plain numpy.")
    parser.add_argument("--runner", choices=RUNNERS, default="zmq", help="where the images are augmented (%(default)s)")
    parser.add_argument("--workers", type=positive, default=2, help="number of processes or threads (%(default)s)")
    parser.add_argument("--epochs", type=positive, default=30, help="passes over the training images (%(default)s)")
    parser.add_argument(
        "--seeds", type=positive, default=3, help="number of training runs; the median counts (%(default)s)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train once per seed, print each result and the median.

    Returns:
        The exit code: 0 if the median accuracy is at least 96 %, otherwise 1.
    """
    options = parse(argv)
    training, test = load_digits()
    print(f"digits   {len(training.images)} for training, {len(test.images)} held out")
    print_setting(options)
    results = []
    for seed in range(options.seeds):
        result = run_seed(seed, training, test, options)
        print(f"seed {seed}   {result.accuracy:.2%} right, {result.images_per_second:,.0f} images/s", flush=True)
        results.append(result)
    median = statistics.median(result.accuracy for result in results)
    print(f"median   {median:.2%} right; wanted: at least {WANTED_ACCURACY:.0%}")
    return 0 if median >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
