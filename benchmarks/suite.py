"""The scheduler of the benchmarks: each round runs all jobs, one at a time, each in a fresh process."""

import atexit
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from benchmarks import contenders
from benchmarks.environments import python_of
from benchmarks.workloads import FILES_VARIABLE, JPEGS_VARIABLE, write_photographs

__all__ = ["plan", "probe_plan", "run_job", "run_rounds"]

ROOT = Path(__file__).parents[1]
TIMEOUT = 120.0  # seconds for a process that measures, its start and the rehearsal of its work included
GIVE_UP = 2  # failures after which a job is not tried again

Job = dict[str, Any]


def plan(
    names: Sequence[str], workloads: Sequence[str], workers: Sequence[int], *, seconds: float, touch: str
) -> list[Job]:
    """The throughput jobs of one round, ordered so that what is compared runs close together."""
    return [
        {
            "measurement": "throughput",
            "workload": workload,
            "label": f"{name}/{variant_name}",
            "workers": num_workers,
            "in_processes": variant.in_processes,
            "seconds": seconds,
            "touch": touch,
        }
        for workload in workloads
        for name in names
        for variant_name, variant in contenders.load(name).VARIANTS.items()
        for num_workers in variant.workers
        if workload in variant.workloads and (num_workers in workers or variant.workers == (1,))
    ]


def probe_plan(names: Sequence[str], *, bursts: int, silence: float) -> list[Job]:
    """How long a burst waits and how soon a failure is known, where each worker iterates a source.

    A thread is not killed: its process would go with it.
    """
    return [
        {"measurement": measurement, "label": f"{name}/{variant_name}", "bursts": bursts, "silence": silence}
        for measurement in ("burst", "killed", "raises")
        for name in names
        for variant_name, variant in contenders.load(name).VARIANTS.items()
        if variant.runs_source and "small" in variant.workloads
        if variant.in_processes or measurement != "killed"
    ]


def run_rounds(jobs: Sequence[Job], rounds: int, say: Callable[[str], None]) -> Iterator[Job]:
    """Run every job `rounds` times, in turn; a record of a failure has an ``error`` instead of figures."""
    failures: Counter[int] = Counter()
    for number in range(rounds):
        for position, job in enumerate(jobs):
            if failures[position] < GIVE_UP:
                record = run_job(job) | {"round": number}
                failures[position] += "error" in record
                say(f"{number + 1}/{rounds} {position + 1}/{len(jobs)} {line_of(record)}")
                yield record


def run_job(job: Job) -> Job:
    """Run one job in a session of its own, and end all processes of that session."""
    name, _ = contenders.split(job["label"])
    contender = contenders.load(name)
    requires = contender.REQUIRES
    try:
        python = python_of(name, None if requires is None else (*contenders.COMMON, *requires))
    except subprocess.CalledProcessError as error:
        return job | {"error": f"cannot be installed: {error}"}
    variables = getattr(contender, "ENVIRONMENT", {}) | {
        JPEGS_VARIABLE: os.pathsep.join(photographs()),
        FILES_VARIABLE: str(training_files()),
    }
    # Output goes to files, because workers that outlive their parent would hold a pipe open.
    with TemporaryDirectory() as folder, TemporaryFile("w+") as result, TemporaryFile("w+") as noise:
        process = subprocess.Popen(
            [python, "-m", "benchmarks.measure", json.dumps(job)],
            cwd=ROOT,
            env=os.environ | variables | {"TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=result,
            stderr=noise,
            start_new_session=True,
        )
        try:
            ended = f"exit code {process.wait(TIMEOUT)}"
        except subprocess.TimeoutExpired:
            ended = f"no result in {TIMEOUT:g} seconds"
        finally:
            end_session(process.pid)
            process.wait()
        result.seek(0), noise.seek(0)
        line = result.read()
        return json.loads(line) if line else job | {"error": f"{ended}: {last_line(noise.read())}"}


def end_session(session: int) -> None:
    """Kill all processes of a session, also those in process groups of their own."""
    for pid in [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]:
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def photographs() -> list[str]:
    """The photographs that come with scikit-learn."""
    import sklearn.datasets

    return sorted(map(str, (Path(sklearn.datasets.__file__).parent / "images").glob("*.jpg")))


@cache
def training_files() -> Path:
    """The folder of the JPEG files of a training set: written now, and removed when this process ends."""
    folder = TemporaryDirectory(prefix="benchmarks-")
    atexit.register(folder.cleanup)
    write_photographs(photographs(), Path(folder.name))
    return Path(folder.name)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def line_of(record: Job) -> str:
    """One line of progress for a record."""
    what = " ".join(str(record[key]) for key in ("workload", "label", "workers") if key in record)
    match record:
        case {"error": error}:
            return f"{what}: failed: {error}"
        case {"rate": rate}:
            return f"{what}: {rate:,.0f} per second"
        case {"wait": wait}:
            return f"{what}: a burst waited {1e3 * wait:.1f} ms"
        case {"exception": exception, "after": after}:
            return f"{what}: {record['measurement']}: {exception} after {after} s"
        case _:
            raise ValueError(f"a record of an unknown kind: {record}")
