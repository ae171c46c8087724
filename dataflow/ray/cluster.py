"""Actors on a Ray cluster: the adapter for Ray, imported on demand, and the consumer's handle of one actor."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from dataflow.errors import DataFlowError
from dataflow.ray.actor import WorkerActor
from dataflow.runners.worker_main import FlowPayload, WorkerSpec
from dataflow.system.extras import optional
from dataflow.system.pickling import dumps
from dataflow.system.worker_errors import LostWorker
from dataflow.system.worker_info import WorkerInfo
from dataflow.system.worker_pool import Worker

__all__ = [
    "ActorWorker",
    "ClusterPayload",
    "RayCluster",
    "connect",
    "ray_package",
    "start_worker",
]

_LOCAL: Final = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for it: all sockets of the cluster on 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
}
_GROUPS: Final = {"work": "work", "reply": "replies"}  # the other calls return at once, on a thread of their own
_START_SECONDS: Final = 10.0
_FETCH_SECONDS: Final = 60.0  # for a reply that is ready
_PROCESS_DIED: Final = "worker process has died"  # Ray's words, if its machine is not known to be down


def ray_package() -> Any:
    """Return the package ray.

    Raises:
        MissingExtra: The package ray is not installed.
    """
    return optional("ray", "ray", "A Ray cluster needs")


def connect(address: str | None = None) -> Any:
    """Connect to a cluster and return the package ray.

    A process that is connected stays connected, whatever `address` is. A cluster that was not started here is never
    shut down. One that is started here is shared by this process, and ends with it, or by ``ray.shutdown()``.

    Args:
        address: Address of a running cluster, as for ``ray.init``; "local" starts one on this machine. None is the
            cluster in the environment variable RAY_ADDRESS, otherwise "local". A cluster started here can be reached
            from this machine only, unless the program has imported ray before.

    Raises:
        MissingExtra: The package ray is not installed.
        DataFlowError: The process was forked from one that was connected.
        ConnectionError: There is no cluster at `address`.
    """
    if _forked.connected:
        raise DataFlowError(
            "this process was forked from one that is connected to a Ray cluster, and such a connection does not "
            'survive a fork. Use Ray in the main process only, or start these workers by context="spawn"'
        )
    if "ray" in sys.modules and ray_package().is_initialized():
        return ray_package()
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address != "local":
        ray = ray_package()
        ray.init(address=address)
        return ray
    # The import, too: Ray reads some of them as it is imported.
    with _environment(_LOCAL):
        ray = ray_package()
        ray.init(address="local", include_dashboard=False)
    return ray


class RayCluster:
    """The cluster to which this process is connected; a reference stands for the future result of a call.

    Ray's own restarts are off: a restarted actor would begin from its first datapoint, unnoticed.
    """

    def __init__(self, address: str | None) -> None:
        self._ray = connect(address)
        # Tells this cluster from one that is started after a `ray.shutdown()`.
        self._node = self._ray.get_runtime_context().get_node_id()
        groups = dict.fromkeys(_GROUPS.values(), 1)
        self._actor_class = self._ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups=groups)(WorkerActor)

    def start(self, options: Mapping[str, Any]) -> Any:
        """Start a `WorkerActor` as soon as the resources in `options` are free, and return it."""
        return self._actor_class.options(**options).remote()

    def call(self, actor: Any, method: str, *args: Any) -> Any:
        """Call a method of `WorkerActor` and return a reference. Does not wait.

        Raises:
            LostWorker: The connection to the cluster is gone.
        """
        self._check()
        bound = getattr(actor, method)
        return (bound.options(concurrency_group=_GROUPS[method]) if method in _GROUPS else bound).remote(*args)

    def wait(self, references: Sequence[Any], timeout: float, *, all_ready: bool = False) -> list[Any]:
        """Wait for the first of `references`, and return those that are ready: failed, or on this machine.

        With `all_ready` there may be several, otherwise one at most. References on their way are fetched meanwhile.

        Raises:
            LostWorker: The connection to the cluster is gone.
        """
        self._check()
        num = len(references) if all_ready else 1
        ready: list[Any] = self._ray.wait(list(references), num_returns=num, timeout=timeout, fetch_local=True)[0]
        return ready

    def get(self, reference: Any) -> Any:
        """Return the result.

        Raises:
            LostWorker: The actor will not return it, or it was lost.
        """
        self._check()
        try:
            return self._ray.get(reference, timeout=_FETCH_SECONDS)
        except self._ray.exceptions.RayError as error:  # GetTimeoutError is one, too
            raise LostWorker(str(error).strip(), has_died=_PROCESS_DIED in str(error)) from error

    def kill(self, actor: Any) -> None:
        """Kill an actor, whatever it is doing, and whether or not it can be reached."""
        if self._is_connected():
            self._ray.kill(actor)

    def free(self) -> Mapping[str, float]:
        """Return the resources that are free at present."""
        self._check()
        free: Mapping[str, float] = self._ray.available_resources()
        return free

    def _check(self) -> None:
        # Ray would silently start a new cluster.
        if not self._is_connected():
            raise LostWorker("this process is no longer connected to the cluster: ray.shutdown() was called")

    def _is_connected(self) -> bool:
        connected = not _forked.connected and self._ray.is_initialized()
        return bool(connected and self._ray.get_runtime_context().get_node_id() == self._node)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Context manager: set these environment variables where they are unset."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class _Forked:
    """Record of a connection that was inherited through a fork."""

    connected = False

    def notice(self) -> None:
        """In a child, just after the fork: record whether the parent was connected."""
        ray = sys.modules.get("ray")
        self.connected = self.connected or (ray is not None and ray.is_initialized())


_forked: Final = _Forked()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked.notice)


class ActorWorker(Worker):
    """One actor, from its start to its end. Calls do not block, except for `join`.

    The constructor starts it. It may be on another machine, and its exit code is unknown.

    Attributes:
        lost: Why it is lost; None if it is not known to be lost.
        is_ready: Whether it has opened its flow, as far as is known.
        is_over: Whether no more messages will come.
        replies: References of the requested replies, the oldest first.
        num_replies: How many have come.
        unread: For each reply that has come: the number of its counted messages that were not read yet.
        tasks: The unfinished tasks that were pushed to it, in the order of pushing.
    """

    def __init__(self, cluster: RayCluster, options: Mapping[str, Any], info: WorkerInfo, packed: bytes) -> None:
        self.info = info
        self.cluster = cluster
        self.options = options
        self.lost: LostWorker | None = None
        self.is_ready = self.is_over = False
        self.num_replies = 0
        self.replies: deque[Any] = deque()
        self.unread: deque[int] = deque()
        self.tasks: list[Any] = []
        self.started_at = time.monotonic()  # when it was requested
        self._where = "an actor that has not started"
        self._actor = cluster.start(options)
        self._started = self.call("where")
        self._work = self.call("work", packed)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of its `WorkerActor` and return a reference; None if the actor is lost."""
        if self.lost is None:
            try:
                return self.cluster.call(self._actor, method, *args)
            except LostWorker as error:
                self.mark_lost(error)
        return None

    def request_reply(self) -> None:
        """Request another reply. No-op if no more messages will come."""
        if not self.is_over and (reference := self.call("reply")) is not None:
            self.replies.append(reference)

    def consumed(self) -> None:
        """Count a message that was read: after the last one of a reply, another is requested."""
        if self.unread:
            self.unread[0] -= 1
            if not self.unread[0]:
                self.unread.popleft()
                self.request_reply()

    @property
    def takes_tasks(self) -> bool:
        """Whether it should be given tasks."""
        return self.is_ready and not self.is_over and self.lost is None

    def mark_lost(self, error: LostWorker) -> None:
        """Mark it as lost."""
        # A copy of `error`, because its traceback would keep everything in these frames alive.
        self.lost = self.lost or LostWorker(str(error), has_died=error.has_died)

    def has_started(self) -> bool:
        """Whether the process has started; also true if the actor is lost."""
        try:
            if self._started is not None and self.cluster.wait([self._started], 0):
                self.pid, host = self.cluster.get(self._started)
                self._where = f"an actor, pid {self.pid} on {host}"
                self._started = None
        except LostWorker as error:
            self.mark_lost(error)
        return self._started is None or self.lost is not None

    def has_ended(self) -> bool:
        """Whether its work has ended, or it is lost."""
        return self.lost is not None

    def ended_silently(self) -> LostWorker | None:
        """Return why its work has ended without a final message; None while it works. Called when no message comes."""
        if not self.join(0):
            return None
        try:
            self.cluster.get(self._work)
        except LostWorker as error:
            return error
        return LostWorker("its work has ended without a message")

    def state(self) -> str:
        return self._where

    def join(self, timeout: float) -> bool:
        """Wait for the end of its work, `timeout` seconds at most; return whether it has ended."""
        try:
            return self.lost is not None or bool(self.cluster.wait([self._work], timeout))
        except LostWorker as error:
            self.mark_lost(error)
            return True

    def kill(self) -> bool:
        """Kill it, whatever it is doing, also if it is unreachable; one that is starting ends when it has started.

        If Ray (2.60) is told to kill an actor at the moment when a process is found for it, it loses the resources of
        the actor: nobody has them until this program ends. So such an actor is left alone. It was told to stop, and
        Ray ends it when its calls are done and nobody has its handle. One that has not started for so long waits for
        room, not for a process.
        """
        is_starting = not self.has_started() and time.monotonic() - self.started_at <= _START_SECONDS
        if self._actor is not None and not is_starting:
            self.cluster.kill(self._actor)
        return True

    def begin_kill(self) -> None:
        """Kill it, which does not wait: from now on it is lost."""
        # In this order: one that is lost counts as started, and would be killed also while it starts.
        self.kill()
        self.mark_lost(LostWorker("it was killed"))

    def release(self) -> None:
        """End the idle process, and drop the handle of the actor."""
        # In this order, as in `begin_kill`.
        self.kill()
        self.mark_lost(LostWorker("it was released"))
        self._actor = self._work = None


class ClusterPayload(FlowPayload):
    """A flow on its way to a process of the cluster."""

    otherwise = ""  # there is no fork


def start_worker(cluster: RayCluster, options: Mapping[str, Any], spec: WorkerSpec) -> ActorWorker:
    """Start a worker as an actor with these options, and register it with its channel."""
    packed = dumps(replace(spec, payload=ClusterPayload(spec.payload.load())))
    worker = ActorWorker(cluster, options, spec.info, packed)
    cast(Any, spec.port).register(worker)
    return worker
