"""Ray backend: workers are actors of a cluster.

The consumer requests replies of its actors (`PullChannel`) and pushes tasks to them (`PushedTaskQueue`); large arrays
go through the object store (`ObjectStoreCodec`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, SupportsIndex

from dataflow.protocol.parameters import flag, keyword_arguments, seconds, whole_number
from dataflow.ray.actor import Chunking
from dataflow.ray.cluster import RayCluster, start_worker
from dataflow.ray.object_store_codec import ObjectStoreCodec
from dataflow.ray.pull_channel import PullChannel, PullCredit
from dataflow.ray.push_queue import PushedTaskQueue
from dataflow.runners.backends import Backend, BackendName, Links, Tasks
from dataflow.runners.options import WorkerOptions
from dataflow.runners.worker_main import WorkerSpec
from dataflow.system.native_threads import ThreadLimit, limit_for
from dataflow.system.worker_pool import Worker
from dataflow.transport.flow_control import Window

__all__ = ["RayBackend", "num_items"]

_IN_FLIGHT: Final = 2  # replies of each actor that are requested in advance: they keep it busy
_REPLY_ITEMS: Final = 4096  # datapoints; a reply costs a millisecond, and has at most so many, if no bound is lower
_REPLY_BYTES: Final = 8 << 20
_REPLY_SECONDS: Final = 0.05  # that a reply may wait to be filled up

_ONE_CPU: Final = {"num_cpus": 1}

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


@dataclass(frozen=True)
class RayBackend(Backend):
    """Workers are Ray actors.

    Args:
        owner: The class that the user has called, for messages.
        copy: Whether large arrays are writable copies of those in the object store.
        actor_options: Options of the actors, as for ``ray.remote``; None for one CPU each.
        address: Address of the cluster, as for ``ray.init``.
        start_timeout: Seconds that an actor may take to start.
        items: Maximum number of datapoints in a reply.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: `actor_options` has one that would break a guarantee, or a number is out of range.
    """

    owner: str
    copy: bool
    actor_options: Mapping[str, Any]
    address: str | None
    start_timeout: float
    items: int = _REPLY_ITEMS
    name: ClassVar[BackendName] = "ray"
    own_process = True
    adds_workers = False
    make_cluster: ClassVar[Callable[[str | None], RayCluster]] = RayCluster

    def __post_init__(self) -> None:
        if self.address is not None and not isinstance(self.address, str):
            raise TypeError(
                f"{self.owner}: address is that of a cluster, as for ray.init, or None, got {self.address!r:.100}"
            )
        given = keyword_arguments(self.owner, "actor_options", self.actor_options)
        if refused := sorted(_REFUSED_OPTIONS.intersection(given)):
            raise ValueError(
                f"actor_options cannot hold {', '.join(refused)}: {self.owner} restarts its actors itself, with "
                "max_restarts=, and ends them. Pass resources and where to place them"
            )
        flag(self.owner, "copy", self.copy)
        seconds(self.owner, "start_timeout", self.start_timeout)
        object.__setattr__(self, "actor_options", _ONE_CPU | given)

    def is_forked(self, options: WorkerOptions) -> bool:
        return False

    def describe(self, options: WorkerOptions) -> tuple[str, str]:
        return "Ray actor", ""

    def parameters(self, options: WorkerOptions) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("copy", "address", "start_timeout")}
        return {**shown, "actor_options": None if self.actor_options == _ONE_CPU else self.actor_options}

    def chunking(self, options: WorkerOptions) -> Chunking:
        """When a reply is full: everything under way for all actors is within `max_bytes`."""
        nbytes = _REPLY_BYTES
        if options.max_bytes is not None:
            nbytes = max(1, min(nbytes, options.max_bytes // ((_IN_FLIGHT + 1) * max(1, options.num_workers))))
        return Chunking(self.items, nbytes, _REPLY_SECONDS)

    def window(self, options: WorkerOptions) -> Window:
        """How far an actor may run ahead of the replies that were requested."""
        chunking = self.chunking(options)
        return Window(chunking.items, max_queued=chunking.nbytes)

    def links(self, options: WorkerOptions, tasks: Tasks) -> Links:
        n, chunking = options.num_workers, self.chunking(options)
        channel = PullChannel(self.owner, n, chunking, in_flight=_IN_FLIGHT, start_timeout=self.start_timeout)
        bytes_ahead = _IN_FLIGHT * chunking.nbytes  # of tasks for each actor, and as much of their results
        # One task more than requested replies, so that no actor waits for one.
        queue = None if tasks is Tasks.NONE else PushedTaskQueue(channel.actors, _IN_FLIGHT + 1, n * bytes_ahead)
        codec = ObjectStoreCodec(copy=self.copy)
        credit = PullCredit(channel, n)
        return Links(channel, codec, credit, queue, bytes_ahead, channel.died, longest_task=_REPLY_ITEMS)

    def starter(self, options: WorkerOptions) -> Callable[[WorkerSpec], Worker]:
        return partial(start_worker, type(self).make_cluster(self.address), self.actor_options)

    def thread_limit(self, options: WorkerOptions) -> ThreadLimit | None:
        reserved = self.actor_options["num_cpus"]  # for an actor
        return limit_for(options.thread_limit, max(1, int(reserved or 1)))


def num_items(owner: object, hwm: SupportsIndex | None) -> int:
    """Return the size limit of a reply, in datapoints, so that at most ``4 * hwm + 6`` are made and not yet returned.

    Of that size are, at most: the reply in the consumer's hand, those that were requested, one that is kept for the
    next request, the worker's queue, and the message that it fills.
    """
    if hwm is None:
        return _REPLY_ITEMS
    ahead = whole_number(owner, "hwm", hwm, 0, ": it is a number of datapoints, or None for a default")
    return max(1, min(_REPLY_ITEMS, (2 * ahead + 1) // (_IN_FLIGHT + 1)))
