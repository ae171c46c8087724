"""Medians of the runs, and the best contenders. Pure functions: records in, figures out."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import TRAINING

__all__ = ["Figure", "Figures", "is_ours", "is_peer"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One variant with one workload and number of workers: medians over its runs.

    Attributes:
        rate: Datapoints per second, or whatever is the unit of the workload; `slowest` and `fastest` are the extremes.
        consumer_cpu: Seconds of the consumer's CPU per unit.
        memory: Bytes of physical memory that the consumer and its workers hold.
        startup: Seconds from the constructor to the first datapoint.
        close: Seconds.
    """

    label: str
    workload: str
    workers: int
    in_processes: bool
    rate: float
    slowest: float
    fastest: float
    consumer_cpu: float
    memory: float
    startup: float
    close: float
    runs: int


def is_peer(label: str) -> bool:
    """Whether the label is of another library: neither this one nor a reference."""
    return not is_ours(label) and not label.startswith(("references/", "training_limit/"))


def is_ours(label: str) -> bool:
    return label.startswith(("ours/", "training_ours/"))


class Figures:
    """The figures of one set of records, by workload, label and number of workers."""

    def __init__(self, records: Iterable[Record]) -> None:
        runs: defaultdict[tuple[str, str, int], list[Record]] = defaultdict(list)
        for record in records:
            if record["measurement"] == "throughput" and "error" not in record:
                runs[record["workload"], record["label"], record["workers"]].append(record)
        self._all = [summary(group) for group in runs.values()]

    @property
    def workloads(self) -> list[str]:
        """In the order in which they were run."""
        return list(dict.fromkeys(figure.workload for figure in self._all))

    @property
    def labels(self) -> list[str]:
        """Contender by contender, in the order in which they were run."""
        found = list(dict.fromkeys(figure.label for figure in self._all))
        names = list(dict.fromkeys(label.partition("/")[0] for label in found))
        return sorted(found, key=lambda label: names.index(label.partition("/")[0]))

    def select(self, workload: str, label: str, workers: int | None = None) -> list[Figure]:
        return [
            figure
            for figure in self._all
            if figure.workload == workload and figure.label == label and workers in {None, figure.workers}
        ]

    def best(self, workload: str, wanted: Callable[[Figure], bool]) -> Figure | None:
        """The fastest of the wanted figures, with any number of workers; None without any."""
        found = [figure for figure in self._all if figure.workload == workload and wanted(figure)]
        return max(found, key=lambda figure: figure.rate, default=None)

    def best_of(self, workload: str, label: str) -> Figure | None:
        return self.best(workload, lambda figure: figure.label == label)

    def best_peer(self, workload: str, workers: int | None = None) -> Figure | None:
        """The fastest other library that works in processes; in a training loop, also in threads."""
        return self.best(
            workload,
            lambda figure: (
                is_peer(figure.label)
                and (figure.in_processes or workload in TRAINING)
                and workers in {None, figure.workers}
            ),
        )


def summary(runs: list[Record]) -> Figure:
    rates = [run["rate"] for run in runs]
    medians = {
        key: statistics.median(run[key] for run in runs) for key in ("consumer_cpu", "memory", "startup", "close")
    }
    return Figure(
        **{key: runs[0][key] for key in ("label", "workload", "workers", "in_processes")},
        rate=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        runs=len(runs),
        **medians,
    )
