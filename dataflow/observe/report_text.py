"""The report as text: the tree of nodes with their shares, each runner with its rate and workers, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from dataflow.observe.figures import FlowStatistics, RunnerStatistics, WorkerStatistics
from dataflow.observe.tracing import STATES
from dataflow.observe.verdict import ceiling_of, verdict_of

__all__ = ["answer_of", "report_text"]


def report_text(statistics: FlowStatistics) -> str:
    """The report of a flow.

    Args:
        statistics: The figures, as `DataFlow.statistics` returns them.
    """
    lines = [*_tree(statistics), ""]
    for runner in statistics.runners:
        if runner.outer is None:  # of others only the rate is known, which is in the tree
            lines += [*_runner(runner), ""]
    return "\n".join([*lines, *answer_of(statistics)])


def answer_of(statistics: FlowStatistics) -> list[str]:
    """The verdict, and what a faster flow can give at most."""
    return list(filter(None, [verdict_of(statistics).text, ceiling_of(statistics)]))


def _tree(statistics: FlowStatistics) -> Iterator[str]:
    rates = {runner.node: f"{runner.datapoints_per_second:,.4g}/s" for runner in statistics.runners}
    width = max((len(node.prefix) + len(node.node) for node in statistics.nodes), default=4)
    yield f"{'node':<{width}}  {'share':>6}  {'rate':>10}  {'length':>9}"
    for k, node in enumerate(statistics.nodes):
        share = "" if node.share is None else f"{node.share:.0%}"
        length = "" if node.length is None else f"{node.length:,}"
        yield f"{node.prefix + node.node:<{width}}  {share:>6}  {rates.get(k, ''):>10}  {length:>9}".rstrip()


def _runner(runner: RunnerStatistics) -> Iterator[str]:
    total = runner.consumer_seconds or 1.0
    parts = [f"waits {runner.waiting_seconds / total:.0%}", f"receives {runner.receiving_seconds / total:.0%}"]
    if runner.reads_input:
        parts.append(f"reads the input {runner.source_seconds / total:.0%}")
    parts.append(f"is elsewhere {runner.working_seconds / total:.0%}")
    yield (
        f"{runner.name}: {runner.datapoints:,} datapoints in {total if runner.datapoints else 0:.1f} s; the consumer "
        f"{', '.join(parts)}"
    )
    notes = [f"{num:,} {name}" for num, name in ((runner.failures, "failures"), (runner.restarts, "restarts")) if num]
    if notes:
        yield f"  {', '.join(notes)}"
    if runner.workers:
        yield "  worker      pid  datapoints   busy  window full  memory full  no task  no processor"
        for worker in runner.workers:
            yield _worker(worker)


def _worker(worker: WorkerStatistics) -> str:
    total = worker.seconds or 1.0
    pid = "" if worker.pid is None else worker.pid
    busy, blocked, memory, starved, delayed = (
        f"{getattr(worker, field) / total:.0%}" for field in (*STATES, "delayed_seconds")
    )
    return (
        f"  {worker.index:>6}  {pid:>7}  {worker.datapoints:>10,}  {busy:>5}  {blocked:>11}  {memory:>11}  "
        f"{starved:>7}  {delayed:>12}"
    )
