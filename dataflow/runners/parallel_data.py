"""`ParallelData`: a whole flow in workers of any kind, with the defaults that new code wants."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, SupportsIndex, Unpack

from dataflow.protocol.base import DataFlow, T_co, require_flow
from dataflow.runners.backends import Backend, BackendName, ProcessBackend, ThreadBackend
from dataflow.runners.options import (
    ACTOR_DEFAULTS,
    AUTO,
    ActorKeywords,
    NumWorkers,
    ProcessKeywords,
    WorkerKeywords,
    WorkerOptions,
    takes,
)
from dataflow.runners.runners import Runner, window_of
from dataflow.transport.flow_control import Window

__all__ = ["ParallelData"]


class ParallelKeywords(ProcessKeywords, ActorKeywords, total=False):
    """The keyword arguments of `ParallelData`: those of every backend."""


_TAKES: Final[dict[str, Collection[str]]] = {
    "process": ProcessKeywords.__annotations__.keys(),
    "thread": WorkerKeywords.__annotations__.keys(),
    "ray": ActorKeywords.__annotations__.keys(),
}
"""By backend: the options that it takes."""


class ParallelData(Runner[T_co]):
    """Run a flow in workers: processes, threads, or actors on a Ray cluster.

    The workers share each pass by index: it is exactly the datapoints of that pass of `ds`, in order, with the same
    random numbers for any number of workers and every backend; and passes end. With ``strict=False`` it is the default
    runner of tensorpack: every worker repeats the whole flow, and a pass is a mixture.

    Example:
        >>> df = MapData(DataFromList([[k] for k in range(4)], shuffle=False), lambda dp: [dp[0] ** 2])
        >>> with ParallelData(df, 2) as squares:
        ...     list(squares), list(squares)
        ([[0], [1], [4], [9]], [[0], [1], [4], [9]])

    Args:
        ds: The flow. It is reset once inside every worker, and not in this process. A worker that is a thread gets a
            copy of its nodes, which share their lists and functions.
        num_workers: Number of workers. "auto" begins with one and adds more while that pays, up to `max_workers`;
            actors and default mode get one for each core that this process may use; a flow that cannot be addressed
            gets one. 0 runs the flow in the consumer, for a debugger.
        backend: "process", "thread", for work that releases the interpreter's lock, or "ray".
        hwm: How far each worker runs ahead: at most ``2 * hwm + 2`` of its datapoints are made and not yet handed out.
            None for as many as keep it busy.
        options: `strict` (here True), `ordered`, `timeout`, `max_restarts`, `max_failures`, `max_workers`,
            `worker_init`; of processes also `context`, `max_bytes` and `thread_limit`: see `WorkerOptions`. Of Ray
            those of `RayRunner`.

    Raises:
        NotAddressable: Several workers would have to share the passes of a flow that cannot be addressed; the message
            names the parallel map as the cure.
        TypeError: An option belongs to another backend.
        ValueError: There is no such backend.
    """

    @takes(ParallelKeywords, strict=True)
    def __init__(
        self,
        ds: DataFlow[T_co],
        num_workers: NumWorkers = AUTO,
        *,
        backend: BackendName = "process",
        hwm: SupportsIndex | None = None,
        **options: Unpack[ParallelKeywords],
    ) -> None:
        name = type(self).__name__
        flow = require_flow(ds, name)
        if backend not in _TAKES:
            raise ValueError(f'{name}: backend must be "process", "thread" or "ray", got {backend!r:.100}')
        given: dict[str, Any] = {"strict": True, **options}
        for option in given.keys() - _TAKES[backend]:
            others = " or ".join(f'"{other}"' for other, taken in _TAKES.items() if option in taken)
            raise TypeError(f'{name}: {option}= is an option of backend={others}, and backend is "{backend}"')
        of_ray = {option: given.pop(option, default) for option, default in ACTOR_DEFAULTS.items()}
        checked = WorkerOptions.of(self, num_workers, given)
        window = window_of(hwm, self, "hwm")
        ahead = None if hwm is None else window.count
        kind: Backend = ProcessBackend()
        if backend == "thread":
            kind, window = ThreadBackend(), Window(window.count)  # objects have no size in bytes
        elif backend == "ray":
            from dataflow.ray.ray_backend import RayBackend, num_items  # which no other backend needs

            ray = RayBackend(name, items=num_items(self, hwm), **of_ray)
            kind, window = ray, ray.window(checked)
        super().__init__([flow], checked, kind, window, ahead)
        self.backend = backend
