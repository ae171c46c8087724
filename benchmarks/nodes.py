"""CPU time of single-process chains, compared with tensorpack: ``python -m benchmarks.nodes``.

Each row is one chain. Both libraries run in turn, each time in a fresh process of its own environment; the figure is
the CPU time of the fastest pass of all runs, since a shared machine is at half speed for seconds at a time. A row meets
the target if it takes at most 1.1 times as long as tensorpack, or at most 60 ns more for each datapoint and node.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import contenders
from benchmarks.environments import python_of

__all__ = ["CHAINS", "Chain", "Row", "compare", "measure", "table"]

ROOT = Path(__file__).parents[1]
LIBRARIES = {"ours": "dataflow", "tensorpack": "tensorpack.dataflow"}
TIMES = 1.1  # as much as tensorpack
MORE = 60.0  # nanoseconds for each datapoint and node: the allowance for our guarantees
TIMEOUT = 300.0  # seconds for all chains of one library
N = 20_000  # datapoints of a source
BATCH = 128


class Chain(NamedTuple):
    """One row: a chain of nodes, and the numbers that its cost is divided by."""

    make: Callable[[Any], Any]  # takes the library
    nodes: int  # number of nodes that each datapoint passes through
    per_item: int = 1  # datapoints of the source per yielded datapoint
    passes: int = 3
    warm: bool = False  # the first pass fills a cache, and is not measured


class Row(NamedTuple):
    """The cost of one chain, in nanoseconds per yielded item."""

    name: str
    ours: float
    theirs: float
    allowed: float

    @property
    def meets_target(self) -> bool:
        """Whether the cost is within the limit."""
        return self.ours <= self.allowed


def user_node(library: Any, n: int = N) -> Any:
    """A typical user-written source: shuffles, and looks up images."""
    import numpy as np

    class User(library.RNGDataFlow):  # type: ignore[misc]
        def __init__(self) -> None:
            self.images = [np.zeros((28, 28), "float32") for _ in range(10)]

        def __len__(self) -> int:
            return n

        def __iter__(self) -> Any:
            order = np.arange(n)
            self.rng.shuffle(order)
            for k in order:
                yield [self.images[k % 10], k % 10]

    return User()


def drawing_node(library: Any) -> Any:
    """A typical user-written source: reads `self.rng` three times for each datapoint."""
    n = N // 5

    class Draws(library.RNGDataFlow):  # type: ignore[misc]
        def __len__(self) -> int:
            return n

        def __iter__(self) -> Any:
            for _ in range(n):
                yield [self.rng.randint(10), self.rng.choice(10, size=2, replace=False), self.rng.uniform(0, 1)]

    return Draws()


def proxy(library: Any, ds: Any) -> Any:
    """A typical user-written node: passes datapoints on."""

    class Proxy(library.ProxyDataFlow):  # type: ignore[misc]
        def __iter__(self) -> Any:
            for dp in self.ds:  # noqa: UP028 (as users write it)
                yield dp

    return Proxy(ds)


def images(library: Any, shuffle: bool = False) -> Any:
    """A list of images and labels."""
    import numpy as np

    return library.DataFromList([[np.zeros((28, 28), "float32"), 1] for _ in range(N)], shuffle=shuffle)


def same(value: Any) -> Any:
    """A function that costs nothing."""
    return value


def seeded_map(library: Any) -> Any:
    """A map that seeds `random` and `np.random` for each datapoint, and leaves them as they were."""
    import random

    import numpy as np

    if library.__name__ == "dataflow":
        return library.MapData(images(library), same, seed_globals=True)

    def seeded(dp: Any) -> Any:
        saved = random.getstate(), np.random.get_state()
        random.seed(dp[1])
        np.random.seed([dp[1], 0, 0, 0])
        try:
            return dp
        finally:
            random.setstate(saved[0])
            np.random.set_state(saved[1])

    return library.MapData(images(library), seeded)


def batches_of(component: str, library: Any) -> Any:
    """Batches of one component."""
    import numpy as np

    shapes = {"f4 (10,)": (10,), "f4 28x28": (28, 28), "u1 32x32x3": (32, 32, 3), "u1 224x224x3": (224, 224, 3)}
    scalars: dict[str, Callable[[int], Any]] = {
        "python int": int,
        "python float": float,
        "np.int64": np.int64,
        "str": str,
    }
    times = 2 if "224" in component else 40
    if component in scalars:
        group = [[scalars[component](k)] for k in range(BATCH)]
    else:
        group = [[np.zeros(shapes[component], component[:2])] for _ in range(BATCH)]
    return library.BatchData(library.DataFromList(group * times, shuffle=False), BATCH)


BATCHED = ("python int", "python float", "np.int64", "str", "f4 (10,)", "f4 28x28", "u1 32x32x3", "u1 224x224x3")
CHAINS: Mapping[str, Chain] = {
    "user node": Chain(user_node, 1),
    "user node, two proxies": Chain(lambda lib: proxy(lib, proxy(lib, user_node(lib))), 3),
    "user node, BatchData": Chain(lambda lib: lib.BatchData(user_node(lib), BATCH), 2, BATCH),
    "user node that draws": Chain(drawing_node, 1),
    "list": Chain(images, 1),
    "list, shuffled": Chain(partial(images, shuffle=True), 1),
    "MapData": Chain(lambda lib: lib.MapData(images(lib), same), 2),
    "MapData that seeds": Chain(seeded_map, 2),
    "MapDataComponent": Chain(lambda lib: lib.MapDataComponent(images(lib), same), 2),
    "BatchData": Chain(lambda lib: lib.BatchData(images(lib), BATCH), 2, BATCH),
    "BatchData, use_list": Chain(lambda lib: lib.BatchData(images(lib), BATCH, use_list=True), 2, BATCH),
    "JoinData": Chain(lambda lib: lib.JoinData([images(lib), images(lib)]), 3),
    "RandomMixData": Chain(lambda lib: lib.RandomMixData([images(lib), images(lib)]), 2),
    "ConcatData": Chain(lambda lib: lib.ConcatData([images(lib), images(lib)]), 2),
    "CacheData, second pass": Chain(lambda lib: lib.CacheData(images(lib)), 2, warm=True),
    "RepeatedData": Chain(lambda lib: lib.RepeatedData(images(lib), 3), 2),
    "FixedSizeData": Chain(lambda lib: lib.FixedSizeData(images(lib), N), 2),
    "SelectComponent": Chain(lambda lib: lib.SelectComponent(images(lib), [1, 0]), 2),
    "LocallyShuffleData": Chain(lambda lib: lib.FixedSizeData(lib.LocallyShuffleData(images(lib), 1000), N), 3),
    "FakeData 4x4": Chain(lambda lib: lib.FakeData([[4, 4]], N), 1),
    "FakeData 224x224x3 uint8": Chain(
        lambda lib: lib.FakeData([[224, 224, 3]], 100, dtype="uint8", domain=(0, 255)), 1
    ),
    **{f"BatchData of {kind}": Chain(partial(batches_of, kind), 2, BATCH) for kind in BATCHED},
}


def measure(library: str, names: Sequence[str]) -> dict[str, float]:
    """Nanoseconds of CPU time for each item of the fastest pass of each chain; in the process that calls."""
    module = importlib.import_module(LIBRARIES[library])
    return {name: _fastest(CHAINS[name], module) for name in names}


def _fastest(chain: Chain, module: Any) -> float:
    df = chain.make(module)
    df.reset_state()
    best = float("inf")
    for number in range(chain.passes + chain.warm):
        begun, count = time.process_time(), 0
        for _ in df:
            count += 1
        spent = time.process_time() - begun
        if number or not chain.warm:
            best = min(best, spent / max(count, 1))
    return best * 1e9


def compare(runs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> list[Row]:
    """The rows of the table; each run is a pair of times, ours and tensorpack's."""
    rows = []
    for name in runs[0][0]:
        ours, theirs = (min(run[k][name] for run in runs) for k in (0, 1))
        chain = CHAINS[name]
        allowed = max(TIMES * theirs, theirs + MORE * chain.nodes * chain.per_item)
        rows.append(Row(name, ours, theirs, allowed))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| chain | ours, ns | tensorpack, ns | ratio | allowed, ns | target |", "|:--|--:|--:|--:|--:|:--|"]
    for row in rows:
        verdict = "met" if row.meets_target else "**missed**"
        figures = f"{row.ours:,.0f} | {row.theirs:,.0f} | {row.ours / row.theirs:.2f} | {row.allowed:,.0f}"
        lines.append(f"| {row.name} | {figures} | {verdict} |")
    return "\n".join(lines)


