"""Profiler: runs a chain in this process, measures what each node costs, and predicts the speed with workers.

A copy of the chain runs, so the flow itself counts no pass and keeps its iterators. In the copy runners have no
workers, and another thread samples in which node the time goes. Several copies that run in threads at once show what
threads gain. `predict` is a pure function of these figures.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np

from dataflow.observe.figures import size_text
from dataflow.observe.frame_owners import sleep_until_interrupting
from dataflow.observe.representation import chain_rows
from dataflow.protocol.base import DataFlow, close_flow, require_flow
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.parameters import seconds as checked_seconds
from dataflow.protocol.passes import copy_chain, open_flow, passes_on, root_stream, walk
from dataflow.system.machine import available_cores, processor_times
from dataflow.system.worker_process import keep_freed_memory
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.transport.codec import ArrayCodec
from dataflow.transport.message_layout import NO_ROOM

__all__ = [
    "Costs",
    "NodeCost",
    "Placement",
    "Prediction",
    "FlowProfile",
    "Transfer",
    "predict",
    "profile",
]

Backend = Literal["process", "thread"]


# -- Results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node costs.

    Attributes:
        node: The node as text, as in ``repr(df)``.
        prefix: Indentation and branches of the tree before it.
        seconds: Its own time per datapoint of the whole flow, without its inputs.
        share: Its part of the time of all nodes, 0 to 1.
        count: Datapoints that it makes per datapoint of the whole flow.
        nbytes: Bytes of one of its datapoints, on average; 0 if none was seen.
    """

    node: str
    prefix: str
    seconds: float
    share: float
    count: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed of a flow with workers.

    Attributes:
        backend: What the workers are: "process" or "thread".
        num_workers: How many.
        datapoints_per_second: Datapoints of the whole flow.
    """

    backend: Backend
    num_workers: int
    datapoints_per_second: float


@dataclass(frozen=True, slots=True)
class Placement:
    """A runner or parallel map, where it stands in the chain, and what it is predicted to give.

    Attributes:
        kind: "runner" for one around a flow, "map" for one in place of a `MapData`, "none" for no workers.
        node: The node that it stands around, or replaces, as text; empty for no workers.
        runner: Name of the class to use; empty for no workers.
        backend: What its workers are: "process" or "thread"; None for no workers.
        num_workers: How many workers; 0 for none.
        datapoints_per_second: Predicted speed.
        code: How to write it, with the node as ``ds``; empty for no workers.
    """

    kind: Literal["runner", "map", "none"]
    node: str
    runner: str
    backend: Backend | None
    num_workers: int
    datapoints_per_second: float
    code: str


@dataclass(frozen=True, slots=True)
class FlowProfile:
    """What `profile` has measured and predicts. ``str()`` shows it as a table.

    Attributes:
        datapoints: Datapoints that were made to measure.
        seconds: Seconds that the measurement took.
        seconds_per_datapoint: Seconds per datapoint without workers, in one thread.
        cpu_seconds: Processor time per datapoint, of those seconds.
        num_threads: Threads in which copies of the flow ran at once; 0 if they could not.
        thread_speedup: Speed of these threads together, relative to one thread.
        cores: Processor cores that this process may use.
        nodes: The costs of the nodes, from the outside in, as in ``repr(df)``.
        predictions: Predicted speeds at the recommended place of the chain, for processes and for threads.
        recommended: The runner or map to use.
    """

    datapoints: int
    seconds: float
    seconds_per_datapoint: float
    cpu_seconds: float
    num_threads: int
    thread_speedup: float
    cores: int
    nodes: tuple[NodeCost, ...]
    predictions: tuple[Prediction, ...]
    recommended: Placement

    @property
    def datapoints_per_second(self) -> float:
        """The measured speed without workers."""
        return 1 / self.seconds_per_datapoint

    @property
    def waiting(self) -> float:
        """The part of the time, 0 to 1, in which the work waits (for a disk, a network) and computes nothing."""
        return max(0.0, 1 - self.cpu_seconds / self.seconds_per_datapoint)

    def __str__(self) -> str:
        threads = f"; {self.num_threads} threads at once are {self.thread_speedup:.1f} times as fast as one"
        lines = [
            f"{self.datapoints_per_second:,.4g} datapoints/s without workers, {_duration(self.seconds_per_datapoint)} "
            f"each ({self.datapoints:,} measured in {self.seconds:.1f} s)",
            "",
            *_node_table(self.nodes),
            "",
            f"{self.waiting:.0%} of the time is waiting{threads if self.num_threads else ''}.",
            "",
            *_prediction_table(self.predictions, self.cores),
            "",
            self._advice(),
        ]
        return "\n".join(lines)

    def _advice(self) -> str:
        best = self.recommended
        if best.kind == "none":
            fastest = max(self.predictions, key=lambda prediction: prediction.datapoints_per_second, default=None)
            if fastest is None:
                return "Use no workers: nothing in this flow can be moved into them."
            factor = fastest.datapoints_per_second * self.seconds_per_datapoint
            n, plural = fastest.num_workers, "processes" if fastest.backend == "process" else "threads"
            return (
                f"Use no workers: with {n} {fastest.backend if n == 1 else plural}, the best number, "
                f"{factor:.2f} times the speed without workers is predicted."
            )
        where = f"in place of {best.node}" if best.kind == "map" else f"where ds is the flow up to {best.node}"
        factor = best.datapoints_per_second * self.seconds_per_datapoint
        return (
            f"Use {best.code}, {where}: {best.datapoints_per_second:,.4g} datapoints/s predicted, {factor:.1f} times "
            "the speed without workers."
        )


def _node_table(nodes: Sequence[NodeCost]) -> Iterator[str]:
    width = max([len(node.prefix) + len(node.node) for node in nodes] + [4])
    yield f"{'node':<{width}}  {'time':>9}  {'share':>5}  {'made':>7}  {'size':>10}"
    for node in nodes:
        text, seconds = node.prefix + node.node, _duration(node.seconds)
        yield f"{text:<{width}}  {seconds:>9}  {node.share:>5.0%}  {node.count:>7.4g}  {size_text(node.nbytes):>10}"


def _prediction_table(predictions: Sequence[Prediction], cores: int) -> Iterator[str]:
    numbers = sorted({prediction.num_workers for prediction in predictions})
    if not numbers:
        return
    yield f"predicted datapoints/s with workers ({cores} {'core' if cores == 1 else 'cores'})"
    yield f"{'workers':<10}" + "".join(f"{number:>11}" for number in numbers)
    for backend, plural in (("process", "processes"), ("thread", "threads")):
        rates = {p.num_workers: p.datapoints_per_second for p in predictions if p.backend == backend}
        if rates:
            yield f"{plural:<10}" + "".join(f"{rates[n]:>11,.0f}" for n in numbers)


def _duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


# -- Prediction: a pure function of what was measured ------------------------------------------------------------------


_MESSAGE_SECONDS: Final = 1e-3  # of work in one message
# Seconds for a message on either side, most of which is waited for: `benchmarks.profiles` compares them with runs.
_PER_MESSAGE: Final[Mapping[Backend, float]] = {"process": 130e-6, "thread": 20e-6}
_MAX_PER_MESSAGE: Final = 640
_MAX_WORKERS: Final = 32  # more are predicted only where there are more cores
_ENOUGH: Final = 0.95  # the smallest number of workers with this part of the best speed is the best number
_HANDOVER: Final = 1e-6  # seconds for one datapoint between threads
_WORTH: Final = 1.1  # times the speed without workers; below, the prediction is not exact enough to advise workers


@dataclass(frozen=True, slots=True)
class Transfer:
    """What it costs to send one datapoint from a worker to the consumer: seconds of processor time on either side."""

    send: float = 0.0
    receive: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What a flow costs per datapoint of the whole flow, split between its workers and the consumer.

    Attributes:
        worker: Seconds of the part that workers do.
        worker_cpu: Processor time of those.
        worker_locked: Of `worker`, seconds in which no other thread makes progress: those with the interpreter lock.
        thread_cpu: Processor time of the same work in one of several threads, at least `worker_cpu`.
        consumer: Seconds of the part that stays in the consumer.
        transfer: For all that is sent per datapoint of the whole flow, in both directions.
        num_sent: Datapoints sent per datapoint of the whole flow.
    """

    worker: float
    worker_cpu: float
    worker_locked: float
    thread_cpu: float = 0.0
    consumer: float = 0.0
    transfer: Transfer = field(default_factory=Transfer)
    num_sent: float = 1.0


