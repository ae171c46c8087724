"""Train a classifier on texts of different lengths, batched by length and padded.

The texts are the paragraphs of NumPy's own documentation, so nothing is downloaded. The classifier tells from a
paragraph which part of NumPy it describes. The chain:

    list of paragraphs, shuffled -> words to numbers, in workers -> batches of similar lengths, padded -> classifier

The classifier is plain numpy: the mean of the words' scores, in which the mask leaves out the padding.

Run it with ``python examples/text.py``. The exit code is 0 if at least 80 % of the held-out paragraphs are recognised,
otherwise 1.
"""

import argparse
import re
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.fft
import numpy.linalg
import numpy.ma
import numpy.polynomial
import numpy.random
from numpy.typing import NDArray

import dataflow
from dataflow import BucketBatchData, DataFlow, DataFromList, MultiProcessMapData

PARTS = {
    "fft": [numpy.fft],
    "linalg": [numpy.linalg],
    "ma": [numpy.ma],
    "polynomial": [numpy.polynomial.Polynomial, numpy.polynomial.Chebyshev, numpy.polynomial.polynomial],
    "random": [numpy.random.Generator, numpy.random.RandomState],
}
MIN_WORDS = 5
NUM_WORDS = 1 << 14  # words are hashed into this many numbers
HELD_BACK = 5  # one of so many documents
BATCH_SIZE = 16
BOUNDARIES = [12, 24, 48, 96]  # words
LEARNING_RATE = 20.0
WANTED_ACCURACY = 0.8

Array = NDArray[Any]


def load_paragraphs() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Collect the paragraphs of the documentation, each with its part: for training, and held out.

    All paragraphs of one document are either in the one list or in the other, and none is in both.
    """
    training: dict[str, int] = {}
    test: dict[str, int] = {}
    for label, holders in enumerate(PARTS.values()):
        for holder in holders:
            for name, value in sorted(vars(holder).items()):
                if name.startswith("_") or not callable(value):
                    continue
                chosen = test if zlib.crc32(name.encode()) % HELD_BACK == 0 else training
                for paragraph in re.split(r"\n\s*\n", getattr(value, "__doc__", None) or ""):
                    if len(words_of(paragraph)) >= MIN_WORDS:
                        chosen.setdefault(paragraph.strip(), label)
    return [
        [{"text": text, "label": label} for text, label in chosen.items() if chosen is training or text not in training]
        for chosen in (training, test)
    ]


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return re.findall(r"[a-z]+", text.lower())


def tokenise(dp: dict[str, Any]) -> dict[str, Any]:
    """Turn a text into a list of numbers, one for each word. Runs in the workers."""
    return {"ids": [zlib.crc32(word.encode()) % NUM_WORDS for word in words_of(dp["text"])], "label": dp["label"]}


def num_words(dp: dict[str, Any]) -> int:
    """The length by which batches are made."""
    return len(dp["ids"])


def make_batches(paragraphs: list[dict[str, Any]], num_workers: int) -> DataFlow:
    """Build the whole chain: dicts of ids and mask ``(n, longest)``, and labels ``(n,)``."""
    df = MultiProcessMapData(DataFromList(paragraphs), num_workers, tokenise, strict=True)
    return BucketBatchData(df, BATCH_SIZE, key=num_words, boundaries=BOUNDARIES, mask=True)


def probabilities(weights: Array, batch: dict[str, Array]) -> Array:
    """The probability of each part, ``(n, 5)``, from the mean of the words' weights."""
    scores = (weights[batch["ids"]] * batch["ids_mask"][:, :, None]).sum(axis=1) / batch["ids_length"][:, None]
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return result


def learn(weights: Array, batch: dict[str, Array]) -> None:
    """Take one gradient step on one batch."""
    slopes = probabilities(weights, batch) - np.eye(len(PARTS))[batch["label"]]
    share = batch["ids_mask"] / batch["ids_length"][:, None]
    np.add.at(weights, batch["ids"], -LEARNING_RATE / BATCH_SIZE * share[:, :, None] * slopes[:, None, :])


def positive(text: str) -> int:
    """Read a whole number of at least 1 from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small; give at least 1")
    return number


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments end the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Tell which part of NumPy a paragraph describes.")
    parser.add_argument("--workers", type=positive, default=2, help="number of processes (%(default)s)")
    parser.add_argument("--epochs", type=positive, default=10, help="passes over the paragraphs (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, test, and print the accuracy.

    Returns:
        The exit code: 0 if the accuracy is at least 80 %, otherwise 1.
    """
    options = parse(argv)
    dataflow.seed(0)
    training, test = load_paragraphs()
    most = Counter(dp["label"] for dp in test).most_common(1)[0][1] / len(test)
    print(f"texts    {len(training)} for training, {len(test)} held out; the largest part has {most:.0%} of these")
    weights = np.zeros((NUM_WORDS, len(PARTS)))
    num_padded = num_all = 0
    with make_batches(training, options.workers) as batches:
        for _ in range(options.epochs):
            for batch in batches:
                learn(weights, batch)
                num_all += batch["ids"].size
                num_padded += batch["ids"].size - int(batch["ids_length"].sum())
    print(f"padding  {num_padded / num_all:.0%} of the numbers in the batches")
    with make_batches(test, options.workers) as batches:
        right = sum(int((probabilities(weights, batch).argmax(axis=1) == batch["label"]).sum()) for batch in batches)
    accuracy = right / len(test)
    print(f"accuracy {accuracy:.2%} right; wanted: at least {WANTED_ACCURACY:.0%}")
    return 0 if accuracy >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
