"""One measurement, in a process and an environment of its own: ``python -m benchmarks.measure '{"label": …}'``.

The job is one argument in JSON, the result one line of JSON on standard output. All other output goes
to standard error. The process exits without waiting for threads or workers; its parent ends the session.
"""

import importlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import contenders, probes
from benchmarks.contenders import Variant
from benchmarks.workloads import Workload, by_name

__all__ = ["main"]

STEP = 0.02  # approximate seconds between two readings of the clock
WARM_UP = 0.25  # warm-up, as a fraction of the measured time


def throughput(variant: Variant, job: dict[str, Any]) -> dict[str, Any]:
    """Datapoints per second in the steady state, CPU of the consumer, memory, and the time to start and to close.

    Between two steps the consumer holds no datapoint: some transports wait until theirs are given back.
    """
    workload = by_name(job["workload"])
    consume = workload.consume if job["touch"] == "ends" else read_everything(workload)
    workload.pool  # noqa: B018 — prepared now, and inherited by workers that are forked
    getattr(workload, "expected", None)
    with ExitStack() as stack:
        opened = time.perf_counter()
        stream = stack.enter_context(variant.open(workload, job["workers"]))
        dp = next(stream)
        startup = time.perf_counter() - opened
        workload.check(dp, whole=True)
        dp = None
        count = warm_up(stream, consume, WARM_UP * job["seconds"])

        done, cpu = 0, 0.0
        begun = now = time.perf_counter()
        while now - begun < job["seconds"]:
            before = time.process_time()
            dp = consume(itertools.islice(stream, count))
            cpu += time.process_time() - before
            done += count
            workload.check(dp)
            dp = None
            now = time.perf_counter()
        elapsed = now - begun
        memory = resident_bytes()

        workload.check(next(stream), whole=True)
        closing = time.perf_counter()
    done *= workload.unit[0]
    return {
        "rate": done / elapsed,
        "consumer_cpu": cpu / done,
        "memory": memory,
        "startup": startup,
        "close": time.perf_counter() - closing,
    }


def resident_bytes() -> int:
    """Physical memory of this process and its workers, which share its session; shared pages count once."""
    total, session = 0, os.getsid(0)
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.getsid(int(folder.name)) == session:
                rollup = (folder / "smaps_rollup").read_text()
                total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        except OSError:  # it has ended meanwhile
            continue
    return total * 1024


def warm_up(stream: Iterator[Any], consume: Callable[[Iterator[Any]], Any], seconds: float) -> int:
    """Read for `seconds`; return how many datapoints take about `STEP` seconds."""
    count, begun = 1, time.perf_counter()
    while True:
        before = time.perf_counter()
        consume(itertools.islice(stream, count))
        now = time.perf_counter()
        if now - before < STEP / 2:
            count *= 2
        elif now - begun >= seconds:
            return count


def read_everything(workload: Workload) -> Callable[[Iterator[Any]], Any]:
    """A consumer that copies every array into one warm buffer of its own."""
    buffer = np.ones(max(workload.max_bytes, 1), np.uint8)

    def consume(datapoints):
        dp = None
        for dp in datapoints:
            for value in dp.values() if isinstance(dp, dict) else dp:
                if isinstance(value, np.ndarray):
                    np.copyto(buffer[: value.nbytes].view(value.dtype).reshape(value.shape), value)
        return dp

    return consume


def versions(contender: ModuleType) -> dict[str, str]:
    """Versions of Python and of the packages of the contender's environment."""
    names = [re.split(r"[\[=<>]", requirement)[0] for requirement in (*contenders.COMMON, *(contender.REQUIRES or ()))]
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


MEASUREMENTS: dict[str, Callable[[Variant, dict[str, Any]], dict[str, Any]]] = {
    "throughput": throughput,
    "burst": probes.burst,
    "killed": probes.failure,
    "raises": probes.failure,
}


def main() -> None:
    # Libraries and their workers may print: only the result goes to the original standard output.
    result = os.dup(1)
    os.dup2(2, 1)
    job = json.loads(sys.argv[1])
    name, variant_name = contenders.split(job["label"])
    contender = contenders.load(name)
    for module in contender.IMPORTS:
        importlib.import_module(module)
    record = job | MEASUREMENTS[job["measurement"]](contender.VARIANTS[variant_name], job)
    record["versions"] = versions(contender)
    os.write(result, json.dumps(record).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