def _run(library: str, python: str, names: Sequence[str]) -> dict[str, float]:
    command = [python, "-m", "benchmarks.nodes", "--measure", library, "--chains", ";".join(names)]
    variables = getattr(contenders.load(library), "ENVIRONMENT", {})
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _python(library: str) -> str:
    requires = contenders.load(library).REQUIRES
    return python_of(library, None if requires is None else (*contenders.COMMON, *requires))


def _names(text: str) -> list[str]:
    """Parse chains, separated by semicolons: names, or parts of names."""
    parts = text.split(";")
    found = [name for name in CHAINS if name in parts or any(part in name for part in parts if part not in CHAINS)]
    if not found:
        raise argparse.ArgumentTypeError(f"no chain contains {text}; there are {'; '.join(CHAINS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="of both libraries, in turn (%(default)s)")
    parser.add_argument("--chains", type=_names, default=list(CHAINS), metavar="A;B", help="parts of their names")
    parser.add_argument("--tensorpack", metavar="PYTHON", help="an interpreter that has tensorpack, to install none")
    parser.add_argument("--measure", choices=list(LIBRARIES), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        import multiprocessing.util  # noqa: F401 (before tensorpack: its exit hook)

        print(json.dumps(measure(chosen.measure, chosen.chains)), flush=True)
        os._exit(0)  # tensorpack leaves threads behind that block the exit
    pythons = {"ours": _python("ours"), "tensorpack": chosen.tensorpack or _python("tensorpack")}
    runs = []
    for number in range(chosen.runs):
        print(f"run {number + 1} of {chosen.runs}", file=sys.stderr, flush=True)
        ours, theirs = map(_run, pythons, pythons.values(), repeat(chosen.chains))
        runs.append((ours, theirs))
    rows = compare(runs)
    print(table(rows))
    sys.exit(0 if all(row.meets_target for row in rows) else 1)


if __name__ == "__main__":
    main()
