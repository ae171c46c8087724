"""What reading files costs, beside tensorpack: ``python -m benchmarks.disk``.

Each library reads a file that it has written itself, which lies in the system's cache. Both run in turn, each time in
a fresh process of its own environment; the figure is the CPU time for each datapoint, of the fastest of all runs.

The first pass includes opening the file, and verifying it: dataflow compares the checksum of everything that it reads
for the first time; tensorpack's files have none. Later passes of tensorpack over HDF5 and npz files read no file: the
first has loaded it as a whole. A row meets the target if dataflow takes at most as long as tensorpack.

TFRecord is compared with the package `tfrecord`, since tensorpack needs TensorFlow for it.
"""

import argparse
import importlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.environments import python_of

__all__ = ["DATAPOINTS", "FORMATS", "PASSES", "Row", "compare", "measure", "table"]

ROOT = Path(__file__).parents[1]
TIMEOUT = 300.0  # seconds for one file
PASSES = ("first", "later")
WARM_UP = 10  # datapoints of a file that is read before the clock runs: packages are imported then
NUM_LATER = 3  # passes after the first; the fastest counts
FROM_MEMORY = {"hdf5", "npz"}  # what tensorpack loads as a whole

REQUIRES = {
    "tensorpack": ("tensorpack==0.11", "lmdb>=1.4", "h5py>=3.9", "numpy>=1.26"),
    "tfrecord": ("tfrecord==1.14.6", "numpy>=1.26"),
}


class Kind(NamedTuple):
    """Datapoints of a file."""

    make: Callable[[int], list[Any]]
    num: int


def _arrays(size: int) -> Callable[[int], list[Any]]:
    some = np.random.default_rng(0).integers(0, 256, (16, size), np.uint8)
    return lambda k: [some[k % 16].copy(), k]  # so that pickles hold each by itself


DATAPOINTS: Mapping[str, Kind] = {
    "two ints": Kind(lambda k: [k, k + 1], 20_000),
    "1 KiB": Kind(_arrays(1 << 10), 20_000),
    "100 KiB": Kind(_arrays(100 << 10), 500),
}


def made(kind: str, num: int) -> list[Any]:
    """The datapoints of a file."""
    return [DATAPOINTS[kind].make(k) for k in range(num)]


# -- readers: `write` makes a file of all datapoints, `load` gives a flow over it --------------------------------------


class Reading(NamedTuple):
    """How one library writes and reads one format."""

    write: Callable[[list[Any], str], None]
    load: Callable[[str], Iterable[Any]]


def _of_serializer(library: str, name: str, *names: list[str], **options: Any) -> Reading:
    def serializer() -> Any:
        return getattr(importlib.import_module(library), name)

    def write(dps: list[Any], path: str) -> None:
        source = importlib.import_module(library).DataFromList(dps, shuffle=False)
        serializer().save(source, path, *names)

    def load(path: str) -> Iterable[Any]:
        df = serializer().load(path, *names, **options)
        df.reset_state()
        return df  # type: ignore[no-any-return]

    return Reading(write, load)


def _write_npz(dps: list[Any], path: str) -> None:
    """As tensorpack's `NumpySerializer.save`, which names a type that numpy has removed."""
    np.savez_compressed(path, buffer=np.asarray(dps, dtype=object))


def _write_records(dps: list[Any], path: str) -> None:
    tfrecord = importlib.import_module("tfrecord")
    writer = tfrecord.TFRecordWriter(path)
    for first, second in dps:
        is_array = isinstance(first, np.ndarray)
        feature = (first.tobytes(), "byte") if is_array else (first, "int")
        writer.write({"first": feature, "second": (second, "int")})
    writer.close()