def predict(costs: Costs, cores: int, num_workers: int, backend: Backend) -> float:
    """Datapoints per second of a flow with workers.

    The speed is limited by the workers' number, by the processor cores that all share, by the consumer, which does its
    part alone, and for threads by the interpreter lock, which one of them holds at a time.
    """
    per_message = min(_MAX_PER_MESSAGE, max(1.0, _MESSAGE_SECONDS * costs.num_sent / max(costs.worker, 1e-9)))
    message = _PER_MESSAGE[backend] * costs.num_sent / per_message
    if backend == "thread":
        consumer = costs.consumer + message + _HANDOVER * costs.num_sent
        more = max(0.0, costs.thread_cpu - costs.worker_cpu) + message
        cpu, locked = costs.worker_cpu + more + consumer, costs.worker_locked + message + consumer
        return min(num_workers / (costs.worker + more), cores / cpu, 1 / locked)
    send, receive = costs.transfer.send + message, costs.transfer.receive + message
    consumer = costs.consumer + receive
    return min(num_workers / (costs.worker + send), cores / (costs.worker_cpu + send + consumer), 1 / consumer)


def _numbers_of_workers(costs: Costs, cores: int) -> list[int]:
    """Numbers of workers to consider: more than there are cores only if the work waits."""
    numbers = set(range(1, cores + 1)) if cores <= 8 else {1, 2, 4, *range(8, cores + 1, 4), cores}
    if costs.worker_cpu < 0.7 * costs.worker:
        numbers |= {n for n in (2, 4, 8, 16, 24, 32, 2 * cores, 4 * cores) if n <= max(_MAX_WORKERS, 4 * cores)}
    return sorted(numbers)


