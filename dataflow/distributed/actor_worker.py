"""A worker that is an actor, as the consumer sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from dataflow.distributed.cluster import ActorLost, Cluster
from dataflow.engine.worker_main import FlowPayload, WorkerSpec
from dataflow.pickling import dumps
from dataflow.workers.place import WorkerInfo

__all__ = ["ActorWorker", "Start"]


class ActorWorker:
    """One actor, from its start to its end. Calls never wait for it, but for `join`.

    Attributes:
        lost: Why it is lost; None while it is not known to be.
        is_heard: Whether anything has come from it.
        is_over: Whether nothing more will come.
    """

    sentinel: int | None = None

    def __init__(self, cluster: Cluster, options: Mapping[str, Any], place: WorkerInfo, packed: bytes) -> None:
        self.place = place
        self.cluster = cluster
        self.options = options
        self.pid: int | None = None  # in its machine, as soon as it has started
        self.lost: ActorLost | None = None
        self.is_heard = self.is_over = False
        self._where = "an actor that has not started"
        self._actor = cluster.start(options)
        self._started = self.call("where")
        self._work = self.call("work", packed)

    def start(self) -> None:
        """It was started as it was made."""

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of its `WorkerActor`: a reference; None if it is lost."""
        if self.lost is None:
            try:
                return self.cluster.call(self._actor, method, *args)
            except ActorLost as error:
                self.lose(error)
        return None

    def lose(self, error: ActorLost) -> None:
        """It is lost, as far as we know."""
        # Not `error` itself: through its traceback, whoever keeps the report would keep all that is here.
        self.lost = self.lost or ActorLost(str(error))

    def has_started(self) -> bool:
        """Whether there is a process; also if it is lost."""
        if self._started is not None and self.cluster.wait([self._started], 0):
            self.pid, host = self.cluster.get(self._started)
            self._where = f"an actor, pid {self.pid} on {host}"
            self._started = None
        return self._started is None

    def has_ended(self) -> bool:
        """Whether it runs no more, or is lost."""
        return self.lost is not None

    def ended_in_silence(self) -> ActorLost | None:
        """Why its work has ended, though it has not told so; None while it works. To be asked when nothing comes."""
        if not self.join(0):
            return None
        try:
            self.cluster.get(self._work)
        except ActorLost as error:
            return error
        return ActorLost("its work has ended without a word")

    def exitcode(self) -> None:
        """None: nobody knows."""

    def state(self) -> str:
        """What it is, for a message."""
        return self._where

    def join(self, timeout: float) -> bool:
        """Wait for the end of its work, `timeout` seconds at most; whether it has ended."""
        try:
            return self.lost is not None or bool(self.cluster.wait([self._work], timeout))
        except ActorLost as error:
            self.lose(error)
            return True

    def kill(self) -> bool:
        """End it whatever it is doing; what has become unreachable, too."""
        self.cluster.kill(self._actor)
        return True

    def release(self) -> None:
        """End the process, which has nothing to do any more."""
        self.kill()


class _ActorPayload(FlowPayload):
    otherwise = ""  # there is no fork


@dataclass
class Start:
    """How workers are started: a function of what they run."""

    cluster: Cluster
    options: Mapping[str, Any]

    def __call__(self, spec: WorkerSpec) -> ActorWorker:
        """Start a worker, and introduce it to those that will call it."""
        packed = dumps(replace(spec, payload=_ActorPayload(spec.payload.load())))
        worker = ActorWorker(self.cluster, self.options, spec.place, packed)
        cast(Any, spec.port).introduce(worker)
        if spec.task_queue is not None:
            cast(Any, spec.task_queue).introduce(worker)
        return worker
