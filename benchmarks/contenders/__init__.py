"""Who takes part. One file per contender; a library is imported only in the process that measures it.

A contender's file has

- its docstring, whose first line says in one sentence how it moves datapoints;
- ``REQUIRES``: what to install into its environment besides `COMMON`; None if it runs in the environment that runs
  the benchmarks;
- ``IMPORTS``: modules to import before the clock of the start-up runs;
- ``ENVIRONMENT``: variables of its process, if it wants any;
- ``VARIANTS``: its ways of doing the work, by name.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.workloads import WORKLOADS, Workload

__all__ = ["ALL", "COMMON", "QUICK", "Variant", "load", "split"]

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
ALL = (*QUICK, "torch_loader", "ray_data", "ray_actors")

COMMON = ("numpy>=1.26", "opencv-python-headless>=4.8")


@dataclass(frozen=True)
class Variant:
    """One way of moving datapoints.

    Attributes:
        open: Gives, for a workload and a number of workers, a context with the endless stream of datapoints.
        workloads: Names of the workloads that make sense.
        workers: Numbers of workers to try.
        in_processes: The work is done in other processes; False for threads and for references.
        runs_source: Each worker iterates the workload's source, and was forked: what the probes need.
    """

    open: Callable[[Workload, int], AbstractContextManager[Iterator[Any]]]
    workloads: tuple[str, ...] = tuple(WORKLOADS)
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
