"""`ActorWorker`: the consumer's handle of a worker that is an actor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from dataflow.distributed.cluster import ActorLost, Cluster
from dataflow.engine.worker_main import FlowPayload, WorkerSpec
from dataflow.pickling import dumps
from dataflow.workers.info import WorkerInfo

__all__ = ["ActorWorker", "Start"]


class ActorWorker:
    """One actor, from its start to its end. Calls do not block, except for `join`.

    Attributes:
        lost: Why it is lost; None if it is not known to be lost.
        has_answered: Whether any message has come from it.
        is_over: Whether no more messages will come.
    """

    sentinel: int | None = None

    def __init__(self, cluster: Cluster, options: Mapping[str, Any], info: WorkerInfo, packed: bytes) -> None:
        self.info = info
        self.cluster = cluster
        self.options = options
        self.pid: int | None = None  # on its machine, once it has started
        self.lost: ActorLost | None = None
        self.has_answered = self.is_over = False
        self._where = "an actor that has not started"
        self._actor = cluster.start(options)
        self._started = self.call("where")
        self._work = self.call("work", packed)

    def start(self) -> None:
        """No-op: the constructor has started it."""

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of its `WorkerActor` and return a reference; None if the actor is lost."""
        if self.lost is None:
            try:
                return self.cluster.call(self._actor, method, *args)
            except ActorLost as error:
                self.lose(error)
        return None

    def lose(self, error: ActorLost) -> None:
        """Mark it as lost."""
        # A copy of `error`, because its traceback would keep everything in these frames alive.
        self.lost = self.lost or ActorLost(str(error))

    def has_started(self) -> bool:
        """Whether the process has started; also true if the actor is lost."""
        if self._started is not None and self.cluster.wait([self._started], 0):
            self.pid, host = self.cluster.get(self._started)
            self._where = f"an actor, pid {self.pid} on {host}"
            self._started = None
        return self._started is None

    def has_ended(self) -> bool:
        """Whether its work has ended, or it is lost."""
        return self.lost is not None

    def ended_in_silence(self) -> ActorLost | None:
        """Return why its work has ended without a final message; None while it works. Call it when no message comes."""
        if not self.join(0):
            return None
        try:
            self.cluster.get(self._work)
        except ActorLost as error:
            return error
        return ActorLost("its work has ended without a word")

    def exitcode(self) -> None:
        """None: exit codes of actors are unknown."""

    def state(self) -> str:
        """Describe its state, for a message."""
        return self._where

    def join(self, timeout: float) -> bool:
        """Wait for the end of its work, `timeout` seconds at most; return whether it has ended."""
        try:
            return self.lost is not None or bool(self.cluster.wait([self._work], timeout))
        except ActorLost as error:
            self.lose(error)
            return True

    def kill(self) -> bool:
        """Kill it, whatever it is doing, also if it is unreachable."""
        self.cluster.kill(self._actor)
        return True

    def release(self) -> None:
        """End the idle process."""
        self.kill()


class _ActorPayload(FlowPayload):
    otherwise = ""  # there is no fork


@dataclass
class Start:
    """Starter of actor workers: a function of the `WorkerSpec`."""

    cluster: Cluster
    options: Mapping[str, Any]

    def __call__(self, spec: WorkerSpec) -> ActorWorker:
        """Start a worker, and register it with its channel and task queue."""
        packed = dumps(replace(spec, payload=_ActorPayload(spec.payload.load())))
        worker = ActorWorker(self.cluster, self.options, spec.info, packed)
        cast(Any, spec.port).introduce(worker)
        if spec.task_queue is not None:
            cast(Any, spec.task_queue).introduce(worker)
        return worker
