"""The trace of a flow in Chrome's format, for Perfetto (ui.perfetto.dev) or chrome://tracing: one track per worker.

A worker's counters are read some times a second, so within each interval its states are drawn one after the other, as
long as each has lasted; their order within the interval is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from dataflow.observe.figures import FlowStatistics, Moment, RunnerStatistics

__all__ = ["STATES", "intervals", "trace_of"]

STATES: Final = {
    "busy_seconds": "busy",
    "blocked_seconds": "window full",
    "memory_seconds": "memory full",
    "starved_seconds": "no task",
}
_MICROSECONDS: Final = 1e6


def trace_of(statistics: FlowStatistics) -> dict[str, Any]:
    """The trace as an object that ``json.dump`` writes."""
    events: list[dict[str, Any]] = []
    for pid, runner in enumerate(statistics.runners):
        events += _events(pid, runner)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(pid: int, runner: RunnerStatistics) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": runner.name}}
    for worker in runner.workers:
        name = f"worker {worker.index}" + ("" if worker.pid is None else f" (pid {worker.pid})")
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": worker.index + 1, "args": {"name": name}}
    for before, after in pairwise(runner.history):
        seconds = after.seconds - before.seconds
        if seconds <= 0:
            continue
        rate = (after.datapoints - before.datapoints) / seconds
        for name, value in (("datapoints/s", rate), ("window", after.window)):
            yield {"ph": "C", "name": name, "pid": pid, "ts": before.seconds * _MICROSECONDS, "args": {name: value}}
        for k, parts in enumerate(intervals(before, after)):
            start = before.seconds
            for name, length in parts:
                yield {
                    "ph": "X",
                    "name": name,
                    "cat": "worker",
                    "pid": pid,
                    "tid": k + 1,
                    "ts": start * _MICROSECONDS,
                    "dur": length * _MICROSECONDS,
                }
                start += length


def intervals(before: Moment, after: Moment) -> list[list[tuple[str, float]]]:
    """For each worker, its states between two moments, and the seconds that each has lasted; they fit in between."""
    found = []
    length = after.seconds - before.seconds
    for old, new in zip(before.workers, after.workers, strict=False):
        parts = [(name, max(0.0, getattr(new, field) - getattr(old, field))) for field, name in STATES.items()]
        total = sum(seconds for _, seconds in parts)
        factor = min(1.0, length / total) if total else 1.0
        found.append([(name, seconds * factor) for name, seconds in parts if seconds])
    return found
