"""The contenders, one file each. A library is imported only in the process that measures it.

A contender's file has

- a docstring, whose first line says how it moves datapoints;
- ``REQUIRES``: what to install into its environment besides `COMMON`; None if it runs in the environment that runs
  the benchmarks;
- ``IMPORTS``: modules to import before the clock of the start-up runs;
- ``ENVIRONMENT``: environment variables of its process, if any;
- ``VARIANTS``: its configurations, by name.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.workloads import TRANSPORT, Workload

__all__ = ["ALL", "COMMON", "QUICK", "TRAINING", "Variant", "load", "split"]

QUICK = (
    "references",
    "ours",
    "tensorpack",
    "mp_queue",
    "executor_map",
    "spdl_arena",
    "grain_prefetch",
    "elektronn",
    "tcp",
)
TRAINING = (
    "training_limit",
    "training_ours",
    "training_torch",
    "training_spdl",
    "training_grain",
    "training_tensorpack",
)
ALL = (*QUICK, "torch_loader", "ray_data", "ray_actors", "ray_nodes", *TRAINING)

COMMON = ("numpy>=1.26", "opencv-python-headless>=4.8")


@dataclass(frozen=True)
class Variant:
    """One configuration of a contender.

    Attributes:
        open: Takes a workload and a number of workers; returns a context manager with the endless stream of datapoints.
        workloads: Names of the workloads that it supports.
        workers: Numbers of workers to measure.
        in_processes: Whether the work is done in other processes; False for threads and references.
        runs_source: Whether forked workers iterate the workload's source, as the probes require.
    """

    open: Callable[[Workload, int], AbstractContextManager[Iterator[Any]]]
    workloads: tuple[str, ...] = TRANSPORT
    workers: tuple[int, ...] = (1, 2)
    in_processes: bool = True
    runs_source: bool = True


def load(name: str) -> ModuleType:
    if name not in ALL:
        raise ValueError(f"no contender is called {name!r}; there are {', '.join(ALL)}")
    return import_module(f"{__name__}.{name}")


def split(label: str) -> tuple[str, str]:
    """The name of the contender and of its variant in a label like ``ours/zmq``."""
    name, _, variant = label.partition("/")
    return name, variant