class _Records:
    """The package `tfrecord`, giving the same datapoints."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __iter__(self) -> Iterator[list[Any]]:
        for features in importlib.import_module("tfrecord").tfrecord_loader(self._path, None):
            first = features["first"]
            # Arrays that can be written to, as ours.
            value = np.frombuffer(first, np.uint8).copy() if isinstance(first, bytes) else int(first[0])
            yield [value, int(features["second"][0])]


_PEER_NPZ = _of_serializer("tensorpack.dataflow", "NumpySerializer", shuffle=False)
_PATHS = ["first", "second"]
FORMATS: Mapping[str, Mapping[str, Reading]] = {
    "lmdb": {
        "ours": _of_serializer("dataflow", "LMDBSerializer", shuffle=False),
        "tensorpack": _of_serializer("tensorpack.dataflow", "LMDBSerializer", shuffle=False),
    },
    "hdf5": {
        "ours": _of_serializer("dataflow", "HDF5Serializer", _PATHS, shuffle=False),
        "tensorpack": _of_serializer("tensorpack.dataflow", "HDF5Serializer", _PATHS, shuffle=False),
    },
    "npz": {
        "ours": _of_serializer("dataflow", "NumpySerializer", shuffle=False),
        "tensorpack": Reading(_write_npz, _PEER_NPZ.load),
    },
    "tfrecord": {
        "ours": _of_serializer("dataflow", "TFRecordSerializer"),
        "tfrecord": Reading(_write_records, _Records),
    },
}


# -- measuring ---------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """What reading one kind of file costs, in nanoseconds for each datapoint."""

    name: str
    ours: float
    theirs: float
    has_target: bool

    @property
    def meets_target(self) -> bool:
        """Whether it is fast enough."""
        return not self.has_target or self.ours <= self.theirs


def measure(library: str, form: str, kind: str, folder: str, num: int | None = None) -> dict[str, float]:
    """Nanoseconds of CPU time for each datapoint, in the first pass and in the fastest later one."""
    reading = FORMATS[form][library]
    num = DATAPOINTS[kind].num if num is None else num
    path = _file(reading, library, form, kind, folder, num)
    for _ in reading.load(_file(reading, library, form, kind, folder, WARM_UP)):
        pass
    times = []
    begun = time.process_time()
    df = reading.load(path)
    for _ in range(1 + NUM_LATER):
        count = 0
        for _ in df:
            count += 1
        now = time.process_time()
        times.append((now - begun) / num * 1e9)
        begun = now
        assert count == num, f"{count} datapoints of {num}"
    return {"first": times[0], "later": min(times[1:])}


def _file(reading: Reading, library: str, form: str, kind: str, folder: str, num: int) -> str:
    path = os.path.join(folder, f"{library}-{kind.replace(' ', '-')}-{num}.{form}")
    if not os.path.exists(path):
        reading.write(made(kind, num), path)
    return path


def compare(form: str, kind: str, runs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> list[Row]:
    """The rows of one file, of runs that are pairs of what ours and what the peer took."""
    rows = []
    for name in PASSES:
        ours, theirs = (min(run[k][name] for run in runs) for k in (0, 1))
        rows.append(Row(f"{form}, {kind}, {name} pass", ours, theirs, name == "first" or form not in FROM_MEMORY))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| file | ours, ns | peer, ns | ratio | target |", "|:--|--:|--:|--:|:--|"]
    for row in rows:
        verdict = ("met" if row.meets_target else "**missed**") if row.has_target else "from memory"
        lines.append(f"| {row.name} | {row.ours:,.0f} | {row.theirs:,.0f} | {row.ours / row.theirs:.2f} | {verdict} |")
    return "\n".join(lines)


def _run(python: str, library: str, form: str, kind: str, folder: str) -> dict[str, float]:
    command = [python, "-m", "benchmarks.disk", "--measure", library, form, kind, folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT, check=False, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} has failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _chosen(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose of {', '.join(known)}")
        return names

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.disk", description=__doc__)
    parser.add_argument("--formats", type=_chosen(FORMATS), default=["lmdb", "hdf5", "npz"], metavar="A,B")
    parser.add_argument("--kinds", type=_chosen(DATAPOINTS), default=list(DATAPOINTS), metavar="A,B")
    parser.add_argument("--runs", type=int, default=5, help="of both libraries, in turn (%(default)s)")
    parser.add_argument("--tensorpack", metavar="PYTHON", help="an interpreter that has tensorpack, to install none")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        import multiprocessing.util  # noqa: F401 (before tensorpack: its exit hook)

        print(json.dumps(measure(*chosen.measure)), flush=True)
        os._exit(0)  # tensorpack leaves things behind that wait
    rows = []
    pythons = {"ours": sys.executable, "tensorpack": chosen.tensorpack}
    for form, kind in itertools.product(chosen.formats, chosen.kinds):
        _, peer = FORMATS[form]
        pythons[peer] = pythons.get(peer) or python_of(f"disk-{peer}", REQUIRES[peer])
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                (_run(pythons["ours"], "ours", form, kind, folder), _run(pythons[peer], peer, form, kind, folder))
                for _ in range(chosen.runs)
            ]
        rows += compare(form, kind, runs)
        print(f"{form}, {kind}: done", file=sys.stderr, flush=True)
    print(table(rows))
    sys.exit(0 if all(row.meets_target for row in rows) else 1)


if __name__ == "__main__":
    main()
