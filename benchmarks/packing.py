"""Packing of documents into blocks, beside grain and `numpy.concatenate`: ``python -m benchmarks.packing``.

The documents have 10 to 2,000 tokens, int32, and lie in memory. Each figure is the CPU time of the fastest of several
passes, in one process of the environment of grain; the contenders take turns. "concatenate" is one call for all
documents, whose result is new memory from the system in each pass if there are at least 10,000; "concatenate, groups"
joins as many at a time as `PackData` takes, so that memory is used again. "numpy" makes the same blocks of three arrays
by plain NumPy, also by groups, and checks no document. The last row loads a state at position 10^9 of an addressable
chain, and takes the next datapoint.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import contenders
from benchmarks.environments import python_of
from dataflow import DataFromList, FixedSizeData, PackData, ResumableData, ShuffleData

__all__ = ["documents", "measure", "table"]

ROOT = Path(__file__).parents[1]
TIMEOUT = 400.0  # seconds
GROUP = 192  # documents, about as many as `PackData` takes
NAMES = ("tokens", "segment_ids", "positions")
WINDOW = 1000  # documents among which ours chooses; grain keeps as many bins as hold about so many


def documents(num: int) -> list[Any]:
    """Documents of 10 to 2,000 tokens."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 50_000, rng.integers(10, 2001)).astype(np.int32) for _ in range(num)]


def ways(docs: list[Any], size: int) -> Mapping[str, Callable[[], Iterable[Any]]]:
    """What is compared, for blocks of one size: functions that give the blocks."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()

    def rows() -> Iterable[Any]:
        tokens = np.concatenate(docs)
        return tokens[: len(tokens) // size * size].reshape(-1, size)

    def groups() -> Iterable[Any]:
        for first in range(0, len(docs), GROUP):
            yield np.concatenate(docs[first : first + GROUP])

    def blocks() -> Iterable[Any]:
        parts: list[Any] = []
        done = 0  # tokens of the first part's document before it
        for first in range(0, len(docs), GROUP):
            parts += docs[first : first + GROUP]
            tokens, lengths = np.concatenate(parts), np.array([*map(len, parts)])
            begins = lengths.cumsum() - lengths
            starts = begins.astype(np.int32)  # where the document of each would begin
            starts[0] -= done
            positions = np.arange(len(tokens), dtype=np.int32)
            positions -= starts.repeat(lengths)
            segments = np.arange(len(lengths), dtype=np.int32).repeat(lengths)
            end = len(tokens) // size * size
            numbers = segments[:end].reshape(-1, size)
            numbers -= numbers[:, :1] - 1
            last = int(begins.searchsorted(end, "right")) - 1
            parts, done = [parts[last][end - begins[last] :], *parts[last + 1 :]], end - int(starts[last])
            for row in zip(tokens[:end].reshape(-1, size), numbers, positions[:end].reshape(-1, size), strict=True):
                yield dict(zip(NAMES, row, strict=True))

    def theirs() -> Any:
        source = grain.MapDataset.source([{"tokens": tokens} for tokens in docs])
        return source.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))

    def split() -> Any:
        return grain.experimental.ConcatThenSplitIterDataset(theirs(), length_struct={"tokens": size})

    def fit() -> Any:
        bins = max(WINDOW * 1000 // size, 1)
        return grain.experimental.BestFitPackIterDataset(
            theirs(), length_struct={"tokens": size}, num_packing_bins=bins
        )

    source = DataFromList(docs, shuffle=False)
    return {
        "concatenate": rows,
        "concatenate, groups": groups,
        "numpy": blocks,
        "ours, split": lambda: PackData(source, size),
        "grain, split": split,
        "ours, fit": lambda: PackData(source, size, policy="fit", window=WINDOW),
        "grain, fit": fit,
    }


def measure(size: int, num: int, runs: int) -> dict[str, tuple[float, float]]:
    """Million tokens per second, and the share of padding, of each way."""
    docs = documents(num)
    tokens = sum(map(len, docs))
    best: dict[str, tuple[float, float]] = {}
    for _ in range(runs):
        for name, make in ways(docs, size).items():
            num_blocks, begun = 0, time.process_time()
            for _block in make():
                num_blocks += 1
            speed = tokens / (time.process_time() - begun) / 1e6
            best[name] = max(speed, best.get(name, (0.0, 0.0))[0]), max(0.0, 1 - tokens / (num_blocks * size))
    return best


def seconds_to_load() -> float:
    """How long it takes to load a state at position 10^9, and to take the next datapoint."""
    state = None
    fastest = float("inf")
    for _ in range(5):
        df = ResumableData(FixedSizeData(ShuffleData(DataFromList([[k] for k in range(100_000)])), 2 * 10**9))
        state = state or {**df.state_dict(), "offset": 10**9}
        begun = time.perf_counter()
        df.load_state_dict(state)
        next(iter(df))
        fastest = min(fastest, time.perf_counter() - begun)
    return fastest


def table(found: Mapping[str, Mapping[str, tuple[float, float]]], seconds: float) -> str:
    """The figures as Markdown."""
    lines = [
        "| block | way | million tokens per second | of concatenate | of grain | padding |",
        "|--:|:--|--:|--:|--:|--:|",
    ]
    for size, rows in found.items():
        for name, (speed, padding) in rows.items():
            theirs = rows.get(name.replace("ours", "grain"), (speed, 0.0))[0]
            ratios = f"{speed / rows['concatenate'][0]:.2f} | {speed / theirs:.1f}"
            lines.append(f"| {size} | {name} | {speed:,.0f} | {ratios} | {padding:.2%} |")
    return "\n".join([*lines, "", f"A state at position 10^9, loaded and read on: {seconds * 1e3:.1f} ms"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each contender (%(default)s)")
    parser.add_argument("--documents", type=int, default=10_000, help="(%(default)s)")
    parser.add_argument("--sizes", default="2048,8192", help="of blocks (%(default)s)")
    parser.add_argument("--python", metavar="PYTHON", help="an interpreter that has grain, to install none")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        found = {size: measure(int(size), chosen.documents, chosen.runs) for size in chosen.sizes.split(",")}
        print(json.dumps([found, seconds_to_load()]))
        return
    requires = (*contenders.COMMON, *contenders.load("grain_prefetch").REQUIRES)
    python = chosen.python or python_of("grain_prefetch", requires)
    arguments = ["--here", "--runs", str(chosen.runs), "--documents", str(chosen.documents), "--sizes", chosen.sizes]
    command = [python, "-m", "benchmarks.packing", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True, text=True)
    print(table(*json.loads(done.stdout.splitlines()[-1])))


if __name__ == "__main__":
    sys.exit(main())
