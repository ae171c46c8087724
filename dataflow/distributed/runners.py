"""`RayRunner` and `RayMapData`: the runner and the map whose workers are Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, SupportsIndex

from dataflow.base import DataFlow
from dataflow.channel.flow_control import Credit, Window
from dataflow.channel.protocols import Channel
from dataflow.channel.task_queue import TaskQueue
from dataflow.codec.protocols import Codec
from dataflow.distributed.actor import Chunking
from dataflow.distributed.cluster import ActorWorker, RayCluster, start_worker
from dataflow.distributed.object_store_codec import ObjectStoreCodec
from dataflow.distributed.pull_channel import PullChannel, PullCredit
from dataflow.distributed.push_queue import PushedTaskQueue
from dataflow.engine.engine import NodeEngine, Plan
from dataflow.engine.schedules import IndexRanges, Schedule
from dataflow.engine.worker_main import WorkerSpec
from dataflow.failures import Budget
from dataflow.parallel.maps import ParallelMap
from dataflow.parallel.runners import Runner, window_of
from dataflow.parallel.worker_setup import UNBOUNDED, ThreadLimitOption, WorkerSetup
from dataflow.parameters import flag, hinting, keyword_arguments, seconds, whole_number
from dataflow.seeding import Stream
from dataflow.workers.native_threads import ThreadLimit, limit_of

__all__ = ["Actors", "RayMapData", "RayRunner"]

_IN_FLIGHT: Final = 2  # replies of each actor that are requested in advance: they keep it busy
_REPLY_ITEMS: Final = 4096  # datapoints; a reply costs a millisecond, and has at most so many, if no bound is lower
_REPLY_BYTES: Final = 8 << 20
_REPLY_SECONDS: Final = 0.05  # that a reply may wait to be filled up
_MIN_BYTES: Final = 1 << 20

_REFUSED_OPTIONS: Final = {
    "concurrency_groups",
    "get_if_exists",
    "lifetime",
    "max_concurrency",
    "max_restarts",
    "max_task_retries",
    "name",
}
"""Options that would break our guarantees: the actor would outlive its runner, or Ray would restart it."""


class Actors(WorkerSetup):
    """Mixin: run the workers as Ray actors."""

    _df_own_process = True
    _df_run_settings = WorkerSetup._df_run_settings | {
        "actor_options",
        "address",
        "chunking",
        "copy",
        "start_timeout",
    }
    _df_make_cluster: ClassVar[Callable[[str | None], RayCluster]] = RayCluster

    chunking: Chunking
    copy: bool
    actor_options: dict[str, Any]
    address: str | None
    start_timeout: float

    def _df_set_actors(
        self,
        *,
        hwm: SupportsIndex | None,
        max_bytes: SupportsIndex | None,
        copy: bool,
        actor_options: Mapping[str, Any] | None,
        address: str | None,
        start_timeout: float,
    ) -> None:
        """Check and store the user's options."""
        self.chunking = Chunking(
            _items_of(self, hwm), _bytes_of(self, max_bytes, max(1, self.num_workers)), _REPLY_SECONDS
        )
        if address is not None and not isinstance(address, str):
            raise TypeError(
                f"{type(self).__name__}: address is that of a cluster, as for ray.init, or None, got {address!r:.100}"
            )
        actor_options = keyword_arguments(self, "actor_options", actor_options)
        if refused := sorted(_REFUSED_OPTIONS.intersection(actor_options)):
            raise ValueError(
                f"actor_options cannot hold {', '.join(refused)}: {type(self).__name__} restarts its actors itself, "
                "with max_restarts=, and ends them. Pass resources and where to place them"
            )
        self.copy = flag(self, "copy", copy)
        self.actor_options = {"num_cpus": 1, **actor_options}
        self.address = address
        self.start_timeout = seconds(self, "start_timeout", start_timeout)
        self._df_window = Window(self.chunking.items, max_queued=self.chunking.nbytes)

    # -- text ----------------------------------------------------------------------------------------------------------

    @property
    def _df_worker_kind(self) -> tuple[str, str]:
        return "Ray actor", ""

    @property
    def _df_parameters(self) -> dict[str, Any]:
        return {
            **super()._df_parameters,
            "actor_options": None if self.actor_options == {"num_cpus": 1} else self.actor_options,
        }

    def _df_starter(self) -> Callable[[WorkerSpec], ActorWorker]:
        return partial(start_worker, type(self)._df_make_cluster(self.address), self.actor_options)

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        channel = PullChannel(
            self._df_title, self.num_workers, self.chunking, in_flight=_IN_FLIGHT, start_timeout=self.start_timeout
        )
        return channel, ObjectStoreCodec(copy=self.copy), PullCredit(channel, self.num_workers)

    def _df_make_pushed_queue(self) -> PushedTaskQueue:
        """Return the task queue of the actors: one task more than requested replies, so that no actor waits for one."""
        return PushedTaskQueue(_IN_FLIGHT + 1, self.num_workers * self._df_bytes_ahead())

    def _df_bytes_ahead(self) -> int:
        """Bytes that may be under way for each actor: of tasks, and as much of their results."""
        return _IN_FLIGHT * self.chunking.nbytes

    def _df_make_engine(self, plan: Plan, stream: Stream) -> NodeEngine:
        assert isinstance(plan.channel, PullChannel), "as it was made above"
        plan.died = plan.channel.died
        return super()._df_make_engine(plan, stream)

    def _df_threads_of_worker(self) -> ThreadLimit | None:
        if self.thread_limit == "share":  # of the cores reserved for an actor
            return limit_of(max(1, int(self.actor_options["num_cpus"])), exact=False)
        return super()._df_threads_of_worker()


