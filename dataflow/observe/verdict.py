"""The verdict: which part of a flow limits its speed, and what to do. A pure function of the figures.

The outermost runner is judged first. If its consumer hardly waits, the consumer is the bottleneck. Otherwise the time
of the workers tells: they compute, send, wait for memory, or wait for tasks. Of a runner inside of workers, only the
rate is known, so it is named, and not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dataflow.observe.figures import FlowStatistics, NodeStatistics, RunnerStatistics, size_text

__all__ = ["Bottleneck", "FlowVerdict", "ceiling_of", "verdict_of"]

Bottleneck = Literal[
    "consumer", "flow", "workers", "source", "transport", "memory", "too many workers", "none", "unknown"
]

_IN_BACKGROUND: Final = ("AsyncMapData(", "FetchData(")  # nodes without workers, for which the loop only waits
_MOST_TIMES: Final = 100  # as fast: beyond, the loop does nothing but read
_MIN_SECONDS: Final = 0.05  # of the consumer's time, before anything can be said
_HARDLY: Final = 0.1  # of its time: a consumer that waits less is the bottleneck
_MOSTLY: Final = 0.5
_MUCH: Final = 0.25
_KEPT: Final = 0.2  # of its own time: a consumer that waits so long for the interpreter lock is slowed by the threads
_LOCKED: Final = 0.7  # of one core: what all threads together use if they wait for the interpreter lock
_CROWDED: Final = 0.35  # of the time of workers that are ready to run and have no processor


@dataclass(frozen=True, slots=True)
class FlowVerdict:
    """What limits the speed of a flow.

    Attributes:
        bottleneck: "consumer", "workers", "source" (the input of a parallel map), "transport", "memory" (`max_bytes`),
            "too many workers", "flow" (without workers: all of it); "none" if no part stands out, "unknown" if too
            little was measured.
        runner: Position of the runner that it is about, among the runners of the flow; None if there is none.
        text: One or two sentences for the user.
        is_good: Whether the flow is as fast as its consumer needs it: True, False, or None if that is not known.
    """

    bottleneck: Bottleneck
    runner: int | None
    text: str
    is_good: bool | None = False


def verdict_of(statistics: FlowStatistics) -> FlowVerdict:
    """Judge which part of a flow limits its speed.

    Args:
        statistics: The figures, as `DataFlow.statistics` returns them.
    """
    if not statistics.runners:
        return _without_workers(statistics)
    return _judge(statistics, 0)


def ceiling_of(statistics: FlowStatistics) -> str:
    """What a faster flow can give at most, as a sentence.

    It is empty if too little was measured, or if workers slow the loop down: then its own time is not known.
    """
    above = statistics.nodes
    if not statistics.runners:
        if all(node.share is None for node in above):
            return ""
        flow, total, is_part = sum(map(_share, above)), 1.0, False
    else:
        runner = statistics.runners[0]
        total = runner.consumer_seconds
        if total < _MIN_SECONDS or not runner.datapoints or _slowed(runner, 0):
            return ""
        above = above[: runner.node]
        flow = total - runner.working_seconds + total * sum(map(_share, above))
        others = any(other.outer is None for other in statistics.runners[1:])
        is_part = any(node.share is None for node in above) or (others and not runner.reads_input)
    loop = max(0.0, total - flow)
    faster = total / loop if loop * _MOST_TIMES > total else _MOST_TIMES
    least = "more than " if faster == _MOST_TIMES else "at least " if is_part else ""
    if faster < 1.05 and not is_part:
        return "If the loader took no time, the loop would hardly run faster."
    times = f"{least}{faster:,.{0 if faster >= 10 else 1}f} times"
    return f"If the loader took no time, the loop would run {times} as fast."


def _without_workers(statistics: FlowStatistics) -> FlowVerdict:
    """The verdict on a flow that the consumer runs itself: from samples of the consumer."""
    dearest = _dearest_in_consumer(statistics, 0)
    if dearest is None:
        text = (
            "Nothing was measured: figures are those of workers, and none were started, or samples of the consumer, "
            "which are taken for ten seconds after report() or statistics() was called in the loop. "
            "dataflow.profile(df) measures each node without a loop."
        )
        return FlowVerdict("unknown", None, text, None)
    taken = min(1.0, sum(map(_share, statistics.nodes)))
    if taken < _HARDLY:
        text = f"Your training step is the bottleneck: the flow takes {taken:.0%} of the time, and needs no workers."
        return FlowVerdict("consumer", None, text, True)
    text = (
        f"The flow is the bottleneck: it runs in your loop, where it takes {taken:.0%} of the time"
        if taken >= _MOSTLY
        else f"The flow takes {taken:.0%} of the time, because it runs in your loop"
    )
    text += f"; {dearest.node} takes {_share(dearest):.0%}. "
    if dearest.node.startswith(_IN_BACKGROUND):
        text += "It makes its calls in the background: more of them at a time help (num_concurrent), if they wait."
    else:
        text += "Workers can do that meanwhile: ParallelData(df). dataflow.profile(df) says how many."
    return FlowVerdict("flow", None, text)


def _judge(statistics: FlowStatistics, position: int) -> FlowVerdict:
    runner = statistics.runners[position]
    total = runner.consumer_seconds
    if total < _MIN_SECONDS or not runner.datapoints:
        return FlowVerdict(
            "unknown", position, f"Too little was measured: {runner.name} has run for {total:.2g} seconds.", None
        )
    waiting, source = runner.waiting_seconds / total, runner.source_seconds / total
    receiving = runner.receiving_seconds / total
    if runner.reads_input and source >= _MOSTLY and source >= waiting:
        return _source(statistics, position, source)
    if receiving >= _MOSTLY:
        return FlowVerdict(
            "transport",
            position,
            f"Transport is the bottleneck: the consumer spends {receiving:.0%} of its time receiving {_each(runner)}. "
            "Send less: batches instead of many small datapoints, or fewer bytes.",
        )
    if waiting < _HARDLY:
        return _slowed(runner, position) or _consumer(statistics, position, waiting)
    return _of_workers(statistics, position, waiting)


def _of_workers(statistics: FlowStatistics, position: int, waiting: float) -> FlowVerdict:
    """The consumer waits: what do the workers do?"""
    runner = statistics.runners[position]
    total = sum(worker.seconds for worker in runner.workers)
    if runner.backend == "remote":
        return _of_senders(runner, position, waiting)
    if not total:
        return FlowVerdict("unknown", position, f"The workers of {runner.name} have reported nothing yet.", None)
    busy = sum(worker.busy_seconds for worker in runner.workers)
    memory = sum(worker.memory_seconds for worker in runner.workers) / total
    starved = sum(worker.starved_seconds for worker in runner.workers) / total
    if memory >= _MUCH:
        limit = "" if runner.max_bytes is None else f" ({size_text(runner.max_bytes)})"
        return FlowVerdict(
            "memory",
            position,
            f"The memory limit is the bottleneck: the workers wait {memory:.0%} of the time for room within "
            f"max_bytes{limit}. Raise max_bytes, or use fewer workers or smaller datapoints.",
        )
    if starved >= _MOSTLY:
        if runner.reads_input:
            return _source(statistics, position, runner.source_seconds / runner.consumer_seconds)
        return FlowVerdict(
            "none",
            position,
            f"No part stands out: the workers wait {starved:.0%} of the time for tasks, and the consumer {waiting:.0%} "
            "for datapoints. A pass may be short, or one datapoint much slower than the others.",
            None,
        )
    if busy < _MOSTLY * total:
        return FlowVerdict(
            "none",
            position,
            f"No part stands out: the consumer waits {waiting:.0%} of the time, and the workers are busy "
            f"{busy / total:.0%} of it. Datapoints may come in bursts; a larger window evens them out.",
            None,
        )
    return _busy(statistics, position, busy, total)


def _of_senders(runner: RunnerStatistics, position: int, waiting: float) -> FlowVerdict:
    """The consumer waits for senders on other machines: do they compute, or wait for the network?"""
    total = sum(worker.seconds for worker in runner.workers)
    waits = f"the consumer waits {waiting:.0%} of the time for {runner.name}"
    if not total:
        text = f"The senders or the network are the bottleneck: {waits}. The senders have not reported what they do."
        return FlowVerdict("workers", position, text)
    blocked = sum(worker.blocked_seconds + worker.memory_seconds for worker in runner.workers) / total
    if blocked >= _MOSTLY:
        text = (
            f"The network is the bottleneck: {waits}, and the senders wait {blocked:.0%} of the time because what they "
            "sent is under way. Send fewer bytes, or raise hwm and hwm_bytes."
        )
        return FlowVerdict("transport", position, text)
    text = (
        f"The senders are the bottleneck: {waits}, and they are busy {1 - blocked:.0%} of it. Use more senders, or see "
        "what their flows do: df.report() there."
    )
    return FlowVerdict("workers", position, text)


def _busy(statistics: FlowStatistics, position: int, busy: float, total: float) -> FlowVerdict:
    """The workers are busy: do they compute, send, or wait for a processor?"""
    runner = statistics.runners[position]
    n, cores = len(runner.workers), runner.cores
    with_work = n if runner.num_with_work is None else runner.num_with_work
    delayed = min(1.0, sum(worker.delayed_seconds for worker in runner.workers) / busy)
    computing = sum(worker.cpu_seconds for worker in runner.workers) / busy
    if runner.sending is not None and runner.sending >= _MOSTLY:
        return FlowVerdict(
            "transport",
            position,
            f"Transport is the bottleneck: sending {_each(runner)} takes {runner.sending:.0%} of the workers' time. "
            "Send less: smaller dtypes, uint8 instead of float32, or threads, which send nothing.",
        )
    idle = with_work < n and not runner.adapts and computing + delayed >= _MOSTLY
    if runner.backend == "process" and n > cores and (delayed >= _CROWDED or idle):
        why = (
            f"{with_work} of them get work at a time, because more would not be faster"
            if idle
            else f"each waits {delayed:.0%} of its time for a processor"
        )
        return FlowVerdict(
            "too many workers",
            position,
            f"There are too many workers: {n} share {_cores(cores)}, and {why}. {cores} would be as fast, and need "
            "less memory.",
        )
    n = with_work
    who = "worker is" if n == 1 else "workers are"
    dearest = _dearest_in_workers(statistics, position)
    most = "" if dearest is None else _takes(statistics.nodes[dearest], runner)
    start = f"The {who} the bottleneck: {most}{_busy_part(n, busy / total, 'it' if most else 'the time')}."
    inner = {other.node: other.name for other in statistics.runners if other.outer == position}
    longest = max(worker.seconds for worker in runner.workers)
    used = sum(worker.cpu_seconds for worker in runner.workers) / longest
    wanted = used + sum(worker.delayed_seconds for worker in runner.workers) / longest
    if inner and (dearest is None or dearest in inner):
        names = " and ".join(dict.fromkeys(inner.values()))
        cure = f"A report of the flow without {runner.name} shows what limits {names}."
    elif runner.backend == "thread" and n > 1 and used <= 1.2 and wanted >= _LOCKED:
        cure = "They take turns holding the interpreter lock: processes do not."
    elif computing + delayed < _MOSTLY:
        cure = (
            f"They compute only {computing:.0%} of the time and wait for the rest, so more workers help, even more "
            "than there are cores."
        )
    elif runner.backend == "ray":
        cure = "More actors would help, if the cluster has room for them."
    elif n < cores:
        cure = f"More workers would help: {n} of {_cores(cores)} {'is' if n == 1 else 'are'} used."
    else:
        cure = f"All {_cores(cores)} are used: only cheaper work, or another machine, helps."
    return FlowVerdict("workers", position, f"{start} {cure}")


def _dearest_in_workers(statistics: FlowStatistics, position: int) -> int | None:
    """The position of the node that takes most of the workers' time; None if no share is known."""
    shares = {k: _share(node) for k, node in enumerate(statistics.nodes) if node.runner == position}
    dearest = max(shares, key=shares.__getitem__, default=None)
    return None if dearest is None or shares[dearest] < 0.01 else dearest


