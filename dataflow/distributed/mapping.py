"""`RayMapData`: the parallel map whose workers are Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from dataflow.base import DataFlow
from dataflow.channel.flow_control import Window
from dataflow.channel.task_queue import TaskQueue
from dataflow.distributed.actor_setup import Actors
from dataflow.failures import Budget
from dataflow.keywords import hinting
from dataflow.parallel.maps import ParallelMap
from dataflow.parallel.worker_options import ThreadLimitOption
from dataflow.parallel.worker_setup import UNBOUNDED

__all__ = ["RayMapData"]


class RayMapData(Actors, ParallelMap):
    """Apply a function to every datapoint, in `num_proc` actors on a Ray cluster.

    Semantics are those of `MultiProcessMapDataZMQ`, with and without `strict`. The consumer reads `ds` itself, so every
    datapoint crosses the network twice: where the actors can read the source themselves, `RayRunner` over the whole
    chain moves half as much.

    Args:
        ds: The input. It is reset and read in this process.
        num_proc: Number of actors. 0 calls the function in the consumer, without Ray.
        map_func: Takes a datapoint and returns one; returns None to drop it. Lambdas and closures may be sent.
        buffer_size: Datapoints that may be read and not yet handed out, at least 1. With `strict`, those that wait for
            a slower one before them are among these.
        strict: Whether a pass is exactly one of `MapData`.
        ordered: With `strict`, whether the order is kept, too.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict` the random numbers do not depend on which worker does the work.
        max_restarts: Total number of lost actors that are replaced. Their tasks are done again: with
            `strict` the output is that of an undisturbed run. The next loss is a `WorkerDied`.
        max_failures: Number of datapoints that may fail, as for `MultiProcessMapDataZMQ`.
        worker_init: Called without arguments once in each actor, before the first datapoint.
        thread_limit: Threads of native libraries in each actor, as for `RayRunner`.
        timeout: Seconds that the consumer waits for a datapoint; None waits as long as the actors are alive.
        max_bytes: Bytes of all results under way, as for `RayRunner`. Two thirds as many may be under way to the
            actors.
        copy: Whether large arrays may be written to, as for `RayRunner`.
        actor_options: Options of the actors, as for `RayRunner`.
        address: Address of the cluster, as for `RayRunner`.
        start_timeout: Seconds that an actor may take to start.

    Raises:
        MissingExtra: The package ray is not installed.
        WorkerDied: An actor is lost: killed, or with its node, or unreachable. The cause is Ray's explanation.
        WorkerError: The function raised an exception that cannot be pickled. Any other arrives as its own type, with
            the actor's traceback as its cause.
        TimeoutError: No datapoint came for `timeout` seconds, or an actor did not start within `start_timeout`.
        NotPicklable: The function cannot be sent.
        NotReentrant: A later iteration of the same map took over.

    Example:
        >>> df = DataFromGenerator(lambda: ([k] for k in range(5)))
        >>> list(RayMapData(df, 0, lambda dp: [dp[0] ** 2], strict=True))  # in this process, for a debugger
        [[0], [1], [4], [9], [16]]
    """

    @hinting
    def __init__(
        self,
        ds: DataFlow,
        num_proc: SupportsIndex | None = None,
        map_func: Callable[[Any], Any] | None = None,
        *,
        buffer_size: int = 200,
        strict: bool = False,
        ordered: bool = True,
        with_rng: bool = False,
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
        super().__init__(ds, num_proc, map_func, buffer_size, strict, ordered, with_rng)
        self._df_set_workers(self.num_workers, UNBOUNDED, timeout)
        self._df_set_actors(
            hwm=None,
            max_bytes=max_bytes,
            copy=copy,
            actor_options=actor_options,
            address=address,
            start_timeout=start_timeout,
        )
        self._df_set_restarts(max_restarts)
        self._df_set_options(max_failures, worker_init, thread_limit)

    def _df_window_of_worker(self) -> Window:
        return UNBOUNDED  # it works on requested tasks only

    def _df_make_task_queue(self) -> TaskQueue:
        return self._df_deal()
