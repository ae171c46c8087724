"""Reading datapoints from disk, compared with other libraries: ``python -m benchmarks.disk``.

Every reader reads a file that its own library wrote, in passes over all datapoints ``[image, label]``, in a process of
its own; readers take turns. The figure is datapoints per second of the fastest pass; the files are in the page cache.
Ratios are those of the medians over all runs.

Images are counted as they are yielded ("given"), or copied into batches ("batched"): some readers yield copies, others
views of the file, which cost time only when they are read.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CONTESTS", "Contest", "main"]

ROOT = Path(__file__).parents[1]

IMAGES = {"small": ((28, 28, 3), 40_000), "image": ((224, 224, 3), 2_000)}
"""Shape of the uint8 images, and how many there are in a file."""

USES = ("given", "batched")
BATCH = 32


@dataclass(frozen=True)
class Contest:
    """Ours against a peer.

    Attributes:
        ours: Name of our reader below.
        peer: That of the peer.
        requires: What to install into the peer's environment; None if it runs in ours.
        factors: How many times as fast ours has to be at giving images, by their kind.
    """

    ours: str
    peer: str
    requires: tuple[str, ...] | None
    factors: Mapping[str, float]


CONTESTS = {
    "lmdb": Contest(
        "our_lmdb", "tensorpack_lmdb", ("tensorpack==0.11", "lmdb>=1.4", "numpy>=1.26"), {"small": 1.0, "image": 1.0}
    ),
    "tfrecord": Contest(
        "our_tfrecord", "tfrecord_package", ("tfrecord==1.14.6", "numpy>=1.26"), {"small": 1.0, "image": 1.0}
    ),
    "npz": Contest("our_npz", "numpy_load", None, {"small": 1.0, "image": 1.0}),
}


def datapoints(kind: str) -> Iterator[list[Any]]:
    shape, num = IMAGES[kind]
    rng = np.random.default_rng(0)
    some = rng.integers(0, 256, (16, *shape), dtype=np.uint8)
    for k in range(num):
        yield [some[k % 16], k % 10]


# -- readers: each writes its file if missing, and returns a function that begins a pass -------------------------------


def our_lmdb(path: str, kind: str) -> Callable[[], Iterable[Any]]:
    from dataflow import DataFromGenerator, LMDBSerializer

    if not os.path.exists(path):
        LMDBSerializer.save(DataFromGenerator(lambda: datapoints(kind)), path)
    df = LMDBSerializer.load(path, shuffle=False)
    return lambda: df


def our_tfrecord(path: str, kind: str) -> Callable[[], Iterable[Any]]:
    from dataflow import DataFromGenerator, TFRecordSerializer

    if not os.path.exists(path):
        TFRecordSerializer.save(DataFromGenerator(lambda: datapoints(kind)), path)
    df = TFRecordSerializer.load(path)
    return lambda: df


def our_npz(path: str, kind: str) -> Callable[[], Iterable[Any]]:
    from dataflow import DataFromGenerator, NumpySerializer

    if not os.path.exists(path):
        NumpySerializer.save(DataFromGenerator(lambda: datapoints(kind)), path)
    df = NumpySerializer.load(path, shuffle=False)
    return lambda: df


def tensorpack_lmdb(path: str, kind: str) -> Callable[[], Iterable[Any]]:
    import multiprocessing.util  # noqa: F401 — tensorpack uses it without importing it

    from tensorpack.dataflow import DataFromGenerator, LMDBSerializer

    if not os.path.exists(path):
        LMDBSerializer.save(DataFromGenerator(list(datapoints(kind))), path)
    df = LMDBSerializer.load(path, shuffle=False)
    df.reset_state()
    return lambda: df


def tfrecord_package(path: str, kind: str) -> Callable[[], Iterable[Any]]:
    import tfrecord

    if not os.path.exists(path):
        writer = tfrecord.TFRecordWriter(path)
        for image, label in datapoints(kind):
            writer.write({"image": (image.tobytes(), "byte"), "label": (label, "int")})
        writer.close()
    shape, _ = IMAGES[kind]
    description = {"image": "byte", "label": "int"}

    def begin() -> Iterator[list[Any]]:
        for features in tfrecord.tfrecord_loader(path, None, description):
            image = np.frombuffer(features["image"], np.uint8).reshape(shape).copy()  # writable, as in this library
            yield [image, int(features["label"][0])]

    return begin


def numpy_load(path: str, kind: str) -> Callable[[], Iterable[Any]]:
    if not os.path.exists(path):
        images, labels = zip(*datapoints(kind), strict=True)
        np.savez(path, images=np.stack(images), labels=np.array(labels))

    def begin() -> Iterator[list[Any]]:
        with np.load(path) as file:
            images, labels = file["images"], file["labels"].tolist()
        for image, label in zip(images, labels, strict=True):
            yield [image, label]

    return begin


READERS = {
    reader.__name__: reader
    for reader in (our_lmdb, our_tfrecord, our_npz, tensorpack_lmdb, tfrecord_package, numpy_load)
}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(reader: str, path: str, kind: str, use: str, num_passes: int) -> float:
    """Datapoints per second, in the fastest of several passes."""
    begin = READERS[reader](path, kind)
    shape, num = IMAGES[kind]
    batch = np.empty((BATCH, *shape), np.uint8)
    best = float("inf")
    for _ in range(num_passes):
        started = time.perf_counter()
        seen = 0
        if use == "given":
            for image, _ in begin():
                seen += image.shape == shape
        else:
            for image, _ in begin():
                batch[seen % BATCH] = image
                seen += 1
        best = min(best, time.perf_counter() - started)
        assert seen == num
    return num / best


def measured(python: str, reader: str, path: str, kind: str, use: str, num_passes: int) -> float:
    """Measure in a process of its own, with another interpreter."""
    command = [python, __file__, "--measure", reader, path, kind, use, str(num_passes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if python == sys.executable else dict(os.environ)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def main(arguments: list[str] | None = None) -> int:
    """Run all comparisons; the exit code is 1 if this library misses a target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.disk", description=__doc__)
    parser.add_argument("--formats", default=",".join(CONTESTS), metavar="A,B", help="(%(default)s)")
    parser.add_argument("--kinds", default=",".join(IMAGES), metavar="A,B", help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="of each reader (%(default)s)")
    parser.add_argument("--passes", type=int, default=4, help="of each run; the fastest counts (%(default)s)")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        reader, path, kind, use, num_passes = options.measure
        print(json.dumps(measure(reader, path, kind, use, int(num_passes))))
        return 0

    from benchmarks.environments import python_of

    lost = 0
    folder = tempfile.mkdtemp()
    try:
        for name in options.formats.split(","):
            contest = CONTESTS[name]
            pythons = {
                contest.ours: sys.executable,
                contest.peer: python_of(f"disk-{name}", contest.requires),
            }
            for kind, use in itertools.product(options.kinds.split(","), USES):
                rates: dict[str, list[float]] = {reader: [] for reader in pythons}
                for _ in range(options.runs):
                    for reader, python in pythons.items():
                        path = os.path.join(folder, f"{reader}-{kind}.{name}{'.npz' * (name == 'npz')}")
                        rates[reader].append(measured(python, reader, path, kind, use, options.passes))
                ours, peer = (statistics.median(rates[reader]) for reader in (contest.ours, contest.peer))
                factor = contest.factors[kind] if use == "given" else 0.0
                lost += ours < factor * peer
                print(
                    f"{name:10} {kind:6} {use:8} ours {ours:12,.0f}/s   {contest.peer} {peer:12,.0f}/s   "
                    f"ratio {ours / peer:.2f}" + f", wanted {factor:.2f}" * bool(factor),
                    flush=True,
                )
    finally:
        shutil.rmtree(folder)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