def _predictions(costs: Costs, cores: int, backends: Sequence[Backend]) -> list[Prediction]:
    return [
        Prediction(backend, n, predict(costs, cores, n, backend))
        for backend in backends
        for n in _numbers_of_workers(costs, cores)
    ]


def _best_of(predictions: Sequence[Prediction], costs: Costs) -> Prediction:
    """The fewest workers that give almost the best speed; processes where both are alike, unless the work waits."""
    enough = _ENOUGH * max(prediction.datapoints_per_second for prediction in predictions)
    good = [prediction for prediction in predictions if prediction.datapoints_per_second >= enough]
    waits = costs.worker_cpu < costs.worker / 2
    return min(good, key=lambda prediction: (prediction.num_workers, (prediction.backend == "process") is waits))


# -- Measurement -------------------------------------------------------------------------------------------------------


_NUM_SAMPLES: Final = 8  # datapoints kept of each node, to measure their size and what it costs to send them
_SAMPLE_BYTES: Final = 64 << 20  # of all samples of one node
_ARENA_BYTES: Final = 256 << 20
_TRANSFER_SECONDS: Final = 0.2  # at most, for each node
_AHEAD: Final = 50  # datapoints that a worker thread has under way, if they are not too large
_KEPT_BYTES: Final = 64 << 20  # of them
_LONGEST_SAMPLE: Final = 0.01  # seconds between two samples
_MANY_SAMPLES: Final = 100
_now: Final = time.perf_counter


class _Meter:
    """Counts the datapoints of each node of a chain, keeps the first ones, and samples in which node the time goes.

    Each step counts for the innermost node: the nearest frame, from the inside, in which one of them makes its steps.

    Attributes:
        num: Datapoints that each node has made.
        samples: The first datapoints of each.
        times: How often each was found at work.
    """

    def __init__(self, num_nodes: int) -> None:
        self.num = [0] * num_nodes
        self.samples: list[list[Any]] = [[] for _ in range(num_nodes)]
        self.times = [0] * num_nodes
        self._frames: dict[int, int] = {}  # by id: the node whose steps it makes; it lives as long as its entry

    def watch(self, node: Any, k: int) -> None:
        """Let `node` be measured as node `k`. Its methods are replaced in this instance."""
        for name in ("_df_run_pass", "_df_at"):
            vars(node)[name] = partial(self._steps, getattr(node, name), k)

    def _steps(self, begin: Callable[..., Iterator[Any]], k: int, *args: Any) -> Iterator[Any]:
        frame = id(sys._getframe())
        self._frames[frame] = k
        num, samples = self.num, self.samples[k]
        try:
            for dp in begin(*args):
                if dp is not HOLE:
                    num[k] += 1
                    if len(samples) < _NUM_SAMPLES and len(samples) * size_of(dp) < _SAMPLE_BYTES:
                        samples.append(dp)
                yield dp
                del dp
        finally:
            del self._frames[frame]

    def run_for(self, steps: Iterator[Any], seconds: float) -> int:
        """Take datapoints for `seconds`, as `_run_for`. What was counted before, with the first one, is not typical."""
        self.num[:] = self.times[:] = [0] * len(self.num)
        ended = threading.Event()
        args = threading.get_ident(), min(_LONGEST_SAMPLE, seconds / _MANY_SAMPLES), ended
        sampler = threading.Thread(target=self._sample, args=args, daemon=True)
        sampler.start()
        try:
            return _run_for(steps, seconds)
        finally:
            ended.set()
            sampler.join()

    def _sample(self, thread: int, interval: float, ended: threading.Event) -> None:
        while not ended.is_set():
            sleep_until_interrupting(interval * (0.5 + random.random()))  # not in step with the nodes
            frame = sys._current_frames().get(thread)
            while frame is not None and id(frame) not in self._frames:
                frame = frame.f_back
            if frame is not None:
                self.times[self._frames.get(id(frame), 0)] += 1

    def shares(self) -> list[float]:
        """The part of the time in each node."""
        times = self.times if any(self.times) else [1] * len(self.times)
        return [num / sum(times) for num in times]