def _takes(node: NodeStatistics, runner: RunnerStatistics) -> str:
    """The part of the workers' time in a node, as the beginning of a sentence that goes on with "and"."""
    whose = "its" if len(runner.workers) == 1 else "their"
    return f"{node.node} takes {_share(node):.0%} of {whose} time, and "


def _share(node: NodeStatistics) -> float:
    return node.share or 0.0


def _busy_part(n: int, part: float, of: str) -> str:
    who = "it is" if n == 1 else "both are" if n == 2 else f"all {n} are"
    return f"{who} busy {part:.0%} of {of}"


def _source(statistics: FlowStatistics, position: int, part: float) -> FlowVerdict:
    runner = statistics.runners[position]
    for k, other in enumerate(statistics.runners[position + 1 :], position + 1):
        if other.outer == runner.outer and other.waiting_seconds >= _MOSTLY * runner.source_seconds:
            return _judge(statistics, k)
    dearest = _dearest_in_consumer(statistics, runner.node + 1)
    mostly = "" if dearest is None else f"; {dearest.node} takes {_share(dearest):.0%}"
    return FlowVerdict(
        "source",
        position,
        f"The source is the bottleneck: {runner.name} reads its input in the consumer, which takes {part:.0%} of the "
        f"time{mostly}, and its workers wait for it. Make the input faster, or let the workers read it: a runner "
        "around a flow that can be addressed.",
    )


