"""What reading tables and shards costs, beside the libraries they come from: ``python -m benchmarks.sources``.

Each row reads the same files, which lie in the system's cache, with dataflow and with a peer, in turn and in one
process of an environment of their own; the figure is the median of the runs. A flow is opened in each run, so finding
the samples of shards is included. A row meets the target if dataflow reads at least so many times as fast as the peer.
"""

import argparse
import importlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.environments import python_of

__all__ = ["CASES", "Case", "Row", "measure", "table"]

ROOT = Path(__file__).parents[1]
REQUIRES = ("webdataset==1.0.2", "pyarrow>=15", "numpy>=1.26", "tqdm>=4.65")
TIMEOUT = 600.0  # seconds for all cases
BATCH = 1024
NUM_SHARDS = 4


class Case(NamedTuple):
    """One row: files of some datapoints, and two ways to read them, which return how many were read."""

    write: Callable[[str, int], str]  # takes a folder and the number of datapoints; returns a path
    ours: Callable[[str], int]
    theirs: Callable[[str], int]
    num: int
    target: float | None  # speed relative to the peer


class Row(NamedTuple):
    """What reading took, in nanoseconds for each datapoint."""

    name: str
    ours: float
    theirs: float
    target: float | None

    @property
    def ratio(self) -> float:
        """Speed relative to the peer."""
        return self.theirs / self.ours

    @property
    def meets_target(self) -> bool:
        """Whether it is fast enough."""
        return self.target is None or self.ratio >= self.target


# -- tables ------------------------------------------------------------------------------------------------------------


def _columns(num: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    numbers = {f"x{k}": rng.normal(size=num).astype(np.float32) for k in range(8)}
    return {"id": np.arange(num), "label": rng.integers(0, 10, num), **numbers}


def _write_parquet(folder: str, num: int) -> str:
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    path = os.path.join(folder, "rows.parquet")
    parquet.write_table(arrow.table(_columns(num)), path, row_group_size=100_000)
    return path


def _batches_of_columns(path: str) -> int:
    from dataflow import TableData

    with TableData(path, batch_size=BATCH, remainder=True) as df:
        return sum(len(batch["id"]) for batch in df)


def _record_batches(path: str) -> Iterable[Any]:
    return importlib.import_module("pyarrow.parquet").ParquetFile(path).iter_batches(BATCH)  # type: ignore[no-any-return]


def _iter_batches(path: str) -> int:
    return sum(batch.num_rows for batch in _record_batches(path))


def _loop_over_rows(path: str) -> int:
    num = 0
    for batch in _record_batches(path):
        rows = batch.to_pylist()
        arrays = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        num += len(arrays["id"])
    return num


# -- shards and lines --------------------------------------------------------------------------------------------------


def _write_shards(folder: str, num: int) -> str:
    image = np.random.default_rng(0).integers(0, 256, 20_000, np.uint8).tobytes()
    for shard in range(NUM_SHARDS):
        with tarfile.open(os.path.join(folder, f"s-{shard}.tar"), "w") as tar:
            for k in range(shard, num, NUM_SHARDS):
                for extension, data in (("jpg", image), ("cls", b"%d" % (k % 10)), ("json", b'{"k": %d}' % k)):
                    info = tarfile.TarInfo(f"{k:08d}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return folder


def _shards(path: str) -> int:
    from dataflow import WebDatasetData

    with WebDatasetData(path) as df:
        return sum(len(dp["jpg"]) > 0 for dp in df)


def _webdataset(path: str) -> int:
    paths = sorted(os.path.join(path, name) for name in os.listdir(path))
    dataset = importlib.import_module("webdataset").WebDataset(paths, shardshuffle=False)
    return sum(len(dp["jpg"]) > 0 for dp in dataset)


def _write_lines(folder: str, num: int) -> str:
    path = os.path.join(folder, "rows.jsonl")
    with open(path, "w") as file:
        file.writelines(json.dumps({"id": k, "text": f"row {k} " * 20, "label": k % 10}) + "\n" for k in range(num))
    return path


def _lines(path: str) -> int:
    from dataflow import JSONLinesData

    with JSONLinesData(path) as df:
        return sum("id" in dp for dp in df)


def _loop_over_lines(path: str) -> int:
    with open(path, "rb") as file:
        return sum("id" in json.loads(line) for line in file)


CASES: dict[str, Case] = {
    "parquet batches / iter_batches": Case(_write_parquet, _batches_of_columns, _iter_batches, 1_000_000, 0.8),
    "parquet batches / a loop over rows": Case(_write_parquet, _batches_of_columns, _loop_over_rows, 200_000, 3.0),
    "shards / webdataset": Case(_write_shards, _shards, _webdataset, 4_000, 1.0),
    "JSON lines / json.loads of each line": Case(_write_lines, _lines, _loop_over_lines, 50_000, None),
}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(name: str, runs: int, num: int | None = None) -> Row:
    """Read the files of one case `runs` times in both ways, in turn."""
    case = CASES[name]
    num = case.num if num is None else num
    times: tuple[list[float], list[float]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = case.write(folder, num)
        for number in range(runs + 1):
            for read, found in zip((case.ours, case.theirs), times, strict=True):
                begun = time.perf_counter()
                count = read(path)
                spent = time.perf_counter() - begun
                assert count == num, f"{count} datapoints of {num}"
                if number:  # the first run imports packages
                    found.append(spent / num * 1e9)
    ours, theirs = map(statistics.median, times)
    return Row(name, ours, theirs, case.target)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| files / peer | ours, ns | peer, ns | speed | target |", "|:--|--:|--:|--:|:--|"]
    for row in rows:
        verdict = "" if row.target is None else f"≥ {row.target}: {'met' if row.meets_target else '**missed**'}"
        lines.append(f"| {row.name} | {row.ours:,.0f} | {row.theirs:,.0f} | {row.ratio:.2f} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sources", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="of both ways to read, in turn (%(default)s)")
    parser.add_argument("--python", help="an interpreter that has webdataset and pyarrow, to install none")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        rows = [measure(name, chosen.runs) for name in CASES]
        print(table(rows))
        sys.exit(0 if all(row.meets_target for row in rows) else 1)
    python = chosen.python or python_of("sources", REQUIRES)
    command = [python, "-m", "benchmarks.sources", "--measure", "--runs", str(chosen.runs)]
    sys.exit(subprocess.run(command, cwd=ROOT, timeout=TIMEOUT, check=False).returncode)


if __name__ == "__main__":
    main()
