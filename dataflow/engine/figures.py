"""What was observed of an engine, as the figures of a runner. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dataflow.channel.worker_counters import InnerTotals, WorkerActivity, WorkerTotals
from dataflow.engine.observer import Observed
from dataflow.reports.figures import RunnerStatistics, WorkerStatistics

__all__ = ["figures_of"]

_BLANK: Final = RunnerStatistics(0, "", "process")


def figures_of(observed: Observed, nodes: Sequence[Any]) -> tuple[RunnerStatistics, list[int], list[RunnerStatistics]]:
    """The figures of a runner, the samples of the nodes of its workers, and the figures of runners inside of these.

    Args:
        observed: What the engine has observed.
        nodes: The nodes of its workers; runners inside are among them.

    Returns:
        The first without what only the node knows: name, backend and limits.
    """
    workers = observed.workers
    own = [sum(worker.nodes[j] for worker in workers) for j in range(min(len(nodes), _num_nodes(workers)))]
    sending, other = sum(worker.sending for worker in workers), sum(worker.other for worker in workers)
    inner_nodes = {inner.node for worker in workers for inner in worker.inner}
    total = sum(own) + sending + other
    statistics = replace(
        _BLANK,
        seconds=observed.seconds,
        datapoints=observed.datapoints,
        nbytes=observed.nbytes,
        waiting_seconds=observed.waiting,
        receiving_seconds=observed.receiving,
        source_seconds=observed.source,
        working_seconds=observed.elsewhere,
        sending=sending / total if total else None,
        workers=tuple(_worker(k, worker) for k, worker in enumerate(workers)),
        history=observed.history,
        restarts=observed.restarts,
        arena_bytes=observed.nbytes_in_use,
        num_with_work=observed.num_with_work,
    )
    inner = [
        _inner(nodes[j], j, [inner for worker in workers for inner in worker.inner if inner.node == j])
        for j in sorted(inner_nodes)
        if j < len(nodes)
    ]
    return statistics, own, inner


def _num_nodes(workers: Sequence[WorkerTotals]) -> int:
    return len(workers[0].nodes) if workers else 0


def _worker(index: int, totals: WorkerTotals) -> WorkerStatistics:
    return WorkerStatistics(
        index,
        totals.pid or None,
        totals.datapoints,
        totals.nbytes,
        totals.messages,
        totals.seconds[WorkerActivity.BUSY],
        totals.cpu,
        totals.delayed,
        totals.seconds[WorkerActivity.BLOCKED],
        totals.seconds[WorkerActivity.MEMORY],
        totals.seconds[WorkerActivity.STARVED],
        totals.window,
    )


def _inner(node: Any, position: int, found: Sequence[InnerTotals]) -> RunnerStatistics:
    """The sum of a runner over all workers around it, as one with a single worker that has done all."""
    waiting, receiving, source, elsewhere = (sum(inner.consumer[k] for inner in found) for k in range(4))
    busy, blocked, memory, starved, cpu, delayed = (sum(inner.workers[k] for inner in found) for k in range(6))
    num = max(1, sum(inner.num_workers for inner in found))
    each = [
        WorkerStatistics(
            k,
            busy_seconds=busy / num,
            cpu_seconds=cpu / num,
            delayed_seconds=delayed / num,
            blocked_seconds=blocked / num,
            memory_seconds=memory / num,
            starved_seconds=starved / num,
        )
        for k in range(num)
    ]
    return replace(
        _BLANK,
        node=position,
        name=type(node).__name__,
        backend=node._df_backend.name,
        reads_input=not node._df_remote_inputs,
        datapoints=sum(inner.datapoints for inner in found),
        nbytes=sum(inner.nbytes for inner in found),
        waiting_seconds=waiting,
        receiving_seconds=receiving,
        source_seconds=source,
        working_seconds=elsewhere,
        num_outer=len(found),
        workers=tuple(each),
    )