def _items_of(owner: object, hwm: SupportsIndex | None) -> int:
    """Return the size limit of a reply, in datapoints, so that `hwm` holds with one more on its way and one in hand."""
    if hwm is None:
        return _REPLY_ITEMS
    ahead = whole_number(owner, "hwm", hwm, 0, ": it is a number of datapoints, or None for a default")
    return max(1, min(_REPLY_ITEMS, (2 * ahead + 1) // (_IN_FLIGHT + 1)))


def _bytes_of(owner: object, max_bytes: SupportsIndex | None, num_workers: int) -> int:
    """Return the size limit of a reply, in bytes, so that everything under way for all actors is within `max_bytes`."""
    if max_bytes is None:
        return _REPLY_BYTES
    cure = ": it is a number of bytes, at least 1 MiB, or None for a default"
    total = whole_number(owner, "max_bytes", max_bytes, _MIN_BYTES, cure)
    return max(1, min(_REPLY_BYTES, total // ((_IN_FLIGHT + 1) * num_workers)))


class _WeightedIndexRanges(IndexRanges):
    """The schedule of a strict runner, with a bound in bytes: ranges are shorter where datapoints are large.

    A worker cannot be paused in the middle of a range: that could be the one for which all others wait. So only as
    much is requested as may be under way, if datapoints are as large as the most recent ones.

    Args:
        task_queue: The queue from which the workers take.
        num_workers: Number of workers.
        max_ahead: Number of datapoints that may be under way for each; None for as many as keep it busy.
        bytes_per_worker: Bytes that may be under way for each; one datapoint is always allowed.
        grain: Number of indexes that the length of a range should be a multiple of.
        ordered: Whether datapoints are returned in the order of their indexes.
    """

    max_per_task = 8192

    def __init__(
        self,
        task_queue: TaskQueue,
        num_workers: int,
        max_ahead: int | None,
        bytes_per_worker: int,
        *,
        grain: int,
        ordered: bool,
    ) -> None:
        super().__init__(task_queue, num_workers, max_ahead, grain=grain, ordered=ordered)
        self._bytes_per_worker = bytes_per_worker

    def ahead(self) -> int:
        if not self.bytes_each:
            return 1  # no datapoint has come whose size is known
        return max(1, min(super().ahead(), int(self._bytes_per_worker / self.bytes_each)))


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
            are made and not yet returned. None for whatever `max_bytes` allows, up to some 12,000.
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
            message lists the resources that it requests and those that are free.
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
        return self._df_make_pushed_queue()

    def _df_make_schedule(self, task_queue: TaskQueue | None) -> Schedule:
        if task_queue is None or not self._df_by_index:
            return super()._df_make_schedule(task_queue)
        return _WeightedIndexRanges(
            task_queue,
            self.num_workers,
            self._max_ahead,
            self._df_bytes_ahead(),
            grain=self.ds._df_grain,
            ordered=self.ordered,
        )


class RayMapData(Actors, ParallelMap):
    """Apply a function to every datapoint, in `num_proc` actors on a Ray cluster.

    Semantics are those of `MultiProcessMapDataZMQ`, with and without `strict`. The consumer reads `ds` itself, so every
    datapoint crosses the network twice: where the actors can read the source themselves, `RayRunner` over the whole
    chain moves half as much.

    Args:
        ds: The input. It is reset and read in this process.
        num_proc: Number of actors. 0 calls the function in the consumer, without Ray.
        map_func: Takes a datapoint and returns one; returns None to drop it. Lambdas and closures may be sent.
        buffer_size: Datapoints that may be read and not yet returned, at least 1. With `strict`, those that wait for
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
        return self._df_make_pushed_queue()
