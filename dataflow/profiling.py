"""Profiler: runs a chain in this process, measures what each node costs, and predicts the speed with workers.

A copy of the chain runs, so the flow itself counts no pass and keeps its iterators. In the copy runners have no
workers, and every node measures the time of its own steps. The steps of several copies in threads at once show how much
of the work releases the interpreter lock. `predict` is a pure function of these figures.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, repeat
from statistics import median
from typing import Any, Final, Literal

import numpy as np

from dataflow.base import DataFlow, close_flow, require_flow
from dataflow.codec.message_layout import NO_ROOM
from dataflow.codec.protocols import ArrayCodec
from dataflow.datapoint import HOLE
from dataflow.machine import available_cores, processor_times
from dataflow.parameters import seconds as checked_seconds
from dataflow.passes import copied_chain, open_flow, root_stream, walk
from dataflow.reports.figures import size_text
from dataflow.representation import chain_rows
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.workers.process import keep_freed_memory

__all__ = [
    "Costs",
    "NodeCost",
    "Placement",
    "Prediction",
    "FlowProfile",
    "Transfer",
    "predict",
    "profile",
    "rate_without_delays",
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
        locked_seconds: Seconds per datapoint in which the work holds the interpreter lock: threads share these.
        cores: Processor cores that this process may use.
        nodes: The costs of the nodes, from the outside in, as in ``repr(df)``.
        predictions: Predicted speeds at the recommended place of the chain, for processes and for threads.
        recommended: The runner or map to use.
    """

    datapoints: int
    seconds: float
    seconds_per_datapoint: float
    cpu_seconds: float
    locked_seconds: float
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

    @property
    def locked(self) -> float:
        """The part of the time, 0 to 1, in which the work holds the interpreter lock."""
        return min(1.0, self.locked_seconds / self.seconds_per_datapoint)

    def __str__(self) -> str:
        lines = [
            f"{self.datapoints_per_second:,.4g} datapoints/s without workers, {_duration(self.seconds_per_datapoint)} "
            f"each ({self.datapoints:,} measured in {self.seconds:.1f} s)",
            "",
            *_node_table(self.nodes),
            "",
            f"{self.waiting:.0%} of the time is waiting; {self.locked:.0%} holds the interpreter lock, which threads "
            "share.",
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
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError("the last unit is always used")


# -- Prediction: a pure function of what was measured ------------------------------------------------------------------


_MESSAGE_SECONDS: Final = 1e-3  # of work in one message
# What a message costs on either side, as a multiple of waking up a thread: `benchmarks.profiles` compares it with runs.
_WAKE_UPS: Final[Mapping[Backend, float]] = {"process": 9.0, "thread": 1.5}
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
        worker_locked: Of `worker`, seconds that hold the interpreter lock.
        thread_cpu: Processor time of the same work in one of several threads, at least `worker_cpu`.
        consumer: Seconds of the part that stays in the consumer.
        transfer: For all that is sent per datapoint of the whole flow, in both directions.
        num_sent: Datapoints sent per datapoint of the whole flow.
        wake_up: Seconds to wake up a thread that sleeps: on both sides, most messages are waited for.
    """

    worker: float
    worker_cpu: float
    worker_locked: float
    thread_cpu: float = 0.0
    consumer: float = 0.0
    transfer: Transfer = field(default_factory=Transfer)
    num_sent: float = 1.0
    wake_up: float = 30e-6


def predict(costs: Costs, cores: int, num_workers: int, backend: Backend) -> float:
    """Datapoints per second of a flow with workers.

    The speed is limited by the workers' number, by the processor cores that all share, by the consumer, which does its
    part alone, and for threads by the interpreter lock, which one of them holds at a time.
    """
    per_message = min(_MAX_PER_MESSAGE, max(1.0, _MESSAGE_SECONDS * costs.num_sent / max(costs.worker, 1e-9)))
    message = _WAKE_UPS[backend] * costs.wake_up * costs.num_sent / per_message
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
_MOSTLY: Final = 0.7  # of the time: a larger part cannot be distinguished from all of it
_now: Final = time.perf_counter


class _Meter:
    """Measures the time of the nodes of a chain: each step counts for the node that is innermost at the time.

    Attributes:
        seconds: Own time of each node.
        num: Datapoints that each has made.
        steps_below: Steps that each node has asked of its inputs, for the correction.
        samples: The first datapoints of each.
    """

    def __init__(self, num_nodes: int) -> None:
        self.seconds = [0.0] * (num_nodes + 1)  # the last is the caller
        self.num = [0] * num_nodes
        self.steps = [0] * num_nodes
        self.steps_below = [0] * (num_nodes + 1)
        self.samples: list[list[Any]] = [[] for _ in range(num_nodes)]
        self._current = num_nodes
        self._since = _now()

    def clear(self) -> None:
        """Begin again: what was made before, such as the first datapoint, is not typical."""
        self.seconds[:] = [0.0] * len(self.seconds)
        for counters in (self.num, self.steps, self.steps_below):
            counters[:] = [0] * len(counters)
        self._since = _now()

    def watch(self, node: Any, k: int) -> None:
        """Let `node` be measured as node `k`. Its methods are replaced in this instance."""
        for name in ("_df_run_pass", "_df_at"):
            vars(node)[name] = self._watched(getattr(node, name), k)

    def _watched(self, begin: Callable[..., Iterator[Any]], k: int) -> Callable[..., Iterator[Any]]:
        def begin_watched(*args: Any) -> Iterator[Any]:
            before = self._enter(k)
            try:
                datapoints = begin(*args)
            finally:
                self._leave(before)
            return self.steps_of(datapoints, k)

        return begin_watched

    def steps_of(self, datapoints: Iterator[Any], k: int) -> Iterator[Any]:
        """The datapoints of node `k`, with their time measured."""
        datapoints = iter(datapoints)
        num, steps, samples = self.num, self.steps, self.samples[k]
        while True:
            before = self._enter(k)
            try:
                dp = next(datapoints)
            except StopIteration:
                return
            finally:
                self._leave(before)
                steps[k] += 1
            if dp is not HOLE:
                num[k] += 1
                if len(samples) < _NUM_SAMPLES:
                    self._keep(samples, dp)
            yield dp
            del dp

    def _keep(self, samples: list[Any], dp: Any) -> None:
        if len(samples) * size_of(dp) < _SAMPLE_BYTES:
            samples.append(dp)
        self._since = _now()

    def _enter(self, k: int) -> int:
        before = self._current
        now = _now()
        self.seconds[before] += now - self._since
        self.steps_below[before] += 1
        self._current, self._since = k, now
        return before

    def _leave(self, before: int) -> None:
        now = _now()
        self.seconds[self._current] += now - self._since
        self._current, self._since = before, now

    def own_seconds(self) -> list[float]:
        """The own time of each node, without what the measurement itself takes."""
        within, around = _measuring_costs()
        return [
            max(0.0, self.seconds[k] - self.steps[k] * within - self.steps_below[k] * around)
            for k in range(len(self.num))
        ]


def _measuring_costs() -> tuple[float, float]:
    """Seconds that the measurement adds to each step: to the node itself, and to the node that asks it."""
    meter, num = _Meter(1), 5000
    steps = meter.steps_of(repeat(None, num), 0)
    meter.samples[0].extend(range(_NUM_SAMPLES))
    for _ in steps:
        pass
    meter._enter(0)
    return meter.seconds[0] / num, meter.seconds[1] / num


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


def _copied(df: DataFlow) -> dict[int, Any]:
    """Copies of all nodes of a chain, by the id of the node.

    In the copies runners and parallel maps have no workers and are strict: their passes are those of their input.
    """
    copies: dict[int, Any] = copied_chain(df)
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
    for p in count():
        is_empty = True
        for dp in df._df_run_pass(p, stream):
            is_empty = False
            yield dp
            del dp
        if is_empty:
            return


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


def _wake_up_seconds(num: int) -> float:
    """Seconds to wake up a thread that has slept for a while: half of a round trip, the median of `num`."""
    to, back = threading.Semaphore(0), threading.Semaphore(0)

    def answer() -> None:
        for _ in range(num):
            to.acquire()
            back.release()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    taken = []
    for _ in range(num):
        time.sleep(2e-3)
        began = _now()
        to.release()
        back.acquire()
        taken.append((_now() - began) / 2)
    thread.join()
    return median(taken)


def _in_threads(df: DataFlow, num_threads: int, seconds: float) -> tuple[float, float]:
    """Run copies of a flow, one in each of `num_threads` threads.

    Each keeps as many datapoints as a worker thread has under way: their memory is not free for the next ones.

    Returns:
        Datapoints per second, limited by the interpreter lock: the time in which threads had to wait for a processor
        does not count. And the processor time of a datapoint.
    """
    flows = [_copied(df)[id(df)] for _ in range(num_threads)]
    start, end = threading.Barrier(num_threads + 1), _now() + math.inf
    made, lost, cpu = [0] * num_threads, [0.0] * num_threads, [0.0] * num_threads
    errors: list[BaseException] = []

    def run(k: int) -> None:
        try:
            datapoints = _passes(flows[k])
            first = next(datapoints, None)
            kept = deque([first], maxlen=int(min(_AHEAD, max(1, _KEPT_BYTES // max(1, size_of(first))))))
            start.wait()
            delayed, used = _delayed(), time.thread_time()
            for dp in datapoints:
                kept.append(dp)
                made[k] += 1
                if _now() >= end:
                    break
            lost[k], cpu[k] = _delayed() - delayed, time.thread_time() - used
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            start.abort()

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(num_threads)]
    for thread in threads:
        thread.start()
    with suppress(threading.BrokenBarrierError):
        start.wait()
    began = _now()
    end = began + seconds
    for thread in threads:
        thread.join()
    took = _now() - began
    for flow in flows:
        close_flow(flow)
    if errors:
        raise errors[0]
    return rate_without_delays(made, took, lost, cpu), sum(cpu) / max(1, sum(made))


def rate_without_delays(made: Sequence[int], took: float, lost: Sequence[float], cpu: Sequence[float]) -> float:
    """Datapoints per second of several threads, had each of them a processor whenever it was ready to run.

    Args:
        made: Datapoints of each thread.
        took: Seconds, the same for all.
        lost: Seconds in which each was ready, while others had the processors.
        cpu: Processor time of each: no thread takes less.
    """
    return sum(made) / max((took * len(made) - sum(lost)) / len(made), sum(cpu) / len(made), 1e-9)


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
        seconds: Own seconds of each node.
        num: Datapoints of each node.
        transfers: What it costs to send one datapoint of each node.
        total: Seconds without the measurement.
        cpu: Processor time.
        locked: Seconds that hold the interpreter lock.
        thread_cpu: Processor time in one of several threads.
        wake_up: To wake up a thread.
    """

    seconds: Mapping[int, float]
    num: Mapping[int, float]
    transfers: Mapping[int, Transfer]
    total: float
    cpu: float
    locked: float
    thread_cpu: float
    wake_up: float


def _places(top: Any, measured: _Measured) -> Iterator[tuple[Literal["runner", "map"], Any, Costs]]:
    """Where workers can be used, and what the flow would cost with them, from the outside in."""
    whole = sum(measured.seconds.values()) or 1.0
    factor = measured.total / whole  # what the measurement did not attribute belongs to all
    for node in walk(top, everywhere=True):
        if node._df_has_workers and not _is_map(node):
            continue
        if node._df_unaddressable() is None:
            below = {id(other) for other in walk(node, everywhere=True)}
            work = sum(measured.seconds[k] for k in below) * factor
            yield "runner", node, _costs(node, work, (node,), measured)
        if _is_map(node):
            work = measured.seconds[id(node)] * factor
            yield "map", node, _costs(node, work, (node, node.ds), measured)


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
        wake_up=measured.wake_up,
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
    copies = _copied(df)
    top = copies[id(df)]
    nodes = list(walk(top, everywhere=True))
    meter = _Meter(len(nodes))
    for k, node in enumerate(nodes):
        meter.watch(node, k)
    steps = _passes(top)
    _run_for(steps, seconds * 0.05)
    meter.clear()
    num = _run_for(steps, seconds * 0.4)
    close_flow(top)
    plain = _copied(df)[id(df)]
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
    num_threads = min(8, max(4, cores))
    thread_cpu = cpu_each
    try:
        rate, thread_cpu = _in_threads(df, num_threads, seconds * 0.25)
        locked = 1 / rate if rate else total
        locked = min(total, cpu_each, locked if locked < _MOSTLY * total else total)
    except Exception:  # a flow that cannot run in several threads
        locked = min(total, cpu_each)
    num = max(1, num)
    limit = min(_TRANSFER_SECONDS, 0.1 * seconds / len(nodes))
    measured = _Measured(
        dict(zip(map(id, nodes), (s / num for s in meter.own_seconds()), strict=True)),
        dict(zip(map(id, nodes), (made / num for made in meter.num), strict=True)),
        {id(node): _transfer(samples, limit) for node, samples in zip(nodes, meter.samples, strict=True)},
        total,
        cpu_each,
        locked,
        thread_cpu,
        _wake_up_seconds(max(5, int(min(50, 10 * seconds)))),
    )
    rows = [row for row in chain_rows(df) if id(row.node) in copies]
    texts = {id(copies[id(row.node)]): row.text for row in rows}
    recommended, predictions = _recommended(top, measured, texts, cores)
    sizes = {
        id(node): sum(map(size_of, samples)) / len(samples) if samples else 0.0
        for node, samples in zip(nodes, meter.samples, strict=True)
    }
    whole = sum(measured.seconds.values()) or 1.0
    costs = tuple(
        NodeCost(
            row.text,
            row.prefix,
            measured.seconds[k] * total / whole,
            measured.seconds[k] / whole,
            measured.num[k],
            sizes[k],
        )
        for row in rows
        for k in [id(copies[id(row.node)])]
    )
    return FlowProfile(
        num + num_plain, _now() - began, total, cpu_each, locked, cores, costs, tuple(predictions), recommended
    )


def _recommended(
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
    nothing = Placement("none", "", "", None, 0, plain, "")
    if best is None:
        return nothing, []
    if best[0].datapoints_per_second < _WORTH * plain:
        return nothing, best[1]
    return best
