"""Mixin for runners and maps: run the workers as Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, SupportsIndex

from dataflow.channel.flow_control import Credit, Window
from dataflow.channel.protocols import Channel
from dataflow.codec.protocols import Codec
from dataflow.distributed.actor import Chunking
from dataflow.distributed.actor_worker import Start
from dataflow.distributed.cluster import Cluster, RayCluster
from dataflow.distributed.object_store_codec import ObjectStoreCodec
from dataflow.distributed.pull_channel import Demand, PullChannel
from dataflow.distributed.push_queue import PushedTaskQueue
from dataflow.engine.engine import NodeEngine, Plan
from dataflow.parallel.worker_setup import WorkerSetup
from dataflow.parameters import flag, keyword_arguments, seconds, whole_number
from dataflow.seeding import Stream
from dataflow.workers.native_threads import ThreadLimit, limit_of

__all__ = ["Actors"]

_IN_FLIGHT: Final = 2  # replies of each actor that are requested in advance: they keep it busy
_REPLY_ITEMS: Final = 4096  # datapoints; a reply costs a millisecond, and has at most so many, if no bound is lower
_REPLY_BYTES: Final = 8 << 20
_REPLY_SECONDS: Final = 0.05  # that a reply may wait to be filled up
_MIN_BYTES: Final = 1 << 20

_OURS: Final = {
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
    _df_make_cluster: ClassVar[Callable[[str | None], Cluster]] = RayCluster

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
        if refused := sorted(_OURS.intersection(actor_options)):
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

    # -- what is chosen ------------------------------------------------------------------------------------------------

    def _df_starter(self) -> Start:
        return Start(type(self)._df_make_cluster(self.address), self.actor_options)

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        asking = PullChannel(
            self._df_title,
            self.num_workers,
            self.chunking,
            in_flight=_IN_FLIGHT,
            start_timeout=self.start_timeout,
        )
        return asking, ObjectStoreCodec(copy=self.copy), Demand(asking, self.num_workers)

    def _df_deal(self) -> PushedTaskQueue:
        """Return the task queue of the actors: one task more than requested replies, so that no actor waits for one."""
        return PushedTaskQueue(_IN_FLIGHT + 1, self.num_workers * self._df_bytes_ahead())

    def _df_bytes_ahead(self) -> int:
        """Bytes that may be under way for each actor: of tasks, and as much of their results."""
        return _IN_FLIGHT * self.chunking.nbytes

    def _df_make_engine(self, plan: Plan, stream: Stream) -> NodeEngine:
        asking = plan.channel
        assert isinstance(asking, PullChannel), "as it was made above"
        plan.died = asking.died
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