def _slowed(runner: RunnerStatistics, position: int) -> FlowVerdict | None:
    """The verdict if the consumer's own work takes long because of the workers; None if it does not.

    A step that waits, for a GPU or a disk, also uses little of a core. So this needs both: the consumer is mostly kept
    from running, and the workers are what runs.
    """
    total, working = runner.consumer_seconds, runner.working_seconds
    if not working or not runner.consumer_cpu_seconds:
        return None
    cpu = runner.consumer_cpu_seconds - runner.receiving_seconds - runner.source_seconds
    computing, delayed = max(0.0, cpu / working), runner.consumer_delayed_seconds / working
    used = sum(worker.cpu_seconds for worker in runner.workers)
    num, cores = len(runner.workers), _cores(runner.cores)
    all_used = used + runner.consumer_cpu_seconds
    # While the loop has no processor, the threads may run; or they have none either, because other programs do.
    one_core = _LOCKED * (total - runner.consumer_delayed_seconds) <= all_used <= 1.2 * total
    if runner.backend == "thread" and one_core and 1 - computing - delayed >= _KEPT:
        text = (
            f"The worker threads are the bottleneck: they hold the interpreter lock, so your loop computes only "
            f"{computing:.0%} of its own time and waits for the lock for most of the rest. Processes do not hold it."
        )
        return FlowVerdict("workers", position, text)
    if runner.backend == "process" and delayed >= _MUCH and used >= _MOSTLY * (runner.cores * total - working):
        taken = f"{delayed:.0%} of its own time your loop is ready to run, and has no processor"
        if num > runner.cores:
            text = f"There are too many workers: {num} share {cores} with your loop, and {taken}. Use fewer."
            return FlowVerdict("too many workers", position, text)
        text = (
            f"The processors are the bottleneck: your loop and {_workers(num)} share {cores}, and {taken}. Only "
            "cheaper work, or another machine, helps."
        )
        return FlowVerdict("workers", position, text)
    return None