def size_of(value: Any, levels: int = 4) -> int:
    """Bytes of a datapoint: arrays and bytes by their data, numbers as 8, containers by their elements."""
    if isinstance(value, np.ndarray | np.generic):
        return int(value.nbytes)
    if isinstance(value, bytes | bytearray | memoryview | str):
        return len(value)
    if isinstance(value, bool | int | float):
        return 8
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return sum(size_of(item, levels - 1) for item in value) if levels else 8 * len(value)
    nbytes = getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(value, 0)


def _copy_without_workers(df: DataFlow) -> dict[int, Any]:
    """Copies of all nodes of a chain, by the id of the node.

    In the copies runners and parallel maps have no workers and are strict: their passes are those of their input.
    """
    copies: dict[int, Any] = copy_chain(df)
    for node in copies.values():
        if node._df_has_workers:
            vars(node)["options"] = dataclasses.replace(vars(node)["options"], num_workers=0, strict=True, ordered=True)
    return copies


def _is_map(node: Any) -> bool:
    """Whether a parallel map can take the place of a node."""
    return type(node) in {MapData, MapDataComponent} or (node._df_has_workers and not node._df_remote_inputs)


def _passes(df: DataFlow) -> Iterator[Any]:
    """Pass after pass of a flow in this process."""
    stream = root_stream(df)
    open_flow(df, stream)
    return passes_on(df, stream)


def _delayed() -> float:
    """Seconds that this thread was ready to run while others had the processors; 0 if unknown."""
    _, delayed = processor_times("thread-self") or (0.0, 0.0)
    return delayed


def _run_for(datapoints: Iterator[Any], seconds: float) -> int:
    """Take datapoints for `seconds`, at least one. Return how many."""
    end, num = _now() + seconds, 0
    for dp in datapoints:
        del dp
        num += 1
        if _now() >= end:
            break
    return num


