"""Turn wav files into spectrograms in worker processes, and learn to tell tones from noise.

The files are made first, by the module `wave` of the standard library: short recordings of four kinds, with a random
pitch, loudness and background noise. The chain:

    list of files, shuffled -> read a part of the file -> spectrogram -> batches

Each datapoint reads its file again, from a random position, as with a folder of a million recordings. The functions run
in a strict runner: every file once in each pass, in an order that depends on the seed only. A classifier in plain numpy
shows that the labels belong to their sounds.

Run it with ``python examples/sound.py``.
"""

import argparse
import sys
import tempfile
import time
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dataflow
from dataflow import BatchData, DataFlow, DataFromList, ParallelData, RandomMapData

Samples = NDArray[np.float32]

# The recordings.
KINDS = ("sine", "square", "chirp", "noise")
RATE = 16_000  # samples per second
SECONDS = 1.0
LOUDEST = 32_767  # of 16-bit samples
NUM_TRAINING = 200  # files, of all kinds together
NUM_HELD_BACK = 80

# The spectrogram.
NUM_SAMPLES = 8_192  # read from each file, half a second
WINDOW = 512  # samples
HOP = 256
NUM_FRAMES = (NUM_SAMPLES - WINDOW) // HOP + 1
NUM_BANDS = 32
QUIETEST = 1e-6  # power, before the logarithm

BATCH_SIZE = 20
GOOD = 0.9  # accuracy


def make_sound(kind: str, rng: np.random.Generator) -> Samples:
    """Make a recording of one kind: float32 ``(RATE * SECONDS,)`` in [-1, 1]."""
    seconds = np.arange(int(RATE * SECONDS)) / RATE
    pitch = rng.uniform(200, 2_000)  # hertz
    wave_of = {
        "sine": lambda: np.sin(2 * np.pi * pitch * seconds),
        "square": lambda: np.sign(np.sin(2 * np.pi * pitch * seconds)),
        "chirp": lambda: np.sin(2 * np.pi * pitch * (1 + 2 * seconds) * seconds),
        "noise": lambda: rng.uniform(-1, 1, seconds.size),
    }
    sound = rng.uniform(0.2, 0.9) * wave_of[kind]() + rng.normal(0, 0.02, seconds.size)
    return np.clip(sound, -1, 1).astype(np.float32)