def _consumer(statistics: FlowStatistics, position: int, waiting: float) -> FlowVerdict:
    runner = statistics.runners[position]
    waits = f"the consumer waits {waiting:.0%} of the time for {runner.name}"
    above = [node for node in statistics.nodes[: runner.node] if node.runner is None]
    taken = sum(map(_share, above))
    dearest = _dearest_in_consumer(statistics, 0, runner.node)
    if dearest is not None and taken >= _MOSTLY * runner.working_seconds / runner.consumer_seconds:
        nodes = "A node" if taken < 1.2 * _share(dearest) else "The nodes"
        verb = "is" if nodes == "A node" else "are"
        text = (
            f"{nodes} above the workers {verb} the bottleneck: {dearest.node} takes {_share(dearest):.0%} of the "
            f"consumer's time, and {waits}. Let workers do it: put it below {runner.name}, or below a runner around it."
        )
        return FlowVerdict("consumer", position, text)
    text = f"Your training step is the bottleneck: {waits}"
    names = ", ".join(node.node for node in above)
    if dearest is not None:
        text += f", and the nodes above {runner.name} ({names}) take {taken:.0%} of it."
    elif above:
        text += (
            f". The nodes above {runner.name} ({names}) count as part of it; call report() during the loop to see how "
            "much they take."
        )
    else:
        text += "."
    delayed, working = runner.consumer_delayed_seconds, runner.working_seconds
    if delayed >= _MUCH * working > 0:
        text += (
            f" For {delayed / working:.0%} of its own time your loop is ready to run, and has no processor: other "
            "threads or programs have them."
        )
    return FlowVerdict("consumer", position, text, True)


def _dearest_in_consumer(statistics: FlowStatistics, start: int, end: int | None = None) -> NodeStatistics | None:
    """The node among these that takes most of the consumer's time; None if no share is known."""
    known = [node for node in statistics.nodes[start:end] if node.runner is None and node.share is not None]
    return max(known, key=_share, default=None)


def _each(runner: RunnerStatistics) -> str:
    return f"datapoints of {size_text(runner.nbytes / max(1, runner.datapoints))}"


def _workers(num: int) -> str:
    return f"{num} {'worker' if num == 1 else 'workers'}"


def _cores(num: int) -> str:
    return f"{num} {'core' if num == 1 else 'cores'}"
