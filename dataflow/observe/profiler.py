"""Profiler: runs a chain in this process, measures what each node costs, and predicts the speed with workers.

Copies of the chain run, so the flow itself counts no pass and keeps its iterators; in a copy runners have no workers.
Of the first one, another thread samples in which node the time goes. The second one runs as it is and shows the speed.
Several at once, in threads, show what threads gain. `predict` is a pure function of these figures.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from types import FrameType
from typing import Any, Final, Literal, get_args

import numpy as np

from dataflow.observe.figures import size_text
from dataflow.observe.frame_owners import sleep_until_interrupting
from dataflow.observe.representation import chain_rows
from dataflow.protocol.base import DataFlow, close_flow, require_flow
from dataflow.protocol.datapoint import HOLE
from dataflow.protocol.parameters import seconds as checked_seconds
from dataflow.protocol.passes import copy_chain, fill_files, open_flow, passes_on, root_stream, walk
from dataflow.system.machine import available_cores, processor_times
from dataflow.system.thread_frames import stack_of
from dataflow.system.worker_process import keep_freed_memory
from dataflow.transforms.mapping import MapData, MapDataComponent
from dataflow.transport.codec import ArrayCodec
from dataflow.transport.message_layout import NO_ROOM

__all__ = ["Costs", "FlowProfile", "NodeCost", "Placement", "Prediction", "predict", "profile"]

Backend = Literal["process", "thread"]


# -- Results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node costs. If it stands in several places, the first of them has its costs.

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
_ENOUGH: Final = 0.95  # the smallest number of workers with this part of the best speed is the best number
_HANDOVER: Final = 1e-6  # seconds for one datapoint between threads
_WORTH: Final = 1.1  # times the speed without workers; below, the prediction is not exact enough to advise workers


@dataclass(frozen=True, slots=True)
class Costs:
    """What a flow costs per datapoint of the whole flow, split between its workers and the consumer.

    Attributes:
        worker: Seconds of the part that workers do.
        worker_cpu: Processor time of those.
        worker_locked: Seconds in which one of several threads that do this part keeps the others from it.
        consumer: Seconds of the part that stays in the consumer.
        send: Seconds of processor time in a worker process for all that is sent to and from it.
        receive: The same in the consumer.
        num_sent: Datapoints sent per datapoint of the whole flow.
    """

    worker: float
    worker_cpu: float
    worker_locked: float
    consumer: float = 0.0
    send: float = 0.0
    receive: float = 0.0
    num_sent: float = 1.0

    @property
    def waits(self) -> bool:
        """Whether the workers wait for so much of their time that more of them than cores are of use."""
        return self.worker_cpu < 0.7 * self.worker


def predict(costs: Costs, cores: int, num_workers: int, backend: Backend) -> float:
    """Datapoints per second of a flow with workers.

    The speed is limited by the workers' number, by the processor cores that all share, and by what is done one after
    the other: the consumer's part, and with threads that for which they hold the interpreter lock.
    """
    messages = min(costs.num_sent, costs.worker / _MESSAGE_SECONDS)
    send = receive = _PER_MESSAGE[backend] * messages
    alone = costs.consumer
    if backend == "process":
        send, receive = send + costs.send, receive + costs.receive
    else:
        alone += costs.worker_locked + send
        receive += _HANDOVER * costs.num_sent
    return min(
        num_workers / (costs.worker + send),
        cores / (costs.worker_cpu + send + costs.consumer + receive),
        1 / (alone + receive),
    )


def _predictions(costs: Costs, cores: int) -> list[Prediction]:
    numbers = set(range(1, cores + 1)) if cores <= 8 else {1, 2, 4, *range(8, cores + 1, 4), cores}
    if costs.waits:
        numbers |= {2, 4, 8, 16, 24, 32, 2 * cores, 4 * cores}
    backends: tuple[Backend, ...] = get_args(Backend)
    return [Prediction(backend, n, predict(costs, cores, n, backend)) for backend in backends for n in sorted(numbers)]


def _best_of(predictions: Sequence[Prediction], costs: Costs) -> Prediction:
    """The fewest workers that give almost the best speed; processes where both are alike, unless the work waits."""
    enough = _ENOUGH * max(prediction.datapoints_per_second for prediction in predictions)
    good = [prediction for prediction in predictions if prediction.datapoints_per_second >= enough]
    return min(good, key=lambda prediction: (prediction.num_workers, (prediction.backend == "process") is costs.waits))


# -- Measurement -------------------------------------------------------------------------------------------------------


_NUM_SAMPLES: Final = 8  # datapoints kept of each node, to measure their size and what it costs to send them
_SAMPLE_BYTES: Final = 64 << 20  # of all samples of one node
_ARENA_BYTES: Final = 256 << 20
_TRANSFER_SECONDS: Final = 0.2  # at most, for each node
_LONGEST_SAMPLE: Final = 0.01  # seconds between two samples
_MANY_SAMPLES: Final = 100
_AHEAD: Final = 50  # datapoints that a worker thread has under way, if they are not too large
_KEPT_BYTES: Final = 64 << 20  # of them
_WARMUP: Final = 0.1  # of the time: what the first datapoints take is not typical
_now: Final = time.perf_counter


@dataclass(slots=True)
class _Seen:
    """What the meter has seen of a node: datapoints made, the first of them, and how often it was found at work."""

    num: int = 0
    samples: list[Any] = field(default_factory=list)
    times: int = 0

    @property
    def nbytes(self) -> float:
        """Mean size of the datapoints; 0 if there are none."""
        return fmean(map(size_of, self.samples)) if self.samples else 0.0


class _Meter:
    """Counts the datapoints of each node of a chain, keeps the first ones, and samples in which node the time goes.

    Each step counts for the innermost node: the nearest frame, from the inside, in which one of them makes its steps.

    Args:
        top: The outermost node. Methods of the nodes are replaced in these instances.

    Attributes:
        seen: What was seen of each node, by the id of the node.
    """

    def __init__(self, top: DataFlow) -> None:
        self._top = top
        self.seen: dict[int, _Seen] = {}
        self._frames: dict[int, _Seen] = {}  # by id: the node whose steps it makes; it lives as long as its entry
        for node in walk(top, everywhere=True):
            seen = self.seen[id(node)] = _Seen()
            for name in ("_df_run_pass", "_df_at"):
                vars(node)[name] = partial(self._steps, getattr(node, name), seen)

    def _steps(self, begin: Callable[..., Iterator[Any]], seen: _Seen, *args: Any) -> Iterator[Any]:
        is_outermost = self._at_work(_outward(sys._getframe(1))) is not seen  # a pass may read the same node by index
        frame = id(sys._getframe())
        self._frames[frame] = seen
        samples = seen.samples
        try:
            for dp in begin(*args):
                if is_outermost and dp is not HOLE:
                    seen.num += 1
                    if len(samples) < _NUM_SAMPLES and len(samples) * size_of(dp) < _SAMPLE_BYTES:
                        samples.append(dp)
                yield dp
                del dp
        finally:
            del self._frames[frame]

    def run(self, seconds: float) -> int:
        """Take datapoints of the chain for `seconds`. Return how many."""
        datapoints = _passes(self._top)
        _run_for(datapoints, seconds * _WARMUP)
        for seen in self.seen.values():
            seen.num = seen.times = 0
        ended = threading.Event()
        args = threading.get_ident(), min(_LONGEST_SAMPLE, seconds / _MANY_SAMPLES), ended
        sampler = threading.Thread(target=self._sample, args=args, daemon=True)
        sampler.start()
        try:
            return _run_for(datapoints, seconds)
        finally:
            ended.set()
            sampler.join()

    def _sample(self, thread: int, interval: float, ended: threading.Event) -> None:
        while not ended.is_set():
            sleep_until_interrupting(0.5 * interval, 1.5 * interval)
            seen = self._at_work(stack_of(thread))
            if seen is not None:
                seen.times += 1

    def _at_work(self, stack: Iterable[FrameType]) -> _Seen | None:
        """The node that makes its steps in the nearest of these frames, from the inside; None if none does."""
        return next((seen for frame in stack if (seen := self._frames.get(id(frame))) is not None), None)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame of this thread, and those around it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


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


def _passes(df: DataFlow) -> Iterator[Any]:
    """Pass after pass of a flow in this process."""
    stream = root_stream(df)
    if open_flow(df, stream):
        fill_files(df, stream)
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


def _run_copies(df: DataFlow, num_copies: int, num_kept: int, seconds: float) -> tuple[int, float, float]:
    """Run copies of a flow at once, each in a thread of its own; a single one in this thread.

    The time that other programs have the processors does not count. Each keeps its last `num_kept` datapoints, whose
    memory is not free for the next ones: `image` of benchmarks.auto takes 11 µs of processor time then, instead of 7.

    Returns:
        Datapoints that all copies have made, their datapoints per second, and processor time per datapoint.

    Raises:
        ValueError: A copy yields no datapoint.
    """
    start = threading.Barrier(num_copies)

    def run(flow: Any) -> tuple[int, float, float]:
        try:
            datapoints = map(deque(maxlen=num_kept).append, _passes(flow))
            _run_for(datapoints, seconds * _WARMUP)
        except BaseException:
            start.abort()  # the others would wait for it
            raise
        start.wait()
        cpu, own, delayed, began = time.process_time(), time.thread_time(), _delayed(), _now()
        num = _run_for(datapoints, seconds)
        cpu, taken = time.process_time() - cpu, _now() - began - (_delayed() - delayed)
        # The kernel counts a delay as it ends: one that had begun before may be longer than all that was measured.
        taken = max(taken, time.thread_time() - own)
        if not num:
            raise ValueError(
                f"a pass of {type(df).__name__} is empty: there is nothing to measure, or nothing more, if its source "
                "can be read only once"
            )
        return num, num / max(taken, 1e-9), cpu

    flows = [_copy_without_workers(df)[id(df)] for _ in range(num_copies)]
    with ExitStack() as closing:
        for flow in flows:
            closing.callback(close_flow, flow)
        if num_copies == 1:
            found = [run(flows[0])]
        else:
            with ThreadPoolExecutor(num_copies) as threads:
                found = list(threads.map(run, flows))
    num = sum(made for made, *_ in found)
    return num, sum(rate for _, rate, _ in found), fmean(cpu for *_, cpu in found) / num


def _transfer(datapoints: Sequence[Any], seconds: float) -> tuple[float, float]:
    """Measure for `seconds` what it costs to send a datapoint to another process, by encoding and decoding it here.

    Returns:
        Seconds of processor time in the sender, and in the receiver.
    """
    codec = ArrayCodec(1, _ARENA_BYTES)
    encoder, decoder = codec.port(0).open_encoder(), codec.open_decoder()

    def send() -> tuple[int, float, float]:
        began = time.thread_time()
        encoded = [item for dp in datapoints if (item := encoder.encode(dp)) is not NO_ROOM]
        body, _ = encoder.join(encoded)
        middle = time.thread_time()
        decoder.decode(0, body)
        return len(encoded), middle - began, time.thread_time() - middle

    try:
        send()  # the first blocks are new pages
        end = _now() + seconds
        rounds = [send()]
        while _now() < end:
            rounds.append(send())
        num, sent, received = map(sum, zip(*rounds, strict=True))
        return sent / num, received / num
    except Exception:  # there are none, or they cannot be sent: the runner says why
        return 0.0, 0.0
    finally:
        codec.close()


# -- Places in the chain -----------------------------------------------------------------------------------------------


_Place = tuple[Literal["runner", "map"], str, Costs]
"""What can stand there, the node as text, and what the flow would cost."""


def _places(
    top: Any, whole: Costs, nodes: Mapping[int, NodeCost], transfers: Mapping[int, tuple[float, float]]
) -> Iterator[_Place]:
    """Where workers can be used, and what the flow would cost with them, from the outside in.

    Args:
        top: The outermost node.
        whole: What the flow costs if one worker does all of it.
        nodes: What each node costs, by its id.
        transfers: What it costs to send one datapoint of each node, as `_transfer` returns it.
    """

    def costs(node: Any, inside: Iterable[Any], inputs: Iterable[Any]) -> Costs:
        """The costs if the workers run the nodes `inside`, and the consumer sends them the `inputs`."""
        part = sum(nodes[id(other)].share for other in inside)
        num = nodes[id(node)].count
        send, receive = (num * seconds for seconds in transfers[id(node)])
        for other in inputs:
            by_consumer, by_worker = (nodes[id(other)].count * seconds for seconds in transfers[id(other)])
            send, receive = send + by_worker, receive + by_consumer
        return Costs(
            worker=max(whole.worker * part, 1e-9),
            worker_cpu=max(whole.worker_cpu * part, 1e-9),
            worker_locked=whole.worker_locked * part,
            consumer=whole.worker * max(0.0, 1 - part),
            send=send,
            receive=receive,
            num_sent=max(num, 1e-9),
        )

    for node in walk(top, everywhere=True):
        is_map = type(node) in {MapData, MapDataComponent} or (node._df_has_workers and not node._df_remote_inputs)
        if node._df_has_workers and not is_map:
            continue
        if node._df_unaddressable() is None:
            yield "runner", nodes[id(node)].node, costs(node, walk(node, everywhere=True), ())
        if is_map:
            yield "map", nodes[id(node)].node, costs(node, (node,), (node.ds,))


def _placement(kind: Literal["runner", "map"], node: str, best: Prediction) -> Placement:
    n, is_process = best.num_workers, best.backend == "process"
    if kind == "runner":
        name = "ParallelData"
        code = f"{name}(ds, {n})" if is_process else f'{name}(ds, {n}, backend="thread")'
    else:
        name = "MultiProcessMapData" if is_process else "MultiThreadMapData"
        code = f"{name}(ds, {n}, func, strict=True)"
    return Placement(kind, node, name, best.backend, n, best.datapoints_per_second, code)


def _recommend(places: Iterable[_Place], plain: float, cores: int) -> tuple[Placement, list[Prediction]]:
    """The best place for workers, and the predictions there; `plain` is the speed without workers."""
    best = none = Placement("none", "", "", None, 0, plain, "")
    predictions: list[Prediction] = []
    for kind, node, costs in places:
        made = _predictions(costs, cores)
        found = _best_of(made, costs)
        if best is none or found.datapoints_per_second > 1.05 * best.datapoints_per_second:
            best, predictions = _placement(kind, node, found), made
    fastest = max((prediction.datapoints_per_second for prediction in predictions), default=0.0)
    return best if fastest >= _WORTH * plain else none, predictions


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
        ValueError: `seconds` is not a positive, finite number, or the flow yields no datapoint, or none any more.

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
    meter = _Meter(top)
    try:
        num_metered = meter.run(seconds * 0.4)
    finally:
        close_flow(top)
    num, rate, cpu = _run_copies(df, 1, 0, seconds * 0.25)
    num_threads = max(2, min(8, cores))
    num_kept = min(_AHEAD, int(_KEPT_BYTES / max(1, meter.seen[id(top)].nbytes)))
    try:
        _, rate_of_threads, _ = _run_copies(df, num_threads, num_kept, seconds * 0.25)
    except Exception:  # a flow that cannot run in several threads
        num_threads, rate_of_threads = 0, rate
    rows = [(row, id(copies[id(row.node)])) for row in chain_rows(df) if id(row.node) in copies]
    texts = {k: row.text for row, k in rows}
    times = sum(seen.times for seen in meter.seen.values())
    nodes, transfers = {}, {}
    for node in walk(top, everywhere=True):
        seen = meter.seen[id(node)]
        share = seen.times / times if times else 1 / len(meter.seen)
        text = texts.get(id(node), type(node).__name__)
        nodes[id(node)] = NodeCost(text, "", share / rate, share, seen.num / max(1, num_metered), seen.nbytes)
        transfers[id(node)] = _transfer(seen.samples, min(_TRANSFER_SECONDS, 0.1 * seconds / len(meter.seen)))
    whole = Costs(1 / rate, cpu, min(cpu, 1 / rate_of_threads))  # work that waits has the lock while it computes
    recommended, predictions = _recommend(_places(top, whole, nodes, transfers), rate, cores)
    for node in walk(top, everywhere=True):  # a row stands also for the node below it that has none
        for inner in (nodes[id(ds)] for ds in node._df_inputs if id(ds) not in texts):
            outer = nodes[id(node)]
            nodes[id(node)] = dataclasses.replace(
                outer, seconds=outer.seconds + inner.seconds, share=outer.share + inner.share
            )
    costs = []
    for row, k in rows:
        costs.append(dataclasses.replace(nodes[k], node=row.text, prefix=row.prefix))
        nodes[k] = dataclasses.replace(nodes[k], seconds=0.0, share=0.0, count=0.0)  # in further places
    return FlowProfile(
        num_metered + num,
        _now() - began,
        1 / rate,
        cpu,
        num_threads,
        rate_of_threads / rate,
        cores,
        tuple(costs),
        tuple(predictions),
        recommended,
    )
