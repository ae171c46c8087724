"""The case studies: ``python -m benchmarks.cases``, or some of them by name. With ``--publish``, into their page.

The programs are those of `docs/case-studies.md`: of each case the first block, followed by the second (before) or the
third (after). Each runs in a process of its own, or in the kernel of a notebook, in turn with the others of its case.
"""

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of
from benchmarks.report import insert, table

__all__ = ["CASES", "PAGE", "main", "measure", "program", "text_of"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "case-studies.md"
REQUIRES = (
    *("torch==2.13.0", "nbclient>=0.10", "ipykernel>=6.29", "opencv-python-headless>=4.8", "fsspec[http]>=2024.2"),
    *("numpy>=1.26", "pyzmq>=25.1", "msgpack>=1.2.4", "msgpack-numpy>=0.4.8", "tqdm>=4.65", "cloudpickle>=3.0"),
    "psutil>=5.9",
)
TIMEOUT = 300.0  # seconds for one program
MIB = 1 << 20
PERCENTS = (0, 1, 5, 10, 25)
"""Of the pass over the list: moments of its measurement, which ends with the last of them."""

CASES = {
    "notebook": ("time_pass(df, NUM, train)", ("before", "after")),
    "list": ("read_memory(df)", ("DataLoader", "without packed=True", "with packed=True")),
    "threads": ("time_pass(df, NUM)", ("before", "after")),
    "http": ("time_pass(df, NUM)", ("before", "after")),
}
"""For each case the call that follows its programs, and their names."""

Run = dict[str, Any]
"""What a program printed: `report`, and `rate` in datapoints per second or `memory` in MiB at each moment."""


def program(name: str, variant: str, num: int | None = None) -> list[str]:
    """The cells of a program, with `num` datapoints instead of those of the page."""
    section = PAGE.read_text("utf-8").partition(marks(name)[0])[0].rpartition("\n## ")[2]
    common, before, after = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    call, (first, *_) = CASES[name]
    if num is not None:
        common = re.sub(r"^NUM = .*$", f"NUM = {num}", common, flags=re.MULTILINE)
    changed = before if variant == first else after
    if variant == "without packed=True":
        changed = changed.replace(", packed=True", "")
    function = call.partition("(")[0]
    return [common, changed, f"from benchmarks.cases import {function}\n{call}"]


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


# -- in the process of a program ---------------------------------------------------------------------------------------


def exhaust(df: Any) -> None:
    for k, _ in enumerate(df):
        if k == 0:
            df.statistics()  # a flow without workers is sampled on request


def time_pass(df: Any, num: int, loop: Callable[[Any], None] = exhaust) -> None:
    """Print the speed of a pass, after the first datapoint of another: workers and packages are there then."""
    next(iter(df))
    begun = time.perf_counter()
    loop(df)
    seconds = time.perf_counter() - begun
    print(json.dumps({"rate": num / seconds, "report": df.report()}), flush=True)
    df.close()


def read_memory(df: Any) -> None:
    """Print the memory of this process and its workers; what several of them share counts once."""
    import psutil

    from benchmarks.memory import proportional_bytes

    moments = {len(df) * percent // 100: percent for percent in PERCENTS}
    found = []
    for k, _ in enumerate(df):
        if k in moments:
            everyone = [psutil.Process(), *psutil.Process().children(recursive=True)]
            found.append(sum(proportional_bytes(process.pid) for process in everyone) / MIB)
            if len(found) == len(moments):
                break
    report = {"report": df.report()} if hasattr(df, "report") else {}  # a DataLoader has none
    print(json.dumps({"memory": found, **report}), flush=True)


def run_in_kernel(cells: Sequence[str]) -> None:
    """Run the cells of a notebook, and print what the last one prints."""
    import nbclient
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3").execute()
    print("".join(output["text"] for output in notebook.cells[-1].outputs if output.get("name") == "stdout"))


# -- in the process that compares --------------------------------------------------------------------------------------


def measure(python: str, name: str, variant: str, num: int | None = None) -> Run:
    """Run one program."""
    cells = program(name, variant, num)
    with serving() if name == "http" else contextlib.nullcontext() as server:
        code = "\n\n".join([f"SERVER = {server!r}", *cells])
        if name == "notebook":
            code = f"from benchmarks.cases import run_in_kernel\nrun_in_kernel({cells!r})"
        command = [python, "-W", "ignore", "-c", code]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=True)
    found: Run = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server that takes 100 ms on average; one of 33 requests fails."""
    command = [sys.executable, "-m", "benchmarks.requests", "--serve"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()


def text_of(runs: dict[str, list[Run]]) -> str:
    """The medians of a case, and the reports of its last runs, as Markdown."""
    if any("memory" in run for found in runs.values() for run in found):
        return "\n\n".join([memory_table(runs), *reports(runs)])
    ratios = sorted(after["rate"] / before["rate"] for before, after in zip(*runs.values(), strict=True))
    parts = [
        f"**After: {statistics.median(ratios):.2g} times as fast.** The median of {len(ratios)} runs of both programs "
        f"in turn, which gave {ratios[0]:.2g} to {ratios[-1]:.2g}."
    ]
    return "\n\n".join([*parts, *reports(runs)])


def reports(runs: dict[str, list[Run]]) -> Iterator[str]:
    """The reports of the last runs, each as a tab."""
    for variant, found in runs.items():
        if "report" in found[-1]:
            lines = [textwrap.fill(line, 105) if len(line) > 105 else line for line in found[-1]["report"].splitlines()]
            shown = textwrap.indent("\n".join(["```text", *lines, "```"]), "    ")
            yield f'=== "The report {variant}"\n\n{shown}'


def memory_table(runs: dict[str, list[Run]]) -> str:
    rows = [
        [
            f"`{name}`",
            *(f"{statistics.median(found):,.0f}" for found in zip(*(run["memory"] for run in of), strict=True)),
        ]
        for name, of in runs.items()
    ]
    before, *_, after = (statistics.median(run["memory"][-1] for run in found) for found in runs.values())
    return (
        f"**After: {before / after:.2g} times less memory,** once {PERCENTS[-1]} % of the pass have been read.\n\n"
        + table(["MiB after a part of the pass", *(f"{percent} %" for percent in PERCENTS)], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cases", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[], help="which (all)")
    parser.add_argument("--runs", type=int, default=3, help="of each program, in turn (%(default)s)")
    parser.add_argument("--num", type=int, help="datapoints, instead of those of the page")
    parser.add_argument("--python", help="an interpreter that has torch, nbclient, OpenCV and aiohttp, to install none")
    parser.add_argument("--publish", action="store_true", help=f"put the figures into {PAGE.relative_to(ROOT)}")
    chosen = parser.parse_args()
    python = chosen.python or python_of("cases", REQUIRES)
    for name in chosen.cases or CASES:
        runs: dict[str, list[Run]] = {variant: [] for variant in CASES[name][1]}
        for _ in range(chosen.runs):
            for variant, found in runs.items():
                found.append(measure(python, name, variant, chosen.num))
                print(name, variant, found[-1].get("rate", found[-1].get("memory")), file=sys.stderr, flush=True)
        text = text_of(runs)
        print(text)
        if chosen.publish:
            PAGE.write_text(insert(PAGE.read_text("utf-8"), text, marks(name)), "utf-8")


if __name__ == "__main__":
    main()