def _in_threads(df: DataFlow, num_threads: int, seconds: float) -> tuple[float, float]:
    """Run copies of a flow in threads at once: datapoints per second of all, and processor time of a datapoint.

    Each keeps as many datapoints as a worker thread has under way: their memory is not free for the next ones, so that
    `image` of benchmarks.auto takes 10 µs of processor time instead of 6. The time in which other programs have the
    processors does not count.
    """
    start = threading.Barrier(num_threads)

    def run(flow: Any) -> tuple[int, float, float]:
        try:
            datapoints = _passes(flow)
            first = next(datapoints, None)
            kept = deque([first], maxlen=int(min(_AHEAD, max(1, _KEPT_BYTES // max(1, size_of(first))))))
        except BaseException:
            start.abort()  # the others would wait for it
            raise
        start.wait()
        cpu, delayed, began = time.thread_time(), _delayed(), _now()
        num = _run_for(map(kept.append, datapoints), seconds)
        used = time.thread_time() - cpu
        return num, max(used, _now() - began - (_delayed() - delayed)), used

    flows = [_copy_without_workers(df)[id(df)] for _ in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as threads:
        found = list(threads.map(run, flows))
    for flow in flows:
        close_flow(flow)
    return sum(num / took for num, took, _ in found), sum(cpu for *_, cpu in found) / max(1, sum(n for n, *_ in found))


def _transfer(datapoints: Sequence[Any], seconds: float) -> Transfer:
    """Measure for `seconds` what it costs to send datapoints to another process, by encoding and decoding them here."""
    if not datapoints:
        return Transfer()
    codec = ArrayCodec(1, _ARENA_BYTES)
    try:
        encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()
        sent = received = 0.0
        num, end = 0, _now() + seconds
        while True:
            began = _now()
            encoded = [item for dp in datapoints if (item := encoder.encode(dp)) is not NO_ROOM]
            body, _ = encoder.join(encoded)
            middle = _now()
            decoder.decode(0, body)
            after = _now()
            if num:  # the first blocks are new pages
                sent += middle - began
                received += after - middle
            num += len(encoded)
            if after >= end or not encoded:
                break
        counted = max(1, num - len(encoded))
        return Transfer(sent / counted, received / counted)
    except Exception:  # datapoints that cannot be sent: the runner says why
        return Transfer()
    finally:
        codec.close()


# -- Places in the chain -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured, per datapoint of the flow; of each node by the id of the copy that ran.

    Attributes:
        seconds: Own seconds of each node; all together are `total`.
        num: Datapoints of each node.
        transfers: What it costs to send one datapoint of each node.
        total: Seconds without the measurement.
        cpu: Processor time.
        locked: Seconds in which no other thread makes progress.
        thread_cpu: Processor time in one of several threads.
    """

    seconds: Mapping[int, float]
    num: Mapping[int, float]
    transfers: Mapping[int, Transfer]
    total: float
    cpu: float
    locked: float
    thread_cpu: float


def _places(top: Any, measured: _Measured) -> Iterator[tuple[Literal["runner", "map"], Any, Costs]]:
    """Where workers can be used, and what the flow would cost with them, from the outside in."""
    for node in walk(top, everywhere=True):
        if node._df_has_workers and not _is_map(node):
            continue
        if node._df_unaddressable() is None:
            below = {id(other) for other in walk(node, everywhere=True)}
            work = sum(measured.seconds[k] for k in below)
            yield "runner", node, _costs(node, work, (node,), measured)
        if _is_map(node):
            yield "map", node, _costs(node, measured.seconds[id(node)], (node, node.ds), measured)


def _costs(node: Any, work: float, sent: Iterable[Any], measured: _Measured) -> Costs:
    part = work / measured.total
    transfer = Transfer()
    for other in sent:
        one, num = measured.transfers[id(other)], measured.num[id(other)]
        forth = Transfer(num * one.send, num * one.receive)
        if other is not node:  # sent by the consumer
            forth = Transfer(forth.receive, forth.send)
        transfer = Transfer(transfer.send + forth.send, transfer.receive + forth.receive)
    return Costs(
        worker=max(work, 1e-9),
        worker_cpu=max(measured.cpu * part, 1e-9),
        worker_locked=measured.locked * part,
        thread_cpu=measured.thread_cpu * part,
        consumer=max(0.0, measured.total - work),
        transfer=transfer,
        num_sent=max(measured.num[id(node)], 1e-9),
    )


def _placement(kind: Literal["runner", "map"], text: str, best: Prediction) -> Placement:
    n, is_process = best.num_workers, best.backend == "process"
    if kind == "runner":
        name = "ParallelData"
        code = f"{name}(ds, {n})" if is_process else f'{name}(ds, {n}, backend="thread")'
    else:
        name = "MultiProcessMapData" if is_process else "MultiThreadMapData"
        code = f"{name}(ds, {n}, func, strict=True)"
    return Placement(kind, text, name, best.backend, n, best.datapoints_per_second, code)


# -- Front door --------------------------------------------------------------------------------------------------------


def profile(df: DataFlow, seconds: float = 10.0) -> FlowProfile:
    """Measure what each node of a flow costs, and predict its speed with workers.

    The chain runs in this process: the workers of its runners are not started. A copy of the flow is iterated, so `df`
    counts no pass; data are not copied, and an iterator or a queue that the source reads loses the datapoints read.
    Afterwards the process keeps up to 64 MiB of freed memory, as workers do.

    Args:
        df: The flow.
        seconds: How long to measure, about. A flow whose datapoints take longer is measured with a few.

    Returns:
        The costs of the nodes, predicted speeds, and which runner to use, where, and with how many workers. ``str()``
        of it is a table.

    Raises:
        TypeError: `df` is not a dataflow.
        ValueError: `seconds` is not a positive, finite number, or the flow yields no datapoint.

    Example:
        >>> df = MapData(DataFromList([[k] for k in range(100)]), lambda dp: [sum(range(50_000 + dp[0]))])
        >>> measured = dataflow.profile(df, seconds=0.2)
        >>> max(measured.nodes, key=lambda node: node.seconds).node
        'MapData(func=<lambda> at ...)'
        >>> measured.recommended.num_workers >= 0
        True

    Source:
        ``pick_performance_config`` of grain chooses a number of workers for a flow; the rest is our own.
    """
    require_flow(df, "profile", "df")
    seconds = checked_seconds("profile", "seconds", seconds)
    keep_freed_memory()  # as workers do
    began, cores = _now(), available_cores()
    copies = _copy_without_workers(df)
    top = copies[id(df)]
    nodes = list(walk(top, everywhere=True))
    meter = _Meter(len(nodes))
    for k, node in enumerate(nodes):
        meter.watch(node, k)
    steps = _passes(top)
    _run_for(steps, seconds * 0.05)
    num = meter.run_for(steps, seconds * 0.4)
    close_flow(top)
    plain = _copy_without_workers(df)[id(df)]
    steps = _passes(plain)
    if not num and not _run_for(steps, 0):
        raise ValueError(f"a pass of {type(df).__name__} is empty: there is nothing to measure")
    _run_for(steps, seconds * 0.02)
    delayed, cpu, wall = _delayed(), time.process_time(), _now()
    num_plain = max(1, _run_for(steps, seconds * 0.25))
    taken, cpu, lost = _now() - wall, time.process_time() - cpu, _delayed() - delayed
    del steps
    close_flow(plain)
    total = max(taken - lost, min(cpu, taken), 1e-9) / num_plain
    cpu_each = min(cpu / num_plain, total * cores)
    num_threads, thread_cpu, rate = max(2, min(8, cores)), cpu_each, 1 / total
    try:
        rate, thread_cpu = _in_threads(df, num_threads, seconds * 0.25)
    except Exception:  # a flow that cannot run in several threads
        num_threads = 0
    num = max(1, num)
    limit = min(_TRANSFER_SECONDS, 0.1 * seconds / len(nodes))
    keys = [id(node) for node in nodes]
    measured = _Measured(
        dict(zip(keys, (share * total for share in meter.shares()), strict=True)),
        dict(zip(keys, (made / num for made in meter.num), strict=True)),
        {k: _transfer(samples, limit) for k, samples in zip(keys, meter.samples, strict=True)},
        total,
        cpu_each,
        min(cpu_each, 1 / max(rate, 1e-9)),  # work that waits has the lock while it computes
        thread_cpu,
    )
    rows = [row for row in chain_rows(df) if id(row.node) in copies]
    texts = {id(copies[id(row.node)]): row.text for row in rows}
    recommended, predictions = _recommend(top, measured, texts, cores)
    sizes = {k: fmean(map(size_of, found)) if found else 0.0 for k, found in zip(keys, meter.samples, strict=True)}
    costs = tuple(
        NodeCost(row.text, row.prefix, measured.seconds[k], measured.seconds[k] / total, measured.num[k], sizes[k])
        for row in rows
        for k in [id(copies[id(row.node)])]
    )
    return FlowProfile(
        num + num_plain,
        _now() - began,
        total,
        cpu_each,
        num_threads,
        rate * total,
        cores,
        costs,
        tuple(predictions),
        recommended,
    )


def _recommend(
    top: Any, measured: _Measured, texts: Mapping[int, str], cores: int
) -> tuple[Placement, list[Prediction]]:
    """The best place for workers, and the predictions there."""
    plain = 1 / measured.total
    best: tuple[Placement, list[Prediction]] | None = None
    for kind, node, costs in _places(top, measured):
        predictions = _predictions(costs, cores, ("process", "thread"))
        found = _best_of(predictions, costs)
        if best is None or found.datapoints_per_second > 1.05 * best[0].datapoints_per_second:
            best = _placement(kind, texts.get(id(node), type(node).__name__), found), predictions
    if best is None:
        return Placement("none", "", "", None, 0, plain, ""), []
    if max(prediction.datapoints_per_second for prediction in best[1]) < _WORTH * plain:
        return Placement("none", "", "", None, 0, plain, ""), best[1]
    return best