def write_wav(path: Path, sound: Samples) -> None:
    """Write one channel of 16-bit samples."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound * LOUDEST).astype("<i2").tobytes())


def make_files(folder: Path, num_files: int, seed: int) -> list[tuple[str, int]]:
    """Make wav files in a folder, and list them as ``(path, label)``."""
    rng = np.random.default_rng(seed)
    files = []
    for k in range(num_files):
        label = k % len(KINDS)
        path = folder / f"{seed}-{k:04d}-{KINDS[label]}.wav"
        write_wav(path, make_sound(KINDS[label], rng))
        files.append((str(path), label))
    return files


def read_part(path: str, rng: np.random.Generator) -> Samples:
    """Read `NUM_SAMPLES` samples from a random position of a wav file.

    Raises:
        ValueError: The file is no recording of one channel and 16 bits, or is too short; the message names it.
    """
    try:
        with wave.open(path, "rb") as file:
            if (file.getnchannels(), file.getsampwidth()) != (1, 2) or file.getnframes() < NUM_SAMPLES:
                raise ValueError(f"{path} is not one channel of at least {NUM_SAMPLES} samples of 16 bits")
            file.setpos(int(rng.integers(file.getnframes() - NUM_SAMPLES, endpoint=True)))
            data = file.readframes(NUM_SAMPLES)
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path} is not a wav file: {error}") from error
    return np.frombuffer(data, "<i2").astype(np.float32) / LOUDEST


def spectrogram(sound: Samples) -> NDArray[np.float32]:
    """The logarithm of the power in each band and window: float32 ``(NUM_FRAMES, NUM_BANDS)``."""
    windows = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(windows)[:, 1:]) ** 2
    bands = power.reshape(len(windows), NUM_BANDS, -1).mean(axis=2)
    return np.log(bands + QUIETEST).astype(np.float32)


def load(dp: tuple[str, int], rng: np.random.Generator) -> tuple[NDArray[np.float32], int]:
    """The work for one datapoint ``(path, label)``."""
    path, label = dp
    return spectrogram(read_part(path, rng)), label


def make_batches(files: list[tuple[str, int]], num_workers: int, shuffle: bool) -> DataFlow:
    """Build the chain: datapoints ``(float32 (20, NUM_FRAMES, NUM_BANDS), int32 (20,))``."""
    df = RandomMapData(DataFromList(files, shuffle=shuffle), load)
    return BatchData(ParallelData(df, num_workers), BATCH_SIZE)


def features(spectrograms: NDArray[np.float32]) -> NDArray[np.float64]:
    """Eight numbers for each spectrogram, none of which depends on loudness."""
    power = np.exp(spectrograms.astype(np.float64))
    shares = power / power.sum(axis=2, keepdims=True)
    peaks = shares.argmax(axis=2)
    second = np.sort(shares, axis=2)[:, :, -2]
    loud = (shares > 0.01).sum(axis=2)
    entropy = -(shares * np.log(shares)).sum(axis=2)
    numbers = [shares.max(axis=2), second, loud, entropy, np.abs(np.diff(peaks, axis=1))]
    columns = [column.mean(axis=1) for column in numbers]
    columns += [np.ptp(peaks, axis=1), peaks.std(axis=1), np.ones(len(power))]
    return np.stack(columns, axis=1)


class Classifier:
    """Least squares from features to kinds, with the running sums of all batches seen."""

    def __init__(self) -> None:
        self.squares = 1e-3 * np.eye(8)
        self.products = np.zeros((8, len(KINDS)))

    def learn(self, spectrograms: NDArray[np.float32], labels: NDArray[np.integer]) -> None:
        numbers = features(spectrograms)
        self.squares += numbers.T @ numbers
        self.products += numbers.T @ np.eye(len(KINDS))[labels]

    def predict(self, spectrograms: NDArray[np.float32]) -> NDArray[np.integer]:
        return (features(spectrograms) @ np.linalg.solve(self.squares, self.products)).argmax(axis=1)


def run(folder: Path, num_workers: int, epochs: int) -> float:
    """Make the files, learn, and return the accuracy on files that were held back."""
    training = make_files(folder, NUM_TRAINING, seed=0)
    held_back = make_files(folder, NUM_HELD_BACK, seed=1)
    print(f"files    {len(training)} to learn from, {len(held_back)} held back, {SECONDS:g} s each")
    classifier = Classifier()
    num_sounds, started = 0, time.perf_counter()
    with make_batches(training, num_workers, shuffle=True) as batches:
        for _ in range(epochs):
            for spectrograms, labels in batches:
                classifier.learn(spectrograms, labels)
                num_sounds += len(labels)
    seconds = time.perf_counter() - started
    print(f"learnt   {num_sounds} spectrograms {spectrograms.shape[1:]} in {seconds:.1f} s, workers: {num_workers}")
    with make_batches(held_back, num_workers, shuffle=False) as batches:
        right = [classifier.predict(spectrograms) == labels for spectrograms, labels in batches]
    return float(np.concatenate(right).mean())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example.

    Returns:
        The exit code: 0 if at least 90 % of the sounds that were held back are told apart, otherwise 1.
    """
    parser = argparse.ArgumentParser(description="Turn wav files into spectrograms, and learn to tell them apart.")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="number of processes (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="passes over the files (%(default)s)")
    options = parser.parse_args(argv)
    if options.workers < 0 or options.epochs < 1:
        parser.error("give at least one epoch, and 0 workers (no processes) or more")
    dataflow.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        accuracy = run(Path(folder), options.workers, options.epochs)
    print(f"right    {accuracy:.1%} of the sounds that were held back")
    return 0 if accuracy >= GOOD else 1


if __name__ == "__main__":
    sys.exit(main())
