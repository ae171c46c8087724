"""`RayRunner` and `RayMapData`: the runner and the map whose workers are Ray actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, SupportsIndex, Unpack, overload

from dataflow.protocol.base import DataFlow, T_co, T_in
from dataflow.protocol.seeding import Rng
from dataflow.ray.ray_backend import RayBackend, num_items
from dataflow.runners.maps import ParallelMap
from dataflow.runners.options import ACTOR_DEFAULTS, ActorKeywords, NumWorkers, WorkerOptions, takes
from dataflow.runners.runners import Runner, window_of

__all__ = ["RayMapData", "RayRunner"]


def _split(
    node: object,
    num_proc: NumWorkers | None,
    num_workers: NumWorkers | None,
    given: ActorKeywords,
    hwm: SupportsIndex | None = None,
    default: int | None = None,
) -> tuple[WorkerOptions, RayBackend]:
    """The options of the workers, and the backend that has the other options."""
    own: dict[str, Any] = {name: given.get(name, default) for name, default in ACTOR_DEFAULTS.items()}
    others = {name: value for name, value in given.items() if name not in own}
    options = WorkerOptions.of(node, num_workers, others, ("num_proc", num_proc), default)
    return options, RayBackend(options.owner, items=num_items(node, hwm), **own)


class RayRunner(Runner[T_co]):
    """Run a flow in `num_proc` actors on a Ray cluster.

    Semantics are those of `MultiProcessRunnerZMQ`, with and without `strict`; it gives the same datapoints: random
    numbers depend neither on the cluster nor on where in it an actor runs. `ds` travels to the actors by pickle, so
    every node of the cluster needs the packages and the files that it uses; ``actor_options={"runtime_env": ...}`` is
    Ray's way to bring them.

    Large arrays (16 KiB and more) arrive read-only, as views of the object store, where each keeps the whole reply in
    which it came. Pass ``copy=True`` to write to them, or to keep some of them.

    Args:
        ds: The flow. It is reset once inside every actor, and not in this process.
        num_proc: Number of actors, each a process in the cluster; None for one. 0 runs the flow in the consumer,
            without Ray.
        hwm: How far each actor runs ahead, similar to `MultiProcessRunnerZMQ`: at most ``4 * hwm + 6`` of its
            datapoints are made and not yet returned. None for whatever `max_bytes` allows, up to some 12,000.
        num_workers: The same as `num_proc`, under the name that all runners and maps know.
        options: `strict`, `ordered`, `timeout`, `max_restarts`, `max_failures`, `worker_init`, `thread_limit` and
            `item_timeout`: see `WorkerOptions`; and the following. An actor that gives no sign of life, because it is
            stopped or C code holds the interpreter's lock, gets about five times `item_timeout`. Only with `strict` are
            the datapoints of a lost actor made again; otherwise what it had made and not delivered is lost. The share
            of ``thread_limit="share"`` is as many threads as an actor has of ``num_cpus``.
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

    @takes(ActorKeywords)
    def __init__(
        self,
        ds: DataFlow[T_co],
        num_proc: NumWorkers | None = None,
        hwm: SupportsIndex | None = None,
        *,
        num_workers: NumWorkers | None = None,
        **options: Unpack[ActorKeywords],
    ) -> None:
        checked, backend = _split(self, num_proc, num_workers, options, hwm, default=1)
        ahead = None if hwm is None else window_of(hwm, self, "hwm").count  # of a strict runner: datapoints
        super().__init__([ds], checked, backend, backend.window(checked), ahead)


class RayMapData(ParallelMap[T_co]):
    """Apply a function to every datapoint, in `num_proc` actors on a Ray cluster.

    Semantics are those of `MultiProcessMapData`, with and without `strict`. The consumer reads `ds` itself, so every
    datapoint crosses the network twice: where the actors can read the source themselves, `RayRunner` over the whole
    chain moves half as much.

    Args:
        ds: The input. It is reset and read in this process.
        num_proc: Number of actors. 0 calls the function in the consumer, without Ray.
        map_func: Takes a datapoint and returns one; returns None to drop it. Lambdas and closures may be sent.
        num_workers: The same as `num_proc`, under the name that all runners and maps know.
        buffer_size: Datapoints that may be read and not yet returned, at least 1. With `strict`, those that wait for
            a slower one before them are among these.
        with_rng: Whether the function is called as ``map_func(dp, rng)``, with the generator that `RandomMapData` would
            give it: with `strict` the random numbers do not depend on which worker does the work.
        seed_globals: Seed `random`, `np.random` and torch before each call, as for `MapData`.
        options: `strict`, `ordered`, `timeout`, `max_restarts`, `max_failures`, `worker_init`, `thread_limit` and
            `item_timeout`, as for `RayRunner`; and the following.
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

    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        num_proc: NumWorkers | None = None,
        map_func: Callable[[T_in], T_co | None] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: Literal[False] = False,
        seed_globals: bool = False,
        **options: Unpack[ActorKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self,
        ds: DataFlow[T_in],
        num_proc: NumWorkers | None = None,
        map_func: Callable[[T_in, Rng], T_co | None] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: Literal[True],
        seed_globals: bool = False,
        **options: Unpack[ActorKeywords],
    ) -> None: ...
    @takes(ActorKeywords)
    def __init__(
        self,
        ds: DataFlow,
        num_proc: NumWorkers | None = None,
        map_func: Callable[..., Any] | None = None,
        *,
        num_workers: NumWorkers | None = None,
        buffer_size: int = 200,
        with_rng: bool = False,
        seed_globals: bool = False,
        **options: Unpack[ActorKeywords],
    ) -> None:
        checked, backend = _split(self, num_proc, num_workers, options)
        super().__init__(ds, map_func, checked, backend, buffer_size, with_rng=with_rng, seed_globals=seed_globals)
