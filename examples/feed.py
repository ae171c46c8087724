"""Feed a trainer from other processes, over an encrypted TCP connection.

Two sender processes, which could also run on other machines, each read half of scikit-learn's handwritten digits, add
noise to them and send them. This process trains a linear classifier on the received images:

    half of the digits -> shuffle -> noise -> send_dataflow_zmq ─┐
                                                                 ├─ tcp, CURVE ─> RemoteDataZMQ -> batches -> training
    half of the digits -> shuffle -> noise -> send_dataflow_zmq ─┘

One call of `send_dataflow_zmq` sends one pass and its end, so an epoch here is exactly one pass of both. The script
counts the images, and ends with exit code 1 if one is missing or came twice, or if the accuracy is too low.

With ``--kill`` one sender is killed: the exit code is 0 if the trainer gets an error within seven seconds.

Run it with ``python examples/feed.py``.
"""

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataflow import BatchData, DataFromList, MapData, RandomMapData, RemoteDataZMQ, SenderLost, send_dataflow_zmq

Array = NDArray[Any]

NUM_SENDERS = 2
NUM_HELD_BACK = 360
BATCH_SIZE = 32
LEARNING_RATE = 0.3
NOISE = 0.05
WANTED_ACCURACY = 0.9
REPORTED_WITHIN = 7.0  # seconds: three heartbeats of two seconds, and one more
DELAY = 0.002  # seconds per image with --kill, so that the sender is killed in the middle of a pass


def load_digits() -> tuple[Array, Array]:
    """Images, float32 ``(1797, 64)`` from 0 to 1, in random order; and their digits, ``(1797,)``."""
    try:
        from sklearn import datasets
    except ImportError as error:
        sys.exit(
            f"The digits ship with scikit-learn, which cannot be imported ({error}). "
            'Install it with: pip install "dataflow-runners[examples]"'
        )
    bunch = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return (bunch.data / 16).astype(np.float32)[order], bunch.target[order]


def add_noise(dp: list[Any], rng: np.random.Generator) -> list[Any]:
    """Add random noise to the image."""
    return [dp[0] + rng.normal(scale=NOISE, size=dp[0].shape).astype(np.float32), *dp[1:]]


def wait_a_little(dp: list[Any]) -> list[Any]:
    """Return the datapoint after a short delay."""
    time.sleep(DELAY)
    return dp


def send(rank: int, address: str, keys: str, epochs: int, *, is_slow: bool) -> None:
    """Main function of a sender process: sends one pass over its half of the digits per epoch."""
    images, labels = load_digits()
    numbers = range(NUM_HELD_BACK + rank, len(labels), NUM_SENDERS)
    df = RandomMapData(DataFromList([[images[k], int(labels[k]), k] for k in numbers]), add_noise)
    for _ in range(epochs):
        send_dataflow_zmq(MapData(df, wait_a_little) if is_slow else df, address, curve=keys, timeout=60)


def start_senders(address: str, keys: str, epochs: int, *, is_slow: bool) -> list[BaseProcess]:
    """Start the senders as new interpreters, which share only the keys with this process."""
    context = multiprocessing.get_context("spawn")
    senders: list[BaseProcess] = [
        context.Process(target=send, args=(rank, address, keys, epochs), kwargs={"is_slow": is_slow})
        for rank in range(NUM_SENDERS)
    ]
    for sender in senders:
        sender.start()
    return senders


class Classifier:
    """One layer and a softmax, trained by gradient descent."""

    def __init__(self) -> None:
        self.weights = np.zeros((65, 10))

    def scores(self, images: Array) -> Array:
        """The scores ``(n, 10)`` of all digits for images ``(n, 64)``."""
        scores: Array = images @ self.weights[:64] + self.weights[64]
        return scores

    def learn(self, images: Array, labels: Array) -> None:
        """Take one gradient step on one batch."""
        scores = self.scores(images)
        slopes = np.exp(scores - scores.max(axis=1, keepdims=True))
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(len(labels)), labels] -= 1
        ones = np.ones((len(images), 1))
        self.weights -= LEARNING_RATE * np.hstack([images, ones]).T @ slopes / len(images)


def train(df: RemoteDataZMQ, epochs: int) -> bool:
    """Train on all passes; return whether each image came once in each, and the accuracy is sufficient."""
    images, labels = load_digits()
    expected = Counter(range(NUM_HELD_BACK, len(labels)))
    classifier = Classifier()
    right = True
    for epoch in range(epochs):
        seen: Counter[int] = Counter()
        for batch, answers, numbers in BatchData(df, BATCH_SIZE, remainder=True):
            classifier.learn(batch, answers)
            seen.update(numbers.tolist())
        right &= seen == expected
        accuracy = float((classifier.scores(images[:NUM_HELD_BACK]).argmax(1) == labels[:NUM_HELD_BACK]).mean())
        print(
            f"epoch {epoch}   {seen.total()} images, {len(expected - seen)} missing, {len(seen - expected)} twice; "
            f"{accuracy:.1%} accuracy on held-out images",
            flush=True,
        )
    return right and accuracy >= WANTED_ACCURACY


def train_until_a_sender_is_lost(df: RemoteDataZMQ, victim: BaseProcess) -> bool:
    """Kill a sender in the middle of a pass; return whether the error comes in time."""
    classifier = Classifier()
    killed = None
    try:
        for count, (images, labels, _) in enumerate(BatchData(df, BATCH_SIZE)):
            classifier.learn(images, labels)
            if count == 5:
                victim.kill()
                killed = time.monotonic()
    except SenderLost as lost:
        after = time.monotonic() - (killed or 0.0)
        print(f"lost     {lost.received} of {lost.announced} datapoints received, reported after {after:.1f} s")
        print(f"         {lost}")
        return killed is not None and after <= REPORTED_WITHIN
    print("the pass has ended without an error")
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Start the senders and train; return the exit code."""
    parser = argparse.ArgumentParser(description="Feed a trainer over an encrypted TCP connection.")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the images (%(default)s)")
    parser.add_argument("--kill", action="store_true", help="kill one sender in the middle of the first pass")
    options = parser.parse_args(argv)
    if options.epochs < 1:
        parser.error(f"--epochs: {options.epochs} is too small; give at least 1")
    load_digits()  # fails early if scikit-learn is missing
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "keys")
        subprocess.run([sys.executable, "-m", "dataflow", "keys", keys], check=True, stdout=subprocess.DEVNULL)
        with RemoteDataZMQ("tcp://127.0.0.1:*", num_senders=NUM_SENDERS, curve=keys, timeout=60) as df:
            df.reset_state()  # binds to a port that the system chooses
            print(f"receive  at {df.addresses[0]}, with keys")
            senders = start_senders(df.addresses[0], keys, options.epochs, is_slow=options.kill)
            try:
                right = train_until_a_sender_is_lost(df, senders[0]) if options.kill else train(df, options.epochs)
            finally:
                for sender in senders:
                    sender.join(10 if not options.kill else 0)
                    sender.kill()
                    sender.join()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
