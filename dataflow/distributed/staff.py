"""The choices of whatever has actors for workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, SupportsIndex

from dataflow.distributed.actors import Start
from dataflow.distributed.asking import Asking, Demand
from dataflow.distributed.cluster import Cluster, RayCluster
from dataflow.distributed.crates import CrateCodec
from dataflow.distributed.dealing import DealtTray
from dataflow.distributed.station import Chunking
from dataflow.parallel.plan import Plan
from dataflow.parallel.staffing import Placed, Staffed
from dataflow.parameters import flag, keyword_arguments, seconds, whole_number
from dataflow.seeding import Stream
from dataflow.transport.channel import Channel
from dataflow.transport.codec import Codec
from dataflow.transport.credit import Credit, Window
from dataflow.workers.native_threads import ThreadLimit, limit_of

__all__ = ["Actors"]

_OURS: Final = {
    "concurrency_groups",
    "get_if_exists",
    "lifetime",
    "max_concurrency",
    "max_restarts",
    "max_task_retries",
    "name",
}
"""Options of an actor that would break what is promised: an actor that outlives its runner, or is restarted by Ray."""


class Actors(Staffed):
    """The choices of whatever has actors for workers."""

    _df_own_process = True
    _df_run_settings = Staffed._df_run_settings | {
        "actor_options",
        "address",
        "chunking",
        "copy",
        "in_flight",
        "start_timeout",
    }
    _df_make_cluster: ClassVar[Callable[[str | None], Cluster]] = RayCluster

    chunking: Chunking
    in_flight: int
    copy: bool
    actor_options: dict[str, Any]
    address: str | None
    start_timeout: float

    def _df_set_actors(
        self,
        *,
        in_flight: SupportsIndex,
        chunk_bytes: SupportsIndex,
        chunk_items: SupportsIndex,
        chunk_seconds: float | None,
        copy: bool,
        actor_options: Mapping[str, Any] | None,
        address: str | None,
        start_timeout: float,
    ) -> None:
        """Check and keep what the user gave."""
        self.in_flight = whole_number(self, "in_flight", in_flight, 1)
        items = whole_number(self, "chunk_items", chunk_items, 1)
        nbytes = whole_number(self, "chunk_bytes", chunk_bytes, 1)
        if chunk_seconds is not None:
            chunk_seconds = seconds(self, "chunk_seconds", chunk_seconds, or_zero=True, cure="; None for no bound")
        self.chunking = Chunking(items, nbytes, chunk_seconds)
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
        self._df_window = Window(self.chunking.items, most_queued=self.chunking.nbytes)

    # -- what is chosen ------------------------------------------------------------------------------------------------

    def _df_starter(self) -> Start:
        return Start(type(self)._df_make_cluster(self.address), self.actor_options)

    def _df_make_channel(self) -> tuple[Channel, Codec, Credit]:
        asking = Asking(
            self._df_title,
            self.num_workers,
            self.chunking,
            in_flight=self.in_flight,
            start_timeout=self.start_timeout,
        )
        return asking, CrateCodec(copy=self.copy), Demand(asking, self.num_workers)

    def _df_deal(self) -> DealtTray:
        """How tasks go to the actors: one more than the replies that are asked for, so that nobody waits for one."""
        return DealtTray(self.in_flight + 1, self._df_bytes_ahead())

    def _df_bytes_ahead(self) -> int:
        """Bytes that may be under way, of tasks and of what comes of them, each."""
        return self.num_workers * self.in_flight * self.chunking.nbytes

    def _df_make_engine(self, plan: Plan, stream: Stream) -> Placed:
        asking = plan.channel
        assert isinstance(asking, Asking), "as it was made above"
        plan.died = asking.died
        return super()._df_make_engine(plan, stream)

    def _df_threads_of_worker(self) -> ThreadLimit | None:
        if self.thread_limit == "share":  # of the cores that an actor has for itself
            return limit_of(max(1, int(self.actor_options["num_cpus"])), exact=False)
        return super()._df_threads_of_worker()
