"""`RayRunner`: the runner whose workers are Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from dataflow.base import DataFlow
from dataflow.channel.task_queue import TaskQueue
from dataflow.distributed.actor_setup import Actors
from dataflow.distributed.weighted_ranges import WeightedIndexRanges
from dataflow.engine.schedules import Schedule
from dataflow.failures import Budget
from dataflow.keywords import hinting
from dataflow.parallel.runners import Runner, window_of
from dataflow.parallel.worker_options import ThreadLimitOption
from dataflow.parallel.worker_setup import UNBOUNDED

__all__ = ["RayRunner"]


class RayRunner(Actors, Runner):
    """Run a flow in `num_proc` actors on a Ray cluster.

    Semantics are those of `MultiProcessRunnerZMQ`, with and without `strict`; it gives the same datapoints: random
    numbers depend neither on the cluster nor on where in it an actor runs. `ds` travels to the actors by pickle, so
    every node of the cluster needs the packages and the files that it uses; ``actor_options={"runtime_env": ...}`` is
    Ray's way to bring them.

    Large arrays (16 KiB and more) arrive read-only, as views of the object store, where each keeps the whole reply in
    which it came. Pass ``copy=True`` to write to them, or to keep some of them.

    Args:
        ds: The flow. It is reset once inside every actor, and not in this process.
        num_proc: Number of actors, each a process in the cluster. 0 runs the flow in the consumer, without Ray.
        hwm: How far each actor runs ahead, as for `MultiProcessRunnerZMQ`: at most ``2 * hwm + 2`` of its datapoints
            are made and not yet handed out. None for whatever `max_bytes` allows, up to some 12,000.
        strict: Whether a pass is exactly one of `ds`, as for `MultiProcessRunnerZMQ`.
        ordered: With `strict`, whether the order is kept, too.
        max_restarts: Total number of lost actors (with their process or node) that are replaced. With `strict`,
            missing datapoints are made again, so that every datapoint comes exactly once; otherwise what the actor had
            made and not delivered is lost, and its successor begins with the first of its passes.
        max_failures: Number of datapoints that may be skipped, as for `MultiProcessRunnerZMQ`.
        worker_init: Called without arguments once in each actor, before the flow is reset there.
        thread_limit: Threads that BLAS, OpenMP and OpenCV may use in each actor: a number; "share" for as many as it
            has of ``num_cpus``; None to leave them alone.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the actors are alive.
        max_bytes: Bytes of all datapoints that all actors together have under way, at least 1 MiB; None for 24 MiB for
            each actor. One datapoint of each, however large, may always be under way, and each reply exceeds its part
            by its last datapoint.
        copy: Whether large arrays are writable copies of those in the object store.
        actor_options: Options of the actors, as for ``ray.remote``; one CPU each where it has no "num_cpus". To spread
            them over the nodes: ``{"scheduling_strategy": "SPREAD"}``.
        address: Address of the cluster, as for ``ray.init``, if this process is not connected to one. None is the
            cluster in the environment variable RAY_ADDRESS, otherwise one that is started on this machine, and ends
            with this process or by ``ray.shutdown()``. No other cluster is ever shut down.
        start_timeout: Seconds that an actor may take to start.

    Raises:
        MissingExtra: The package ray is not installed.
        WorkerDied: An actor is lost: killed, or with its node, or unreachable. The cause is Ray's explanation.
        WorkerError: An actor raised an exception that cannot be pickled. Any other arrives as its own type, with the
            actor's traceback as its cause, after all datapoints that it had made before.
        TimeoutError: No datapoint came for `timeout` seconds; or an actor did not start within `start_timeout`: the
            message lists the resources that it asks for and those that are free.
        NotPicklable: A node cannot be sent; names the node and the attribute.
        NotReentrant: A later iteration of the same runner took over.
        NotAddressable: With `strict`, several workers must share the passes of a flow that cannot be addressed.
        TooManyFailures: `max_failures` is used up; the last error is the cause.

    Example:
        >>> df = MapData(DataFromList([[k] for k in range(4)], shuffle=False), lambda dp: [dp[0] ** 2])
        >>> RayRunner(df, 4, strict=True, actor_options={"num_cpus": 2}).addressable
        True
        >>> list(RayRunner(df, 0))  # in this process, for a debugger
        [[0], [1], [4], [9]]
    """

    @hinting
    def __init__(
        self,
        ds: DataFlow,
        num_proc: SupportsIndex = 1,
        hwm: SupportsIndex | None = None,
        *,
        strict: bool = False,
        ordered: bool = True,
        max_restarts: SupportsIndex = 0,
        max_failures: Budget | None = None,
        worker_init: Callable[[], object] | None = None,
        thread_limit: ThreadLimitOption = "share",
        timeout: float | None = None,
        max_bytes: SupportsIndex | None = None,
        copy: bool = False,
        actor_options: Mapping[str, Any] | None = None,
        address: str | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        self._max_ahead = None if hwm is None else window_of(hwm, self, "hwm").count  # of a strict runner: datapoints
        super().__init__(ds, num_proc, UNBOUNDED, timeout)
        self._df_set_actors(
            hwm=hwm,
            max_bytes=max_bytes,
            copy=copy,
            actor_options=actor_options,
            address=address,
            start_timeout=start_timeout,
        )
        self._df_set_strict(strict, ordered)
        self._df_set_restarts(max_restarts)
        self._df_set_options(max_failures, worker_init, thread_limit)

    def _df_make_strict_task_queue(self) -> TaskQueue:
        return self._df_deal()

    def _df_make_schedule(self, task_queue: TaskQueue | None) -> Schedule:
        if task_queue is None or not self._df_by_index:
            return super()._df_make_schedule(task_queue)
        return WeightedIndexRanges(
            task_queue,
            self.num_workers,
            self._max_ahead,
            self._df_bytes_ahead(),
            grain=self.ds._df_grain,
            ordered=self.ordered,
        )
