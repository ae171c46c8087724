"""Latency probes: how long a datapoint waits for later ones, and how soon a failure is reported."""

import mmap
import os
import signal
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.contenders import Variant
from benchmarks.workloads import Workload

__all__ = ["burst", "failure"]

DATAPOINTS_PER_BURST = 5
DATAPOINTS_BEFORE_FAILURE = 1000
TIMEOUT = 5.0  # seconds after a failure within which the consumer must report it


class Bursts(Workload):
    """Five datapoints, each with the time it was made, then silence."""

    name = "burst"
    window, chunk, max_bytes = 50, 1, 0

    def __init__(self, silence: float) -> None:
        self.silence = silence

    def source(self, start: int = 0, step: int = 1) -> Iterator[Any]:
        while True:
            for _ in range(DATAPOINTS_PER_BURST):
                yield [time.monotonic()]
            time.sleep(self.silence)


class Failing(Workload):
    """A thousand datapoints, then an exception or a SIGKILL, whose time is written to shared memory."""

    name = "failing"
    window, chunk, max_bytes = 50, 1, 0

    def __init__(self, how: str) -> None:
        self.how = how
        self.memory = mmap.mmap(-1, 8)

    @property
    def time_of_failure(self) -> float | None:
        """Seconds on the monotonic clock; None before it."""
        return struct.unpack("d", self.memory[:])[0] or None

    def source(self, start: int = 0, step: int = 1) -> Iterator[Any]:
        for index in range(DATAPOINTS_BEFORE_FAILURE):
            yield [index]
        self.memory[:] = struct.pack("d", time.monotonic())
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise LookupError("the source failed, as requested")


def burst(variant: Variant, job: dict[str, Any]) -> dict[str, Any]:
    """Seconds from making to receiving the last datapoint of a burst: the median and the worst of all bursts."""
    with variant.open(Bursts(job["silence"]), 1) as stream:
        waits = [
            max(time.monotonic() - next(stream)[0] for _ in range(DATAPOINTS_PER_BURST))
            for _ in range(job["bursts"] + 1)
        ][1:]  # the first was made while the worker started
    return {"wait": statistics.median(waits), "worst": max(waits)}


def failure(variant: Variant, job: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the failure of the only worker to the consumer's exception, and the exception's type.

    Both are None if the consumer got no exception; its thread is then left waiting.
    """
    workload = Failing(job["measurement"])
    seen: list[tuple[float, str]] = []

    def consume():
        try:
            with variant.open(workload, 1) as stream:
                for _ in stream:
                    pass
                seen.append((time.monotonic(), "the end of the stream"))
        except BaseException as error:
            seen.append((time.monotonic(), type(error).__name__))

    threading.Thread(target=consume, daemon=True).start()
    limit = time.monotonic() + 2 * TIMEOUT
    while not seen and time.monotonic() < min(limit, (workload.time_of_failure or limit) + TIMEOUT):
        time.sleep(0.01)
    if not seen or workload.time_of_failure is None:
        return {"exception": None, "after": None}
    return {"exception": seen[0][1], "after": seen[0][0] - workload.time_of_failure}
