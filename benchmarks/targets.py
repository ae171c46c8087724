"""Performance targets, as ratios within one run of the benchmarks, and whether a run meets them."""

from dataclasses import dataclass

from benchmarks.figures import Figure, Figures, Record
from benchmarks.workloads import TRAINING

__all__ = ["LIMITS", "SLOTS", "Verdict", "verdicts"]

LIMITS = {
    "training": "training_limit/serial",
    "tokens": "training_limit/serial",
    "small": "references/in-process",
    "mnist": "references/in-process",
    "image": "references/memcpy",
    "batch": "references/memcpy",
    "collate": "references/stack-in-place",
    "jpeg": "references/in-process",
    "ragged": "references/in-process",
}
"""The speed of one core without transport. Two workers that copy or decode may be faster."""

SLOTS = "references/slots"
"""The only reference with a worker, so the report lists the cost of its consumer."""

ZMQ = "ours/zmq"
TENSORPACK = "tensorpack/zmq"
RAY = "ray_actors/runner"
BEST_PEER = "best peer in processes"
LOADER = "training_torch/loader"
OF_LOOPS = ("training_ours/default", "training_ours/strict", "training_ours/map")
READY_MADE = ("small", "mnist", "image", "batch")  # workloads whose datapoints are made in advance


@dataclass(frozen=True)
class AtLeast:
    """Target: `label` is at least `factor` times as fast as `against`, each with its best or with `workers` workers."""

    workload: str
    label: str
    against: str
    factor: float
    workers: int | None = None


@dataclass(frozen=True)
class CpuAtMost:
    """Target: with `workers` workers, `label` costs the consumer at most `factor` times the CPU of `against`."""

    workload: str
    label: str
    against: str
    factor: float
    workers: int


@dataclass(frozen=True)
class Verdict:
    """A target in words, the measured value (None: not measured), and whether it is met."""

    workload: str
    promise: str
    found: float | None
    limit: float
    unit: str
    is_upper: bool

    @property
    def is_kept(self) -> bool | None:
        if self.found is None:
            return None
        return self.found <= self.limit if self.is_upper else self.found >= self.limit


OF_ZMQ = (
    AtLeast("small", ZMQ, TENSORPACK, 7),
    AtLeast("small", ZMQ, "references/in-process", 0.28),
    AtLeast("small", "ours/zmq-hwm200", TENSORPACK, 5.5),
    AtLeast("mnist", ZMQ, TENSORPACK, 6),
    AtLeast("mnist", ZMQ, "executor_map/map", 1.1),
    AtLeast("image", ZMQ, TENSORPACK, 8),
    AtLeast("image", ZMQ, "spdl_arena/pool", 5),
    AtLeast("batch", ZMQ, TENSORPACK, 8),
    AtLeast("batch", ZMQ, "spdl_arena/pool", 1.05),
    AtLeast("batch", ZMQ, "references/memcpy", 0.75),
    AtLeast("collate", ZMQ, "references/stack-in-place", 0.85),
    AtLeast("jpeg", ZMQ, "references/in-process", 1.7, workers=2),
    AtLeast("jpeg", ZMQ, BEST_PEER, 0.97, workers=2),
    AtLeast("ragged", ZMQ, TENSORPACK, 2.5),
)

OF_OTHERS = (
    *(
        AtLeast(item.workload, "ours/runner", item.against, item.factor / 2, item.workers)
        for item in OF_ZMQ
        if item.label == ZMQ
    ),
    AtLeast("small", "ours/thread", "tensorpack/thread", 3),
    AtLeast("small", "ours/map", "tensorpack/map", 8),
    AtLeast("image", "ours/map", "tensorpack/map", 3),
    AtLeast("jpeg", "ours/map", "tensorpack/map", 1),
    AtLeast("jpeg", "ours/map-thread", "tensorpack/map-thread", 0.97, workers=2),
    AtLeast("image", "ours/zmq-strict", "ours/zmq-indexed", 0.9),
    AtLeast("jpeg", "ours/zmq-strict", "ours/zmq-indexed", 0.9),
    AtLeast("small", "ours/zmq-strict", "ours/zmq-indexed", 0.75),
    AtLeast("image", "ours/map-below-shard", "ours/map-above-shard", 0.9),
    AtLeast("jpeg", "ours/map-below-shard", "ours/map-above-shard", 0.9),
    AtLeast("batch", "ours/background", ZMQ, 0.8),
    AtLeast("batch", "ours/background-copies", "elektronn/events", 1),
    AtLeast("batch", "ours/background", "elektronn/events", 1),
    *(AtLeast(workload, "tcp/ours", "tcp/pickle5", 0.85) for workload in ("small", "image", "batch")),
    *(AtLeast(workload, "tcp/ours-curve", "tcp/ours", 0.3) for workload in ("small", "image", "batch")),
    *(AtLeast(workload, RAY, "ray_actors/loop", 0.9) for workload in ("small", "image", "batch")),
    AtLeast("small", "ray_nodes/runner", "ray_nodes/loop", 0.9),
    *(AtLeast(workload, "ray_nodes/runner", "ray_nodes/loop", 0.8) for workload in ("image", "batch")),
    AtLeast("small", RAY, "ray_data/iter-batches", 1.3),
    AtLeast("image", RAY, "ray_data/iter-batches", 4),
    AtLeast("batch", RAY, "ray_data/iter-batches", 2.5),
)


OF_TRAINING = tuple(
    AtLeast(workload, label, against, factor, workers=2)
    for workload in TRAINING
    for label in OF_LOOPS
    for against, factor in ((LOADER, 1.5), (BEST_PEER, 0.97), (LIMITS[workload], 2 * 0.95))
)
CPU_OF_TRAINING = tuple(CpuAtMost(workload, label, LOADER, 0.2, 2) for workload in TRAINING for label in OF_LOOPS)


def verdicts(figures: Figures, probes: list[Record]) -> list[Verdict]:
    return [
        *(ratio(item, figures) for item in OF_ZMQ),
        *upper_bounds(figures),
        burst(probes),
        *(ratio(item, figures) for item in OF_OTHERS),
        *(ratio(item, figures) for item in OF_TRAINING),
        *(cpu_ratio(item, figures) for item in CPU_OF_TRAINING),
    ]


def ratio(item: AtLeast, figures: Figures) -> Verdict:
    ours = figures.best(
        item.workload, lambda figure: figure.label == item.label and item.workers in {None, figure.workers}
    )
    if item.against == BEST_PEER:
        other = figures.best_peer(item.workload, item.workers)
    else:
        other = figures.best_of(item.workload, item.against)
    promise = f"{item.label} / {item.against}" + (f", {item.workers} workers" if item.workers else "")
    found = ours.rate / other.rate if ours and other else None
    return Verdict(item.workload, promise, found, item.factor, "×", is_upper=False)


def cpu_ratio(item: CpuAtMost, figures: Figures) -> Verdict:
    found = [
        figure.consumer_cpu
        for label in (item.label, item.against)
        for figure in figures.select(item.workload, label, item.workers)
    ]
    promise = f"{item.label} / {item.against}, {item.workers} workers: CPU of the consumer"
    value = found[0] / found[1] if len(found) == 2 else None
    return Verdict(item.workload, promise, value, item.factor, "×", is_upper=True)


def upper_bounds(figures: Figures) -> list[Verdict]:
    def cpu(workload: str) -> float | None:
        one = figures.select(workload, ZMQ, workers=1)
        return one[0].consumer_cpu * 1e6 if one else None

    two: list[Figure] = [figure for workload in READY_MADE for figure in figures.select(workload, ZMQ, workers=2)]
    startup = max((figure.startup * 1e3 for figure in two), default=None)
    close = max((figure.close * 1e3 for figure in two), default=None)
    return [
        Verdict("image", f"{ZMQ}, 1 worker: the consumer's CPU per datapoint", cpu("image"), 5, " µs", is_upper=True),
        Verdict("batch", f"{ZMQ}, 1 worker: the consumer's CPU per datapoint", cpu("batch"), 40, " µs", is_upper=True),
        Verdict("", f"{ZMQ}, 2 workers: constructor to first datapoint", startup, 60, " ms", is_upper=True),
        Verdict("", f"{ZMQ}, 2 workers: close", close, 100, " ms", is_upper=True),
    ]


def burst(probes: list[Record]) -> Verdict:
    waits = [
        record["wait"] * 1e3
        for record in probes
        if record["measurement"] == "burst" and record["label"] == ZMQ and "wait" in record
    ]
    promise = f"{ZMQ}: the last of a burst of 5, from made to received"
    return Verdict("", promise, max(waits, default=None), 50, " ms", is_upper=True)
